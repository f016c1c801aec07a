"""Timestamps and watermarks: from columns, expressions and functions; per split; idle ones; what is refused."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tidegate import (
    Environment,
    OutputTag,
    ProgramError,
    TumblingEventTimeWindows,
    WatermarkGenerator,
    WatermarkStrategy,
)
from tidegate.core.clock import ManualClock
from tidegate.operators.event_time.split_watermarks import SplitWatermarks
from tidegate.operators.event_time.timestamps import milliseconds
from tidegate.operators.failures import OperatorError
from tidegate.records.batch import Batch, Origin
from tidegate.records.elements import MAX_WATERMARK
from tidegate.records.types import record_type_of
from tidegate.testing.harness import OperatorHarness

UTC = datetime.UTC
EVENT = {"app": "a", "ts": 0}


def harness(strategy: WatermarkStrategy, **options: Any) -> OperatorHarness:
    env = Environment(watermark_interval=0)
    stream = env.from_collection([EVENT]).assign_timestamps_and_watermarks(strategy)
    return OperatorHarness.of(stream, options=env.options, **options)


def push(h: OperatorHarness, *timestamps: int | None) -> None:
    h.push([("a", t) for t in timestamps])
    h.advance_clock(0)


# ---- timestamps ----


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None], pa.int64()), [1, None]),
        (pa.array([1, 2], pa.int32()), [1, 2]),
        (pa.array([1_999_999, -1], pa.timestamp("ns")), [1, -1]),
        (pa.array([1_500, -1], pa.timestamp("us", "UTC")), [1, -1]),
        (pa.array([2], pa.timestamp("s")), [2_000]),
        (pa.array([7], pa.timestamp("ms", "Europe/Berlin")), [7]),
        (pa.array([datetime.date(1970, 1, 2)]), [86_400_000]),
        (pa.array([5, 5]).dictionary_encode(), [5, 5]),
    ],
)
def test_times_of_every_kind_become_milliseconds(column: pa.Array, expected: list[int | None]):
    assert milliseconds(column).to_pylist() == expected


@pytest.mark.parametrize(
    "source",
    [
        "ts",
        pl.col("ts") + 0,
        lambda row: row.ts,
        lambda row: datetime.datetime.fromtimestamp(row.ts / 1000, UTC),
        lambda row: datetime.datetime.fromtimestamp(row.ts / 1000, UTC).replace(tzinfo=None),
    ],
)
def test_a_column_an_expression_and_a_function_give_the_same_timestamps(source: Any):
    with harness(WatermarkStrategy.bounded("2 s", source)) as h:
        push(h, 1_000, 9_000, 4_000)
    assert h.batches[0].timestamps.to_pylist() == [1_000, 9_000, 4_000]
    assert h.watermarks == [9_000 - 2_000 - 1]


@pytest.mark.spec("S3-17")
def test_a_missing_timestamp_is_an_error_that_names_operator_and_record():
    with (
        harness(WatermarkStrategy.monotonous("ts"), name="times") as h,
        pytest.raises(OperatorError) as caught,
    ):
        push(h, 1, None)
    assert caught.value.operator == "times"
    assert "None" in caught.value.record
    assert "has no timestamp" in str(caught.value.__cause__)
    assert "with_missing_timestamps" in str(caught.value.__cause__)


def test_records_without_a_timestamp_go_to_the_side_output_that_was_chosen():
    tag = OutputTag("no-time")
    with harness(WatermarkStrategy.monotonous("ts").with_missing_timestamps(tag)) as h:
        push(h, 5, None, 7)
        push(h, None)
    assert [r.ts for r in h.rows] == [5, 7]
    assert [b.timestamps.to_pylist() for b in h.batches] == [[5, 7]]
    assert len(h.side_rows("no-time")) == 2
    assert h.counters["records_without_timestamp"] == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [(1_700_000_000, "seconds"), (-5, "before 1970"), (1_700_000_000_000_000, "after the year 9999")],
)
def test_doubtful_timestamps_are_warned_of_once_with_the_first_value(value, words, caplog):
    with caplog.at_level(logging.WARNING), harness(WatermarkStrategy.monotonous("ts"), name="times") as h:
        push(h, value)
        push(h, value)
    (record,) = caplog.records
    assert words in record.getMessage()
    assert str(value) in record.getMessage()
    assert "'times'" in record.getMessage()


def test_the_first_doubtful_timestamp_is_named_with_its_record_among_good_ones_and_missing_ones(caplog):
    strategy = WatermarkStrategy.monotonous("ts").with_missing_timestamps(OutputTag("no-time"))
    good = 1_700_000_000_000
    with caplog.at_level(logging.WARNING), harness(strategy, name="times") as h:
        h.push(
            [("a", t) for t in (None, good, 1_700_000_000, good, 1_700_000_009)],
            origin=Origin("clicks", 0, "line"),
        )
    (record,) = caplog.records
    assert "timestamp 1700000000 of line 2 of clicks: it looks like seconds" in record.getMessage()


@pytest.mark.parametrize(
    ("type_", "source"),
    [
        (pa.uint64(), "ts"),
        (pa.uint64(), pl.col("ts")),
        (pa.uint64(), lambda row: row.ts),
        (pa.timestamp("s"), "ts"),
    ],
)
def test_a_time_that_64_bits_cannot_hold_is_refused_with_its_record(type_: pa.DataType, source: Any):
    schema = pa.schema([("app", pa.string()), ("ts", type_)])
    columns = pa.RecordBatch.from_arrays(
        [pa.array(["a", "b"]), pa.array([5, 2**63 - 1 if type_ != pa.uint64() else 2**64 - 1], type_)],
        schema=schema,
    )
    env = Environment()
    stream = env.from_collection([], type=schema).assign_timestamps_and_watermarks(
        WatermarkStrategy.monotonous(source), name="times"
    )
    with OperatorHarness.of(stream) as h, pytest.raises(OperatorError) as failure:
        h.push_columns(columns, origin=Origin("clicks", 0, "line"))
    assert "is no time in milliseconds" in str(failure.value.__cause__)
    assert "line 1 of clicks" in str(failure.value.args)


def test_whole_numbers_of_numpy_are_timestamps():
    with harness(WatermarkStrategy.monotonous(lambda row: np.int64(row.ts))) as h:
        push(h, 5, 7)
    assert h.batches[0].timestamps.to_pylist() == [5, 7]


def test_a_timestamp_beyond_all_time_is_refused():
    with harness(WatermarkStrategy.monotonous("ts")) as h, pytest.raises(OperatorError) as caught:
        push(h, (1 << 63) - 1)
    assert "9223372036854775807 is no time" in str(caught.value.__cause__)


def test_a_function_that_gives_no_time_is_blamed_with_its_record():
    with harness(WatermarkStrategy.monotonous(lambda row: 1.5)) as h, pytest.raises(OperatorError) as caught:
        push(h, 3)
    assert "float" in str(caught.value.__cause__)
    assert "ts=3" in caught.value.record


# ---- generators ----


@pytest.mark.spec("S3-18")
def test_watermarks_never_go_back_and_the_last_one_is_the_end_of_time():
    with harness(WatermarkStrategy.bounded("1 s", "ts")) as h:
        push(h, 5_000)
        push(h, 2_000)
        push(h, 7_000)
        h.finish()
    assert h.watermarks == [3_999, 5_999, MAX_WATERMARK]


class EveryTenth(WatermarkGenerator):
    """Periodic: the highest ten so far."""

    top = -1

    def on_event(self, event: Any, timestamp_ms: int) -> None:
        self.top = max(self.top, timestamp_ms // 10 * 10)

    def on_periodic(self) -> int | None:
        return self.top


def test_a_periodic_generator_of_the_user_is_asked_behind_the_batch():
    with harness(WatermarkStrategy.periodic(EveryTenth, "ts")) as h:
        push(h, 7, 23)
        push(h, 25)
        push(h, 31)
    assert h.watermarks == [0, 20, 30] or h.watermarks == [20, 30]


def test_a_punctuated_generator_sends_what_a_record_says():
    env = Environment(watermark_interval="1 h")  # a punctuation does not wait for it
    strategy = WatermarkStrategy.punctuated(lambda row, ts: ts if row.app == "end" else None, "ts")
    stream = env.from_collection([EVENT]).assign_timestamps_and_watermarks(strategy)
    with OperatorHarness.of(stream, options=env.options) as h:
        h.push([("a", 5)])
        h.advance_clock(0)
        assert h.watermarks == []
        h.push([("end", 9), ("a", 11)])
        h.advance_clock(0)
    assert h.watermarks == [9]


def test_a_generator_that_goes_back_is_refused_and_counted():
    with harness(WatermarkStrategy.punctuated(lambda row, ts: ts, "ts")) as h:
        push(h, 9)
        push(h, 4)
        push(h, 12)
    assert h.watermarks == [9, 12]
    assert h.counters["watermarks_refused"] == 1


@pytest.mark.parametrize("given", ["soon", 1 << 63, -(1 << 70)])
def test_a_generator_that_gives_no_number_or_no_time_is_refused_by_name(given: Any):
    strategy = WatermarkStrategy.punctuated(lambda row, ts: given, "ts")
    with harness(strategy, name="times") as h, pytest.raises(OperatorError) as caught:
        push(h, 9)
    assert caught.value.operator == "times"
    assert repr(given) in str(caught.value.__cause__)


def test_the_interval_of_watermarks_is_kept():
    env = Environment(watermark_interval="200 ms")
    stream = env.from_collection([EVENT]).assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"))
    with OperatorHarness.of(stream, options=env.options) as h:
        push(h, 10)
        push(h, 20)
        assert h.watermarks == []
        h.advance_clock(200)
        assert h.watermarks == [19]
        assert h.operator.next_processing_time_ms is None  # nothing new: nobody is woken for nothing


def test_the_first_one_comes_an_interval_behind_the_first_record_however_late_that_is():
    env = Environment(watermark_interval="200 ms")
    stream = env.from_collection([EVENT]).assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"))
    with OperatorHarness.of(stream, options=env.options) as h:
        h.advance_clock(10_000)
        push(h, 20)
        h.advance_clock(199)
        push(h, 10)
        assert h.watermarks == [], "those that come at once are not in order, and none of them is late"
        h.advance_clock(1)
        assert h.watermarks == [19]


# ---- splits ----


def stamped(*timestamps: int) -> Batch:
    batch = Batch(record_type_of(int), rows=list(timestamps))
    batch.timestamps = pa.array(timestamps, pa.int64())
    return batch


def test_the_watermark_of_a_source_is_the_minimum_over_its_splits():
    marks = SplitWatermarks(WatermarkStrategy.monotonous(), 0, 0)
    marks.keep(["p0", "p1"], 0)
    marks.observe("p0", stamped(100), 0)
    assert marks.advance(0) == (None, None)
    marks.observe("p1", stamped(50), 0)
    assert marks.advance(0) == (None, 49)
    assert marks.holder(0) == ("p1", 0)
    marks.keep(["p0"], 0)  # p1 is finished
    assert marks.advance(0) == (None, 99)


@pytest.mark.spec("S3-22")
def test_an_idle_split_stops_holding_the_clock_back_and_one_without_any_record_is_idle_too():
    marks = SplitWatermarks(WatermarkStrategy.monotonous().with_idleness("1 s"), 0, 0)
    marks.keep(["p0", "p1"], 0)
    marks.observe("p0", stamped(100), 500)
    assert marks.advance(999) == (None, None)
    assert marks.next_idle_ms() == 1_000
    assert marks.advance(1_000) == (None, 99)
    assert marks.advance(1_500) == (True, None)
    marks.observe("p1", stamped(10), 2_000)
    assert marks.advance(2_000) == (False, None)
    marks.observe("p1", stamped(200), 2_100)
    assert marks.advance(2_100) == (None, 199)


def test_a_split_that_waits_for_its_turn_is_not_idle_however_long_it_waits():
    marks = SplitWatermarks(WatermarkStrategy.monotonous().with_idleness("1 s"), 0, 0)
    marks.observe("p0", stamped(100), 0)
    marks.observe("p1", stamped(50), 0)
    for now_ms in (500, 1_500, 2_500):
        marks.keep(["p0"], now_ms, waiting=["p1"])
        marks.observe("p0", stamped(100 + now_ms), now_ms)
        marks.advance(now_ms)
    assert marks.emitted_ms == 49


def test_splits_go_on_where_a_checkpoint_was_whoever_reads_them():
    marks = SplitWatermarks(WatermarkStrategy.monotonous(), 0, 0)
    marks.observe("p0", stamped(100), 0)
    marks.observe("p1", stamped(50), 0)
    restored = SplitWatermarks(WatermarkStrategy.monotonous(), 1, 0)
    restored.restore(marks.snapshot(), 0)
    restored.keep(["p0"], 0)
    assert restored.advance(0) == (None, 99)


def restored_from(subtasks: list[SplitWatermarks], subtask: int, parallelism: int) -> int | None:
    """The watermark that a subtask goes on with."""
    restored = SplitWatermarks(WatermarkStrategy.monotonous(), subtask, 0, parallelism)
    restored.restore([entry for marks in subtasks for entry in marks.snapshot()], 0)
    return restored.advance(0)[1]


def test_a_stream_without_splits_goes_on_from_its_own_entry_or_of_other_subtasks_from_the_smallest():
    two = [SplitWatermarks(WatermarkStrategy.monotonous(), i, 0, 2) for i in (0, 1)]
    two[0].observe(None, stamped(100), 0)
    two[1].observe(None, stamped(50), 0)
    assert [restored_from(two, i, 2) for i in (0, 1)] == [99, 49]
    assert [restored_from(two, i, 3) for i in (0, 1, 2)] == [49, 49, 49]
    assert restored_from(two, 0, 1) == 49


def test_a_subtask_that_had_read_nothing_does_not_go_on_with_the_watermark_of_another():
    strategy = WatermarkStrategy.monotonous()
    for split in (None, "p0"):
        two = [SplitWatermarks(strategy, i, 0, 2) for i in (0, 1)]
        two[0].observe(split, stamped(100), 0)
        assert restored_from(two, 1, 2) is None
        assert restored_from(two, 0, 2) == 99


def test_a_split_without_a_watermark_holds_the_others_after_a_restore_too():
    marks = SplitWatermarks(WatermarkStrategy.monotonous(), 0, 0)
    marks.keep(["p0", "p1"], 0)
    marks.observe("p0", stamped(100), 0)
    assert restored_from([marks], 0, 1) is None


def test_what_was_sent_for_splits_that_are_finished_is_not_taken_back_after_a_restore():
    marks = SplitWatermarks(WatermarkStrategy.monotonous(), 0, 0)
    marks.observe("p0", stamped(1_000), 0)
    assert marks.advance(0) == (None, 999)
    marks.keep(["p1"], 0)
    marks.observe("p1", stamped(300), 0)
    restored = SplitWatermarks(WatermarkStrategy.monotonous(), 0, 0)
    restored.restore(marks.snapshot(), 0)
    restored.resume(marks.emitted_ms)
    assert restored.advance(0) == (None, None)
    restored.observe("p1", stamped(2_000), 0)
    assert restored.advance(0) == (None, 1_999)


class MovableClock(ManualClock):
    """A wall clock that somebody sets back."""

    ahead_ms = 10_000_000

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_a_wall_clock_that_is_set_back_does_not_stop_the_watermarks():
    clock = MovableClock()
    stream = (
        Environment()
        .from_collection([EVENT])
        .assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"))
    )
    with OperatorHarness.of(stream, clock=clock) as h:
        h.push([("a", 1_000)])
        h.advance_clock(200)
        assert h.watermarks == [999]
        clock.ahead_ms -= 3_600_000
        h.push([("a", 2_000)])
        h.advance_clock(0)
        h.advance_clock(200)
        assert h.watermarks == [999, 1_999]


def test_a_generator_that_fails_is_blamed_with_the_record():
    def at_seven(event: Any, timestamp_ms: int) -> Any:
        return "soon" if timestamp_ms == 7 else None

    with harness(WatermarkStrategy.punctuated(at_seven, "ts")) as h, pytest.raises(OperatorError) as caught:
        h.push([("a", 5), ("a", 7)], origin=Origin("clicks", 0, "line"))
    assert "returned 'soon'" in str(caught.value.__cause__)
    assert "ts=7" in caught.value.record
    assert "line 1 of clicks" in str(caught.value.args)


# ---- plans ----


def test_refusals_at_plan_time_say_what_to_do():
    env = Environment()
    rows = env.from_collection([{"app": "a", "ts": 1.5}])
    with pytest.raises(ProgramError, match=r"no column 'time' to take timestamps from"):
        rows.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("time"))
    with pytest.raises(ProgramError, match=r"timestamps from ts are double; they must be whole numbers"):
        rows.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"))
    for several, columns in ((pl.col(pl.Int8), 0), (pl.all(), 2)):
        with pytest.raises(ProgramError, match=rf"timestamps from .* are {columns} columns; .* must be one"):
            rows.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous(several))
    with pytest.raises(ProgramError, match=r"out_of_orderness must be at least 0|out_of_orderness"):
        WatermarkStrategy.bounded("-1 s", "ts")
    with pytest.raises(ProgramError, match=r"timeout must be at least 1 ms"):
        WatermarkStrategy.monotonous("ts").with_idleness(0)
    with pytest.raises(ProgramError, match=r"needs a WatermarkStrategy"):
        rows.assign_timestamps_and_watermarks("ts")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"side output 'bad' takes str"):
        rows.select(pl.col("ts").cast(pl.Int64)).assign_timestamps_and_watermarks(
            WatermarkStrategy.monotonous("ts").with_missing_timestamps(OutputTag("bad", str))
        )


def test_the_plan_says_where_times_come_from_and_the_source_reads_the_column():
    env = Environment()
    stream = env.from_collection([EVENT]).assign_timestamps_and_watermarks(
        WatermarkStrategy.bounded("2 s", "ts").with_idleness("1 min")
    )
    stream.print()
    assert "timestamps from ts, at most 2 s out of order, idle after 1 min" in " ".join(env.explain().split())


def times(env: Environment) -> Any:
    return env.from_collection([EVENT]).assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"))


@pytest.mark.spec("S3-23")
def test_the_plan_warns_of_timestamps_that_are_assigned_twice_or_far_from_the_source():
    env = Environment(parallelism=2)
    near = times(env)
    near.print()
    assert "event time:" not in env.explain()
    near.rebalance().assign_timestamps_and_watermarks(
        WatermarkStrategy.monotonous("ts"), name="again"
    ).print()
    plan = " ".join(env.explain().split())
    assert (
        "'again' overwrites the timestamps and watermarks of 'timestamps'. Assign them once, at the source"
        in plan
    )
    assert "'again' assigns timestamps after an exchange" in plan


def test_the_plan_says_whether_timestamps_are_found_by_columns_or_by_your_python():
    env = Environment()
    records = env.from_collection([EVENT])
    records.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"), name="columns").print()
    records.assign_timestamps_and_watermarks(
        WatermarkStrategy.monotonous(lambda r: r.ts), name="rows"
    ).print()
    plan = " ".join(env.explain().split())
    assert (
        "columns [timestamps; vectorised] : Row(app: string?, ts: int64?) watermarks: timestamps from ts, in order"
        in plan
    )
    assert "rows [timestamps; per record]" in plan
    assert "watermarks: timestamps from <lambda>(), in order" in plan


def test_windows_without_timestamps_are_refused_by_the_name_that_the_user_gave():
    env = Environment()
    env.from_collection([EVENT], name="clicks").key_by("app").window(TumblingEventTimeWindows("1 s")).count(
        name="per app"
    ).print()
    with pytest.raises(
        ProgramError, match="operator 'per app' needs event time, but the records of source 'clicks'"
    ):
        env.explain()


def test_alignment_behind_a_source_is_refused_as_nothing_there_can_wait():
    strategy = WatermarkStrategy.monotonous("ts").with_alignment("g", "1 s")
    with pytest.raises(ProgramError, match=r"group 'g': with_alignment is for from_source"):
        Environment().from_collection([EVENT]).assign_timestamps_and_watermarks(strategy)


def test_what_assigns_timestamps_tells_how_far_they_are_and_since_when_it_is_quiet():
    with harness(WatermarkStrategy.bounded(10, "ts")) as h:
        push(h, 1_000)
        h.advance_clock(5_000)
        time = h.operator.event_time()
    assert time is not None
    assert (time.watermark_ms, time.quiet_ms, time.idle) == (989, 5_000, False)


def test_a_factory_that_makes_no_generator_is_named():
    with harness(WatermarkStrategy.periodic(dict, "ts")) as h, pytest.raises(OperatorError) as caught:  # type: ignore[arg-type]
        push(h, 1)
    assert "made a dict; it must make a WatermarkGenerator" in str(caught.value.__cause__)


def test_the_plan_warns_of_batch_functions_between_timestamps_and_windows():
    env = Environment()
    batches = times(env).map_batches(lambda batch: batch, name="mine")
    batches.key_by("app").window(TumblingEventTimeWindows("1 s")).count().print()
    assert "'mine' comes before" in " ".join(env.explain().split())
