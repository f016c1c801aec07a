"""The common part of backends with live states over generations: which states are open, and how to open one.

Such a backend provides tables (`ValueGenerations`, `MapGenerations`), cells of lists, and column and pane tables; it
writes and reads what is durable.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from tidegate.api.state import KeyedState
from tidegate.core.errors import ProgramError
from tidegate.snapshot.handles import StateSchema
from tidegate.state.backend import BackendContext, ColumnArray, ColumnTable, KeyedStateBackend, PaneTable
from tidegate.state.cells import (
    DeclaredState,
    KeptForm,
    ListCells,
    MapCells,
    TtlMapCells,
    TtlValueCells,
    ValueCells,
)
from tidegate.state.fingerprints import check_compatible, column_schema, pane_schema
from tidegate.state.generations import MapGenerations, ValueGenerations
from tidegate.state.live_states import live_state

T = TypeVar("T")
RowCells = ValueCells | ListCells | MapCells


@dataclass(frozen=True)
class OpenRows:
    """An open row state."""

    live: KeyedState
    cells: RowCells


class LayeredBackend(KeyedStateBackend):
    """A keyed state backend whose live states are over generations."""

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._open: dict[str, tuple[StateSchema, Any]] = {}
        """The open states by name: rows, columns or panes."""

    # ---- what a subclass provides ----

    @abstractmethod
    def _check_keys(self, *, in_memory: bool) -> None:
        """Refuse keys without a type. `in_memory`: the state needs no files if there are no checkpoints."""

    @abstractmethod
    def _stored_schema(self, name: str) -> StateSchema | None:
        """The schema that the checkpoint has under a name."""

    @abstractmethod
    def _open_table(self, declared: DeclaredState) -> tuple[KeptForm, ValueGenerations | MapGenerations]:
        """A table of values or maps, new or restored, and what it keeps of values."""

    @abstractmethod
    def _open_lists(self, declared: DeclaredState) -> ListCells:
        """The cells of lists, new or restored."""

    @abstractmethod
    def _open_columns(self, schema: StateSchema, arrays: Sequence[ColumnArray]) -> ColumnTable:
        """A column table, new or restored."""

    @abstractmethod
    def _open_panes(self, schema: StateSchema, values: pa.Schema) -> PaneTable:
        """A pane table, new or restored."""

    @abstractmethod
    def _keys_of(self, cells: RowCells) -> Iterator[Any]:
        """The keys that have something in a row state."""

    # ---- the contract ----

    def state(self, declaration: KeyedState) -> KeyedState:
        return self._rows(declaration).live

    def _rows(self, declaration: KeyedState) -> OpenRows:
        self.claimed.add(declaration.name)
        self._check_keys(in_memory=True)
        declared = DeclaredState(declaration, self)

        def opened() -> OpenRows:
            cells = self._cells(declared)
            return OpenRows(live_state(declaration, cells), cells)

        return self._opened(declared.schema, opened)

    def _cells(self, declared: DeclaredState) -> RowCells:
        if declared.is_list:
            return self._open_lists(declared)
        form, table = self._open_table(declared)
        if isinstance(table, MapGenerations):
            return (MapCells if declared.clock is None else TtlMapCells)(declared, form, table)
        return (ValueCells if declared.clock is None else TtlValueCells)(declared, form, table)

    def keys(self, name: str) -> Iterator[Any]:
        _, rows = self._open[name]
        assert isinstance(rows, OpenRows), f"state {name!r} has no rows"
        return self._keys_of(rows.cells)

    def columns(self, name: str, arrays: Sequence[ColumnArray]) -> ColumnTable:
        self.claimed.add(name)
        self._check_keys(in_memory=False)
        schema = column_schema(name, self.context.key_type, [(a.name, a.type_name) for a in arrays])
        return self._opened(schema, lambda: self._open_columns(schema, arrays))

    def panes(self, name: str, values: pa.Schema) -> PaneTable:
        self.claimed.add(name)
        self._check_keys(in_memory=True)
        schema = pane_schema(name, self.context.key_type, values)
        return self._opened(schema, lambda: self._open_panes(schema, values))

    def _opened(self, schema: StateSchema, open_it: Callable[[], T]) -> T:
        operator, name = self.context.operator_name, schema.name
        if name not in self._open:
            stored = self._stored_schema(name)
            if stored is not None:
                check_compatible(operator, stored, schema)
            self._open[name] = schema, open_it()
        known, found = self._open[name]
        if known.fingerprint != schema.fingerprint:
            raise ProgramError(
                f"operator {operator!r} declares two states named {name!r}: {known.kind} of {known.value}, and "
                f"{schema.kind} of {schema.value}. Give one of them another name="
            )
        opened: T = found
        return opened
