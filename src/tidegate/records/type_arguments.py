"""What a class puts for the type variables of a generic base: `class F(MapFunction[Click, int])`."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any


def type_arguments(cls: type, generic: type) -> dict[Any, Any]:
    """The type variables of `generic`, with what `cls`, which derives from it, puts for them.

    One that stays open is there as itself.

    >>> T = typing.TypeVar("T")
    >>> class Pair(typing.Generic[T]): ...
    >>> class Row(Pair[list[T]]): ...
    >>> class Numbers(Row[int]): ...
    >>> type_arguments(Numbers, Pair), type_arguments(Row, Pair)
    ({~T: list[int]}, {~T: list[~T]})
    """
    if cls is generic:
        return {variable: variable for variable in getattr(generic, "__parameters__", ())}
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = typing.get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, generic):
            given = dict(zip(getattr(origin, "__parameters__", ()), typing.get_args(base), strict=False))
            return {v: substitute(a, given) for v, a in type_arguments(origin, generic).items()}
    return {}


def substitute(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    """A type hint with these arguments for its type variables."""
    variables = (hint,) if isinstance(hint, typing.TypeVar) else getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not variables:
        return hint
    given = tuple(arguments.get(variable, variable) for variable in variables)
    return given[0] if isinstance(hint, typing.TypeVar) else hint[given]


def is_open(hint: Any) -> bool:
    """Whether a hint still has a type variable, or names a class as a text that nobody has looked up."""
    if isinstance(hint, (typing.TypeVar, typing.ForwardRef)):
        return True
    return not isinstance(hint, type) and bool(getattr(hint, "__parameters__", ()))
