"""Control messages between the JobManager and the slots: typed, tagged, MessagePack on the wire.

Every connection belongs to one job, attempt and slot (proved in the handshake), so messages do not repeat them. A
message that cannot be decoded raises `ProtocolError`, and the receiver closes the connection.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import OperatorId, SlotId, VertexId
from tidegate.core.states import ExecutionState
from tidegate.snapshot.handles import SubtaskCheckpointMetrics, SubtaskSnapshot


class SlotAddress(msgspec.Struct, frozen=True):
    """The address at which a slot accepts data connections, and its process."""

    slot: SlotId
    host: str
    port: int
    pid: int


# ---- from a slot to the JobManager ----


class RegisterSlot(msgspec.Struct, frozen=True, tag=True):
    """The first message of a slot: it is ready for a deployment."""

    address: SlotAddress
    executor: str


class SlotHeartbeat(msgspec.Struct, frozen=True, tag=True):
    """A slot is alive.

    `metrics` holds the latest `SubtaskMetrics` (MessagePack) of the slot's subtasks, each with its vertex. `stuck_ms`
    is how long the mailbox thread has been in one call of the task named by `inside`.
    """

    sequence: int
    metrics: tuple[tuple[VertexId, bytes], ...] = ()
    stuck_ms: int = 0
    inside: str = ""


class TaskStateChanged(msgspec.Struct, frozen=True, tag=True):
    """A subtask entered a new state."""

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
    """Sent instead of `RegisterSlot`: the process has started, but cannot be a slot. No message follows."""

    reason: str


class PeerLost(msgspec.Struct, frozen=True, tag=True):
    """A data connection to another slot broke while it was needed."""

    peer: SlotId
    reason: str
    is_cut: bool = False
    """Whether the hosts cannot reach each other; otherwise the other end closed the connection or died."""


class RequestSplit(msgspec.Struct, frozen=True, tag=True):
    """A source reader is out of splits."""

    operator: OperatorId
    subtask: int


class ReportWatermark(msgspec.Struct, frozen=True, tag=True):
    """The watermark of a source subtask of an alignment group; None: the subtask is idle."""

    group: str
    operator: OperatorId
    subtask: int
    watermark_ms: int | None


class LateRecordsDropped(msgspec.Struct, frozen=True, tag=True):
    """How many late records an operator subtask has dropped in total; sent when the total has doubled.

    `late_by_ms` is how far the earliest of the last dropped records (in partial results: of their slices) lies behind
    the watermark.
    """

    operator: OperatorId
    subtask: int
    dropped: int
    watermark_ms: int
    late_by_ms: int


class SlotWarned(msgspec.Struct, frozen=True, tag=True):
    """A warning of the engine in a slot, and how often it has occurred; sent when the count has doubled.

    `vertex` and `subtask` name the subtask whose code warned; None if no subtask did.
    """

    words: str
    count: int = 1
    vertex: VertexId | None = None
    subtask: int = 0


class CollectedBatch(msgspec.Struct, frozen=True, tag=True):
    """Records for the driver (print, collect), as an Arrow stream; the driver acknowledges with `CollectedTaken`."""

    operator: OperatorId
    subtask: int
    sequence: int
    data: bytes


class AcknowledgeCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """A subtask's part of a checkpoint is durable. `snapshot` is a `SubtaskSnapshot` (see `encode_snapshot`).

    `attachments` holds the bytes of files by path if the storage is the JobManager's memory; otherwise it is empty.
    """

    checkpoint_id: int
    vertex: VertexId
    subtask: int
    snapshot: bytes
    metrics: SubtaskCheckpointMetrics = SubtaskCheckpointMetrics()
    attachments: dict[str, bytes] = {}


class DeclineCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """A subtask cannot take part in a checkpoint; the task itself continues.

    `subsumed`: a newer checkpoint has arrived, which is no failure. `program_error`: the class of the error if the
    program caused it (not a disk or a network), so that the same state will cause it again.
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
    """All subtasks of the slot have ended, and the slot has closed everything; it now closes the connection."""


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
    """An encoded `SubtaskRestore` for each of `subtasks`, in their order; empty: nothing to restore."""
    storage: bytes = b""
    """The encoded `CheckpointStorage`; empty: checkpoints are off."""


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
    """The watermark of the slowest source subtask of a group; sent to every slot."""

    group: str
    watermark_ms: int


class CollectedTaken(msgspec.Struct, frozen=True, tag=True):
    """The driver has taken all batches of this sink subtask up to and including `sequence`."""

    operator: OperatorId
    subtask: int
    sequence: int


class TriggerCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """Take a checkpoint, in source subtasks and in those whose inputs have all ended; sent to every slot.

    `timestamp_ms` is the JobManager's wall clock at the trigger.
    """

    checkpoint_id: int
    timestamp_ms: int


class NotifyCheckpointComplete(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint is complete: commit it. Older checkpoints are superseded; the next increment builds on this one.

    After a `final` checkpoint the drained tasks end.
    """

    checkpoint_id: int
    final: bool = False


class NotifyCheckpointAborted(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint was aborted; its files are being deleted, so nothing may refer to them."""

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
"""Messages from slots to the CheckpointCoordinator."""
TaskMessage = (
    AssignSplits
    | NoMoreSplits
    | AlignWatermarks
    | CollectedTaken
    | TriggerCheckpoint
    | NotifyCheckpointComplete
    | NotifyCheckpointAborted
)
"""Messages from the JobManager to the tasks of a slot that runs."""
MasterMessage = Deploy | Cancel | MasterHeartbeat | TaskMessage

_slot_decoder = msgspec.msgpack.Decoder(SlotMessage)
_master_decoder = msgspec.msgpack.Decoder(MasterMessage)
_encoder = msgspec.msgpack.Encoder()
# JSON, because a snapshot holds raw JSON values: inside MessagePack they would be bytes of the wrong format.
_snapshot_decoder = msgspec.json.Decoder(SubtaskSnapshot)


def encode_message(message: Any) -> bytes:
    return _encoder.encode(message)


def decode_slot_message(data: bytes | memoryview) -> SlotMessage:
    """Decode a message from a slot; raises `ProtocolError`."""
    try:
        return _slot_decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a message from a slot: {e}") from e


def decode_master_message(data: bytes | memoryview) -> MasterMessage:
    """Decode a message from the JobManager; raises `ProtocolError`."""
    try:
        return _master_decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a message from the JobManager: {e}") from e


def encode_snapshot(snapshot: SubtaskSnapshot) -> bytes:
    """Encode a snapshot for `AcknowledgeCheckpoint.snapshot`."""
    return msgspec.json.encode(snapshot)


def decode_snapshot(data: bytes | memoryview) -> SubtaskSnapshot:
    """Decode `AcknowledgeCheckpoint.snapshot`; raises `ProtocolError`."""
    try:
        return _snapshot_decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a snapshot of a subtask: {e}") from e
