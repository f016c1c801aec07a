# Lambdas here are called where they stand.
# ruff: noqa: B023

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.contract.state_backend_kit import Subtask
from tests.unit.rocksdb_kit import RocksDBSubtasks
from tidegate.api.state import ListState, MapState, ValueState
from tidegate.core.errors import CheckpointError, ProgramError
from tidegate.core.key_groups import KeyGroupRange
from tidegate.keys.hashing import hash_value
from tidegate.snapshot.handles import KeyedStateHandle, StateFile
from tidegate.state.backend import ColumnArray
from tidegate.state.rocksdb.database import RocksDBError
from tidegate.storage.storage import CorruptFileError, StorageError

COUNT = [ColumnArray("count", np.dtype(np.int64), 0)]
LOWER, UPPER = KeyGroupRange(0, 63), KeyGroupRange(64, 127)


@pytest.fixture
def subtasks(tmp_path: Path) -> Iterator[RocksDBSubtasks]:
    made = RocksDBSubtasks(tmp_path)
    yield made
    made.close()


def _add(table: Any, keys: Any) -> None:
    ids, _, (totals,) = table.begin([pa.array(keys)])
    np.add.at(totals, ids, 1)
    table.commit()


def _totals(table: Any, keys: Any) -> list[int]:
    ids, _, (totals,) = table.begin([pa.array(keys)])
    return [int(t) for t in totals[ids]]


def _tables(handle: KeyedStateHandle) -> set[StateFile]:
    return {f for f in handle.files if f.path.endswith(".sst")}


def _local_checkpoints(subtasks: RocksDBSubtasks) -> list[Path]:
    return list(subtasks.directory.glob("*/*/checkpoint-*"))


@pytest.mark.parametrize("which", ["any", "neighbours"])
def test_sixty_checkpoints_after_one_percent_of_changes_write_at_most_three_percent_each(
    subtasks: RocksDBSubtasks, which: str
) -> None:
    rng = np.random.default_rng(1)
    # Little memory, so that loading the keys leaves several sorted runs.
    task = subtasks.open(rocksdb_memory="16 mb")
    table = task.backend.columns("count", COUNT)
    keys = rng.integers(0, 2**62, 200_000)
    for start in range(0, len(keys), 65_536):
        _add(table, keys[start : start + 65_536])
    handle = task.checkpoint(1)
    _settle(task, 2)
    parts = []
    for number in range(60):
        if which == "any":
            changed = rng.choice(keys, 2_000, replace=False)
        else:
            changed = np.sort(keys)[2_000 * number : 2_000 * (number + 1)]
        _add(table, changed)
        before, handle = handle, task.checkpoint(100 + number)
        parts.append(handle.bytes_new / before.bytes_full)
    assert max(parts) <= 0.03, parts


def _settle(task: Subtask, checkpoint_id: int) -> None:
    """Checkpoints without changes until one writes no table: what the load has left to merge is merged."""
    known: set[StateFile] = set()
    for number in range(checkpoint_id, checkpoint_id + 80):
        tables = _tables(task.checkpoint(number))
        if tables == known and len(tables) == 1:
            return
        known = tables
        time.sleep(0.02)
    raise AssertionError(f"the load is still in {len(known)} sorted runs")


def test_over_many_checkpoints_the_rewriting_of_the_whole_is_rare(subtasks: RocksDBSubtasks) -> None:
    rng = np.random.default_rng(2)
    task = subtasks.open()
    table = task.backend.columns("count", COUNT)
    keys = rng.integers(0, 2**62, 150_000)
    for start in range(0, len(keys), 65_536):
        _add(table, keys[start : start + 65_536])
    handle = task.checkpoint(1)
    parts = []
    for checkpoint in range(2, 202):
        _add(table, rng.choice(keys, 1_500, replace=False))
        before, handle = handle, task.checkpoint(checkpoint)
        parts.append(handle.bytes_new / before.bytes_full)
    assert sum(parts) / len(parts) <= 0.03
    assert sum(part > 0.05 for part in parts) <= 8


def test_an_increment_refers_to_the_files_of_a_completed_checkpoint_only(subtasks: RocksDBSubtasks) -> None:
    task = subtasks.open()
    state = task.state(ValueState(int))
    task.at(1, lambda: state.update(1))
    first = task.checkpoint(1)
    task.at(2, lambda: state.update(2))
    aborted = task.checkpoint(2, complete=False)
    task.at(3, lambda: state.update(3))
    third = task.checkpoint(3)
    assert _tables(first) < _tables(third)
    assert not (_tables(aborted) - _tables(first)) & _tables(third)
    assert _tables(task.checkpoint(4)) == _tables(third)
    assert third.bytes_new < third.bytes_full


