"""Time to live: when a value was written, whether it has expired, and which values are due for removal.

A stored value carries the time of its last write, not of its expiry, so that the length of a time to live can change
between runs. In event time the clock is the watermark; a value written before the first watermark counts from there.
Neither time goes back, whatever the machine's clock does: an expired value stays expired, in the live state and in
every snapshot. Mailbox thread only; the asynchronous part of a snapshot uses the time of its barrier.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Final

from tidegate.api.state import StateTtl
from tidegate.core.clock import Clock
from tidegate.state.backend import NO_WATERMARK, EventClock

_BUCKETS: Final = 16


class TtlClock:
    """The clock of one state with a time to live."""

    def __init__(self, ttl: StateTtl, clock: Clock, event_time: EventClock) -> None:
        self.duration_ms = ttl.duration_ms
        self.refresh_on_read = ttl.refresh_on_read
        self.is_event_time = ttl.time == "event"
        self.event_time = event_time
        self._clock = clock
        self._latest_ms = NO_WATERMARK

    def now(self) -> int:
        """The time for a value that is written now; never earlier than before."""
        now = self.event_time.now_ms if self.is_event_time else self._clock.now_ms()
        if now > self._latest_ms:
            self._latest_ms = now
        return self._latest_ms

    def is_expired(self, written_ms: int, now_ms: int) -> bool:
        """Whether a value written at `written_ms` has expired; `now_ms` comes from `now`."""
        if written_ms == NO_WATERMARK:
            written_ms = self.event_time.first_ms
            if written_ms == NO_WATERMARK:
                return False
        return now_ms >= written_ms + self.duration_ms


class ExpiryQueue:
    """When items were written, in a few coarse buckets: finds items that are due without scanning everything.

    An item that was written again is in several buckets, so the caller of `take_due` must check its real time.
    """

    def __init__(self, clock: TtlClock) -> None:
        self._clock = clock
        self._width_ms = max(1, clock.duration_ms // _BUCKETS)
        self._buckets: dict[int, set[Hashable]] = {}
        self._early: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._early) + sum(map(len, self._buckets.values()))

    def add(self, item: Hashable, written_ms: int) -> None:
        if written_ms == NO_WATERMARK:
            self._early.add(item)
            return
        bucket = written_ms // self._width_ms
        try:
            self._buckets[bucket].add(item)
        except KeyError:
            self._buckets[bucket] = {item}

    def take_due(self, now_ms: int, limit: int) -> list[Hashable]:
        """Take at most `limit` items that have expired, unless they were written again."""
        first_ms = self._clock.event_time.first_ms
        if self._early and first_ms != NO_WATERMARK:
            bucket = first_ms // self._width_ms
            self._buckets.setdefault(bucket, set()).update(self._early)
            self._early = set()
        due: list[Hashable] = []
        for bucket in sorted(self._buckets):
            if now_ms < (bucket + 1) * self._width_ms + self._clock.duration_ms or len(due) >= limit:
                break
            items = self._buckets[bucket]
            taken = list(islice(items, limit - len(due)))
            due += taken
            if len(taken) == len(items):
                del self._buckets[bucket]
            else:
                items.difference_update(taken)
        return due
