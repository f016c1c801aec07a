"""A function that cannot be called as its operator will call it is refused when the program is written."""

from __future__ import annotations

import functools
import operator
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.unit.operators_kit import Pair, keyed
from tidegate import (
    AggregateFunction,
    AggregatingState,
    Environment,
    KeyedProcessFunction,
    ProcessContext,
    ProcessWindowFunction,
    ProgramError,
    ReducingState,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.api.functions import CoProcessFunction, FlatMapFunction, MapFunction, ProcessFunction
from tidegate.api.sink import BlackholeSink


@pytest.fixture
def env() -> Environment:
    return Environment(runtime="in-process")


class OnTimer(ProcessFunction):
    def process(self, value: Pair, context: ProcessContext) -> Iterator[Pair]:
        yield value

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Pair]:
        yield "timer", timestamp


class CoOnTimer(CoProcessFunction):
    def process1(self, value: Pair, context: ProcessContext) -> Iterator[Pair]:
        yield value

    process2 = process1

    def on_timer(self, timestamp: int, context: Any) -> None: ...


class Swapped(ProcessFunction):
    def process(self, context: Any, value: Any) -> Iterator[Pair]:
        yield value


class SwappedTimer(KeyedProcessFunction):
    def process(self, value: Pair, ctx: ProcessContext) -> Iterator[Pair]:
        yield value

    def on_timer(self, ctx: Any, timestamp: Any) -> None: ...


class AsInFlink(ProcessFunction):
    def process(self, value: Pair, ctx: ProcessContext, out: Any) -> None: ...  # type: ignore[override]


class OpensWithNothing(MapFunction):
    def open(self) -> None: ...  # type: ignore[override]

    def map(self, value: Pair) -> Pair:
        return value


class TwoForOne(FlatMapFunction):
    def flat_map(self, name: str, number: int) -> Iterator[Pair]:  # type: ignore[override]
        yield name, number


class Elements(ProcessWindowFunction):
    def process(self, key: Any, elements: Any, context: Any) -> None: ...


class Most(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return max(accumulator, value)

    def get_result(self, accumulator: int) -> int:
        return accumulator


class KeepsMost(MapFunction):
    most = AggregatingState(int, Most())

    def map(self, value: Pair) -> Pair:
        return value


class Reduces(MapFunction):
    total = ReducingState(int, lambda n: n)

    def map(self, value: Pair) -> Pair:
        return value


def two(left: Pair, right: Pair) -> Pair:
    return left


def timed(env: Environment) -> Any:
    return keyed(env).assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("f1")).key_by("f0")


