"""The type arguments that a class gives to a generic base: `class F(MapFunction[Click, int])`."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any


def type_arguments(cls: type, generic: type) -> dict[Any, Any]:
    """The type variables of `generic`, each with the argument that the derived class `cls` gives it.

    A variable without an argument maps to itself.

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
    """Replace the type variables of a hint with these arguments."""
    variables = (hint,) if isinstance(hint, typing.TypeVar) else getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not variables:
        return hint
    given = tuple(arguments.get(variable, variable) for variable in variables)
    return given[0] if isinstance(hint, typing.TypeVar) else hint[given]


def is_open(hint: Any) -> bool:
    """Whether a hint still has a type variable, or an unresolved forward reference."""
    if isinstance(hint, (typing.TypeVar, typing.ForwardRef)):
        return True
    return not isinstance(hint, type) and bool(getattr(hint, "__parameters__", ()))
