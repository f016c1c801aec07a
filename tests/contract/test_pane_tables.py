"""Pane tables of every state backend: whatever was aborted before, a checkpoint has just the operator's live rows."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.contract.state_backend_kit import Cluster, Subtask, backend_kinds
from tidegate.core.errors import StateCompatibilityError
from tidegate.core.key_groups import KeyGroupRange, key_group_range
from tidegate.keys.hashing import hash_value
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.backend import PaneRows, PaneTable

Row = tuple[Any, ...]
Live = dict[tuple[Any, int], Row]
TEXT = pa.string()
VALUES = pa.schema([("count", pa.int64()), ("best", pa.float64()), ("word", pa.string())])


@pytest.fixture(params=backend_kinds())
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(request.param, tmp_path)
    yield made
    made.close()


class Operator:
    """Keeps live rows as a dict, as a vectorised operator would as arrays; keys are of one column."""

    def __init__(self, task: Subtask, values: pa.Schema = VALUES, key_type: pa.DataType = TEXT) -> None:
        self.task = task
        self.values = values
        self.key_type = key_type
        self.table: PaneTable = task.backend.panes("panes", values)
        self.live: Live = {}
        self.changed: set[tuple[Any, int]] = set()
        self.whole_copies = 0
        for rows in self.table.restored():
            columns = [c.to_pylist() for c in rows.values]
            keys = zip(rows.keys[0].to_pylist(), rows.panes.tolist(), strict=True)
            found = list(zip(keys, zip(*columns, strict=True), strict=True))
            assert not {k for k, _ in found} & set(self.live), "a row came twice"
            self.live.update(found)

    def put(self, key: Any, pane: int, *values: Any) -> None:
        self.live[key, pane] = values
        self.changed.add((key, pane))

    def remove(self, key: Any, pane: int) -> None:
        self.live.pop((key, pane), None)
        self.changed.add((key, pane))

    def rows(self, places: list[tuple[Any, int]], removed: bool = False) -> PaneRows:
        keys = pa.array([k for k, _ in places], self.key_type)
        panes = np.array([p for _, p in places], np.int64)
        values = [
            pa.array([self.live[place][i] for place in places], f.type)
            for i, f in enumerate([] if removed else self.values)
        ]
        return PaneRows([keys], panes, values)

    def everything(self) -> PaneRows:
        self.whole_copies += 1
        return self.rows(list(self.live))

    def write(self) -> None:
        changed = self.rows([p for p in self.changed if p in self.live])
        removed = self.rows([p for p in self.changed if p not in self.live], removed=True)
        self.changed.clear()
        self.table.write(changed, removed, self.everything)

    def checkpoint(self, checkpoint_id: int, complete: bool = True) -> KeyedStateHandle:
        self.write()
        return self.task.checkpoint(checkpoint_id, complete)


def restored(
    cluster: Cluster, handles: list[KeyedStateHandle], groups: KeyGroupRange | None = None
) -> Operator:
    if groups is None:
        return Operator(cluster.subtask(restore=handles))
    overlapping = [h for h in handles if len(groups.intersection(h.range))]
    return Operator(cluster.subtask(key_groups=groups, restore=overlapping))


def test_panes_of_a_key_come_back_with_their_values(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    for pane in (-(2**63), -1, 0, 1, 2**63 - 1):
        operator.put("a", pane, pane, pane / 2, str(pane))
    operator.put("b", 0, None, None, None)
    handle = operator.checkpoint(1)
    assert restored(cluster, [handle]).live == operator.live


def test_changed_and_removed_panes_are_in_the_next_checkpoint(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    operator.put("a", 1, 1, 0.0, "x")
    operator.put("a", 2, 1, 0.0, "x")
    operator.put("b", 1, 1, 0.0, "x")
    operator.checkpoint(1)
    operator.put("a", 1, 2, 0.0, "y")
    operator.remove("b", 1)
    operator.remove("never", 7)
    handle = operator.checkpoint(2)
    found = restored(cluster, [handle])
    assert found.live == {("a", 1): (2, 0.0, "y"), ("a", 2): (1, 0.0, "x")}


def test_increment_holds_what_changed_and_needs_no_whole_copy(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    for i in range(20_000):
        operator.put(f"key-{i}", i, i, 0.0, f"{i * i}")
    first = operator.checkpoint(1)
    copies = operator.whole_copies
    operator.put("key-7", 7, -1, 0.0, "new")
    second = operator.checkpoint(2)
    assert second.bytes_new < first.bytes_new / 5
    assert operator.whole_copies == copies
    assert restored(cluster, [second]).live == operator.live


def test_what_many_aborted_checkpoints_had_is_in_the_next_one(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    for i in range(30):
        operator.put("a", i, i, 0.0, "x")
    operator.checkpoint(1)
    for checkpoint_id in range(2, 16):
        operator.remove("a", checkpoint_id)
        operator.put("b", checkpoint_id, 1, 0.0, "y")
        operator.checkpoint(checkpoint_id, complete=False)
    operator.remove("b", 2)
    handle = operator.checkpoint(16)
    assert restored(cluster, [handle]).live == operator.live
    operator.put("c", 1, 1, 0.0, "z")
    handle = operator.checkpoint(17)
    assert restored(cluster, [handle]).live == operator.live


def test_many_increments_stay_readable_and_bounded(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    for checkpoint_id in range(1, 150):
        operator.put("a", checkpoint_id % 7, checkpoint_id, 0.0, "x")
        operator.remove("a", (checkpoint_id + 3) % 7)
        handle = operator.checkpoint(checkpoint_id)
    assert len(handle.files) < 80
    assert restored(cluster, [handle]).live == operator.live


def test_snapshot_is_not_touched_by_what_is_written_after_it(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    operator.put("a", 1, 1, 0.0, "x")
    before = dict(operator.live)
    operator.write()
    write = operator.task.begin_checkpoint(1)
    operator.put("a", 1, 2, 0.0, "y")
    operator.remove("b", 1)
    handle = write()
    assert restored(cluster, [handle]).live == before


def test_checkpoints_may_overlap(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    backend = operator.task.backend
    seen, waiting = [], []
    for checkpoint_id in (1, 2, 3):
        operator.put("a", checkpoint_id, checkpoint_id, 0.0, "x")
        operator.remove("a", checkpoint_id - 1)
        operator.write()
        waiting.append(operator.task.begin_checkpoint(checkpoint_id))
        seen.append(dict(operator.live))
    handles = [write() for write in waiting]
    assert [restored(cluster, [handle]).live for handle in handles] == seen
    backend.checkpoint_completed(1)
    backend.checkpoint_aborted(2)
    operator.put("b", 1, 1, 0.0, "x")
    fourth = operator.checkpoint(4, complete=False)
    assert fourth.files
    backend.checkpoint_completed(3)
    operator.put("c", 1, 1, 0.0, "x")
    assert restored(cluster, [operator.checkpoint(5)]).live == operator.live


def test_a_declined_snapshot_loses_nothing(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    operator.put("a", 1, 1, 0.0, "x")
    operator.checkpoint(1)
    operator.put("a", 2, 1, 0.0, "x")
    operator.write()  # ... and then another operator of the task raises: the backend is not asked
    operator.remove("a", 1)
    assert restored(cluster, [operator.checkpoint(3)]).live == {("a", 2): (1, 0.0, "x")}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 4)])
def test_panes_move_with_their_key_groups(cluster: Cluster, before: int, after: int) -> None:
    keys = [f"user-{i * i}" for i in range(120)]
    expected: Live = {}
    handles = []
    for i in range(before):
        operator = restored(cluster, [], key_group_range(i, before, 128))
        mine = [k for k in keys if hash_value(k) % 128 in key_group_range(i, before, 128)]
        for key in mine:
            operator.put(key, 1, len(key), 0.0, key)
            operator.put(key, 2, len(key), 0.0, key)
        operator.checkpoint(1)
        for key in mine[::2]:
            operator.remove(key, 1)
        handles.append(operator.checkpoint(2))
        expected |= operator.live
    parts = [restored(cluster, handles, key_group_range(i, after, 128)) for i in range(after)]
    assert all(p.live for p in parts)
    assert sum(len(p.live) for p in parts) == len(expected)
    assert {k: v for p in parts for k, v in p.live.items()} == expected
    # ... and what was restored is in the next checkpoint, whatever it was made from.
    again = [
        restored(cluster, [p.checkpoint(3)], key_group_range(i, after, 128)) for i, p in enumerate(parts)
    ]
    assert [p.live for p in again] == [p.live for p in parts]


def test_values_of_every_arrow_type_come_back(cluster: Cluster) -> None:
    moment = dt.datetime(2024, 5, 6, 7, 8, 9, 123456)  # noqa: DTZ001 - without a zone, as the type
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "int8": (pa.int8(), [-128, 127, None]),
        "uint64": (pa.uint64(), [0, 2**64 - 1, None]),
        "float32": (pa.float32(), [0.5, -0.25, None]),
        "bool": (pa.bool_(), [True, False, None]),
        "text": (pa.string(), ["", "☃", None]),
        "large": (pa.large_string(), ["", "x" * 1000, None]),
        "binary": (pa.binary(), [b"", b"\xff\x00", None]),
        "fixed": (pa.binary(3), [b"abc", b"\x00\x00\x00", None]),
        "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        "timestamp": (pa.timestamp("us"), [moment, moment.replace(year=1), None]),
        "zoned": (pa.timestamp("ms", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None, None]),
        "duration": (pa.duration("us"), [dt.timedelta(days=-1), dt.timedelta(0), None]),
        "decimal": (pa.decimal128(20, 3), [Decimal("-1.234"), Decimal("0.000"), None]),
        "ints": (pa.list_(pa.int64()), [[], [1, 2, 3], None]),
        "some": (pa.list_(pa.int32()), [[1, None], [7], None]),
        "bools": (pa.list_(pa.bool_()), [[True, False, True], [], None]),
        "times": (pa.list_(pa.timestamp("us")), [[moment], [moment, moment], None]),
        "texts": (pa.list_(pa.string()), [["a", "", None], [], None]),
        "lists": (pa.list_(pa.list_(pa.int64())), [[[1], []], [], None]),
        "struct": (
            pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
            [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None],
        ),
        "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
    }
    schema = pa.schema([(name, t) for name, (t, _) in columns.items()])
    operator = Operator(cluster.subtask(), schema)
    rows = list(zip(*[values for _, values in columns.values()], strict=True))
    for i, row in enumerate(rows):
        operator.put("a", i, *row)
    operator.checkpoint(1)
    operator.put("b", 9, *rows[0])  # ... and an increment
    operator.remove("a", 1)
    handle = operator.checkpoint(2)
    found = Operator(cluster.subtask(restore=[handle]), schema)
    assert found.live == {("a", 0): rows[0], ("a", 2): rows[2], ("b", 9): rows[0]}


def test_columns_that_are_slices_of_larger_ones_are_stored_as_they_look(cluster: Cluster) -> None:
    task = cluster.subtask()
    schema = pa.schema(
        [("n", pa.int64()), ("flag", pa.bool_()), ("l", pa.list_(pa.int64())), ("t", pa.string())]
    )
    table = task.backend.panes("panes", schema)
    list(table.restored())
    values = [
        pa.array(range(20)),
        pa.array([i % 3 == 0 for i in range(20)]),
        pa.array([[i] * (i % 4) for i in range(20)]),
        pa.array([f"t{i}" for i in range(20)]),
    ]
    keys = pa.array([f"k{i}" for i in range(20)])
    rows = PaneRows([keys.slice(5, 9)], np.arange(20)[5:14], [v.slice(5, 9) for v in values])
    empty = PaneRows([keys.slice(0, 0)], np.arange(0), [])
    table.write(rows, empty, lambda: rows)
    handle = task.checkpoint(1)
    found = Operator(cluster.subtask(restore=[handle]), schema)
    assert found.live == {(f"k{i}", i): (i, i % 3 == 0, [i] * (i % 4), f"t{i}") for i in range(5, 14)}


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        (pa.int64(), [0, -1, 2**63 - 1, -(2**63)]),
        (pa.string(), ["", "a", "☃", None]),
        (pa.float64(), [0.0, -1.5, None]),
        (pa.date32(), [dt.date(2024, 1, 1), None]),
    ],
)
def test_keys_of_every_type_come_back(cluster: Cluster, key_type: pa.DataType, keys: list[Any]) -> None:
    stream = pa.schema([("k", key_type)])
    operator = Operator(cluster.subtask(stream), key_type=key_type)
    for key in keys:
        operator.put(key, 1, 1, 0.0, "x")
        operator.put(key, 2, 1, 0.0, "x")
    handle = operator.checkpoint(1)
    assert Operator(cluster.subtask(stream, restore=[handle]), key_type=key_type).live == operator.live


def test_keys_of_several_columns_come_back(cluster: Cluster) -> None:
    stream = pa.schema([("user", pa.string()), ("day", pa.int32())])
    task = cluster.subtask(stream)
    schema = pa.schema([("n", pa.int64())])
    table = task.backend.panes("panes", schema)
    list(table.restored())
    keys = [pa.array(["a", None, "a"]), pa.array([1, 2, None], pa.int32())]
    rows = PaneRows(keys, np.array([5, 5, 6]), [pa.array([1, 2, 3])])
    table.write(rows, PaneRows([k.slice(0, 0) for k in keys], np.arange(0), []), lambda: rows)
    handle = task.checkpoint(1)
    found = list(cluster.subtask(stream, restore=[handle]).backend.panes("panes", schema).restored())
    seen = [
        row
        for part in found
        for row in zip(
            *(k.to_pylist() for k in part.keys), part.panes.tolist(), part.values[0].to_pylist(), strict=True
        )
    ]
    assert sorted(seen, key=repr) == sorted([("a", 1, 5, 1), (None, 2, 5, 2), ("a", None, 6, 3)], key=repr)


def test_other_values_than_the_stored_ones_are_refused_with_both(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    operator.put("a", 1, 1, 0.0, "x")
    handle = operator.checkpoint(1)
    other = pa.schema([("count", pa.int64()), ("best", pa.int64())])
    with pytest.raises(StateCompatibilityError, match=r"'panes'.*best: double.*best: int64"):
        cluster.subtask(restore=[handle]).backend.panes("panes", other)


def test_a_table_that_is_not_asked_for_any_more_is_kept(cluster: Cluster) -> None:
    operator = Operator(cluster.subtask())
    operator.put("a", 1, 1, 0.0, "x")
    operator.checkpoint(1)
    operator.put("a", 2, 1, 0.0, "x")
    handle = operator.checkpoint(2)
    later = cluster.subtask(restore=[handle]).checkpoint(3)
    assert restored(cluster, [later]).live == operator.live


keys = st.sampled_from("abcdef")
panes = st.integers(-2, 2)
values = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.text(max_size=3),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, panes, values),
        st.tuples(st.just("remove"), keys, panes),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.tuples(st.just("restore"), st.integers(1, 3)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("kind", backend_kinds())
def test_a_pane_table_is_a_dict_with_snapshots(kind: str) -> None:
    @settings(
        max_examples=60 if kind == "heap" else 20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(steps)
    @example([("put", "a", 1, (1, 1.0, "x")), ("checkpoint", True), ("restore", 2), ("remove", "a", 1)])
    def run(steps: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            cluster = Cluster(kind, Path(directory))
            try:
                _run(cluster, steps)
            finally:
                cluster.close()

    run()


def _run(cluster: Cluster, steps: list[Any]) -> None:
    operators = {ALL_GROUPS: Operator(cluster.subtask())}
    completed: tuple[list[KeyedStateHandle], Live] = ([], {})
    checkpoint_id = 0

    def owner(key: str) -> Operator:
        return next(o for r, o in operators.items() if hash_value(key) % 128 in r)

    for step in steps:
        match step:
            case ("put", key, pane, row):
                owner(key).put(key, pane, *row)
            case ("remove", key, pane):
                owner(key).remove(key, pane)
            case ("checkpoint", complete):
                checkpoint_id += 1
                handles = [o.checkpoint(checkpoint_id, complete) for o in operators.values()]
                if complete:
                    completed = (handles, {k: v for o in operators.values() for k, v in o.live.items()})
            case ("restore", count):
                ranges = [key_group_range(i, count, 128) for i in range(count)]
                operators = {r: restored(cluster, completed[0], r) for r in ranges}
                assert {k: v for o in operators.values() for k, v in o.live.items()} == completed[1]


ALL_GROUPS = key_group_range(0, 1, 128)
