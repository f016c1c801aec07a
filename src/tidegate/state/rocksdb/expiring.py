"""Removes expired entries: a bounded scan with every checkpoint, which continues where the last one stopped.

It runs in the asynchronous part, while the database holds exactly the state at the barrier, and uses the time of the
barrier. Time never goes back, so what had expired then stays expired for the mailbox thread, whose writes reach the
database only later. A later time would be wrong: in between, an element may have been added to a list that was still
alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.rows import STAMP_BYTES, TableContext, stamped
from tidegate.state.ttl import TtlClock

LIST_SEQUENCE_BYTES: Final = 8


class ExpiredScan:
    """Scans the entries of one state with a time to live, round after round."""

    def __init__(self, context: TableContext, clock: TtlClock | None) -> None:
        self._context = context
        self._clock = clock
        self._cursor = b""

    def single_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        """Deletions of expired entries that expire on their own: values, and entries of maps."""
        clock = self._clock
        if clock is None:
            return
        for key, value in self._round(budget, 0):
            if clock.is_expired(stamped(value), now_ms):
                yield key, None

    def list_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        """Deletions of the parts of expired lists: a list is as old as its last part."""
        clock = self._clock
        if clock is None:
            return
        for _, parts in groupby(
            self._round(budget, LIST_SEQUENCE_BYTES), lambda entry: entry[0][:-LIST_SEQUENCE_BYTES]
        ):
            found = list(parts)
            if clock.is_expired(stamped(found[-1][1], STAMP_BYTES), now_ms):
                yield from ((key, None) for key, _ in found)

    def _round(self, budget: int, suffix: int) -> Iterator[tuple[bytes, bytes]]:
        """The next entries from the cursor on; entries that differ only in the last `suffix` bytes stay together."""
        groups = self._context.key_groups
        database, entry_keys = self._context.database, self._context.entry_keys
        left = budget
        first = max(groups.start, int.from_bytes(self._cursor[:2], "big")) if self._cursor else groups.start
        for group in range(first, groups.end + 1):
            start, end = entry_keys.range_of_group(group)
            previous = b""
            for key, value in database.scan(max(start, self._cursor), end):
                prefix = key[: len(key) - suffix]
                if left <= 0 and prefix != previous:
                    self._cursor = key
                    return
                previous = prefix
                left -= 1
                yield key, value
        self._cursor = b""
