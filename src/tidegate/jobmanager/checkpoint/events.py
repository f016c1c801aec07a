"""What happens to checkpoints (events, past tense) and what must be done (actions, imperative).

The driver performs the storage actions of a job (`StoreAttachments`, `WriteManifest`, `DiscardCheckpoint`, `Sweep`,
`ReleaseStorage`) one after the other, in order, on a thread of their own.
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
    """The checkpoint that it begins from; None: it begins without state."""


@dataclass(frozen=True, slots=True)
class TasksStarted:
    """Every subtask of the attempt runs: checkpoints can be triggered."""


@dataclass(frozen=True, slots=True)
class TasksStopped:
    """The tasks of the attempt have ended or are being stopped; messages of its slots no longer count."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """There will be no other attempt."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class CheckpointMessageReceived:
    """A living slot of the attempt sent a message about checkpoints."""

    slot: SlotId
    message: CheckpointMessage


@dataclass(frozen=True, slots=True)
class EnumeratorsSnapshotted:
    """The answer to `SnapshotEnumerators`: the states as JSON, and the wall clock at which they were taken.

    It comes after every `SplitsAssigned` that an enumerator decided before its state was taken.
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
    """The other answer: it could not be written, or it is not known whether it was."""

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
    """Delete a checkpoint: its manifest, its own files except those in `keep`, and the files in `delete`.

    `delete` has the files of earlier checkpoints that only this one still referred to.
    """

    checkpoint_id: int
    keep: frozenset[str]
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """Delete the files that earlier checkpoints and attempts left, except those in `keep`."""

    keep: frozenset[str]
    before_checkpoint: int


@dataclass(frozen=True, slots=True)
class ReleaseStorage:
    """The job has ended: retry the failed deletions, and delete the job's directory if it has no checkpoint."""


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """Too many checkpoints failed in a row."""

    reason: str
    culprit: str = ""
    """Whose program made the last one fail, and with which error; empty: no program's, as far as is known."""


StorageAction = StoreAttachments | WriteManifest | DiscardCheckpoint | Sweep | ReleaseStorage
CheckpointAction = SnapshotEnumerators | SendToSlot | StorageAction | ReportTrouble | FailAttempt
