"""The type variables of the public classes.

`IN` and `KEY` are what a function takes, so a function of `object` fits every stream; `OUT` is what it returns. Those
with a default belong to classes that may be used without arguments: `ProcessContext` is `ProcessContext[Any]`.
"""

from __future__ import annotations

from typing import Any, Final

from typing_extensions import TypeVar

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
K = TypeVar("K")
V = TypeVar("V")
O = TypeVar("O")  # noqa: E741 - what a function returns, as in map(function: Callable[[T], O])

KEY = TypeVar("KEY", contravariant=True)
IN = TypeVar("IN", contravariant=True)
IN1 = TypeVar("IN1", contravariant=True)
IN2 = TypeVar("IN2", contravariant=True)
ACC = TypeVar("ACC")
OUT = TypeVar("OUT", covariant=True)

AnyRecord = TypeVar("AnyRecord", default=Any)
AnyRecordIn = TypeVar("AnyRecordIn", contravariant=True, default=Any)
AnyRecordOut = TypeVar("AnyRecordOut", covariant=True, default=Any)
AnyKey = TypeVar("AnyKey", covariant=True, default=Any)
AnyKeyIn = TypeVar("AnyKeyIn", contravariant=True, default=Any)
AnyCommittable = TypeVar("AnyCommittable", default=Any)

NOT_GIVEN: Final[Any] = None
"""The default of parameters that take a type: a plain None would mean the type of None."""
