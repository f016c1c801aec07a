"""Session windows per key, by columns: intervals of activity that merge when a record comes between them. Pure.

A batch is sorted by key and time and cut where the gap is exceeded. The resulting sessions are merged with those that
their keys have, for all keys together. A session [first timestamp, last timestamp + gap) is emitted when the clock has
reached its end - 1. Two sessions that touch are one, as in Flink.

A record is late when its session, merged with those it meets, is over (`end - 1 + lateness <= clock`). That is decided
record by record, in order of arrival. A session that changes after it was emitted is emitted again, once per batch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.aggregates.groups import Groups
from tidegate.aggregates.segmented_scans import RowGroups
from tidegate.keys.key_index import KeyIndex
from tidegate.operators.window.parts import Inputs, WindowAggregates, concat, take
from tidegate.operators.window.session_pool import SessionPool, Sessions
from tidegate.operators.window.slice_bounds import checked_range
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FEW_KEYS: Final = 1 << 16
_MOST: Final = 1 << 62


class SessionState:
    """The sessions of all keys of one subtask. Mailbox thread only; must not be used after an error."""

    def __init__(self, gap_ms: int, aggregates: WindowAggregates, lateness_ms: int = 0) -> None:
        self._gap = gap_ms
        self.aggregates = aggregates
        self._lateness = lateness_ms
        self.index = KeyIndex()
        self.clock_ms = MIN_TIMESTAMP
        self._pool = SessionPool(aggregates)
        self._first_end = MAX_WATERMARK
        """No session that waits to be emitted ends before this."""
        self._removed: list[tuple[list[pa.Array], Longs]] = []

    def __len__(self) -> int:
        return len(self._pool)

    # ---- records in ----

    def add(self, ids: Longs, timestamps: Longs, inputs: Inputs) -> Sessions | None:
        """Add records that are not late to their sessions; returns the sessions to emit again, if any."""
        new = self._cut(ids, timestamps, inputs)
        first = np.ones(len(new), np.bool_)
        np.not_equal(new.ids[1:], new.ids[:-1], out=first[1:])
        old_slots, before = self._pool.of_keys(new.ids[first], new.starts[first])
        merged, touched = (
            self._merged(self._pool.read(old_slots), new)
            if len(old_slots)
            else (new, np.ones(len(new), np.bool_))
        )
        self._pool.replace(old_slots, merged, before, len(self.index))
        self._first_end = min(self._first_end, int(merged.ends.min()))
        if int(merged.ends.min()) - 1 > self.clock_ms:
            return None
        again = np.flatnonzero(touched & (merged.ends - 1 <= self.clock_ms))
        return _chosen(merged, again) if len(again) else None

    def late(self, ids: Longs, timestamps: Longs) -> Mask | None:
        """Which records are late; None: none is."""
        last = self.clock_ms - self._lateness - self._gap + 1
        if int(timestamps.min()) > last:
            return None
        candidates = np.flatnonzero(timestamps <= last)
        doubtful: dict[int, _Intervals] = {}
        late: list[int] = []
        asked = np.unique(ids[candidates])
        slots, _ = self._pool.of_keys(asked, np.full(len(asked), timestamps.min()))
        intervals: dict[int, _Intervals] = {}
        order = np.argsort(self._pool.starts[slots], kind="stable")
        for i in slots[order].tolist():
            key = int(self._pool.ids[i])
            own = intervals.setdefault(key, _Intervals())
            own.starts.append(int(self._pool.starts[i]))
            own.ends.append(int(self._pool.ends[i]))
        for key, time in zip(ids[candidates].tolist(), timestamps[candidates].tolist(), strict=True):
            own = intervals.setdefault(key, _Intervals())
            if key not in doubtful and not own.meets(time, time + self._gap):
                doubtful[key] = own
        if not doubtful:
            return None
        # What came earlier in the batch matters only for keys with a record that meets no session yet.
        rows = np.flatnonzero(np.isin(ids, np.fromiter(doubtful, np.int64)))
        for row, key, time in zip(rows.tolist(), ids[rows].tolist(), timestamps[rows].tolist(), strict=True):
            own = doubtful[key]
            if time <= last and not own.meets(time, time + self._gap):
                late.append(row)
            else:
                own.merge(time, time + self._gap)
        if not late:
            return None
        mask = np.zeros(len(ids), np.bool_)
        mask[late] = True
        return mask

    def _cut(self, ids: Longs, timestamps: Longs, inputs: Inputs) -> Sessions:
        """The sessions of a batch alone, in order of key and time."""
        checked_range(timestamps)
        order = sorted_by_key_and_time(ids, timestamps, len(self.index))
        by_key, by_time = ids[order], timestamps[order]
        first = np.ones(len(ids), np.bool_)
        first[1:] = (by_key[1:] != by_key[:-1]) | (by_time[1:] - by_time[:-1] > self._gap)
        begins = np.flatnonzero(first)
        lasts = np.append(begins[1:], len(ids)) - 1
        codes = np.empty(len(ids), np.int64)
        codes[order] = np.cumsum(first) - 1
        columns = self.aggregates.partial(Groups(codes, len(begins)), inputs, timestamps)
        count = len(begins)
        return Sessions(
            by_key[begins],
            by_time[begins],
            by_time[lasts] + self._gap,
            columns,
            np.ones(count, np.bool_),
            np.zeros(count, np.bool_),
        )

    def _merged(self, old: Sessions, new: Sessions) -> tuple[Sessions, Mask]:
        """Merge sessions of the same keys, in order of key and time; also returns which contain new ones."""
        ids = np.concatenate([old.ids, new.ids])
        starts = np.concatenate([old.starts, new.starts])
        ends = np.concatenate([old.ends, new.ends])
        is_new = np.concatenate([np.zeros(len(old), np.bool_), np.ones(len(new), np.bool_)])
        order = sorted_by_key_and_time(ids, starts, len(self.index))
        s_ids, s_starts, s_ends = ids[order], starts[order], ends[order]
        same_key = np.zeros(len(order), np.bool_)
        same_key[1:] = s_ids[1:] == s_ids[:-1]
        reach = running_ends(same_key, s_starts, s_ends)
        first = ~same_key
        first[1:] |= s_starts[1:] > reach[:-1]
        begins = np.flatnonzero(first)
        lasts = np.append(begins[1:], len(order)) - 1
        codes = np.empty(len(order), np.int64)
        codes[order] = np.cumsum(first) - 1
        groups = Groups(codes, len(begins))
        columns = [concat([o, n]) for o, n in zip(old.columns, new.columns, strict=True)]
        columns = (
            take(columns, order[begins])
            if len(begins) == len(order)
            else self.aggregates.merge(groups, columns)
        )
        touched = np.zeros(len(begins), np.bool_)
        touched[codes[is_new]] = True
        changed = touched.copy()
        old_codes = codes[: len(old)]
        changed[old_codes[old.changed]] = True
        written = np.zeros(len(begins), np.bool_)
        stays = old.written & (s_starts[begins][old_codes] == old.starts)
        written[old_codes[stays]] = True
        gone = np.flatnonzero(old.written & ~stays)
        if len(gone):
            self._removed.append((self.index.keys(old.ids[gone]), old.starts[gone]))
        merged = Sessions(s_ids[begins], s_starts[begins], reach[lasts], columns, changed, written)
        return merged, touched

    # ---- sessions out ----

    def advance(self, clock_ms: int) -> Sessions | None:
        """The clock has advanced: the sessions that end by now, in order of their ends."""
        before, self.clock_ms = self.clock_ms, clock_ms
        pool = self._pool
        due: Sessions | None = None
        if self._first_end - 1 <= clock_ms:
            live = pool.live()
            ends = pool.ends[live]
            chosen = live[(ends - 1 <= clock_ms) & (ends - 1 > before)]
            if len(chosen):
                due = pool.read(chosen[np.argsort(pool.ends[chosen], kind="stable")])
            ahead = ends[ends - 1 > clock_ms]
            self._first_end = int(ahead.min()) if len(ahead) else MAX_WATERMARK
        if due is not None or self._lateness:
            self._remove_until(clock_ms)
        return due

    def recover_clock(self, clock_ms: int) -> None:
        """Set the clock of the checkpoint: sessions that end by then were emitted before it."""
        self.clock_ms = clock_ms
        self._remove_until(clock_ms)

    def _remove_until(self, clock_ms: int) -> None:
        pool = self._pool
        live = pool.live()
        over = live[pool.ends[live] - 1 <= clock_ms - self._lateness]
        if not len(over):
            return
        written = over[pool.written[over]]
        if len(written):
            self._removed.append((self.index.keys(pool.ids[written]), pool.starts[written]))
        pool.remove(over)

    def forget_keys(self) -> None:
        """Renumber the keys when nearly all of them are gone; this makes all earlier ids invalid."""
        keys = len(self.index)
        if keys <= max(_FEW_KEYS, 4 * len(self._pool)):
            return
        ids = np.unique(self._pool.ids[self._pool.live()])
        index = KeyIndex()
        new_ids = np.full(keys, -1)
        if len(ids):
            new_ids[ids] = index.ids(self.index.keys(ids))
        self._pool.renumber(new_ids, len(ids))
        self.index = index

    # ---- snapshots ----

    def take_changes(self) -> Sessions:
        """What has changed since the last call."""
        live = self._pool.live()
        slots = live[self._pool.changed[live]]
        found = self._pool.read(slots)
        self._pool.changed[slots] = False
        self._pool.written[slots] = True
        return found

    def take_removed(self) -> list[tuple[list[pa.Array], Longs]]:
        """Keys and starts of sessions that a snapshot had and that were removed since the last call."""
        removed, self._removed = self._removed, []
        return removed

    def everything(self) -> Sessions:
        return self._pool.read(self._pool.live())

    def restore(self, sessions: Sessions) -> None:
        """Add sessions of a snapshot."""
        keys = np.unique(sessions.ids)
        slots, before = self._pool.of_keys(keys, np.full(len(keys), MIN_TIMESTAMP))
        old = self._pool.read(slots)
        both = Sessions(
            np.concatenate([old.ids, sessions.ids]),
            np.concatenate([old.starts, sessions.starts]),
            np.concatenate([old.ends, sessions.ends]),
            [concat([o, n]) for o, n in zip(old.columns, sessions.columns, strict=True)],
            np.concatenate([old.changed, sessions.changed]),
            np.concatenate([old.written, sessions.written]),
        )
        order = np.lexsort((both.starts, both.ids))
        self._pool.replace(slots, _chosen(both, order), before, len(self.index))
        self._first_end = min(self._first_end, int(sessions.ends.min()))


class _Intervals:
    """The sessions of one key while records are checked one by one."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def meets(self, start: int, end: int) -> bool:
        """Whether one of them overlaps or touches; they are sorted and disjoint."""
        at = bisect_right(self.starts, end)
        return at > 0 and self.ends[at - 1] >= start

    def merge(self, start: int, end: int) -> None:
        """Add an interval, merged with those that it meets."""
        high = bisect_right(self.starts, end)
        low = high
        while low > 0 and self.ends[low - 1] >= start:
            low -= 1
        if low < high:
            start, end = min(start, self.starts[low]), max(end, self.ends[high - 1])
        self.starts[low:high] = [start]
        self.ends[low:high] = [end]


