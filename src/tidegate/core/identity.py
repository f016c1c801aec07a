"""Identities: plain values that identify an operation across processes and versions.

An operator without a uid finds its state by its identity, so an identity never contains text for display. It contains
no address and no module either: a script is `__main__` today and a module tomorrow. All lambdas have one identity; the
planner distinguishes operators with equal identities by their place in the program.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

Identity = tuple["str | int | float | bool | Identity | None", ...]

_ADDRESS: Final = re.compile("0x[0-9a-fA-F]+")


def function_identity(function: Any) -> str:
    """The qualified name of a function; for a callable instance, the name of its class.

    >>> function_identity(functools.partial(max, 1)), function_identity(lambda n: n)
    ('max', '<lambda>')
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return _unqualified(name) if isinstance(name, str) else class_identity(function)


def class_identity(instance: Any) -> str:
    return _unqualified(type(instance).__qualname__)


def expression_identity(expression: Any) -> str:
    """A polars expression as polars writes it, so that `a > 1` and `a <= 1` differ."""
    return _ADDRESS.sub("", str(expression))


def _unqualified(name: str) -> str:
    return name.rpartition("<locals>.")[2]
