"""Job: the sequence of attempts, as a pure state machine. Events and the time in, actions out.

No socket, thread, clock or file: a driver makes the events and performs the actions, in order. All calls of `handle`
come from one thread; the properties may be read from any. It holds the JobMaster of the attempt, the
CheckpointCoordinator and the restart strategy.

1. The job verifies the newest completed checkpoint, if there is one, and checks that no other driver has taken over
   the job. Then an attempt begins from that checkpoint.
2. The attempt runs: the JobMaster decides about it, the coordinator about its checkpoints.
3. The attempt fails: its pending checkpoints are aborted at once, and when it has ended the job asks the restart
   strategy. RESTARTING lasts for the delay; meanwhile the checkpoint is verified. A damaged one is reported and the
   one before it taken, unless a sink may have committed it (`fallback`). If all are damaged the job fails: starting
   without state would give wrong results.
4. FINISHED, FAILED or CANCELED: checkpoints are kept or deleted as the options say, then `EndJob`, once.

Events of another attempt than the current one change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec

from tidegate.core.durations import format_duration_ms
from tidegate.core.errors import JobFailedError, JobFencedError
from tidegate.core.ids import AttemptNumber, JobId, attempt_name
from tidegate.core.options import Options
from tidegate.core.states import JOB_TRANSITIONS, JobStatus, StateMachine
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.completed_checkpoint import CompletedCheckpoint
from tidegate.jobmanager.checkpoint.coordinator import CheckpointCoordinator
from tidegate.jobmanager.checkpoint.events import CheckpointAction, CheckpointEvent
from tidegate.jobmanager.checkpoint.retention import CompletedCheckpoints
from tidegate.jobmanager.checkpoint.statistics import CheckpointsOverview
from tidegate.jobmanager.events import Event
from tidegate.jobmanager.failover import events as fe
from tidegate.jobmanager.failover.catch_up import CatchUpWatch, sample_of
from tidegate.jobmanager.failover.diagnosis import Diagnosis, FailedAttempt, FailedStarts, diagnose
from tidegate.jobmanager.failover.events import JobAction, JobEvent
from tidegate.jobmanager.failover.restart_strategies import GiveUp, Restart, RestartStrategy, strategy_of
from tidegate.jobmanager.fallback import must_refuse, refusal
from tidegate.jobmanager.job_master import DescribeStorage, JobMaster
from tidegate.metrics.snapshot import CatchUp
from tidegate.protocol import messages as m
from tidegate.snapshot.assignment import Restore

_J = JobStatus


class JobOverview(msgspec.Struct, frozen=True):
    """The state of a job and its last failure, for clients and displays."""

    status: JobStatus
    attempt: int
    restarts: int
    restart_strategy: str
    last_error: str = ""
    """The whole message of the last failure, also while the job runs again; empty if there was none."""
    last_error_attempt: int | None = None
    diagnosis: str = ""
    """Whether that failure is likely to come again, if that can be told."""
    restored_checkpoint: int | None = None
    """The checkpoint that the current attempt began from; None: it began without state."""
    will_come_again: bool = False
    """Whether the last two attempts failed in the same way, so that restarting seems useless."""


class Job:
    """Decides everything about a job, from its submission to its end."""

    HISTORY = 1_000
    """How many states are remembered: a job may restart for ever."""

    def __init__(
        self,
        job_id: JobId,
        job_graph: JobGraph,
        options: Options,
        *,
        found: Sequence[CompletedCheckpoint] = (),
        first_checkpoint_id: int = 1,
        first_attempt: AttemptNumber = AttemptNumber(0),  # noqa: B008 -- a number
        describe_storage: DescribeStorage | None = None,
        claimed: bool = False,
        seed: int = 0,
    ) -> None:
        """`found`: the checkpoints of an earlier run; the job resumes from the newest sound one.

        `first_checkpoint_id` and `first_attempt` must be above all that an earlier run may have used. `claimed`:
        another driver may take over the job, so the claim is checked before each attempt and after a failed one.
        """
        self.job_id = job_id
        self.job_graph = job_graph
        self.message = ""
        """Why the job ended, for the user; empty while it runs and when it finished."""
        self._options = options
        self._describe_storage = describe_storage
        self._strategy: RestartStrategy = strategy_of(options, seed)
        self.coordinator = CheckpointCoordinator(
            options, CompletedCheckpoints(options.checkpoint_retained, found), first_checkpoint_id
        )
        self._machine: StateMachine[JobStatus] = StateMachine(
            f"job {job_graph.name!r}", _J.CREATED, JOB_TRANSITIONS
        )
        self._attempt = first_attempt
        self._master = self._new_master(None)
        self._phase: Literal["new", "waiting", "attempt", "failed", "ended"] = "new"
        """`failed`: the attempt has ended, and the claim on the job is being checked."""
        self._restarts = 0
        self._due_ms = 0
        """When the next attempt may begin."""
        self._verifying: int | None = None
        self._passed_over: dict[int, tuple[str, ...]] = {}
        """Checkpoints found to be damaged since the last attempt began, with the reasons; newest first."""
        self._is_ready = False
        self._restore: Restore | None = None
        self._catch_up = CatchUpWatch()
        self._cancel_reason: str | None = None
        self._claimed = claimed
        self._claim: Literal["unknown", "asked", "checked"] = "unknown"
        self._fenced = ""
        """Why this driver may not run the job any more."""
        self._failed: FailedAttempt | None = None
        self._diagnosis = Diagnosis()
        self._failed_starts = FailedStarts()
        self._tasks_ran = False
        """Whether all tasks of an attempt have ever run at the same time."""
        self._last_error = self._failed_text = ""
        self._attempt_error = ""
        """Why the last attempt failed; `_last_error` may be newer."""
        self._error: type[JobFailedError] = JobFailedError
        self._coordinated: Literal["begun", "started", "ended"] = "ended"
        self._actions: list[JobAction] = []

    # ---- what others may read, from any thread ----

    @property
    def status(self) -> JobStatus:
        return self._machine.state

    @property
    def status_history(self) -> tuple[JobStatus, ...]:
        """The states that it went through, the last `HISTORY` of them."""
        return tuple(self._machine.history)

    @property
    def attempt(self) -> AttemptNumber:
        """The current attempt, or the one that ended last."""
        return self._attempt

    @property
    def master(self) -> JobMaster:
        return self._master

    @property
    def restarts(self) -> int:
        return self._restarts

    @property
    def last_error(self) -> str:
        """The whole message of the last failure, also while the job runs again; empty if there was none."""
        return self._last_error

    @property
    def waiting_for(self) -> str:
        """What the job waits for: slots, or its restart; empty when it does not wait."""
        if self.status is _J.RESTARTING:
            first = self._last_error.partition("\n")[0]
            return f"restarting after {attempt_name(self._attempt)}: {first}"
        return self._master.waiting_for if self.status is _J.WAITING_FOR_SLOTS else ""

    def overview(self) -> JobOverview:
        failed = self._failed
        return JobOverview(
            self.status,
            self._attempt,
            self._restarts,
            self._strategy.describe(),
            self._last_error,
            None if failed is None else failed.attempt,
            self._diagnosis.words,
            self.coordinator.overview().restored_checkpoint,
            self._diagnosis.will_come_again,
        )

    @property
    def catch_up(self) -> CatchUp | None:
        """How the job catches up after its last recovery; None: there was none, or its sources cannot tell."""
        return self._catch_up.value

    def checkpoints(self) -> CheckpointsOverview:
        return self.coordinator.overview()

    # ---- the one way in ----

    def handle(self, event: JobEvent, now_ms: int) -> list[JobAction]:
        """Take an event and return the actions that it calls for, in order. `now_ms` never goes back."""
        self._actions = []
        if self._phase == "ended" and not isinstance(event, fe.OfAttempt):
            return self._actions
        match event:
            case fe.OfAttempt(attempt, inner):
                if attempt == self._attempt and self._phase != "new":
                    self._tell_master(inner, now_ms)
            case ev.SubmissionRequested():
                if self._phase == "new":
                    self._phase = "waiting"
                    self._choose(now_ms)
            case ev.CancelRequested(reason):
                self._on_cancel(reason, now_ms)
            case ev.Tick():
                if self._phase == "attempt":
                    self._tell_master(event, now_ms)
                    self._look_at_sources(now_ms)
                self._tell_coordinator(event, now_ms)
            case fe.CheckpointVerified(id, restore):
                if self._is_asked(id):
                    self._on_verified(id, restore, now_ms)
            case fe.CheckpointDamaged(id, reasons):
                if self._is_asked(id):
                    self._on_damaged(id, reasons, now_ms)
            case fe.CheckpointUnavailable(id, reason):
                if self._is_asked(id):
                    self._on_unavailable(id, reason, now_ms)
            case fe.CheckpointIncompatible(id, reason):
                if self._is_asked(id):
                    self._fail(f"checkpoint {id} cannot be restored: {reason}", now_ms)
            case fe.ClaimChecked():
                if self._phase == "failed":
                    self._judge(now_ms)
                elif self._claim == "asked":
                    self._claim = "checked"
            case ev.DriverFenced(reason):
                self._fenced = reason
                if self._phase == "attempt":
                    self._tell_master(event, now_ms)
                elif self._phase == "failed":
                    self._judge(now_ms)
                else:
                    self._fail(reason, now_ms, JobFencedError)
            case (
                ce.EnumeratorsSnapshotted()
                | ce.EnumeratorSnapshotFailed()
                | ce.ManifestWritten()
                | ce.ManifestFailed()
            ):
                self._tell_coordinator(event, now_ms)
            case _:
                assert_never(event)
        self._begin_if_due(now_ms)
        return self._actions

    # ---- 1. the checkpoint to begin from ----

    def _choose(self, now_ms: int) -> None:
        """Choose the checkpoint that the next attempt begins from, and have it verified."""
        completed = self.coordinator.completed
        checkpoint = completed.usable()
        if checkpoint is not None:
            self._verifying = checkpoint.checkpoint_id
            self._do(fe.VerifyCheckpoint(checkpoint))
        elif not completed.retained:
            self._is_ready, self._restore = True, None
        else:
            damaged = "\n".join(
                f"  checkpoint {id}: {'; '.join(reasons)}"
                for id, reasons in sorted(completed.damaged.items())
            )
            self._fail(
                f"none of its completed checkpoints can be restored:\n{damaged}\nMend or restore the files and "
                f"resume, or start it without state",
                now_ms,
            )

    def _is_asked(self, checkpoint_id: int) -> bool:
        """Whether this answers the verification that the job waits for; if so, it waits no longer."""
        if self._phase != "waiting" or self._verifying != checkpoint_id:
            return False
        self._verifying = None
        return True

    def _on_damaged(self, id: int, reasons: tuple[str, ...], now_ms: int) -> None:
        """Try an older one. The decision follows when a whole one is found: they share files."""
        self.coordinator.completed.mark_damaged(id, reasons)
        self._passed_over[id] = reasons
        self._choose(now_ms)

    def _on_verified(self, id: int, restore: Restore, now_ms: int) -> None:
        damaged = self._damaged_words()
        if damaged and must_refuse(self.job_graph, self._options):
            self._fail(refusal(self.job_graph, damaged, older=f"checkpoint {id}"), now_ms)
            return
        if damaged:
            self._report(
                f"{damaged}. Falling back to checkpoint {id}: what the job did between the two is done again, also by "
                f"sinks that had committed it"
            )
        self._passed_over.clear()
        self._is_ready, self._restore = True, restore

    def _damaged_words(self) -> str:
        """What is wrong with the checkpoints passed over since the last attempt; empty if there are none."""
        return ". ".join(
            f"checkpoint {id} of job {self.job_graph.name!r} is damaged and cannot be restored: "
            f"{'; '.join(reasons).rstrip('.')}"
            for id, reasons in self._passed_over.items()
        )

    def _on_unavailable(self, id: int, reason: str, now_ms: int) -> None:
        """The storage cannot be read: no reason to take an older checkpoint; it counts as a failed restart."""
        damaged = self._damaged_words()
        before = f"{damaged}. Before it, " if damaged else ""
        text = f"{before}checkpoint {id} cannot be read: {reason}"
        if not self._last_error:
            self._fail(text, now_ms)
            return
        decision = self._strategy.failed(now_ms)
        if isinstance(decision, GiveUp):
            self._fail(f"{text}{_because(decision)}", now_ms)
            return
        failure = f"\nThe failure before it: {self._attempt_error}" if self._attempt_error else ""
        self._last_error = f"job {self.job_graph.name!r} cannot restart: {text}{failure}"
        self._due_ms = now_ms + decision.delay_ms
        delay = format_duration_ms(decision.delay_ms)
        self._report(f"{text.rstrip('.')}. Trying again in {delay} ({decision.allowance})")

    def _begin_if_due(self, now_ms: int) -> None:
        if self._phase != "waiting" or now_ms < self._due_ms:
            return
        if self._is_ready:
            if not self._claimed or self._claim == "checked":
                self._begin(now_ms)
            elif self._claim == "unknown":
                self._claim = "asked"
                self._do(fe.CheckClaim())
        elif self._verifying is None:  # the storage could not be read
            self._choose(now_ms)

    # ---- 2. the attempt ----

    def _begin(self, now_ms: int) -> None:
        restore, self._restore, self._is_ready = self._restore, None, False
        self._claim = "unknown"
        again = self._failed is not None
        if again:
            self._attempt = AttemptNumber(self._attempt + 1)
            self._restarts += 1
        self._master = master = self._new_master(restore, self._master.silent_slots if again else ())
        self._phase = "attempt"
        continue_sources = again and self._options.checkpoint_mode == "at_most_once"
        self._do(fe.BeginAttempt(self._attempt, restore, continue_sources))
        slots = {execution.id: execution.slot for execution in master.graph}
        names = {vertex.id: vertex.name for vertex in self.job_graph.vertices}
        restored = None if restore is None else restore.checkpoint_id
        if restored is not None:
            self._catch_up.began(now_ms)
        self._coordinated = "begun"
        self._tell_coordinator(ce.AttemptBegan(self._attempt, slots, names, restored), now_ms)
        self._tell_master(ev.SubmissionRequested(), now_ms)

    def _new_master(self, restore: Restore | None, unreachable: Sequence[str] = ()) -> JobMaster:
        return JobMaster(
            self.job_id,
            self._attempt,
            self.job_graph,
            self._options,
            restore=restore,
            describe_storage=self._describe_storage,
            unreachable=unreachable,
        )

    def _tell_master(self, event: Event, now_ms: int) -> None:
        master = self._master
        message = event.message if isinstance(event, ev.MessageReceived) else None
        end: ev.AttemptEnded | None = None
        for result in master.handle(event, now_ms):
            if isinstance(result, ev.AttemptEnded):
                end = result
            elif isinstance(result, ev.AttemptMoved):
                self._to(result.status)
            else:
                self._do(result)
        self._coordinate(message, now_ms)
        if (
            isinstance(event, ev.MessageReceived)
            and isinstance(event.message, m.CheckpointMessage)
            and master.hears(event.slot)
        ):
            self._tell_coordinator(ce.CheckpointMessageReceived(event.slot, event.message), now_ms)
        if end is not None:
            self._on_attempt_ended(end, now_ms)

    def _coordinate(self, message: m.SlotMessage | None, now_ms: int) -> None:
        """Notify the coordinator when all tasks have started, and at once when the attempt is being stopped."""
        master = self._master
        if (
            self._coordinated == "begun"
            and isinstance(message, m.TaskStateChanged)
            and master.status is _J.RUNNING
            and master.graph.all_running
        ):
            self._coordinated = "started"
            self._tasks_ran = True
            self._tell_coordinator(ce.TasksStarted(), now_ms)
        if self._coordinated != "ended" and (
            master.status.is_terminal or master.status in (_J.FAILING, _J.CANCELLING)
        ):
            self._coordinated = "ended"
            reason = (
                "the job is being cancelled" if master.status is _J.CANCELLING else "the attempt has ended"
            )
            self._tell_coordinator(ce.TasksStopped(reason), now_ms)

    def _look_at_sources(self, now_ms: int) -> None:
        if self._catch_up.is_due(now_ms) and self._master.status is _J.RUNNING:
            sample = sample_of(raw for _, raw in self._master.subtask_metrics())
            warning = self._catch_up.sampled(sample, now_ms)
            if warning:
                self._report(f"job {self.job_graph.name!r}: {warning}")

    def _tell_coordinator(self, event: CheckpointEvent, now_ms: int) -> None:
        for action in self.coordinator.handle(event, now_ms):
            self._perform(action, now_ms)

    def _perform(self, action: CheckpointAction, now_ms: int) -> None:
        if isinstance(action, ce.FailAttempt):
            self._tell_master(ev.CheckpointsFailed(action.reason, action.culprit), now_ms)
        else:
            self._do(action)

    # ---- 3. failures and cancellation ----

    def _on_attempt_ended(self, end: ev.AttemptEnded, now_ms: int) -> None:
        self._do(fe.EndAttempt(self._attempt))
        if end.status is not _J.FAILED:
            self._end(end.status, end.message, now_ms)
            return
        failure = self._master.failure
        assert failure is not None
        failed = FailedAttempt(self._attempt, failure)
        self._diagnosis = diagnose(failed, self._failed)
        self._failed, self._error = failed, end.error
        words = self._diagnosis.words
        self._failed_text = end.message
        self._attempt_error = self._last_error = f"{end.message}\n{words}" if words else end.message
        self._phase = "failed"
        if self._claimed and not self._fenced:
            # Files that another driver deleted look like damage: check the claim first.
            self._do(fe.CheckClaim())
        else:
            self._judge(now_ms)

    def _judge(self, now_ms: int) -> None:
        assert self._failed is not None
        failure = self._failed.failure
        if self._fenced:
            if self._fenced in failure.text:
                self._end(_J.FAILED, self._failed_text, now_ms)
            else:
                self._fail(self._fenced, now_ms, JobFencedError)
            return
        no_start = self._failed_starts.attempt_ended(
            failure, came_up=self._master.has_heard_a_slot, ran=self._tasks_ran
        )
        if no_start is not None:
            decision: GiveUp | Restart = GiveUp(no_start)
        else:
            decision = GiveUp("") if failure.permanent else self._strategy.failed(now_ms)
        if isinstance(decision, GiveUp):
            # A user who has not configured restarts reads nothing about them.
            text = self._last_error if decision.reason or self._restarts else self._failed_text
            self._end(_J.FAILED, f"{text}{_because(decision)}", now_ms)
        elif self._cancel_reason is not None:
            self._end(_J.CANCELED, self._cancelled_text(self._cancel_reason), now_ms)
        else:
            self._restart(decision, now_ms)

    def _restart(self, decision: Restart, now_ms: int) -> None:
        self._to(_J.RESTARTING)
        self._phase = "waiting"
        self._due_ms = now_ms + decision.delay_ms
        self._is_ready, self._verifying, self._restore = False, None, None
        usable = self.coordinator.completed.usable()
        where = "from the beginning" if usable is None else f"from checkpoint {usable.checkpoint_id}"
        self._report(
            f"{attempt_name(self._attempt)} failed; restarting in {format_duration_ms(decision.delay_ms)} {where} "
            f"({decision.allowance}). {self._last_error}"
        )
        self._choose(now_ms)

    def _on_cancel(self, reason: str, now_ms: int) -> None:
        if self._phase == "attempt":
            self._cancel_reason = reason  # in case the attempt is failing: then it is not restarted
            self._tell_master(ev.CancelRequested(reason), now_ms)
        elif self._phase == "failed":
            self._cancel_reason = reason
            self._judge(now_ms)  # the claim no longer matters, and the storage may be slow to answer
        else:
            if self.status is _J.CREATED:
                self._to(_J.CANCELLING)
            self._end(_J.CANCELED, self._cancelled_text(reason), now_ms)

    def _fail(self, text: str, now_ms: int, error: type[JobFailedError] = JobFailedError) -> None:
        if self.status is _J.CREATED:
            self._to(_J.FAILING)
        before = f"\nThe failure before it: {self._attempt_error}" if self._attempt_error else ""
        self._last_error = f"job {self.job_graph.name!r} failed: {text}{before}"
        self._error = error
        self._end(_J.FAILED, self._last_error, now_ms)

    # ---- 4. the end ----

    def _end(self, status: JobStatus, message: str, now_ms: int) -> None:
        self._phase = "ended"
        self.message = message
        self._tell_coordinator(ce.JobEnded(status), now_ms)
        self._machine.to(status)
        self._do(fe.EndJob(status, message, self._error))

    def _cancelled_text(self, reason: str) -> str:
        return f"job {self.job_graph.name!r} was cancelled: {reason}"

    # ---- small parts ----

    def _do(self, action: JobAction) -> None:
        self._actions.append(action)

    def _report(self, text: str) -> None:
        self._do(ev.ReportTrouble(text))

    def _to(self, status: JobStatus) -> None:
        self._machine.to(status)
        del self._machine.history[: -self.HISTORY]
        self._do(fe.ShowStatus(status))


def _because(decision: GiveUp) -> str:
    return f"\nIt was not restarted: {decision.reason}" if decision.reason else ""
