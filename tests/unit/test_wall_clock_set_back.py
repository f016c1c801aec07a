"""The wall clock of the machine is set back: what goes by it waits until it is there again, idleness does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidegate import (
    Environment,
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    ProcessWindowFunction,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
)
from tidegate.core.clock import ManualClock
from tidegate.testing.harness import OperatorHarness

HOUR = 3_600_000


class WallClock(ManualClock):
    """Its monotonic time goes on when the wall clock is set back."""

    _behind_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() - self._behind_ms

    def set_back(self, ms: int) -> None:
        self._behind_ms += ms


def keyed() -> Any:
    return Environment().from_collection([], type=tuple[str, int]).key_by("f0")


class InAWhile(KeyedProcessFunction):
    def process(self, value: tuple[str, int], context: ProcessContext) -> Iterable[int]:
        context.timer_service.register_processing_time_timer(value[1])
        return ()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[int]:
        yield timestamp


def test_a_timer_waits_until_the_clock_is_there_again_and_fires_once():
    clock = WallClock(2 * HOUR)
    with OperatorHarness.of(keyed().process(InAWhile(), returns=int), clock=clock) as h:
        h.push([("a", 2 * HOUR + 100)])
        clock.set_back(HOUR)
        h.advance_clock(HOUR)
        assert h.rows == []
        h.advance_clock(100)
        assert h.rows == [2 * HOUR + 100]
        clock.set_back(HOUR)
        h.advance_clock(2 * HOUR)
        assert h.rows == [2 * HOUR + 100], "what has fired does not fire again"


class Listed(ProcessWindowFunction):
    def process(
        self, key: str, context: Any, elements: Iterable[tuple[str, int]]
    ) -> Iterator[tuple[int, int]]:
        for _, number in elements:
            yield context.window.start_ms - 2 * HOUR, number


def test_a_window_that_was_computed_is_opened_and_computed_a_second_time():
    clock = WallClock(2 * HOUR)
    made = keyed().window(TumblingProcessingTimeWindows(1_000)).process(Listed(), returns=tuple[int, int])
    with OperatorHarness.of(made, clock=clock) as h:
        h.push([("a", 1)])
        h.advance_clock(1_500)
        assert h.rows == [(0, 1)]
        h.push([("a", 2)])
        clock.set_back(1_200)
        h.push([("a", 3)])
        h.advance_clock(600)
        assert h.rows == [(0, 1)], "it is 900 ms again"
        h.advance_clock(100)
        assert h.rows == [(0, 1), (0, 3)]
        h.advance_clock(1_000)
        assert h.rows == [(0, 1), (0, 3), (1_000, 2)], "every record is in one window"


def test_a_silent_stream_is_idle_in_time_and_watermarks_are_told_on():
    strategy = WatermarkStrategy.monotonous("f1").with_idleness("500 ms")
    stream = (
        Environment().from_collection([], type=tuple[str, int]).assign_timestamps_and_watermarks(strategy)
    )
    clock = WallClock(2 * HOUR)
    with OperatorHarness.of(stream, clock=clock) as h:
        h.push([("a", 10)])
        clock.set_back(HOUR)
        h.advance_clock(0)
        h.advance_clock(200)
        assert h.watermarks == [9], "not an hour later"
        assert h.statuses == []
        h.advance_clock(400)
        assert h.statuses == [True]
        h.push([("a", 20)])
        h.advance_clock(200)
        assert (h.watermarks, h.statuses) == ([9, 19], [True, False])
