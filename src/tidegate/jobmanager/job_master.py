"""JobMaster: the life of one attempt of a job, as a pure state machine. Events and the time in, actions out.

No socket, thread, clock or file: the driver makes the events and performs the actions; the Job learns of every
transition. All calls of `handle` come from one thread; the properties may be read from any.

1. CREATED → WAITING_FOR_SLOTS: starts the enumerators, asks the host for its free slots until they are enough (or the
   host cannot count them), then starts the gang, whose slots register.
2. → RUNNING when the last slot has registered: every slot gets its deployment with the addresses of all.
3. → FINISHED when every subtask and every slot has finished, and the gang has ended (or after `GANG_END_MS`).
4. A failure (the nearest to the root cause, see `failures`) → FAILING, a cancellation → CANCELLING: cancels the slots,
   then the gang. The attempt ends when all are gone, at the latest `cancel.grace` + `STOP_EXTRA_MS` later.

An event that is late, repeated or out of order changes nothing, except that a slot that breaks the protocol fails the
job by name. After `AttemptEnded` the JobMaster does nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, assert_never

import msgspec

from tidegate.core.errors import IllegalTransitionError, JobFailedError, ProtocolError
from tidegate.core.ids import (
    AttemptNumber,
    JobId,
    OperatorId,
    SlotId,
    SubtaskId,
    VertexId,
)
from tidegate.core.options import Options
from tidegate.core.states import JOB_TRANSITIONS, ExecutionState, JobStatus, StateMachine
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager import failures
from tidegate.jobmanager.events import AttemptResult, Event
from tidegate.jobmanager.execution_graph import ExecutionGraph
from tidegate.jobmanager.failures import Failure, FailureCollector
from tidegate.jobmanager.growing_counts import GrowingCounts
from tidegate.jobmanager.slots import SlotDescription, SlotRecord, SlotState, SlotTable
from tidegate.jobmanager.watermark_alignment import WatermarkGroups
from tidegate.metrics.event_time import drop_words
from tidegate.protocol import messages as m
from tidegate.snapshot.assignment import Restore, SubtaskRestore, encode_restore
from tidegate.snapshot.handles import StateFile

DescribeStorage = Callable[[Sequence[StateFile]], bytes]
"""The encoded `CheckpointStorage` for a slot that restores these files. Does no I/O."""

_J, _E = JobStatus, ExecutionState


class JobMaster:
    """Decides everything about one attempt of a job."""

    COUNT_EVERY_MS = 500
    GANG_END_MS = 5_000
    STOP_EXTRA_MS = 3_000
    SHORTEST_START_MS = 30_000
    """Free slots get at least this long to start, however short `slots.wait_timeout` is."""
    SAY_TAKEN_AFTER_MS = 1_000
    """When to report that other jobs hold the slots: one that was just cancelled needs a moment to release them."""
    SAY_UNKNOWN_AFTER_MS = 4_000
    """When to report that slots are awaited, if the host cannot count them. If it can, it is asked again at this time:
    another job that started at the same moment may have got them."""
    SAY_SLOW_AFTER_MS = 10_000
    """When to report that free slots do not start: a cold start of Spark takes some seconds."""

    def __init__(
        self,
        job_id: JobId,
        attempt: AttemptNumber,
        job_graph: JobGraph,
        options: Options,
        *,
        restore: Restore | None = None,
        describe_storage: DescribeStorage | None = None,
        unreachable: Sequence[str] = (),
    ) -> None:
        """`restore` is sent with the deployment, and so is the storage, if the job has checkpoints.

        `unreachable` names the slots that did not answer when the previous attempt ended.
        """
        self.job_id = job_id
        self.attempt = attempt
        self.job_graph = job_graph
        self.graph = ExecutionGraph(job_graph)
        self.message = ""
        """Why the job ended, for the user; empty while it runs and when it finished."""
        self._options = options
        self._restore = restore
        self._describe_storage = describe_storage
        self._unreachable = unreachable
        self._host_says = ""
        self._machine: StateMachine[JobStatus] = StateMachine(
            f"job {job_graph.name!r}", _J.CREATED, JOB_TRANSITIONS
        )
        self._failures = FailureCollector()
        self._actions: list[AttemptResult] = []
        self._slots = SlotTable(self.graph.slots_needed)
        self._gang: Literal["none", "active", "cancelled", "ended"] = "none"
        self._counted = ev.SlotsCounted(None)
        self._counting = False
        self._waiting_said = ""
        self._submitted_ms = self._counted_ms = self._gang_ms = 0
        self._finished_ms: int | None = None
        self._stop_ms = 0
        self._stop_reason = ""
        self._last_tick_ms: int | None = None
        self._last_beat_ms: int | None = None
        self._beats = 0
        self._early: list[tuple[SlotId, m.MasterMessage]] = []
        self._collected: dict[tuple[OperatorId, int], int] = {}
        self._watermarks = WatermarkGroups.of(job_graph)
        self._counts = GrowingCounts()

    # ---- what others may read, from any thread ----

    @property
    def status(self) -> JobStatus:
        return self._machine.state

    @property
    def status_history(self) -> tuple[JobStatus, ...]:
        return tuple(self._machine.history)

    @property
    def waiting_for(self) -> str:
        """What the job waits for while slots are missing; empty otherwise."""
        return self._waiting_said if self.status is _J.WAITING_FOR_SLOTS else ""

    @property
    def failure(self) -> Failure | None:
        """The report nearest to the root cause so far; None: nothing has failed."""
        return self._failures.best

    @property
    def silent_slots(self) -> list[str]:
        """The slots, with their hosts, whose heartbeats have stopped."""
        return [self._name(slot) for slot, record in self._slots if record.silent]

    @property
    def has_heard_a_slot(self) -> bool:
        """Whether any process has registered as a slot of this attempt."""
        return len(self._slots.missing()) < self._slots.size

    def hears(self, slot: SlotId) -> bool:
        """Whether messages of a slot count: the job runs and the slot has not ended."""
        record = self._slots.get(slot)
        return self.status is _J.RUNNING and record is not None and record.lives

    def subtask_metrics(self) -> list[tuple[VertexId, bytes]]:
        """The latest `SubtaskMetrics` of all subtasks with their vertices, encoded as the slots sent them."""
        return self._slots.metrics()

    def slot_table(self) -> list[SlotDescription]:
        """Every slot of the attempt, also those that have not registered yet."""
        slots = (SlotId(i) for i in range(self.graph.slots_needed))
        return [self._slots.describe(slot, self.graph.subtask_names(slot)) for slot in slots]

    # ---- the one way in ----

    def handle(self, event: Event, now_ms: int) -> list[AttemptResult]:
        """Take an event and return the actions that it calls for, in order. `now_ms` never goes back."""
        self._actions = []
        if self.status.is_terminal:
            if isinstance(event, ev.MessageReceived) and isinstance(event.message, m.RegisterSlot):
                self._do(ev.CloseSlot(event.slot))
            return self._actions
        match event:
            case ev.SubmissionRequested():
                self._submit(now_ms)
            case ev.SlotsCounted():
                self._on_slots_counted(event, now_ms)
            case ev.CountingFailed(error):
                if self._counting:
                    self._fail(failures.counting_failed(error), now_ms)
            case ev.GangStarted():
                pass
            case ev.GangEnded():
                self._on_gang_ended(event, now_ms)
            case ev.MessageReceived(slot, message):
                self._on_message(slot, message, now_ms)
            case ev.MessageMalformed(slot, reason):
                self._fail(failures.protocol_broken(self._name(slot), reason), now_ms)
                self._slot_gone(slot)
            case ev.SlotDisconnected(slot, _):
                self._on_disconnected(slot, now_ms)
            case ev.CancelRequested(reason):
                self._on_cancel(reason, now_ms)
            case ev.SplitsAssigned(operator, subtask, splits):
                self._send_to_reader(operator, subtask, m.AssignSplits(operator, subtask, splits))
            case ev.SplitsExhausted(operator, subtask):
                self._send_to_reader(operator, subtask, m.NoMoreSplits(operator, subtask))
            case ev.EnumeratorFailed(operator, reason, traceback):
                self._fail(failures.enumerator_failed(self.job_graph, operator, reason, traceback), now_ms)
            case ev.CollectedConsumed(operator, subtask, sequence):
                self._send_to_reader(operator, subtask, m.CollectedTaken(operator, subtask, sequence))
            case ev.CheckpointsFailed(reason, culprit):
                self._fail(failures.checkpoints_failed(reason, culprit), now_ms)
            case ev.DriverFenced(reason):
                self._fail(failures.driver_fenced(reason), now_ms)
            case ev.Tick():
                self._on_tick(now_ms)
            case _:
                assert_never(event)
        self._move_on(now_ms)
        return self._actions

    # ---- 1. slots ----

    def _submit(self, now_ms: int) -> None:
        if self.status is _J.CREATED:
            self._to(_J.WAITING_FOR_SLOTS)
            self._submitted_ms = now_ms
            self._do(ev.StartEnumerators())
            self._ask_for_slots()

    def _ask_for_slots(self) -> None:
        if not self._counting:
            self._counting = True
            self._do(ev.CountSlots())

    def _on_slots_counted(self, counted: ev.SlotsCounted, now_ms: int) -> None:
        if self.status is not _J.WAITING_FOR_SLOTS or self._gang not in ("none", "active"):
            return
        self._counting = False
        self._counted_ms = now_ms
        needed, available = self.graph.slots_needed, counted.available
        reported = self._counted.available
        self._counted = counted
        # Slots of an earlier attempt count as free: they have been cancelled, and Spark will give them to this one.
        if self._gang == "none" and (available is None or available - counted.busy + counted.own >= needed):
            self._gang = "active"
            self._gang_ms = now_ms
            self._waiting_said = ""
            self.graph.all_to(_E.SCHEDULED)
            self._do(ev.StartGang(needed))
        elif (
            available is not None
            and self._is_short
            and (available < needed or now_ms - self._submitted_ms >= self.SAY_TAKEN_AFTER_MS)
        ):
            text = failures.waiting_text(
                self.job_graph.name, needed, counted, self._options.slots_wait_timeout, self._unreachable
            )
            # How many slots others hold may change with each of their tasks: shown, but not logged again.
            self._say_waiting(text, log=available != reported or not self._waiting_said)

    @property
    def _is_short(self) -> bool:
        """Whether the host has reported too few free slots."""
        available = self._counted.available
        return available is not None and available - self._counted.busy < self.graph.slots_needed

    def _register(self, slot: SlotId, message: m.RegisterSlot, now_ms: int) -> None:
        known = self._slots.get(slot)
        if known is not None and known.lives:
            if known.address != message.address:
                self._break_protocol(slot, "it registered twice, with different addresses", now_ms)
            return
        stranger = not 0 <= slot < self.graph.slots_needed or message.address.slot != slot
        if known is not None or stranger or self._gang == "none":
            self._do(ev.CloseSlot(slot))
            return
        self._slots.add(slot, SlotRecord(message.address, message.executor, now_ms))
        if self.status is not _J.WAITING_FOR_SLOTS:
            self._send(slot, m.Cancel(self._stop_reason))
        elif self._slots.all_live:
            self._deploy()

    def _deploy(self) -> None:
        self.graph.all_to(_E.DEPLOYING)
        self._to(_J.RUNNING)
        encoded, placement = self.job_graph.encode(), self.graph.placement()
        addresses = self._slots.addresses()
        for slot, record in self._slots:
            record.state = SlotState.RUNNING
            deploy = m.Deploy(encoded, self.graph.deployments(slot), placement, addresses)
            self._send(slot, self._with_state(deploy))
        for slot, message in self._early:
            self._send(slot, message)
        self._early.clear()

    def _with_state(self, deploy: m.Deploy) -> m.Deploy:
        """Add to a slot's deployment what its subtasks restore, and the storage that holds it."""
        restored: list[SubtaskRestore] = []
        if self._restore is not None:
            restored = [self._restore.subtasks[SubtaskId(d.vertex, d.subtask)] for d in deploy.subtasks]
        storage = b""
        if self._describe_storage is not None:
            storage = self._describe_storage([file for subtask in restored for file in subtask.files()])
        return msgspec.structs.replace(
            deploy,
            restore=tuple(encode_restore(subtask) for subtask in restored),
            storage=storage,
        )

    # ---- 2. what slots say ----

    def _on_message(self, slot: SlotId, message: m.SlotMessage, now_ms: int) -> None:
        if isinstance(message, m.RegisterSlot):
            self._register(slot, message, now_ms)
            return
        record = self._slots.get(slot)
        if isinstance(message, m.SlotUnusable) and record is None:
            self._fail(failures.slot_unusable(self._name(slot), message.reason), now_ms)
            return
        if record is None:
            if not isinstance(message, m.SlotHeartbeat):
                self._break_protocol(slot, f"it sent {type(message).__name__} before it registered", now_ms)
            return
        if not record.lives:
            return
        record.last_heard_ms = now_ms
        record.silent = False
        match message:
            case m.ReportWatermark(group, operator, subtask, watermark_ms):
                least_ms = self._watermarks.reported(group, operator, subtask, watermark_ms)
                if least_ms is not None:
                    for other in self._slots.living():
                        self._send(other, m.AlignWatermarks(group, least_ms))
            case m.LateRecordsDropped(operator, subtask):
                if self._runs(slot, operator, subtask, "drops late records of", now_ms):
                    grown = self._counts.reported(operator, subtask, message.dropped)
                    if grown:
                        name = self.graph.operator_name(operator)
                        self._report(drop_words(name, message.watermark_ms, message.late_by_ms, *grown))
            case m.SlotWarned(words, count):
                grown = self._counts.reported(words, slot, count)
                if grown:
                    self._report(self._warning_words(slot, message, *grown))
            case m.SlotHeartbeat():
                record.beat(message)
            case m.TaskStateChanged(vertex, subtask, state):
                self._on_task_state(slot, vertex, subtask, state, now_ms)
            case m.TaskFailed():
                self._on_task_failed(slot, message, now_ms)
            case m.PeerLost(peer):
                self._fail(failures.peer_lost(self._name(slot), self._name(peer), message), now_ms)
            case m.RequestSplit(operator, subtask):
                if self._runs(slot, operator, subtask, "asks for a split of", now_ms):
                    self._do(ev.AskEnumerator(operator, subtask))
            case m.CollectedBatch(operator, subtask, sequence, data):
                if self._runs(slot, operator, subtask, "sends records of", now_ms):
                    self._on_collected(operator, subtask, sequence, data)
            case m.SlotFinished():
                self._on_slot_finished(slot, record, now_ms)
            case m.AcknowledgeCheckpoint() | m.DeclineCheckpoint() | m.TaskDrained():
                pass  # for the CheckpointCoordinator
            case m.SlotUnusable():
                pass  # it has registered already
            case _:
                assert_never(message)

    def _report(self, words: str) -> None:
        self._do(ev.ReportTrouble(f"job {self.job_graph.name!r}: {words}"))

    def _warning_words(self, slot: SlotId, warned: m.SlotWarned, total: int, next_at: int) -> str:
        vertices, where = self.job_graph.vertices, ""
        if warned.vertex is not None and 0 <= warned.vertex < len(vertices):
            vertex = vertices[warned.vertex]
            where = f", {vertex.name!r} (subtask {warned.subtask} of {vertex.parallelism})"
        often = f" ({total:,} times in all slots; said again at {next_at:,})" if total > 1 else ""
        return f"{self._name(slot)}{where}: {warned.words}{often}"

    def _on_task_state(
        self, slot: SlotId, vertex: int, subtask: int, state: ExecutionState, now_ms: int
    ) -> None:
        try:
            execution = self.graph.report(slot, vertex, subtask, state)
        except (ProtocolError, IllegalTransitionError) as e:
            self._break_protocol(slot, str(e), now_ms)
            return
        if state is _E.FAILED:
            vertex_name, parallelism = execution.vertex.name, execution.vertex.parallelism
            self._fail(failures.task_ended(vertex_name, subtask, parallelism), now_ms)

    def _on_task_failed(self, slot: SlotId, report: m.TaskFailed, now_ms: int) -> None:
        execution = self.graph.find(report.vertex, report.subtask)
        if execution is not None and execution.slot == slot and execution.machine.can(_E.FAILED):
            execution.machine.to(_E.FAILED)
        self._fail(failures.task_failed(self.job_graph, report), now_ms)

    def _on_collected(self, operator: OperatorId, subtask: int, sequence: int, data: bytes) -> None:
        last = self._collected.get((operator, subtask))
        if last is None or sequence > last:
            self._collected[(operator, subtask)] = sequence
            self._do(ev.DeliverCollected(operator, subtask, sequence, data))

    def _on_slot_finished(self, slot: SlotId, record: SlotRecord, now_ms: int) -> None:
        unfinished = self.graph.unfinished(slot)
        if unfinished and self._is_going:
            said = ", ".join(f"{e.machine.subject} is {e.state.value}" for e in unfinished)
            self._break_protocol(slot, f"it says that it has finished, but {said}", now_ms)
        record.state = SlotState.FINISHED
        self._do(ev.CloseSlot(slot))

    def _on_disconnected(self, slot: SlotId, now_ms: int) -> None:
        record = self._slots.get(slot)
        if record is None or not record.lives:
            return
        running = self._running_in(slot, record)
        self._slot_gone(slot)
        self._fail(failures.slot_lost(self._name(slot), running), now_ms)

    def _on_gang_ended(self, end: ev.GangEnded, now_ms: int) -> None:
        if self._gang in ("none", "ended"):
            return
        self._gang = "ended"
        if end.fault is ev.GangFault.EXECUTOR_LOST:
            self._host_says = end.error or ""
        self._fail(failures.gang_ended(end.error, end.fault), now_ms)

    def _on_cancel(self, reason: str, now_ms: int) -> None:
        if not self._is_going or self._finished_ms is not None or self._failures.best is not None:
            return
        self._to(_J.CANCELLING)
        self.message = f"job {self.job_graph.name!r} was cancelled: {reason}"
        self._stop(reason, now_ms)

    def _send_to_reader(self, operator: OperatorId, subtask: int, message: m.MasterMessage) -> None:
        """Send to the slot of an operator's subtask; before the deployment the message is queued."""
        execution = self.graph.find_operator(operator, subtask)
        if execution is None:
            return
        if self.status is _J.RUNNING:
            self._send(execution.slot, message)
        elif self.status is _J.WAITING_FOR_SLOTS:
            self._early.append((execution.slot, message))

    # ---- 3. time ----

    def _on_tick(self, now_ms: int) -> None:
        away_ms = 0 if self._last_tick_ms is None else now_ms - self._last_tick_ms
        self._last_tick_ms = now_ms
        if away_ms > self._options.heartbeat_timeout // 2:
            self._slots.forgive(now_ms)
        if self._last_beat_ms is None or now_ms - self._last_beat_ms >= self._options.heartbeat_interval:
            self._last_beat_ms = now_ms
            self._beats += 1
            self._send_to_all(m.MasterHeartbeat(self._beats))
        if self._is_going:
            self._check_heartbeats(now_ms)
        if self.status is _J.WAITING_FOR_SLOTS:
            self._check_waiting(now_ms)

    def _check_heartbeats(self, now_ms: int) -> None:
        for slot, record, silent_ms in self._slots.newly_silent(now_ms, self._options.heartbeat_timeout):
            inside = record.heartbeat.inside if record.heartbeat else ""
            running = self._running_in(slot, record)
            self._fail(failures.slot_silent(self._name(slot), silent_ms, running, inside), now_ms)

    def _check_waiting(self, now_ms: int) -> None:
        needed, timeout_ms = self.graph.slots_needed, self._options.slots_wait_timeout
        waited_ms = now_ms - self._submitted_ms
        is_known = self._counted.available is not None
        is_short = self._is_short or self._gang == "none"
        if is_short and waited_ms >= timeout_ms and (is_known or waited_ms >= self.SHORTEST_START_MS):
            unavailable = failures.slots_unavailable(needed, self._counted, timeout_ms, self._unreachable)
            self._fail(unavailable, now_ms)
        elif self._gang == "none":
            if now_ms - self._counted_ms >= self.COUNT_EVERY_MS:
                self._ask_for_slots()
        elif self._gang == "active":
            starting_ms = now_ms - self._gang_ms
            missing = self._slots.missing()
            say_after_ms = self.SAY_SLOW_AFTER_MS if is_known else self.SAY_UNKNOWN_AFTER_MS
            if waited_ms >= timeout_ms and starting_ms >= self.SHORTEST_START_MS and missing:
                self._fail(failures.slots_missing(needed, missing, waited_ms), now_ms)
            elif starting_ms >= say_after_ms and not self._waiting_said:
                name, came = self.job_graph.name, needed - len(missing)
                patience_ms = max(timeout_ms, self._gang_ms - self._submitted_ms + self.SHORTEST_START_MS)
                self._say_waiting(failures.starting_text(name, needed, came, patience_ms))
            elif (
                is_known
                and (self._is_short or starting_ms >= self.SAY_UNKNOWN_AFTER_MS)
                and now_ms - self._counted_ms >= self.COUNT_EVERY_MS
            ):
                self._ask_for_slots()

    # ---- 4. the end ----

    @property
    def _is_going(self) -> bool:
        return self.status in (_J.CREATED, _J.WAITING_FOR_SLOTS, _J.RUNNING)

    def _fail(self, failure: Failure, now_ms: int) -> None:
        """Add a report; `_move_on` acts on it only while the job is going and has not done all its work."""
        self._failures.add(failure, now_ms)

    def _break_protocol(self, slot: SlotId, detail: str, now_ms: int) -> None:
        self._fail(failures.protocol_broken(self._name(slot), detail), now_ms)

    def _move_on(self, now_ms: int) -> None:
        """Take the steps that have become possible, after every event."""
        done = self._slots.all_finished and self.graph.all_finished
        if done and self.status is _J.RUNNING and self._finished_ms is None:
            self._finished_ms = now_ms
        if self._finished_ms is not None:
            if self._gang == "ended" or now_ms - self._finished_ms >= self.GANG_END_MS:
                self._cancel_gang()
                self._end(_J.FINISHED)
            return
        if self._is_going:
            failure = self._failures.decided(now_ms)
            if failure is not None:
                self._to(_J.FAILING)
                self.message = f"job {self.job_graph.name!r} failed: {failure.text}{failure.guess}"
                self._stop("the job has failed", now_ms)
        if self.status in (_J.FAILING, _J.CANCELLING):
            self._finish_stopping(now_ms)

    def _stop(self, reason: str, now_ms: int) -> None:
        self._stop_ms = now_ms
        self._stop_reason = reason
        self._early.clear()
        self._send_to_all(m.Cancel(reason))

    def _finish_stopping(self, now_ms: int) -> None:
        stopping_ms = now_ms - self._stop_ms
        grace_ms = self._options.cancel_grace
        # The gang is cancelled at once if no slot can hear `Cancel`, or if nothing is deployed that needs closing.
        deployed = _J.RUNNING in self._machine.history
        if not deployed or self._slots.all_silent or stopping_ms >= grace_ms:
            self._cancel_gang()
        gone = self._slots.all_silent and self._gang in ("none", "ended")
        if gone or stopping_ms >= grace_ms + self.STOP_EXTRA_MS:
            self._end(_J.FAILED if self.status is _J.FAILING else _J.CANCELED)

    def _end(self, status: JobStatus) -> None:
        self._machine.to(status)
        self.graph.close()
        failure = self._failures.best
        if failure is not None and failure.guess and self._host_says and status is _J.FAILED:
            # Spark reports a moment after the connection ends, but its report is not a guess.
            self.message = f"job {self.job_graph.name!r} failed: {failure.text}; {self._host_says}"
        self._do(ev.AttemptEnded(status, self.message, failure.error if failure else JobFailedError))

    def _cancel_gang(self) -> None:
        if self._gang == "active":
            self._gang = "cancelled"
            self._do(ev.CancelGang())

    # ---- small parts ----

    def _do(self, *actions: AttemptResult) -> None:
        self._actions.extend(actions)

    def _to(self, status: JobStatus) -> None:
        self._machine.to(status)
        self._do(ev.AttemptMoved(status))

    def _send(self, slot: SlotId, message: m.MasterMessage) -> None:
        record = self._slots.get(slot)
        if record is not None and record.lives:
            self._do(ev.SendToSlot(slot, message))

    def _send_to_all(self, message: m.MasterMessage) -> None:
        self._do(*(ev.SendToSlot(slot, message) for slot in self._slots.living()))

    def _say_waiting(self, text: str, *, log: bool = True) -> None:
        self._waiting_said = text
        if log:
            self._do(ev.ReportWaiting(text))

    def _slot_gone(self, slot: SlotId) -> None:
        record = self._slots.get(slot)
        if record is not None and record.lives:
            record.state = SlotState.LOST
            self.graph.slot_lost(slot)

    def _runs(self, slot: SlotId, operator: OperatorId, subtask: int, what: str, now_ms: int) -> bool:
        """Whether a slot may speak for an operator's subtask now; if it does not run it, it breaks the protocol."""
        execution = self.graph.find_operator(operator, subtask)
        if execution is None or execution.slot != slot:
            self._break_protocol(
                slot, f"it {what} operator {operator}/{subtask}, which it does not run", now_ms
            )
            return False
        return self.status is _J.RUNNING

    def _running_in(self, slot: SlotId, record: SlotRecord) -> list[str]:
        return self.graph.operator_names(slot) if record.state is SlotState.RUNNING else []

    def _name(self, slot: SlotId) -> str:
        record = self._slots.get(slot)
        return failures.slot_name(slot, None if record is None else record.address)
