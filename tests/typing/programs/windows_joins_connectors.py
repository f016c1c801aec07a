"""Windows, joins, sources and sinks carry the types on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, assert_type

from tidegate import (
    Avg,
    Batch,
    BlackholeSink,
    Count,
    CountEvictor,
    CountTrigger,
    DataGeneratorSource,
    DataStream,
    Environment,
    FileSink,
    FileSource,
    JobClient,
    JobMetrics,
    OutputTag,
    Row,
    Sink,
    SinkWriter,
    SocketSource,
    Sum,
    TimestampedValue,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowedStream,
    WriterContext,
)
from tidegate.connectors.datagen import uniform_int


@dataclass
class Order:
    id: int
    ts: int


class Payment(NamedTuple):
    order: int
    amount: float
    ts: int


env = Environment(runtime="in-process")
times = WatermarkStrategy.monotonous("ts")
orders = env.from_collection([Order(1, 1_000)]).assign_timestamps_and_watermarks(times)
payments = env.from_collection([Payment(1, 2.5, 2_000)]).assign_timestamps_and_watermarks(times)
by_id = orders.key_by(lambda o: o.id, returns=int)
by_order = payments.key_by(lambda p: p.order, returns=int)
minute = TumblingEventTimeWindows("1 min")

# Windows.
late = OutputTag("late", Order)
windowed = by_id.window(minute).allowed_lateness("5 s").side_output_late_data(late)
assert_type(windowed, WindowedStream[int, Order])
assert_type(windowed.trigger(CountTrigger(2)).evictor(CountEvictor(3)), WindowedStream[int, Order])
assert_type(windowed.count(), DataStream[Row])
assert_type(windowed.aggregate(n=Count(), total=Sum("ts"), mean=Avg("ts"), name="totals"), DataStream[Row])
assert_type(windowed.aggregate(Sum("ts"), uid="sum"), DataStream[Row])
assert_type(windowed.top_n(3, by="ts").get_side_output(late), DataStream[Order])
assert_type(orders.window_all(minute), WindowedStream[None, Order])
assert_type(TimestampedValue(Order(1, 2), 3).value, Order)

# Joins.
joined = by_id.interval_join(by_order).between("-1 s", "10 min")
assert_type(joined.apply(lambda o, p: p.amount + o.id, returns=float), DataStream[float])
assert_type(
    joined.how("left").apply(lambda o, p: 0.0 if p is None else p.amount, returns=float), DataStream[float]
)
in_windows = orders.join(payments).where(lambda o: o.id, returns=int).equal_to(lambda p: p.order, returns=int)
assert_type(in_windows.window(minute).apply(lambda o, p: p.amount, returns=float), DataStream[float])
assert_type(
    in_windows.window(minute).how("full").apply(lambda o, p: o is None or p is None, returns=bool),
    DataStream[bool],
)


def unpaid(orders: Sequence[Order], payments: Sequence[Payment]) -> Iterator[int]:
    yield len(orders) - len(payments)


groups = orders.co_group(payments).where("id").equal_to("order").window(minute)
assert_type(groups.apply(unpaid), DataStream[int])
assert_type(groups.apply(lambda os, ps: [len(os), len(ps)], returns=int), DataStream[int])

# Sources and sinks.
directory = tempfile.mkdtemp()
assert_type(FileSource(directory, "json", Order), FileSource[Order])
assert_type(FileSource(directory, schema=Payment, format="csv", watch="1 s"), FileSource[Payment])
assert_type(FileSource(directory, "text"), FileSource[str])
assert_type(FileSource(directory, "parquet"), FileSource[Row])
assert_type(env.from_source(FileSource(directory, "json", Order), times), DataStream[Order])
assert_type(env.from_source(SocketSource("localhost", 9999)), DataStream[str])
assert_type(env.from_source(DataGeneratorSource(fields={"n": uniform_int(1, 9)}, count=3)), DataStream[Row])


class Amounts(SinkWriter[Payment]):
    def write(self, batch: Batch[Payment]) -> None:
        assert_type(batch.rows, list[Payment])


class AmountSink(Sink[Payment]):
    def create_writer(self, context: WriterContext) -> SinkWriter[Payment]:
        return Amounts()


payments.sink_to(AmountSink(), name="amounts")
payments.sink_to(BlackholeSink())
orders.sink_to(FileSink(f"{directory}/orders"))
orders.sink_to(lambda order: order.id)
client = env.execute_async("typed")
assert_type(client, JobClient)
assert_type(client.result(), JobMetrics)


def untyped(stream: DataStream[Any]) -> DataStream[Any]:
    return stream.map(lambda record: record.whatever)
