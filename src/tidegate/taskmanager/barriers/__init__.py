"""Checkpoint barriers in a slot: alignment, in-flight data, and what a subtask does for a checkpoint."""
