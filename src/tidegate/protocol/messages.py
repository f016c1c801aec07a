"""Control messages between the JobManager and the slots: typed, tagged, MessagePack on the wire.

Every connection belongs to one job, attempt and slot (proved in the handshake), so the messages do not repeat them. A
message that does not decode is a `ProtocolError`: the connection is closed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import OperatorId, SlotId, VertexId
from tidegate.core.states import ExecutionState
from tidegate.snapshot.handles import SubtaskCheckpointMetrics, SubtaskSnapshot


class SlotAddress(msgspec.Struct, frozen=True):
    """Where a slot takes data connections, and which process it is."""

    slot: SlotId
    host: str
    port: int
    pid: int


# ---- from a slot to the JobManager ----


class RegisterSlot(msgspec.Struct, frozen=True, tag=True):
    """The first message of a slot: it exists and offers itself."""

    address: SlotAddress
    executor: str


class SlotHeartbeat(msgspec.Struct, frozen=True, tag=True):
    """A slot is alive.

    `metrics` holds the latest `SubtaskMetrics` (MessagePack) of its subtasks, each with its vertex; `stuck_ms` is how
    long the mailbox thread has been inside one call of the task named by `inside`.
    """

    sequence: int
    metrics: tuple[tuple[VertexId, bytes], ...] = ()
    stuck_ms: int = 0
    inside: str = ""


class TaskStateChanged(msgspec.Struct, frozen=True, tag=True):
    """A subtask went into a new state."""

    vertex: VertexId
    subtask: int
    state: ExecutionState


class TaskFailed(msgspec.Struct, frozen=True, tag=True):
    """A subtask failed. `operator` is the operator to blame, `position` the record's place if known."""

    vertex: VertexId
    subtask: int
    operator: str
    reason: str
    traceback: str
    position: str = ""
    record: str = ""


class SlotUnusable(msgspec.Struct, frozen=True, tag=True):
    """Instead of `RegisterSlot`: the process has come up, but cannot be a slot. Nothing follows."""

    reason: str


class PeerLost(msgspec.Struct, frozen=True, tag=True):
    """A data connection to another slot broke while it was needed."""

    peer: SlotId
    reason: str
    is_cut: bool = False
    """Whether the hosts cannot reach each other; otherwise the other end closed it or died."""


class RequestSplit(msgspec.Struct, frozen=True, tag=True):
    """A source reader is out of splits."""

    operator: OperatorId
    subtask: int


class ReportWatermark(msgspec.Struct, frozen=True, tag=True):
    """How far a source subtask of an alignment group is; None: it is idle."""

    group: str
    operator: OperatorId
    subtask: int
    watermark_ms: int | None


class LateRecordsDropped(msgspec.Struct, frozen=True, tag=True):
    """An operator subtask has dropped so many late records, in all; sent when they have become twice as many.

    `late_by_ms` is how far behind the watermark the earliest of the last ones is (in partial results: its slice).
    """

    operator: OperatorId
    subtask: int
    dropped: int
    watermark_ms: int
    late_by_ms: int


class SlotWarned(msgspec.Struct, frozen=True, tag=True):
    """The engine warns of something in a slot, so many times with these words; sent when that has doubled.

    `vertex` and `subtask` are those whose code said it; None where it was nobody's.
    """

    words: str
    count: int = 1
    vertex: VertexId | None = None
    subtask: int = 0


class CollectedBatch(msgspec.Struct, frozen=True, tag=True):
    """Records for the driver (print, collect), as an Arrow stream; acknowledged with `CollectedTaken`."""

    operator: OperatorId
    subtask: int
    sequence: int
    data: bytes


class AcknowledgeCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """A subtask's part of a checkpoint is durable. `snapshot` is a `SubtaskSnapshot` (see `encode_snapshot`).

    `attachments` holds the bytes of files by their path, if the storage is the JobManager's memory; else it is empty.
    """

    checkpoint_id: int
    vertex: VertexId
    subtask: int
    snapshot: bytes
    metrics: SubtaskCheckpointMetrics = SubtaskCheckpointMetrics()
    attachments: dict[str, bytes] = {}


class DeclineCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """A subtask cannot take part in a checkpoint; the task itself goes on.

    `subsumed`: only because a newer one has come, which is no failure. `program_error`: the class of the error where
    the program is to blame, and not a disk or a network: with the same state it comes again.
    """

    checkpoint_id: int
    vertex: VertexId
    subtask: int
    reason: str
    subsumed: bool = False
    program_error: str = ""


class TaskDrained(msgspec.Struct, frozen=True, tag=True):
    """A subtask has read all of its input and sent everything; it waits for the final checkpoint (checkpoints on)."""

    vertex: VertexId
    subtask: int


