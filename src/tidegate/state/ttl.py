"""Time to live: when a value was written, whether it has expired, and which ones are due to be removed.

A stored value carries the time of its last write, not that of its end, so that the length of a time to live can be
changed between two runs. In event time the clock is the watermark; what was written before the first watermark counts
from it. Neither time goes back, whatever the machine's clock does: what has expired once stays so, in the live state
and in every snapshot. Mailbox thread only; the asynchronous part of a snapshot goes by the time of its barrier.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Final

from tidegate.api.state import StateTtl
from tidegate.core.clock import Clock
from tidegate.state.backend import NO_WATERMARK, EventTime

_BUCKETS: Final = 16


class TtlClock:
    """The time of one state with a time to live."""

    def __init__(self, ttl: StateTtl, clock: Clock, event_time: EventTime) -> None:
        self.duration_ms = ttl.duration_ms
        self.refresh_on_read = ttl.refresh_on_read
        self.is_event_time = ttl.time == "event"
        self.event_time = event_time
        self._clock = clock
        self._latest_ms = NO_WATERMARK

    def now(self) -> int:
        """The time that a value written now carries; never before an earlier one."""
        now = self.event_time.now_ms if self.is_event_time else self._clock.now_ms()
        if now > self._latest_ms:
            self._latest_ms = now
        return self._latest_ms

    def is_expired(self, written_ms: int, now_ms: int) -> bool:
        """Whether a value written then is gone now; `now_ms` is what `now` returned."""
        if written_ms == NO_WATERMARK:
            written_ms = self.event_time.first_ms
            if written_ms == NO_WATERMARK:
                return False
        return now_ms >= written_ms + self.duration_ms


class ExpiryQueue:
    """What was written when, in a few coarse buckets: finds what is due without looking at everything.

    An item that was written again is in several buckets; whoever takes it from an old one looks at its real time.
    """

    def __init__(self, clock: TtlClock) -> None:
        self._clock = clock
        self._width_ms = max(1, clock.duration_ms // _BUCKETS)
        self._buckets: dict[int, set[Hashable]] = {}
        self._early: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._early) + sum(map(len, self._buckets.values()))

    def add(self, item: Hashable, written_ms: int) -> None:
        """The item was written."""
        if written_ms == NO_WATERMARK:
            self._early.add(item)
            return
        bucket = written_ms // self._width_ms
        try:
            self._buckets[bucket].add(item)
        except KeyError:
            self._buckets[bucket] = {item}

    def take_due(self, now_ms: int, limit: int) -> list[Hashable]:
        """At most so many items that were written long enough ago to be gone, unless they were written again."""
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
