"""Partitionings: how records are distributed over the subtasks of the next operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.api.functions import function_name
from tidegate.program.operations import Key


@dataclass(frozen=True)
class Partitioning:
    """How an edge distributes records. `pointwise`: a producer reaches only some consumers."""

    name: ClassVar[str] = ""
    pointwise: ClassVar[bool] = False

    def describe(self) -> str:
        """The word in plans."""
        return self.name

    def required_columns(self) -> frozenset[str] | None:
        """The columns that it reads to choose a subtask, or None for all."""
        return frozenset()

    @property
    def runs_users_code(self) -> bool:
        """Whether it calls a function of the user for each record."""
        return False


@dataclass(frozen=True)
class Forward(Partitioning):
    """Subtask i to subtask i; needs equal parallelism."""

    name: ClassVar[str] = "forward"
    pointwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Hash(Partitioning):
    """By the key group of the key: all records of a key to one subtask."""

    name: ClassVar[str] = "hash"
    key: Key

    def describe(self) -> str:
        return f"hash({self.key.describe()})"

    def required_columns(self) -> frozenset[str] | None:
        return self.key.required_columns()

    @property
    def runs_users_code(self) -> bool:
        return self.key.function is not None


@dataclass(frozen=True)
class Rebalance(Partitioning):
    """Round-robin over all subtasks."""

    name: ClassVar[str] = "rebalance"


@dataclass(frozen=True)
class Rescale(Partitioning):
    """Round-robin over a fixed group of nearby subtasks."""

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
    """To the subtask that the user's function of the key and the number of subtasks returns."""

    name: ClassVar[str] = "custom"
    function: Callable[[Any, int], int]
    key: Key

    def describe(self) -> str:
        return f"custom({function_name(self.function)} of {self.key.describe()})"

    def required_columns(self) -> frozenset[str] | None:
        return self.key.required_columns()

    @property
    def runs_users_code(self) -> bool:
        return True