REFUSED: list[tuple[str, Callable[[Environment], Any], str]] = [
    (
        "on_timer of a plain process function",
        lambda env: keyed(env).process(OnTimer()),
        (
            "operator 'process OnTimer': OnTimer defines on_timer, which is never called: only functions of keyed "
            "streams have timers. Derive it from KeyedProcessFunction, and call key_by before it"
        ),
    ),
    (
        "on_timer of a plain function of two streams",
        lambda env: keyed(env).connect(keyed(env)).process(CoOnTimer()),
        "Derive it from KeyedCoProcessFunction, and call key_by before it",
    ),
    (
        "swapped parameters",
        lambda env: keyed(env).process(Swapped(), name="mine"),
        (
            "operator 'mine': Swapped.process is called with (value, context), but its context is argument 1 of "
            "(context, value). Put its parameters in the order (value, context)"
        ),
    ),
    (
        "swapped parameters of on_timer",
        lambda env: keyed(env).process(SwappedTimer()),
        "SwappedTimer.on_timer is called with (timestamp, context), but its context is argument 1",
    ),
    (
        "a collector as in Flink",
        lambda env: keyed(env).process(AsInFlink()),
        (
            "operator 'process AsInFlink': AsInFlink.process is called with (value, context), but takes (value, ctx, "
            "out). Define it as process(self, value, context)"
        ),
    ),
    (
        "open without a context",
        lambda env: keyed(env).map(OpensWithNothing()),
        "Define it as open(self, context)",
    ),
    (
        "a pair taken apart",
        lambda env: keyed(env).flat_map(TwoForOne()),
        "but takes (name, number)",
    ),
    (
        "a lambda of two for map",
        lambda env: keyed(env).map(lambda a, b: a),
        "operator 'map <lambda>': <lambda> is called with (value), but takes (a, b). Give it one parameter",
    ),
    ("filter", lambda env: keyed(env).filter(lambda: True), "is called with (value), but takes ()"),
    ("reduce", lambda env: keyed(env).reduce(lambda a: a), "is called with (left, right), but takes (a)"),
    (
        "process",
        lambda env: keyed(env).process(lambda a: [a]),
        "is called with (value, context), but takes (a)",
    ),
    (
        "a partial that has it all",
        lambda env: keyed(env).map(functools.partial(two, 1, 2)),
        "is called with (value)",
    ),
    ("a keyword that is needed", lambda env: keyed(env).map(lambda v, *, by: v), "but takes (v, *, by)"),
    (
        "key_by",
        lambda env: keyed(env).key_by(lambda: 1),
        "key_by: <lambda> is called with (value), but takes ()",
    ),
    ("sink_to", lambda env: keyed(env).sink_to(lambda: None), "sink_to: <lambda> is called with (value)"),
    (
        "map_batches",
        lambda env: keyed(env).map_batches(lambda: None),
        "map_batches: <lambda> is called with (batch)",
    ),
    (
        "partition_custom",
        lambda env: keyed(env).partition_custom(lambda key: 0, "f0"),
        "partition_custom: <lambda> is called with (key, number_of_subtasks), but takes (key)",
    ),
    (
        "timestamps",
        lambda env: WatermarkStrategy.monotonous(lambda record, previous: 0),
        "WatermarkStrategy: <lambda> is called with (record), but takes (record, previous)",
    ),
    (
        "an interval join",
        lambda env: timed(env).interval_join(timed(env)).between(0, 1).process(two, name="near"),
        (
            "operator 'near': two is called with (left, right, context), but takes (left, right). Give "
            "it 3 parameters"
        ),
    ),
    (
        "a window function",
        lambda env: timed(env).window(TumblingEventTimeWindows("1 s")).process(Elements()),
        "Elements.process is called with (key, context, elements), but its context is argument 3",
    ),
    (
        "an aggregate function of windows",
        lambda env: timed(env).window(TumblingEventTimeWindows("1 s")).aggregate(Most()),
        "Most.add is called with (value, accumulator), but its accumulator is argument 1",
    ),
    (
        "an aggregate function of a state",
        lambda env: keyed(env).map(KeepsMost()),
        "operator 'map KeepsMost': Most.add is called with (value, accumulator)",
    ),
    (
        "a reducing state",
        lambda env: keyed(env).map(Reduces()),
        "state 'total' of Reduces: its function is called with (so_far, value), but takes (n)",
    ),
]


async def asks(value: Any, more: Any = None) -> Pair:
    return ("a", 1)


async def asks_for_many(value: Any) -> AsyncIterator[Pair]:
    yield ("a", 1)


def yields(value: Any, more: Any = None) -> Iterator[Pair]:
    yield ("a", 1)


class YieldsInMap(MapFunction):
    def map(self, value: Pair) -> Iterator[Pair]:
        yield value


class OpensLater(MapFunction):
    async def open(self, context: Any) -> None: ...

    def map(self, value: Pair) -> Pair:
        return value


class CalledLater:
    async def __call__(self, value: Pair) -> Pair:
        return value


