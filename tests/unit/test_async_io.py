"""Async I/O: order, capacity, timeouts, retries, watermarks, and what is in a checkpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.async_io_kit import Gate, until
from tidegate import (
    AsyncFunction,
    AsyncRetry,
    Environment,
    FileSink,
    ProgramError,
    RestartStrategies,
    TumblingProcessingTimeWindows,
    ValueState,
)
from tidegate.operators.failures import OperatorError
from tidegate.records.elements import MAX_WATERMARK
from tidegate.testing.harness import OperatorHarness

GATES: dict[str, Gate] = {}
"""By name: an operator gets a copy of its function, so the gate itself cannot be in it."""


def harness_of(gate: Gate, key: str, **options: Any) -> OperatorHarness:
    GATES[key] = gate

    async def ask(n: int) -> int:
        import sys

        return await sys.modules[name].GATES[key](n)  # type: ignore[no-any-return]

    name = __name__
    stream = Environment().from_collection([1]).map_async(ask, returns=int, **options)
    return OperatorHarness.of(stream, name="ask")


def test_in_order_a_slow_answer_holds_the_others_back():
    gate = Gate()
    with harness_of(gate, "ordered") as h:
        h.push([1, 2, 3])
        gate.open(2, 3)
        until(lambda: len(h.operator._done) == 2)
        h.advance_clock(0)
        assert h.rows == []
        gate.open(1)
        until(lambda: h.rows == [10, 20, 30], h)


def test_unordered_answers_come_as_they_are_but_never_pass_a_watermark():
    gate = Gate()
    with harness_of(gate, "unordered", ordered=False) as h:
        h.push([1, 2], timestamps=[100, 200])
        h.advance_watermark(250)
        h.push([3], timestamps=[300])
        gate.open(2, 3)
        until(lambda: h.rows == [20], h)
        until(lambda: gate.asked == [1, 2, 3], h)
        assert h.watermarks == []
        gate.open(1)
        until(lambda: h.rows == [20, 10, 30], h)
        assert h.watermarks == [250]
        assert [t for b in h.batches for t in b.timestamps.to_pylist()] == [200, 100, 300]


def test_no_more_than_the_capacity_is_asked_for_at_a_time():
    gate = Gate()
    with harness_of(gate, "capacity", capacity=2) as h:
        h.push([1, 2, 3, 4])
        until(lambda: len(gate.asked) == 2)
        assert not h.operator.is_ready()
        gate.open(1)
        until(lambda: len(gate.asked) == 3, h)
        gate.open(2, 3, 4)
        until(lambda: h.operator.is_settled, h)
        assert h.operator.is_ready()
        assert h.rows == [10, 20, 30, 40]


def test_the_last_watermark_waits_for_the_last_answer():
    gate = Gate()
    with harness_of(gate, "end") as h:
        h.push([1])
        h.advance_watermark(MAX_WATERMARK)
        assert not h.operator.is_settled
        assert h.watermarks == []
        gate.open(1)
        until(lambda: h.operator.is_settled, h)
        assert (h.rows, h.watermarks) == ([10], [MAX_WATERMARK])


def test_a_stream_is_idle_only_when_the_last_answer_is_out():
    gate = Gate()
    with harness_of(gate, "idle") as h:
        h.push([1], timestamps=[100])
        h.advance_watermark(150)
        h.operator.process_status(True)
        assert h.statuses == []
        gate.open(1)
        until(lambda: h.statuses == [True], h)
        assert (h.rows, h.watermarks) == ([10], [150])
        h.operator.process_status(False)
        h.push([2], timestamps=[200])
        h.operator.process_status(True)
        h.operator.process_status(False)  # awake again before anyone behind heard of it
        gate.open(2)
        until(lambda: h.rows == [10, 20], h)
        assert h.statuses == [True, False]


def test_what_an_operator_gives_at_the_end_is_asked_for_by_one_chained_behind_it():
    async def ask(n: int) -> int:
        await asyncio.sleep(0.01)
        return n * 10

    env = Environment(runtime="in-process")
    windows = env.from_collection([1, 2, 3]).window_all(TumblingProcessingTimeWindows("1 h"))
    last = (
        windows.reduce(lambda so_far, n: so_far + n).map_async(ask, returns=int).map_async(ask, returns=int)
    )
    assert list(last.execute_and_collect()) == [600]


@dataclass
class Basket:
    total: int


def test_a_function_that_changes_its_record_does_not_change_what_is_asked_for_again():
    class AddOne(AsyncFunction):
        async def invoke(self, value: Basket) -> Iterable[int]:
            value.total += 1
            if value.total > 1 or not self.failed:
                self.failed = True
                raise OSError(f"total {value.total}")
            return [value.total]

        failed = False

    stream = (
        Environment().from_collection([Basket(0)]).map_async(AddOne(), returns=int, retry=AsyncRetry(3, 1))
    )
    with OperatorHarness.of(stream) as h:
        h.push([Basket(0)])
        until(lambda: h.rows == [1], h)


def test_what_fails_is_blamed_on_the_operator_with_its_record():
    async def fail(n: int) -> int:
        raise KeyError(f"no user {n}")

    with OperatorHarness.of(Environment().from_collection([1]).map_async(fail), name="look up") as h:
        h.push([7])
        with pytest.raises(OperatorError) as caught:
            until(lambda: False, h)
    assert (caught.value.operator, caught.value.record) == ("look up", "7")
    assert "no user 7" in str(caught.value.__cause__)


def test_a_request_is_repeated_as_often_as_was_said():
    calls: list[int] = []
    CALLS["retry"] = calls

    name = __name__

    async def flaky(n: int) -> int:
        import sys

        made = sys.modules[name].CALLS["retry"]
        made.append(n)
        if len(made) < 3:
            raise ConnectionError("again")
        return n

    retry = AsyncRetry(3, "1 ms", on=(ConnectionError,))
    with OperatorHarness.of(Environment().from_collection([1]).map_async(flaky, retry=retry)) as h:
        h.push([5])
        until(lambda: h.rows == [5], h)
    assert calls == [5, 5, 5]


CALLS: dict[str, list[int]] = {}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (5, "must return an iterable of records, but returned an int: 5. Return a list"),
        ("text", "must return an iterable of records, but returned a str"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_an_error_at_once_as_the_next_one_would_be_so_too(answer, words):
    CALLS["wrong"] = calls = []

    class Wrong(AsyncFunction):
        async def invoke(self, value: int) -> Any:
            import sys

            sys.modules[name].CALLS["wrong"].append(value)
            return answer

    name = __name__
    stream = Environment().from_collection([1]).map_async(Wrong(), returns=int, retry=AsyncRetry(3, "1 ms"))
    with OperatorHarness.of(stream) as h:
        h.push([7])
        with pytest.raises(OperatorError) as caught:
            until(lambda: False, h)
    assert words in str(caught.value.__cause__)
    assert calls == [7]


def test_answers_keep_their_times_beside_those_of_records_that_have_none():
    async def ask(n: int) -> int:
        return n

    with OperatorHarness.of(Environment().from_collection([1]).map_async(ask)) as h:
        h.push([1, 2], timestamps=[100, None])
        until(lambda: h.operator.is_settled, h)
        # In one batch or in two, of which the second then has no times at all.
        times = [[None] * b.num_rows if b.timestamps is None else b.timestamps.to_pylist() for b in h.batches]
        assert [t for each in times for t in each] == [100, None]


def test_a_timeout_that_the_function_raises_itself_is_an_error_like_any_other():
    class Client(AsyncFunction):
        def __init__(self, failures: int) -> None:
            self.failures = failures

        async def invoke(self, value: int) -> Iterable[int]:
            self.failures -= 1
            if self.failures >= 0:
                raise TimeoutError("the socket timed out")
            return [value]

        def timeout(self, value: int) -> Iterable[int]:
            return [-value]

    numbers = Environment().from_collection([1])
    retry = AsyncRetry(3, "1 ms", on=(TimeoutError,))
    with OperatorHarness.of(numbers.map_async(Client(2), retry=retry, returns=int)) as h:
        h.push([5])
        until(lambda: h.rows == [5], h)
    with OperatorHarness.of(numbers.map_async(Client(1), returns=int)) as h:
        h.push([5])
        with pytest.raises(OperatorError) as caught:
            until(lambda: False, h)
    assert "the socket timed out" in str(caught.value.__cause__)


def test_without_an_answer_in_time_the_job_fails_or_the_function_says_what_instead():
    async def never(n: int) -> int:
        await asyncio.sleep(60)
        return n

    class Patient(AsyncFunction):
        async def invoke(self, value: int) -> Iterable[int]:
            await asyncio.sleep(60)
            return [value]

        def timeout(self, value: int) -> Iterable[int]:
            return [-value, -value]

    env = Environment()
    with OperatorHarness.of(env.from_collection([1]).map_async(never, timeout="10 ms")) as h:
        h.push([1])
        with pytest.raises(OperatorError) as caught:
            until(lambda: False, h)
    assert "no answer within 10 ms" in str(caught.value.__cause__)
    with OperatorHarness.of(env.from_collection([1]).map_async(Patient(), timeout="10 ms", returns=int)) as h:
        h.push([1])
        until(lambda: h.rows == [-1, -1], h)


def test_bad_settings_are_refused_where_they_are_written():
    numbers = Environment().from_collection([1])

    def plain(n: int) -> int:
        return n

    async def fine(n: int) -> int:
        return n

    class Counting(AsyncFunction):
        count = ValueState(int)

        async def invoke(self, value: int) -> Iterable[int]:
            return [value]

    for arguments, message in (
        ({"function": plain}, "needs an async function.*Define it with `async def`"),
        ({"function": Counting}, "Give it an instance of the class"),
        ({"function": Counting()}, "Counting declares state 'count', but does not run on the thread"),
        ({"function": fine, "capacity": 0}, "capacity must be at least 1"),
        ({"function": fine, "timeout": 0}, "timeout must be at least 1 ms"),
        ({"function": fine, "retry": 3}, "retry must be an AsyncRetry"),
    ):
        with pytest.raises(ProgramError, match=message):
            numbers.map_async(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="at least one attempt"):
        AsyncRetry(0)


@pytest.mark.parametrize(("result", "words"), [(None, "returned None"), ("ab", "returned a str: 'ab'")])
def test_a_class_that_returns_no_list_of_records_is_told_so(result: Any, words: str):
    class Wrong(AsyncFunction):
        async def invoke(self, value: int) -> Any:
            return result

    with OperatorHarness.of(Environment().from_collection([1]).map_async(Wrong(), returns=str)) as h:
        h.push([1])
        with pytest.raises(OperatorError) as caught:
            until(lambda: False, h)
    assert words in str(caught.value.__cause__)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_job_with_checkpoints_and_a_crash_has_every_answer_once(tmp_path, ordered: bool, seed: int):
    crash = tmp_path / "crashed"

    async def ask(n: int) -> int:
        await asyncio.sleep(0.0005 * (n % 5))
        if n == 150 and not crash.exists():
            crash.touch()
            raise RuntimeError("once")
        return n * 2

    env = Environment(
        runtime="in-process",
        parallelism=2,
        seed=seed,
        batch_rows=7,
        checkpoint_interval="10 ms",
        checkpoint_dir=str(tmp_path / "checkpoints"),
        restart_strategy=RestartStrategies.fixed_delay(2, "1 ms"),
    )

    out = tmp_path / "out"
    asked = env.from_sequence(1, 300).map_async(ask, ordered=ordered, capacity=10, uid="ask")
    asked.sink_to(FileSink(out, format="json"), uid="out")
    env.execute()
    lines = [line for file in out.glob("part-*") for line in file.read_text().splitlines()]
    found = sorted(json.loads(line)["value"] for line in lines)
    assert found == [2 * n for n in range(1, 301)]
    assert crash.exists()
