"""What happens to checkpoints (events, past tense) and what is to be done about them (actions, imperative).

The driver performs the storage actions of a job (`StoreAttachments`, `WriteManifest`, `DiscardCheckpoint`, `Sweep`,
`ReleaseStorage`) one after the other, in the order in which they come, away from its control thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.core.ids import AttemptNumber, OperatorId, SlotId, SubtaskId, VertexId
from tidegate.core.states import JobStatus
from tidegate.jobmanager.checkpoint.completed_checkpoint import AcknowledgedCheckpoint
from tidegate.jobmanager.events import ReportTrouble, SendToSlot, Tick
from tidegate.protocol.messages import CheckpointMessage

# ---- events ----


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """A new attempt is being deployed: which slot runs which subtask, and the names of the vertices."""

    attempt: AttemptNumber
    slots: Mapping[SubtaskId, SlotId]
    names: Mapping[VertexId, str]
    restored_checkpoint: int | None = None
    """What it begins from; None: nothing."""


@dataclass(frozen=True, slots=True)
class TasksStarted:
    """Every subtask of the attempt runs: checkpoints can be triggered."""


@dataclass(frozen=True, slots=True)
class TasksStopped:
    """The tasks of the attempt run no more, or are being stopped; nothing that its slots say counts."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """There will be no other attempt."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class CheckpointMessageReceived:
    """A living slot of the attempt said something about checkpoints."""

    slot: SlotId
    message: CheckpointMessage


@dataclass(frozen=True, slots=True)
class EnumeratorsSnapshotted:
    """The answer to `SnapshotEnumerators`: the states as JSON, and the wall clock at which they were taken.

    It comes behind every `SplitsAssigned` of an enumerator that was made before its state was taken.
    """

    checkpoint_id: int
    states: Mapping[OperatorId, bytes]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EnumeratorSnapshotFailed:
    """The other answer: an enumerator's state could not be taken."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """The answer to `WriteManifest`: it is durable under this path."""

    checkpoint_id: int
    path: str


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    """The other answer: it could not be written, or nobody knows whether it was."""

    checkpoint_id: int
    reason: str


StorageAnswer = ManifestWritten | ManifestFailed
EnumeratorAnswer = EnumeratorsSnapshotted | EnumeratorSnapshotFailed
CheckpointEvent = (
    AttemptBegan
    | TasksStarted
    | TasksStopped
    | JobEnded
    | CheckpointMessageReceived
    | EnumeratorAnswer
    | StorageAnswer
    | Tick
)

# ---- actions ----


@dataclass(frozen=True, slots=True)
class SnapshotEnumerators:
    """Take the state of all enumerators; answered by an `EnumeratorAnswer`."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class StoreAttachments:
    """Keep these files, by path, in the JobManager's memory: they belong to a checkpoint that may become complete."""

    checkpoint_id: int
    attachments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Make a checkpoint durable; answered by a `StorageAnswer`."""

    checkpoint: AcknowledgedCheckpoint


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Delete a checkpoint: its manifest, what was written for it and is not in `keep`, and the files `delete`.

    `delete` are files of earlier checkpoints that it was the last to refer to.
    """

    checkpoint_id: int
    keep: frozenset[str]
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """Delete what was left behind by earlier checkpoints and attempts and is not in `keep`."""

    keep: frozenset[str]
    before_checkpoint: int


@dataclass(frozen=True, slots=True)
class ReleaseStorage:
    """The job has ended: delete what could not be deleted before, and the job's directory if it has no checkpoint."""


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """Too many checkpoints failed in a row."""

    reason: str
    culprit: str = ""
    """Which task's program made the last one fail with which error; empty: nobody's, as far as is known."""


StorageAction = StoreAttachments | WriteManifest | DiscardCheckpoint | Sweep | ReleaseStorage
CheckpointAction = SnapshotEnumerators | SendToSlot | StorageAction | ReportTrouble | FailAttempt
