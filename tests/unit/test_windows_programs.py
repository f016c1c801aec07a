"""Windows as they are written: what is refused at its line, what the plan says, and whole jobs in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.unit.windows_kit import Click, by_user, clicks, harness, push
from tidegate import (
    AggregateFunction,
    Count,
    CountEvictor,
    CountTrigger,
    Environment,
    EventTimeSessionWindows,
    GlobalWindows,
    OutputTag,
    ProcessWindowFunction,
    ProgramError,
    SlidingEventTimeWindows,
    Sum,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    WindowAssigner,
    WindowContext,
)
from tidegate.operators.window.window_operator import WindowOperator

TEN = TumblingEventTimeWindows("10 s")


class Sizes(ProcessWindowFunction):
    def process(
        self, key: Any, context: WindowContext, elements: Sequence[Any]
    ) -> Iterator[tuple[str, int, int]]:
        yield str(key), context.window.start_ms, len(elements)


class Texts(AggregateFunction[Click, list[str], list[str]]):
    """Has a mutable accumulator, which is the result."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: Click, accumulator: list[str]) -> list[str]:
        accumulator.append(f"{value.amount}")
        return accumulator

    def get_result(self, accumulator: list[str]) -> list[str]:
        return accumulator


class Untyped(AggregateFunction[Any, Any, Any]):
    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {"n": 0}

    def add(self, value: Any, accumulator: Any) -> Any:
        return {"n": accumulator["n"] + 1}

    def get_result(self, accumulator: Any) -> Any:
        return accumulator["n"]


@pytest.mark.parametrize(
    ("write", "part"),
    [
        (lambda s: s.window(TumblingEventTimeWindows), "got the class TumblingEventTimeWindows"),
        (lambda s: s.window("10 s"), "needs a WindowAssigner"),
        (lambda s: s.window(TEN).trigger(CountTrigger), "trigger needs a Trigger"),
        (lambda s: s.window(TEN).evictor(3), "evictor needs an Evictor"),
        (lambda s: s.window(TEN).allowed_lateness("-1 s"), "allowed_lateness"),
        (lambda s: s.window(TEN).side_output_late_data("late"), "needs an OutputTag"),
        (lambda s: s.window(TEN).side_output_late_data(OutputTag("l", int)), "Leave the tag's type out"),
        (lambda s: s.window(TumblingProcessingTimeWindows("1 s")).allowed_lateness("1 s"), "nothing is late"),
        (lambda s: s.window(GlobalWindows()).count(), "without a trigger would never be computed"),
        (lambda s: s.window(TEN).process(Sizes), "give it an instance"),
        (lambda s: s.window(TEN).process(len), "is a ProcessWindowFunction"),
        (lambda s: s.window(TEN).reduce(3), "reduce needs a callable"),
        (lambda s: s.window(TEN).aggregate(Texts(), n=Count()), "not both"),
        (lambda s: s.window(TEN).aggregate(n=Count(), window_function=Sizes()), "takes built-in aggregates"),
        (lambda s: s.window(TEN).aggregate(len), "needs an AggregateFunction"),
        (lambda s: s.window(EventTimeSessionWindows("1 s")).aggregate(Texts()), "has no merge"),
        (lambda s: s.window(TEN).count(colour="red"), "unknown setting 'colour'"),
        (lambda s: s.count_window(0), "number of records from 1 on"),
        (lambda s: s.count_window(5, -1), "number of records from 1 on"),
        (lambda s: s.window_all(TEN).count().set_parallelism(2), "can only run with parallelism 1"),
    ],
)
def test_mistakes_are_refused_at_their_line(write: Any, part: str):
    with pytest.raises(ProgramError, match=part):
        write(by_user())


