"""From transformations to a StreamGraph: what is refused, and every choice that the planner makes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tidegate import CoMapFunction, Environment, OutputTag, ProgramError
from tidegate.api.sink import BlackholeSink
from tidegate.api.source import Boundedness, Source
from tidegate.api.streams import DataStream
from tidegate.core.options import Options
from tidegate.graph.chaining import build_job_graph, chains
from tidegate.graph.stream_graph import StreamGraph, StreamNode, build_stream_graph
from tidegate.program.operations import ApplyFunction, ReadSource
from tidegate.program.partitioning import Broadcast, Forward, Hash, Rebalance
from tidegate.program.sequences import NumberSequenceSource
from tidegate.program.transformations import StreamRef, Transformation
from tidegate.records.types import RecordType, record_type_of


def identity(n: int) -> int:
    return n


def graph_of(env: Environment) -> StreamGraph:
    program = env._program("job")
    return build_stream_graph(program.name, program.sinks, program.transformations, program.options)


def node(graph: StreamGraph, name: str) -> StreamNode:
    (found,) = [n for n in graph.nodes if n.name == name]
    return found


class Columns(Source):
    """A source that exists only in plans; it can read fewer columns."""

    def __init__(self, *names: str, narrows: bool = True) -> None:
        self.names = names
        self.narrows = narrows

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    @property
    def record_type(self) -> RecordType:
        return record_type_of(pa.schema([(n, pa.int64()) for n in self.names]))

    def with_columns(self, names: Sequence[str]) -> Source | None:
        return Columns(*names) if self.narrows else None

    def create_enumerator(self, context: Any) -> Any:
        raise NotImplementedError

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        raise NotImplementedError

    def create_reader(self, context: Any) -> Any:
        raise NotImplementedError


class TestRefusals:
    def test_a_program_without_a_sink(self) -> None:
        env = Environment()
        env.from_sequence(1, 3).map(identity)
        with pytest.raises(ProgramError, match=r"no sink.*end a stream with sink_to"):
            graph_of(env)

    def test_two_equal_uids(self) -> None:
        env = Environment()
        env.from_sequence(1, 3, uid="a", name="one").map(identity, uid="a", name="two").print()
        with pytest.raises(ProgramError, match="'one' and 'two' both have the uid 'a'"):
            graph_of(env)

    @pytest.mark.parametrize("length", [1, 2, 5])
    def test_a_cycle(self, length: int) -> None:
        def plain(id: int) -> Transformation:
            return Transformation(id, ApplyFunction("map", identity), f"op {id}", (), record_type_of(int))

        nodes = [plain(i) for i in range(length)]
        for i, each in enumerate(nodes):
            each.inputs = ((StreamRef(nodes[i - 1]),),)
        sink = plain(99)
        sink.inputs = ((StreamRef(nodes[-1]),),)
        with pytest.raises(ProgramError, match=r"the program has a cycle through operator 'op \d'"):
            build_stream_graph("job", (sink,), (), Options())

    def test_forward_between_unequal_parallelisms(self) -> None:
        env = Environment()
        env.from_sequence(1, 3, name="numbers").forward().map(identity, name="twice", parallelism=2).print()
        with pytest.raises(
            ProgramError,
            match=r"forward from 'numbers' \(parallelism 1\) to 'twice' \(parallelism 2\).*Use rebalance",
        ):
            graph_of(env)

    def test_a_parallelism_above_the_max_parallelism(self) -> None:
        env = Environment()
        env.from_sequence(1, 3).map(identity, name="wide", parallelism=8, max_parallelism=4).print()
        with pytest.raises(ProgramError, match=r"'wide' has parallelism 8 but max parallelism 4\. Set max_"):
            graph_of(env)


class TestChoices:
    def test_order_has_every_operator_after_its_inputs(self) -> None:
        env = Environment()
        a = env.from_sequence(1, 3)
        b = a.map(identity).union(a).map(identity)
        b.union(a.map(identity), b).print()
        graph = graph_of(env)
        for edge in graph.edges:
            assert edge.source.index < edge.target.index
        assert [n.index for n in graph.nodes] == list(range(len(graph.nodes)))

    def test_programs_of_thousands_of_operators_need_no_recursion(self) -> None:
        env = Environment()
        stream = env.from_sequence(1, 3)
        for _ in range(3000):
            stream = stream.map(identity)
        stream.print()
        graph = graph_of(env)
        assert len(graph.nodes) == 3002
        assert len(chains(graph)) == 1

    def test_operators_that_lead_to_no_sink_are_left_out_and_named(self) -> None:
        env = Environment()
        numbers = env.from_sequence(1, 3)
        numbers.map(identity, name="forgotten")
        numbers.print()
        graph = graph_of(env)
        assert graph.unused == ["forgotten"]
        assert [n.name for n in graph.nodes] == ["sequence 1..3", "print"]

    def test_operators_of_a_program_that_ran_are_not_unused_in_the_next(self) -> None:
        env = Environment()
        env.from_sequence(1, 3).print()
        env._take_program(None)
        env.from_sequence(4, 5).print()
        assert graph_of(env).unused == []

    def test_two_sinks_on_one_stream_share_everything_before_them(self) -> None:
        env = Environment()
        mapped = env.from_sequence(1, 3).map(identity)
        mapped.print("a")
        mapped.sink_to(BlackholeSink())
        graph = graph_of(env)
        assert [n.operation.kind for n in graph.nodes] == ["source", "map", "sink", "sink"]
        assert len(build_job_graph(graph).vertices) == 1

    def test_the_planner_forwards_between_equal_parallelisms_and_rebalances_between_others(self) -> None:
        env = Environment(parallelism=2)
        env.from_sequence(1, 3).map(identity).map(identity, parallelism=3).print()
        kinds = [type(e.partitioning) for e in graph_of(env).edges]
        assert kinds == [Forward, Rebalance, Rebalance]

    def test_what_the_program_says_wins(self) -> None:
        env = Environment(parallelism=2)
        env.from_sequence(1, 3).broadcast().map(identity).print()
        assert isinstance(graph_of(env).edges[0].partitioning, Broadcast)

    def test_a_key_over_a_partitioning_is_a_hash(self) -> None:
        env = Environment()
        env.from_sequence(1, 3).rebalance().key_by("value").count().print()
        assert isinstance(graph_of(env).edges[0].partitioning, Hash)

    def test_parallelism_is_the_operators_own_then_the_sources_then_the_option(self) -> None:
        class Single(Columns):
            fixed_parallelism = 1  # type: ignore[assignment]

        env = Environment(parallelism=3)
        env.from_source(Single("a"), name="single").select("a", name="own", parallelism=2).print()
        graph = graph_of(env)
        assert [n.parallelism for n in graph.nodes] == [1, 2, 3]

    def test_a_pre_aggregation_runs_where_its_input_does(self) -> None:
        env = Environment(parallelism=4)
        env.from_sequence(1, 3, parallelism=2).key_by("value").count(emit="batch").print()
        graph = graph_of(env)
        assert [n.parallelism for n in graph.nodes] == [2, 2, 4, 4]
        assert [[n.name for n in c] for c in chains(graph)] == [
            ["sequence 1..3", "local count"],
            ["count", "print"],
        ]

    def test_a_slot_sharing_group_is_inherited_from_inputs_that_agree(self) -> None:
        class Both(CoMapFunction):
            def map1(self, value: int) -> int:
                return value

            def map2(self, value: int) -> int:
                return value

        env = Environment()
        a = env.from_sequence(1, 3, slot_sharing_group="a")
        b = env.from_sequence(1, 3, slot_sharing_group="b")
        a.map(identity, name="inherits").print()
        a.connect(b).map(Both(), name="mixed").print()
        b.map(identity, name="own", slot_sharing_group="c").print()
        graph = graph_of(env)
        groups = {n.name: n.slot_sharing_group for n in graph.nodes if n.name in ("inherits", "mixed", "own")}
        assert groups == {"inherits": "a", "mixed": "default", "own": "c"}

    def test_five_operators_of_parallelism_four_at_most_share_four_slots(self) -> None:
        env = Environment()
        stream: DataStream = env.from_sequence(1, 3, name="A", parallelism=4)
        for name, parallelism in (("B", 4), ("C", 2), ("D", 4)):
            stream = stream.map(identity, name=name, parallelism=parallelism)
        stream.sink_to(BlackholeSink(), name="E", parallelism=2)
        job = build_job_graph(graph_of(env))
        assert sum(v.parallelism for v in job.vertices for _ in v.operators) == 16
        assert job.slots_needed == 4
        assert job.slots_by_group() == {"default": 4}

    def test_groups_that_do_not_share_need_the_sum_of_their_slots(self) -> None:
        env = Environment()
        source = env.from_sequence(1, 3, parallelism=4)
        source.map(identity, parallelism=3, slot_sharing_group="heavy").print()
        job = build_job_graph(graph_of(env))
        assert job.slots_by_group() == {"default": 4, "heavy": 3}
        assert job.slots_needed == 7


class TestProjections:
    def columns_read(self, env: Environment) -> list[str]:
        graph = graph_of(env)
        source = graph.nodes[0]
        assert isinstance(source.operation, ReadSource)
        assert source.output_type == source.operation.source.record_type
        return source.output_type.names

    def test_a_source_reads_only_what_its_consumers_use_in_its_own_order(self) -> None:
        env = Environment()
        stream = env.from_source(Columns("a", "b", "c", "d"))
        stream.select("d", pl.col("b") + 1).print()
        stream.key_by("a").sum("b").print()
        assert self.columns_read(env) == ["a", "b", "d"]

    def test_the_key_of_the_exchange_is_read_too(self) -> None:
        env = Environment()
        env.from_source(Columns("a", "b", "c")).key_by("c").select("a").print()
        assert self.columns_read(env) == ["a", "c"]

    def test_so_is_the_key_of_a_custom_partitioning(self) -> None:
        env = Environment()
        env.from_source(Columns("a", "b", "c")).partition_custom(lambda k, n: 0, "b").select("a").print()
        assert self.columns_read(env) == ["a", "b"]

    @pytest.mark.parametrize(
        "use",
        [
            lambda s: s.map(identity),
            lambda s: s.filter(pl.col("a") > 0),
            lambda s: s.select("a", pl.all().exclude("a")),
            lambda s: s.select(pl.sum_horizontal(pl.all())),
            lambda s: s.key_by(lambda r: r.a).count(),
            lambda s: s.key_by(lambda r: r.a).select("b"),
            lambda s: s.with_columns(pl.col("a").alias("z")),
        ],
        ids=[
            "rows",
            "filter",
            "all",
            "selector",
            "key function",
            "key function before select",
            "with_columns",
        ],
    )
    def test_all_is_read_where_a_consumer_may_use_all(self, use: Any) -> None:
        env = Environment()
        use(env.from_source(Columns("a", "b", "c"))).print()
        assert self.columns_read(env) == ["a", "b", "c"]

    def test_one_consumer_that_uses_all_is_enough(self) -> None:
        env = Environment()
        stream = env.from_source(Columns("a", "b"))
        stream.select("a").print()
        stream.print()
        assert self.columns_read(env) == ["a", "b"]

    def test_a_source_that_would_save_nothing_stays(self) -> None:
        env = Environment()
        source = Columns("a", "b", narrows=False)
        env.from_source(source).select("a").print()
        operation = graph_of(env).nodes[0].operation
        assert isinstance(operation, ReadSource)
        assert operation.source is source


PROGRAM = """
import polars as pl
from tidegate import Environment
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph

