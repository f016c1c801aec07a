"""Lists in RocksDB: added elements are written as a new part of the list, so that adding never reads.

The key of an entry is the stream's key and the number of the part (8 bytes, big-endian). Numbers grow with every
snapshot, so a scan finds the parts in the order in which they were written. A part is its elements, each after its
length (4 bytes, big-endian). With a time to live, the times of the first and the last write of the part come before the
elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tidegate.state.cells import DeclaredState, KeptForm, ListCells
from tidegate.state.generations import Entries
from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.expiring import LIST_SEQUENCE_BYTES, ExpiredScan
from tidegate.state.rocksdb.key_bytes import end_of_prefix
from tidegate.state.rocksdb.rows import STAMP_BYTES, StoredTable, TableContext, stamp, stamped
from tidegate.state.ttl import TtlClock

_LENGTH: Final = struct.Struct(">L")
_MOST_PARTS: Final = 32


class _Part:
    """Elements that were written between two snapshots. `replaces`: nothing before them counts."""

    __slots__ = ("elements", "first_ms", "last_ms", "replaces")

    def __init__(self, replaces: bool, first_ms: int, last_ms: int, elements: list[bytes]) -> None:
        self.replaces = replaces
        self.first_ms = first_ms
        self.last_ms = last_ms
        self.elements = elements


class PartLists(ListCells):
    """The list of the current key, in parts."""

    def __init__(self, declared: DeclaredState, form: KeptForm, table: ListTable) -> None:
        super().__init__(declared, form)
        self.table = table

    def read(self) -> list[Any]:
        """The kept elements. Many parts become one."""
        key, table, clock = self.key(), self.table, self.clock
        parts = table.parts(key)
        alive = parts if clock is None else table.alive(parts, clock)
        if parts and not alive:
            table.replace(key, [])
        elements = [e for part in alive for e in part.elements]
        refresh = elements and clock is not None and clock.refresh_on_read
        if len(alive) > _MOST_PARTS:
            table.replace(key, list(elements), None if refresh else alive[-1].last_ms)
        elif refresh:
            table.changed_part(key, 0)
        return elements

    def own_list(self, more: int = 1) -> list[Any]:
        return self.table.changed_part(self.key(), more).elements

    def write(self, kept: list[Any]) -> None:
        self.table.replace(self.key(), kept)

    def remove(self) -> None:
        self.table.replace(self.key(), [])

    def holds(self, key: Any) -> bool:
        """Whether a key has elements; this refreshes none of them."""
        parts = self.table.parts(key)
        return any(p.elements for p in (parts if self.clock is None else self.table.alive(parts, self.clock)))


class ListTable(StoredTable):
    """`changed` and `frozen` have one part per key; `clean` has all parts that are in the database."""

    is_exact = False

    def __init__(
        self, context: TableContext, clock: TtlClock | None, next_sequence: Callable[[], int]
    ) -> None:
        super().__init__(context, clock)
        self._next_sequence = next_sequence
        self._added = 0
        self._frozen_sequence = b""
        """The number of the parts that are frozen, or were frozen last."""
        self._clean_elements = 0
        self._expired = ExpiredScan(context, clock)

    def changed_part(self, key: Any, more: int) -> _Part:
        """The part to add `more` elements to, marked as written now."""
        self._count_changes(1 + more)  # first, because this may write the part
        part: _Part | None = self.changed.get(key)
        clock = self.clock
        now = 0 if clock is None else clock.now()
        if part is None:
            part = self.changed[key] = _Part(False, now, now, [])
        elif clock is not None and clock.is_expired(part.last_ms, now):
            part = self.changed[key] = _Part(True, now, now, [])
        part.last_ms = now
        return part

    def replace(self, key: Any, elements: list[bytes], written_ms: int | None = None) -> None:
        """Replace the whole list, marked as written now or at that time."""
        if not elements and self._was_never_stored(key):
            self.changed.pop(key, None)
            return
        if written_ms is None:
            written_ms = 0 if self.clock is None else self.clock.now()
        self.changed[key] = _Part(True, written_ms, written_ms, elements)
        self._count_changes(1 + len(elements))

    def remove(self, key: Any) -> None:
        self.replace(key, [])

    def parts(self, key: Any) -> list[_Part]:
        """All parts of a key's list, oldest first."""
        parts: list[_Part] = []
        for generation in (self.changed, self.frozen):
            part = generation.get(key)
            if part is not None:
                parts.insert(0, part)
                if part.replaces:
                    return parts
        stored = self.clean.get(key)
        if stored is None and not self._is_complete:
            # The database may have the frozen part already; it is read from memory until it is clean.
            on_its_way = self._frozen_sequence if key in self.frozen else b""
            prefix = self.context.entry_keys.of_key(key)
            stored = [
                self._decoded(data)
                for entry, data in self.context.database.scan(prefix, end_of_prefix(prefix))
                if entry[-LIST_SEQUENCE_BYTES:] != on_its_way
            ]
            self._remember(key, stored)
            self._clean_elements += sum(len(part.elements) for part in stored)
        return [*stored, *parts] if stored else parts

    def alive(self, parts: list[_Part], clock: TtlClock) -> list[_Part]:
        """The parts that have not expired; none from before a part that came when the list had expired."""
        if parts and clock.is_expired(parts[-1].last_ms, clock.now()):
            return []
        for i in range(len(parts) - 1, 0, -1):
            if clock.is_expired(parts[i - 1].last_ms, parts[i].first_ms):
                return parts[i:]
        return parts

    def _count_changes(self, more: int) -> None:
        # Counts elements instead of keys: few keys may have long lists.
        self._added += more
        if self._added > self.check_at:
            self.grown()

    def _change_count(self) -> int:
        return self._added

    # ---- generations ----

    def _frozen_entries(self, frozen: Entries) -> Callable[[], Iterable[Entry]]:
        self._added = 0
        sequence = self._frozen_sequence = self._next_sequence().to_bytes(LIST_SEQUENCE_BYTES, "big")
        return lambda: self._entries(frozen, sequence)

    def _entries(self, frozen: dict[Any, _Part], sequence: bytes) -> Iterator[Entry]:
        keys = self.context.entry_keys.of_keys(list(frozen))
        for key, part in zip(keys, frozen.values(), strict=True):
            if part.replaces:
                for old, _ in self.context.database.scan(key, end_of_prefix(key)):
                    yield old, None
            if part.elements or not part.replaces:
                yield key + sequence, self._encoded(part)

    def _encoded(self, part: _Part) -> bytes:
        pieces = [] if self.clock is None else [stamp(part.first_ms), stamp(part.last_ms)]
        for element in part.elements:
            pieces.append(_LENGTH.pack(len(element)))
            pieces.append(element)
        return b"".join(pieces)

    def _decoded(self, data: bytes) -> _Part:
        first = last = position = 0
        if self.clock is not None:
            first, last, position = stamped(data), stamped(data, STAMP_BYTES), 2 * STAMP_BYTES
        elements: list[bytes] = []
        while position < len(data):
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            elements.append(data[position : position + length])
            position += length
        return _Part(False, first, last, elements)

    def _make_clean(self, frozen: dict[Any, _Part]) -> None:
        for key, part in frozen.items():
            stored = self.clean.get(key)
            if part.replaces:
                self.clean[key] = [part] if part.elements else []
            elif stored is not None:
                self.clean[key] = [*stored, part]
            elif self._is_complete:
                self.clean[key] = [part]
            else:
                continue
            self._clean_elements += 1 + len(part.elements)

    def _clean_size(self) -> int:
        if not self.clean:
            self._clean_elements = 0
        return self._clean_elements

    def _change_bytes(self, change: _Part) -> int:
        return sum(map(len, change.elements))

    def expired_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        return self._expired.list_entries(budget, now_ms)
