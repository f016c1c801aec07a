"""Small programs with their answers in plain Python, for runs under many orders of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate import (
    CoFlatMapFunction,
    CoProcessFunction,
    Environment,
    OutputTag,
    ProcessContext,
    ProcessFunction,
)
from tidegate.api.streams import DataStream
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager.events import DeliverCollected
from tidegate.records.wire import decode_batch
from tidegate.runtime.simulation import Simulation

N = 40


def make_simulation(stream: DataStream, seed: int, **settings: Any) -> tuple[Simulation, list[Any]]:
    """A simulation of a program that collects this stream, and the list that its records will come to."""
    env = stream._env
    sink = stream._collect_sink()
    program = env._program("simulated", (sink._node,))
    graph = build_stream_graph(program.name, program.sinks, program.transformations, program.options)
    simulation = Simulation(build_job_graph(graph), env.options, seed, **settings)
    rows: list[Any] = []

    def take(batch: DeliverCollected) -> None:
        rows.extend(decode_batch(batch.data, stream.record_type).rows)

    (node,) = [n for n in graph.nodes if n.operation.kind == "sink"]
    simulation.consumers[node.operator_id] = take
    return simulation, rows


def run(stream: DataStream, seed: int) -> tuple[list[Any], list[str]]:
    """Run to the end; the records that were collected and the trace."""
    simulation, rows = make_simulation(stream, seed)
    try:
        simulation.run()
    finally:
        simulation.close()
    assert simulation.message == ""
    return rows, simulation.trace


@dataclass(frozen=True)
class Topology:
    """A program and what must come out of it, in any order."""

    build: Callable[[Environment], DataStream]
    expected: list[Any]
    check: Callable[[list[Any]], None] = lambda rows: None
    """What the order must be, where one is promised."""
    undo: Callable[[list[Any]], list[Any]] = list
    """Makes results that depend on the order of arrival independent of it."""

    def verify(self, rows: list[Any]) -> None:
        """Check the records that came out."""
        self.check(rows)
        assert Counter(self.undo(rows)) == Counter(self.expected)


class Pair(NamedTuple):
    key: int
    value: int


def to_pair(n: int) -> Pair:
    return Pair(n % 5, n)


def double(n: int) -> int:
    return 2 * n


def negative(n: int) -> int:
    return -n


def last_digit(n: int) -> int:
    return n % 10


def two_of_each(n: int) -> Iterator[int]:
    yield n
    yield n


class Tagged(CoFlatMapFunction):
    def flat_map1(self, value: int) -> Iterator[str]:
        yield f"left {value}"

    def flat_map2(self, value: str) -> Iterator[str]:
        yield f"right {value}"


class Rest(ProcessFunction):
    odd = OutputTag("odd", int)

    def process(self, value: int, context: ProcessContext) -> Iterator[int]:
        if value % 2:
            context.output(self.odd, value)
        else:
            yield value


class CountBoth(CoProcessFunction):
    """Keyed on both sides: the n-th record of each key over both inputs."""

    def open(self, context) -> None:
        self.counts: Counter[int] = Counter()

    def process1(self, value: int, context: ProcessContext) -> Iterator[tuple[int, int]]:
        self.counts[value % 5] += 1
        yield value % 5, self.counts[value % 5]

    def process2(self, value: int, context: ProcessContext) -> Iterator[tuple[int, int]]:
        yield from self.process1(value, context)


def numbers(env: Environment, n: int = N, parallelism: int = 2) -> DataStream:
    return env.from_sequence(1, n).set_parallelism(parallelism)


def hash_count(env: Environment) -> DataStream:
    return numbers(env, parallelism=3).map(to_pair).set_parallelism(3).key_by("key").count()


def hash_by_function(env: Environment) -> DataStream:
    pairs = numbers(env, parallelism=3).map(to_pair)
    return pairs.key_by(lambda pair: pair.key).reduce(lambda a, b: Pair(a.key, a.value + b.value))


def rebalanced(env: Environment) -> DataStream:
    return numbers(env, parallelism=1).rebalance().map(double).set_parallelism(3).rebalance().map(negative)


def exploded(env: Environment) -> DataStream:
    return numbers(env).rebalance().flat_map(two_of_each).shuffle().flat_map(two_of_each).set_parallelism(3)


def unioned(env: Environment) -> DataStream:
    left, right = numbers(env, parallelism=1), numbers(env, 2 * N, parallelism=3).map(double)
    return left.union(right).map(to_pair).key_by("key").sum("value")


def connected(env: Environment) -> DataStream:
    words = env.from_collection([f"w{i}" for i in range(N)])
    return numbers(env, parallelism=3).connect(words).flat_map(Tagged(), returns=str).set_parallelism(2)


def connected_by_key(env: Environment) -> DataStream:
    left, right = numbers(env), numbers(env, 2 * N, parallelism=1)
    joined = left.connect(right).key_by(lambda n: n % 5, lambda n: n % 5)
    return joined.process(CountBoth(), returns=tuple[int, int])


def broadcasted(env: Environment) -> DataStream:
    return numbers(env).broadcast().map(double).set_parallelism(3)


def side_output(env: Environment) -> DataStream:
    rest = Rest()
    even = numbers(env).process(rest, returns=int, side_outputs=[Rest.odd])
    odd = even.get_side_output(Rest.odd)
    return even.rebalance().map(double).union(odd.rebalance().map(negative).set_parallelism(1))


def pointwise(env: Environment) -> DataStream:
    spread = numbers(env).rescale().map(double).set_parallelism(4)
    return spread.rescale().map(negative).set_parallelism(2).global_().map(negative).set_parallelism(2)


def custom(env: Environment) -> DataStream:
    sent = numbers(env).partition_custom(lambda key, n: key % n, last_digit)
    return sent.map(double).set_parallelism(4).start_new_chain()


def unchained(env: Environment) -> DataStream:
    return (
        numbers(env)
        .map(double)
        .disable_chaining()
        .map(negative)
        .disable_chaining()
        .filter(lambda n: n % 3 == 0)
    )


def diamond(env: Environment) -> DataStream:
    """One stream on two ways that meet again: the queues of one way must not hold up the other for ever."""
    start = numbers(env).map(double)
    return start.rebalance().map(negative).union(start.rebalance().map(double), start).rebalance().map(double)


def slots_apart(env: Environment) -> DataStream:
    return (
        numbers(env)
        .map(double)
        .slot_sharing_group("other")
        .rebalance()
        .map(negative)
        .slot_sharing_group("third")
    )


def nothing(env: Environment) -> DataStream:
    return env.from_collection([], type=int).rebalance().map(double)


RANGE = range(1, N + 1)


def counts_in_order(rows: list[Any]) -> None:
    """Each key's counts are 1, 2, 3, ... in the order in which they came out."""
    seen: Counter[int] = Counter()
    for key, count in rows:
        seen[key] += 1
        assert count == seen[key]


