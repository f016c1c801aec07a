"""Collections and number sequences as sources, and the sinks that send to the driver."""

from __future__ import annotations

import dataclasses
import io
from itertools import chain

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.connectors.reading import SourceRun
from tidegate.api.sink import SinkWriter, WriterContext
from tidegate.api.source import FINISHED, Boundedness, Idle
from tidegate.core.clock import ManualClock
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.metrics.registry import TaskMetrics
from tidegate.program.driver_sinks import MAX_DRIVER_BACKLOG, CollectSink, DriverSink, PrintSink, print_batch
from tidegate.program.sequences import CollectionSource, NumberSequenceSource, cut_into_spans, spans_for
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of
from tidegate.testing.subtasks import subtask_info


@dataclasses.dataclass
class Click:
    app: str
    ts: int


@given(st.integers(0, 10_000), st.integers(1, 50), st.sampled_from([1, 7, 64]))
def test_spans_cover_every_index_once_and_none_is_empty(count, pieces, align):
    spans = cut_into_spans(count, pieces, align)
    assert list(chain.from_iterable(range(a, b) for a, b in spans)) == list(range(count))
    assert all(a < b for a, b in spans)
    assert all(a % align == 0 for a, _ in spans)
    assert len(spans) <= pieces


def test_spans_on_request_are_one_per_reader_for_little_and_several_for_much():
    assert len(spans_for(5, 2)) == 2
    assert len(spans_for(1_000_000_000, 4)) == 32
    assert spans_for(0, 4) == []


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_collection_keeps_its_order_within_each_of_at_most_one_span_per_reader(parallelism):
    run = SourceRun(CollectionSource(range(5), int), parallelism, batch_rows=2)
    rows = run.read_to_end()
    assert list(chain.from_iterable(rows)) == [0, 1, 2, 3, 4]
    assert all(len(splits) <= 1 for splits in run.assigned)


def test_collection_continues_after_a_restore_where_it_was():
    run = SourceRun(CollectionSource("abcdefgh", str), 2, batch_rows=3)
    before = run.next_batch(0).rows  # reader 1 has not asked yet
    later = SourceRun(run.source, 2, restored=run.checkpoint())
    assert sorted(before + list(chain.from_iterable(later.read_to_end()))) == list("abcdefgh")
    assert later.requests == [1, 1]


def test_collection_restores_to_another_parallelism():
    run = SourceRun(CollectionSource(range(100)), 4, batch_rows=10)
    before = run.next_batch(1).rows
    later = SourceRun(run.source, 3, restored=run.checkpoint())
    assert sorted(before + list(chain.from_iterable(later.read_to_end()))) == list(range(100))


def test_finished_span_is_not_part_of_a_snapshot():
    run = SourceRun(CollectionSource([1, 2]), 1)
    run.next_batch()
    assert run.readers[0].snapshot() == []
    assert run.poll() is FINISHED


def test_empty_collection_and_empty_sequence_finish_at_once():
    assert SourceRun(CollectionSource([], int), 2).read_to_end() == [[], []]
    assert SourceRun(NumberSequenceSource(1, 0), 2).read_to_end() == [[], []]


def test_collection_of_dataclasses_has_their_columns_and_positions():
    clicks = [Click("a", 1), Click("b", 2)]
    batch = SourceRun(CollectionSource(clicks)).next_batch()
    assert batch.rows == clicks
    assert batch.columns.column("app").to_pylist() == ["a", "b"]
    assert batch.origin.at(1) == "value 1 of collection"


def test_collection_of_objects_without_a_type_travels_as_it_is():
    values = [1, "two", (3, {4})]
    source = CollectionSource(values)
    assert source.record_type.is_object
    assert SourceRun(source).read_to_end() == [values]


@pytest.mark.parametrize(
    ("values", "hint", "words"),
    [
        ([1, "x"], int, "expected int but got a str: 'x'"),
        ([1, None], int, "NoneType"),
        ([2**70], int, "value"),
    ],
)
def test_collection_refuses_values_of_another_type_before_the_job_starts(values, hint, words):
    with pytest.raises(SchemaError, match="from_collection") as refused:
        CollectionSource(values, hint)
    assert words in str(refused.value)


def test_number_sequence_gives_both_ends_in_the_column_value():
    run = SourceRun(NumberSequenceSource(-2, 3))
    batch = run.next_batch()
    assert batch.columns.schema == pa.schema([pa.field("value", pa.int64(), nullable=False)])
    assert batch.rows == [-2, -1, 0, 1, 2, 3]
    assert run.source.boundedness is Boundedness.BOUNDED
    assert run.source.expected_records == 6


