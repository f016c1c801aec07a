"""JobGraph: chains of operators and the exchanges between them, as values that can be printed, hashed and stored.

The user's objects are inside as blobs; everything else is plain data. Version 1 of the format; a JobGraph crosses the
wire as MessagePack and is stored as JSON.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import EdgeId, OperatorId, VertexId

VERSION = 1


class OperatorSpec(msgspec.Struct, frozen=True):
    """One operator of a chain. `blob` holds an `OperatorPayload`; `kind` and `detail` are text for display."""

    id: OperatorId
    uid: str | None
    name: str
    kind: str
    detail: str
    output_type: str
    blob: bytes
    commits: bool = False
    """Whether it is a sink that commits its output with checkpoints."""
    is_source: bool = False


class OperatorPayload(NamedTuple):
    """The live objects of an operator: its operation and its input and output types."""

    operation: Any
    input_types: tuple[Any, ...]
    output_type: Any
    side_outputs: dict[str, Any]


class ChainLink(msgspec.Struct, frozen=True):
    """Inside a chain: operator `source` calls operator `target` directly with its main or a side output."""

    source: int
    target: int
    tag: str | None


class JobVertex(msgspec.Struct, frozen=True):
    """A chain of operators that runs as one task; the first operator takes the inputs."""

    id: VertexId
    name: str
    operators: tuple[OperatorSpec, ...]
    links: tuple[ChainLink, ...]
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    alignment_group: str | None = None
    """The watermark alignment group of a source: it may not run far ahead of the slowest of the group."""
    queries: tuple[tuple[int, ...], ...] = ()
    """Operators that run as one polars query, by position: the first computes what all of them do."""

    @property
    def is_source(self) -> bool:
        return self.operators[0].is_source


class JobEdge(msgspec.Struct, frozen=True):
    """An exchange: from an operator of one chain to an input of the head of another. `blob`: the Partitioning.

    `columns` are those that cross it; None: all. `as_rows`: the consumer runs Python per record and needs no columns.
    """

    id: EdgeId
    source: VertexId
    source_operator: int
    tag: str | None
    target: VertexId
    input: int
    partitioning: str
    pointwise: bool
    blob: bytes
    columns: tuple[str, ...] | None = None
    as_rows: bool = False


class JobGraph(msgspec.Struct, frozen=True):
    """The whole job."""

    name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    version: int = VERSION

    def vertex(self, id: VertexId) -> JobVertex:
        """The vertex with this id (ids are positions)."""
        return self.vertices[id]

    def inputs(self, id: VertexId) -> list[JobEdge]:
        return [e for e in self.edges if e.target == id]

    def outputs(self, id: VertexId) -> list[JobEdge]:
        return [e for e in self.edges if e.source == id]

    def slots_by_group(self) -> dict[str, int]:
        """Slots that each sharing group needs: its largest parallelism."""
        need: dict[str, int] = {}
        for v in self.vertices:
            need[v.slot_sharing_group] = max(need.get(v.slot_sharing_group, 0), v.parallelism)
        return need

    @property
    def committing_sinks(self) -> tuple[str, ...]:
        """The names of the sinks whose output is committed with checkpoints."""
        return tuple(o.name for v in self.vertices for o in v.operators if o.commits)

    @property
    def slots_needed(self) -> int:
        """Slots that the job needs: the sum over the sharing groups."""
        return sum(self.slots_by_group().values())

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> JobGraph:
        """Decode from the wire; raises `ProtocolError` for anything but a JobGraph of this version."""
        try:
            graph = msgspec.msgpack.decode(data, type=JobGraph)
        except msgspec.MsgspecError as e:
            raise ProtocolError(f"{len(data)} bytes are not a JobGraph: {e}") from e
        if graph.version != VERSION:
            raise ProtocolError(
                f"the JobGraph has version {graph.version}, but this process reads {VERSION}. "
                f"Run the same version of tidegate in the driver and the slots"
            )
        return graph
