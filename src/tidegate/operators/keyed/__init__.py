"""One result per key without a window: running aggregates, the running reduce, deduplication."""