def test_an_accumulator_without_a_type_works_until_it_must_be_stored():
    with harness(by_user().window(TEN).aggregate(Untyped())) as h:
        push(h, ("a", 1, 1), ("a", 2, 2))
        push(h, ("a", 3, 3))
        h.finish()
        assert h.rows == [3]
    h = harness(by_user(checkpoint_interval="1 s").window(TEN).aggregate(Untyped()).name("sizes"))
    with pytest.raises(
        ProgramError, match=r"operator 'sizes' keeps windows that cannot be stored.*accumulator_type="
    ):
        h.operator.open()


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.evictor(CountEvictor(2)).count(),
        lambda w: w.evictor(CountEvictor(2)).process(Sizes()),
        lambda w: w.process(Sizes()),
        lambda w: w.reduce(lambda a, b: a),
    ],
    ids=["evictor of an aggregate", "evictor", "process", "reduce"],
)
def test_windows_that_keep_records_without_a_type_are_refused_where_checkpoints_are_on(write: Any):
    def planned(**options: Any) -> Environment:
        keyed = clicks(**options).map(lambda click: {click}).key_by(lambda r: 1, returns=int)
        write(keyed.window(TumblingProcessingTimeWindows("1 s"))).name("sizes").print()
        return keyed._env

    with pytest.raises(
        ProgramError, match=r"operator 'sizes' keeps windows that .* Give the function that makes"
    ):
        planned(checkpoint_interval="1 s").explain()
    assert "sizes" in planned().explain()


def test_an_evictor_of_untyped_records_restores_no_checkpoint():
    keyed = (
        clicks(resume="latest", checkpoint_dir="/nowhere")
        .map(lambda click: {click})
        .key_by(lambda r: 1, returns=int)
    )
    made = keyed.window(TumblingProcessingTimeWindows("1 s")).evictor(CountEvictor(2)).count().name("sizes")
    with pytest.raises(ProgramError, match="operator 'sizes' keeps windows that cannot be stored"):
        harness(made).operator.open()


def test_aggregates_of_untyped_records_without_an_evictor_are_taken():
    keyed = clicks(checkpoint_interval="1 s").map(lambda click: {click}).key_by(lambda r: 1, returns=int)
    keyed.window(TumblingProcessingTimeWindows("1 s")).count().print()
    assert keyed._env.explain()


def test_a_result_that_is_the_accumulator_does_not_change_any_more():
    made = by_user().window(TEN).trigger(CountTrigger(1)).aggregate(Texts())
    assert made.record_type.describe() == "list<item: string not null>"
    with harness(made) as h:
        push(h, ("a", 1, 1), ("a", 2, 2))
        assert h.rows == [["1"], ["1", "2"]]


def test_the_plan_says_what_the_windows_are():
    made = by_user().window(TEN).trigger(CountTrigger(3)).aggregate(total=Sum("amount"), count=Count())
    assert (
        made._node.operation.detail() == "total=sum(amount), count(), tumbling 10 s per user, CountTrigger(3)"
    )
    processed = by_user().window(EventTimeSessionWindows("5 min")).allowed_lateness("1 min").process(Sizes())
    assert processed._node.operation.detail() == "process Sizes, session 5 min per user, lateness 1 min"
    assert processed._node.name == "window Sizes"


def test_an_assigner_of_the_users_own():
    class ByAmount(WindowAssigner):
        """Large amounts have a short window, too; negative ones have none."""

        def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
            if element.amount < 0:
                return []
            long = TimeWindow(0, 100_000)
            return [TimeWindow(0, 10_000), long] if element.amount > 10 else [long]

    with harness(by_user().window(ByAmount()).process(Sizes())) as h:
        push(h, ("a", 1, 1), ("a", 20, 2), ("a", -1, 3))
        h.advance_watermark(9_999)
        assert h.take_rows() == [("a", 0, 1)]
        h.finish()
        assert h.take_rows() == [("a", 0, 2)]
        assert h.counters["late_records"] == 0


