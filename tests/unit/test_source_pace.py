"""A source gives as many records at a time as what is chained behind it takes about 100 ms for."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from tests.unit.test_fusion import host, to_exchange
from tidegate import Environment, OutputTag, WatermarkStrategy
from tidegate.api.source import ReaderContext, SourceReader
from tidegate.core.clock import ManualClock
from tidegate.core.pace import FIRST_ROWS
from tidegate.graph.blobs import load_blob
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.metrics.registry import TaskMetrics
from tidegate.program.sequences import NumberSequenceSource, SpanReader, SpanSplit
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.portions import MOST_ROWS

MOST = 262_144
MS = 1_000_000

CLOCK = ManualClock()
"""What the functions below let pass; a job has copies of them, so it cannot be in them."""


def spend(ns: int) -> None:
    sys.modules[__name__].CLOCK.advance_ns(ns)


def slow(number: int) -> int:
    spend(MS)
    return number


def fast(number: int) -> int:
    spend(40)
    return number


def slow_partition(number: int, partitions: int) -> int:
    spend(MS)
    return number % partitions


def commit(columns: pa.RecordBatch) -> pa.RecordBatch:
    spend(250 * MS)
    return columns


class ObjectReader(SpanReader):
    """Gives numbers as Python objects."""

    def read(self, start: int, stop: int, split: SpanSplit) -> Batch:
        return Batch(record_type_of(int), rows=list(range(start, stop)))


class ObjectSource(NumberSequenceSource):
    """The same numbers, not as columns."""

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return ObjectReader(context)


def sizes(
    write: Any,
    count: int,
    strategy: WatermarkStrategy | None = None,
    source_class: type[NumberSequenceSource] = NumberSequenceSource,
    busy_ns: int = 0,
) -> list[int]:
    """How many records the batches have that a source of numbers gives to a program behind it.

    `busy_ns`: how long an operator is not ready for each record that it has got, as one that waits for answers.
    """
    env = Environment(parallelism=1)
    write(env.from_source(source_class(0, 10**9), strategy))
    program = env._program("job")
    graph = build_stream_graph(program.name, program.sinks, program.transformations, program.options)
    job_graph = build_job_graph(graph)
    vertex = job_graph.vertices[0]
    edges = job_graph.outputs(vertex.id)
    users_partition = any(load_blob(edge.blob).runs_users_code for edge in edges)
    out: list[Batch] = []
    made = dataclasses.replace(host(), clock=sys.modules[__name__].CLOCK)
    exchanges: Any = {(edge.source_operator, edge.tag): [out.append] for edge in edges}
    chain = OperatorChain(vertex, 0, made, TaskMetrics(0, 0), exchanges, users_partition=users_partition)
    chain.open()
    source = chain.source
    assert source is not None
    source.add_splits([msgspec.json.encode(SpanSplit(id="0", position=0, end=10**9))])
    busy_until = 0
    chain._ready_checks.append(SimpleNamespace(is_ready=lambda: CLOCK.monotonic_ns() >= busy_until))  # type: ignore[arg-type]
    found, before = [], 0
    for _ in range(count):
        ready = chain.is_ready()
        source.pace.was_ready(ready)
        if not ready:
            spend(busy_until - CLOCK.monotonic_ns())
            source.pace.was_ready(chain.is_ready())
        source.advance()
        while chain.has_more:
            spend(busy_ns * MOST_ROWS)
            chain.process_more()
        source.pace.batch_processed()
        position = msgspec.json.decode(source.positions()[0], type=SpanSplit).position
        found.append(position - before)
        busy_until = CLOCK.monotonic_ns() + busy_ns * min(MOST_ROWS, position - before)
        before = position
    chain.close()
    return found


def test_operators_of_the_engine_get_full_batches_from_the_start() -> None:
    assert sizes(to_exchange, 2) == [MOST, MOST]
    assert sizes(lambda s: to_exchange(s.with_columns(pl.col("value") + 1)), 2) == [MOST, MOST]


def test_a_fast_function_gets_them_soon() -> None:
    found = sizes(lambda s: to_exchange(s.map(fast)), 6)
    assert found[0] == FIRST_ROWS
    assert found[-1] == MOST


def test_python_objects_come_to_functions_in_portions_and_to_operators_of_the_engine_in_full_batches() -> (
    None
):
    found = sizes(lambda s: to_exchange(s.map(fast)), 6, source_class=ObjectSource)
    assert found == [FIRST_ROWS, 16 * FIRST_ROWS, *[MOST_ROWS] * 4]
    assert sizes(lambda s: to_exchange(s.map(slow)), 12, source_class=ObjectSource)[-1] <= 125
    assert sizes(to_exchange, 2, source_class=ObjectSource) == [MOST, MOST]


def test_a_slow_function_gets_what_it_does_in_100_ms() -> None:
    found = sizes(lambda s: to_exchange(s.map(slow)), 12)
    assert found[0] == FIRST_ROWS
    assert 75 <= found[-1] <= 125
    assert max(found) <= 250


def test_a_slow_function_for_the_timestamps_at_the_source_counts_as_well() -> None:
    found = sizes(to_exchange, 12, WatermarkStrategy.bounded("1 s", slow))
    assert found[0] == FIRST_ROWS
    assert 75 <= found[-1] <= 125


def test_an_operator_that_waits_for_answers_gets_what_it_is_ready_for_in_100_ms() -> None:
    found = sizes(lambda s: to_exchange(s.map(fast)), 12, busy_ns=10 * MS)
    assert max(found) <= 16 * FIRST_ROWS
    assert 8 <= found[-1] <= 12


ASKED: list[int] = []
"""How many records the readers below were asked for."""


class NotedReader(ObjectReader):
    def poll(self) -> Any:
        sys.modules[__name__].ASKED.append(self._context.batch_rows)
        return super().poll()


class NotedSource(NumberSequenceSource):
    def create_reader(self, context: ReaderContext) -> SourceReader:
        return NotedReader(context)


def test_a_job_whose_key_is_a_function_begins_with_few_records() -> None:
    for key, first in ((lambda n: n % 3, FIRST_ROWS), ("value", MOST)):
        sys.modules[__name__].ASKED.clear()
        env = Environment(runtime="in-process", parallelism=2)
        counts = env.from_source(NotedSource(1, 100)).key_by(key).count().execute_and_collect()
        assert len(list(counts)) == 100
        assert sys.modules[__name__].ASKED[0] == first


def test_a_function_for_the_key_or_the_partition_counts_as_well() -> None:
    assert sizes(lambda s: s.key_by(fast).count().print(), 1) == [FIRST_ROWS]
    assert sizes(lambda s: s.partition_custom(slow_partition, "value").print(), 1) == [FIRST_ROWS]
    assert sizes(lambda s: s.key_by("value").count().print(), 1) == [MOST]


def test_a_function_of_batches_that_takes_long_for_each_of_them_gets_large_ones() -> None:
    assert sizes(lambda s: to_exchange(s.map_batches(commit)), 30)[-1] == MOST


def test_records_without_a_timestamp_that_go_elsewhere_do_not_keep_batches_small() -> None:
    missing = OutputTag("missing", int)
    strategy = WatermarkStrategy.bounded("1 s", lambda n: None if n % 10 == 0 else n)
    found = sizes(lambda s: to_exchange(s.map(fast)), 8, strategy.with_missing_timestamps(missing))
    assert found[-1] > 10_000
    strategy = WatermarkStrategy.bounded("1 s", lambda n: None)
    assert sizes(to_exchange, 8, strategy.with_missing_timestamps(missing))[-1] == MOST


def test_a_source_of_which_only_a_side_output_is_read_gives_full_batches_soon() -> None:
    missing = OutputTag("missing", int)
    strategy = WatermarkStrategy.bounded("1 s", lambda n: None if n % 2 else n)
    found = sizes(
        lambda s: to_exchange(s.get_side_output(missing)), 8, strategy.with_missing_timestamps(missing)
    )
    assert found[-1] == MOST
