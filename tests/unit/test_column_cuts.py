"""Which windows are computed on columns: an assigner and a trigger say it, each class for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.program_kit import Click, graph_of
from tidegate import (
    Count,
    CumulativeEventTimeWindows,
    CumulativeProcessingTimeWindows,
    Environment,
    EventTimeSessionWindows,
    EventTimeTrigger,
    FileSource,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Sum,
    TimeWindow,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    WindowAssigner,
)
from tidegate.api.column_cuts import ColumnCut, SessionGap, Slices
from tidegate.api.triggers import CountTrigger, ProcessingTimeTrigger, PurgingTrigger
from tidegate.core.errors import ProgramError
from tidegate.graph.blobs import dump_blob, load_blob
from tidegate.program.window_operations import AggregateWindow

CLICKS = [Click("a", 1, 1_000), Click("a", 2, 9_000), Click("a", 4, 12_000)]
TEN = TumblingEventTimeWindows("10 s")


class Plain(TumblingEventTimeWindows):
    """Adds nothing, so far."""


class ByPrice(TumblingEventTimeWindows):
    """Cuts by what the record says."""

    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        return (TimeWindow(0, 100_000 * (1 + element.price % 2)),)


class ByWallClock(TumblingEventTimeWindows):
    is_event_time = False


class Own(WindowAssigner):
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        return (TimeWindow(0, 100_000),)


class Stated(ByPrice):
    """Cuts as the one says that it is derived from, and states so."""

    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        return TumblingEventTimeWindows.assign_windows(self, element, timestamp_ms)

    def column_cut(self) -> ColumnCut | None:
        return TumblingEventTimeWindows.column_cut(self)


class Eager(EventTimeTrigger):
    def on_element(self, element: Any, timestamp_ms: int, window: TimeWindow, context: Any) -> TriggerResult:
        super().on_element(element, timestamp_ms, window, context)
        return TriggerResult.FIRE


class AlsoEager(Eager):
    pass


def windowed(assigner: WindowAssigner, trigger: Any = None) -> Any:
    env = Environment(runtime="in-process")
    clicks = env.from_collection(CLICKS, type=Click)
    timed = clicks.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"))
    windows = timed.key_by("user").window(assigner)
    return windows if trigger is None else windows.trigger(trigger)


def operation(windows: Any) -> AggregateWindow:
    made: AggregateWindow = windows.sum("price")._node.operation
    return made


def sums(windows: Any) -> list[int]:
    return [row.sum_price for row in windows.sum("price").execute_and_collect()]


@pytest.mark.parametrize(
    ("assigner", "cut"),
    [
        (TEN, Slices(10_000, 10_000)),
        (TumblingEventTimeWindows("10 s", offset="-1 s"), Slices(10_000, 10_000, -1_000)),
        (SlidingEventTimeWindows("10 s", "3 s", offset="1 s"), Slices(10_000, 3_000, 1_000)),
        (SlidingEventTimeWindows("2 d", "1 d", time_zone="Europe/Berlin"), None),
        (CumulativeEventTimeWindows("1 h", "5 min"), Slices(3_600_000, 300_000, cumulative=True)),
        (EventTimeSessionWindows.with_gap("30 s"), SessionGap(30_000)),
        (EventTimeSessionWindows.with_dynamic_gap(lambda click: click.price), None),
        (TumblingProcessingTimeWindows("10 s"), None),
        (SlidingProcessingTimeWindows("10 s", "5 s"), None),
        (CumulativeProcessingTimeWindows("10 s", "5 s"), None),
        (ProcessingTimeSessionWindows.with_gap("10 s"), None),
        (GlobalWindows(), None),
        (Own(), None),
    ],
)
def test_an_assigner_states_its_cut(assigner: WindowAssigner, cut: ColumnCut | None) -> None:
    assert assigner.column_cut() == cut


def test_days_of_a_time_zone_are_slices_that_are_found_by_assigning() -> None:
    days = TumblingEventTimeWindows("1 d", time_zone="Europe/Berlin")
    cut = days.column_cut()
    assert cut == Slices(86_400_000, 86_400_000, time_zone="Europe/Berlin")
    assert cut.assign == days.assign_array
    assert cut.identity() == "slices of 86400000 every 86400000 from 0 ms in Europe/Berlin"


@pytest.mark.parametrize("cls", [Plain, ByPrice, ByWallClock])
def test_a_subclass_does_not_inherit_the_cut(cls: type[TumblingEventTimeWindows]) -> None:
    made = operation(windowed(cls("10 s")))
    assert made.column_cut is None
    assert made.rows
    assert made.in_two_stages(windowed(TEN)._stream.record_type) is None


def test_windows_of_a_subclass_are_those_that_it_assigns() -> None:
    assert sums(windowed(TEN)) == [3, 4]
    assert sums(windowed(ByPrice("10 s"))) == [6, 1]


def test_a_subclass_that_states_a_cut_is_computed_on_columns() -> None:
    windows = windowed(Stated("10 s"))
    assert operation(windows).column_cut == Slices(10_000, 10_000)
    assert not operation(windows).rows
    assert sums(windows) == [3, 4]


def test_cuts_are_the_same_in_a_slot() -> None:
    """Classes of a script are sent by value, and made again piece by piece."""

    class Local(ByPrice):
        pass

    class LocalStated(Local):
        def column_cut(self) -> ColumnCut | None:
            return SessionGap(7)

    class LocalTrigger(EventTimeTrigger):
        keeps_state = False

    sent = (Local("10 s"), LocalStated("10 s"), Stated("10 s"), TEN, LocalTrigger())
    *assigners, trigger = load_blob(dump_blob(sent, "test"))
    cuts = [assigner.column_cut() for assigner in assigners]
    assert cuts == [None, SessionGap(7), Slices(10_000, 10_000), Slices(10_000, 10_000)]
    assert [assigner.reads_element for assigner in assigners] == [True, True, True, False]
    assert (trigger.waits_for_end, trigger.keeps_state) == (None, False)


@pytest.mark.parametrize(
    ("trigger", "waits_for_end", "keeps_state"),
    [
        (EventTimeTrigger(), "event time", False),
        (ProcessingTimeTrigger(), "processing time", False),
        (CountTrigger(3), None, True),
        (PurgingTrigger(EventTimeTrigger()), None, True),
        (Eager(), None, True),
        (AlsoEager(), None, True),
    ],
)
def test_only_a_trigger_that_waits_for_the_end_of_event_time_leaves_windows_on_columns(
    trigger: Any, waits_for_end: str | None, keeps_state: bool
) -> None:
    assert (trigger.waits_for_end, trigger.keeps_state) == (waits_for_end, keeps_state)
    assert operation(windowed(TEN, trigger)).rows is (waits_for_end != "event time")


def test_windows_fire_when_a_subclass_of_the_trigger_says_so() -> None:
    assert sums(windowed(TEN, EventTimeTrigger())) == [3, 4]
    assert sums(windowed(TEN, Eager())) == [1, 3, 4, 3, 4]


@pytest.mark.parametrize(
    ("assigner", "reads", "columns"),
    [
        (TEN, False, {"user", "price"}),
        (TumblingProcessingTimeWindows("10 s"), False, {"user", "price"}),
        (Plain("10 s"), False, {"user", "price"}),
        (EventTimeSessionWindows.with_gap("30 s"), False, {"user", "price"}),
        (EventTimeSessionWindows.with_dynamic_gap(lambda click: click.ts), True, None),
        (ByPrice("10 s"), True, None),
        (Own(), True, None),
    ],
)
def test_an_assigner_that_may_look_at_the_record_gets_all_of_it(
    assigner: WindowAssigner, reads: bool, columns: set[str] | None
) -> None:
    assert assigner.reads_element is reads
    assert operation(windowed(assigner)).required_columns() == columns


def test_a_source_reads_what_an_assigner_of_the_users_may_look_at() -> None:
    env = Environment()
    clicks = env.from_source(
        FileSource("/data/in", "json", Click), WatermarkStrategy.monotonous("ts"), name="clicks"
    )
    clicks.window_all(Own()).aggregate(n=Count(), total=Sum("price")).print()
    assert graph_of(env).nodes[0].output_type.names == ["user", "price", "ts"]


@pytest.mark.parametrize(
    ("make", "written"),
    [
        (lambda: Slices("5 s", "5 s"), "size_ms='5 s'"),  # type: ignore[arg-type]
        (lambda: Slices(5_000, 0), "step_ms=0"),
        (lambda: Slices(5_000, 5_000, 0.5), "offset_ms=0.5"),  # type: ignore[arg-type]
        (lambda: SessionGap(-1), "gap_ms=-1"),
    ],
)
def test_a_cut_takes_whole_milliseconds_alone(make, written):
    with pytest.raises(ProgramError, match=rf"\({written}\): write whole milliseconds"):
        make()