WRITTEN: list[Callable[[Environment, Any], Any]] = [
    lambda env, f: keyed(env).map(f),
    lambda env, f: keyed(env).filter(f),
    lambda env, f: keyed(env).reduce(f),
    lambda env, f: keyed(env).key_by(f),
    lambda env, f: keyed(env).sink_to(f),
    lambda env, f: keyed(env).map_batches(f),
    lambda env, f: keyed(env).partition_custom(f, "f0"),
    lambda env, f: timed(env).interval_join(timed(env)).between(0, 1).apply(f),
    lambda env, f: timed(env).window(TumblingEventTimeWindows("1 s")).reduce(f),
    lambda env, f: WatermarkStrategy.monotonous(f),
    lambda env, f: WatermarkStrategy.punctuated(f, "f1"),
]


@pytest.mark.parametrize("written", WRITTEN, ids=map(str, range(len(WRITTEN))))
def test_what_nobody_would_await_or_iterate_over_is_refused_where_it_is_written(
    env: Environment, written: Callable[[Environment, Any], Any]
) -> None:
    for function in (asks, asks_for_many, functools.partial(asks), CalledLater()):
        with pytest.raises(ProgramError, match=r"is `async def`, and nobody awaits it here.*map_async"):
            written(env, function)
    with pytest.raises(ProgramError, match=r"yields yields, but must return one value\. "):
        written(env, yields)


def test_where_many_records_are_meant_it_is_said_what_takes_them(env: Environment) -> None:
    for function, where in ((yields, "'map yields': yields"), (YieldsInMap(), "YieldsInMap.map")):
        with pytest.raises(ProgramError, match=rf"{where} yields.* For any number of records use flat_map"):
            keyed(env).map(function)
    with pytest.raises(ProgramError, match=r"OpensLater\.open is `async def`"):
        keyed(env).map(OpensLater())
    with pytest.raises(ProgramError, match=r"flat_map asks_for_many.* is `async def`"):
        keyed(env).flat_map(asks_for_many)
    keyed(env).flat_map(yields)
    keyed(env).process(yields)
    keyed(env).map_async(asks)


@pytest.mark.parametrize(("written", "said"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_cannot_be_called_is_refused_where_it_is_written(
    env: Environment, written: Callable[[Environment], Any], said: str
) -> None:
    with pytest.raises(ProgramError) as refused:
        written(env)
    assert said in str(refused.value)


def wrapped(function: Callable[[Pair, int], Pair]) -> Callable[[Pair], Pair]:
    @functools.wraps(function)
    def call(value: Pair) -> Pair:
        return function(value, 1)

    return call


@wrapped
def adds(value: Pair, more: int) -> Pair:
    return value[0], value[1] + more


class Flexible(KeyedProcessFunction):
    def process(self, *args: Any, **more: Any) -> Iterator[Pair]:
        yield args[0]

    def on_timer(self, timestamp: int, context: Any, unused: int = 0) -> None: ...

    @staticmethod
    def close() -> None: ...


class CalledStatically:
    @staticmethod
    def __call__(value: Pair) -> Pair:
        return value


FITTING = [
    str, dict, print, len, functools.partial(two, ("b", 1)), lambda *all: all, lambda value, more=1: value, adds,
    functools.lru_cache(len), [].append, Pair, CalledStatically(), operator.itemgetter(0), np.sqrt,
    lambda v, *, by=1: v,
]  # fmt: skip


@pytest.mark.parametrize("function", FITTING, ids=map(str, range(len(FITTING))))
def test_what_can_be_called_or_cannot_be_told_is_taken(env: Environment, function: Any) -> None:
    keyed(env).map(function, returns=str).sink_to(BlackholeSink())


def test_a_name_behind_the_arguments_may_be_any(env: Environment) -> None:
    context = "of the loop that made it"
    stream = env.from_collection([("a", 1)], type=Pair)
    made = stream.process(lambda value, about, context=context: [(context, value[1])], returns=Pair)
    assert list(made.execute_and_collect()) == [(context, 1)]


def test_a_method_may_take_more_than_it_is_called_with(env: Environment) -> None:
    assert "process Flexible" in repr(keyed(env).process(Flexible(), returns=Pair))
