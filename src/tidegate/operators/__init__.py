"""The running operators, built from specs inside a slot: they turn batches into batches."""
