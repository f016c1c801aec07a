"""A program with every kind of operation, source, sink, window, trigger and aggregate, for tests of what they state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from tests.contract.state_backend_kit import MemoryStorage
from tidegate import (
    AggregateFunction,
    Avg,
    BroadcastProcessFunction,
    CoMapFunction,
    Count,
    CountDistinct,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    DataGeneratorSource,
    Environment,
    EventTimeSessionWindows,
    FileSink,
    FileSource,
    First,
    GlobalWindows,
    KeyedProcessFunction,
    Last,
    MapState,
    Max,
    Min,
    ProcessFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SocketSource,
    Sum,
    TopN,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueState,
    WatermarkStrategy,
)
from tidegate.api.sink import BlackholeSink
from tidegate.graph.stream_graph import StreamGraph, StreamNode, build_stream_graph
from tidegate.program.sequences import NumberSequenceSource
from tidegate.testing.harness import OperatorHarness


class Click(NamedTuple):
    user: str
    price: int
    ts: int


def double(click: Click) -> Click:
    return click


def user_of(click: Click) -> str:
    return click.user


def both(left: Click, right: Click) -> Click:
    return left


def batches(columns: pa.RecordBatch) -> pa.RecordBatch:
    return columns


async def ask(click: Click) -> Click:
    return click


class Remember(ProcessFunction):
    last = ValueState(Click)
    seen = MapState(str, int)

    def process(self, value: Click, context: Any) -> Iterator[Click]:
        yield value


class Alarm(KeyedProcessFunction):
    def process(self, value: Click, context: Any) -> Iterator[Click]:
        yield value

    def on_timer(self, timestamp_ms: int, context: Any) -> Iterator[Click]:
        yield from ()


class Both(CoMapFunction):
    last = ValueState(int)

    def map1(self, value: Click) -> Click:
        return value

    def map2(self, value: Click) -> Click:
        return value


class Rules(BroadcastProcessFunction):
    def process(self, value: Click, context: Any) -> Iterator[Click]:
        yield value

    def process_broadcast(self, value: Click, context: Any) -> Iterator[Click]:
        yield from ()


class Total(AggregateFunction[Click, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Click, accumulator: int) -> int:
        return accumulator + value.price

    def merge(self, left: int, right: int) -> int:
        return left + right

    def get_result(self, accumulator: int) -> int:
        return accumulator


class All(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Iterable[Click]) -> Iterator[Click]:
        yield from elements


ALL_AGGREGATES = {
    "n": Count(),
    "prices": Count("price"),
    "total": Sum("price"),
    "least": Min("price"),
    "most": Max("price"),
    "mean": Avg("price"),
    "first": First("price"),
    "last": Last("price"),
    "users": CountDistinct("user"),
    "best": TopN(2, by="price", select=["user"]),
}


def program() -> StreamGraph:
    """Every kind of operation, source, sink, window, trigger and aggregate; none has a uid."""
    env = Environment(checkpoint_interval="1 s", state_backend="heap")
    strategy = WatermarkStrategy.bounded("2 s", "ts")
    clicks = env.from_source(FileSource("/data/in", "json", Click), strategy, name="clicks")
    plain = env.from_collection([Click("a", 1, 1)], name="plain")
    timed = plain.assign_timestamps_and_watermarks(strategy, name="timed")

    def end(stream: Any) -> None:
        stream.sink_to(BlackholeSink(), name=f"after {stream._node.name}")

    env.from_source(SocketSource("example.org", 9), name="lines").sink_to(
        FileSink("/data/out", "text"), name="files"
    )
    env.from_source(NumberSequenceSource(1, 9), name="numbers").sink_to(print, name="call")
    end(env.from_source(DataGeneratorSource(_numbers, count=10), name="generated"))
    clicks.print("shown").name("shown")
    end(clicks.map(double, name="map").flat_map(lambda c: [c], returns=Click, name="flat_map"))
    end(clicks.filter(bool, name="filter").map_batches(batches, returns=Click, name="map_batches"))
    end(clicks.map_async(ask, name="async"))
    cheap = clicks.filter(pl.col("price") < 9, name="cheap")
    end(cheap.with_columns(twice=pl.col("price") * 2, name="with_columns").select("twice", name="select"))

    by_user = clicks.key_by("user")
    others = timed.key_by("user")
    end(by_user.process(Remember(), returns=Click, name="process"))
    end(by_user.process(Alarm(), returns=Click, name="timers"))
    end(by_user.connect(others).map(Both(), name="co-map"))
    end(clicks.connect(plain.broadcast()).process(Rules(), returns=Click, name="broadcast"))
    end(by_user.count(name="count"))
    end(by_user.sum("price", emit="batch", name="sum"))
    end(clicks.key_by(user_of).max("price", name="max"))
    end(by_user.reduce(both, name="reduce"))
    end(by_user.deduplicate(within="1 min", name="deduplicate"))
    end(by_user.interval_join(others).between("-1 s", "2 s").apply(both, name="interval join"))
    tumbling = TumblingEventTimeWindows("10 s")
    joined = clicks.join(timed).where("user").equal_to("user")
    end(joined.window(tumbling).apply(both, name="window join"))

    end(by_user.window(tumbling).reduce(both, name="window reduce"))
    end(by_user.window(tumbling).aggregate(Total(), name="window aggregate"))
    end(by_user.window(tumbling).process(All(), returns=Click, name="window process"))
    end(clicks.window_all(tumbling).process(All(), returns=Click, name="window all"))
    end(by_user.window(tumbling).aggregate(**ALL_AGGREGATES, name="in two stages"))
    end(clicks.key_by(user_of).window(tumbling).aggregate(**ALL_AGGREGATES, name="in one stage"))
    days = TumblingEventTimeWindows("1 d", time_zone="Europe/Berlin")
    for name, windows in (
        ("days", days),
        ("sliding", SlidingEventTimeWindows("10 s", "3 s", offset="1 s")),
        ("cumulative", CumulativeEventTimeWindows("1 h", "5 min")),
        ("sessions", EventTimeSessionWindows.with_gap("30 s")),
        ("processing time", TumblingProcessingTimeWindows("1 min")),
    ):
        end(by_user.window(windows).sum("price", name=name))
    fives = by_user.window(GlobalWindows()).trigger(PurgingTrigger(CountTrigger(5)))
    end(fives.aggregate(**ALL_AGGREGATES, name="global"))
    end(fives.evictor(CountEvictor(3)).aggregate(**ALL_AGGREGATES, name="evicted"))
    return graph_of(env)


def _numbers(indices: Any, rng: Any) -> dict[str, Any]:
    return {"n": indices}


def graph_of(env: Environment) -> StreamGraph:
    made = env._program("job")
    return build_stream_graph(made.name, made.sinks, made.transformations, made.options)


def keyed_state(node: StreamNode, graph: StreamGraph) -> dict[str, str]:
    """What the node's operator keeps by key, by name: the fingerprints in its first checkpoint."""
    types = {e.input: e.record_type for e in node.inputs}
    h = OperatorHarness(
        node.operation,
        [types[i] for i in sorted(types)],
        node.output_type,
        side_outputs=dict(node.side_outputs),
        options=graph.options,
    )
    with h:
        h.operator.snapshot(1)
        written = h.states.snapshot(1)(MemoryStorage().writer(1, 0, "operator", 0))
    h.states.close()
    return {} if written.keyed is None else {s.name: s.fingerprint for s in written.keyed.states}
