"""Checkpoints as the JobManager sees them: the coordinator (pure), completed checkpoints, statistics."""