def test_files_are_named_by_their_content(subtasks: RocksDBSubtasks) -> None:
    task = subtasks.open()
    state = task.state(ValueState(int))
    task.at(1, lambda: state.update(1))
    (file,) = _tables(task.checkpoint(1))
    name = file.path.rpartition("-")[2].removesuffix(".sst")
    assert file.checksum.startswith(f"sha256:{name}")


def test_local_checkpoints_are_removed_whatever_happens(subtasks: RocksDBSubtasks) -> None:
    task = subtasks.open()
    state = task.state(ValueState(int))
    task.at(1, lambda: state.update(1))
    task.checkpoint(1)
    assert _local_checkpoints(subtasks) == []
    task.at(2, lambda: state.update(2))
    failing = task.begin_checkpoint(2)
    subtasks.storage.refuse = True
    with pytest.raises(StorageError, match="disk is full"):
        failing()
    subtasks.storage.refuse = False
    assert _local_checkpoints(subtasks) == []
    task.at(3, lambda: state.update(3))
    task.begin_checkpoint(3)  # its asynchronous part never runs: the next snapshot does the first half of it
    fourth = task.begin_checkpoint(4)
    assert len(_local_checkpoints(subtasks)) == 1
    task.backend.checkpoint_aborted(3)
    assert _local_checkpoints(subtasks) == []
    restored = subtasks.open(restore=[fourth()])
    again = restored.state(ValueState(int))
    assert [restored.at(k, again.value) for k in (1, 2, 3)] == [1, 2, 3]
    assert _local_checkpoints(subtasks) == []


def test_a_full_store_writes_what_a_slow_checkpoint_has_not_written_yet(subtasks: RocksDBSubtasks) -> None:
    """The snapshot must hold the values of its moment, although newer ones reach the database before it is uploaded."""
    task = subtasks.open(rocksdb_memory="8 MiB")
    state = task.state(ValueState(str))
    for key in range(2_000):
        task.at(key, lambda: state.update("before"))
    write = task.begin_checkpoint(1)
    for key in range(60_000):
        task.at(key, lambda: state.update("after"))
    assert task.backend.key_count > 2_000, "changes must have been written to the database by now"
    restored = subtasks.open(restore=[write()])
    again = restored.state(ValueState(str))
    found = [restored.at(key, again.value) for key in range(3_000)]
    assert found == ["before"] * 2_000 + [None] * 1_000
    assert task.at(5, state.value) == "after"


def test_state_may_be_larger_than_the_memory_bound(subtasks: RocksDBSubtasks) -> None:
    task = subtasks.open(rocksdb_memory="8 MiB")
    text = task.state(ValueState(str, name="text"))
    items = task.state(ListState(str, name="items"))
    entries = task.state(MapState(str, str, name="entries"))
    table = task.backend.columns("count", COUNT)
    for key in range(3_000):
        value = f"{key}-" + "x" * 5_000
        task.at(key, lambda v=value: (text.update(v), items.add(v[:2_000]), entries.put("a", v[:2_000])))
    for _ in range(3):
        for start in range(0, 200_000, 20_000):
            _add(table, np.arange(start, start + 20_000))
    texts = task.backend._tables["text"]  # type: ignore[attr-defined]
    assert len(texts.changed) + len(texts.clean) < 1_500
    assert len(table._index) < 100_000  # type: ignore[attr-defined]
    restored = subtasks.open(restore=[task.checkpoint(1)], rocksdb_memory="8 MiB")
    again = restored.state(ValueState(str, name="text"))
    for t, state in ((task, text), (restored, again)):
        assert all(t.at(k, state.value) == f"{k}-" + "x" * 5_000 for k in range(0, 3_000, 7))
    assert task.at(2_999, items.get) == ["2999-" + "x" * 1_995]
    assert task.at(0, lambda: dict(entries.items())) == {"a": "0-" + "x" * 1_998}
    assert _totals(restored.backend.columns("count", COUNT), np.arange(0, 200_000, 1_000)) == [3] * 200


def _states(task: Subtask) -> tuple[Any, Any, Any, Any]:
    return (
        task.state(ValueState(int, name="value")),
        task.state(ListState(int, name="items")),
        task.state(MapState(str, int, name="entries")),
        task.backend.columns("count", COUNT),
    )


