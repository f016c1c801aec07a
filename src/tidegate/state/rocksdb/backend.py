"""Keyed state in RocksDB: one database per operator subtask, with write-back caches in front of it.

    live states      changes in memory, the rest in the database         values, lists, maps, columns, panes
    write-back       how changes get into the database                   write_back
    files            what of the database is stored in checkpoints       checkpoint_files, restore

The synchronous part of a snapshot only freezes the changes; the asynchronous part writes them, makes a checkpoint of
hard links, and uploads the SST files that no completed checkpoint has.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from tidegate.api.state import (
    AggregatingState,
    KeyedState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from tidegate.core.errors import ProgramError
from tidegate.snapshot.handles import KeyedStateHandle, StateSchema
from tidegate.state.backend import (
    NO_WATERMARK,
    AsyncPart,
    BackendContext,
    ColumnArray,
    ColumnTable,
    EventTime,
    KeyedStateBackend,
    PaneTable,
)
from tidegate.state.fingerprints import check_compatible, column_schema, pane_schema, state_schema
from tidegate.state.rocksdb.checkpoint_files import CheckpointFiles, Memo
from tidegate.state.rocksdb.columns import RocksDBColumnTable
from tidegate.state.rocksdb.database import Database, Entry
from tidegate.state.rocksdb.key_bytes import EntryKeys
from tidegate.state.rocksdb.lists import RocksDBListState
from tidegate.state.rocksdb.maps import RocksDBMapState
from tidegate.state.rocksdb.memory import RocksDBMemory
from tidegate.state.rocksdb.panes import RocksDBPaneTable
from tidegate.state.rocksdb.restore import restore_database
from tidegate.state.rocksdb.state_store import GenerationStore, StateContext
from tidegate.state.rocksdb.stored_keys import StoredKeys
from tidegate.state.rocksdb.values import RocksDBAggregatingState, RocksDBReducingState, live_value_state
from tidegate.state.rocksdb.write_back import FrozenWrites, WriteBack
from tidegate.state.serializers import KeySerializer, ValueSerializer, map_key_serializer, value_serializer
from tidegate.state.ttl import TtlClock
from tidegate.storage.storage import CheckpointStorage, SnapshotWriter

_MOST_STATES: Final = 254
_SCANNED_FOR_EXPIRY: Final = 10_000
"""Entries of each state with a time to live that a checkpoint looks through."""


class RocksDBBackend(KeyedStateBackend):
    """The keyed state of one operator subtask in RocksDB."""

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._memory = RocksDBMemory.shared(context.options.rocksdb_memory)
        self._memory.join()
        self._directory = tempfile.mkdtemp(prefix="rocksdb-", dir=context.local_directory())
        self._schemas: list[StateSchema] = []
        self._restored_states = 0
        self._live: dict[str, Any] = {}
        self._files = CheckpointFiles()
        self._frozen: dict[int, FrozenWrites] = {}
        self._open_database: Database | None = None
        self._open_write_back: WriteBack | None = None
        self._list_sequence = 0

    # ---- states ----

    def state(self, declaration: KeyedState) -> KeyedState:
        """The live state of a declaration."""
        self.claimed.add(declaration.name)
        self._refuse_untyped_keys()
        operator, name = self.context.operator_name, declaration.name
        is_map = isinstance(declaration, MapState)
        values = value_serializer(
            operator,
            name,
            declaration.value_type if is_map else declaration.type,  # type: ignore[attr-defined]
            declaration.serializer,
            optional=isinstance(declaration, ListState),
        )
        map_keys = map_key_serializer(operator, name, declaration.key_type) if is_map else None  # type: ignore[attr-defined]
        schema = state_schema(declaration, self.context.key_type, values, map_keys)
        context = self._state_context(schema, declaration)
        if name not in self._live:
            self._live[name] = self._make_live(declaration, context, values, map_keys)
        live: KeyedState = self._live[name]
        return live

    def _make_live(
        self,
        declaration: KeyedState,
        context: StateContext,
        values: ValueSerializer,
        map_keys: KeySerializer | None,
    ) -> KeyedState:
        if isinstance(declaration, ValueState):
            return live_value_state(declaration, context, values)
        if isinstance(declaration, ReducingState):
            return RocksDBReducingState(declaration, context, values)
        if isinstance(declaration, AggregatingState):
            return RocksDBAggregatingState(declaration, context, values)
        if isinstance(declaration, ListState):
            return RocksDBListState(declaration, context, values, self._next_list_sequence)
        if isinstance(declaration, MapState) and map_keys is not None:
            return RocksDBMapState(declaration, context, map_keys, values)
        raise ProgramError(
            f"operator {self.context.operator_name!r}: state {declaration.name!r} is of no known kind: "
            f"{type(declaration).__name__}"
        )

    def keys(self, name: str) -> Iterator[Any]:
        """The keys that have something in a row state; all changes go to the database first."""
        live = self._live[name]
        assert isinstance(live, GenerationStore), f"state {name!r} has no rows"
        _, write_back = self._opened()
        write_back.spill()
        keys = StoredKeys(self.context.key_type).of_entries(live.stored_entries())
        return (key for key in keys if self._holds(live, key))

    def _holds(self, live: GenerationStore, key: Any) -> bool:
        before, self.current_key = self.current_key, key
        try:
            return live.holds_current()
        finally:
            self.current_key = before

    def columns(self, name: str, arrays: Sequence[ColumnArray]) -> ColumnTable:
        """The live column table of this name."""
        self.claimed.add(name)
        self._refuse_untyped_keys()
        schema = column_schema(name, self.context.key_type, [(a.name, a.type_name) for a in arrays])
        context = self._state_context(schema, None)
        if name not in self._live:
            self._live[name] = RocksDBColumnTable(
                context.database,
                context.write_back,
                context.entry_keys,
                arrays,
                context.memory_bytes,
                context.is_empty,
            )
        table: ColumnTable = self._live[name]
        return table

    def panes(self, name: str, values: pa.Schema) -> PaneTable:
        """The live pane table of this name."""
        self.claimed.add(name)
        self._refuse_untyped_keys()
        context = self._state_context(pane_schema(name, self.context.key_type, values), None)
        if name not in self._live:
            self._live[name] = RocksDBPaneTable(context, values)
        table: PaneTable = self._live[name]
        return table

    def _state_context(self, schema: StateSchema, declaration: KeyedState | None) -> StateContext:
        """Find or give the state's id; refuse one of another type."""
        names = [s.name for s in self._schemas]
        if schema.name in names:
            state_id = names.index(schema.name) + 1
            known = self._schemas[state_id - 1]
            if schema.name in self._live and known.fingerprint != schema.fingerprint:
                raise ProgramError(
                    f"operator {self.context.operator_name!r} declares two states named {schema.name!r}: {known.kind} "
                    f"of {known.value}, and {schema.kind} of {schema.value}. Give one of them another name="
                )
            check_compatible(self.context.operator_name, known, schema)
        else:
            if len(names) == _MOST_STATES:
                raise ProgramError(
                    f"operator {self.context.operator_name!r}: more than {_MOST_STATES} keyed states"
                )
            state_id = len(names) + 1
            self._schemas.append(schema)
        ttl = None if declaration is None else declaration.ttl
        database, write_back = self._opened()
        return StateContext(
            backend=self,
            database=database,
            write_back=write_back,
            entry_keys=EntryKeys(state_id, self.context.max_parallelism),
            state_name=schema.name,
            expiry=None if ttl is None else TtlClock(ttl, self.context.clock, self.event_time),
            memory_bytes=self._bytes_per_state,
            is_empty=state_id > self._restored_states,
        )

    def _refuse_untyped_keys(self) -> None:
        if self.context.key_type.is_object:
            raise ProgramError(
                f"operator {self.context.operator_name!r}: its keys have no type, so they cannot be stored. Give the "
                f"key function a return type (`def user(event) -> str`), or key by columns"
            )

    def _bytes_per_state(self) -> int:
        return self._memory.write_back_bytes // max(1, len(self._live))

    def _next_list_sequence(self) -> int:
        self._list_sequence += 1
        return self._list_sequence

    def _opened(self) -> tuple[Database, WriteBack]:
        if self._open_database is None or self._open_write_back is None:
            self._use(
                Database(
                    os.path.join(self._directory, "db"),
                    self._memory,
                    f"operator {self.context.operator_name!r}",
                )
            )
        assert self._open_database is not None
        assert self._open_write_back is not None
        return self._open_database, self._open_write_back

    def _use(self, database: Database) -> None:
        self._open_database = database
        self._open_write_back = WriteBack(database)

    # ---- checkpoints ----

    def restore(self, handles: Sequence[KeyedStateHandle], storage: CheckpointStorage) -> None:
        """Open the database of a checkpoint, or put it together from several."""
        restored = restore_database(
            self.context.operator_name,
            handles,
            storage,
            self.context.key_groups,
            self._directory,
            self._memory,
        )
        if restored is None:
            return
        self._use(restored.database)
        self._schemas = restored.schemas
        self._restored_states = len(restored.schemas)
        self._files.restored(restored.files)
        self._list_sequence = max(memo.list_sequence for memo in restored.memos)
        self.event_time = EventTime.of_all([_event_time_of(memo) for memo in restored.memos])

    def snapshot(self, checkpoint_id: int) -> AsyncPart:
        """Freeze the changes; the result writes them and uploads what is new."""
        _, write_back = self._opened()
        frozen = write_back.freeze(self._clean_up())
        frozen.want_checkpoint(os.path.join(self._directory, f"checkpoint-{checkpoint_id}"))
        self._frozen[checkpoint_id] = frozen
        watermark, first = self.event_time.now_ms, self.event_time.first_ms
        memo = Memo(
            self._list_sequence,
            None if watermark == NO_WATERMARK else watermark,
            None if first == NO_WATERMARK else first,
        )
        schemas = tuple(self._schemas)
        groups = self.context.key_groups
        full = self.context.shares_nothing(checkpoint_id)

        def write(writer: SnapshotWriter) -> KeyedStateHandle:
            try:
                path = frozen.checkpoint_path()
                files, bytes_new = self._files.upload(checkpoint_id, path, memo, writer, full=full)
            finally:
                frozen.discard_checkpoint()
            return KeyedStateHandle("rocksdb", (groups.start, groups.end), schemas, files, bytes_new)

        return write

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Later checkpoints refer to this one's files."""
        self._files.completed(checkpoint_id)
        for earlier in [i for i in self._frozen if i <= checkpoint_id]:
            self._frozen.pop(earlier).discard_checkpoint()

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Nothing refers to this one's files; its changes stay changes of the database."""
        self._files.aborted(checkpoint_id)
        frozen = self._frozen.pop(checkpoint_id, None)
        if frozen is not None:
            frozen.discard_checkpoint()

    def _clean_up(self) -> Callable[[], Iterable[Entry]] | None:
        """What removes expired entries once the changes are written; None where nothing expires.

        It goes by the time of the barrier: what expires later is not gone yet in this checkpoint, and the live state
        may build on it, as an element that is added to a list does.
        """
        expiring = [
            (live, live.expiry.now())
            for live in self._live.values()
            if isinstance(live, GenerationStore) and live.expiry is not None
        ]
        if not expiring:
            return None
        return lambda: chain.from_iterable(
            live.expired_entries(_SCANNED_FOR_EXPIRY, now_ms) for live, now_ms in expiring
        )

    # ---- the rest ----

    @property
    def key_count(self) -> int:
        """About how many entries the database has; what is still in memory only is not counted."""
        return 0 if self._open_database is None else self._open_database.key_count

    def close(self) -> None:
        """Close the database; its directory goes with the slot."""
        self._memory.leave()
        if self._open_write_back is not None:
            self._open_write_back.close()
        if self._open_database is not None:
            self._open_database.close()
            self._open_database = self._open_write_back = None
        self._live.clear()


def _event_time_of(memo: Memo) -> EventTime:
    return EventTime(
        NO_WATERMARK if memo.watermark_ms is None else memo.watermark_ms,
        NO_WATERMARK if memo.first_watermark_ms is None else memo.first_watermark_ms,
    )
