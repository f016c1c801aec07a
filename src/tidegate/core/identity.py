"""Identities: what an operation is, as plain values that outlive a process and a version.

An operator without a uid finds its state by its identity, so an identity is never made of text for display. It has no
address and no module either: a script is `__main__` today and a module tomorrow. Two lambdas have one identity; the
planner tells operators with equal identities apart by their place in the program.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

Identity = tuple["str | int | float | bool | Identity | None", ...]

_ADDRESS: Final = re.compile("0x[0-9a-fA-F]+")


def function_identity(function: Any) -> str:
    """The name of a function as its module has it; that of the class for an instance.

    >>> function_identity(functools.partial(max, 1)), function_identity(lambda n: n)
    ('max', '<lambda>')
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return _unqualified(name) if isinstance(name, str) else class_identity(function)


def class_identity(instance: Any) -> str:
    """The name of the class of an instance."""
    return _unqualified(type(instance).__qualname__)


def expression_identity(expression: Any) -> str:
    """A polars expression as polars writes it: names alone would not tell `a > 1` from `a <= 1`."""
    return _ADDRESS.sub("", str(expression))


def _unqualified(name: str) -> str:
    return name.rpartition("<locals>.")[2]
