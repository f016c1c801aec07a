"""Live states of the heap backend: what a function sees under the names that it declared.

`HeapValueState` is the one that counts: for immutable values without a time to live, reading is one dict look-up and
writing is a quick look at the value and one dict store. All others go through `Cells`. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tidegate.api.state import (
    AggregateFunction,
    AggregatingState,
    KeyedState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from tidegate.core.errors import ProgramError, SchemaError, SerializationError
from tidegate.core.words import kind_of
from tidegate.state.backend import NoKeyError
from tidegate.state.heap.cells import Cells, TtlCells
from tidegate.state.heap.map_table import MapTable
from tidegate.state.heap.table import REMOVED, Entries
from tidegate.state.refusals import cannot_store, without_key
from tidegate.state.serializers import KeySerializer


def _take_over(live: KeyedState, declaration: KeyedState) -> None:
    """Name, types, function and the rest are those of the declaration."""
    for name, value in vars(declaration).items():
        setattr(live, name, value)  # touching `live.__dict__` would make every later attribute access slower


class HeapValueState(ValueState[Any]):
    """Immutable values without a time to live."""

    def __init__(self, declaration: ValueState[Any], cells: Cells) -> None:
        _take_over(self, declaration)
        self._cells = cells
        self._backend = cells.backend
        self._class, self._fits = cells.serializer.exact_class, cells.serializer.fits
        self._int = int if self._class is int else None
        self._follow(cells.table.changed)
        cells.table.on_freeze = self._follow

    def _follow(self, changed: Entries) -> None:
        self._changed = changed

    def value(self) -> Any:
        """The key's value, or the default."""
        try:
            kept = self._changed[self._backend.current_key]
        except (KeyError, NoKeyError):
            kept = self._cells.read()
        return self.default if kept is REMOVED else kept

    def update(self, value: Any) -> None:
        """Set the key's value; None is the same as `clear`."""
        cls = type(value)  # a call in name only: the interpreter has an instruction for it
        if (cls is not self._int or not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF) and (
            cls is not self._class or not self._fits(value)
        ):
            if value is None:
                self._cells.remove()
                return
            value = self._cells.adopt(value)
        try:
            self._changed[self._backend.current_key] = value
        except NoKeyError:
            raise without_key(self._cells.operator, self.name) from None

    def clear(self) -> None:
        """Forget the key's value."""
        self._cells.remove()


class HeapCellValueState(ValueState[Any]):
    """Values that can change, have a serializer of their own, or a time to live."""

    def __init__(self, declaration: ValueState[Any], cells: Cells) -> None:
        _take_over(self, declaration)
        self._cells = cells
        self._kept_default = REMOVED if declaration.default is None else self._adopt_default()

    def _adopt_default(self) -> Any:
        try:
            return self._cells.serializer.adopt(self.default)
        except SchemaError as e:
            raise ProgramError(
                f"operator {self._cells.operator!r}: the default of state {self.name!r} is of another type: {e}"
            ) from e

    def value(self) -> Any:
        """The key's value, or the default."""
        kept = self._cells.read()
        if kept is REMOVED:
            kept = self._kept_default
            if kept is REMOVED:
                return None
        return self._cells.serializer.release(kept)

    def update(self, value: Any) -> None:
        """Set the key's value; None is the same as `clear`."""
        if value is None:
            self._cells.remove()
        else:
            self._cells.write(self._cells.adopt(value))

    def clear(self) -> None:
        """Forget the key's value."""
        self._cells.remove()


class HeapReducingState(ReducingState[Any]):
    """The reduced value, in a cell."""

    def __init__(self, declaration: ReducingState[Any], cells: Cells) -> None:
        _take_over(self, declaration)
        self._cells = cells

    def get(self) -> Any:
        """What was reduced so far, or None."""
        kept = self._cells.read()
        return None if kept is REMOVED else self._cells.serializer.release(kept)

    def add(self, value: Any) -> None:
        """Reduce a value into it."""
        cells = self._cells
        kept = cells.read()
        if kept is not REMOVED:
            value = self.function(cells.serializer.release(kept), value)
        cells.write(cells.adopt(value))

    def clear(self) -> None:
        """Forget the key's value."""
        self._cells.remove()


class HeapAggregatingState(AggregatingState[Any, Any]):
    """The accumulator, in a cell."""

    function: AggregateFunction[Any, Any, Any]

    def __init__(self, declaration: AggregatingState[Any, Any], cells: Cells) -> None:
        _take_over(self, declaration)
        self._cells = cells

    def get(self) -> Any:
        """The result of what was added so far, or None."""
        kept = self._cells.read()
        return None if kept is REMOVED else self.function.get_result(self._cells.serializer.release(kept))

    def add(self, value: Any) -> None:
        """Add a value."""
        cells = self._cells
        kept = cells.read()
        so_far = self.function.create_accumulator() if kept is REMOVED else cells.serializer.release(kept)
        cells.write(cells.adopt(self.function.add(value, so_far)))

    def clear(self) -> None:
        """Forget the key's accumulator."""
        self._cells.remove()


class HeapListState(ListState[Any]):
    """A list of kept elements, in a cell."""

    def __init__(self, declaration: ListState[Any], cells: Cells) -> None:
        _take_over(self, declaration)
        self._cells = cells

    def get(self) -> list[Any]:
        """The key's elements, oldest first; empty if there are none."""
        kept = self._cells.read()
        if kept is REMOVED:
            return []
        release = self._cells.serializer.release
        return [release(v) for v in kept]

    def add(self, value: Any) -> None:
        """Append an element."""
        kept = self._cells.adopt(value)
        self._cells.own_list().append(kept)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        kept = [self._cells.adopt(v) for v in values]
        if kept:
            self._cells.own_list().extend(kept)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the whole list."""
        kept = [self._cells.adopt(v) for v in values]
        if kept:
            self._cells.write(kept)
        else:
            self._cells.remove()

    def clear(self) -> None:
        """Forget the key's list."""
        self._cells.remove()


