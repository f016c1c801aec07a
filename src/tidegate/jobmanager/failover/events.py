"""What happens to a job across its attempts (events, past tense), and what is to be done (actions, imperative).

What belongs to an attempt and may come late (its gang, its connections, its enumerators) comes inside `OfAttempt`; a
driver wraps it with the number of the attempt that it was made for. All actions concern the attempt that the last
`BeginAttempt` began.
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
    """Something happened to an attempt."""

    attempt: AttemptNumber
    event: Event


@dataclass(frozen=True, slots=True)
class CheckpointVerified:
    """The answer to `VerifyCheckpoint`: all its files are sound, and this is what every subtask gets."""

    checkpoint_id: int
    restore: Restore


@dataclass(frozen=True, slots=True)
class CheckpointDamaged:
    """Another answer: files are missing or changed; the one before it may be sound."""

    checkpoint_id: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointUnavailable:
    """Another answer: the storage cannot be reached now, so nobody knows."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointIncompatible:
    """Another answer: it does not fit the program, and older ones would not either."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimChecked:
    """The answer to `CheckClaim`: no driver is seen that has taken the job over."""


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
    """Read the manifest and every file of a checkpoint and deal it out; answered by a `Verification`."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class CheckClaim:
    """See whether another driver has taken the job over; answered by `ClaimChecked` or `DriverFenced`.

    If the storage is away nobody can see it, and the job goes on: what it writes is preceded by a check of its own.
    """


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Make what an attempt needs: control connections that take this number alone, and the enumerators.

    Enumerators begin from `restore`; without it from nothing, or, if `continue_sources`, from where those of the
    last attempt are now: what was handed out is not handed out again (`checkpoint.mode: at_most_once`).
    """

    attempt: AttemptNumber
    restore: Restore | None
    continue_sources: bool = False


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """The attempt is over: close its connections and forget it. Its processes may not know that yet."""

    attempt: AttemptNumber


@dataclass(frozen=True, slots=True)
class ShowStatus:
    """Show the user that the job has come to this state, which is not its last."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job has ended: release everything, then show the last state. The last action of a job, never twice.

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
