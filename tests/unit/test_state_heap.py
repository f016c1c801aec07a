"""The heap backend's own parts: generations, merging, the files, frozen key indices."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.contract.state_backend_kit import Cluster
from tidegate.api.state import ListState, MapState, StateTtl, ValueState
from tidegate.core.errors import CheckpointError, ProgramError, StateCompatibilityError
from tidegate.core.key_groups import KeyGroupRange
from tidegate.core.options import Options
from tidegate.keys.hashing import hash_value
from tidegate.keys.key_index import KeyIndex
from tidegate.state.backend import ColumnArray
from tidegate.state.generations import CLEARED, REMOVED
from tidegate.state.heap import values as tables
from tidegate.state.heap.maps import MapTable
from tidegate.state.heap.values import HeapTable


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster("heap", tmp_path)
    yield made
    made.close()


# ---- tables ----


def test_newer_generations_hide_older_ones() -> None:
    table = HeapTable()
    table.changed |= {"a": 1, "b": 1, "c": 1}
    table.freeze(1)
    table.complete(1)
    table.changed |= {"a": 2}
    table.remove("b")
    table.freeze(2)
    table.changed |= {"a": 3}
    assert [table.find(k) for k in "abcd"] == [3, REMOVED, 1, REMOVED]
    assert table.load("a") == 2


def test_completed_generations_are_settled_and_open_ones_are_not() -> None:
    table = HeapTable()
    for checkpoint in (1, 2, 3):
        table.changed[checkpoint] = checkpoint
        table.freeze(checkpoint)
    table.complete(2)
    assert table.settled == {1: 1, 2: 2}
    assert [g.checkpoint_id for g in table.frozen] == [3]


def test_merging_waits_while_a_snapshot_is_read() -> None:
    table = HeapTable()
    table.changed["a"] = 1
    table.freeze(1)
    table.hold("writer")
    table.complete(1)
    assert table.settled == {}
    assert table.find("a") == 1
    table.release("writer")
    table.freeze(2)
    assert table.settled == {"a": 1}
    assert table.frozen == []


def test_a_large_generation_is_merged_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK", 10)
    monkeypatch.setattr(tables, "_LEAST_MERGED", 20)
    table = HeapTable()
    table.settled["old"] = 0
    table.changed |= {i: i for i in range(60)}
    table.remove("old")
    table.freeze(1)
    table.complete(1)
    assert 0 < len(table.settled) <= 21
    assert [table.find(k) for k in (0, 59, "old")] == [0, 59, REMOVED]
    for checkpoint in (2, 3):
        table.complete(checkpoint)
        assert [table.find(k) for k in (0, 59, "old")] == [0, 59, REMOVED]
    table.complete(4)
    assert table.settled == {i: i for i in range(60)}
    assert table.frozen == []


def test_generations_of_many_aborted_checkpoints_become_one() -> None:
    table = HeapTable()
    for checkpoint in range(1, 30):
        table.changed |= {"all": checkpoint, checkpoint: checkpoint}
        open_ones = table.freeze(checkpoint)
    assert len(table.frozen) <= 9
    assert table.merged(open_ones) == {"all": 29} | {c: c for c in range(1, 30)}
    table.complete(29)
    assert table.settled == {"all": 29} | {c: c for c in range(1, 30)}


def test_map_changes_are_composed_entry_by_entry() -> None:
    table = MapTable()
    table.put_entry("k", "a", 1)
    table.put_entry("k", "b", 1)
    first = table.freeze(1)
    table.remove_entry("k", "a")
    table.put_entry("k", "c", 2)
    both = table.freeze(2)
    assert table.load_map("k") == {"b": 1, "c": 2}
    assert table.merged(both) == {"k": {"a": REMOVED, "b": 1, "c": 2}}
    assert table.merged(first) == {"k": {"a": 1, "b": 1}}, "merging must not change a generation"
    table.remove("k")
    table.put_entry("k", "d", 3)
    table.freeze(3)
    assert table.load_map("k") == {"d": 3}
    assert table.load_entry("k", "b") is REMOVED
    table.complete(3)
    assert table.settled == {"k": {"d": 3}}
    table.remove_entry("k", "d")
    table.freeze(4)
    table.complete(4)
    assert table.settled == {}
    assert CLEARED is not REMOVED


def test_a_hot_loop_on_the_table_and_the_live_state_see_the_same(cluster: Cluster) -> None:
    task = cluster.subtask()
    declaration = ValueState(int, name="total")
    state = task.state(declaration)
    table = task.backend.table(declaration)
    assert table is not None
    assert table.load("a") is REMOVED
    table.changed["a"] = 5
    assert task.at("a", state.value) == 5
    task.checkpoint(1)
    assert "a" not in table.changed
    assert table.load("a") == 5
    task.at("a", lambda: state.update(6))
    assert table.changed["a"] == 6


# ---- files ----


def _tables(cluster: Cluster, handle: Any) -> list[pa.Table]:
    return [pq.read_table(io.BytesIO(cluster.storage.files[f.path])) for f in handle.files]


def test_files_are_sorted_by_key_group_and_say_what_they_are(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int, name="total"))
    for i in range(100):
        task.at(f"k{i}", lambda i=i: state.update(i))
    task.checkpoint(1)
    task.at("k7", state.clear)
    task.at("k8", lambda: state.update(-8))
    base, increment = _tables(cluster, task.checkpoint(2))
    assert base.column_names == ["key_group", "key", "value", "deleted"]
    groups = base["key_group"].to_pylist()
    assert groups == sorted(groups)
    assert groups == [hash_value(k) % 128 for k in base["key"].to_pylist()]
    rows = {r["key"]: r for r in increment.to_pylist()}
    assert rows["k7"] == {"key_group": hash_value("k7") % 128, "key": "k7", "value": None, "deleted": True}
    assert rows["k8"]["value"] == -8
    for table, content in ((base, b"base"), (increment, b"increment")):
        metadata = table.schema.metadata
        assert metadata[b"tidegate.content"] == content
        assert metadata[b"tidegate.state"] == b"total"
        assert metadata[b"tidegate.kind"] == b"value"
        assert metadata[b"tidegate.version"] == b"1"
        assert len(metadata[b"tidegate.fingerprint"]) == 32


def test_lists_maps_and_times_have_their_columns(cluster: Cluster) -> None:
    task = cluster.subtask(pa.schema([("user", pa.string()), ("day", pa.int32())]))
    items = task.state(ListState(int, name="items", ttl=StateTtl(1_000)))
    entries = task.state(MapState(str, float, name="entries"))
    task.at(("ann", 1), lambda: (items.add_all([1, 2]), entries.put("x", 0.5), entries.put("y", 1.5)))
    stored = {t.schema.metadata[b"tidegate.state"]: t for t in _tables(cluster, task.checkpoint(1))}
    (row,) = stored[b"items"].to_pylist()
    assert row["key"] == {"user": "ann", "day": 1}
    assert (row["value"], row["written_ms"]) == ([1, 2], 1_000_000)
    assert [(r["map_key"], r["value"]) for r in stored[b"entries"].to_pylist()] == [("x", 0.5), ("y", 1.5)]
    task.at(("ann", 1), lambda: (entries.clear(), entries.put("z", 2.5)))
    cleared = _tables(cluster, task.checkpoint(2))[-1]
    assert [(r["map_key"], r["deleted"]) for r in cleared.to_pylist()] == [(None, True), ("z", False)]


def test_increments_become_a_base_when_they_are_as_large(cluster: Cluster) -> None:
    task = cluster.subtask(int)
    state = task.state(ValueState(int))
    rng = np.random.default_rng(1)
    counts = []
    for checkpoint in range(1, 12):
        for key in rng.integers(0, 5_000, 2_000).tolist():
            task.at(key, lambda: state.update(int(rng.integers(1 << 60))))
        handle = task.checkpoint(checkpoint)
        counts.append(len(handle.files))
        increments = sum(f.size for f in handle.files[1:-1])
        assert increments <= handle.files[0].size
    assert counts[0] == 1
    assert max(counts) > 1
    assert 1 in counts[1:]


def test_a_checkpoint_never_has_more_than_a_few_dozen_increments(cluster: Cluster) -> None:
    task = cluster.subtask(int)
    state = task.state(ValueState(int))
    for key in range(30_000):
        task.at(key, lambda k=key: state.update(k * 7919 % 1_000_003))
    longest = 0
    for checkpoint in range(1, 90):
        task.at(checkpoint, lambda c=checkpoint: state.update(c))
        longest = max(longest, len(task.checkpoint(checkpoint).files))
    assert 60 <= longest <= 65


def test_files_of_a_newer_version_are_refused(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int))
    task.at("a", lambda: state.update(1))
    handle = task.checkpoint(1)
    path = handle.files[0].path
    table = pq.read_table(io.BytesIO(cluster.storage.files[path]))
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | {b"tidegate.version": b"9"}), out)
    writer = cluster.storage.writer(2, 0, "counter", 0)
    newer = writer.write("s.parquet", out.getvalue())
    changed = type(handle)("heap", handle.key_groups, handle.states, (newer,), newer.size)
    with pytest.raises(StateCompatibilityError, match=r"(?s)'counter'.*version 9 but.*version 1"):
        cluster.subtask(restore=[changed])


def test_a_snapshot_that_was_given_up_is_not_written(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int))
    task.at("a", lambda: state.update(1))
    write = task.begin_checkpoint(1)
    task.backend.checkpoint_aborted(1)
    with pytest.raises(CheckpointError, match=r"'counter'.*checkpoint 1 was given up"):
        write()
    assert cluster.storage.files == {}


def test_keys_without_a_type_work_in_memory_and_are_refused_when_checkpoints_are_on(cluster: Cluster) -> None:
    task = cluster.subtask(object)
    state = task.state(ValueState(int, default=0))
    task.at(frozenset([1]), lambda: state.update(1))
    assert task.at(frozenset([1]), state.value) == 1
    checkpointed = cluster.subtask(object)
    context = checkpointed.backend.context
    object.__setattr__(context, "options", Options().with_values({"checkpoint.interval": "1 s"}, "test"))
    with pytest.raises(ProgramError, match="return type hint"):
        checkpointed.state(ValueState(int))


def test_two_states_of_one_name_are_refused(cluster: Cluster) -> None:
    task = cluster.subtask()
    task.state(ValueState(int, name="s"))
    with pytest.raises(ProgramError, match=r"'counter'.*two states named 's'"):
        task.state(ListState(int, name="s"))
    with pytest.raises(ProgramError, match=r"'counter'.*two states named 's'"):
        task.backend.columns("s", [ColumnArray("n", np.dtype(np.int64), 0)])


def test_undeclared_state_is_carried_over_without_being_written_again(cluster: Cluster) -> None:
    task = cluster.subtask()
    old = task.state(ValueState(int, name="old"))
    for i in range(50):
        task.at(f"k{i}", lambda i=i: old.update(i))
    first = task.checkpoint(1)
    middle = cluster.subtask(restore=[first])
    middle.state(ValueState(int, name="new"))
    for checkpoint in (2, 3):
        handle = middle.checkpoint(checkpoint)
        assert handle.bytes_new == 0
        assert handle.files == first.files
    # On another range its rows are written once.
    part = cluster.subtask(key_groups=KeyGroupRange(0, 63), restore=[handle])
    rewritten = part.checkpoint(4)
    assert rewritten.bytes_new > 0
    assert part.checkpoint(5).bytes_new == 0
    again = cluster.subtask(key_groups=KeyGroupRange(0, 63), restore=[rewritten])
    old = again.state(ValueState(int, name="old"))
    mine = [i for i in range(50) if hash_value(f"k{i}") % 128 < 64]
    assert mine
    assert [again.at(f"k{i}", old.value) for i in mine] == mine


# ---- frozen key indices ----


@pytest.mark.parametrize("text", [False, True])
def test_a_frozen_index_is_read_while_keys_are_added(text: bool) -> None:
    def columns(start: int, end: int) -> list[pa.Array]:
        numbers = np.arange(start, end)
        first = pa.array([f"user-{n}" if n % 97 else None for n in numbers]) if text else pa.array(numbers)
        return [first, pa.array(numbers // 3)]

    index = KeyIndex()
    index.ids(columns(0, 5_000))
    frozen = index.freeze()
    expected = columns(0, 5_000)
    stop = threading.Event()
    errors: list[str] = []

    def read() -> None:
        while not stop.is_set():
            if frozen.keys() != expected:
                errors.append("other keys")

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(5_000, 100_000, 5_000):
        index.ids(columns(start, start + 5_000))
    stop.set()
    reader.join()
    assert not errors
    assert len(frozen) == 5_000
    assert frozen.keys() == expected
    assert len(index) == 100_000
