"""Function classes say what they take and make; the streams before and after them must fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from tidegate import (
    AggregateFunction,
    AsyncFunction,
    BroadcastContext,
    BroadcastState,
    CoFlatMapFunction,
    CoMapFunction,
    DataStream,
    Environment,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    ListState,
    MapFunction,
    MapState,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    ReducingState,
    RuntimeContext,
    TumblingProcessingTimeWindows,
    ValueState,
    WindowContext,
)
from tidegate.records.types import record_type_of


@dataclass
class Click:
    app: str
    user: int
    price: float


env = Environment(runtime="in-process")
clicks = env.from_collection([Click("maps", 1, 0.5)])
keyed = clicks.key_by(lambda c: c.app, returns=str)
cheap = OutputTag("cheap", str)


class Price(MapFunction[Click, float]):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def open(self, context: RuntimeContext) -> None:
        assert_type(context.subtask_index, int)

    def map(self, value: Click) -> float:
        return value.price * self.factor


class Text(MapFunction[object, str]):
    def map(self, value: object) -> str:
        return str(value)


class Letters(FlatMapFunction[Click, str]):
    def flat_map(self, value: Click) -> Iterator[str]:
        yield from value.app


class Expensive(FilterFunction[Click]):
    def filter(self, value: Click) -> bool:
        return value.price > 1


class Dearest(ReduceFunction[Click]):
    def reduce(self, left: Click, right: Click) -> Click:
        return max(left, right, key=lambda c: c.price)


class Sort(ProcessFunction[Click, Click]):
    def process(self, value: Click, context: ProcessContext) -> Iterator[Click]:
        if value.price < 1:
            context.output(cheap, value.app)
        else:
            yield value


class Ask(AsyncFunction[Click, int]):
    async def invoke(self, value: Click) -> Iterable[int]:
        return [value.user]


class Alarm(KeyedProcessFunction[str, Click, str]):
    total = ValueState(float)
    users = ListState(int)
    prices = MapState(str, float)
    most = ReducingState(float, max)
    count = ValueState(int, default=0)

    def process(self, value: Click, context: ProcessContext[str]) -> Iterator[str]:
        assert_type(self.total.value(), float | None)
        assert_type(self.users.get(), list[int])
        assert_type(self.prices.get("maps"), float | None)
        assert_type(self.prices.get("maps", 0.0), float)
        assert_type(list(self.prices.items()), list[tuple[str, float]])
        assert_type(self.most.get(), float | None)
        assert_type(self.count.value(), int)
        assert_type(context.timer_service.current_watermark, int)
        self.count.update(self.count.value() + 1)
        self.total.update(None)
        yield context.current_key.upper()

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterator[str]:
        yield f"{context.current_key} {context.time_domain}"


class Rules(KeyedBroadcastProcessFunction[str, Click, str, Click]):
    rules = BroadcastState(str, bool)
    seen = ValueState(int)

    def process(self, value: Click, context: ProcessContext[str]) -> Iterator[Click]:
        if self.rules.contains(value.app):
            yield value

    def process_broadcast(self, value: str, context: BroadcastContext[str]) -> None:
        self.rules.put(value, True)
        context.apply_to_keyed_state(self.seen, lambda key, state: state.update(len(key)))


class Meet(KeyedCoProcessFunction[str, Click, str, str]):
    def process1(self, value: Click, context: ProcessContext[str]) -> Iterator[str]:
        yield value.app

    def process2(self, value: str, context: ProcessContext[str]) -> None: ...


class BothTexts(CoMapFunction[Click, str, str]):
    def map1(self, value: Click) -> str:
        return value.app

    def map2(self, value: str) -> str:
        return value


class BothLetters(CoFlatMapFunction[Click, str, str]):
    def flat_map1(self, value: Click) -> list[str]:
        return list(value.app)

    def flat_map2(self, value: str) -> list[str]:
        return list(value)


class Mean(AggregateFunction[Click, tuple[float, int], float]):
    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: Click, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value.price, accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        return accumulator[0] / accumulator[1]


class Described(ProcessWindowFunction[str, float, str]):
    def process(self, key: str, context: WindowContext, elements: Sequence[float]) -> Iterator[str]:
        yield f"{key.upper()} {elements[0]:.2f} {context.window.start:%H:%M}"


class Users(ProcessWindowFunction[str, Click, int]):
    def process(self, key: str, context: WindowContext, elements: Sequence[Click]) -> Iterator[int]:
        context.output(cheap, key)
        yield from (click.user for click in elements)


assert_type(clicks.map(Price(2)), DataStream[float])
assert_type(clicks.map(Text()), DataStream[str])
assert_type(clicks.flat_map(Letters()), DataStream[str])
assert_type(clicks.filter(Expensive()), DataStream[Click])
assert_type(clicks.map_async(Ask()), DataStream[int])
assert_type(keyed, KeyedStream[str, Click])
assert_type(keyed.reduce(Dearest()), DataStream[Click])
assert_type(keyed.process(Alarm()), DataStream[str])
assert_type(keyed.process(Sort(), side_outputs=cheap), DataStream[Click])
assert_type(clicks.process(Sort(), side_outputs=[cheap]).get_side_output(cheap), DataStream[str])
texts = clicks.map(Text())
assert_type(keyed.connect(texts.broadcast()).process(Rules()), DataStream[Click])
assert_type(clicks.connect(texts).key_by("app", lambda t: t).map(BothTexts(), returns=str), DataStream[str])
assert_type(clicks.connect(texts).flat_map(BothLetters()), DataStream[str])
both = clicks.connect(texts).key_by(lambda c: c.app, lambda t: t)
assert_type(both.process(Meet(), returns=str), DataStream[str])
windowed = keyed.window(TumblingProcessingTimeWindows("1 s"))
assert_type(windowed.aggregate(Mean()), DataStream[float])
assert_type(windowed.aggregate(Mean(), Described()), DataStream[str])
assert_type(windowed.process(Users(), side_outputs=(cheap,)), DataStream[int])
assert_type(windowed.reduce(Dearest()), DataStream[Click])
assert_type(windowed.reduce(Dearest(), Users()), DataStream[int])


class Inferred(MapFunction[Click, tuple[str, int]]):
    """Without hints of its own: the record type is that of the base."""

    def map(self, value):  # type: ignore[no-untyped-def]
        return value.app, value.user


inferred = clicks.map(Inferred())
assert_type(inferred, DataStream[tuple[str, int]])
assert inferred.record_type == record_type_of(tuple[str, int])

untyped: OutputTag[Any] = OutputTag("untyped")
assert_type(OutputTag("untyped"), OutputTag[Any])
