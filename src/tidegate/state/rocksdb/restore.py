"""Opens a database with the key groups of the subtask from the handles of a checkpoint.

The handle that has most of them is downloaded and opened as it is; key groups of other subtasks are deleted from it by
range. So with the same or a larger parallelism nothing is copied, and the next checkpoint refers to the restored files.
From further handles, the entries of this subtask are copied one by one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidegate.core.errors import CheckpointError
from tidegate.core.key_groups import KeyGroupRange
from tidegate.snapshot.handles import KeyedStateHandle, StateFile, StateSchema
from tidegate.state.fingerprints import check_compatible
from tidegate.state.rocksdb.database import Database, Entry, RocksDBError
from tidegate.state.rocksdb.files import Memo, download
from tidegate.state.rocksdb.key_bytes import group_start, state_of_entry, with_state
from tidegate.state.rocksdb.memory import RocksDBMemory
from tidegate.storage.storage import CheckpointStorage


@dataclass(frozen=True)
class RestoredDatabase:
    """An open database and the facts about it."""

    database: Database
    schemas: list[StateSchema]
    """By state id, from 1."""
    files: Mapping[str, StateFile]
    """The stored file of each local one."""
    memos: Sequence[Memo]
    """One of each handle."""


def restore_database(
    operator: str,
    handles: Sequence[KeyedStateHandle],
    storage: CheckpointStorage,
    key_groups: KeyGroupRange,
    directory: str,
    memory: RocksDBMemory,
) -> RestoredDatabase | None:
    """The database of these key groups in `directory`/db; None if no handle has any of them."""
    overlapping = [h for h in handles if len(h.range.intersection(key_groups))]
    if not overlapping:
        return None
    base, *others = sorted(overlapping, key=lambda h: -len(h.range.intersection(key_groups)))
    path = os.path.join(directory, "db")
    index, files = download(base, storage, path)
    database = _open(path, base, memory, operator)
    try:
        _delete_foreign(database, base.range, key_groups)
        schemas = list(base.states)
        memos = [index.memo]
        for i, other in enumerate(others):
            other_path = os.path.join(directory, f"restore-{i}")
            other_index, _ = download(other, storage, other_path)
            memos.append(other_index.memo)
            state_ids = _merge_schemas(operator, schemas, other.states)
            source = _open(other_path, other, memory, operator)
            try:
                database.write(_translated(source, other.range.intersection(key_groups), state_ids))
            finally:
                source.close()
                shutil.rmtree(other_path, ignore_errors=True)
    except BaseException:
        database.close()
        raise
    return RestoredDatabase(database, schemas, files, memos)


def _open(path: str, handle: KeyedStateHandle, memory: RocksDBMemory, operator: str) -> Database:
    try:
        return Database(path, memory, f"operator {operator!r}")
    except RocksDBError as e:
        stored = handle.files[-1].path
        raise CheckpointError(
            f"operator {operator!r} cannot restore key groups {handle.range}: RocksDB does not open the files that "
            f"{stored} lists: {e}"
        ) from e


def _delete_foreign(database: Database, stored: KeyGroupRange, wanted: KeyGroupRange) -> None:
    if stored.start < wanted.start:
        database.delete_range(group_start(stored.start), group_start(wanted.start))
    if stored.end > wanted.end:
        database.delete_range(group_start(wanted.end + 1), group_start(stored.end + 1))


def _merge_schemas(
    operator: str, schemas: list[StateSchema], others: Sequence[StateSchema]
) -> dict[int, int]:
    """Map the state ids of another database to those of this one."""
    ids = {schema.name: i for i, schema in enumerate(schemas, 1)}
    translation: dict[int, int] = {}
    for other_id, schema in enumerate(others, 1):
        if schema.name not in ids:
            schemas.append(schema)
            ids[schema.name] = len(schemas)
        check_compatible(operator, schema, schemas[ids[schema.name] - 1])
        translation[other_id] = ids[schema.name]
    return translation


def _translated(source: Database, key_groups: KeyGroupRange, state_ids: dict[int, int]) -> Iterator[Entry]:
    same = all(theirs == ours for theirs, ours in state_ids.items())
    entries = source.scan(group_start(key_groups.start), group_start(key_groups.end + 1))
    if same:
        yield from entries
        return
    for key, value in entries:
        yield with_state(key, state_ids[state_of_entry(key)]), value
