"""Batches as columns: the user's functions on Arrow batches, and polars expressions."""