def sorted_by_key_and_time(ids: Longs, timestamps: Longs, keys: int) -> Longs:
    """The order of rows by id (below `keys`) and timestamp: a stable radix sort, 16 bits at a time."""
    past = timestamps - timestamps.min()
    bits = int(past.max())
    order = np.argsort(past.astype(np.uint16), kind="stable")
    while (bits := bits >> 16) > 0:
        past = past >> 16
        order = order[np.argsort(past[order].astype(np.uint16), kind="stable")]
    return order[RowGroups(ids[order], keys).order]


def running_ends(same_key: Mask, starts: Longs, ends: Longs) -> Longs:
    """The running maximum of the ends per key (a segmented scan); rows are in order of key and start."""
    if not same_key.any():
        return ends
    low = int(starts.min())
    span = int(ends.max()) - low + 1
    rank = np.cumsum(~same_key)
    if span * (int(rank[-1]) + 1) < _MOST:  # each key's ends lie above those of the keys before
        shift = rank * span - low
        reach: Longs = np.maximum.accumulate(ends + shift) - shift
        return reach
    reach = ends.copy()
    for i in np.flatnonzero(same_key).tolist():
        reach[i] = max(reach[i], reach[i - 1])
    return reach


def _chosen(sessions: Sessions, rows: Longs) -> Sessions:
    return Sessions(
        sessions.ids[rows],
        sessions.starts[rows],
        sessions.ends[rows],
        take(sessions.columns, rows),
        sessions.changed[rows],
        sessions.written[rows],
    )
