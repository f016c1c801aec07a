"""One value per key in RocksDB: the table of value, reducing and aggregating states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from tidegate.state.generations import REMOVED, Entries, ValueGenerations
from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.expiring import ExpiredScan
from tidegate.state.rocksdb.rows import CellBytes, StoredTable, TableContext
from tidegate.state.ttl import TtlClock

_ABSENT: Final = object()
_CHUNK: Final = 4096


class ValueTable(ValueGenerations, StoredTable):
    """A cell per key; each is one entry of the database."""

    def __init__(self, context: TableContext, clock: TtlClock | None, cells: CellBytes) -> None:
        super().__init__(context, clock, cells.is_sized)
        self._cells = cells
        self._expired = ExpiredScan(context, clock)

    @property
    def has_older(self) -> bool:
        return bool(self.frozen or self.clean or not self._is_complete)

    def load(self, key: Any) -> Any:
        """The cell in `frozen`, in `clean` or in the database, or `REMOVED`."""
        found = self.frozen.get(key, _ABSENT)
        if found is _ABSENT:
            found = self.clean.get(key, _ABSENT)
            if found is _ABSENT:
                found = REMOVED if self._is_complete else self._fetch(key)
        return found

    def put(self, key: Any, cell: Any) -> None:
        changed = self.changed
        changed[key] = cell
        if len(changed) > self.check_at:
            self.grown()

    def _fetch(self, key: Any) -> Any:
        data = self.context.database.get(self.context.entry_keys.of_key(key))
        found = REMOVED if data is None else self._cells.decode(data)
        self._remember(key, found)
        return found

    def expired_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        return self._expired.single_entries(budget, now_ms)

    def _frozen_entries(self, frozen: Entries) -> Callable[[], Iterable[Entry]]:
        return lambda: self._entries(frozen)

    def _entries(self, frozen: Entries) -> Iterator[Entry]:
        encode, of_keys = self._cells.encode, self.context.entry_keys.of_keys
        waiting = iter(frozen.items())
        while chunk := list(islice(waiting, _CHUNK)):
            data = [None if cell is REMOVED else encode(cell) for _, cell in chunk]
            yield from zip(of_keys([key for key, _ in chunk]), data, strict=True)

    def _make_clean(self, frozen: Entries) -> None:
        self.clean.update(frozen)

    def _change_bytes(self, change: Any) -> int:
        return self._cells.size(change)
