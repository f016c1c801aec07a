"""The records of one side of a join that wait for partners: by key, in the order of time, in memory.

    found = buffer.between(key, from_ms, to_ms)     entries, earliest first
    buffer.add(key, timestamp_ms, row)
    alone = buffer.advance(clock_ms)                what waits no longer and has met nobody, if that is asked for
    buffer.snapshot()                               in `Operator.snapshot`

A record waits `reach_ms` of event time. Like timers, records are in memory; a snapshot gives the backend what has
changed since the last, so one that came and went between two checkpoints is never written. Mailbox thread only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

from tidegate.api.join_operations import buffer_state, is_boxed
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.records.types import RecordType
from tidegate.state.backend import KeyedStateBackend

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
    """One side. Of an outer side, each record goes at its own time; of others in portions, as nobody waits for it."""

    def __init__(self, reach_ms: int, *, is_outer: bool, store: StoredEntries | None) -> None:
        self.size = 0
        """How many records wait."""
        self._reach_ms = reach_ms
        self._is_outer = is_outer
        self._width_ms = 1 if is_outer else max(1, reach_ms // _BUCKETS)
        self._keys: dict[Any, tuple[list[int], list[Entry]]] = {}
        """The times and the entries of each key, by time."""
        self._due: dict[int, set[Any]] = {}
        """The keys that have something to go, by the portion in which it goes."""
        self._portions: list[int] = []
        self._clock_ms = MIN_TIMESTAMP
        self._next_number = 0
        self._store = store
        self._arrived: list[tuple[Any, Entry]] = []
        """What came since the last snapshot; some of it is gone."""
        self._met: dict[int, tuple[Any, Entry]] = {}
        self._removed: list[tuple[Any, Entry, bool]] = []
        self._stored_below = 0
        if store is not None:
            for key, entry in sorted(store.read(), key=lambda one: one[1].number):
                self._next_number = entry.number + 1
                self._insert(key, entry)
            heapify(self._portions)
            self._stored_below = self._next_number

    def between(self, key: Any, from_ms: int, to_ms: int) -> list[Entry]:
        """The entries of a key with these times, both included, that still wait; earliest first."""
        mine = self._keys.get(key)
        if mine is None:
            return []
        times, entries = mine
        oldest_ms = self._clock_ms - self._reach_ms + 1
        if from_ms < oldest_ms:
            from_ms = oldest_ms
        if times[-1] < from_ms or times[0] > to_ms:
            return []
        return entries[bisect_left(times, from_ms) : bisect_right(times, to_ms)]

    def add(self, key: Any, timestamp_ms: int, row: Any, is_matched: bool) -> None:
        """Let a record wait."""
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
            self._met[entry.number] = (key, entry)

    def advance(self, clock_ms: int) -> list[tuple[Entry, Any]]:
        """Forget what has waited long enough; of an outer side: those that met nobody, with keys, earliest first."""
        self._clock_ms = clock_ms
        alone: list[tuple[Entry, Any]] = []
        keys, limit_ms = self._keys, clock_ms - self._reach_ms
        while self._portions and self._portions[0] * self._width_ms <= clock_ms:
            for key in self._due.pop(heappop(self._portions)):
                mine = keys.get(key)
                if mine is None:  # all went with an earlier portion
                    continue
                times, gone = mine
                cut = bisect_right(times, limit_ms)
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
        """Give what has changed to the backend."""
        if self._store is not None:
            new = (one for one in self._arrived if not one[1].is_gone)
            self._store.write(new, self._met.values(), self._removed)
            self._arrived, self._met, self._removed = [], {}, []
            self._stored_below = self._next_number

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
        portion = -(-(time + self._reach_ms) // self._width_ms)
        due = self._due.get(portion)
        if due is None:
            self._due[portion] = {key}
            heappush(self._portions, portion)
        else:
            due.add(key)

    def _forget(self, key: Any, gone: list[Entry]) -> None:
        """Remember to remove what the backend has."""
        for entry in gone:
            entry.is_gone = True
            if entry.number < self._stored_below:
                was_matched = entry.is_matched and self._met.pop(entry.number, None) is None
                self._removed.append((key, entry, was_matched))


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
                yield key, Entry(timestamp_ms, number, row[0] if self._is_boxed else row, is_matched)
        backend.current_key = before

    def write(
        self,
        new: Iterable[tuple[Any, Entry]],
        met: Iterable[tuple[Any, Entry]],
        removed: Iterable[tuple[Any, Entry, bool]],
    ) -> None:
        """Put and remove what has changed; `removed` says whether the stored one had met somebody."""
        backend, state, is_boxed = self._backend, self._state, self._is_boxed
        before = backend.current_key
        for backend.current_key, entry, was_matched in removed:
            state.remove((entry.timestamp_ms, entry.number, was_matched))
        for backend.current_key, entry in met:
            state.remove((entry.timestamp_ms, entry.number, False))
            state.put((entry.timestamp_ms, entry.number, True), (entry.row,) if is_boxed else entry.row)
        for backend.current_key, entry in new:
            map_key = (entry.timestamp_ms, entry.number, entry.is_matched)
            state.put(map_key, (entry.row,) if is_boxed else entry.row)
        backend.current_key = before


def _by_time(one: tuple[Entry, Any]) -> tuple[int, int]:
    return one[0].timestamp_ms, one[0].number
