"""The records of one side of a join that wait for partners: by key, in the order of time, in memory.

    found = buffer.between(key, from_ms, to_ms)     entries, earliest first
    buffer.add(key, timestamp_ms, row)
    gone = buffer.advance(clock_ms)                 what waits no longer, with its key
    buffer.snapshot()                               in `Operator.snapshot`

A record waits `reach_ms` of event time. Like timers, records are in memory; a snapshot gives the backend what has
changed since the last, so one that came and went between two checkpoints is never written. Mailbox thread only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

from tidegate.api.join_operations import buffer_state, is_boxed
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.records.types import RecordType
from tidegate.state.backend import KeyedStateBackend

_BUCKETS: Final = 16


class Entry:
    """A record that waits."""

    __slots__ = ("is_matched", "number", "row", "timestamp_ms")

    def __init__(self, timestamp_ms: int, number: int, row: Any, is_matched: bool = False) -> None:
        self.timestamp_ms = timestamp_ms
        self.number = number
        self.row = row
        self.is_matched = is_matched

    def __lt__(self, other: Entry) -> bool:
        return (self.timestamp_ms, self.number) < (other.timestamp_ms, other.number)


class _KeyEntries:
    """The entries of one key, by time, and their times."""

    __slots__ = ("entries", "times")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.entries: list[Entry] = []


class JoinBuffer:
    """One side. With `is_exact` records are due at their own time, else (nobody waits for them to go) in portions."""

    def __init__(self, reach_ms: int, *, is_exact: bool, store: StoredEntries | None) -> None:
        self.size = 0
        """How many records wait."""
        self._reach_ms = reach_ms
        self._width_ms = 1 if is_exact else max(1, reach_ms // _BUCKETS)
        self._keys: dict[Any, _KeyEntries] = {}
        self._due: dict[int, set[Any]] = {}
        self._due_times: list[int] = []
        self._clock_ms = MIN_TIMESTAMP
        self._next_number = 0
        self._store = store
        self._new: dict[int, tuple[Any, Entry]] = {}
        self._changed: dict[int, tuple[Any, Entry]] = {}
        self._removed: list[tuple[Any, Entry, bool]] = []
        self._stored_below = 0
        if store is not None:
            for key, entry in store.read():
                self._restore(key, entry)
            heapify(self._due_times)
            self._stored_below = self._next_number

    def between(self, key: Any, from_ms: int, to_ms: int) -> list[Entry]:
        """The entries of a key with these times, both included, that still wait."""
        mine = self._keys.get(key)
        if mine is None:
            return []
        from_ms = max(from_ms, self._clock_ms - self._reach_ms + 1)
        times = mine.times
        if not times or times[-1] < from_ms or times[0] > to_ms:
            return []
        return mine.entries[bisect_left(times, from_ms) : bisect_right(times, to_ms)]

    def add(self, key: Any, timestamp_ms: int, row: Any, is_matched: bool = False) -> None:
        """Let a record wait."""
        number = self._next_number
        self._next_number = number + 1
        entry = Entry(timestamp_ms, number, row, is_matched)
        if self._store is not None:
            self._new[number] = (key, entry)
        self._insert(key, entry)

    def matched(self, key: Any, entry: Entry) -> None:
        """An entry has found its first partner."""
        entry.is_matched = True
        if self._store is not None and entry.number < self._stored_below:
            self._changed[entry.number] = (key, entry)

    def advance(self, clock_ms: int) -> list[tuple[Entry, Any]]:
        """Forget what has waited long enough; the entries with their keys, earliest first."""
        self._clock_ms = clock_ms
        gone: list[tuple[Entry, Any]] = []
        while self._due_times and self._due_times[0] <= clock_ms:
            for key in self._due.pop(heappop(self._due_times)):
                mine = self._keys.get(key)
                if mine is None:  # all went with an earlier portion
                    continue
                cut = bisect_right(mine.times, clock_ms - self._reach_ms)
                gone.extend((entry, key) for entry in mine.entries[:cut])
                if cut == len(mine.times):
                    mine.times, mine.entries = [], []
                else:
                    del mine.times[:cut], mine.entries[:cut]
        self.size -= len(gone)
        for entry, key in gone:
            self._forget(key, entry)
        gone.sort(key=_by_time)
        return gone

    def _forget(self, key: Any, entry: Entry) -> None:
        mine = self._keys.get(key)
        if mine is not None and not mine.times:
            del self._keys[key]
        if self._store is None:
            return
        if entry.number >= self._stored_below:
            del self._new[entry.number]
        else:
            was_matched = entry.is_matched and self._changed.pop(entry.number, None) is None
            self._removed.append((key, entry, was_matched))

    def snapshot(self) -> None:
        """Give what has changed to the backend."""
        if self._store is not None:
            self._store.write(self._new.values(), self._changed.values(), self._removed)
            self._new, self._changed, self._removed = {}, {}, []
            self._stored_below = self._next_number

    def _insert(self, key: Any, entry: Entry) -> None:
        mine = self._keys.get(key)
        if mine is None:
            mine = self._keys[key] = _KeyEntries()
        time = entry.timestamp_ms
        if not mine.times or time >= mine.times[-1]:
            mine.times.append(time)
            mine.entries.append(entry)
        else:
            insort(mine.times, time)
            insort(mine.entries, entry)
        self.size += 1
        due_ms = -(-(time + self._reach_ms) // self._width_ms) * self._width_ms
        try:
            self._due[due_ms].add(key)
        except KeyError:
            self._due[due_ms] = {key}
            heappush(self._due_times, due_ms)

    def _restore(self, key: Any, entry: Entry) -> None:
        self._next_number = max(self._next_number, entry.number + 1)
        self._insert(key, entry)


class StoredEntries:
    """The durable copy of a buffer, in a map state."""

    def __init__(self, backend: KeyedStateBackend, name: str, record_type: RecordType) -> None:
        self._backend = backend
        self._name = name
        self._is_boxed = is_boxed(record_type)
        self._state: Any = backend.state(buffer_state(name, record_type))

    def read(self) -> Iterator[tuple[Any, Entry]]:
        """What the checkpoint had, in any order."""
        backend = self._backend
        before = backend.current_key
        for key in backend.keys(self._name):
            backend.current_key = key
            for (timestamp_ms, number, is_matched), row in self._state.items():
                row = row[0] if self._is_boxed else row
                yield key, Entry(timestamp_ms, number, row, is_matched)
        backend.current_key = before

    def write(self, new: Any, changed: Any, removed: Any) -> None:
        """Put and remove what has changed; `removed` says whether the stored one had a partner."""
        backend, state, is_boxed = self._backend, self._state, self._is_boxed
        before = backend.current_key
        for backend.current_key, entry, was_matched in removed:
            state.remove((entry.timestamp_ms, entry.number, was_matched))
        for backend.current_key, entry in changed:
            state.remove((entry.timestamp_ms, entry.number, False))
            state.put((entry.timestamp_ms, entry.number, True), (entry.row,) if is_boxed else entry.row)
        for backend.current_key, entry in new:
            map_key = (entry.timestamp_ms, entry.number, entry.is_matched)
            state.put(map_key, (entry.row,) if is_boxed else entry.row)
        backend.current_key = before


def _by_time(gone: tuple[Entry, Any]) -> tuple[int, int]:
    return gone[0].timestamp_ms, gone[0].number
