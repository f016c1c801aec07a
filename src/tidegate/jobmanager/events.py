"""What happens to an attempt of a job (events, past tense) and what the driver must do (actions, imperative).

`JobMaster.handle` takes events and returns actions, in order. Two of the values that it returns are events for the
`Job` that holds it: `AttemptMoved` and `AttemptEnded`. The driver performs everything else.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidegate.core.errors import JobFailedError
from tidegate.core.ids import OperatorId, SlotId
from tidegate.core.states import JobStatus
from tidegate.protocol.messages import MasterMessage, SlotMessage

# ---- events ----


@dataclass(frozen=True, slots=True)
class SubmissionRequested:
    """The job is to run."""


@dataclass(frozen=True, slots=True)
class SlotsCounted:
    """The answer to `CountSlots`: how many slots the host has now (None where it cannot know)."""

    available: int | None
    busy: int = 0
    """How many of them run tasks that are not of this attempt."""
    own: int = 0
    """How many of the busy ones run tasks of this job's earlier attempts, which have not ended."""


@dataclass(frozen=True, slots=True)
class CountingFailed:
    """The host could not count its slots."""

    error: str


@dataclass(frozen=True, slots=True)
class GangStarted:
    """The host has taken the gang; its slots will register."""


class GangFault(enum.Enum):
    """Why a gang ended, as far as the host knows."""

    UNKNOWN = "unknown"
    ENVIRONMENT = "environment"
    """The host's processes cannot be slots as they are installed: a module is missing, or it is another Python."""
    EXECUTOR_LOST = "executor lost"
    """A process that holds slots died or could not be reached, which explains why slots were lost."""


@dataclass(frozen=True, slots=True)
class GangEnded:
    """All tasks of the gang are gone; `error` is the host's reason, None when they returned by themselves."""

    error: str | None
    fault: GangFault = GangFault.UNKNOWN


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A slot sent a message."""

    slot: SlotId
    message: SlotMessage


@dataclass(frozen=True, slots=True)
class MessageMalformed:
    """An authenticated slot sent bytes that are not a message; its connection was closed."""

    slot: SlotId
    reason: str


@dataclass(frozen=True, slots=True)
class SlotDisconnected:
    """The control connection of a slot ended."""

    slot: SlotId
    reason: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The user, or whatever runs the program, asks the job to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class SplitsAssigned:
    """An enumerator assigns splits (JSON) to a reader."""

    operator: OperatorId
    subtask: int
    splits: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SplitsExhausted:
    """An enumerator has no more splits for a reader."""

    operator: OperatorId
    subtask: int


@dataclass(frozen=True, slots=True)
class EnumeratorFailed:
    """An enumerator raised."""

    operator: OperatorId
    reason: str
    traceback: str


@dataclass(frozen=True, slots=True)
class CollectedConsumed:
    """The program in the driver has taken all batches of a sink subtask up to and including `sequence`."""

    operator: OperatorId
    subtask: int
    sequence: int


@dataclass(frozen=True, slots=True)
class CheckpointsFailed:
    """Too many checkpoints failed in a row."""

    reason: str
    culprit: str = ""


@dataclass(frozen=True, slots=True)
class DriverFenced:
    """Another driver has taken over the job: the storage's answer to any order. Nothing more is written."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; drivers send one every 50 to 100 ms."""


EnumeratorEvent = SplitsAssigned | SplitsExhausted | EnumeratorFailed
Event = (
    SubmissionRequested
    | SlotsCounted
    | CountingFailed
    | GangStarted
    | GangEnded
    | MessageReceived
    | MessageMalformed
    | SlotDisconnected
    | CancelRequested
    | EnumeratorEvent
    | CollectedConsumed
    | CheckpointsFailed
    | DriverFenced
    | Tick
)

# ---- actions ----


@dataclass(frozen=True, slots=True)
class StartEnumerators:
    """Start the enumerators of all sources."""


@dataclass(frozen=True, slots=True)
class CountSlots:
    """Ask the host how many slots it has; answered by `SlotsCounted` or `CountingFailed`."""


@dataclass(frozen=True, slots=True)
class StartGang:
    """Start this many slots, all or none; answered by `GangStarted` and, at the end, `GangEnded`."""

    slots: int


@dataclass(frozen=True, slots=True)
class CancelGang:
    """End the gang's processes; answered by `GangEnded`."""


@dataclass(frozen=True, slots=True)
class SendToSlot:
    """Send a message to a slot; to one that is gone: drop it."""

    slot: SlotId
    message: MasterMessage


@dataclass(frozen=True, slots=True)
class CloseSlot:
    """Close a slot's connection after everything for it is sent; no `SlotDisconnected` follows."""

    slot: SlotId


@dataclass(frozen=True, slots=True)
class AskEnumerator:
    """Ask an enumerator for splits: a reader has none left."""

    operator: OperatorId
    subtask: int


@dataclass(frozen=True, slots=True)
class DeliverCollected:
    """Hand a sink's records to the program in the driver."""

    operator: OperatorId
    subtask: int
    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReportWaiting:
    """Log what the job waits for."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportTrouble:
    """Log a warning; the job goes on."""

    text: str


Action = (
    StartEnumerators
    | CountSlots
    | StartGang
    | CancelGang
    | SendToSlot
    | CloseSlot
    | AskEnumerator
    | DeliverCollected
    | ReportWaiting
    | ReportTrouble
)

# ---- from the JobMaster to the Job ----


@dataclass(frozen=True, slots=True)
class AttemptMoved:
    """The attempt has reached this state, which is not its last."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The attempt has ended; `message` is the whole text for the user (empty when it finished). Returned once."""

    status: JobStatus
    message: str
    error: type[JobFailedError] = JobFailedError


AttemptResult = Action | AttemptMoved | AttemptEnded