class SlotFinished(msgspec.Struct, frozen=True, tag=True):
    """All subtasks of the slot have ended and everything is closed; the connection ends now."""


# ---- from the JobManager to a slot ----


class SubtaskDeployment(msgspec.Struct, frozen=True):
    """A subtask that this slot runs."""

    vertex: VertexId
    subtask: int


class Deploy(msgspec.Struct, frozen=True, tag=True):
    """Run these subtasks. `placement[vertex][subtask]` is the slot of every subtask of the job."""

    job_graph: bytes
    subtasks: tuple[SubtaskDeployment, ...]
    placement: tuple[tuple[SlotId, ...], ...]
    addresses: tuple[SlotAddress, ...]
    restore: tuple[bytes, ...] = ()
    """A `SubtaskRestore` for each of `subtasks`, in their order, encoded; empty: there is nothing to restore."""
    storage: bytes = b""
    """The description of the `CheckpointStorage`; empty: checkpoints are off."""


class AssignSplits(msgspec.Struct, frozen=True, tag=True):
    """Splits for a reader, each as JSON of the source's split type."""

    operator: OperatorId
    subtask: int
    splits: tuple[bytes, ...]


class NoMoreSplits(msgspec.Struct, frozen=True, tag=True):
    """The enumerator has no more splits for this reader."""

    operator: OperatorId
    subtask: int


class AlignWatermarks(msgspec.Struct, frozen=True, tag=True):
    """How far the slowest source subtask of a group is. Goes to every slot."""

    group: str
    watermark_ms: int


class CollectedTaken(msgspec.Struct, frozen=True, tag=True):
    """The driver has taken all batches of this sink subtask up to and with `sequence`."""

    operator: OperatorId
    subtask: int
    sequence: int


class TriggerCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """Take a checkpoint: for source subtasks, and for those whose inputs have all ended. Goes to every slot.

    `timestamp_ms` is the JobManager's wall clock at the trigger.
    """

    checkpoint_id: int
    timestamp_ms: int


class NotifyCheckpointComplete(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint is complete: commit, and build the next increment on it. All older ones are done for.

    After a `final` one the drained tasks end.
    """

    checkpoint_id: int
    final: bool = False


class NotifyCheckpointAborted(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint was given up; its files are being deleted, nothing may refer to them."""

    checkpoint_id: int
    reason: str = ""


class MasterHeartbeat(msgspec.Struct, frozen=True, tag=True):
    """The JobManager is alive."""

    sequence: int


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop all subtasks, close everything and end."""

    reason: str


SlotMessage = (
    RegisterSlot
    | SlotHeartbeat
    | TaskStateChanged
    | TaskFailed
    | SlotUnusable
    | PeerLost
    | RequestSplit
    | ReportWatermark
    | LateRecordsDropped
    | SlotWarned
    | CollectedBatch
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | TaskDrained
    | SlotFinished
)
CheckpointMessage = AcknowledgeCheckpoint | DeclineCheckpoint | TaskDrained
"""What slots say to the CheckpointCoordinator."""
MasterMessage = (
    Deploy
    | AssignSplits
    | NoMoreSplits
    | AlignWatermarks
    | CollectedTaken
    | TriggerCheckpoint
    | NotifyCheckpointComplete
    | NotifyCheckpointAborted
    | MasterHeartbeat
    | Cancel
)

_slot_decoder = msgspec.msgpack.Decoder(SlotMessage)
_master_decoder = msgspec.msgpack.Decoder(MasterMessage)
_encoder = msgspec.msgpack.Encoder()
# JSON, because a snapshot holds raw JSON values: inside MessagePack they would be bytes of the wrong format.
_snapshot_decoder = msgspec.json.Decoder(SubtaskSnapshot)


def encode_message(message: Any) -> bytes:
    """Any control message as bytes."""
    return _encoder.encode(message)


def decode_slot_message(data: bytes | memoryview) -> SlotMessage:
    """A message from a slot, or `ProtocolError`."""
    try:
        return _slot_decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a message from a slot: {e}") from e


def decode_master_message(data: bytes | memoryview) -> MasterMessage:
    """A message from the JobManager, or `ProtocolError`."""
    try:
        return _master_decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a message from the JobManager: {e}") from e


def encode_snapshot(snapshot: SubtaskSnapshot) -> bytes:
    """What a subtask acknowledges, as in `AcknowledgeCheckpoint.snapshot`."""
    return msgspec.json.encode(snapshot)


def decode_snapshot(data: bytes | memoryview) -> SubtaskSnapshot:
    """The way back, or `ProtocolError`."""
    try:
        return _snapshot_decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a snapshot of a subtask: {e}") from e
