"""Live list state: what is added is written as a part of the list, so that adding never reads.

The entry is the key's and the number of the part (8 bytes, big-endian); numbers grow with every snapshot, so a scan
finds the parts in the order in which they were written. A part is its elements, each behind its length (4 bytes, big-
endian), and, where there is a time to live, the times of the first and the last write of the part in front of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tidegate.api.state import ListState
from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.expiring import LIST_SEQUENCE_BYTES, ExpiredScan
from tidegate.state.rocksdb.key_bytes import end_of_prefix
from tidegate.state.rocksdb.state_store import GenerationStore, KeptValues, StateContext
from tidegate.state.rocksdb.ttl import STAMP_BYTES, stamp, stamped
from tidegate.state.serializers import ValueSerializer

_LENGTH: Final = struct.Struct(">L")
_MOST_PARTS: Final = 32


class _Part:
    """Elements that were written between two snapshots. `replaces`: nothing from before them counts."""

    __slots__ = ("elements", "first_ms", "last_ms", "replaces")

    def __init__(self, replaces: bool, first_ms: int, last_ms: int, elements: list[bytes]) -> None:
        self.replaces = replaces
        self.first_ms = first_ms
        self.last_ms = last_ms
        self.elements = elements


class RocksDBListState(ListState[Any], GenerationStore):
    """Live `ListState`. Changed and frozen are one part per key, clean are all parts that the database has."""

    def __init__(
        self,
        declaration: ListState[Any],
        context: StateContext,
        serializer: ValueSerializer,
        next_sequence: Callable[[], int],
    ) -> None:
        self.name, self.owner = declaration.name, declaration.owner
        self.type, self.ttl, self.serializer = declaration.type, declaration.ttl, declaration.serializer
        self._values = KeptValues(serializer, always_bytes=True)
        self._next_sequence = next_sequence
        self._added = 0
        self._frozen_sequence = b""
        """The number of the frozen parts, or of those that were frozen last."""
        self._clean_elements = 0
        self._open(context)
        self._expired = ExpiredScan(context)

    def get(self) -> list[Any]:
        """The key's elements, oldest first."""
        key, expiry = self._current_key(), self.expiry
        parts = self._parts(key)
        alive = self._alive(parts)
        if parts and not alive:
            self._replace(key, [])
        elements = [e for part in alive for e in part.elements]
        refresh = elements and expiry is not None and expiry.refresh_on_read
        if len(alive) > _MOST_PARTS:
            self._replace(key, elements, None if refresh else alive[-1].last_ms)
        elif refresh:
            self._extend(key, [])
        give = self._values.give
        assert give is not None
        return list(map(give, elements))

    def add(self, value: Any) -> None:
        """Append an element."""
        key = self._current_key()
        self._extend(key, [self._keep(self._values, value)])

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        key = self._current_key()
        kept = [self._keep(self._values, v) for v in values]
        if kept:
            self._extend(key, kept)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the whole list."""
        key = self._current_key()
        self._replace(key, [self._keep(self._values, v) for v in values])

    def clear(self) -> None:
        """Forget the key's list."""
        self._replace(self._current_key(), [])

    def holds_current(self) -> bool:
        """Whether the key has elements; that reads none of them."""
        return any(part.elements for part in self._alive(self._parts(self._current_key())))

    # ---- parts ----

    def _parts(self, key: Any) -> list[_Part]:
        """All parts of a key's list, oldest first."""
        parts: list[_Part] = []
        for generation in (self._changed, self._frozen):
            part = generation.get(key)
            if part is not None:
                parts.insert(0, part)
                if part.replaces:
                    return parts
        stored = self._clean.get(key)
        if stored is None and not self._is_complete:
            # The database may have the frozen part already, which is read from memory until it is clean.
            on_its_way = self._frozen_sequence if key in self._frozen else b""
            stored = [
                self._decoded(data)
                for entry, data in self._scan(key)
                if entry[-LIST_SEQUENCE_BYTES:] != on_its_way
            ]
            self._remember(key, stored)
            self._clean_elements += sum(len(part.elements) for part in stored)
        return [*stored, *parts] if stored else parts

    def _alive(self, parts: list[_Part]) -> list[_Part]:
        """The parts that have not expired: none from before one that came when the list had expired."""
        expiry = self.expiry
        if expiry is None or not parts:
            return parts
        if expiry.is_expired(parts[-1].last_ms, expiry.now()):
            return []
        for i in range(len(parts) - 1, 0, -1):
            if expiry.is_expired(parts[i - 1].last_ms, parts[i].first_ms):
                return parts[i:]
        return parts

    def _extend(self, key: Any, elements: list[bytes]) -> None:
        part = self._changed.get(key)
        now = 0 if self.expiry is None else self.expiry.now()
        if part is None:
            self._changed[key] = _Part(False, now, now, elements)
        elif self.expiry is not None and self.expiry.is_expired(part.last_ms, now):
            self._changed[key] = _Part(True, now, now, elements)
        else:
            part.elements += elements
            part.last_ms = now
        self._count_changes(1 + len(elements))

    def _replace(self, key: Any, elements: list[bytes], written_ms: int | None = None) -> None:
        """Make these the whole list, written now or at that time."""
        if not elements and self._is_complete and key not in self._frozen and key not in self._clean:
            self._changed.pop(key, None)  # it was never in the database
            return
        if written_ms is None:
            written_ms = 0 if self.expiry is None else self.expiry.now()
        self._changed[key] = _Part(True, written_ms, written_ms, elements)
        self._count_changes(1 + len(elements))

    def _count_changes(self, more: int) -> None:
        # Few keys may have long lists: elements are counted, not keys.
        self._added += more
        if self._added > self._check_at:
            self._grown()

    def _change_count(self) -> int:
        return self._added

    # ---- entries ----

    def _frozen_entries(self, frozen: dict[Any, _Part]) -> Callable[[], Iterable[Entry]]:
        self._added = 0
        sequence = self._frozen_sequence = self._next_sequence().to_bytes(LIST_SEQUENCE_BYTES, "big")
        return lambda: self._entries(frozen, sequence)

    def _entries(self, frozen: dict[Any, _Part], sequence: bytes) -> Iterator[Entry]:
        keys = self._context.entry_keys.of_keys(list(frozen))
        for key, part in zip(keys, frozen.values(), strict=True):
            if part.replaces:
                for old, _ in self._context.database.scan(key, end_of_prefix(key)):
                    yield old, None
            if part.elements or not part.replaces:
                yield key + sequence, self._encoded(part)

    def _encoded(self, part: _Part) -> bytes:
        pieces = [] if self.expiry is None else [stamp(part.first_ms), stamp(part.last_ms)]
        for element in part.elements:
            pieces.append(_LENGTH.pack(len(element)))
            pieces.append(element)
        return b"".join(pieces)

    def _decoded(self, data: bytes) -> _Part:
        first = last = position = 0
        if self.expiry is not None:
            first, last, position = stamped(data), stamped(data, STAMP_BYTES), 2 * STAMP_BYTES
        elements: list[bytes] = []
        while position < len(data):
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            elements.append(data[position : position + length])
            position += length
        return _Part(False, first, last, elements)

    def _scan(self, key: Any) -> Iterator[tuple[bytes, bytes]]:
        prefix = self._context.entry_keys.of_key(key)
        return self._context.database.scan(prefix, end_of_prefix(prefix))

    # ---- generations ----

    def _make_clean(self, frozen: dict[Any, _Part]) -> None:
        for key, part in frozen.items():
            stored = self._clean.get(key)
            if part.replaces:
                self._clean[key] = [part] if part.elements else []
            elif stored is not None:
                self._clean[key] = [*stored, part]
            elif self._is_complete:
                self._clean[key] = [part]
            else:
                continue
            self._clean_elements += 1 + len(part.elements)

    def _clean_size(self) -> int:
        if not self._clean:
            self._clean_elements = 0
        return self._clean_elements

    def _change_bytes(self, change: _Part) -> int:
        return sum(map(len, change.elements))

    def expired_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        """All parts of lists that are too old."""
        return self._expired.list_entries(budget, now_ms)
