"""State handles: what a subtask tells the JobManager about its snapshot. Where the bytes are, never the bytes.

A handle is plain data: it crosses the wire in an acknowledgement, is part of the manifest (as JSON) and comes back in
the deployment of the next attempt. Paths are relative to the job's checkpoint directory, so that it can be moved.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidegate.core.ids import OperatorId, VertexId
from tidegate.core.key_groups import KeyGroupRange

StateKind = Literal["value", "list", "map", "reducing", "aggregating", "column", "pane"]
Redistribution = Literal["split", "union", "broadcast"]


class StateFile(msgspec.Struct, frozen=True):
    """One durable file: its path below the job's checkpoint directory, its size and its checksum (`algorithm:hex`)."""

    path: str
    size: int
    checksum: str


class StateSchema(msgspec.Struct, frozen=True):
    """The type of one keyed state. `fingerprint` is over everything else; it is compared before a restore."""

    name: str
    kind: StateKind
    key: str
    """The key's record type in words (`RecordType.describe`), for messages."""
    value: str
    """The value's type in words."""
    serializer: str
    """`arrow` for typed values, else the name of the opt-in serializer."""
    ttl_ms: int | None
    fingerprint: str


class KeyedStateHandle(msgspec.Struct, frozen=True):
    """The keyed state of one operator subtask: a range of key groups.

    `files` in the order in which they are to be applied (heap: the base, then its increments), or as a set (rocksdb).
    """

    backend: str
    """The name of the backend that wrote the files, and alone can read them."""
    key_groups: tuple[int, int]
    states: tuple[StateSchema, ...]
    files: tuple[StateFile, ...]
    bytes_new: int
    """Bytes that this checkpoint wrote; the rest is shared with earlier ones."""

    @property
    def range(self) -> KeyGroupRange:
        """The key groups that it covers."""
        return KeyGroupRange(*self.key_groups)

    @property
    def bytes_full(self) -> int:
        """Bytes of all its files."""
        return sum(f.size for f in self.files)


class OperatorStateHandle(msgspec.Struct, frozen=True):
    """One operator (not keyed) state of one subtask.

    `entries` holds small plain values as JSON, in the manifest itself: source positions, committables. Typed lists and
    broadcast maps are in `file` (Parquet, one row per entry).
    """

    name: str
    redistribution: Redistribution
    entries: tuple[msgspec.Raw, ...] = ()
    file: StateFile | None = None
    rows: int = 0
    """Number of entries: of `entries`, or those that are meant in `file`, from `first_row` on."""
    schema: str = ""
    """The entry's type in words, for `file`."""
    fingerprint: str = ""
    first_row: int = 0
    """Where a subtask's share of `file` begins once it has been dealt out; 0 in a checkpoint."""


class OperatorSnapshot(msgspec.Struct, frozen=True):
    """What one operator of a subtask has: nothing at all for a stateless one."""

    operator: OperatorId
    keyed: KeyedStateHandle | None = None
    states: tuple[OperatorStateHandle, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the operator has no state."""
        return self.keyed is None and not self.states


class InFlightHandle(msgspec.Struct, frozen=True):
    """Batches that an unaligned barrier overtook, of one subtask's inputs and outputs (one Arrow-stream file)."""

    file: StateFile
    batches: int


class SubtaskSnapshot(msgspec.Struct, frozen=True):
    """What one subtask acknowledges. `finished`: it had read all of its input and will not run again."""

    vertex: VertexId
    subtask: int
    operators: tuple[OperatorSnapshot, ...]
    in_flight: InFlightHandle | None = None
    finished: bool = False

    def files(self) -> list[StateFile]:
        """Every file that it refers to."""
        found: list[StateFile] = []
        for operator in self.operators:
            if operator.keyed is not None:
                found.extend(operator.keyed.files)
            found.extend(s.file for s in operator.states if s.file is not None)
        if self.in_flight is not None:
            found.append(self.in_flight.file)
        return found


class SubtaskCheckpointMetrics(msgspec.Struct, frozen=True):
    """How long a subtask's part of a checkpoint took, and how much it was."""

    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    start_delay_ms: float = 0.0
    """From the trigger in the JobManager to the first barrier here (wall clocks of two machines)."""
    bytes_new: int = 0
    bytes_full: int = 0
    bytes_in_flight: int = 0
    aligned_records: int = 0
    """Records that waited in blocked channels."""
    unaligned: bool = False
