"""Time to live in RocksDB: every value carries the time when it was last written, and is invisible when too old.

Event time is the operator's watermark, and what is written before the first one counts from it. The watermark is stored
with a checkpoint: what had expired does not come back when the next attempt begins without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate.api.state import StateTtl
from tidegate.core.clock import Clock
from tidegate.state.backend import NO_WATERMARK, KeyedStateBackend

STAMP_BYTES: Final = 8


@dataclass
class EventTime:
    """The watermarks that a backend has seen, in this attempt and before."""

    backend: KeyedStateBackend = field(repr=False)
    restored: int = NO_WATERMARK
    first: int = NO_WATERMARK

    def now(self) -> int:
        """The latest one."""
        now = max(self.backend.current_watermark_ms, self.restored)
        if self.first == NO_WATERMARK:
            self.first = now
        return now


class Expiry:
    """When the values of one state expire."""

    def __init__(self, ttl: StateTtl, clock: Clock, event_time: EventTime) -> None:
        self.refresh_on_read = ttl.refresh_on_read
        self._duration_ms = ttl.duration_ms
        self._event_time = event_time
        self.now = event_time.now if ttl.time == "event" else clock.now_ms

    def is_past(self, written_ms: int, now_ms: int | None = None) -> bool:
        """Whether what was last written then has expired (now, or at that later time)."""
        now = self.now() if now_ms is None else now_ms
        if now == NO_WATERMARK:
            return False
        if written_ms == NO_WATERMARK:
            written_ms = self._event_time.first
        return written_ms + self._duration_ms <= now


def stamp(written_ms: int) -> bytes:
    """A time as the bytes in front of a value."""
    return written_ms.to_bytes(STAMP_BYTES, "little", signed=True)


def stamped(data: bytes, position: int = 0) -> int:
    """The time in front of a value."""
    return int.from_bytes(data[position : position + STAMP_BYTES], "little", signed=True)
