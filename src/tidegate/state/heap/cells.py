"""Cells: the current key's place in a table, without or with a time to live. What live states stand on.

Without a time to live the table holds kept values (see `ValueSerializer.adopt`); with one it holds pairs of the time of
the last write and the kept value. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tidegate.api.state import KeyedState
from tidegate.core.errors import SchemaError
from tidegate.state.backend import NO_KEY, KeyedStateBackend
from tidegate.state.heap.map_table import MapTable
from tidegate.state.heap.table import REMOVED, HeapTable
from tidegate.state.refusals import cannot_store, without_key
from tidegate.state.serializers import ValueSerializer
from tidegate.state.ttl import ExpiryQueue, TtlClock

_WRITES_PER_SWEEP: Final = 64
_SWEPT: Final = 256
_SWEPT_AT_SNAPSHOT: Final = 10_000


class Cells:
    """The current key's cell, of a state without a time to live."""

    def __init__(
        self,
        declaration: KeyedState,
        table: HeapTable,
        backend: KeyedStateBackend,
        serializer: ValueSerializer,
    ) -> None:
        self.declaration = declaration
        self.table = table
        self.backend = backend
        self.serializer = serializer
        self.operator = backend.context.operator_name

    def key(self) -> Any:
        """The current key; refused if there is none."""
        key = self.backend.current_key
        if key is NO_KEY:
            raise without_key(self.operator, self.declaration.name)
        return key

    def adopt(self, value: Any) -> Any:
        """What is kept of a value; one that does not fit is named."""
        try:
            return self.serializer.adopt(value)
        except SchemaError as e:
            raise cannot_store(self.operator, self.declaration.name, self.key(), value, e) from e

    def read(self) -> Any:
        """The kept value, or `REMOVED`."""
        return self.table.find(self.key())

    def holds(self, key: Any) -> bool:
        """Whether a key, not the current one, has something."""
        return any(True for _ in self._cells_of(key))

    def _cells_of(self, key: Any) -> Iterable[Any]:
        if isinstance(self.table, MapTable):
            return self.table.load_map(key).values()
        cell = self.table.find(key)
        return () if cell is REMOVED else (cell,)

    def write(self, kept: Any) -> None:
        """Keep a value."""
        self.table.changed[self.key()] = kept

    def remove(self) -> None:
        """Forget the value."""
        self.table.remove(self.key())

    def own_list(self) -> list[Any]:
        """The key's list, to be appended to: the one of this generation, or a copy of the older one."""
        key, table = self.key(), self.table
        found: Any = table.changed.get(key)
        if found is None or found is REMOVED:
            older: Any = REMOVED if found is REMOVED else table.load(key)
            found = table.changed[key] = [] if older is REMOVED else list(older)
        owned: list[Any] = found
        return owned

    def sweep(self) -> None:
        """Remove what has expired, a bounded part."""


class TtlCells(Cells):
    """The current key's cell, of a state with a time to live."""

    def __init__(
        self,
        declaration: KeyedState,
        table: HeapTable,
        backend: KeyedStateBackend,
        serializer: ValueSerializer,
    ) -> None:
        super().__init__(declaration, table, backend, serializer)
        assert declaration.ttl is not None
        self.clock = TtlClock(declaration.ttl, backend.context.clock, backend.event_time)
        self.queue = ExpiryQueue(self.clock)
        self._writes = 0

    def read(self) -> Any:
        """The kept value, or `REMOVED` if there is none or it has expired."""
        key = self.key()
        cell = self.table.find(key)
        if cell is REMOVED:
            return REMOVED
        written, kept = cell
        now = self.clock.now()
        if self.clock.is_expired(written, now):
            self.table.remove(key)
            return REMOVED
        if self.clock.refresh_on_read and written != now:
            self._put(key, self._renewed(key, kept), now)
        return kept

    def _renewed(self, key: Any, kept: Any) -> Any:
        """What a refresh puts into this generation: the older object itself, because nobody changes it in place."""
        return kept

    def write(self, kept: Any) -> None:
        """Keep a value, written now."""
        self._put(self.key(), kept, self.clock.now())

    def holds(self, key: Any) -> bool:
        """Whether a key has something that has not expired."""
        now = self.clock.now()
        return any(not self.clock.is_expired(written, now) for written, _ in self._cells_of(key))

    def written(self, item: Any, now: int) -> None:
        """Something was written: it is due one day, and so may be others by now."""
        self.queue.add(item, now)
        self._writes += 1
        if self._writes >= _WRITES_PER_SWEEP:
            self._writes = 0
            self._sweep(now, _SWEPT)

    def sweep(self) -> None:
        """Remove what has expired, a bounded part; at each snapshot."""
        self._sweep(self.clock.now(), _SWEPT_AT_SNAPSHOT)

    def _put(self, key: Any, kept: Any, now: int) -> None:
        self.table.changed[key] = (now, kept)
        self.written(key, now)

    def _sweep(self, now: int, limit: int) -> None:
        for item in self.queue.take_due(now, limit):
            self.drop_if_expired(item, now)

    def drop_if_expired(self, item: Any, now: int) -> None:
        """Remove an item that is due, unless it was written again."""
        cell = self.table.find(item)
        if cell is not REMOVED and self.clock.is_expired(cell[0], now):
            self.table.remove(item)


class TtlListCells(TtlCells):
    """The cells of lists with a time to live: one in `changed` is in no older generation, so it can be appended to."""

    def own_list(self) -> list[Any]:
        """The key's list as of now, written now."""
        key, now = self.key(), self.clock.now()
        cell = self.table.find(key)
        is_gone = cell is REMOVED or self.clock.is_expired(cell[0], now)
        owned: list[Any] = [] if is_gone else self._renewed(key, cell[1])
        self._put(key, owned, now)
        return owned

    def _renewed(self, key: Any, kept: Any) -> Any:
        """A copy where the list is of an older generation, which may be on its way into a file."""
        return kept if key in self.table.changed else list(kept)