env = Environment(parallelism=2)
numbers = env.from_sequence(1, 9)
numbers.filter(pl.col("value") > 3).key_by("value").count().print()
numbers.map(lambda n: n, returns=int, uid="mine").print()
program = env._program("job")
graph = build_stream_graph(program.name, program.sinks, program.transformations, program.options)
job = build_job_graph(graph)
print(",".join(n.operator_id for n in graph.nodes))
print([(v.name, v.links) for v in job.vertices], [(e.source, e.target, e.partitioning, e.columns) for e in job.edges])
"""


class TestOperatorIds:
    def ids(self, env: Environment) -> dict[str, str]:
        return {n.name: n.operator_id for n in graph_of(env).nodes}

    def test_are_the_same_in_every_process(self) -> None:
        outputs = {
            subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(outputs) == 1
        ids = outputs.pop().split()[0].split(",")
        assert len(set(ids)) == len(ids) == 6
        assert {len(i) for i in ids} == {32}

    def test_follow_the_inputs(self) -> None:
        one, other = Environment(), Environment()
        one.from_sequence(1, 3).map(identity, name="m").print()
        other.from_sequence(1, 4).map(identity, name="m").print()
        assert self.ids(one)["m"] != self.ids(other)["m"]
        assert self.ids(one)["print"] != self.ids(other)["print"]

    def test_come_from_the_uid_alone_where_there_is_one(self) -> None:
        one, other = Environment(), Environment()
        one.from_sequence(1, 3).map(identity, name="m", uid="x").print()
        other.from_sequence(1, 4).filter(bool, name="m", uid="x").print()
        assert self.ids(one)["m"] == self.ids(other)["m"]
        assert self.ids(one)["print"] == self.ids(other)["print"]

    def test_do_not_follow_names_and_parallelism(self) -> None:
        one, other = Environment(), Environment()
        one.from_sequence(1, 3, name="a").map(identity, name="m").print()
        other.from_sequence(1, 3, name="b").map(identity, name="m", parallelism=2).print()
        assert self.ids(one)["m"] == self.ids(other)["m"]

    def test_stay_when_an_unrelated_part_is_added_before(self) -> None:
        one, other = Environment(), Environment()
        other.from_sequence(7, 9).filter(bool).sink_to(BlackholeSink())
        for env in (one, other):
            env.from_sequence(1, 3).map(identity, name="m").print()
        assert self.ids(one)["m"] == self.ids(other)["m"]

    def test_of_equal_operators_differ(self) -> None:
        env = Environment()
        numbers = env.from_source(NumberSequenceSource(1, 3))
        numbers.map(identity).print()
        numbers.map(identity).print()
        graph = graph_of(env)
        assert len({n.operator_id for n in graph.nodes}) == len(graph.nodes)


def test_an_edge_has_the_type_of_the_output_it_carries() -> None:
    tag: OutputTag[str] = OutputTag("rest", str)
    env = Environment()
    env.from_sequence(1, 3).process(lambda v, c: (), returns=int, side_outputs=(tag,)).get_side_output(
        tag
    ).print()
    edge = graph_of(env).edges[-1]
    assert (edge.tag, edge.record_type) == ("rest", record_type_of(str))
