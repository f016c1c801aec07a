"""The heap backend: row states in dicts, column tables in numpy arrays, files in Parquet.

A snapshot freezes every state (see `heap.values` and `heap.columns`). Its asynchronous part writes one file per state:
an increment on the files of the last completed checkpoint, or a new base if there is none yet, if the increments have
grown as large as the base, or if there are many. Increments hold everything since the last completed checkpoint, so
what an aborted one had written is written again.

A state of the checkpoint that the program does not declare (or no longer) is kept and written again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from tidegate.api.state import KeyedState
from tidegate.core.errors import CheckpointError, ProgramError, StateCompatibilityError
from tidegate.records import type_hints
from tidegate.snapshot.handles import KeyedStateHandle, StateFile, StateSchema
from tidegate.state.backend import NO_KEY, AsyncPart, BackendContext, ColumnArray, EventClock
from tidegate.state.cells import DeclaredState, KeptForm, MapKeyForm, ValueCells
from tidegate.state.generations import ValueGenerations
from tidegate.state.heap.columns import ColumnStore
from tidegate.state.heap.files import Encoded, RowLayout, StoredRows, as_read, read, to_parquet
from tidegate.state.heap.lists import ListColumn, TtlWholeLists, WholeLists
from tidegate.state.heap.maps import ExpiringMapTable, MapTable
from tidegate.state.heap.panes import PaneStore
from tidegate.state.heap.rows import RowStore
from tidegate.state.heap.values import ExpiringTable, HeapTable
from tidegate.state.layered_backend import LayeredBackend, RowCells
from tidegate.state.serializers import KeySerializer
from tidegate.storage.storage import CheckpointStorage, SnapshotWriter

_MOST_INCREMENTS: Final = 64


class Store(Protocol):
    """One state of a backend, as checkpoints see it."""

    @property
    def schema(self) -> StateSchema:
        """The schema in the files of the state."""
        ...

    def freeze(self, checkpoint_id: int, full: bool) -> Callable[[], list[Encoded]]:
        """Freeze the current state; the result makes the rows of files, on another thread."""
        ...

    def release(self, checkpoint_id: int) -> None:
        """What was frozen for this checkpoint will not be read any more. Any thread."""
        ...

    def complete(self, checkpoint_id: int) -> None:
        """Everything up to this checkpoint is durable."""
        ...

    def __len__(self) -> int: ...


class HeapBackend(LayeredBackend):
    """Keyed state in the memory of the slot."""

    name = "heap"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._keys = None if context.key_type.is_object else KeySerializer(context.key_type)
        self._stores: dict[str, Store] = {}
        self._chains: dict[str, tuple[StateFile, ...]] = {}
        """The files of the last completed checkpoint, by state: a base and its increments."""
        self._restored: dict[str, list[list[StoredRows]]] = {}
        """What a restore read, by state and handle, until the state is opened."""
        self._schemas: dict[str, StateSchema] = {}
        self._pending: dict[int, _Snapshot] = {}

    # ---- states ----

    def table(self, declaration: KeyedState) -> ValueGenerations | None:
        """The table under a live state, for a hot loop; it holds the values that the user stores."""
        cells = self._rows(declaration).cells
        if isinstance(cells, ValueCells) and cells.clock is None and cells.values.name == "arrow":
            return cells.table
        return None

    def _open_table(self, declared: DeclaredState) -> tuple[KeptForm, HeapTable | MapTable]:
        clock = declared.clock
        table: HeapTable
        if declared.is_map:
            table = MapTable() if clock is None else ExpiringMapTable(clock)
        else:
            table = HeapTable() if clock is None else ExpiringTable(clock)
        store = RowStore(table, declared.schema, self._layout(declared), clock)
        self._adopt(store, store.restore)
        return _kept_form(declared), table

    def _open_lists(self, declared: DeclaredState) -> WholeLists:
        form, table = self._open_table(declared)
        return (WholeLists if declared.clock is None else TtlWholeLists)(declared, form, table)

    def _layout(self, declared: DeclaredState) -> RowLayout | None:
        if self._keys is None:
            return None
        values = declared.values
        column = (
            ListColumn(values, type_hints.strip_optional(declared.hint)[1]) if declared.is_list else values
        )
        return RowLayout(
            self.context.operator_name,
            declared.schema,
            self._keys,
            declared.map_keys,
            column,
            declared.declaration.ttl is not None,
            self.context.max_parallelism,
        )

    def _keys_of(self, cells: RowCells) -> Iterator[Any]:
        store = self._stores[cells.name]
        assert isinstance(store, RowStore)
        return filter(cells.holds, store.table.known_keys())

    def _open_columns(self, schema: StateSchema, arrays: Sequence[ColumnArray]) -> ColumnStore:
        assert self._keys is not None
        store = ColumnStore(schema, arrays, self._keys, self.context.max_parallelism)
        self._adopt(store, store.restore)
        return store

    def _open_panes(self, schema: StateSchema, values: pa.Schema) -> PaneStore:
        store = PaneStore(
            schema,
            values,
            self._keys,
            self.context.max_parallelism,
            lambda: self._writes_base(schema.name, store),
        )
        self._adopt(store, store.restore)
        return store

    def _adopt(self, store: Store, restore: Callable[[Sequence[StoredRows]], None]) -> None:
        for files in self._restored.pop(store.schema.name, ()):
            restore(files)
        self._stores[store.schema.name] = store

    def _stored_schema(self, name: str) -> StateSchema | None:
        return self._schemas.get(name)

    def _check_keys(self, *, in_memory: bool) -> None:
        if self._keys is None and (not in_memory or self.context.options.checkpoint_interval > 0):
            raise self._untyped_keys()

    def _untyped_keys(self) -> ProgramError:
        return ProgramError(
            f"operator {self.context.operator_name!r}: its keys are Python objects without a type, so its state cannot "
            f"be stored in a checkpoint. Give the key function a return type hint"
        )

    # ---- restore ----

    def restore(self, handles: Sequence[KeyedStateHandle], storage: CheckpointStorage) -> None:
        """Read what belongs to this subtask; a state takes its part when it is opened."""
        context = self.context
        if self._keys is None and handles:
            raise self._untyped_keys()
        times: list[EventClock] = []
        for handle in handles:
            self._check_schemas(handle)
            files: dict[str, list[StoredRows]] = {}
            for file in handle.files:
                stored = read(storage, file, context.key_groups, context.operator_name)
                files.setdefault(stored.name, []).append(stored)
            for name, rows in files.items():
                self._restored.setdefault(name, []).append(rows)
            marks = [rows[-1].marks for rows in files.values() if rows[-1].marks is not None]
            if marks:  # a state not declared in the last attempt has older marks
                newest = max(marks, key=lambda m: m.now_ms)
                times.append(EventClock(newest.now_ms, newest.first_ms))
        if len(handles) == 1 and handles[0].range == context.key_groups:
            for name, (rows,) in self._restored.items():
                self._chains[name] = tuple(r.file for r in rows)
        self.event_time = EventClock.of_all(times)
        for name, schema in self._schemas.items():
            self._stores[name] = _Undeclared(schema, self._restored.get(name, []))

    def _check_schemas(self, handle: KeyedStateHandle) -> None:
        for schema in handle.states:
            known = self._schemas.setdefault(schema.name, schema)
            if known.fingerprint != schema.fingerprint:
                raise StateCompatibilityError(
                    f"operator {self.context.operator_name!r} cannot restore state {schema.name!r}: it is "
                    f"{known.value} in one part of the checkpoint but {schema.value} in another"
                )

    # ---- checkpoints ----

    def snapshot(self, checkpoint_id: int) -> AsyncPart:
        if self._keys is None and self._stores:
            raise self._untyped_keys()
        parts: list[_Part] = []
        for name, store in self._stores.items():
            chain = self._chains.get(name, ())
            full = self.context.shares_nothing(checkpoint_id) or self._writes_base(name, store)
            parts.append(_Part(store, () if full else chain, full, store.freeze(checkpoint_id, full)))
        taken = _Snapshot(self, checkpoint_id, parts)
        self._pending[checkpoint_id] = taken
        return taken

    def _writes_base(self, name: str, store: Store) -> bool:
        """Whether the next checkpoint has all of a state instead of an increment."""
        chain = self._chains.get(name, ())
        if not chain or (isinstance(store, PaneStore) and store.needs_base):
            return True
        return not isinstance(store, _Undeclared) and _is_due_for_a_base(chain)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """The next increments build on this checkpoint; older ones are superseded."""
        taken = self._pending.get(checkpoint_id)
        for older in [c for c in self._pending if c <= checkpoint_id]:
            self._pending.pop(older).give_up()
        if taken is None or taken.files is None:
            return
        self._chains = dict(taken.files)
        for store in self._stores.values():
            store.complete(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The next checkpoint contains what this one would have had."""
        taken = self._pending.pop(checkpoint_id, None)
        if taken is not None:
            taken.give_up()

    @property
    def key_count(self) -> int:
        return sum(map(len, self._stores.values()))

    def close(self) -> None:
        for taken in self._pending.values():
            taken.give_up()
        self._pending.clear()
        self._open.clear()
        self._stores.clear()
        self._restored.clear()
        self.current_key = NO_KEY


