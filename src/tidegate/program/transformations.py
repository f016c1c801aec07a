"""Transformations: the nodes of a program as the user wrote it, and the references between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tidegate.program.operations import Operation
from tidegate.program.partitioning import Partitioning
from tidegate.records.types import RecordType


@dataclass(frozen=True)
class StreamRef:
    """One stream into an operator: the main or a side output of a transformation, and how it is partitioned.

    If `partitioning` is None, the planner chooses: forward if the parallelism is equal, else rebalance.
    """

    upstream: Transformation
    tag: str | None = None
    partitioning: Partitioning | None = None


@dataclass(eq=False)
class Transformation:
    """A node of the program. Mutable only through the fluent setters of the stream that it belongs to."""

    id: int
    operation: Operation
    name: str
    inputs: tuple[tuple[StreamRef, ...], ...]
    """The streams of each input: two inputs for co-functions, else one; several streams in one input are a union."""
    output_type: RecordType
    side_outputs: dict[str, RecordType] = field(default_factory=dict)
    uid: str | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    chaining: Literal["always", "head", "never"] = "always"
    slot_sharing_group: str | None = None
    fixed_parallelism: int | None = None
    """The parallelism that the operation requires (1 for a socket source)."""
