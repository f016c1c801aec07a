"""Mistakes that a type checker finds; each line says what it is told. This program is checked, not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate import (
    AggregateFunction,
    DataStream,
    Environment,
    FileSource,
    KeyedProcessFunction,
    ListState,
    MapFunction,
    MapState,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ProcessWindowFunction,
    Sink,
    TumblingEventTimeWindows,
    ValueState,
    WindowContext,
)


@dataclass
class Click:
    app: str
    user: int
    price: float


env = Environment()
clicks = env.from_collection([Click("maps", 1, 0.5)])
keyed = clicks.key_by(lambda c: c.app)
texts = clicks.map(lambda c: c.app)
joined = keyed.interval_join(keyed).between("0 s", "1 s")
by_user = clicks.key_by(lambda c: c.user)
minute = TumblingEventTimeWindows("1 min")
cheap = OutputTag("cheap", str)

# Lambdas.
clicks.map(lambda c: c.pric)  # E: "Click" has no attribute "pric"; maybe "price"?
clicks.map(lambda c: c.app, returns=int)  # E: got "str", expected "int"
clicks.map(lambda c: c.user).map(lambda n: n.upper())  # E: "int" has no attribute "upper"
clicks.filter(lambda c: c.price > "1")  # E: Unsupported operand types for >
clicks.flat_map(lambda c: c.user)  # E: incompatible
clicks.key_by(lambda c: c.ap)  # E: "Click" has no attribute "ap"; maybe "app"?
keyed.reduce(lambda a, b: a.price + b.price)  # E: incompatible
keyed.window(minute).reduce(lambda a, b: a.price)  # E: got "float", expected "Click"
clicks.sink_to(lambda c: c.pric)  # E: "Click" has no attribute "pric"
clicks.connect(keyed).key_by(lambda c: c.app, lambda c: c.name)  # E: "Click" has no attribute "name"
joined.apply(lambda a, b: a.price + b.pric)  # E: "Click" has no attribute "pric"
joined.how("left").apply(lambda a, b: b.price)  # E: Item "None" of "Click | None" has no attribute "price"

# Streams that do not fit each other.
clicks.union(texts)  # E: Argument 1 to "union" of "DataStream" has incompatible type
numbers: DataStream[int] = clicks.map(lambda c: c.app)  # E: incompatible
keyed.interval_join(by_user)  # E: Argument 1 to "interval_join" of "KeyedStream"
clicks.count()  # E: "DataStream[Click]" has no attribute "count"
for result in clicks.execute_and_collect():
    name = result.name  # E: "Click" has no attribute "name"


# Functions.
class Length(MapFunction[str, int]):
    def map(self, value: str) -> int:
        return len(value)


class Wrong(MapFunction[Click, int]):
    def map(self, value: Click) -> str:  # E: Return type "str" of "map" incompatible with return type "int"
        return value.app


class Sort(ProcessFunction[Click, Click]):
    def process(self, value: Click, context: ProcessContext) -> Iterator[Click]:
        context.output(cheap, value.price)  # E: "output" of "ProcessContext"
        yield value.app  # E: Incompatible types in "yield"


class Alarm(KeyedProcessFunction[int, Click, str]):
    total = ValueState(float)
    users = ListState(int)
    prices = MapState(str, float)

    def process(self, value: Click, context: ProcessContext[int]) -> Iterator[str]:
        self.total.update("much")  # E: Argument 1 to "update" of "ValueState" has incompatible type "str"
        self.total.value() + 1.0  # E: Unsupported operand types for + ("None" and "float")
        self.users.add(value.app)  # E: Argument 1 to "add" of "ListState" has incompatible type "str"
        self.prices.put(1, 2.0)  # E: Argument 1 to "put"
        self.total.get()  # E: "ValueState[float | None]" has no attribute "get"
        yield context.current_key.upper()  # E: "int" has no attribute "upper"


class Largest(ProcessWindowFunction[str, float, float]):
    def process(self, key: str, context: WindowContext, elements: Sequence[float]) -> Iterator[float]:
        yield max(elements)


class Total(AggregateFunction[float, float, float]):
    def create_accumulator(self) -> str:  # E: Return type "str" of "create_accumulator" incompatible
        return ""

    def add(self, value: float, accumulator: float) -> float:
        return accumulator + value

    def get_result(self, accumulator: float) -> float:
        return accumulator


clicks.map(Length())  # E: Argument 1 to "map" of "DataStream" has incompatible type "Length"
keyed.process(Alarm())  # E: Argument 1 to "process" of "KeyedStream" has incompatible type "Alarm"
clicks.process(Alarm())  # E: Argument 1 to "process" of "DataStream" has incompatible type "Alarm"
keyed.window(minute).process(Largest())  # E: incompatible type "Largest"
keyed.window(minute).aggregate(Total())  # E: Argument 1 to "aggregate" of "WindowedStream"
Length(1)  # E: Too many arguments for "Length"

# Settings, types and sinks.
clicks.map(lambda c: c.app, nam="apps")  # E: Unexpected keyword argument "nam"
clicks.map(lambda c: c.app, parallelism="2")  # E: Argument "parallelism" to "map" of "DataStream"
keyed.count(emit="sometimes")  # E: Argument "emit" to "count" of "KeyedStream" has incompatible type
env.from_collection([1], type="int?")  # E: No overload variant of "from_collection"
ListState(5)  # E: Argument 1 to "ListState" has incompatible type "int"


def write(sink: Sink[str], source: FileSource[Click]) -> DataStream[str]:
    clicks.sink_to(sink)  # E: Argument 1 to "sink_to" of "DataStream" has incompatible type "Sink[str]"
    return env.from_source(source)  # E: incompatible


class Bare(MapFunction):  # E: Missing type arguments for generic type "MapFunction"
    def map(self, value: Any) -> Any:
        return value
