"""What happens to a job across its attempts (events, past tense), and what must be done (actions, imperative).

Events of one attempt (from its gang, its connections, its enumerators) may come late, so the ports wrap them in
`OfAttempt` with the number of their attempt. All actions concern the attempt of the last `BeginAttempt`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.errors import JobFailedError
from tidegate.core.ids import AttemptNumber
from tidegate.core.states import JobStatus
from tidegate.jobmanager.checkpoint.completed_checkpoint import CompletedCheckpoint
from tidegate.jobmanager.checkpoint.events import (
    EnumeratorAnswer,
    SnapshotEnumerators,
    StorageAction,
    StorageAnswer,
)
from tidegate.jobmanager.events import (
    Action,
    CancelRequested,
    DriverFenced,
    Event,
    ReportTrouble,
    SubmissionRequested,
    Tick,
)
from tidegate.snapshot.assignment import Restore

# ---- events ----


@dataclass(frozen=True, slots=True)
class OfAttempt:
    """An event of one attempt."""

    attempt: AttemptNumber
    event: Event


@dataclass(frozen=True, slots=True)
class CheckpointVerified:
    """The answer to `VerifyCheckpoint`: all its files are sound; `restore` assigns its state to the subtasks."""

    checkpoint_id: int
    restore: Restore


@dataclass(frozen=True, slots=True)
class CheckpointDamaged:
    """Another answer: files are missing or changed; the one before it may be sound."""

    checkpoint_id: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointUnavailable:
    """Another answer: the storage cannot be reached now, so the state of the checkpoint is unknown."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointIncompatible:
    """Another answer: it does not fit the program, and older ones would not either."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimChecked:
    """The answer to `CheckClaim`: as far as can be read, no other driver has taken over the job."""


Verification = CheckpointVerified | CheckpointDamaged | CheckpointUnavailable | CheckpointIncompatible
JobEvent = (
    SubmissionRequested
    | CancelRequested
    | Tick
    | OfAttempt
    | EnumeratorAnswer
    | StorageAnswer
    | Verification
    | ClaimChecked
    | DriverFenced
)

# ---- actions ----


@dataclass(frozen=True, slots=True)
class VerifyCheckpoint:
    """Read the manifest and all files of a checkpoint, assign its state to subtasks; answered by a `Verification`."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class CheckClaim:
    """Check whether another driver has taken over the job; answered by `ClaimChecked` or `DriverFenced`.

    If the storage cannot be read, the job goes on: each write does a check of its own first.
    """


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Prepare an attempt: accept control connections with this number only, and make the enumerators.

    Enumerators begin from `restore`. Without it they begin from nothing or, if `continue_sources`, from the states
    of the last attempt's: splits that were assigned are not assigned again (`checkpoint.mode: at_most_once`).
    """

    attempt: AttemptNumber
    restore: Restore | None
    continue_sources: bool = False


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """The attempt is over: close its connections and its enumerators. Its processes may not know that yet."""

    attempt: AttemptNumber


@dataclass(frozen=True, slots=True)
class ShowStatus:
    """Show the user that the job has reached this state, which is not its last."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job has ended: release everything, then show the last state. The last action of a job, returned once.

    `message` is the whole text for the user, empty when it finished.
    """

    status: JobStatus
    message: str
    error: type[JobFailedError] = JobFailedError


JobAction = (
    Action
    | SnapshotEnumerators
    | StorageAction
    | ReportTrouble
    | VerifyCheckpoint
    | CheckClaim
    | BeginAttempt
    | EndAttempt
    | ShowStatus
    | EndJob
)
