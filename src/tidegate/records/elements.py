"""The stream elements between batches: watermarks, checkpoint barriers, the end of input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIN_TIMESTAMP: Final = -(1 << 63)
"""The clock before the first watermark."""
MAX_WATERMARK: Final = (1 << 63) - 1
"""The watermark at the end of input: every timer is due."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A promise that no record with a timestamp at or before `timestamp_ms` follows on this channel."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether a channel is idle: it has no records for now and holds no clock back. A record makes it active again."""

    idle: bool


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Divides a channel: what came before belongs to the checkpoint, what comes after does not (Chandy–Lamport).

    `timestamp_ms` is when the JobManager triggered it. An `unaligned` one overtakes the batches that wait in queues.
    """

    checkpoint_id: int
    timestamp_ms: int
    unaligned: bool = False


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing follows on this channel."""


END_OF_INPUT = EndOfInput()
