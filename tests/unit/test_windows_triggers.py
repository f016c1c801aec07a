"""Triggers and evictors: early, on-time and late firings, purging, state that is theirs, windows that merge."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.windows_kit import Checkpoints, Click, by_user, harness, left_in_state, panes, push, times
from tidegate import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    EvictorContext,
    GlobalWindows,
    OnMergeContext,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    Sum,
    TimeEvictor,
    TimestampedValue,
    TimeWindow,
    Trigger,
    TriggerContext,
    TriggerResult,
    TumblingEventTimeWindows,
    WindowContext,
)
from tidegate.operators.failures import OperatorError
from tidegate.operators.window import contents

BACKENDS = pytest.mark.parametrize("backend", ["heap", "rocksdb"])


class Amounts(ProcessWindowFunction):
    def process(self, key: str, context: WindowContext, elements: Sequence[Click]) -> Iterator[list[int]]:
        yield [e.amount for e in elements]


def windowed(assigner: Any, trigger: Any = None, evictor: Any = None, backend: str = "heap") -> Any:
    found = by_user(backend).window(assigner)
    found = found if trigger is None else found.trigger(trigger)
    return found if evictor is None else found.evictor(evictor)


TEN = TumblingEventTimeWindows("10 s")


# ---- built-in triggers ----


@BACKENDS
def test_a_count_trigger_fires_again_and_again_and_only_it_does(backend: str):
    with harness(windowed(TEN, CountTrigger(2), backend=backend).process(Amounts())) as h:
        push(h, ("a", 1, 0), ("b", 9, 0), ("a", 2, 1), ("a", 3, 2))
        push(h, ("a", 4, 3), ("a", 5, 4))
        assert h.rows == [[1, 2], [1, 2, 3, 4]]
        h.finish()
        assert h.rows == [[1, 2], [1, 2, 3, 4]]
        assert left_in_state(h) == {}


def test_a_purging_trigger_forgets_the_contents_when_it_fires():
    with harness(windowed(TEN, PurgingTrigger(CountTrigger(2))).process(Amounts())) as h:
        push(h, ("a", 1, 0), ("a", 2, 1), ("a", 3, 2), ("a", 4, 3), ("a", 5, 4))
        assert h.rows == [[1, 2], [3, 4]]
        assert h.gauges["windows"] == 1
        h.finish()
        assert left_in_state(h) == {}


def test_late_records_behind_a_purge_are_computed_alone():
    made = windowed(TEN, PurgingTrigger(EventTimeTrigger())).allowed_lateness("10 s").process(Amounts())
    with harness(made) as h:
        push(h, ("a", 1, 0))
        h.advance_watermark(9_999)
        push(h, ("a", 2, 1))
        assert h.rows == [[1], [2]]
        h.finish()
        assert left_in_state(h) == {}


@BACKENDS
def test_a_continuous_event_time_trigger_gives_early_results(backend: str):
    made = windowed(TEN, ContinuousEventTimeTrigger("3 s"), backend=backend).process(Amounts())
    with harness(made) as h:
        push(h, ("a", 1, 500))
        h.advance_watermark(2_999)
        assert h.take_rows() == []
        h.advance_watermark(3_000)
        assert h.take_rows() == [[1]]
        push(h, ("a", 2, 3_500))
        h.advance_watermark(8_000)
        assert h.take_rows() == [[1, 2]]
        h.advance_watermark(9_000)
        assert h.take_rows() == [[1, 2]]
        h.advance_watermark(9_999)
        assert h.take_rows() == [[1, 2]]
        assert left_in_state(h) == {}
        assert h.gauges == {"windows": 0, "timers": 0}


def test_a_continuous_event_time_trigger_fires_at_multiples_before_1970_too():
    """Flink rounds negative times up: it would leave out the multiple at 0."""
    made = windowed(TumblingEventTimeWindows("1 s"), ContinuousEventTimeTrigger("10 ms")).process(Amounts())
    with harness(made) as h:
        push(h, ("a", 1, -15))
        h.advance_watermark(-11)
        assert h.take_rows() == []
        h.advance_watermark(-10)
        assert h.take_rows() == [[1]]


def test_a_continuous_event_time_trigger_waits_for_a_multiple_that_is_still_to_come():
    """In Flink a record that the watermark has passed fires with the next watermark, wherever that is."""
    with harness(windowed(TEN, ContinuousEventTimeTrigger("1 s")).process(Amounts())) as h:
        h.advance_watermark(5_100)
        push(h, ("a", 1, 500))
        h.advance_watermark(5_999)
        assert h.take_rows() == []
        h.advance_watermark(6_000)
        assert h.take_rows() == [[1]]


def test_a_continuous_processing_time_trigger_fires_once_for_all_intervals_that_have_passed():
    with harness(windowed(TEN, ContinuousProcessingTimeTrigger("1 s")).process(Amounts())) as h:
        push(h, ("a", 1, 500))
        h.advance_clock(5_000)
        assert h.take_rows() == [[1]]
        h.advance_clock(1_000)
        assert h.take_rows() == [[1]]


def test_early_results_have_the_timestamp_of_the_window():
    with harness(windowed(TEN, ContinuousEventTimeTrigger("3 s")).process(Amounts())) as h:
        push(h, ("a", 1, 500))
        h.advance_watermark(5_000)
        assert times(h) == [9_999]


@BACKENDS
def test_a_continuous_processing_time_trigger_gives_early_results_and_one_at_the_end(backend: str):
    made = windowed(TEN, ContinuousProcessingTimeTrigger("3 s"), backend=backend).process(Amounts())
    with harness(made) as h:
        h.clock.advance_ns((3_000 - h.clock.now_ms() % 3_000) * 1_000_000)
        push(h, ("a", 1, 500))
        h.advance_clock(2_999)
        assert h.take_rows() == []
        h.advance_clock(1)
        assert h.take_rows() == [[1]]
        push(h, ("a", 2, 600))
        h.advance_clock(3_000)
        assert h.take_rows() == [[1, 2]]
        h.advance_watermark(9_999)
        assert h.take_rows() == [[1, 2]]
        assert left_in_state(h) == {}
        assert h.operator.next_processing_time_ms is None


def test_with_lateness_the_last_result_of_a_processing_time_trigger_comes_when_the_window_is_over():
    made = windowed(TEN, ContinuousProcessingTimeTrigger("1 h")).allowed_lateness("5 s").process(Amounts())
    with harness(made) as h:
        push(h, ("a", 1, 500))
        h.advance_watermark(12_000)
        push(h, ("a", 2, 600))
        assert h.rows == []
        h.advance_watermark(14_999)
        assert h.rows == [[1, 2]]
        assert left_in_state(h) == {}


def test_a_count_trigger_counts_on_when_sessions_merge():
    with harness(windowed(EventTimeSessionWindows("10 s"), CountTrigger(3)).process(Amounts())) as h:
        push(h, ("a", 1, 0), ("a", 2, 15_000))
        assert h.rows == []
        push(h, ("a", 3, 8_000))
        assert [sorted(r) for r in h.rows] == [[1, 2, 3]]
        h.finish()
        assert left_in_state(h) == {}


def test_continuous_triggers_go_on_when_sessions_merge():
    made = windowed(EventTimeSessionWindows("10 s"), ContinuousEventTimeTrigger("4 s")).process(Amounts())
    with harness(made) as h:
        push(h, ("a", 1, 1_000), ("a", 2, 5_000))
        h.advance_watermark(4_000)
        assert h.take_rows() == [[1, 2]]
        push(h, ("a", 3, 14_000))
        h.advance_watermark(8_000)
        assert h.take_rows() == [[1, 2, 3]]
        h.finish()
        assert h.take_rows()[-1] == [1, 2, 3]
        assert left_in_state(h) == {}
        assert h.gauges["timers"] == 0


# ---- triggers of the user's own ----


class FireOnLarge(Trigger):
    """Fires at once for a large amount, at the end for others; knows how many large ones there were."""

    def on_element(
        self, element: Any, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        context.register_event_time_timer(window.max_timestamp_ms)
        if element.amount < 100:
            return TriggerResult.CONTINUE
        large = context.state.setdefault("large", [])
        large.append(timestamp_ms)
        context.state["large"] = large
        return TriggerResult.FIRE_AND_PURGE if len(large) == 2 else TriggerResult.FIRE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return TriggerResult.PURGE if "large" in context.state else TriggerResult.FIRE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        context.register_event_time_timer(window.max_timestamp_ms)
        large = [t for state in context.merged_states for t in state.get("large", [])]
        if large:
            context.state["large"] = large

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.max_timestamp_ms)


@BACKENDS
def test_a_user_trigger_has_state_per_key_and_window_that_is_in_checkpoints(backend: str, tmp_path: Any):
    made = by_user(backend, checkpoint_interval="1 s").window(TEN).trigger(FireOnLarge()).process(Amounts())
    with harness(made) as first:
        push(first, ("a", 100, 0), ("b", 1, 0), ("a", 2, 11_000))
        assert first.rows == [[100]]
        h = Checkpoints(tmp_path).restored(first, made)
    push(h, ("a", 200, 1))
    assert h.take_rows() == [[100, 200]]
    push(h, ("a", 3, 2))
    h.finish()
    assert h.take_rows() == [[1], [2]]  # what came behind the purge is purged at the end
    assert left_in_state(h) == {}
    h.__exit__(None, None, None)


def test_a_user_trigger_that_can_merge_follows_sessions():
    with harness(windowed(EventTimeSessionWindows("10 s"), FireOnLarge()).process(Amounts())) as h:
        push(h, ("a", 100, 0), ("a", 1, 15_000), ("a", 2, 8_000), ("a", 300, 9_000))
        assert [sorted(r) for r in h.rows] == [[100], [1, 2, 100, 300]]
        h.finish()
        assert left_in_state(h) == {}


def test_a_trigger_that_cannot_merge_is_refused_with_sessions():
    class Stubborn(FireOnLarge):
        def can_merge(self) -> bool:
            return False

    with pytest.raises(ProgramError, match="Stubborn cannot follow windows that merge"):
        windowed(EventTimeSessionWindows("10 s"), Stubborn()).process(Amounts())


def test_a_trigger_that_returns_nothing_is_named():
    class Forgetful(EventTimeTrigger):
        def on_element(self, *args: Any) -> Any:
            return None

    with harness(windowed(TEN, Forgetful()).process(Amounts())) as h, pytest.raises(OperatorError) as failed:
        push(h, ("a", 1, 0))
    assert "Forgetful returned None; a trigger returns a TriggerResult" in str(failed.value.__cause__)


def test_state_of_a_trigger_that_cannot_be_stored_is_refused_with_the_value():
    class Odd(EventTimeTrigger):
        def on_element(
            self, element: Any, timestamp_ms: int, window: TimeWindow, context: TriggerContext
        ) -> Any:
            context.state["odd"] = object
            return TriggerResult.CONTINUE

    with (
        harness(windowed(TEN, Odd()).process(Amounts())) as h,
        pytest.raises(ProgramError, match="trigger cannot store"),
    ):
        push(h, ("a", 1, 0))


def test_global_windows_fire_by_the_timers_of_their_trigger():
    class EverySecond(FireOnLarge):
        def on_element(
            self, element: Any, timestamp_ms: int, window: TimeWindow, context: TriggerContext
        ) -> Any:
            context.register_event_time_timer(timestamp_ms // 1_000 * 1_000 + 1_000)
            return TriggerResult.CONTINUE

        def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
            return TriggerResult.FIRE_AND_PURGE

    with harness(windowed(GlobalWindows(), EverySecond()).process(Amounts())) as h:
        push(h, ("a", 1, 100), ("a", 2, 200), ("a", 3, 1_500))
        h.advance_watermark(1_000)
        assert h.rows == [[1, 2, 3]]
        assert times(h) == [1_000]
        h.finish()
        assert left_in_state(h) == {}


@pytest.mark.parametrize(
    "make", [lambda: CountTrigger(0), lambda: CountTrigger(1.5), lambda: CountEvictor(-1)]
)
def test_counts_that_make_no_sense_are_refused(make: Any):
    with pytest.raises(ProgramError, match="needs a number of records from 1 on"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ContinuousEventTimeTrigger(0),
        lambda: ContinuousProcessingTimeTrigger("x"),
        lambda: TimeEvictor(0),
        lambda: PurgingTrigger(EventTimeTrigger),  # type: ignore[arg-type]
    ],
)
def test_triggers_and_evictors_refuse_what_makes_no_sense(make: Any):
    with pytest.raises(ProgramError):
        make()


# ---- evictors ----


@BACKENDS
def test_a_count_evictor_keeps_the_last_records_for_every_function(backend: str):
    events = [("a", i, i) for i in (1, 2, 4, 8)]
    for made, expected in (
        (windowed(TEN, None, CountEvictor(3), backend).process(Amounts()), [2, 4, 8]),
        (
            windowed(TEN, None, CountEvictor(3), backend).reduce(
                lambda a, b: Click(a.user, a.amount + b.amount)
            ),
            ("a", 14),
        ),
    ):
        with harness(made) as h:
            push(h, *events)
            h.finish()
            assert h.rows == [expected]
            assert left_in_state(h) == {}
    with harness(windowed(TEN, None, CountEvictor(3), backend).aggregate(t=Sum("amount"))) as h:
        push(h, *events)
        h.finish()
        assert panes(h) == [("a", 0, 10_000, 14)]


def test_a_time_evictor_keeps_what_is_near_the_latest_record():
    with harness(windowed(TEN, None, TimeEvictor("3 s")).process(Amounts())) as h:
        push(h, ("a", 1, 1_000), ("a", 2, 9_000), ("a", 3, 6_001), ("a", 4, 6_000))
        h.finish()
        assert h.rows == [[2, 3]]


def test_what_is_evicted_is_gone_for_later_firings():
    made = windowed(TEN, CountTrigger(2), CountEvictor(1, after=True)).process(Amounts())
    with harness(made) as h:
        push(h, ("a", 1, 0), ("a", 2, 1), ("a", 3, 2), ("a", 4, 3))
        assert h.rows == [[1, 2], [2, 3, 4]]


def test_a_user_evictor_sees_timestamps_the_window_and_the_time():
    class WithoutOdd(Evictor):
        def evict_before(
            self, elements: Sequence[TimestampedValue], window: TimeWindow, context: EvictorContext
        ) -> Sequence[TimestampedValue]:
            assert context.current_watermark == 9_999
            assert context.current_processing_time == 5
            assert all(window.start_ms <= e.timestamp_ms < window.end_ms for e in elements)
            return [e for e in elements if e.value.amount % 2 == 0]

    with harness(windowed(TEN, None, WithoutOdd()).process(Amounts())) as h:
        push(h, ("a", 1, 0), ("a", 2, 1), ("b", 3, 2))
        h.advance_clock(5)
        h.advance_watermark(9_999)
        assert sorted(h.rows) == [[], [2]]
        assert left_in_state(h) == {}


def test_an_evictor_may_change_the_list_that_it_gets():
    class WithoutFirst(Evictor):
        def evict_before(self, elements: Any, window: TimeWindow, context: EvictorContext) -> Any:
            del elements[0]
            return elements

        def evict_after(self, elements: Any, window: TimeWindow, context: EvictorContext) -> Any:
            elements.pop()
            return elements

    with harness(windowed(TEN, CountTrigger(3), WithoutFirst()).process(Amounts())) as h:
        push(h, *(("a", n, n) for n in range(1, 7)))
        assert h.rows == [[2, 3], [4, 5, 6]]


# ---- the order of elements ----

SESSIONS = EventTimeSessionWindows("10 ms")


@BACKENDS
def test_a_count_evictor_goes_by_arrival_also_when_sessions_have_merged(backend: str):
    with harness(windowed(SESSIONS, None, CountEvictor(3), backend).process(Amounts())) as h:
        push(h, ("a", 1, 115), ("a", 2, 100))
        push(h, ("a", 3, 116), ("a", 4, 101), ("a", 5, 108))  # the last makes one of two
        h.finish()
        assert h.rows == [[3, 4, 5]]
        assert left_in_state(h) == {}


@BACKENDS
def test_the_elements_of_merged_sessions_come_in_the_order_of_arrival_whatever_it_was(
    backend: str, tmp_path: Path
):
    made = windowed(SESSIONS, backend=backend).process(Amounts())
    for seed in range(20):
        chance = random.Random(seed)
        spots = [chance.randrange(0, 60) for _ in range(30)]  # in the end they are nearly one session
        checkpoints = Checkpoints(tmp_path / str(seed))
        with harness(made) as before:
            push(before, *(("a", n, spot) for n, spot in enumerate(spots[:15])))
            h = checkpoints.restored(before, made)
        for n, spot in enumerate(spots[15:], 15):
            push(h, ("a", n, spot))
        h.finish()
        rows = h.rows
        assert left_in_state(h) == {}
        h.__exit__(None, None, None)
        assert sorted(n for row in rows for n in row) == list(range(30)), f"seed {seed}"
        assert all(row == sorted(row) for row in rows), f"seed {seed}: {rows}"


def test_what_a_session_holds_is_not_walked_through_for_each_record(monkeypatch: pytest.MonkeyPatch):
    walked = 0
    numbers = contents._numbers

    def counted(runs: contents.Runs) -> Iterator[int]:
        nonlocal walked
        for number in numbers(runs):
            walked += 1
            yield number

    monkeypatch.setattr(contents, "_numbers", counted)
    with harness(windowed(SESSIONS).process(Amounts())) as h:
        push(h, *(("a", n, n) for n in range(100)))
        for n in range(100, 200):
            push(h, ("a", n, n))
        push(h, ("a", 200, 212), ("a", 201, 205))  # one more session of one element, and both become one
        assert walked <= 2
        h.finish()
        assert h.rows == [list(range(202))]


def test_what_an_evictor_leaves_keeps_its_place_among_what_came_meanwhile():
    made = windowed(SESSIONS, CountTrigger(2), CountEvictor(2, after=True)).process(Amounts())
    with harness(made) as h:
        push(h, ("a", 1, 100), ("a", 2, 115))
        push(h, ("a", 3, 101), ("a", 4, 116))  # either session fires and keeps its two
        assert h.take_rows() == [[1, 3], [2, 4]]
        push(h, ("a", 5, 107), ("a", 6, 107))
        assert h.take_rows() == [[1, 2, 3, 4, 5, 6]]


def test_elements_that_an_evictor_makes_or_puts_in_another_order_are_held_as_it_gave_them():
    class Backwards(Evictor):
        def evict_after(
            self, elements: Sequence[TimestampedValue], window: TimeWindow, context: EvictorContext
        ) -> Sequence[TimestampedValue]:
            return [TimestampedValue(Click("a", -1), elements[0].timestamp_ms), *reversed(elements)]

    with harness(windowed(SESSIONS, CountTrigger(2), Backwards()).process(Amounts())) as h:
        push(h, ("a", 1, 100), ("a", 2, 101), ("a", 3, 102), ("a", 4, 103))
        assert h.rows == [[1, 2], [-1, 2, 1, 3, 4]]
