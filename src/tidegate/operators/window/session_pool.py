"""Storage of sessions: rows in slots that are reused, found by key id. Numbers are in numpy arrays, values in Arrow.

A key's sessions form a linked list, the latest first: `head[id]` is its slot, `next[slot]` that of the one before.
Records mostly belong to the latest, so the sessions that a batch can meet are found in a step or two, however many are
open.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.window.parts import Columns, WindowAggregates
from tidegate.records.elements import MIN_TIMESTAMP

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LEAST_SLOTS: Final = 1024
_NONE: Final = -1


class Sessions:
    """Some sessions by columns: key id, start, end, partial results, and their state in snapshots."""

    __slots__ = ("changed", "columns", "ends", "ids", "starts", "written")

    def __init__(
        self, ids: Longs, starts: Longs, ends: Longs, columns: Columns, changed: Mask, written: Mask
    ) -> None:
        self.ids = ids
        self.starts = starts
        self.ends = ends
        self.columns = columns
        self.changed = changed
        """Whether it has changed since the last snapshot."""
        self.written = written
        """Whether a snapshot has a session of this key and start."""

    def __len__(self) -> int:
        return len(self.ids)


class SessionPool:
    """All open sessions of a subtask."""

    def __init__(self, aggregates: WindowAggregates) -> None:
        empty = aggregates.from_arrow([pa.array([], f.type) for f in aggregates.schema])
        self._size = 0
        self._free: Longs = np.empty(0, np.int64)
        self._head: Longs = np.empty(0, np.int64)
        self._next: Longs = np.empty(0, np.int64)
        self.ids: Longs = np.empty(0, np.int64)
        """The key id of each slot; -1: free."""
        self.starts: Longs = np.empty(0, np.int64)
        self.ends: Longs = np.empty(0, np.int64)
        self.changed: Mask = np.empty(0, np.bool_)
        self.written: Mask = np.empty(0, np.bool_)
        self._columns: list[Any] = [
            _ValueSlots(c.type) if isinstance(c, pa.Array) else np.empty(0, c.dtype) for c in empty
        ]

    def __len__(self) -> int:
        return self._size

    def of_keys(self, ids: Longs, since: Longs) -> tuple[Longs, Longs]:
        """The slots of these keys' sessions (each id once) that end at or after `since`, which is a time for each key.

        Also returns, for each key, the slot of its latest session that ends before, or -1.
        """
        slots = np.full(len(ids), _NONE)
        known = ids < len(self._head)
        slots[known] = self._head[ids[known]]
        found = []
        active = np.flatnonzero(slots >= 0)
        while len(active):
            active = active[self.ends[slots[active]] >= since[active]]
            found.append(slots[active])
            slots[active] = self._next[slots[active]]
            active = active[slots[active] >= 0]
        return (np.concatenate(found) if found else np.empty(0, np.int64)), slots

    def read(self, slots: Longs) -> Sessions:
        """The sessions of these slots, as copies."""
        columns = [c.take(slots) if isinstance(c, _ValueSlots) else c[slots] for c in self._columns]
        return Sessions(
            self.ids[slots],
            self.starts[slots],
            self.ends[slots],
            columns,
            self.changed[slots],
            self.written[slots],
        )

    def replace(self, old: Longs, new: Sessions, before: Longs, keys: int) -> None:
        """Replace the sessions in the slots `old` by `new`, which is in order of key and time.

        `old` and `before` are what `of_keys` returned for the keys of `new`, in order.
        """
        slots = self._slots(old, len(new), keys)
        self.ids[slots] = new.ids
        self.starts[slots] = new.starts
        self.ends[slots] = new.ends
        self.changed[slots] = new.changed
        self.written[slots] = new.written
        for mine, column in zip(self._columns, new.columns, strict=True):
            mine[slots] = column
        self._link(new.ids, slots, before)
        self._size += len(new) - len(old)

    def remove(self, slots: Longs) -> None:
        """Remove sessions; others of their keys stay."""
        touched = np.unique(self.ids[slots])
        all_of_them, _ = self.of_keys(touched, np.full(len(touched), MIN_TIMESTAMP))
        self.ids[slots] = _NONE
        self._head[touched] = _NONE
        self._chain(all_of_them[self.ids[all_of_them] >= 0])
        self._free = np.concatenate([self._free, slots])
        self._size -= len(slots)
        for column in self._columns:
            if isinstance(column, _ValueSlots):
                column.forget(slots)

    def live(self) -> Longs:
        """All slots with a session."""
        return np.flatnonzero(self.ids >= 0)

    def renumber(self, new_ids: Longs, keys: int) -> None:
        """Replace each key id by `new_ids[id]`."""
        slots = self.live()
        self.ids[slots] = new_ids[self.ids[slots]]
        self._head = np.full(max(keys, _LEAST_SLOTS), _NONE)
        self._chain(slots)

    def _slots(self, old: Longs, count: int, keys: int) -> Longs:
        """Slots for sessions: the old ones, then free ones, then new ones."""
        if keys > len(self._head):
            head = np.full(max(keys, 2 * len(self._head), _LEAST_SLOTS), _NONE)
            head[: len(self._head)] = self._head
            self._head = head
        if count <= len(old):
            spare = old[count:]
            self.ids[spare] = _NONE
            self._free = np.concatenate([self._free, spare])
            return old[:count]
        more = count - len(old)
        if more > len(self._free):
            self._grow(more)
        slots = np.concatenate([old, self._free[len(self._free) - more :]])
        self._free = self._free[: len(self._free) - more]
        return slots

    def _grow(self, more: int) -> None:
        had = len(self.ids)
        room = max(had + more, 2 * had, _LEAST_SLOTS)
        self._free = np.concatenate([self._free, np.arange(had, room)])
        self._next = np.resize(self._next, room)
        self.starts = np.resize(self.starts, room)
        self.ends = np.resize(self.ends, room)
        self.changed = np.resize(self.changed, room)
        self.written = np.resize(self.written, room)
        ids = np.full(room, _NONE)
        ids[:had] = self.ids
        self.ids = ids
        for i, column in enumerate(self._columns):
            if isinstance(column, _ValueSlots):
                column.grow(room)
            else:
                self._columns[i] = np.resize(column, room)

    def _chain(self, slots: Longs) -> None:
        order = slots[np.lexsort((self.starts[slots], self.ids[slots]))]
        self._link(self.ids[order], order, None)

    def _link(self, ids: Longs, slots: Longs, before: Longs | None) -> None:
        """Link slots that are in order of key and time; `before` follows the earliest slot of each key."""
        if not len(ids):
            return
        is_first = np.ones(len(ids), np.bool_)
        np.not_equal(ids[1:], ids[:-1], out=is_first[1:])
        is_last = np.append(is_first[1:], True)
        self._next[slots[1:]] = slots[:-1]
        self._next[slots[is_first]] = _NONE if before is None else before
        self._head[ids[is_last]] = slots[is_last]


class _ValueSlots:
    """Arrow values by slot: values are appended, slots point at them, and now and then unused ones are dropped."""

    def __init__(self, kind: pa.DataType) -> None:
        self._chunks: list[pa.Array] = [pa.array([], kind)]
        self._length = 0
        self._rows: Longs = np.empty(0, np.int64)

    def grow(self, room: int) -> None:
        rows = np.full(room, _NONE)
        rows[: len(self._rows)] = self._rows
        self._rows = rows

    def __setitem__(self, slots: Longs, values: pa.Array) -> None:
        self._rows[slots] = np.arange(self._length, self._length + len(values))
        self._chunks.append(values)
        self._length += len(values)
        if self._length > 2 * len(self._rows) + _LEAST_SLOTS:
            live = np.flatnonzero(self._rows >= 0)
            kept = self.take(live)
            self._chunks, self._length = [kept], len(kept)
            self._rows[live] = np.arange(len(kept))

    def take(self, slots: Longs) -> pa.Array:
        if len(self._chunks) > 1:
            self._chunks = [pa.concat_arrays(self._chunks)]
        return self._chunks[0].take(pa.array(self._rows[slots]))

    def forget(self, slots: Longs) -> None:
        self._rows[slots] = _NONE