def test_restore_at_double_and_half_keeps_every_kind_of_state(subtasks: RocksDBSubtasks) -> None:
    keys = list(range(500))
    whole = subtasks.open()
    value, items, entries, table = _states(whole)
    for key in keys:
        whole.at(key, lambda k=key: (value.update(k), items.add_all([k, k]), entries.put("e", k)))
    _add(table, keys)
    handle = whole.checkpoint(1)
    halves = []
    for groups in (LOWER, UPPER):
        half = subtasks.open(key_groups=groups, restore=[handle])
        # Other ids for the same states: the first half declares them in another order.
        if groups is LOWER:
            extra = half.state(ValueState(str, name="extra"))
        value, items, entries, table = _states(half)
        mine = [k for k in keys if hash_value(k) % 128 in groups]
        for key in mine:
            assert half.at(key, lambda: (value.value(), items.get(), dict(entries.items()))) == (
                key,
                [key, key],
                {"e": key},
            )
            half.at(key, lambda k=key: items.add(-k))
            if groups is LOWER:
                half.at(key, lambda k=key: extra.update(f"extra {k}"))
        others = [k for k in keys if k not in mine]
        assert {half.at(k, value.value) for k in others} == {None}
        assert set(_totals(table, mine)) == {1}
        assert set(_totals(table, others)) == {0}
        halves.append(half.checkpoint(2))
    again = subtasks.open(restore=halves)
    value, items, entries, table = _states(again)
    for key in keys:
        assert again.at(key, lambda: (value.value(), items.get(), entries.get("e"))) == (
            key,
            [key, key, -key],
            key,
        )
    extra = again.state(ValueState(str, name="extra"))
    lower = [k for k in keys if hash_value(k) % 128 in LOWER]
    assert [again.at(k, extra.value) for k in lower] == [f"extra {k}" for k in lower]
    assert _totals(table, keys) == [1] * 500


def test_states_with_other_ids_are_copied_under_their_names(subtasks: RocksDBSubtasks) -> None:
    handles = []
    for groups, names in ((LOWER, ["one", "two"]), (UPPER, ["two", "one"])):
        task = subtasks.open(key_groups=groups)
        states = {name: task.state(ValueState(str, name=name)) for name in names}
        for key in (k for k in range(200) if hash_value(k) % 128 in groups):
            for name, state in states.items():
                task.at(key, lambda s=state, n=name: s.update(n))
        handles.append(task.checkpoint(1))
    whole = subtasks.open(restore=handles)
    for name in ("one", "two"):
        state = whole.state(ValueState(str, name=name))
        assert {whole.at(k, state.value) for k in range(200)} == {name}


def test_a_larger_parallelism_refers_to_the_restored_files(subtasks: RocksDBSubtasks) -> None:
    whole = subtasks.open()
    state = whole.state(ValueState(int))
    for key in range(20_000):
        whole.at(key, lambda k=key: state.update(k * 7919))
    handle = whole.checkpoint(1)
    half = subtasks.open(key_groups=LOWER, restore=[handle])
    half.state(ValueState(int))
    second = half.checkpoint(2)
    assert _tables(handle) <= _tables(second)
    assert second.bytes_new < handle.bytes_full / 10


def test_a_damaged_file_is_named_before_anything_is_restored(subtasks: RocksDBSubtasks) -> None:
    task = subtasks.open()
    state = task.state(ValueState(int))
    task.at(1, lambda: state.update(1))
    handle = task.checkpoint(1)
    for file in handle.files:
        content = subtasks.storage.files[file.path]
        subtasks.storage.files[file.path] = content[:-1] + bytes([content[-1] ^ 1])
        with pytest.raises(CorruptFileError, match=file.path):
            subtasks.open(restore=[handle])
        subtasks.storage.files[file.path] = content


def test_files_that_rocksdb_does_not_open_are_named(subtasks: RocksDBSubtasks, tmp_path: Path) -> None:
    task = subtasks.open()
    state = task.state(ValueState(int))
    task.at(1, lambda: state.update(1))
    handle = task.checkpoint(1)
    subtasks.storage.read = lambda file: (  # type: ignore[method-assign]
        b"nonsense" if "MANIFEST" in file.path else subtasks.storage.files[file.path]
    )
    with pytest.raises(CheckpointError, match=r"(?s)'counter'.*0-127.*index\.json"):
        subtasks.open(restore=[handle])


