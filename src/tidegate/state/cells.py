"""Cells: the place of the current key in a table, with or without a time to live. Live states are built on them.

`KeptForm` says what a backend keeps of a value in memory. A cell is that kept value or, with a time to live, the pair
of the time of its last write and the kept value. Expired values are invisible at once; the backend removes them later.
Mailbox thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from tidegate.api.state import KeyedState, ListState, MapState
from tidegate.core.errors import SchemaError
from tidegate.snapshot.handles import StateSchema
from tidegate.state.backend import NO_KEY, KeyedStateBackend
from tidegate.state.copies import itself
from tidegate.state.fingerprints import state_schema
from tidegate.state.generations import REMOVED, MapGenerations, ValueGenerations
from tidegate.state.refusals import cannot_store, without_key
from tidegate.state.serializers import KeySerializer, ValueSerializer, map_key_serializer, value_serializer
from tidegate.state.ttl import TtlClock


class DeclaredState:
    """A declaration, and what follows from it in one backend: serializers, schema and clock."""

    def __init__(self, declaration: KeyedState, backend: KeyedStateBackend) -> None:
        context = backend.context
        operator, name, ttl = context.operator_name, declaration.name, declaration.ttl
        self.declaration = declaration
        self.backend = backend
        self.clock = None if ttl is None else TtlClock(ttl, context.clock, backend.event_time)
        self.is_list, self.is_map = isinstance(declaration, ListState), isinstance(declaration, MapState)
        self.hint: Any = declaration.value_type if isinstance(declaration, MapState) else declaration.type  # type: ignore[attr-defined]
        self.values: ValueSerializer = value_serializer(
            operator, name, self.hint, declaration.serializer, optional=self.is_list
        )
        self.map_keys: KeySerializer | None = None
        if isinstance(declaration, MapState):
            self.map_keys = map_key_serializer(operator, name, declaration.key_type)
        self.schema: StateSchema = state_schema(declaration, context.key_type, self.values, self.map_keys)


@dataclass(frozen=True)
class MapKeyForm:
    """What is kept of the keys of a map in memory."""

    adopt: Callable[[Any], Any]
    """Returns what is kept of a key; `SchemaError` if it does not fit."""
    release: Callable[[Any], Any] | None
    """Returns the key of a kept key; None: they are the same."""
    plain_class: type | None = None
    """Keys of exactly this class need no `adopt` for a look-up."""
    fits: Callable[[Any], bool] | None = None
    """A quick check of a kept key on `put`, if `adopt` does not check inside it. If it says no, `check` decides."""
    check: Callable[[Any], None] = itself
    """Raises `SchemaError` if a kept key does not fit."""


class Adopter(Protocol):
    """A serializer, or an object that keeps its bytes; not a function, because Python calls a method faster."""

    def adopt(self, value: Any) -> Any:
        """Return what is kept of a value; `SchemaError` if it does not fit."""
        ...


@dataclass(frozen=True)
class KeptForm:
    """What is kept of the values of a state in memory."""

    adopter: Adopter
    release: Callable[[Any], Any] | None
    """Returns a value for the caller; None: the kept value itself, since it is immutable."""
    map_keys: MapKeyForm | None = None


class Cells:
    """The common part of the cells of all kinds of state: the current key, and kept values."""

    clock: TtlClock | None

    def __init__(self, declared: DeclaredState, form: KeptForm) -> None:
        self.name = declared.declaration.name
        self.form = form
        self.values = declared.values
        self.release = form.release
        self.backend = declared.backend
        self.clock = declared.clock
        self.operator = declared.backend.context.operator_name
        self._adopter = form.adopter

    def key(self) -> Any:
        """The current key; raises an error if there is none."""
        key = self.backend.current_key
        if key is NO_KEY:
            self.refuse_without_key()
        return key

    def refuse_without_key(self) -> NoReturn:
        raise without_key(self.operator, self.name) from None

    def adopt(self, value: Any) -> Any:
        """Return what is kept of a value; an error names a value that does not fit."""
        try:
            return self._adopter.adopt(value)
        except SchemaError as e:
            self.refuse_value(value, e)

    def refuse_value(self, value: Any, reason: SchemaError) -> NoReturn:
        raise cannot_store(self.operator, self.name, self.key(), value, reason) from reason


class ListCells(Cells, ABC):
    """The list of kept elements of the current key."""

    @abstractmethod
    def read(self) -> list[Any]:
        """The kept elements, which the caller must not change; an empty list if there are none."""

    @abstractmethod
    def own_list(self, more: int = 1) -> list[Any]:
        """The list to append `more` elements to, marked as written now."""

    @abstractmethod
    def write(self, kept: list[Any]) -> None:
        """Replace the whole list, marked as written now."""

    @abstractmethod
    def remove(self) -> None: ...

    @abstractmethod
    def holds(self, key: Any) -> bool:
        """Whether a key, which need not be the current one, has elements."""


class ValueCells(Cells):
    """The cell of the current key, in a state without a time to live."""

    def __init__(self, declared: DeclaredState, form: KeptForm, table: ValueGenerations) -> None:
        super().__init__(declared, form)
        self.table = table

    def read(self) -> Any:
        """The kept value, or `REMOVED`."""
        key = self.backend.current_key
        if key is NO_KEY:
            self.refuse_without_key()
        changed = self.table.changed
        return changed[key] if key in changed else self.table.load(key)

    def write(self, kept: Any) -> None:
        self.table.put(self.key(), kept)

    def store(self, value: Any) -> None:
        """Keep a value: `adopt` and `write`, inlined for speed."""
        try:
            kept = self._adopter.adopt(value)
        except SchemaError as e:
            self.refuse_value(value, e)
        key = self.backend.current_key
        if key is NO_KEY:
            self.refuse_without_key()
        table = self.table
        table.changed[key] = kept
        if len(table.changed) > table.check_at:
            table.grown()

    def remove(self) -> None:
        self.table.remove(self.key())

    def holds(self, key: Any) -> bool:
        """Whether a key, which need not be the current one, has a value."""
        return self.table.find(key) is not REMOVED


class TtlValueCells(ValueCells):
    """The cell of the current key, in a state with a time to live."""

    clock: TtlClock

    def read(self) -> Any:
        """The kept value, or `REMOVED` if there is none or it has expired."""
        key = self.backend.current_key
        if key is NO_KEY:
            self.refuse_without_key()
        cell = self.table.find(key)
        if cell is REMOVED:
            return REMOVED
        written, kept = cell
        clock = self.clock
        now = clock.now()
        if clock.is_expired(written, now):
            self.table.remove(key)
            return REMOVED
        if clock.refresh_on_read and written != now:
            self.table.put(key, (now, self._renewed(key, kept)))
        return kept

    def _renewed(self, key: Any, kept: Any) -> Any:
        """What a refresh puts into this generation: the old object itself, because it is never changed in place."""
        return kept

    def write(self, kept: Any) -> None:
        self.table.put(self.key(), (self.clock.now(), kept))

    def store(self, value: Any) -> None:
        try:
            kept = self._adopter.adopt(value)
        except SchemaError as e:
            self.refuse_value(value, e)
        key = self.backend.current_key
        if key is NO_KEY:
            self.refuse_without_key()
        self.table.put(key, (self.clock.now(), kept))

    def holds(self, key: Any) -> bool:
        """Whether a key has a value that has not expired."""
        cell = self.table.find(key)
        return cell is not REMOVED and not self.clock.is_expired(cell[0], self.clock.now())


class MapCells(Cells):
    """The map of the current key, in a state without a time to live. Map keys are kept as the form says."""

    def __init__(self, declared: DeclaredState, form: KeptForm, table: MapGenerations) -> None:
        super().__init__(declared, form)
        self.table = table
        self.find: Callable[[Any, Any], Any] = table.load_entry
        """Returns the kept value of an entry of a key, or `REMOVED`."""
        self.put: Callable[[Any, Any, Any], None] = table.put_entry
        """Sets the kept value of an entry of a key."""

    def entries(self, key: Any) -> Iterable[tuple[Any, Any]]:
        """The kept entries of a key at this moment."""
        return self.table.entries(key)

    def holds(self, key: Any) -> bool:
        """Whether a key has entries; this does not count as reading them."""
        return any(True for _ in self.table.entries(key))


class TtlMapCells(MapCells):
    """A map whose entries expire one by one."""

    clock: TtlClock

    def __init__(self, declared: DeclaredState, form: KeptForm, table: MapGenerations) -> None:
        super().__init__(declared, form, table)
        self.find, self.put = self._find, self._put

    def _find(self, key: Any, map_key: Any) -> Any:
        cell = self.table.load_entry(key, map_key)
        if cell is REMOVED:
            return REMOVED
        written, kept = cell
        clock = self.clock
        now = clock.now()
        if clock.is_expired(written, now):
            self.table.remove_entry(key, map_key)
            return REMOVED
        if clock.refresh_on_read and written != now:
            self.table.put_entry(key, map_key, (now, kept))
        return kept

    def _put(self, key: Any, map_key: Any, kept: Any) -> None:
        self.table.put_entry(key, map_key, (self.clock.now(), kept))

    def entries(self, key: Any) -> Iterable[tuple[Any, Any]]:
        """The kept entries of a key that have not expired. With `refresh_on_read`, this reads all of them."""
        now = self.clock.now()
        alive = self._alive(key, now)
        if self.clock.refresh_on_read:  # refresh now, for this key, not when the caller iterates
            alive = list(alive)
            for map_key, (written, kept) in alive:
                if written != now:
                    self.table.put_entry(key, map_key, (now, kept))
        return ((map_key, cell[1]) for map_key, cell in alive)

    def holds(self, key: Any) -> bool:
        """Whether a key has entries that have not expired; this does not count as reading them."""
        return any(True for _ in self._alive(key, self.clock.now()))

    def _alive(self, key: Any, now: int) -> Iterable[tuple[Any, Any]]:
        is_expired = self.clock.is_expired
        return (entry for entry in self.table.entries(key) if not is_expired(entry[1][0], now))
