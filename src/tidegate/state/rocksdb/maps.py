"""Maps in RocksDB: one entry of the database per entry of a map, so that large maps are never read as a whole.

The key in the database is the stream's key followed by the serialized map key; the value is that of the map's cell. Map
keys and values in memory are these bytes too. Iteration is in the order of the bytes of the map keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import Any, Final

from tidegate.state.cells import MapKeyForm
from tidegate.state.generations import CLEARED, REMOVED, Entries, MapGenerations
from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.expiring import ExpiredScan
from tidegate.state.rocksdb.key_bytes import end_of_prefix
from tidegate.state.rocksdb.rows import CellBytes, StoredTable, TableContext
from tidegate.state.serializers import KeySerializer
from tidegate.state.ttl import TtlClock

_ABSENT: Final = object()
_NOTHING: Final[Entries] = {}
_map_key_of: Final = itemgetter(0)


def map_key_form(keys: KeySerializer) -> MapKeyForm:
    """Keeps map keys as their bytes."""
    exact, adopt, to_bytes = keys.exact_class, keys.adopt, keys.to_bytes
    return MapKeyForm(
        lambda key: to_bytes(key if key.__class__ is exact else adopt(key)), release=keys.from_bytes
    )


class MapTable(MapGenerations, StoredTable):
    """A map per key; `clean` has recently used entries."""

    def __init__(self, context: TableContext, clock: TtlClock | None, cells: CellBytes) -> None:
        super().__init__(context, clock)
        self._cells = cells
        self._added = 0
        self._clean_entries = 0
        self._expired = ExpiredScan(context, clock)

    # ---- one entry ----

    def older_changes(self, key: Any) -> Iterable[Entries]:
        changes = self.frozen.get(key)
        return () if changes is None else (changes,)

    def stored_entry(self, key: Any, map_key: Any) -> Any:
        """An entry in `clean` or in the database."""
        found = self.clean.get(key, _NOTHING).get(map_key, _ABSENT)
        if found is _ABSENT:
            if self._is_complete:
                return REMOVED
            data = self.context.database.get(self.context.entry_keys.of_key(key) + map_key)
            found = REMOVED if data is None else self._cells.decode(data)
            if self._clean_entries >= self._most_clean:
                self.clean, self._clean_entries = {}, 0
            self.clean.setdefault(key, {})[map_key] = found
            self._clean_entries += 1
        return found

    def put_entry(self, key: Any, map_key: Any, cell: Any) -> None:
        changes = self.changed.get(key)
        if changes is None:
            self.changed[key] = {map_key: cell}
        else:
            changes[map_key] = cell
        self._added += 1  # counts changes instead of keys: few keys may have large maps
        if self._added > self.check_at:
            self.grown()

    # ---- whole maps ----

    def entries(self, key: Any) -> Iterable[tuple[Any, Any]]:
        """The entries of a key at this moment, in the order of the bytes of their keys."""
        newer, is_all = self.newer_entries(key)
        stored: Iterable[tuple[bytes, Any]] = ()
        if not is_all and self._is_complete:
            newer = {**self.clean.get(key, _NOTHING), **newer}
        elif not is_all:
            prefix, decode = self.context.entry_keys.of_key(key), self._cells.decode
            start = len(prefix)
            rows = self.context.database.scan(prefix, end_of_prefix(prefix))
            stored = ((k[start:], decode(data)) for k, data in rows if k[start:] not in newer)
        found = merge(stored, sorted(newer.items(), key=_map_key_of), key=_map_key_of)
        return (entry for entry in found if entry[1] is not REMOVED)

    def remove(self, key: Any) -> None:
        if self._was_never_stored(key):
            self.changed.pop(key, None)
            return
        self.changed[key] = {}
        self.put_entry(key, CLEARED, CLEARED)

    def _change_count(self) -> int:
        return self._added

    # ---- generations ----

    def _frozen_entries(self, frozen: Entries) -> Callable[[], Iterable[Entry]]:
        self._added = 0
        return lambda: self._entries(frozen)

    def _entries(self, frozen: Entries) -> Iterator[Entry]:
        encode = self._cells.encode
        prefixes = self.context.entry_keys.of_keys(list(frozen))
        for prefix, changes in zip(prefixes, frozen.values(), strict=True):
            if CLEARED in changes:
                for old, _ in self.context.database.scan(prefix, end_of_prefix(prefix)):
                    yield old, None
            for map_key, cell in changes.items():
                if map_key is not CLEARED:
                    yield prefix + map_key, None if cell is REMOVED else encode(cell)

    def _make_clean(self, frozen: Entries) -> None:
        for key, changes in frozen.items():
            clean, replaces = self.clean.get(key), changes.pop(CLEARED, None) is not None
            if clean is None or replaces:
                self.clean[key] = changes
            else:
                clean.update(changes)
            self._clean_entries += len(changes)

    def _clean_size(self) -> int:
        if not self.clean:
            self._clean_entries = 0
        return self._clean_entries

    def _change_bytes(self, change: Entries) -> int:
        pairs = [entry for entry in list(change.items())[:16] if entry[0] is not CLEARED]
        if not pairs:
            return 0
        sampled = sum(len(map_key) + self._cells.size(cell) for map_key, cell in pairs)
        return sampled * len(change) // len(pairs)

    def expired_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        return self._expired.single_entries(budget, now_ms)
