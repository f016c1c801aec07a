"""Chaining: which operators become one task, the reason where they do not, and the JobGraph that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pytest

from tidegate import CoMapFunction, Environment, OutputTag
from tidegate.api.sink import BlackholeSink
from tidegate.core.errors import ProtocolError
from tidegate.graph.blobs import load_blob
from tidegate.graph.chaining import build_job_graph, chains
from tidegate.graph.job_graph import VERSION, JobGraph
from tidegate.graph.stream_graph import StreamGraph, build_stream_graph
from tidegate.program.operations import ApplyFunction
from tidegate.program.partitioning import Hash


def identity(n: int) -> int:
    return n


class Both(CoMapFunction):
    def map1(self, value: int) -> int:
        return value

    def map2(self, value: int) -> int:
        return value


def graph_of(env: Environment) -> StreamGraph:
    program = env._program("job")
    return build_stream_graph(program.name, program.sinks, program.transformations, program.options)


def names(env: Environment) -> list[list[str]]:
    return [[n.name for n in chain] for chain in chains(graph_of(env))]


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda s, m: s.rebalance().map(m), "rebalance needs an exchange"),
        (lambda s, m: s.rescale().map(m), "rescale needs an exchange"),
        (lambda s, m: s.shuffle().map(m), "shuffle needs an exchange"),
        (lambda s, m: s.broadcast().map(m), "broadcast needs an exchange"),
        (lambda s, m: s.global_().map(m), "global needs an exchange"),
        (
            lambda s, m: s.partition_custom(lambda k, n: 0, "value").map(m),
            "custom(<lambda> of value) needs an exchange",
        ),
        (lambda s, m: s.key_by("value").map(m), "hash(value) needs an exchange"),
        (lambda s, m: s.key_by(identity).map(m), "hash(identity()) needs an exchange"),
        (lambda s, m: s.map(m, parallelism=3), "parallelism 2 and 3 differ"),
        (lambda s, m: s.map(m, max_parallelism=64), "max parallelism 128 and 64 differ"),
        (lambda s, m: s.map(m, slot_sharing_group="g"), "slot-sharing groups 'default' and 'g' differ"),
        (lambda s, m: s.map(m, name="x").start_new_chain(), "'x' starts a new chain"),
        (lambda s, m: s.map(m, name="x").disable_chaining(), "chaining is disabled for 'x'"),
        (lambda s, m: s.union(s).map(m, name="x"), "'x' has 2 inputs"),
        (lambda s, m: s.connect(s).map(Both(), name="x"), "'x' has 2 inputs"),
    ],
)
def test_each_reason_not_to_chain_is_given(write: Callable[..., Any], reason: str) -> None:
    env = Environment(parallelism=2)
    last = write(env.from_sequence(1, 3), identity)
    last.sink_to(BlackholeSink(), parallelism=last._node.parallelism or 2)
    graph = graph_of(env)
    chains(graph)
    assert graph.edges[0].unchained_because == reason


def test_what_only_forwards_becomes_one_task() -> None:
    env = Environment(parallelism=2)
    env.from_sequence(1, 3).map(identity).forward().filter(bool).print()
    assert names(env) == [["sequence 1..3", "map identity", "filter bool", "print"]]


def test_an_operator_with_chaining_disabled_is_alone() -> None:
    env = Environment()
    stream = env.from_sequence(1, 3).map(identity, name="a").disable_chaining()
    stream.map(identity, name="b").print()
    assert names(env) == [["sequence 1..3"], ["a"], ["b", "print"]]


def test_a_new_chain_goes_on_behind_its_head() -> None:
    env = Environment()
    env.from_sequence(1, 3).map(identity, name="a").start_new_chain().map(identity, name="b").print()
    assert names(env) == [["sequence 1..3"], ["a", "b", "print"]]


def test_chaining_can_be_switched_off() -> None:
    env = Environment(chaining=False)
    env.from_sequence(1, 3).map(identity).print()
    graph = graph_of(env)
    assert len(chains(graph)) == 3
    assert {e.unchained_because for e in graph.edges} == {
        "chaining is switched off (pipeline.operator_chaining)"
    }


def test_a_task_may_branch_also_by_side_outputs() -> None:
    tag: OutputTag[int] = OutputTag("rest", int)
    env = Environment()
    split = env.from_sequence(1, 3).process(lambda v, c: (v,), returns=int, side_outputs=(tag,), name="split")
    split.map(identity, name="main").print("a")
    split.get_side_output(tag).sink_to(BlackholeSink(), name="rest")
    (vertex,) = build_job_graph(graph_of(env)).vertices
    position = {o.name: i for i, o in enumerate(vertex.operators)}
    assert {(c.source, c.target, c.tag) for c in vertex.links} == {
        (position["sequence 1..3"], position["split"], None),
        (position["split"], position["main"], None),
        (position["main"], position["print a"], None),
        (position["split"], position["rest"], "rest"),
    }


def keyed_job() -> JobGraph:
    env = Environment(parallelism=2)
    env.from_sequence(1, 9).map(identity, uid="m").key_by("value").count().print()
    return build_job_graph(graph_of(env))


class Click(NamedTuple):
    app: str
    user: int
    page: str


def clicks(env: Environment) -> Any:
    return env.from_collection([Click("a", 1, "p")]).with_columns(pl.col("user") + 1)


def crossing(env: Environment) -> list[tuple[str, ...] | None]:
    return [edge.columns for edge in build_job_graph(graph_of(env)).edges]


class TestColumnsOfAnExchange:
    def test_are_those_that_the_consumer_and_the_partitioner_read_in_their_order(self) -> None:
        env = Environment(parallelism=2)
        keyed = clicks(env).key_by("page")
        keyed.sum("user").print()
        assert crossing(env) == [("user", "page")]
        env = Environment(parallelism=2)
        clicks(env).partition_custom(lambda page, n: 0, "page").select("app").print()
        assert crossing(env) == [("app", "page")]

    def test_are_the_type_that_the_consumer_is_built_for(self) -> None:
        env = Environment(parallelism=2)
        clicks(env).key_by("page").count().print()
        count = load_blob(build_job_graph(graph_of(env)).vertices[1].operators[0].blob)
        assert [t.describe() for t in count.input_types] == ["Row(page: string?)"]

    def test_of_a_union_are_the_same_on_all_its_edges(self) -> None:
        env = Environment(parallelism=2)
        other = clicks(env).filter(pl.col("user") > 0)
        clicks(env).union(other).key_by("app").count().print()
        assert crossing(env) == [("app",), ("app",)]

    def test_are_all_where_the_consumer_needs_the_record_or_the_producer_makes_rows(self) -> None:
        for write in (
            lambda s: s.key_by("app").reduce(lambda a, b: b),
            lambda s: s.rebalance().filter(pl.col("user") > 0),
            lambda s: s.map(lambda row: Click(*row), returns=Click).key_by("app").count(),
            lambda s: s.key_by(lambda row: row.app, returns=str).count(),
        ):
            env = Environment(parallelism=2)
            write(clicks(env)).print()
            assert crossing(env) == [None]


class TestJobGraph:
    def test_has_a_vertex_per_chain_and_an_edge_per_exchange(self) -> None:
        job = keyed_job()
        assert [v.name for v in job.vertices] == ["sequence 1..9 -> map identity", "count -> print"]
        assert [v.is_source for v in job.vertices] == [True, False]
        (edge,) = job.edges
        assert (edge.source, edge.source_operator, edge.target, edge.input) == (0, 1, 1, 0)
        assert (edge.partitioning, edge.pointwise) == ("hash(value)", False)
        assert job.outputs(job.vertices[0].id) == job.inputs(job.vertices[1].id) == [edge]
        assert job.vertex(edge.target).name == "count -> print"

    def test_holds_the_live_objects_as_blobs(self) -> None:
        job = keyed_job()
        payload = load_blob(job.vertices[0].operators[1].blob)
        assert isinstance(payload.operation, ApplyFunction)
        assert payload.operation.function(5) == 5
        assert [t.describe() for t in payload.input_types] == ["int"]
        assert payload.output_type.describe() == "int"
        assert isinstance(load_blob(job.edges[0].blob), Hash)

    def test_crosses_the_wire_unchanged(self) -> None:
        job = keyed_job()
        assert JobGraph.decode(job.encode()) == job

    def test_of_another_version_or_of_no_graph_at_all_is_refused(self) -> None:
        job = keyed_job()
        newer = msgspec.structs.replace(job, version=VERSION + 1)
        with pytest.raises(ProtocolError, match=f"version {VERSION + 1}, but this process reads {VERSION}"):
            JobGraph.decode(newer.encode())
        for data in (b"", b"\xc1", msgspec.msgpack.encode({"name": 5}), job.encode()[:-3]):
            with pytest.raises(ProtocolError, match="are not a JobGraph"):
                JobGraph.decode(data)

    def test_sends_rows_to_who_runs_python_per_record(self) -> None:
        env = Environment()
        numbers = env.from_sequence(1, 3).rebalance()
        numbers.map(str, name="map").sink_to(BlackholeSink(), name="end")
        numbers.sink_to(print, name="call")
        numbers.sink_to(BlackholeSink(), name="nowhere")
        graph = build_job_graph(graph_of(env))
        as_rows = {graph.vertex(e.target).operators[0].name: e.as_rows for e in graph.edges}
        assert as_rows == {"map": True, "call": True, "nowhere": False}

    def test_knows_the_types_of_each_input(self) -> None:
        env = Environment()
        a, b = env.from_sequence(1, 3), env.from_collection(["x"])

        class Two(CoMapFunction):
            def map1(self, value: int) -> int:
                return value

            def map2(self, value: str) -> int:
                return 0

        a.union(a).connect(b).map(Two(), name="two").print()
        job = build_job_graph(graph_of(env))
        (operator,) = [o for v in job.vertices for o in v.operators if o.name == "two"]
        assert [t.describe() for t in load_blob(operator.blob).input_types] == ["int", "str"]
        assert [e.input for e in job.edges] == [0, 0, 1]
