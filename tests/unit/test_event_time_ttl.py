"""State with a time to live in event time, in operators: it goes by the watermark that the operator has heard of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidegate import Environment
from tidegate.api.functions import KeyedProcessFunction, MapFunction
from tidegate.api.state import StateTtl, ValueState
from tidegate.testing.harness import OperatorHarness

pytestmark = pytest.mark.parametrize("backend", ["heap", "rocksdb"])


class CountWithinASecond(MapFunction):
    count = ValueState(int, default=0, ttl=StateTtl("1 s", time="event"))

    def map(self, value: str) -> int:
        self.count.update(self.count.value() + 1)
        return self.count.value()


class CountAndTell(KeyedProcessFunction):
    count = ValueState(int, default=0, ttl=StateTtl("1 s", time="event"))

    def process(self, value: str, context: Any) -> Iterator[int]:
        self.count.update(self.count.value() + 1)
        context.timer_service.register_event_time_timer(60_000)
        yield self.count.value()

    def on_timer(self, timestamp: int, context: Any) -> Iterator[int]:
        yield -self.count.value()


def harness(stream: Any, backend: str) -> OperatorHarness:
    return OperatorHarness.of(stream, options=Environment(state_backend=backend).options)


def words() -> Any:
    return Environment().from_collection([], type=str).key_by(lambda word: word, returns=str)


def test_a_value_expires_when_the_watermark_has_passed_its_time(backend: str) -> None:
    with harness(words().map(CountWithinASecond(), returns=int), backend) as operator:
        operator.advance_watermark(10_000)
        operator.push(["a", "a"])
        operator.advance_watermark(10_999)
        operator.push(["a", "b"])
        operator.advance_watermark(11_999)
        operator.push(["a", "b", "b"])
        assert operator.rows == [1, 2, 3, 1, 1, 1, 2]


def test_what_came_before_the_first_watermark_counts_from_it(backend: str) -> None:
    with harness(words().map(CountWithinASecond(), returns=int), backend) as operator:
        operator.push(["a"])
        operator.advance_clock(1_000_000)
        operator.advance_watermark(5_000)
        operator.push(["a"])
        operator.advance_watermark(6_000)
        operator.push(["a"])
        assert operator.rows == [1, 2, 1]


def test_timers_that_fire_at_the_end_of_input_still_have_their_state(backend: str) -> None:
    with harness(words().process(CountAndTell(), returns=int), backend) as operator:
        operator.advance_watermark(10_000)
        operator.push(["a", "a"])
        operator.finish()
        assert operator.rows == [1, 2, -2]
