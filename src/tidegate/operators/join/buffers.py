"""The records of one side of a join that wait for partners: by key, in the order of time, in memory.

    found = buffer.between(key, from_ms, to_ms)     entries, earliest first
    buffer.add(key, timestamp_ms, row)
    alone = buffer.advance(clock_ms)                of an outer side: removed entries that met no partner
    buffer.snapshot()                               in `Operator.snapshot`

A record waits for partners up to `reach_ms` after it. A partner at exactly the time of the clock is not late, so an
entry is removed when the clock is past `timestamp + reach_ms`, not when it reaches it. So whether two records meet
depends on their times and on neither being late, never on the order of arrival. Like timers, records are in memory. A
snapshot writes what has changed since the last one, so a record that came and went between two checkpoints is never
written. Mailbox thread only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.records.types import RecordType
from tidegate.state.backend import KeyedStateBackend, PaneRows
from tidegate.state.serializers import KeySerializer

_TIMES: Final = (pa.field("timestamp", pa.int64(), False), pa.field("is_matched", pa.bool_(), False))

_BUCKETS: Final = 16
_FEW: Final = 4096


class Entry:
    """A record that waits."""

    __slots__ = ("is_gone", "is_matched", "number", "row", "timestamp_ms")

    def __init__(self, timestamp_ms: int, number: int, row: Any, is_matched: bool = False) -> None:
        self.timestamp_ms = timestamp_ms
        self.number = number
        self.row = row
        self.is_matched = is_matched
        self.is_gone = False


class JoinBuffer:
    """One side. Records of an outer side are removed at their own time, others in portions, as that has no effect."""

    def __init__(self, reach_ms: int, *, is_outer: bool, store: StoredEntries | None) -> None:
        self.size = 0
        """How many records wait."""
        self._reach_ms = reach_ms
        self._is_outer = is_outer
        self._width_ms = 1 if is_outer else max(1, reach_ms // _BUCKETS)
        self._keys: dict[Any, tuple[list[int], list[Entry]]] = {}
        """The times and the entries of each key, by time."""
        self._due: dict[int, set[Any]] = {}
        """The keys that have entries to remove, by the portion in which they are removed."""
        self._portions: list[int] = []
        self._next_number = 0
        self._store = store
        self._arrived: list[tuple[Any, Entry]] = []
        """Entries that came since the last snapshot; some of them may be removed."""
        self._met: dict[int, tuple[Any, Entry]] = {}
        """Stored entries that have met their first partner since the last snapshot, by `id`. Their numbers would not
        do: after a rescale two keys may share one."""
        self._removed: list[tuple[Any, Entry]] = []
        self._stored_below = 0
        if store is not None:
            for key, entry in sorted(store.read(), key=lambda one: one[1].number):
                self._next_number = entry.number + 1
                self._insert(key, entry)
            heapify(self._portions)
            self._stored_below = self._next_number

    def between(self, key: Any, from_ms: int, to_ms: int) -> list[Entry]:
        """The entries of a key with these times, both included; earliest first.

        For a record that is not late, this returns no entry whose time is over, even if it is not removed yet.
        """
        mine = self._keys.get(key)
        if mine is None:
            return []
        times, entries = mine
        if times[-1] < from_ms or times[0] > to_ms:
            return []
        return entries[bisect_left(times, from_ms) : bisect_right(times, to_ms)]

    def add(self, key: Any, timestamp_ms: int, row: Any, is_matched: bool) -> None:
        number = self._next_number
        self._next_number = number + 1
        entry = Entry(timestamp_ms, number, row, is_matched)
        if self._store is not None:
            self._arrived.append((key, entry))
        self._insert(key, entry)

    def matched(self, key: Any, entry: Entry) -> None:
        """An entry has found its first partner."""
        entry.is_matched = True
        if self._store is not None and entry.number < self._stored_below:
            self._met[id(entry)] = (key, entry)

    def advance(self, clock_ms: int) -> list[tuple[Entry, Any]]:
        """Remove entries that have waited long enough; an outer side returns the unmatched ones, earliest first."""
        alone: list[tuple[Entry, Any]] = []
        keys, kept_from_ms = self._keys, clock_ms - self._reach_ms
        while self._portions and self._portions[0] * self._width_ms <= clock_ms:
            for key in self._due.pop(heappop(self._portions)):
                mine = keys.get(key)
                if mine is None:  # all were removed with an earlier portion
                    continue
                times, gone = mine
                cut = bisect_left(times, kept_from_ms)
                if cut == len(times):
                    del keys[key]
                else:
                    gone = gone[:cut]
                    del times[:cut], mine[1][:cut]
                self.size -= cut
                if self._store is not None:
                    self._forget(key, gone)
                if self._is_outer:
                    alone += [(entry, key) for entry in gone if not entry.is_matched]
        if len(self._arrived) > _FEW + 2 * self.size:
            self._arrived = [one for one in self._arrived if not one[1].is_gone]
        alone.sort(key=_by_time)
        return alone

    def snapshot(self) -> None:
        """Write what has changed to the backend."""
        if self._store is not None:
            changed = [one for one in self._arrived if not one[1].is_gone]
            changed += self._met.values()
            self._store.write(changed, self._removed, self._everything)
            self._arrived, self._met, self._removed = [], {}, []
            self._stored_below = self._next_number

    def _everything(self) -> list[tuple[Any, Entry]]:
        return [(key, entry) for key, (_, entries) in self._keys.items() for entry in entries]

    def _insert(self, key: Any, entry: Entry) -> None:
        time = entry.timestamp_ms
        mine = self._keys.get(key)
        if mine is None:
            self._keys[key] = ([time], [entry])
        else:
            times, entries = mine
            if time >= times[-1]:
                times.append(time)
                entries.append(entry)
            else:
                place = bisect_right(times, time)
                times.insert(place, time)
                entries.insert(place, entry)
        self.size += 1
        portion = -(-(time + self._reach_ms + 1) // self._width_ms)
        due = self._due.get(portion)
        if due is None:
            self._due[portion] = {key}
            heappush(self._portions, portion)
        else:
            due.add(key)

    def _forget(self, key: Any, gone: list[Entry]) -> None:
        """Note what the backend must remove."""
        for entry in gone:
            entry.is_gone = True
            if entry.number < self._stored_below:
                self._met.pop(id(entry), None)
                self._removed.append((key, entry))


class StoredEntries:
    """The durable copy of a buffer: a pane table whose panes are the numbers of the entries."""

    def __init__(self, backend: KeyedStateBackend, name: str, record_type: RecordType) -> None:
        self._type = record_type
        self._keys = KeySerializer(backend.context.key_type)
        self._table = backend.panes(name, pa.schema([*_TIMES, *_renamed(record_type.schema)]))

    def read(self) -> Iterator[tuple[Any, Entry]]:
        """The entries of the checkpoint, in any order."""
        for rows in self._table.restored():
            times, is_matched, *columns = rows.values
            records = self._type.to_rows(pa.RecordBatch.from_arrays(columns, schema=self._type.schema))
            entries = map(Entry, times.to_pylist(), rows.panes.tolist(), records, is_matched.to_pylist())
            yield from zip(self._keys.from_column(self._keys.join(rows.keys)), entries, strict=True)

    def write(
        self,
        changed: list[tuple[Any, Entry]],
        removed: list[tuple[Any, Entry]],
        everything: Callable[[], list[tuple[Any, Entry]]],
    ) -> None:
        """Write the changes since the last call."""
        self._table.write(self._rows(changed), self._removed(removed), lambda: self._rows(everything()))

    def _rows(self, found: list[tuple[Any, Entry]]) -> PaneRows:
        entries = [entry for _, entry in found]
        columns = self._type.to_columns([e.row for e in entries]).columns
        times = pa.array([e.timestamp_ms for e in entries], pa.int64())
        is_matched = pa.array([e.is_matched for e in entries], pa.bool_())
        rows = self._removed(found)
        return PaneRows(rows.keys, rows.panes, [times, is_matched, *columns])

    def _removed(self, found: list[tuple[Any, Entry]]) -> PaneRows:
        keys = self._keys.columns([key for key, _ in found])
        return PaneRows(keys, np.array([entry.number for _, entry in found], np.int64), ())


def _renamed(schema: pa.Schema) -> list[pa.Field]:
    """The fields under fixed names, whatever the record's fields are called; the types tell them apart."""
    return [f.with_name(f"field {i}") for i, f in enumerate(schema)]


def _by_time(one: tuple[Entry, Any]) -> tuple[int, int]:
    return one[0].timestamp_ms, one[0].number