class _Undeclared:
    """A state of the checkpoint that the program does not declare: its files are kept, or written again."""

    def __init__(self, schema: StateSchema, handles: list[list[StoredRows]]) -> None:
        self.schema = schema
        self._rows = [rows for files in handles for rows in files if rows.table.num_rows]

    def __len__(self) -> int:
        return sum(r.table.num_rows for r in self._rows)

    def freeze(self, checkpoint_id: int, full: bool) -> Callable[[], list[Encoded]]:
        """Every part as it was read; nothing if the files are kept."""
        if not full:
            return list
        return lambda: [as_read(r) for r in self._rows]

    def release(self, checkpoint_id: int) -> None:
        """Does nothing: it holds nothing."""

    def complete(self, checkpoint_id: int) -> None:
        """Does nothing: it never changes."""


class _Part:
    """One state in one snapshot."""

    def __init__(
        self, store: Store, chain: tuple[StateFile, ...], full: bool, rows: Callable[[], list[Encoded]]
    ) -> None:
        self.store = store
        self.chain = chain
        self.full = full
        self.rows = rows


class _Snapshot:
    """The asynchronous part of one checkpoint. It runs once, on another thread, unless it is given up before."""

    def __init__(self, backend: HeapBackend, checkpoint_id: int, parts: list[_Part]) -> None:
        self.files: dict[str, tuple[StateFile, ...]] | None = None
        """The files by state; set when all are written."""
        self._checkpoint_id = checkpoint_id
        self._backend = backend
        self._parts = parts
        self._turns = [True]
        """One element. The thread that pops it (atomically) writes the snapshot or gives it up."""

    def give_up(self) -> None:
        """It is not needed any more: if it has not started, it will not."""
        if self._is_first():
            self._release()

    def __call__(self, writer: SnapshotWriter) -> KeyedStateHandle:
        context = self._backend.context
        if not self._is_first():
            raise CheckpointError(
                f"operator {context.operator_name!r}: checkpoint {self._checkpoint_id} was given up before its "
                f"state was written"
            )
        try:
            files: dict[str, tuple[StateFile, ...]] = {}
            bytes_new = 0
            for i, part in enumerate(self._parts):
                schema = part.store.schema
                written = [
                    writer.write(f"{_slug(schema.name)}-{i}-{j}.parquet", to_parquet(*rows))
                    for j, rows in enumerate(part.rows())
                ]
                bytes_new += sum(f.size for f in written)
                files[schema.name] = (*part.chain, *written)
        finally:
            self._release()
        self.files = files
        return KeyedStateHandle(
            backend=self._backend.name,
            key_groups=(context.key_groups.start, context.key_groups.end),
            states=tuple(p.store.schema for p in self._parts),
            files=tuple(f for chain in files.values() for f in chain),
            bytes_new=bytes_new,
        )

    def _is_first(self) -> bool:
        try:
            self._turns.pop()
        except IndexError:
            return False
        return True

    def _release(self) -> None:
        for part in self._parts:
            part.store.release(self._checkpoint_id)


def _is_due_for_a_base(chain: tuple[StateFile, ...]) -> bool:
    increments = chain[1:]
    return len(increments) >= _MOST_INCREMENTS or sum(f.size for f in increments) > chain[0].size


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:60]


def _kept_form(declared: DeclaredState) -> KeptForm:
    """Values as they are, copied if mutable; those of an opt-in serializer as its bytes."""
    values, keys = declared.values, declared.map_keys
    release: Callable[[Any], Any] | None = values.copier
    if values.name != "arrow" or (declared.is_list and release is not None):  # an element may be None
        release = values.release
    if keys is None:
        return KeptForm(values, release)
    return KeptForm(values, release, MapKeyForm(keys.adopt, None, keys.plain_class, keys.fits, keys.check))
