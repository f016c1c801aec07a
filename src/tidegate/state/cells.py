"""Cells: the current key's place in a table, without or with a time to live. What live states stand on.

`KeptForm` says what a backend keeps of a value in memory; the cell has it as it is, or, where there is a time to live,
behind the time of its last write. Expired values are invisible here at once; the backend removes them in its own time.
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
    """A declaration with what follows from it in one backend: serializers, schema and clock."""

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
    """What is kept of a key; `SchemaError` if it does not fit."""
    release: Callable[[Any], Any] | None
    """The key of a kept one; None: it is the kept one."""
    plain_class: type | None = None
    """Keys of exactly this class are found as they are."""
    fits: Callable[[Any], bool] | None = None
    """Where keys are found that do not fit inside: a quick look at a kept key that is put. If it says no, `check`."""
    check: Callable[[Any], None] = itself
    """Raises `SchemaError` if a kept key does not fit."""


class Adopter(Protocol):
    """A serializer, or what keeps the bytes of one. An object, because Python calls a method faster than a function."""

    def adopt(self, value: Any) -> Any:
        """What is kept of a value; `SchemaError` if it does not fit."""
        ...


@dataclass(frozen=True)
class KeptForm:
    """What is kept of the values of a state in memory."""

    adopter: Adopter
    release: Callable[[Any], Any] | None
    """The caller's own value of a kept one; None: it is the kept one, which cannot change."""
    map_keys: MapKeyForm | None = None


class Cells:
    """What the cells of all kinds of state have in common: the current key, and values as they are kept."""

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
        """The current key; refused if there is none."""
        key = self.backend.current_key
        if key is NO_KEY:
            self.refuse_without_key()
        return key

    def refuse_without_key(self) -> NoReturn:
        """Say that there is no current key."""
        raise without_key(self.operator, self.name) from None

    def adopt(self, value: Any) -> Any:
        """What is kept of a value; one that does not fit is named."""
        try:
            return self._adopter.adopt(value)
        except SchemaError as e:
            self.refuse_value(value, e)

    def refuse_value(self, value: Any, reason: SchemaError) -> NoReturn:
        """Say that a value does not fit."""
        raise cannot_store(self.operator, self.name, self.key(), value, reason) from reason


class ListCells(Cells, ABC):
    """The current key's list of kept elements."""

    @abstractmethod
    def read(self) -> list[Any]:
        """The kept elements, not to be changed; empty if there are none."""

    @abstractmethod
    def own_list(self, more: int = 1) -> list[Any]:
        """The list to which so many elements are appended at once, written now."""

    @abstractmethod
    def write(self, kept: list[Any]) -> None:
        """Make this the whole list, written now."""

    @abstractmethod
    def remove(self) -> None:
        """Forget the list."""

    @abstractmethod
    def holds(self, key: Any) -> bool:
        """Whether a key, not the current one, has elements."""


class ValueCells(Cells):
    """The current key's cell, of a state without a time to live."""

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
        """Put a kept value there."""
        self.table.put(self.key(), kept)

    def store(self, value: Any) -> None:
        """Keep a value. What `adopt` and `write` do, without the calls."""
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
        """Forget the value."""
        self.table.remove(self.key())

    def holds(self, key: Any) -> bool:
        """Whether a key, not the current one, has something."""
        return self.table.find(key) is not REMOVED


class TtlValueCells(ValueCells):
    """The current key's cell, of a state with a time to live."""

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
        """What a refresh puts into this generation: the older object itself, because nobody changes it in place."""
        return kept

    def write(self, kept: Any) -> None:
        """Put a kept value there, written now."""
        self.table.put(self.key(), (self.clock.now(), kept))

    def store(self, value: Any) -> None:
        """Keep a value, written now."""
        try:
            kept = self._adopter.adopt(value)
        except SchemaError as e:
            self.refuse_value(value, e)
        key = self.backend.current_key
        if key is NO_KEY:
            self.refuse_without_key()
        self.table.put(key, (self.clock.now(), kept))

    def holds(self, key: Any) -> bool:
        """Whether a key has something that has not expired."""
        cell = self.table.find(key)
        return cell is not REMOVED and not self.clock.is_expired(cell[0], self.clock.now())


class MapCells(Cells):
    """The current key's map, of a state without a time to live. Map keys are as the form keeps them."""

    def __init__(self, declared: DeclaredState, form: KeptForm, table: MapGenerations) -> None:
        super().__init__(declared, form)
        self.table = table
        self.find: Callable[[Any, Any], Any] = table.load_entry
        """The kept value of a key's entry, or `REMOVED`."""
        self.put: Callable[[Any, Any, Any], None] = table.put_entry
        """Keep a value of a key's entry."""

    def entries(self, key: Any) -> Iterable[tuple[Any, Any]]:
        """The kept entries of a key, as of now."""
        return self.table.entries(key)

    def holds(self, key: Any) -> bool:
        """Whether a key has entries; that reads none of them."""
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
        """The kept entries of a key that have not expired; where reading refreshes, all of them are read."""
        now = self.clock.now()
        alive = self._alive(key, now)
        if self.clock.refresh_on_read:  # now, under this key, whenever somebody iterates
            alive = list(alive)
            for map_key, (written, kept) in alive:
                if written != now:
                    self.table.put_entry(key, map_key, (now, kept))
        return ((map_key, cell[1]) for map_key, cell in alive)

    def holds(self, key: Any) -> bool:
        """Whether a key has entries that have not expired; that reads none of them."""
        return any(True for _ in self._alive(key, self.clock.now()))

    def _alive(self, key: Any, now: int) -> Iterable[tuple[Any, Any]]:
        is_expired = self.clock.is_expired
        return (entry for entry in self.table.entries(key) if not is_expired(entry[1][0], now))
