"""Keyed state in RocksDB: one database per operator subtask, with write-back caches in front of it.

    tables           changes in memory, the rest in the database         rows: values, lists, maps; columns, panes
    write-back       how changes get into the database                   write_back
    files            what of the database is stored in checkpoints       files, restore

The synchronous part of a snapshot only freezes the changes. The asynchronous part writes them, makes a local checkpoint
of hard links, and uploads the SST files that no completed checkpoint has.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from tidegate.core.errors import ProgramError
from tidegate.snapshot.handles import KeyedStateHandle, StateSchema
from tidegate.state.backend import NO_WATERMARK, AsyncPart, BackendContext, ColumnArray, EventClock
from tidegate.state.cells import DeclaredState, KeptForm
from tidegate.state.layered_backend import LayeredBackend, RowCells
from tidegate.state.rocksdb.columns import RocksDBColumnTable
from tidegate.state.rocksdb.database import Database, Entry
from tidegate.state.rocksdb.files import CheckpointFiles, Memo
from tidegate.state.rocksdb.key_bytes import EntryKeys
from tidegate.state.rocksdb.lists import ListTable, PartLists
from tidegate.state.rocksdb.maps import MapTable, map_key_form
from tidegate.state.rocksdb.memory import RocksDBMemory
from tidegate.state.rocksdb.panes import RocksDBPaneTable
from tidegate.state.rocksdb.restore import restore_database
from tidegate.state.rocksdb.rows import CellBytes, StoredTable, TableContext
from tidegate.state.rocksdb.stored_keys import StoredKeys
from tidegate.state.rocksdb.values import ValueTable
from tidegate.state.rocksdb.write_back import FrozenWrites, WriteBack
from tidegate.storage.storage import CheckpointStorage, SnapshotWriter

_MOST_STATES: Final = 254
_SCANNED_FOR_EXPIRY: Final = 10_000
"""How many entries of each state with a time to live a checkpoint scans."""


class RocksDBBackend(LayeredBackend):
    """The keyed state of one operator subtask in RocksDB."""

    name = "rocksdb"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._memory = RocksDBMemory.shared(context.options.rocksdb_memory)
        self._memory.join()
        self._directory = tempfile.mkdtemp(prefix="rocksdb-", dir=context.local_directory())
        self._schemas: list[StateSchema] = []
        self._restored_states = 0
        self._tables: dict[str, StoredTable] = {}
        self._files = CheckpointFiles()
        self._frozen: dict[int, FrozenWrites] = {}
        self._open_database: Database | None = None
        self._open_write_back: WriteBack | None = None
        self._list_sequence = 0

    # ---- states ----

    def _open_table(self, declared: DeclaredState) -> tuple[KeptForm, ValueTable | MapTable]:
        context, clock, keys = self._table_context(declared.schema), declared.clock, declared.map_keys
        cells = CellBytes(declared.values, has_ttl=clock is not None, always_bytes=keys is not None)
        table = (ValueTable if keys is None else MapTable)(context, clock, cells)
        self._tables[declared.schema.name] = table
        return KeptForm(cells.adopter, cells.release, None if keys is None else map_key_form(keys)), table

    def _open_lists(self, declared: DeclaredState) -> PartLists:
        elements = CellBytes(declared.values, has_ttl=False, always_bytes=True)
        table = ListTable(self._table_context(declared.schema), declared.clock, self._next_list_sequence)
        self._tables[declared.schema.name] = table
        return PartLists(declared, KeptForm(elements.adopter, elements.release), table)

    def _keys_of(self, cells: RowCells) -> Iterator[Any]:
        """The keys of the entries in the database, to which all changes are written first."""
        table = self._tables[cells.name]
        _, write_back = self._opened_database()
        write_back.spill()
        keys = StoredKeys(self.context.key_type).of_entries(entry for entry, _ in table.context.entries())
        return keys if table.is_exact and table.clock is None else filter(cells.holds, keys)

    def _open_columns(self, schema: StateSchema, arrays: Sequence[ColumnArray]) -> RocksDBColumnTable:
        return RocksDBColumnTable(self._table_context(schema), arrays)

    def _open_panes(self, schema: StateSchema, values: pa.Schema) -> RocksDBPaneTable:
        return RocksDBPaneTable(self._table_context(schema), self.context.key_type, values)

    def _stored_schema(self, name: str) -> StateSchema | None:
        return next((s for s in self._schemas if s.name == name), None)

    def _table_context(self, schema: StateSchema) -> TableContext:
        """Find the state's id, or assign one."""
        names = [s.name for s in self._schemas]
        if schema.name not in names:
            if len(names) == _MOST_STATES:
                raise ProgramError(
                    f"operator {self.context.operator_name!r}: more than {_MOST_STATES} keyed states"
                )
            names.append(schema.name)
            self._schemas.append(schema)
        state_id = names.index(schema.name) + 1
        database, write_back = self._opened_database()
        return TableContext(
            database=database,
            write_back=write_back,
            entry_keys=EntryKeys(state_id, self.context.max_parallelism),
            key_groups=self.context.key_groups,
            memory_bytes=self._bytes_per_state,
            is_empty=state_id > self._restored_states,
        )

    def _check_keys(self, *, in_memory: bool) -> None:
        if self.context.key_type.is_object:
            raise ProgramError(
                f"operator {self.context.operator_name!r}: its keys have no type, so they cannot be stored. Give the "
                f"key function a return type (`def user(event) -> str`), or key by columns"
            )

    def _bytes_per_state(self) -> int:
        return self._memory.write_back_bytes // max(1, len(self._open))

    def _next_list_sequence(self) -> int:
        self._list_sequence += 1
        return self._list_sequence

    def _opened_database(self) -> tuple[Database, WriteBack]:
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
        """Open the database of a checkpoint, or merge it from several."""
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
        self.event_time = EventClock.of_all([_event_time_of(memo) for memo in restored.memos])

    def snapshot(self, checkpoint_id: int) -> AsyncPart:
        """Freeze the changes; the result writes them and uploads new files."""
        _, write_back = self._opened_database()
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
            return KeyedStateHandle(self.name, (groups.start, groups.end), schemas, files, bytes_new)

        return write

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Later checkpoints may refer to the files of this one."""
        self._files.completed(checkpoint_id)
        for earlier in [i for i in self._frozen if i <= checkpoint_id]:
            self._frozen.pop(earlier).discard_checkpoint()

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Nothing refers to the files of this one; its changes stay in the database."""
        self._files.aborted(checkpoint_id)
        frozen = self._frozen.pop(checkpoint_id, None)
        if frozen is not None:
            frozen.discard_checkpoint()

    def _clean_up(self) -> Callable[[], Iterable[Entry]] | None:
        """A function that removes expired entries after the changes are written; None if nothing expires.

        It uses the time of the barrier: what expires later still belongs to this checkpoint, and the live state may
        build on it, for example by adding to a list.
        """
        expiring = [(t, t.clock.now()) for t in self._tables.values() if t.clock is not None]
        if not expiring:
            return None
        return lambda: chain.from_iterable(
            table.expired_entries(_SCANNED_FOR_EXPIRY, now_ms) for table, now_ms in expiring
        )

    # ---- the rest ----

    @property
    def key_count(self) -> int:
        """Roughly the number of entries in the database; entries that are only in memory do not count."""
        return 0 if self._open_database is None else self._open_database.key_count

    def close(self) -> None:
        """Close the database; its directory is removed with the slot."""
        self._memory.leave()
        if self._open_write_back is not None:
            self._open_write_back.close()
        if self._open_database is not None:
            self._open_database.close()
            self._open_database = self._open_write_back = None
        self._tables.clear()
        self._open.clear()


def _event_time_of(memo: Memo) -> EventClock:
    return EventClock(
        NO_WATERMARK if memo.watermark_ms is None else memo.watermark_ms,
        NO_WATERMARK if memo.first_watermark_ms is None else memo.first_watermark_ms,
    )
