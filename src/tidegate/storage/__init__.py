"""Durable bytes: filesystems, and the layout of a checkpoint directory (the only place that formats a path)."""
