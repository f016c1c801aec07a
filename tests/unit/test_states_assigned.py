"""A function that assigns to a state is refused before anything of the batch is emitted, whatever kind it is of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.contract.state_backend_kit import MemoryStorage
from tests.unit.operators_kit import Pair, keyed, pairs
from tidegate import (
    Environment,
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    ProcessWindowFunction,
    ProgramError,
    TumblingEventTimeWindows,
    WindowContext,
)
from tidegate.api.functions import (
    BroadcastContext,
    BroadcastProcessFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from tidegate.operators.failures import OperatorError
from tidegate.operators.functions.stamped_results import MOST_ROWS
from tidegate.state import (
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    ReducingState,
    ValueState,
)
from tidegate.testing.harness import OperatorHarness

TWO_KEYS = [("a", 1), ("b", 2)]


def harness(made: Any) -> OperatorHarness:
    return OperatorHarness.of(made, options=made._env.options, name="work")


def cause(failed: pytest.ExceptionInfo[OperatorError]) -> str:
    assert failed.value.operator == "work"
    assert isinstance(failed.value.__cause__, ProgramError)
    return str(failed.value.__cause__)


class Mapped(MapFunction):
    last = ValueState(int)

    def map(self, value: Pair) -> Pair:
        self.last = value[1]  # type: ignore[assignment]
        return value


class FlatMapped(FlatMapFunction):
    last = ValueState(int)

    def flat_map(self, value: Pair) -> list[Pair]:
        self.last = value[1]  # type: ignore[assignment]
        return [value]


class Filtered(FilterFunction):
    last = ValueState(int)

    def filter(self, value: Pair) -> bool:
        self.last = value[1]  # type: ignore[assignment]
        return True


class Processed(ProcessFunction):
    last = ValueState(int)

    def process(self, value: Pair, context: ProcessContext) -> Iterator[Pair]:
        self.last = value[1]  # type: ignore[assignment]
        yield value


class Reduced(ReduceFunction):
    last = ValueState(int)

    def reduce(self, left: Pair, right: Pair) -> Pair:
        self.last = right[1]  # type: ignore[assignment]
        return right


@pytest.mark.parametrize(
    ("make", "function"),
    [
        ("map", Mapped),
        ("flat_map", FlatMapped),
        ("filter", Filtered),
        ("process", Processed),
        ("reduce", Reduced),
    ],
)
def test_assigning_is_refused_with_what_to_write(env: Environment, make: str, function: Any) -> None:
    with harness(getattr(keyed(env), make)(function())) as h:
        with pytest.raises(OperatorError) as failed:
            h.push([*TWO_KEYS, *TWO_KEYS])
        assert h.rows == []
    assert cause(failed) == (
        f"state 'last' of {function.__name__} was assigned to (self.last = ...), which is not kept, and is the same "
        f"for all keys. Write self.last.update(value)"
    )


def test_it_is_the_error_that_is_shown_where_the_function_failed_because_of_it(env: Environment) -> None:
    class Last(ProcessFunction):
        last = ValueState(int, default=0)

        def process(self, value: Pair, context: ProcessContext) -> Iterator[Pair]:
            yield value[0], self.last.value()
            self.last = value[1]  # type: ignore[assignment]

    with harness(keyed(env).process(Last())) as h:
        with pytest.raises(OperatorError) as failed:
            h.push(TWO_KEYS)
        assert h.rows == []
    assert "state 'last' of Last was assigned to" in cause(failed)


def test_a_function_that_fails_by_itself_fails_with_its_own_error(env: Environment) -> None:
    class Failing(MapFunction):
        last = ValueState(int)

        def map(self, value: Pair) -> Pair:
            self.last.update(value[1])
            raise ValueError("mine")

    with harness(keyed(env).map(Failing())) as h, pytest.raises(OperatorError) as failed:
        h.push(TWO_KEYS)
    assert isinstance(failed.value.__cause__, ValueError)
    assert failed.value.record == "('a', 1)"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ListState(int), "Write self.it.add(value), or update(values) for the whole list"),
        (MapState(str, int), "Write self.it.put(key, value)"),
        (ReducingState(int, max), "Write self.it.add(value)"),
        (OperatorListState(int), "Write self.it.add(value), or update(values) for the whole list"),
    ],
)
def test_each_kind_says_how_it_is_written(env: Environment, state: Any, words: str) -> None:
    class Kept(MapFunction):
        it = state

        def map(self, value: Pair) -> Pair:
            self.it = value
            return value

    with harness(keyed(env).map(Kept())) as h:
        with pytest.raises(OperatorError) as failed:
            h.push(TWO_KEYS)
        assert h.rows == []
    assert "state 'it' of Kept was assigned to (self.it = ...)" in cause(failed)
    assert words in cause(failed)


def test_in_open_it_is_refused_too(env: Environment) -> None:
    class Early(Mapped):
        def open(self, context: RuntimeContext) -> None:
            self.last = 0  # type: ignore[assignment]

    with pytest.raises(OperatorError) as failed, harness(keyed(env).map(Early())):
        pass
    assert "state 'last' of Early was assigned to" in cause(failed)


@pytest.mark.parametrize("many", [1, 2 * MOST_ROWS])
def test_in_a_timer_it_is_refused_before_anything_that_it_gave_is_out(env: Environment, many: int) -> None:
    class Timed(KeyedProcessFunction):
        last = ValueState(int)

        def process(self, value: Pair, context: ProcessContext) -> None:
            context.timer_service.register_event_time_timer(value[1])

        def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Pair]:
            self.last = timestamp  # type: ignore[assignment]
            return [(context.current_key, timestamp)] * many

    with harness(keyed(env).process(Timed(), returns=Pair)) as h:
        h.push(TWO_KEYS, timestamps=[0, 0])
        with pytest.raises(OperatorError) as failed:
            h.advance_watermark(10)
        assert h.rows == []
    assert "state 'last' of Timed was assigned to" in cause(failed)


@pytest.mark.parametrize("side", [0, 1])
def test_on_either_side_of_two_streams(env: Environment, side: int) -> None:
    class Both(CoMapFunction):
        last = ValueState(int)

        def map1(self, value: Pair) -> Pair:
            self.last = value[1]  # type: ignore[assignment]
            return value

        def map2(self, value: Pair) -> Pair:
            self.last = value[1]  # type: ignore[assignment]
            return value

    with harness(keyed(env).connect(keyed(env)).map(Both())) as h:
        with pytest.raises(OperatorError) as failed:
            h.push(TWO_KEYS, input_index=side)
        assert h.rows == []
    assert "state 'last' of Both was assigned to" in cause(failed)


def test_broadcast_state(env: Environment) -> None:
    class Rules(BroadcastProcessFunction):
        rules = BroadcastState(str, int)

        def process(self, value: Pair, context: ProcessContext) -> list[Pair]:
            return [value]

        def process_broadcast(self, value: Pair, context: BroadcastContext) -> list[Pair]:
            self.rules = dict([value])  # type: ignore[assignment]
            return [value]

    with harness(pairs(env).connect(pairs(env).broadcast()).process(Rules())) as h:
        h.push(TWO_KEYS, input_index=0)
        with pytest.raises(OperatorError) as failed:
            h.push(TWO_KEYS, input_index=1)
        assert h.rows == TWO_KEYS
    assert "Write self.rules.put(key, value)" in cause(failed)


class Windowed(ProcessWindowFunction):
    last = ValueState(int)

    def process(self, key: str, context: WindowContext, elements: Sequence[Pair]) -> Iterator[Pair]:
        if isinstance(self.last, int) and elements[0][1] < 0:
            self.last.value()
        self.last = elements[0][1]  # type: ignore[assignment]
        yield from elements


@pytest.mark.parametrize("values", [(1, 2), (-1, -2)])
def test_a_window_function_that_goes_on_or_fails(env: Environment, values: tuple[int, int]) -> None:
    windows = keyed(env).window(TumblingEventTimeWindows("10 s"))
    with harness(windows.process(Windowed(), returns=Pair)) as h:
        h.push(list(zip("ab", values, strict=True)), timestamps=[1, 2])
        with pytest.raises(OperatorError) as failed:
            h.advance_watermark(10_000)
        assert h.rows == []
    assert "state 'last' of Windowed was assigned to" in cause(failed)


class Passed(ProcessWindowFunction):
    def process(self, key: str, context: WindowContext, elements: Sequence[Pair]) -> Iterator[Pair]:
        yield from elements


def test_the_reduce_function_in_front_of_a_window_function(env: Environment) -> None:
    windows = keyed(env).window(TumblingEventTimeWindows("10 s"))
    with harness(windows.reduce(Reduced(), Passed())) as h, pytest.raises(OperatorError) as failed:
        h.push([("a", 1), ("a", 2)], timestamps=[1, 2])
    assert "state 'last' of Reduced was assigned to" in cause(failed)


@dataclass(frozen=True)
class Frozen(MapFunction):
    step: int
    last = ValueState(int, default=0)

    def map(self, value: Pair) -> Pair:
        self.last.update(self.last.value() + self.step)
        return value[0], self.last.value()


def test_states_that_are_left_alone_go_on_over_batches_and_checkpoints(env: Environment) -> None:
    with harness(keyed(env).map(Frozen(2))) as h:
        h.push(TWO_KEYS)
        h.operator.snapshot(1)
        h.states.snapshot(1)(MemoryStorage().writer(1, 0, "operator", 0))
        h.push(TWO_KEYS)
        assert h.rows == [("a", 2), ("b", 2), ("a", 4), ("b", 4)]


@pytest.mark.parametrize("form", ["n + 1", "1 + n", "n += 1", "n - 1", "n > 3"])
def test_reckoning_with_a_state_says_how_it_is_read_and_written(env: Environment, form: str) -> None:
    class Count(MapFunction):
        n = ValueState(int, default=0)

        def map(self, value: Pair) -> Pair:
            exec(form, {}, {"n": self.n})
            return value

    with harness(keyed(env).map(Count())) as h, pytest.raises(OperatorError) as failed:
        h.push(TWO_KEYS)
    assert cause(failed) == (
        "state 'n' of Count is not its value: read that with n.value(), and write it with n.update(value)"
    )


@pytest.mark.parametrize("form", ["len(m)", "'a' in m", "m['a']", "m['a'] = 1", "list(m)"])
def test_a_map_state_is_no_dict_and_says_how_it_is_read_and_written(env: Environment, form: str) -> None:
    class Seen(MapFunction):
        m = MapState(str, int)

        def map(self, value: Pair) -> Pair:
            exec(form, {}, {"m": self.m})
            return value

    with harness(keyed(env).map(Seen())) as h, pytest.raises(OperatorError) as failed:
        h.push(TWO_KEYS)
    assert cause(failed) == (
        "state 'm' of Seen is not its value: read that with m.get(key), contains(key) or items(), and write it with "
        "m.put(key, value)"
    )


class Asked(MapFunction):
    value = ValueState(int)
    counted = ValueState(int, default=0)
    many = ListState(int)
    by_name = MapState(str, int)
    most = ReducingState(int, max)
    buffer = OperatorListState(int)

    def __init__(self, state: str) -> None:
        self.state = state

    def map(self, value: Pair) -> Pair:
        return value if getattr(self, self.state) else ("none", 0)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    ("state", "instead"),
    [
        ("value", "value.value() is not None"),
        ("counted", "counted.value(), the default if there is nothing"),
        ("many", "many.get(), an empty list if there is nothing"),
        ("by_name", "by_name.contains(key), or is_empty()"),
        ("most", "most.get() is not None"),
        ("buffer", "buffer.get(), an empty list if there is nothing"),
    ],
)
def test_a_state_is_neither_true_nor_false(backend: str, state: str, instead: str) -> None:
    said = f"state {state!r} of Asked is neither true nor false, as in `if {state}:`. Ask what is in it: {instead}"
    env = Environment(runtime="in-process", state_backend=backend)
    with harness(keyed(env).map(Asked(state))) as h, pytest.raises(OperatorError) as failed:
        h.push(TWO_KEYS)
    assert cause(failed) == said
    with pytest.raises(ProgramError) as declared:
        bool(getattr(Asked(state), state))
    assert str(declared.value) == said
