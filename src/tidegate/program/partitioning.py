"""How records are spread over the subtasks of the next operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.api.functions import function_name
from tidegate.program.operations import Key


@dataclass(frozen=True)
class Partitioning:
    """Base of all partitionings. `pointwise`: a producer reaches only some consumers."""

    name: ClassVar[str] = ""
    pointwise: ClassVar[bool] = False

    def describe(self) -> str:
        """The word for plans."""
        return self.name

    def required_columns(self) -> frozenset[str] | None:
        """The columns that it reads to choose a subtask, or None for all."""
        return frozenset()

    @property
    def runs_users_code(self) -> bool:
        """Whether a function of the user is called for each record."""
        return False


@dataclass(frozen=True)
class Forward(Partitioning):
    """Subtask i to subtask i; needs equal parallelism."""

    name: ClassVar[str] = "forward"
    pointwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Hash(Partitioning):
    """By key group of the key: all records of a key to one subtask."""

    name: ClassVar[str] = "hash"
    key: Key

    def describe(self) -> str:
        """With the key."""
        return f"hash({self.key.describe()})"

    def required_columns(self) -> frozenset[str] | None:
        """Those of the key."""
        return self.key.required_columns()

    @property
    def runs_users_code(self) -> bool:
        """Where the key is a function's."""
        return self.key.function is not None


@dataclass(frozen=True)
class Rebalance(Partitioning):
    """Evenly over all subtasks, in turn."""

    name: ClassVar[str] = "rebalance"


@dataclass(frozen=True)
class Rescale(Partitioning):
    """Evenly over a fixed group of near subtasks, in turn."""

    name: ClassVar[str] = "rescale"
    pointwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Shuffle(Partitioning):
    """At random, seeded per subtask."""

    name: ClassVar[str] = "shuffle"


@dataclass(frozen=True)
class Broadcast(Partitioning):
    """Every record to every subtask."""

    name: ClassVar[str] = "broadcast"


@dataclass(frozen=True)
class Global(Partitioning):
    """Every record to subtask 0."""

    name: ClassVar[str] = "global"


@dataclass(frozen=True)
class Custom(Partitioning):
    """By the user's function of the key and the number of subtasks, which returns the subtask."""

    name: ClassVar[str] = "custom"
    function: Callable[[Any, int], int]
    key: Key

    def describe(self) -> str:
        """With the function and the key."""
        return f"custom({function_name(self.function)} of {self.key.describe()})"

    def required_columns(self) -> frozenset[str] | None:
        """Those of the key."""
        return self.key.required_columns()

    @property
    def runs_users_code(self) -> bool:
        """Its own function."""
        return True
