"""State handles: what a subtask reports about its snapshot to the JobManager. They say where the bytes are.

A handle is plain data: it crosses the wire in an acknowledgement, is part of the manifest (as JSON) and returns in the
deployment of the next attempt. Paths are relative to the job's checkpoint directory, so the directory can be moved.
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
    """The type of one keyed state. `fingerprint` covers all other fields and is compared before a restore."""

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

    `files` are in the order in which a restore applies them (heap: the base, then its increments), or a set (rocksdb).
    """

    backend: str
    """The name of the backend that wrote the files; only that one can read them."""
    key_groups: tuple[int, int]
    states: tuple[StateSchema, ...]
    files: tuple[StateFile, ...]
    bytes_new: int
    """Bytes that this checkpoint wrote; the rest is shared with earlier checkpoints."""

    @property
    def range(self) -> KeyGroupRange:
        return KeyGroupRange(*self.key_groups)

    @property
    def bytes_full(self) -> int:
        return sum(f.size for f in self.files)


class OperatorStateHandle(msgspec.Struct, frozen=True):
    """One operator (not keyed) state of one subtask.

    `entries` holds small plain values as JSON, inside the manifest: source positions, committables. `file` holds typed
    lists and broadcast maps (Parquet, one row per entry).
    """

    name: str
    redistribution: Redistribution
    entries: tuple[msgspec.Raw, ...] = ()
    file: StateFile | None = None
    rows: int = 0
    """Number of entries: of `entries`, or of `file` from `first_row` on."""
    schema: str = ""
    """The entry's type in words, for `file`."""
    fingerprint: str = ""
    first_row: int = 0
    """Where a subtask's share of `file` begins in a restore; 0 in a checkpoint."""


class OperatorSnapshot(msgspec.Struct, frozen=True):
    """The state of one operator of a subtask; empty for a stateless one."""

    operator: OperatorId
    keyed: KeyedStateHandle | None = None
    states: tuple[OperatorStateHandle, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.keyed is None and not self.states


class InFlightHandle(msgspec.Struct, frozen=True):
    """Batches that an unaligned barrier overtook in one subtask's inputs and outputs (one Arrow-stream file)."""

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
        found: list[StateFile] = []
        for operator in self.operators:
            if operator.keyed is not None:
                found.extend(operator.keyed.files)
            found.extend(s.file for s in operator.states if s.file is not None)
        if self.in_flight is not None:
            found.append(self.in_flight.file)
        return found


class SubtaskCheckpointMetrics(msgspec.Struct, frozen=True):
    """The duration and size of a subtask's part of a checkpoint."""

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