def job(checkpoints: bool) -> Any:
    options: dict[str, Any] = {"checkpoint_interval": "10 ms"} if checkpoints else {}
    env = Environment(
        runtime="in-process", parallelism=2, batch_rows=3, watermark_interval=0, seed=7, **options
    )
    records = [(f"u{i % 3}", i, 700 * i) for i in range(40)]
    stream = env.from_collection(records, type=tuple[str, int, int])
    timed = stream.assign_timestamps_and_watermarks(WatermarkStrategy.bounded("2 s", "f2"))
    return timed.key_by("f0")


@pytest.mark.parametrize("checkpoints", [False, True])
def test_whole_jobs_give_the_same_windows_with_functions_and_with_aggregates(checkpoints: bool):
    built_in = job(checkpoints).window(TEN).count()
    counted = {(r[0], int(r[1].timestamp() * 1000), r[3]) for r in built_in.execute_and_collect()}
    processed = set(job(checkpoints).window(TEN).process(Sizes()).execute_and_collect())
    assert processed == counted
    assert len(counted) == 9
    assert sum(n for *_, n in counted) == 40


def test_late_records_reach_their_side_output_in_a_whole_job():
    env = Environment(runtime="in-process", parallelism=1, batch_rows=1, watermark_interval=0)
    stream = env.from_collection([("a", 1_000), ("a", 30_000), ("a", 2_000)], type=tuple[str, int])
    timed = stream.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("f1"))
    late: OutputTag[Any] = OutputTag("late")
    made = timed.key_by("f0").window(TEN).side_output_late_data(late).process(Sizes())
    assert list(made.get_side_output(late).execute_and_collect()) == [("a", 2_000)]
    assert sorted(made.execute_and_collect()) == [("a", 0, 1), ("a", 30_000, 1)]


def test_processing_time_windows_that_the_end_of_input_closes_are_not_late_behind_it():
    env = Environment(runtime="in-process")
    times = WatermarkStrategy.monotonous(lambda click: click.amount)
    stream = env.from_collection([Click("a", 1), Click("a", 2)]).assign_timestamps_and_watermarks(times)
    hours = stream.key_by("user").window(TumblingProcessingTimeWindows("1 h")).reduce(lambda a, b: b)
    (counted,) = hours.key_by("user").window(TEN).count().execute_and_collect()
    assert (counted.user, counted.count) == ("a", 1)


def test_the_whole_stream_in_windows_is_one_subtask_of_a_job():
    env = Environment(runtime="in-process", parallelism=3)
    numbers = env.from_sequence(1, 100)
    made = numbers.count_window_all(50).aggregate(total=Sum("value"), n=Count())
    totals = [tuple(r) for r in made.execute_and_collect()]
    assert [n for _, n in totals] == [50, 50]
    assert sum(total for total, _ in totals) == 5050


def test_key_by_does_not_matter_for_windows_of_the_whole_stream():
    made = clicks().key_by("user").window_all(TumblingProcessingTimeWindows("1 s")).count()
    assert made.record_type.names == ["window_start", "window_end", "count"]


def test_the_plan_knows_what_is_done_record_by_record():
    keyed = by_user()

    class Mine(TumblingEventTimeWindows):
        pass

    by_columns = (TEN, EventTimeSessionWindows("1 s"), SlidingEventTimeWindows("3 s", "1 s"))
    by_record = (
        TumblingProcessingTimeWindows("1 s"),
        SlidingEventTimeWindows("2 d", "1 d", time_zone="Asia/Tokyo"),
        EventTimeSessionWindows(lambda click: 5),
        Mine("1 s"),
    )
    for assigners, rows in ((by_columns, False), (by_record, True)):
        for assigner in assigners:
            made = keyed.window(assigner).count()
            assert made._node.operation.rows is rows
            with harness(made) as h:
                assert isinstance(h.operator, WindowOperator) is rows
    assert keyed.window(TEN).trigger(CountTrigger(2)).count()._node.operation.rows