def test_a_damaged_block_is_found_by_a_scan(subtasks: RocksDBSubtasks) -> None:
    """An iterator of RocksDB just ends there."""
    task = subtasks.open()
    state = task.state(MapState(int, str))
    task.at(1, lambda: [state.put(i, f"{i * 7919}" * 20) for i in range(5_000)])
    handle = task.checkpoint(1)
    (table,) = _tables(handle)
    content = bytearray(subtasks.storage.files[table.path])
    content[len(content) // 3] ^= 0xFF
    subtasks.storage.files[table.path] = bytes(content)
    subtasks.storage.read = lambda file: subtasks.storage.files[file.path]  # type: ignore[method-assign]
    restored = subtasks.open(restore=[handle])
    again = restored.state(MapState(int, str))
    with pytest.raises(RocksDBError, match=r"(?s)'counter'.*attempt-1.*orruption"):
        restored.at(1, lambda: list(again.items()))


def test_uploads_run_beside_the_mailbox_thread(subtasks: RocksDBSubtasks) -> None:
    rng = np.random.default_rng(7)
    task = subtasks.open(rocksdb_memory="8 MiB")
    table = task.backend.columns("count", COUNT)
    expected = np.zeros(60_000, np.int64)
    handles: list[KeyedStateHandle] = []
    frozen: list[Any] = []
    for checkpoint in range(1, 8):
        batch = rng.integers(0, 60_000, 20_000)
        _add(table, batch)
        np.add.at(expected, batch, 1)
        frozen.append(expected.copy())
        part = task.begin_checkpoint(checkpoint)
        thread = threading.Thread(target=lambda p=part: handles.append(p()))
        thread.start()
        while thread.is_alive():
            batch = rng.integers(0, 60_000, 5_000)
            _add(table, batch)
            np.add.at(expected, batch, 1)
        thread.join()
        task.backend.checkpoint_completed(checkpoint)
    for handle, counts in list(zip(handles, frozen, strict=True))[::3]:
        restored = subtasks.open(restore=[handle])
        assert _totals(restored.backend.columns("count", COUNT), np.arange(60_000)) == counts.tolist()


def test_lists_of_many_parts_are_joined_again(subtasks: RocksDBSubtasks) -> None:
    task = subtasks.open()
    state = task.state(ListState(int))
    for checkpoint in range(1, 61):
        task.at(1, lambda c=checkpoint: state.add(c))
        handle = task.checkpoint(checkpoint)
    assert task.at(1, state.get) == list(range(1, 61))
    joined = task.checkpoint(61)
    for stored in (handle, joined):
        restored = subtasks.open(restore=[stored])
        again = restored.state(ListState(int))
        assert restored.at(1, again.get) == list(range(1, 61))
    entries = list(restored.backend._open_database.scan(b"", b"\xff"))  # type: ignore[attr-defined]
    assert len(entries) == 1


def test_a_closed_backend_leaves_nothing_open(subtasks: RocksDBSubtasks) -> None:
    task = subtasks.open()
    state = task.state(ValueState(int))
    task.at(1, lambda: state.update(1))
    task.checkpoint(1)
    own = str(subtasks.directory)
    task.backend.close()
    subtasks._made.clear()
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert not [link for link in links if link.startswith(own)]


def test_closing_waits_for_what_is_being_written_and_refuses_the_rest(subtasks: RocksDBSubtasks) -> None:
    for round_number in range(8):
        task = subtasks.open()
        table = task.backend.columns("count", COUNT)
        _add(table, np.arange(50_000))
        part = task.begin_checkpoint(1)
        ended: list[object] = []

        def write(part: Any = part, ended: list[object] = ended) -> None:
            try:
                ended.append(part())
            except RocksDBError as e:
                ended.append(e)

        thread = threading.Thread(target=write)
        if round_number % 2:
            thread.start()
            task.backend.close()
        else:
            task.backend.close()
            thread.start()
        thread.join()
        subtasks._made.remove(task.backend)  # type: ignore[arg-type]
        assert len(ended) == 1
        assert isinstance(ended[0], RocksDBError) or round_number % 2


def test_two_states_of_one_name_are_refused(subtasks: RocksDBSubtasks) -> None:
    task = subtasks.open()
    task.state(ValueState(int, name="total"))
    with pytest.raises(ProgramError, match=r"(?s)'counter'.*'total'.*value of int.*list of str"):
        task.state(ListState(str, name="total"))
