"""Fusion: a run of expressions gives what its operators give one by one, counts, names and types included."""

from __future__ import annotations

import dataclasses
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import Environment
from tidegate.core.clock import ManualClock
from tidegate.core.options import Options
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobVertex, OperatorSpec
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.metrics.registry import TaskMetrics
from tidegate.operators.columns.fusion import FusedExpressions, Stage, fuse
from tidegate.operators.failures import OperatorError
from tidegate.records.batch import Batch, Origin
from tidegate.records.plain_types import canonical_type
from tidegate.records.types import RowType
from tidegate.state.operator_states import OperatorStates, StatesContext
from tidegate.taskmanager.chain import ChainHost, OperatorChain

CLICKS = pa.schema([("app", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
APPS = pa.array(["a", "b", None, "a"]).dictionary_encode()
COLUMNS = pa.RecordBatch.from_arrays(
    [APPS, pa.array([1, None, 3, 4]), pa.array([0.5, 1.5, None, 2.0])], names=CLICKS.names
)

a, n, x = pl.col("app"), pl.col("n"), pl.col("x")
STEPS: list[tuple[str, tuple[pl.Expr, ...]]] = [
    ("with_columns", (n + 1,)),
    ("with_columns", (x * 2, (n - 1).alias("m"))),
    ("with_columns", (n.alias("x"), x.alias("n").cast(pl.Int64))),
    ("with_columns", (a.str.to_uppercase().alias("up"),)),
    ("with_columns", (pl.lit(7).alias("seven"), (n + x).alias("total"))),
    ("with_columns", (n.abs(),)),
    ("select", (a, n, x)),
    ("select", (x, n, a)),
    ("select", (a, x.alias("n").cast(pl.Int64), n.alias("x").cast(pl.Float64))),
    ("select", (a, n, x, pl.lit("l").alias("l"))),
    ("select", (a.alias("app"), (n + n.abs()).alias("n"), x)),
]


def stages_of(steps: list[tuple[str, tuple[pl.Expr, ...]]]) -> tuple[list[Stage], pl.DataFrame]:
    """The stages as operators would have them, and what they give one by one."""
    frame = pl.DataFrame(RowType(CLICKS).plain(COLUMNS))
    stages = []
    for form, expressions in steps:
        frame = frame.select(expressions) if form == "select" else frame.with_columns(expressions)
        output = pa.schema([pa.field(f.name, canonical_type(f.type)) for f in frame.to_arrow().schema])
        stages.append(Stage(form, expressions, output))
    return stages, frame


def fused(*steps: tuple[str, tuple[pl.Expr, ...]]) -> FusedExpressions:
    made = fuse(CLICKS, stages_of(list(steps))[0])
    assert made is not None
    return made


@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=8))
def test_any_run_gives_what_its_operators_give_one_by_one(
    steps: list[tuple[str, tuple[pl.Expr, ...]]],
) -> None:
    stages, wanted = stages_of(steps)
    made = fuse(CLICKS, stages)
    assert made is not None
    got = made.evaluate(COLUMNS)
    assert got.schema.names == wanted.columns
    assert RowType(stages[-1].output).plain(got).to_pylist() == wanted.to_dicts()


def test_a_column_that_is_only_passed_on_stays_the_same_buffers_and_encoded() -> None:
    out = fused(STEPS[0], ("select", (n, a.alias("b"))), ("with_columns", (n + 1,))).evaluate(COLUMNS)
    assert out.schema.names == ["n", "b"]
    assert pa.types.is_dictionary(out.column("b").type)
    assert out.column("b").indices.buffers()[1].address == APPS.indices.buffers()[1].address


def test_columns_that_are_only_renamed_and_chosen_do_not_reach_polars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = fused(("select", (a.alias("b"), n)), ("select", (pl.col("b").alias("c"),)))
    monkeypatch.setattr(FusedExpressions, "run", lambda *_: pytest.fail("asked polars"))
    assert made.evaluate(COLUMNS).column("c").equals(APPS)


def test_no_query_is_made_where_polars_would_carry_another_type_or_choose_the_columns() -> None:
    as_category = ("with_columns", (a.cast(pl.Categorical),))
    assert fuse(CLICKS, stages_of([as_category, STEPS[0]])[0]) is None
    everything = ("with_columns", (pl.col(pl.Int64) + 1,))
    assert fuse(CLICKS, stages_of([STEPS[0], everything])[0]) is None


# ---- in a chain ----


def host() -> ChainHost:
    """A slot that expressions have no use for."""
    calls = {f.name: lambda *_: None for f in dataclasses.fields(ChainHost)[4:]} | {"states": no_states}
    return ChainHost("j", 0, ManualClock(), Options(), **calls)  # type: ignore[arg-type]


def no_states(vertex: JobVertex, spec: OperatorSpec, subtask: int) -> OperatorStates:
    context = StatesContext(
        spec.id,
        spec.name,
        subtask,
        vertex.parallelism,
        vertex.max_parallelism,
        0,
        ManualClock(),
        Options(),
        str,
    )
    return OperatorStates(context)


class Chain:
    """The first task of a program, fed by hand, and what leaves it."""

    def __init__(self, write: Any, **options: Any) -> None:
        env = Environment(parallelism=1, **options)
        write(env.from_collection([], type=CLICKS).rebalance())
        program = env._program("job")
        graph = build_stream_graph(program.name, program.sinks, program.transformations, program.options)
        self.vertex = build_job_graph(graph).vertices[1]
        self.metrics = TaskMetrics(0, 0)
        self.out: list[Batch] = []
        last = len(self.vertex.operators) - 1
        self.chain = OperatorChain(self.vertex, 0, host(), self.metrics, {(last, None): [self.out.append]})
        self.chain.open()

    def push(self, columns: pa.RecordBatch = COLUMNS) -> None:
        batch = Batch(RowType(CLICKS), columns, None, Origin("f", 1), pa.array(range(columns.num_rows)))
        self.chain.process(batch, 0)

    def counts(self) -> list[tuple[int, int]]:
        return [(c.records_in, c.records_out) for c in self.metrics.snapshot(0).operators]


def to_exchange(stream: Any) -> None:
    stream.rebalance().print()


def test_every_operator_of_a_run_counts_its_records_and_timestamps_stay() -> None:
    chain = Chain(lambda s: to_exchange(s.with_columns(n + 1).select(a, n).with_columns(n * 2).filter(n > 4)))
    chain.push()
    chain.push()
    assert chain.counts() == [(8, 8), (8, 8), (8, 8), (8, 4)]
    assert [row for b in chain.out for row in b.rows] == [(None, 8), ("a", 10)] * 2
    assert chain.out[0].timestamps.to_pylist() == [2, 3]


def test_an_error_has_the_name_of_the_operator_of_the_run_that_it_belongs_to() -> None:
    def write(stream: Any) -> None:
        kept = stream.with_columns(n + 1, name="plus").with_columns(
            n.cast(pl.String).alias("app"), name="text"
        )
        to_exchange(kept.with_columns(a.cast(pl.Date), name="date").with_columns(n + 2, name="more"))

    chain = Chain(write)
    with pytest.raises(OperatorError) as caught:
        chain.push()
    assert (caught.value.operator, caught.value.position) == (
        "date",
        "the batch that starts at record 1 of f",
    )
    assert chain.counts()[-1] == (0, 0)


def test_an_operator_whose_result_others_get_too_is_not_skipped() -> None:
    def write(stream: Any) -> None:
        shared = stream.with_columns(n + 1, name="shared")
        shared.with_columns(n * 10, name="left").rebalance().print()
        shared.rebalance().print()

    chain = Chain(write)
    left, shared = [], []
    position = {o.name: i for i, o in enumerate(chain.vertex.operators)}
    taken = {(position["left"], None): [left.append], (position["shared"], None): [shared.append]}
    made = OperatorChain(chain.vertex, 0, host(), TaskMetrics(0, 0), taken)
    made.open()
    made.process(Batch.of_columns(RowType(CLICKS), COLUMNS), 0)
    assert [row.n for row in left[0].rows] == [20, None, 40, 50]
    assert [row.n for row in shared[0].rows] == [2, None, 4, 5]


def test_a_run_longer_than_one_query_may_be_is_cut() -> None:
    def write(stream: Any) -> None:
        for _ in range(150):
            stream = stream.with_columns(n + 1)
        to_exchange(stream)

    chain = Chain(write)
    chain.push()
    assert [row.n for row in chain.out[0].rows] == [151, None, 153, 154]
    assert set(chain.counts()) == {(4, 4)}
    assert len(chain.counts()) == 150