def increments(rows: list[Any]) -> list[tuple[int, int]]:
    """Running sums back to what was added, in the order in which they came out."""
    sums: Counter[int] = Counter()
    added = []
    for key, total in rows:
        added.append((key, total - sums[key]))
        sums[key] = total
    return added


COUNTS = [(k, i) for k in range(5) for i in range(1, N // 5 + 1)]

TOPOLOGIES = {
    "hash": Topology(hash_count, COUNTS, counts_in_order),
    "hash by function": Topology(hash_by_function, [(n % 5, n) for n in RANGE], undo=increments),
    "union": Topology(
        unioned, [(n % 5, n) for n in [*RANGE, *(2 * n for n in range(1, 2 * N + 1))]], undo=increments
    ),
    "rebalance": Topology(rebalanced, [-2 * n for n in RANGE]),
    "explode": Topology(exploded, [n for n in RANGE for _ in range(4)]),
    "connect": Topology(connected, [f"left {n}" for n in RANGE] + [f"right w{i}" for i in range(N)]),
    "connect keyed": Topology(
        connected_by_key, [(k, i) for k in range(5) for i in range(1, 3 * N // 5 + 1)], counts_in_order
    ),
    "broadcast": Topology(broadcasted, [2 * n for n in RANGE for _ in range(3)]),
    "side output": Topology(side_output, [2 * n if n % 2 == 0 else -n for n in RANGE]),
    "pointwise": Topology(pointwise, [2 * n for n in RANGE]),
    "custom": Topology(custom, [2 * n for n in RANGE]),
    "unchained": Topology(unchained, [-2 * n for n in RANGE if n % 3 == 0]),
    "diamond": Topology(diamond, [m for n in RANGE for m in (-4 * n, 8 * n, 4 * n)]),
    "slots apart": Topology(slots_apart, [-2 * n for n in RANGE]),
    "nothing": Topology(nothing, []),
}
