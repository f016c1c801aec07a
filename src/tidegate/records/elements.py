"""The other things that flow between batches: watermarks, checkpoint barriers, the end of input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watermark:
    """A promise that no record with a timestamp at or before `timestamp_ms` follows on this channel."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Cuts a channel in two: what came before belongs to the checkpoint, what comes after does not.

    `timestamp_ms` is when the JobManager triggered it. An `unaligned` one overtakes the batches that wait in queues.
    """

    checkpoint_id: int
    timestamp_ms: int
    unaligned: bool = False


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing follows on this channel."""


END_OF_INPUT = EndOfInput()
