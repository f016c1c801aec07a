"""The state of rolling aggregates and of reduce in checkpoints: cut, restored, rescaled, on both backends."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tidegate import Environment, ReduceFunction, ValueState
from tidegate.core.errors import ProgramError, SchemaError, SerializationError, StateCompatibilityError
from tidegate.core.key_groups import key_group_range
from tidegate.operators.failures import OperatorError
from tidegate.records.batch import Batch
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.operator_states import Restored
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.taskmanager.partitioners import make_partitioner
from tidegate.testing.harness import OperatorHarness

MAX_PARALLELISM = 128


class Cluster:
    """Subtasks of one operator, with checkpoints in real files that are written on another thread."""

    def __init__(self, backend: str, directory: Path) -> None:
        self.env = Environment(state_backend=backend, checkpoint_interval="1s")
        self.storage = FilesystemStorage(str(directory / "checkpoints"), "job-1")
        self._open: list[OperatorHarness] = []
        self._uploads = ThreadPoolExecutor(1)
        self._checkpoints = 0

    def subtask(
        self, made: Any, restore: Sequence[KeyedStateHandle] = (), index: int = 0, parallelism: int = 1
    ) -> OperatorHarness:
        """An opened subtask; of the handles it gets those of its key groups, as an assignment would give them."""
        mine = key_group_range(index, parallelism, MAX_PARALLELISM)
        keyed = tuple(h for h in restore if len(h.range.intersection(mine)))
        h = OperatorHarness.of(
            made,
            options=made._env.options,
            subtask_index=index,
            parallelism=parallelism,
            restored=Restored(keyed, (), self.storage) if restore else None,
        )
        self._open.append(h)
        return h.__enter__()

    def begin_checkpoint(self, h: OperatorHarness, index: int = 0) -> Callable[[], KeyedStateHandle]:
        """The synchronous part; what is returned runs the asynchronous one on the upload thread, to its end."""
        self._checkpoints += 1
        checkpoint = self._checkpoints
        h.operator.snapshot(checkpoint)
        part = h.states.snapshot(checkpoint)
        writer = self.storage.writer(checkpoint, 0, "test-operator", index)

        def finish() -> KeyedStateHandle:
            keyed = self._uploads.submit(part, writer).result().keyed
            assert keyed is not None
            h.states.checkpoint_completed(checkpoint)
            return keyed

        return finish

    def checkpoint(self, h: OperatorHarness, index: int = 0) -> KeyedStateHandle:
        return self.begin_checkpoint(h, index)()

    def close(self) -> None:
        for h in self._open:
            h.__exit__(None, None, None)
            h.states.close()
        self._uploads.shutdown()


@pytest.fixture(params=["heap", "rocksdb"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(request.param, tmp_path)
    yield made
    made.close()


# ---- the operators under test: a stream, and the batches that go through it ----


@dataclass
class Basket:
    user: str
    total: int
    items: list[str]


class Click(NamedTuple):
    app: str
    user: int
    n: float


def add_pairs(left: tuple[str | None, int], right: tuple[str | None, int]) -> tuple[str | None, int]:
    return left[0], left[1] + right[1]


def fill(so_far: Basket, record: Basket) -> Basket:
    so_far.total += record.total
    so_far.items.extend(record.items)  # in place, as nobody should but everybody may
    return so_far


def add_clicks(left: Click, right: Click) -> Click:
    return Click(left.app, left.user, left.n + right.n)


def add_rows(left: Any, right: Any) -> Any:
    return right.k, right.k2, (left.v or 0) + (right.v or 0)


def parity(n: int | None) -> int:
    return 0 if n is None else n % 2


def add_or_forget(left: int | None, right: int | None) -> int | None:
    return None if right is None else (left or 0) + right


def half(n: float) -> float:
    return n // 2  # an int for an int: the same key as the float


ROWS = pa.schema([("k", pa.string()), ("k2", pa.int64()), ("v", pa.int64())])
FLOATS = pa.schema([("k", pa.float64()), ("v", pa.float64())])
TIMES = pa.schema([("k", pa.date32()), ("v", pa.timestamp("ms", "UTC"))])
SMALL = pa.schema([("k", pa.int32()), ("v", pa.int8())])

PV: list[list[Any]] = [
    [("a", 1, 5), ("b", 1, None), (None, 2, 7)],
    [("a", 1, 1), ("b", 1, None)],
    [("b", 1, 3), ("c", 9, None)],
]
REALS = [
    [(0.0, -0.0), (math.nan, 0.1), (1.5, math.nan), (2.0, None)],
    [(-0.0, -0.0), (math.nan, 0.2), (1.5, 4.0)],
    [(0.0, -0.0), (math.nan, 0.3), (1.5, 2.0), (2.0, 1.0)],
]
DAYS = [
    [(dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 7, tzinfo=dt.UTC)), (None, None)],
    [(dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 6, tzinfo=dt.UTC)), (None, None)],
    [
        (dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 8, tzinfo=dt.UTC)),
        (None, dt.datetime(2000, 1, 1, tzinfo=dt.UTC)),
    ],
]
BYTES = [[(1, -128), (2, None)], [(1, 127), (3, 4)], [(2, 0), (1, 3), (3, 5)]]
PAIRS = [
    [("a", 1), (None, 10), ("b", 100)],
    [("a", 2), ("a", 3)],
    [("b", 200), (None, 20), ("c", 1), ("a", 4)],
]
MAYBE = [[4, None, 7], [None, 2], [5, 6, None]]


def baskets() -> list[list[Basket]]:
    """New ones each time: the function under test changes them."""
    return [
        [Basket("a", 1, ["pen"]), Basket("b", 2, [])],
        [Basket("a", 3, ["ink", "cap"])],
        [Basket("a", 5, ["nib"]), Basket("b", 7, ["pad"]), Basket("c", 0, [])],
    ]


CLICKS = [
    [Click("x", 1, 0.5), Click("y", 1, 1.0)],
    [Click("x", 1, 0.25)],
    [Click("x", 2, 1.0), Click("x", 1, 4.0)],
]
CASES: dict[str, tuple[Callable[[Environment, Any], Any], Any]] = {
    "count": (lambda env, emit: source(env, ROWS).key_by("k").count(emit=emit), PV),
    "count of two columns": (lambda env, emit: source(env, ROWS).key_by("k2", "k").count(emit=emit), PV),
    "count by function": (
        lambda env, emit: source(env, ROWS).key_by(lambda r: r.k2, returns=int).count(emit=emit),
        PV,
    ),
    "sum with nulls": (lambda env, emit: source(env, ROWS).key_by("k").sum("v", emit=emit), PV),
    "sum of floats": (lambda env, emit: source(env, FLOATS).key_by("k").sum("v", emit=emit), REALS),
    "min of floats": (lambda env, emit: source(env, FLOATS).key_by("k").min("v", emit=emit), REALS),
    "max of floats": (lambda env, emit: source(env, FLOATS).key_by("k").max("v", emit=emit), REALS),
    "min of times": (lambda env, emit: source(env, TIMES).key_by("k").min("v", emit=emit), DAYS),
    "max of bytes": (lambda env, emit: source(env, SMALL).key_by("k").max("v", emit=emit), BYTES),
    "reduce tuples": (
        lambda env, emit: source(env, tuple[str | None, int]).key_by("f0").reduce(add_pairs, emit=emit),
        PAIRS,
    ),
    "reduce rows": (lambda env, emit: source(env, ROWS).key_by("k", "k2").reduce(add_rows, emit=emit), PV),
    "reduce classes in place": (
        lambda env, emit: source(env, Basket).key_by("user").reduce(fill, emit=emit),
        baskets,
    ),
    "reduce named tuples": (
        lambda env, emit: source(env, Click).key_by("app", "user").reduce(add_clicks, emit=emit),
        CLICKS,
    ),
    "reduce by function": (
        lambda env, emit: source(env, float).key_by(half).reduce(lambda a, b: a + b, emit=emit),
        [[4.0, 5, 1.0], [4, 7.0], [1, 5.0, 6.5]],
    ),
    "reduce what may be None": (
        lambda env, emit: source(env, int | None).key_by(parity).reduce(add_or_forget, emit=emit),
        MAYBE,
    ),
}
PER_BATCH_TOO = ("count", "sum with nulls", "min of times", "reduce tuples", "reduce classes in place")


def source(env: Environment, record_type: Any) -> Any:
    return env.from_collection([], type=record_type)


def taken(h: OperatorHarness) -> list[str]:
    """What came out since the last look: to the last bit, and with the type; per batch the order means nothing."""
    rows = list(map(repr, h.take_rows()))
    return rows if h.operator.operation.emit == "each" else sorted(rows)


@pytest.fixture(
    params=[(name, "each") for name in CASES] + [(name, "batch") for name in PER_BATCH_TOO],
    ids=lambda case: " ".join(case),
)
def case(request: pytest.FixtureRequest, cluster: Cluster) -> tuple[Any, Callable[[], list[list[Any]]]]:
    name, emit = request.param
    make, batches = CASES[name]
    made = make(cluster.env, emit)
    return made, lambda: as_input(made, batches() if callable(batches) else batches)


def as_input(made: Any, batches: list[list[Any]]) -> list[list[Any]]:
    """The records as the last operator gets them: a merge stage gets the results of the local one."""
    upstream = made._node.inputs[0][0].upstream
    if getattr(upstream.operation, "stage", "") != "local":
        return batches
    found = []
    types = [ref.upstream.output_type for (ref,) in upstream.inputs]
    with OperatorHarness(upstream.operation, types, upstream.output_type) as local:
        for batch in batches:
            local.push(batch)
            found.append([tuple(r) for r in local.take_rows()])
    return found


# ---- the promises ----


def test_restored_state_goes_on_exactly_from_the_cut(cluster: Cluster, case: Any) -> None:
    made, batches = case
    undisturbed = cluster.subtask(made)
    expected = []
    for batch in batches():
        undisturbed.push(batch)
        expected.append(taken(undisturbed))
    first = cluster.subtask(made)
    before, between, behind = batches()
    first.push(before)
    one = cluster.checkpoint(first)
    first.push(between)
    two = cluster.checkpoint(first)  # an increment on the first
    first.push(behind)
    taken(first)
    from_one, from_two = cluster.subtask(made, [one]), cluster.subtask(made, [two])
    for batch, wanted in zip(batches()[1:], expected[1:], strict=True):
        from_one.push(batch)
        assert taken(from_one) == wanted
    from_two.push(batches()[2])
    assert taken(from_two) == expected[2]


def test_what_comes_behind_the_barrier_is_not_in_the_snapshot(cluster: Cluster, case: Any) -> None:
    made, batches = case
    first = cluster.subtask(made)
    first.push(batches()[0])
    finish = cluster.begin_checkpoint(first)
    for batch in batches()[1:]:
        first.push(batch)  # before a byte of the snapshot is written
    restored, again = cluster.subtask(made, [finish()]), cluster.subtask(made)
    again.push(batches()[0])
    taken(again)
    for batch in batches()[1:]:
        restored.push(batch)
        again.push(batch)
        assert taken(restored) == taken(again)


def test_two_halves_give_together_what_one_gives_and_come_together_again(cluster: Cluster, case: Any) -> None:
    made, batches = case
    (ref,) = made._node.inputs[0]
    partitioner = make_partitioner(ref.partitioning, 2, MAX_PARALLELISM, 0, "upstream")

    def route(halves: list[OperatorHarness], batch: list[Any]) -> None:
        record_type = halves[0].input_types[0]
        for target, part in partitioner(Batch(record_type, columns=record_type.to_columns(batch))):
            halves[target].push_batch(part)

    whole = cluster.subtask(made)
    before, between, behind = batches()
    whole.push(before)
    one = cluster.checkpoint(whole)
    taken(whole)
    whole.push(between)
    halves = [cluster.subtask(made, [one], i, 2) for i in range(2)]
    route(halves, batches()[1])
    assert sorted(r for h in halves for r in taken(h)) == sorted(taken(whole))
    together = cluster.subtask(made, [cluster.checkpoint(h, i) for i, h in enumerate(halves)])
    whole.push(behind)
    together.push(batches()[2])
    assert taken(together) == taken(whole)


def test_many_keys_over_many_checkpoints_some_of_them_aborted(cluster: Cluster) -> None:
    made = source(cluster.env, SMALL).key_by("k").max("v", emit="each")
    first = cluster.subtask(made)
    totals: dict[int, int] = {}
    handle: KeyedStateHandle | None = None
    for n in range(1, 9):
        rows = [(k * n % 5000, (k + n) % 100) for k in range(3000)]
        for k, v in rows:
            totals[k] = max(v, totals.get(k, v))
        first.push(rows)
        if n % 3:
            handle = cluster.checkpoint(first)
        else:
            first.operator.snapshot(100 + n)
            first.states.snapshot(100 + n)
            first.states.checkpoint_aborted(100 + n)
    assert handle is not None
    restored = cluster.subtask(made, [handle])
    restored.push([(k, -128) for k in totals])
    assert {r.k: r.max_v for r in restored.rows} == totals


def test_users_own_state_and_the_reduced_value_are_of_the_same_record(cluster: Cluster) -> None:
    class Numbered(ReduceFunction):
        calls = ValueState(int, default=0)

        def reduce(self, left: tuple[str, int], right: tuple[str, int]) -> tuple[str, int]:
            self.calls.update(self.calls.value() + 1)
            return left[0], left[1] + right[1] + 100 * self.calls.value()

    made = source(cluster.env, tuple[str, int]).key_by("f0").reduce(Numbered())
    first = cluster.subtask(made)
    first.push([("a", 1), ("b", 1), ("a", 1)])
    assert first.take_rows() == [("a", 1), ("b", 1), ("a", 102)]
    restored = cluster.subtask(made, [cluster.checkpoint(first)])
    restored.push([("b", 1), ("a", 1), ("c", 1)])
    assert restored.take_rows() == [("b", 102), ("a", 303), ("c", 1)]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (lambda s: s.sum("v"), lambda s: s.max("v"), ["sum: int64", "max: int64"]),
        (lambda s: s.count(), lambda s: s.sum("v"), ["count: int64", "sum: int64"]),
        (lambda s: s.max("v"), lambda s: s.max("at"), ["max: int64", "max timestamp[us]: int64"]),
        (
            lambda s: s.max("at"),
            lambda s: s.max("at_ms"),
            ["max timestamp[us]: int64", "max timestamp[ms]: int64"],
        ),
        (lambda s: s.max("v"), lambda s: s.max("small"), ["max: int64", "max: int8"]),
    ],
)
def test_state_of_another_aggregate_is_refused_with_both(
    cluster: Cluster, before: Any, now: Any, named: list[str]
) -> None:
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("v", pa.int64()),
            ("at", pa.timestamp("us")),
            ("at_ms", pa.timestamp("ms")),
            ("small", pa.int8()),
        ]
    )
    keyed = source(cluster.env, schema).key_by("k")
    first = cluster.subtask(before(keyed))
    first.push([("a", 1, dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1), 1)])  # noqa: DTZ001
    handle = cluster.checkpoint(first)
    with pytest.raises(StateCompatibilityError) as caught:
        cluster.subtask(now(keyed).name("largest"), [handle])
    assert all(word in str(caught.value) for word in ["'largest'", *named])


def test_emitting_each_or_per_batch_is_the_same_state(cluster: Cluster) -> None:
    keyed = source(cluster.env, ROWS).key_by("k")
    first = cluster.subtask(keyed.count(emit="each"))
    first.push(PV[0])
    restored = cluster.subtask(keyed.count(emit="batch"), [cluster.checkpoint(first)])
    restored.push([("a", 5)])
    assert [tuple(r) for r in restored.rows] == [("a", 6)]


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (lambda s: s.key_by(lambda r: r[0]).count(), ["its key", "key function a return type hint"]),
        (
            lambda s: s.key_by(lambda r: r[0]).sum("f1", emit="batch"),
            ["its key", "key function a return type hint"],
        ),
        (
            lambda s: s.key_by(lambda r: r[0]).reduce(add_pairs),
            ["its key", "key function a return type hint"],
        ),
        (
            lambda s: s.map(lambda r: {r}).key_by(lambda r: 1, returns=int).reduce(lambda a, b: a | b),
            ["records are of type object", "return type hint"],
        ),
    ],
)
def test_state_without_a_type_is_refused_with_checkpoints_on_and_works_without(
    program: Any, named: list[str]
) -> None:
    records = [("a", 1), ("a", 2)]
    on, off = Environment(checkpoint_interval="1s"), Environment()
    made = program(source(on, tuple[str, int])).name("totals")
    with pytest.raises(ProgramError) as caught, OperatorHarness.of(made, options=on.options):
        pass
    assert all(word in str(caught.value) for word in ["operator 'totals'", "switch checkpoints off", *named])
    with OperatorHarness.of(program(source(off, tuple[str, int])), options=off.options) as h:
        h.push([{r} if h.input_types[0].is_object else r for r in records])
        assert h.rows
        with pytest.raises(ProgramError, match="cannot be stored in a checkpoint"):
            h.operator.snapshot(1)


def test_result_that_its_type_cannot_hold_is_named(cluster: Cluster) -> None:
    made = source(cluster.env, tuple[str, int]).key_by("f0").reduce(lambda a, b: ("a", 1 << 70)).name("power")
    first = cluster.subtask(made)

    def push_and_write() -> None:  # one backend finds it at once, the other when it writes
        first.push([("a", 1), ("a", 2)])
        cluster.checkpoint(first)

    with pytest.raises((OperatorError, SchemaError, SerializationError)) as caught:
        push_and_write()
    assert "power" in str(caught.value)
    assert str(1 << 70)[:6] in f"{caught.value} {caught.value.__cause__}"
