"""Live states: what a function uses under the names that it declared, on every backend.

`PlainValueState` matters most: for values that are kept as they are, without a time to live, a read is one dict
look-up, and a write is a quick check of the value and one dict store. All others go through cells. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.words import kind_of
from tidegate.state.backend import NO_KEY, NoKeyError
from tidegate.state.cells import Cells, ListCells, MapCells, ValueCells
from tidegate.state.copies import itself
from tidegate.state.generations import REMOVED, UNBOUNDED, Entries


def _take_over(live: KeyedState, declaration: KeyedState) -> None:
    """Copy name, types, function and the rest from the declaration."""
    for name, value in vars(declaration).items():
        setattr(live, name, value)  # touching `live.__dict__` would make every later attribute access slower


class CellValueState(ValueState[Any]):
    """Values that are mutable, kept as bytes, or have a time to live."""

    def __init__(self, declaration: ValueState[Any], cells: ValueCells) -> None:
        _take_over(self, declaration)
        self._cells = cells
        self._kept_default = REMOVED if declaration.default is None else self._adopt_default()

    def _adopt_default(self) -> Any:
        """Keep the default as values are kept, so that no caller can change it for the next key."""
        try:
            return self._cells.form.adopter.adopt(self.default)
        except SchemaError as e:
            raise ProgramError(
                f"operator {self._cells.operator!r}: the default of state {self.name!r} is of another type: {e}"
            ) from e

    def value(self) -> Any:
        kept = self._cells.read()
        if kept is REMOVED:
            kept = self._kept_default
            if kept is REMOVED:
                return None
        release = self._cells.release
        return kept if release is None else release(kept)

    def update(self, value: Any) -> None:
        if value is None:
            self._cells.remove()
        else:
            self._cells.store(value)

    def clear(self) -> None:
        self._cells.remove()


class PlainValueState(CellValueState):
    """Values that are kept as they are, without a time to live."""

    def __init__(self, declaration: ValueState[Any], cells: ValueCells) -> None:
        super().__init__(declaration, cells)
        self._backend = cells.backend
        self._load = cells.table.load
        cls = cells.values.exact_class
        self._class, self._fits = cls, cells.values.fits
        self._int = int if cls is int else None
        self._follow(cells.table.changed)
        cells.table.on_freeze = self._follow

    def _follow(self, changed: Entries) -> None:
        self._changed = changed

    def value(self) -> Any:
        try:
            kept = self._changed[self._backend.current_key]
        except (KeyError, NoKeyError):
            kept = self._load(self._cells.key())
        return self.default if kept is REMOVED else kept

    def update(self, value: Any) -> None:
        cls = type(value)  # not a real call: the interpreter has an instruction for it
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
            self._cells.refuse_without_key()


class BoundedValueState(PlainValueState):
    """A `PlainValueState` over a table with `check_at`. `update` is written out: a call would cost a third more."""

    def __init__(self, declaration: ValueState[Any], cells: ValueCells) -> None:
        super().__init__(declaration, cells)
        self._any_of = self._class if self._class in (float, bool, bytes) else None
        """Every value of this class fits."""

    def _follow(self, changed: Entries) -> None:
        self._changed = changed
        self._check_at = self._cells.table.check_at

    def update(self, value: Any) -> None:
        cls = type(value)
        if (
            cls is not self._any_of
            and (cls is not self._int or not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF)
            and (cls is not self._class or not self._fits(value))
        ):
            value = REMOVED if value is None else self._cells.adopt(value)
        changed = self._changed
        try:
            changed[self._backend.current_key] = value
        except NoKeyError:
            self._cells.refuse_without_key()
        if len(changed) > self._check_at:
            self._cells.table.grown()
            self._check_at = self._cells.table.check_at


class LiveReducingState(ReducingState[Any]):
    """The reduced value, in a cell."""

    def __init__(self, declaration: ReducingState[Any], cells: ValueCells) -> None:
        _take_over(self, declaration)
        self._cells = cells
        self._release = cells.release

    def get(self) -> Any:
        kept, release = self._cells.read(), self._release
        if kept is REMOVED:
            return None
        return kept if release is None else release(kept)

    def add(self, value: Any) -> None:
        cells = self._cells
        kept = cells.read()
        if kept is not REMOVED:
            release = self._release
            value = self.function(kept if release is None else release(kept), value)
        cells.store(value)

    def clear(self) -> None:
        self._cells.remove()


class LiveAggregatingState(AggregatingState[Any, Any]):
    """The accumulator, in a cell."""

    function: AggregateFunction[Any, Any, Any]

    def __init__(self, declaration: AggregatingState[Any, Any], cells: ValueCells) -> None:
        _take_over(self, declaration)
        self._cells = cells
        self._release = cells.release

    def get(self) -> Any:
        kept, release = self._cells.read(), self._release
        if kept is REMOVED:
            return None
        return self.function.get_result(kept if release is None else release(kept))

    def add(self, value: Any) -> None:
        cells = self._cells
        kept, release = cells.read(), self._release
        if kept is REMOVED:
            kept = self.function.create_accumulator()
        elif release is not None:
            kept = release(kept)
        cells.store(self.function.add(value, kept))

    def clear(self) -> None:
        self._cells.remove()


class LiveListState(ListState[Any]):
    """A list of kept elements."""

    def __init__(self, declaration: ListState[Any], cells: ListCells) -> None:
        _take_over(self, declaration)
        self._cells = cells

    def get(self) -> list[Any]:
        kept, release = self._cells.read(), self._cells.release
        return list(kept) if release is None else list(map(release, kept))

    def add(self, value: Any) -> None:
        kept = self._cells.adopt(value)
        self._cells.own_list().append(kept)

    def add_all(self, values: Iterable[Any]) -> None:
        kept = [self._cells.adopt(v) for v in values]
        if kept:
            self._cells.own_list(len(kept)).extend(kept)

    def update(self, values: Iterable[Any]) -> None:
        kept = [self._cells.adopt(v) for v in values]
        if kept:
            self._cells.write(kept)
        else:
            self._cells.remove()

    def clear(self) -> None:
        self._cells.remove()


class LiveMapState(MapState[Any, Any]):
    """A map of kept values."""

    def __init__(self, declaration: MapState[Any, Any], cells: MapCells) -> None:
        _take_over(self, declaration)
        self._cells = cells
        form = cells.form.map_keys
        assert form is not None
        self._plain_key, self._adopt_key = form.plain_class, form.adopt
        self._key_fits, self._check_key = form.fits, form.check
        self._release, self._release_key = cells.release, form.release or itself

    def get(self, key: Any, default: Any = None) -> Any:
        cells = self._cells
        current = cells.backend.current_key
        if current is NO_KEY:
            cells.refuse_without_key()
        kept, release = cells.find(current, self._map_key(key)), self._release
        if kept is REMOVED:
            return default
        return kept if release is None else release(kept)

    def put(self, key: Any, value: Any) -> None:
        cells = self._cells
        kept = cells.adopt(value)
        current = cells.backend.current_key
        if current is NO_KEY:
            cells.refuse_without_key()
        map_key = self._map_key(key)
        if self._key_fits is not None and not self._key_fits(map_key):
            try:
                self._check_key(map_key)
            except SchemaError as e:
                cells.refuse_value(key, e)
        cells.put(current, map_key, kept)

    def remove(self, key: Any) -> None:
        self._cells.table.remove_entry(self._cells.key(), self._map_key(key))

    def contains(self, key: Any) -> bool:
        return self._cells.find(self._cells.key(), self._map_key(key)) is not REMOVED

    def items(self) -> Iterator[tuple[Any, Any]]:
        of_key, of_value = self._release_key, self._release or itself
        return ((of_key(k), of_value(v)) for k, v in self._cells.entries(self._cells.key()))

    def keys(self) -> Iterator[Any]:
        return (self._release_key(k) for k, _ in self._cells.entries(self._cells.key()))

    def is_empty(self) -> bool:
        """Whether there is no entry; this does not count as reading them."""
        return not self._cells.holds(self._cells.key())

    def clear(self) -> None:
        self._cells.table.remove(self._cells.key())

    def _map_key(self, key: Any) -> Any:
        if key.__class__ is self._plain_key:
            return key
        try:
            return self._adopt_key(key)
        except SchemaError as e:
            self._cells.refuse_value(key, e)


def live_state(declaration: KeyedState, cells: Cells) -> KeyedState:
    """The live state of a declaration over its cells; the fastest class that fits."""
    if isinstance(declaration, ListState) and isinstance(cells, ListCells):
        return LiveListState(declaration, cells)
    if isinstance(declaration, MapState) and isinstance(cells, MapCells):
        return LiveMapState(declaration, cells)
    assert isinstance(cells, ValueCells)
    if isinstance(declaration, ValueState):
        if cells.clock is not None or cells.release is not None:
            return CellValueState(declaration, cells)
        return (PlainValueState if cells.table.check_at == UNBOUNDED else BoundedValueState)(
            declaration, cells
        )
    if isinstance(declaration, ReducingState):
        return LiveReducingState(declaration, cells)
    if isinstance(declaration, AggregatingState):
        return LiveAggregatingState(declaration, cells)
    raise TypeError(f"{kind_of(declaration)} is no keyed state")