class HeapMapState(MapState[Any, Any]):
    """A map of kept values without a time to live."""

    def __init__(self, declaration: MapState[Any, Any], cells: Cells, keys: KeySerializer) -> None:
        _take_over(self, declaration)
        self._cells = cells
        assert isinstance(cells.table, MapTable)
        self._table = cells.table
        self._keys = keys
        self._plain_key = keys.plain_class

    def get(self, key: Any, default: Any = None) -> Any:
        """The entry's value, or `default`."""
        kept = self._find(self._cells.key(), self._canonical(key))
        return default if kept is REMOVED else self._cells.serializer.release(kept)

    def put(self, key: Any, value: Any) -> None:
        """Set an entry."""
        kept = self._cells.adopt(value)
        map_key = self._canonical(key)
        if not self._keys.fits(map_key):
            self._check_key(map_key)
        self._put(self._cells.key(), map_key, kept)

    def remove(self, key: Any) -> None:
        """Remove an entry; one that does not exist is no error."""
        self._table.remove_entry(self._cells.key(), self._canonical(key))

    def contains(self, key: Any) -> bool:
        """Whether there is an entry."""
        return self._find(self._cells.key(), self._canonical(key)) is not REMOVED

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries, of this moment."""
        release = self._cells.serializer.release
        return iter([(k, release(v)) for k, v in self._entries(self._cells.key()).items()])

    def keys(self) -> Iterator[Any]:
        """The entries' keys, of this moment."""
        return iter(list(self._entries(self._cells.key())))

    def is_empty(self) -> bool:
        """Whether there is no entry; that reads none of them."""
        return not self._cells.holds(self._cells.key())

    def clear(self) -> None:
        """Remove all entries."""
        self._table.remove(self._cells.key())

    def _canonical(self, map_key: Any) -> Any:
        if map_key.__class__ is self._plain_key:
            return map_key
        try:
            return self._keys.adopt(map_key)
        except SchemaError as e:
            raise self._refused_key(map_key, e) from e

    def _check_key(self, map_key: Any) -> None:
        try:
            self._keys.check(map_key)
        except SchemaError as e:
            raise self._refused_key(map_key, e) from e

    def _refused_key(self, map_key: Any, reason: SchemaError) -> SerializationError:
        cells = self._cells
        return cannot_store(cells.operator, self.name, cells.key(), map_key, reason)

    def _find(self, key: Any, map_key: Any) -> Any:
        return self._table.load_entry(key, map_key)

    def _put(self, key: Any, map_key: Any, kept: Any) -> None:
        self._table.changes(key)[map_key] = kept

    def _entries(self, key: Any) -> Entries:
        return self._table.load_map(key)


class HeapTtlMapState(HeapMapState):
    """A map whose entries expire one by one."""

    _cells: TtlMapCells

    def _find(self, key: Any, map_key: Any) -> Any:
        cell = self._table.load_entry(key, map_key)
        if cell is REMOVED:
            return REMOVED
        clock = self._cells.clock
        written, kept = cell
        now = clock.now()
        if clock.is_expired(written, now):
            self._table.remove_entry(key, map_key)
            return REMOVED
        if clock.refresh_on_read and written != now:
            self._put(key, map_key, kept)
        return kept

    def _put(self, key: Any, map_key: Any, kept: Any) -> None:
        now = self._cells.clock.now()
        self._table.changes(key)[map_key] = (now, kept)
        self._cells.written((key, map_key), now)

    def _entries(self, key: Any) -> Entries:
        clock = self._cells.clock
        now = clock.now()
        alive: Entries = {}
        for map_key, (written, kept) in self._table.load_map(key).items():
            if not clock.is_expired(written, now):
                alive[map_key] = kept
                if clock.refresh_on_read and written != now:
                    self._put(key, map_key, kept)
        return alive


class TtlMapCells(TtlCells):
    """The cells of a map: what expires is an entry."""

    def drop_if_expired(self, item: Any, now: int) -> None:
        """Remove an entry that is due, unless it was put again."""
        key, map_key = item
        table = self.table
        assert isinstance(table, MapTable)
        cell = table.load_entry(key, map_key)
        if cell is not REMOVED and self.clock.is_expired(cell[0], now):
            table.remove_entry(key, map_key)


def live_state(declaration: KeyedState, cells: Cells, map_keys: KeySerializer | None) -> KeyedState:
    """The live state of a declaration over its cells."""
    if isinstance(declaration, ValueState):
        serializer = cells.serializer
        fast = type(cells) is Cells and serializer.copier is None and serializer.name == "arrow"
        return (HeapValueState if fast else HeapCellValueState)(declaration, cells)
    if isinstance(declaration, MapState):
        assert map_keys is not None
        return (HeapTtlMapState if isinstance(cells, TtlMapCells) else HeapMapState)(
            declaration, cells, map_keys
        )
    made: dict[type, Callable[[Any, Cells], KeyedState]] = {
        ListState: HeapListState,
        ReducingState: HeapReducingState,
        AggregatingState: HeapAggregatingState,
    }
    for kind, make in made.items():
        if isinstance(declaration, kind):
            return make(declaration, cells)
    raise TypeError(f"{kind_of(declaration)} is no keyed state")
