"""What a function's results are, from its hints; how functions are called in plans."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest

from tidegate.api.functions import (
    FlatMapFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    check_callable,
    function_name,
    result_type,
)


@dataclass
class Click:
    app: str

    @classmethod
    def parse(cls, text: str) -> Click:
        return cls(text)

    def upper(self) -> str:
        return self.app.upper()


class Callable1:
    def __call__(self, value: int) -> str:
        return str(value)


class Mapper(MapFunction):
    known: ClassVar[int] = 1

    def map(self, value: int) -> float:
        return float(value)


class Splitter(FlatMapFunction):
    def flat_map(self, value: str) -> Iterator[str]:
        yield value


class Processor(ProcessFunction):
    def process(self, value: str, context: Any) -> Iterable[int] | None:
        return None


def scale(factor: int, value: int) -> float:
    return factor * value


def broken(value: int) -> NoSuchName:  # type: ignore[name-defined]  # noqa: F821
    return value


@pytest.mark.parametrize(
    ("function", "method", "described"),
    [
        (str, "map", "str"),
        (Click, "map", "Click(app: string)"),
        (Click.parse, "map", "Click(app: string)"),
        (Click.upper, "map", "str"),
        (Callable1(), "map", "str"),
        (Mapper(), "map", "double"),
        (functools.partial(scale, 2), "map", "float"),
        (functools.partial(functools.partial(scale), 2), "map", "float"),
        (len, "map", "object (pickled)"),
        (lambda v: v, "map", "object (pickled)"),
        (broken, "map", "object (pickled)"),
    ],
)
def test_the_return_hint_is_found(function: Any, method: str, described: str) -> None:
    found = result_type(function, method, None, many=False).describe()
    assert found == described.replace("double", "float")


def test_hints_that_name_a_captured_local_class_are_found() -> None:
    @dataclass
    class Local:
        n: int

    def make(n: int) -> Local:
        return Local(n)

    assert result_type(make, "map", None, many=False).describe() == "Local(n: int64)"


def hinted(hint: Any) -> Callable[[Any], Any]:
    def function(value: Any) -> Any:
        return value

    function.__annotations__["return"] = hint
    return function


@pytest.mark.parametrize(
    ("hint", "described"),
    [
        (list[int], "int"),
        (Iterator[str], "str"),
        (Iterable[Click], "Click(app: string)"),
        (Generator[int, None, None], "int"),
        (list[int] | None, "int"),
        (tuple[int, ...], "int"),
        (dict[str, int], "str"),
        (list[tuple[int, str]], "tuple(int64, string)"),
        (tuple[int, str], "object (pickled)"),
        (list, "object (pickled)"),
        (int, "object (pickled)"),
        (None, "object (pickled)"),
    ],
    ids=str,
)
def test_of_many_results_the_type_of_one_is_taken(hint: Any, described: str) -> None:
    assert result_type(hinted(hint), "flat_map", None, many=True).describe() == described


def test_function_objects_are_asked_for_their_method() -> None:
    assert result_type(Splitter(), "flat_map", None, many=True).describe() == "str"
    assert result_type(Processor(), "process", None, many=True).describe() == "int"


def test_returns_wins_over_the_hint() -> None:
    assert result_type(str, "map", int, many=False).describe() == "int"
    assert result_type(Splitter(), "flat_map", int, many=True).describe() == "int"


def test_names_for_plans_are_short() -> None:
    def local(value: Any) -> Any:
        return value

    assert function_name(local) == "local"
    assert function_name(lambda v: v) == "<lambda>"
    assert function_name(Click.upper) == "Click.upper"
    assert function_name(functools.partial(scale, 2)) == "scale"
    assert function_name(Mapper()) == "Mapper"
    assert function_name(Callable1()) == "Callable1"
    assert function_name(str) == "str"
    assert function_name(Mock()) == "Mock", "which has every attribute that it is asked for"


def test_any_callable_will_do() -> None:
    for function in (str, Click, len, Callable1(), Mapper(), functools.partial(scale, 1), Click.parse):
        check_callable(function, MapFunction, "map")


def test_output_tags_are_equal_by_name() -> None:
    assert OutputTag("late", str) == OutputTag("late")
    assert len({OutputTag("late"), OutputTag("late"), OutputTag("early")}) == 2
    assert repr(OutputTag("late", int)) == "OutputTag('late', int)"
