"""Checkpoints of a running job, and where they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fault.kit import until
from tests.fault.stored import Stored, completed

QUICK = {
    "checkpoint_interval": "20 ms",
    "checkpoint_fsync": False,
    "restart_strategy": "fixed-delay",
    "restart_delay": "50 ms",
}


def later_checkpoint(client: Any, what: str) -> Any:
    """The statistics of a checkpoint that is triggered from now on, once it is complete."""
    newest = max((c.checkpoint_id for c in client.checkpoints().history), default=0)

    def look() -> Any:
        return next(
            (c for c in client.checkpoints().history if c.checkpoint_id > newest and c.status == "completed"),
            None,
        )

    return until(client, look, what)


def stored(root: Path, statistics: Any) -> Stored:
    """Its files."""
    return next(s for s in completed(root) if s.id == statistics.checkpoint_id)


def newest_completed(client: Any) -> int:
    latest = client.checkpoints().latest_completed
    return 0 if latest is None else int(latest.checkpoint_id)
