"""The window operator: every kind of window and function, lateness, sessions, clean-up, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.windows_kit import (
    Checkpoints,
    Click,
    by_user,
    clicks,
    harness,
    left_in_state,
    panes,
    push,
    times,
)
from tidegate import (
    AggregateFunction,
    CountEvictor,
    CumulativeEventTimeWindows,
    Environment,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    KeyedStream,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    ReduceFunction,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueState,
    WatermarkStrategy,
    WindowContext,
)
from tidegate.operators.failures import OperatorError
from tidegate.operators.window.window_operator import WindowOperator
from tidegate.records.batch import Batch
from tidegate.records.elements import MAX_WATERMARK
from tidegate.records.types import record_type_of
from tidegate.testing.harness import OperatorHarness

BACKENDS = pytest.mark.parametrize("backend", ["heap", "rocksdb"])


def add(left: Click, right: Click) -> Click:
    return Click(left.user, left.amount + right.amount)


class Listed(ProcessWindowFunction):
    """Key, window and amounts."""

    def process(
        self, key: Any, context: WindowContext, elements: Sequence[Click]
    ) -> Iterator[tuple[str, int, int, list[int]]]:
        yield str(key), *context.window, [e.amount for e in elements]


class Mean(AggregateFunction[Click, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Click, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value.amount, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return left[0] + right[0], left[1] + right[1]


def ten_seconds(backend: str = "heap", **options: Any) -> Any:
    return by_user(backend, **options).window(TumblingEventTimeWindows("10 s"))


# ---- kinds of windows ----


@BACKENDS
def test_a_tumbling_window_fires_once_when_the_watermark_is_at_its_last_moment(backend: str):
    with harness(ten_seconds(backend).reduce(add)) as h:
        assert isinstance(h.operator, WindowOperator)
        push(h, ("a", 1, 1_000), ("b", 5, 2_000), ("a", 2, 9_999), ("a", 4, 10_000))
        h.advance_watermark(9_998)
        assert h.rows == []
        h.advance_watermark(9_999)
        assert sorted(h.rows) == [Click("a", 3), Click("b", 5)]
        assert times(h) == [9_999, 9_999]
        h.take_rows()
        h.advance_watermark(10_500)
        assert h.rows == []
        h.finish()
        assert h.rows == [Click("a", 4)]
        assert h.watermarks == [9_998, 9_999, 10_500, MAX_WATERMARK]
        assert left_in_state(h) == {}
        assert h.gauges == {"windows": 0, "timers": 0}


@BACKENDS
def test_sliding_windows_each_have_the_record(backend: str):
    made = by_user(backend).window(SlidingEventTimeWindows("10 s", "4 s")).process(Listed())
    with harness(made) as h:
        push(h, ("a", 1, 5_000), ("a", 2, 9_000), ("a", 3, 13_000))
        h.finish()
        assert h.rows == [
            ("a", -4_000, 6_000, [1]),
            ("a", 0, 10_000, [1, 2]),
            ("a", 4_000, 14_000, [1, 2, 3]),
            ("a", 8_000, 18_000, [2, 3]),
            ("a", 12_000, 22_000, [3]),
        ]
        assert left_in_state(h) == {}


def test_cumulative_windows_grow_until_they_start_anew():
    made = by_user().window(CumulativeEventTimeWindows("9 s", "3 s")).process(Listed())
    with harness(made) as h:
        push(h, ("a", 1, 1_000), ("a", 2, 4_000), ("a", 3, 10_000))
        h.finish()
        assert [r[1:] for r in h.rows] == [
            (0, 3_000, [1]),
            (0, 6_000, [1, 2]),
            (0, 9_000, [1, 2]),
            (9_000, 12_000, [3]),
            (9_000, 15_000, [3]),
            (9_000, 18_000, [3]),
        ]


@BACKENDS
def test_windows_of_the_whole_stream_have_no_key(backend: str):
    made = clicks(backend).key_by("user").window_all(TumblingEventTimeWindows("10 s")).process(Listed())
    with harness(made) as h:
        push(h, ("a", 1, 1_000), ("b", 2, 2_000))
        h.finish()
        assert h.rows == [("None", 0, 10_000, [1, 2])]
    assert made._node.fixed_parallelism == 1


def test_windows_in_the_gaps_of_a_long_slide_do_not_exist_and_nothing_is_late():
    made = by_user().window(SlidingEventTimeWindows("2 s", "5 s")).process(Listed())
    with harness(made) as h:
        push(h, ("a", 1, 1_000), ("a", 2, 3_000), ("a", 3, 6_000))
        h.finish()
        assert h.rows == [("a", 0, 2_000, [1]), ("a", 5_000, 7_000, [3])]
        assert h.counters["late_records"] == 0


# ---- sessions ----


@BACKENDS
@pytest.mark.parametrize("form", ["reduce", "process", "aggregate", "built-in"])
def test_a_record_between_two_sessions_makes_them_one(backend: str, form: str):
    sessions = by_user(backend).window(EventTimeSessionWindows("10 s"))
    made = {
        "reduce": lambda: sessions.reduce(add, Listed()),
        "process": lambda: sessions.process(Listed()),
        "aggregate": lambda: sessions.aggregate(Mean()),
        "built-in": lambda: sessions.trigger(PurgingTrigger(EventTimeTrigger())).sum("amount"),
    }[form]()
    with harness(made) as h:
        push(h, ("a", 1, 0), ("a", 2, 15_000), ("b", 100, 3_000))
        h.advance_watermark(5_000)
        push(h, ("a", 4, 8_000))
        h.finish()
        if form == "built-in":
            assert panes(h) == [("b", 3_000, 13_000, 100), ("a", 0, 25_000, 7)]
        else:
            assert times(h) == [12_999, 24_999]
            expected: dict[str, list[Any]] = {
                "reduce": [("b", 3_000, 13_000, [100]), ("a", 0, 25_000, [7])],
                "process": [("b", 3_000, 13_000, [100]), ("a", 0, 25_000, [1, 4, 2])],
                "aggregate": [100.0, 7 / 3],
            }
            rows = h.rows
            if form == "process":  # whose elements come first is the order of the sessions that they were in
                rows = [(*r[:3], sorted(r[3])) for r in rows]
                expected["process"] = [(*r[:3], sorted(r[3])) for r in expected["process"]]
            assert rows == expected[form]
        assert left_in_state(h) == {}
        assert h.gauges == {"windows": 0, "timers": 0}


def test_sessions_that_only_touch_are_one_as_in_flink():
    made = by_user().window(EventTimeSessionWindows("10 s")).process(Listed())
    with harness(made) as h:
        push(h, ("a", 1, 0), ("a", 2, 10_000), ("a", 3, 20_001))
        h.finish()
        assert h.rows == [("a", 0, 20_000, [1, 2]), ("a", 20_001, 30_001, [3])]


def test_the_gap_may_depend_on_the_record():
    gap = EventTimeSessionWindows.with_dynamic_gap(lambda click: click.amount * 1_000)
    with harness(by_user().window(gap).process(Listed())) as h:
        push(h, ("a", 2, 0), ("a", 9, 1_000), ("a", 1, 9_000), ("a", 1, 11_000))
        h.finish()
        assert h.rows == [("a", 0, 10_000, [2, 9, 1]), ("a", 11_000, 12_000, [1])]


def test_a_late_record_that_belongs_to_an_open_session_is_not_late():
    with harness(by_user().window(EventTimeSessionWindows("10 s")).process(Listed())) as h:
        push(h, ("a", 1, 20_000))
        h.advance_watermark(25_000)
        push(h, ("a", 2, 11_000), ("a", 3, 500))  # both were over, if it were not for the open session
        assert h.counters["late_records"] == 1
        h.finish()
        assert h.rows == [("a", 11_000, 30_000, [1, 2])]
        assert left_in_state(h) == {}


# ---- lateness ----


@BACKENDS
def test_records_within_the_allowed_lateness_fire_the_window_again_and_later_ones_are_late(backend: str):
    late: OutputTag[Click] = OutputTag("late")
    made = ten_seconds(backend).allowed_lateness("5 s").side_output_late_data(late).reduce(add)
    with harness(made) as h:
        push(h, ("a", 1, 1_000))
        h.advance_watermark(12_000)
        assert h.take_rows() == [Click("a", 1)]
        push(h, ("a", 2, 2_000), ("a", 4, 3_000))
        assert h.take_rows() == [Click("a", 3), Click("a", 7)]
        assert h.gauges["windows"] == 1
        h.advance_watermark(14_999)
        assert left_in_state(h) == {}
        push(h, ("a", 8, 4_000), ("a", 16, 11_000))
        assert h.take_rows() == []
        assert h.side_rows("late") == [Click("a", 8)]
        assert h._side["late"][0].timestamps.to_pylist() == [4_000]
        assert h.counters["late_records"] == 1
        h.finish()
        assert h.take_rows() == [Click("a", 16)]
        assert left_in_state(h) == {}
    assert made.get_side_output(late).record_type == made.record_type


def test_late_records_are_counted_without_a_side_output_too():
    with harness(ten_seconds().reduce(add)) as h:
        h.advance_watermark(50_000)
        push(h, ("a", 1, 1_000), ("a", 1, 49_000), ("a", 1, 51_000))
        assert h.counters["late_records"] == 2


def test_a_record_is_late_only_when_all_its_sliding_windows_are_over():
    with harness(by_user().window(SlidingEventTimeWindows("10 s", "5 s")).process(Listed())) as h:
        h.advance_watermark(12_000)
        push(h, ("a", 1, 6_000), ("a", 2, 4_000))
        assert h.counters["late_records"] == 1
        h.finish()
        assert h.rows == [("a", 5_000, 15_000, [1])]


# ---- processing time ----


@BACKENDS
def test_processing_time_windows_fire_by_the_wall_clock(backend: str):
    made = by_user(backend).window(TumblingProcessingTimeWindows("10 s")).reduce(add, Listed())
    with harness(made) as h:
        start = h.clock.now_ms() // 10_000 * 10_000
        h.clock.advance_ns((start + 10_000 - h.clock.now_ms()) * 1_000_000)
        h.push([Click("a", 1), Click("b", 2)])
        h.advance_clock(9_998)
        h.push([Click("a", 4)])
        assert h.rows == []
        h.advance_clock(1)
        window = (start + 10_000, start + 20_000)
        assert sorted(h.take_rows()) == [("a", *window, [5]), ("b", *window, [2])]
        assert left_in_state(h) == {}
        assert h.operator.next_processing_time_ms is None


def test_processing_time_windows_that_are_open_at_the_end_of_input_are_computed():
    for assigner in (TumblingProcessingTimeWindows("1 h"), ProcessingTimeSessionWindows("1 h")):
        with harness(by_user().window(assigner).process(Listed())) as h:
            h.push([Click("a", 1), Click("b", 2)])
            h.finish()
            assert sorted((r[0], r[3]) for r in h.rows) == [("a", [1]), ("b", [2])]
            assert left_in_state(h) == {}


def test_processing_time_sessions_end_when_nothing_came_for_the_gap():
    with harness(by_user().window(ProcessingTimeSessionWindows("10 s")).process(Listed())) as h:
        h.push([Click("a", 1)])
        h.advance_clock(6_000)
        h.push([Click("a", 2)])
        h.advance_clock(6_000)
        assert h.rows == []
        h.advance_clock(4_000)
        assert [r[3] for r in h.rows] == [[1, 2]]
        assert left_in_state(h) == {}


# ---- count windows ----


@BACKENDS
def test_count_windows_fire_when_they_are_full_and_forget(backend: str):
    made = by_user(backend).count_window(2).process(Listed())
    with harness(made) as h:
        push(h, ("a", 1, 10), ("b", 2, 20), ("a", 3, 30), ("a", 4, 40), ("a", 5, 50))
        assert [(r[0], r[3]) for r in h.rows] == [("a", [1, 3]), ("a", [4, 5])]
        assert times(h) == [30, 50]
        assert [r[1:3] for r in h.rows] == [tuple(GlobalWindow())] * 2
        h.finish()
        assert len(h.rows) == 2
        assert set(left_in_state(h)["$windows"]) == {"b"}


def test_results_keep_their_times_beside_those_that_records_without_a_time_made():
    with harness(by_user().count_window(1).process(Listed())) as h:
        h.push([Click("a", 1), Click("a", 2), Click("a", 3)], timestamps=[10, None, 30])
        assert times(h) == [10, None, 30]


def test_sliding_count_windows_have_the_last_records():
    with harness(by_user().count_window(3, 2).process(Listed())) as h:
        push(h, *[("a", i, i) for i in range(1, 8)])
        assert [r[3] for r in h.rows] == [[1, 2], [2, 3, 4], [4, 5, 6]]


def test_aggregates_of_count_windows_have_no_start_and_end():
    with harness(by_user().count_window(2).aggregate(total=Sum("amount"))) as h:
        h.push([Click("a", 1), Click("a", 2)])
        assert panes(h) == [("a", 3)]
        assert h.operator.output_type.names == ["user", "total"]


# ---- functions ----


def test_an_aggregate_function_has_its_result_or_gives_it_to_a_window_function():
    with harness(ten_seconds().aggregate(Mean())) as h:
        push(h, ("a", 1, 0), ("a", 2, 1))
        h.finish()
        assert h.rows == [1.5]

    class Described(ProcessWindowFunction):
        def process(self, key: str, context: WindowContext, elements: Sequence[float]) -> Iterator[str]:
            (mean,) = elements
            yield f"{key} {context.window.start:%H:%M:%S} {mean} {context.current_watermark}"

    with harness(ten_seconds().aggregate(Mean(), Described())) as h:
        push(h, ("a", 1, 0), ("a", 2, 1))
        h.advance_watermark(11_000)
        assert h.rows == ["a 00:00:00 1.5 11000"]


def test_window_functions_remember_per_window_and_per_key_and_emit_to_side_outputs():
    again: OutputTag[str] = OutputTag("again", str)

    class Firings(ProcessWindowFunction):
        total = ValueState(int, default=0)

        def process(self, key: str, context: WindowContext, elements: Sequence[Click]) -> Iterator[str]:
            n = context.window_state.get("firings", 0) + 1
            context.window_state["firings"] = n
            context.global_state["all"] = context.global_state.get("all", 0) + 1
            self.total.update(self.total.value() + len(elements))
            if n > 1:
                context.output(again, f"{key} {n}")
            yield f"{key} {n} of {context.global_state['all']}, {self.total.value()}"

    made = ten_seconds().allowed_lateness("1 min").process(Firings(), side_outputs=(again,))
    with harness(made) as h:
        push(h, ("a", 1, 1_000))
        h.advance_watermark(10_000)
        push(h, ("a", 1, 2_000))
        push(h, ("a", 1, 12_000))
        h.advance_watermark(20_000)
        assert h.rows == ["a 1 of 1, 1", "a 2 of 2, 3", "a 1 of 3, 4"]
        assert h.side_rows("again") == ["a 2"]
        assert h._side["again"][0].timestamps.to_pylist() == [9_999]
        assert "$window_state" in left_in_state(h)
        h.finish()
        assert left_in_state(h) == {"$global_state": ["a"], "total": ["a"]}


def test_window_state_is_refused_with_windows_that_merge():
    class Remembers(ProcessWindowFunction):
        def process(self, key: str, context: WindowContext, elements: Sequence[Click]) -> Iterator[str]:
            context.window_state["x"] = 1
            yield "x"

    with harness(by_user().window(EventTimeSessionWindows("1 s")).process(Remembers())) as h:
        push(h, ("a", 1, 1_000))
        with pytest.raises(OperatorError) as failed:
            h.finish()
    assert "windows that merge have no state of their own" in str(failed.value.__cause__)


def test_the_function_hears_when_a_window_is_over():
    class Says(ProcessWindowFunction):
        def open(self, context: Any) -> None:
            self.over = context.counter("over")

        def process(self, key: str, context: WindowContext, elements: Sequence[Click]) -> list[int]:
            return [len(elements)]

        def clear(self, context: WindowContext) -> None:
            self.over.inc(context.window.end_ms)

    with harness(ten_seconds().allowed_lateness("2 s").process(Says(), returns=int)) as h:
        push(h, ("a", 1, 1_000))
        h.advance_watermark(11_000)
        assert h.counters["over"] == 0
        h.advance_watermark(11_999)
        assert h.counters["over"] == 10_000


def test_a_reduce_function_has_a_life_cycle():
    class Counting(ReduceFunction):
        def open(self, context: Any) -> None:
            self.calls = context.counter("calls")

        def close(self) -> None:
            self.calls.inc(100)

        def reduce(self, left: Click, right: Click) -> Click:
            self.calls.inc()
            return add(left, right)

    for made in (ten_seconds().reduce(Counting()), ten_seconds().reduce(Counting(), Listed())):
        h = harness(made)
        with h:
            push(h, ("a", 1, 1_000), ("a", 2, 1_000), ("a", 3, 1_000))
            h.finish()
            assert len(h.rows) == 1
        assert h.counters["calls"] == 102


def test_mutable_records_that_a_reduce_changes_are_not_changed_for_others():
    @dataclass
    class Total:
        user: str
        n: int

    def grow(left: Total, right: Total) -> Total:
        left.n += right.n
        return left

    stream = Environment().from_collection([], type=Total)
    timed = stream.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous(lambda t: 0))
    made = (
        timed.key_by("user").window(TumblingEventTimeWindows("10 s")).allowed_lateness("1 min").reduce(grow)
    )
    with harness(made) as h:
        first = Total("a", 1)
        h.push([first, Total("a", 2)], timestamps=[1, 2])
        h.advance_watermark(10_000)
        h.push([Total("a", 4)], timestamps=[3])
        assert h.rows == [Total("a", 3), Total("a", 7)]
        assert first == Total("a", 1)


# ---- failures and refusals ----


def test_a_failing_window_function_is_blamed_with_key_and_window():
    class Fails(ProcessWindowFunction):
        def process(self, key: str, context: WindowContext, elements: Sequence[Click]) -> list[int]:
            raise ValueError("no")

    with harness(ten_seconds().process(Fails(), returns=int).name("my windows")) as h:
        push(h, ("a", 1, 1_000))
        with pytest.raises(OperatorError) as failed:
            h.finish()
    assert failed.value.operator == "my windows"
    assert "key 'a', TimeWindow(start_ms=0, end_ms=10000)" in failed.value.position
    assert isinstance(failed.value.__cause__, ValueError)


def test_a_timestamp_at_the_end_of_time_is_refused_with_its_record():
    with harness(ten_seconds().reduce(add)) as h, pytest.raises(OperatorError) as failed:
        push(h, ("a", 1, 2**63 - 1))
    assert failed.value.record == "Click(user='a', amount=1)"
    assert "does not fit into 64 bits. Look at the record's timestamp" in str(failed.value.__cause__)


def test_a_stream_without_timestamps_is_refused_when_it_runs_too():
    with (
        harness(ten_seconds().reduce(add).name("counts")) as h,
        pytest.raises(
            ProgramError,
            match=r"operator 'counts' needs event time, but its input has no timestamps\. Give the source a",
        ),
    ):
        h.push([Click("a", 1)])


def some_without_times() -> Batch:
    batch = Batch(record_type_of(Click), rows=[Click("a", 1), Click("a", 2)])
    batch.timestamps = pa.array(
        [5, None], pa.int64()
    )  # as an exchange joins what has times with what has none
    return batch


def test_records_without_timestamps_among_others_are_refused_by_event_time_windows_alone():
    with harness(ten_seconds().reduce(add).name("sums")) as h, pytest.raises(ProgramError) as refused:
        h.push_batch(some_without_times())
    assert "operator 'sums' needs event time, but its input has no timestamps for some records" in str(
        refused.value
    )
    with harness(ten_seconds().count(name="counts")) as h, pytest.raises(OperatorError) as failed:
        h.push_batch(some_without_times())
    assert "need records with timestamps, but some" in str(failed.value.__cause__)
    with harness(by_user().window(TumblingProcessingTimeWindows("10 s")).reduce(add)) as h:
        h.push_batch(some_without_times())
        h.finish()
        assert [r.amount for r in h.rows] == [3]


def test_a_plan_of_event_time_windows_without_a_strategy_is_refused():
    env = Environment(runtime="in-process")
    made = env.from_collection([Click("a", 1)]).key_by("user").window(TumblingEventTimeWindows("1 s")).count()
    with pytest.raises(ProgramError, match=r"needs event time.*WatermarkStrategy"):
        list(made.execute_and_collect())


# ---- checkpoints ----


@BACKENDS
@pytest.mark.parametrize(
    "kind", ["reduce", "process", "aggregate", "sessions", "count", "built-in", "evictor"]
)
def test_a_restored_operator_goes_on_with_windows_timers_and_trigger_counts(
    backend: str, kind: str, tmp_path: Any
):
    keyed: KeyedStream = by_user(backend, checkpoint_interval="1 s")
    tumbling = keyed.window(TumblingEventTimeWindows("10 s"))
    made: Any = {
        "reduce": lambda: tumbling.reduce(add),
        "process": lambda: tumbling.process(Listed()),
        "aggregate": lambda: tumbling.aggregate(Mean()),
        "sessions": lambda: keyed.window(EventTimeSessionWindows("5 s")).process(Listed()),
        "count": lambda: keyed.count_window(3).process(Listed()),
        "built-in": lambda: tumbling.trigger(PurgingTrigger(EventTimeTrigger())).aggregate(t=Sum("amount")),
        "evictor": lambda: tumbling.evictor(CountEvictor(2)).process(Listed()),
    }[kind]()
    first = [("a", 1, 1_000), ("b", 2, 2_000), ("a", 3, 4_000)]
    second = [("a", 4, 5_000), ("b", 5, 12_000), ("b", 6, 3_000), ("a", 7, 8_000)]

    def finished(h: OperatorHarness) -> list[Any]:
        push(h, *second)
        h.finish()
        rows = sorted(map(str, h.rows))
        left = left_in_state(h)
        assert left == {} if kind != "count" else set(left) <= {"$windows", "$elements", "$trigger"}
        return rows

    checkpoints = Checkpoints(tmp_path)
    with harness(made) as straight:
        push(straight, *first)
        straight.advance_watermark(2_000)
        restored = checkpoints.restored(straight, made)
        assert restored.gauges == straight.gauges
        again = checkpoints.restored(restored, made)
        expected = finished(straight)
        assert len(expected) >= 2
        assert finished(restored) == expected
        assert finished(again) == expected
        for h in (restored, again):
            h.__exit__(None, None, None)