def test_idle_reader_of_a_number_sequence_does_not_keep_others_from_finishing_the_work():
    run = SourceRun(NumberSequenceSource(1, 1_000_000), 4)
    rows = run.read_to_end(subtasks=[0, 1])
    assert sorted(rows[0] + rows[1]) == list(range(1, 1_000_001))


@given(st.data())
def test_number_sequence_loses_and_repeats_nothing_over_any_restores(data):
    count = data.draw(st.integers(0, 5000))
    seen: list[int] = []
    source = NumberSequenceSource(10, 9 + count)
    restored = None
    for _ in range(data.draw(st.integers(0, 4))):
        parallelism = data.draw(st.integers(1, 5))
        rows = data.draw(st.integers(1, 2000))
        run = SourceRun(source, parallelism, batch_rows=rows, restored=restored)
        for subtask in data.draw(st.lists(st.integers(0, parallelism - 1), max_size=8)):
            answer = run.poll(subtask)
            seen += answer.rows if isinstance(answer, Batch) else []
        restored = run.checkpoint()
    rest = SourceRun(source, data.draw(st.integers(1, 5)), restored=restored).read_to_end()
    assert sorted(seen + list(chain.from_iterable(rest))) == list(range(10, 10 + count))


@pytest.mark.parametrize("bounds", [(0, -2), (0, 2**64), (0.5, 3), (True, 3)])
def test_number_sequence_refuses_bounds_that_make_no_sense(bounds):
    with pytest.raises(ProgramError, match="number sequence"):
        NumberSequenceSource(*bounds)


def test_reader_asks_once_and_then_waits():
    class SilentRun(SourceRun):
        def assign(self, splits, subtask):
            pass

    run = SilentRun(NumberSequenceSource(1, 5))
    assert isinstance(run.poll(), Idle)
    assert isinstance(run.poll(), Idle)
    assert run.requests == [1]


def writer_of(sink: DriverSink) -> tuple[SinkWriter, list[Batch], list[int]]:
    sent: list[Batch] = []
    backlog = [0]
    context = WriterContext(
        subtask=subtask_info("sink", job_id="job", attempt=1),
        clock=ManualClock(),
        record_type=record_type_of(int),
        counter=TaskMetrics(0, 0).counter,
        send_to_driver=sent.append,
        driver_backlog=lambda: backlog[0],
    )
    return sink.create_writer(context), sent, backlog


def numbers(*values: int) -> Batch:
    return Batch(record_type_of(int), rows=list(values))


@pytest.mark.parametrize("sink", [CollectSink(), PrintSink("p")])
def test_driver_sinks_send_every_batch_and_wait_for_a_slow_driver(sink):
    writer, sent, backlog = writer_of(sink)
    batch = numbers(1, 2)
    writer.write(batch)
    assert sent == [batch]
    backlog[0] = MAX_DRIVER_BACKLOG - 1
    assert writer.is_ready()
    backlog[0] = MAX_DRIVER_BACKLOG
    assert not writer.is_ready()


def test_print_sink_sends_no_more_than_its_limit_and_then_takes_everything():
    writer, sent, backlog = writer_of(PrintSink(limit=3))
    writer.write(numbers(1, 2))
    writer.write(numbers(3, 4))
    writer.write(numbers(5))
    assert [batch.rows for batch in sent] == [[1, 2], [3]]
    backlog[0] = MAX_DRIVER_BACKLOG
    assert writer.is_ready()
    with pytest.raises(ProgramError, match="limit"):
        PrintSink(limit=-1)


def test_records_are_printed_with_prefix_and_subtask():
    out = io.StringIO()
    clicks = Batch(record_type_of(Click), rows=[Click("a", 1), Click("b", 2)])
    assert print_batch("clicks", 3, clicks, out) == 2
    assert print_batch(None, 0, clicks, out, limit=1) == 1
    assert out.getvalue().splitlines() == [
        "clicks:3> Click(app='a', ts=1)",
        "clicks:3> Click(app='b', ts=2)",
        "0> Click(app='a', ts=1)",
    ]


@pytest.mark.parametrize(
    ("values", "rows"), [([1, None], [1, None]), ([1, 2.5, None], [1.0, 2.5, None]), ([1, "a"], [1, "a"])]
)
def test_mixed_values_are_read_as_the_same_types_here_and_behind_an_exchange(values, rows):
    source = CollectionSource(values)
    batch = Batch(source.record_type, rows=source._values)
    assert [(type(v), v) for v in batch.rows] == [(type(v), v) for v in rows]
    assert list(map(type, source.record_type.to_rows(batch.columns))) == list(map(type, rows))
