"""Function classes that name their types by the generic base: the record type, pickling, and what it costs."""

from __future__ import annotations

import pickle
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import cloudpickle
import pytest

from tidegate import (
    AggregateFunction,
    AsyncFunction,
    Batch,
    Environment,
    KeyedProcessFunction,
    MapFunction,
    ProcessContext,
    ProcessFunction,
    ProcessWindowFunction,
    Row,
    ValueState,
)
from tidegate.api.functions import one_result_type, result_type
from tidegate.records.types import ObjectType, record_type_of

T = TypeVar("T")


@dataclass
class Click:
    app: str
    user: int


class Pairs(MapFunction[Click, tuple[str, int]]):
    def map(self, value):
        return value.app, value.user


class Hinted(MapFunction[Click, float]):
    def map(self, value) -> int:
        return value.user


class Bare(MapFunction):
    def map(self, value):
        return value


class Listed(MapFunction[T, list[T]], Generic[T]):
    def map(self, value: T) -> list[T]:
        return [value]


class ListedInts(Listed[int]):
    pass


class Named(MapFunction["Click", "Click"]):
    def map(self, value):
        return value


class Sort(ProcessFunction[Click, Click]):
    def process(self, value, context):
        yield value


class Alarm(KeyedProcessFunction[str, Click, str]):
    seen = ValueState(int)

    def process(self, value, context):
        self.seen.update((self.seen.value() or 0) + 1)
        yield f"{context.current_key} {self.seen.value()}"

    def on_timer(self, timestamp, context):
        yield "late"


class Ask(AsyncFunction[Click, int]):
    async def invoke(self, value):
        return [value.user]


class Users(ProcessWindowFunction[str, Click, int]):
    def process(self, key, context, elements):
        return [click.user for click in elements]


class Total(AggregateFunction[Click, int, float]):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value.user

    def get_result(self, accumulator):
        return float(accumulator)


@pytest.mark.parametrize(
    ("function", "method", "many", "expected"),
    [
        (Pairs(), "map", False, tuple[str, int]),
        (Hinted(), "map", False, int),
        (ListedInts(), "map", False, list[int]),
        (Sort(), "process", True, Click),
        (Ask(), "invoke", True, int),
        (Users(), "process", True, int),
        (Total(), "create_accumulator", False, int),
        (Total(), "get_result", False, float),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_generic_base_says_the_type_where_the_method_has_no_hint(
    function: Any, method: str, many: bool, expected: Any
) -> None:
    assert result_type(function, method, None, many=many) == record_type_of(expected)


def test_all_methods_have_the_type_of_the_base() -> None:
    assert one_result_type(Alarm(), ("process",), None, many=True) == record_type_of(str)


@pytest.mark.parametrize("function", [Bare(), Listed(), Named()], ids=lambda f: type(f).__name__)
def test_a_type_that_stays_open_is_none(function: Any) -> None:
    assert result_type(function, "map", None, many=False).is_object


def test_returns_wins_over_the_base() -> None:
    assert result_type(Pairs(), "map", str, many=False) == record_type_of(str)


def test_a_program_of_such_functions_runs() -> None:
    env = Environment(runtime="in-process")
    clicks = env.from_collection([Click("a", 1), Click("a", 2)])
    assert list(clicks.map(Pairs()).execute_and_collect()) == [("a", 1), ("a", 2)]
    counted = clicks.key_by(lambda c: c.app, returns=str).process(Alarm())
    assert counted.record_type == record_type_of(str)
    assert list(counted.execute_and_collect()) == ["a 1", "a 2"]


def test_python_knows_the_hints_of_generic_functions() -> None:
    assert typing.get_type_hints(ProcessFunction.process)["context"].__origin__ is ProcessContext
    assert typing.get_type_hints(MapFunction.map)["return"] is MapFunction.__parameters__[1]


def test_a_generic_class_of_the_script_can_be_pickled_by_value() -> None:
    class Local(KeyedProcessFunction[str, Click, T], Generic[T]):
        seen = ValueState(int)

        def __init__(self, what: str) -> None:
            self.what = what

        def process(self, value: Click, context: ProcessContext[str]) -> Iterator[T]:
            yield from ()

    class Of(Local[list[int]]):
        pass

    copied = pickle.loads(cloudpickle.dumps(Of("x")))
    assert copied.what == "x"
    assert type(copied).__orig_bases__[0].__args__ == (list[int],)
    again = pickle.loads(cloudpickle.dumps(Local[int]("y")))
    assert (again.what, type(again).__name__) == ("y", "Local")
    assert result_type(copied, "process", None, many=True) == record_type_of(list[int])


def test_a_function_that_makes_rows_is_told_to_name_their_columns() -> None:
    class Rows(MapFunction[Row, Row]):
        def map(self, value: Row) -> Row:
            return value

    found = result_type(Rows(), "map", None, many=False)
    assert isinstance(found, ObjectType)
    assert found.because == "Row does not say which columns it has; pass returns=pyarrow.schema([...])"


def test_batches_and_rows_have_no_dictionary_for_being_typed() -> None:
    rows = Environment(runtime="in-process").from_collection([{"app": "a"}]).execute_and_collect()
    row = next(rows)
    assert isinstance(row, Row)
    assert not hasattr(row, "__dict__")
    assert not hasattr(Batch(record_type_of(int), rows=[1]), "__dict__")
    with pytest.raises(TypeError, match="a Row is made from columns, not by hand"):
        Row("a")
