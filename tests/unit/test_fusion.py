"""Fusion: which expressions of a chain are one query, and that it gives what its operators give one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import Environment
from tidegate.api.sink import BlackholeSink
from tidegate.core.clock import ManualClock
from tidegate.core.options import Options
from tidegate.core.subtask_info import SubtaskInfo
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.explain_plan import plan_of
from tidegate.graph.job_graph import JobGraph, JobVertex
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.metrics.registry import TaskMetrics
from tidegate.operators.columns.fusion import FusedExpressions
from tidegate.operators.failures import OperatorError
from tidegate.program.operations import ApplyExpressions
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
Step = tuple[Any, tuple[pl.Expr, ...]]
STEPS: list[Step] = [
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


def fused(steps: list[Step]) -> tuple[FusedExpressions, pa.Schema, pl.DataFrame]:
    """The query of steps that the planner lets join, its declared result, and what they give one by one."""
    frame = pl.DataFrame(RowType(CLICKS).plain(COLUMNS))
    operations, declared = [], CLICKS
    for form, expressions in steps:
        frame = frame.select(expressions) if form == "select" else frame.with_columns(expressions)
        output = pa.schema([pa.field(f.name, canonical_type(f.type)) for f in frame.to_arrow().schema])
        operations.append(ApplyExpressions(form, expressions))
        assert operations[-1].joins_query(RowType(declared), RowType(output))
        declared = output
    return FusedExpressions(CLICKS, operations, declared), declared, frame


@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=8))
def test_any_run_gives_what_its_operators_give_one_by_one(steps: list[Step]) -> None:
    made, declared, wanted = fused(steps)
    got = made.evaluate(COLUMNS)
    assert got.schema.names == wanted.columns
    assert RowType(declared).plain(got).to_pylist() == wanted.to_dicts()


def test_a_column_that_is_only_passed_on_stays_the_same_buffers_and_encoded() -> None:
    made, _, _ = fused([STEPS[0], ("select", (n, a.alias("b"))), ("with_columns", (n + 1,))])
    out = made.evaluate(COLUMNS)
    assert out.schema.names == ["n", "b"]
    assert pa.types.is_dictionary(out.column("b").type)
    assert out.column("b").indices.buffers()[1].address == APPS.indices.buffers()[1].address


def test_columns_that_are_only_renamed_and_chosen_do_not_reach_polars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, _, _ = fused([("select", (a.alias("b"), n)), ("select", (pl.col("b").alias("c"),))])
    monkeypatch.setattr(FusedExpressions, "run", lambda *_: pytest.fail("asked polars"))
    assert made.evaluate(COLUMNS).column("c").equals(APPS)


# ---- which operators are one query ----


def queries_of(*streams: Any) -> list[list[str]]:
    """The queries of all tasks, by the names of their operators; those that explain shows are the same."""
    env = streams[0]._env
    for stream in streams:
        stream.sink_to(BlackholeSink())
    program = env._program("job")
    graph = build_stream_graph(program.name, program.sinks, program.transformations, program.options)
    vertices = JobGraph.decode(build_job_graph(graph).encode()).vertices
    assert [task.queries for task in plan_of(graph).tasks] == [[list(q) for q in v.queries] for v in vertices]
    return [[v.operators[i].name for i in query] for v in vertices for query in v.queries]


def clicks(schema: pa.Schema = CLICKS, **options: Any) -> Any:
    return Environment(parallelism=1, **options).from_collection([], type=schema, name="clicks")


def test_select_and_with_columns_that_follow_each_other_are_one_query() -> None:
    stream = clicks().with_columns(n + 1, name="1").select(a, n, name="2").with_columns(n * 2, name="3")
    assert queries_of(stream.map(tuple, returns=object).rebalance()) == [["1", "2", "3"]]
    assert queries_of(clicks().with_columns(n + 1)) == [], "one operator needs no query"


@pytest.mark.parametrize(
    "between",
    [
        lambda s: s.filter(n > 1),
        lambda s: s.filter(bool),
        lambda s: s.rebalance(),
        lambda s: s.map_batches(lambda columns: columns, returns=RowType(CLICKS)),
        lambda s: s.with_columns(pl.col(pl.Int64) + 1),
        lambda s: s.with_columns(a.cast(pl.Categorical)),
        lambda s: s.with_columns(n + 0).disable_chaining(),
    ],
    ids=[
        "filter",
        "filter per record",
        "exchange",
        "function",
        "selector",
        "type without a column",
        "chaining",
    ],
)
def test_a_query_ends_where_something_else_comes_between(between: Any) -> None:
    before = clicks().with_columns(n + 1, name="1").with_columns(n + 2, name="2")
    after = between(before).with_columns(n + 3, name="3").with_columns(n + 4, name="4")
    assert queries_of(after) == [["1", "2"], ["3", "4"]]


def test_operators_of_other_tasks_are_not_one_query() -> None:
    first = clicks().with_columns(n + 1)
    assert queries_of(first.with_columns(n + 2).start_new_chain()) == []
    assert queries_of(clicks().with_columns(n + 1).with_columns(n + 2, parallelism=2)) == []
    assert queries_of(clicks(chaining=False).with_columns(n + 1).with_columns(n + 2)) == []


def test_an_operator_whose_result_others_get_too_ends_its_query() -> None:
    shared = clicks().with_columns(n + 1, name="1").with_columns(n + 2, name="shared")
    left = shared.with_columns(n + 3, name="3").with_columns(n + 4, name="4")
    assert queries_of(left, shared.rebalance()) == [["1", "shared"], ["3", "4"]]
    assert queries_of(left, shared.filter(n > 1)) == [["1", "shared"], ["3", "4"]]


def test_a_column_that_polars_does_not_have_is_passed_on_around_a_query_but_not_copied_in_it() -> None:
    wide = clicks(CLICKS.append(pa.field("d", pa.decimal256(50, 2))))
    passed = wide.with_columns(n + 1, name="1").select("d", n, name="2")
    assert queries_of(passed.with_columns(pl.col("d").alias("e"))) == [["1", "2"]]


def test_the_operators_of_a_query_keep_their_ids() -> None:
    ids = {}
    for chaining in (True, False):
        stream = clicks(chaining=chaining).with_columns(n + 1).select(a, n)
        stream.print()
        program = stream._env._program("job")
        graph = build_stream_graph(program.name, program.sinks, program.transformations, program.options)
        ids[chaining] = [o.id for v in build_job_graph(graph).vertices for o in v.operators]
    assert ids[True] == ids[False]


# ---- in a chain ----


def host() -> ChainHost:
    """A slot that expressions have no use for."""
    calls = {f.name: lambda *_: None for f in dataclasses.fields(ChainHost)[4:]} | {"states": no_states}
    return ChainHost("j", 0, ManualClock(), Options(), **calls)  # type: ignore[arg-type]


def no_states(vertex: JobVertex, subtask: SubtaskInfo) -> OperatorStates:
    context = StatesContext(subtask=subtask, clock=ManualClock(), options=Options(), local_directory=str)
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
        batch = Batch(
            RowType(CLICKS),
            columns=columns,
            origin=Origin("f", 1),
            timestamps=pa.array(range(columns.num_rows)),
        )
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
    assert chain.vertex.queries == ()
    left, shared = [], []
    position = {o.name: i for i, o in enumerate(chain.vertex.operators)}
    taken = {(position["left"], None): [left.append], (position["shared"], None): [shared.append]}
    made = OperatorChain(chain.vertex, 0, host(), TaskMetrics(0, 0), taken)
    made.open()
    made.process(Batch(RowType(CLICKS), columns=COLUMNS), 0)
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
    assert [len(query) for query in chain.vertex.queries] == [64, 64, 22]


def test_the_slot_runs_as_one_query_what_the_graph_says_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[int] = []
    run = FusedExpressions.run
    monkeypatch.setattr(FusedExpressions, "run", lambda q, frame: runs.append(len(frame)) or run(q, frame))
    chain = Chain(lambda s: to_exchange(s.with_columns(n + 1).with_columns(n + 2).with_columns(n + 3)))
    chain.push()
    assert (chain.vertex.queries, runs) == (((0, 1, 2),), [4])
    alone = msgspec.structs.replace(chain.vertex, queries=())
    out: list[Batch] = []
    made = OperatorChain(alone, 0, host(), TaskMetrics(0, 0), {(2, None): [out.append]})
    made.open()
    made.process(Batch(RowType(CLICKS), columns=COLUMNS), 0)
    assert runs == [4]
    assert out[0].rows == chain.out[0].rows


def test_operators_run_one_by_one_where_only_the_query_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(lambda s: to_exchange(s.with_columns(n + 1).with_columns(n * 2)))

    def fail(*_: Any) -> None:
        raise ValueError("not as one")

    monkeypatch.setattr(FusedExpressions, "run", fail)
    chain.push()
    chain.push()
    assert [row.n for row in chain.out[1].rows] == [4, None, 8, 10]
    assert chain.counts() == [(8, 8), (8, 8)]
