"""CheckpointCoordinator: when checkpoints are taken and when one is complete, as a pure state machine.

It coordinates Chandy–Lamport snapshots with barriers, as Flink does. No socket, thread, clock or file: events and the
time in, actions out. One per job: it lives through all attempts, so ids never repeat. All calls of `handle` come from
one thread; `overview` may be called from any.

1. When a checkpoint is due, it gets the next id, and `SnapshotEnumerators` is sent.
2. After `EnumeratorsSnapshotted`, `TriggerCheckpoint` goes to every slot.
3. Each subtask acknowledges once, from its own slot. Late, repeated or foreign messages change nothing.
4. After the last acknowledgement, `WriteManifest`. `ManifestWritten` makes the checkpoint complete: the slots are
   notified, older pending ones are subsumed, and checkpoints that are no longer retained are discarded.
5. A decline, an error, the timeout or the end of the attempt aborts it: the slots are notified, and everything that
   was written for it is deleted. More than `checkpoint.tolerable_failures` in a row fail the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, assert_never

from tidegate.core.durations import format_duration_ms
from tidegate.core.errors import ProtocolError
from tidegate.core.ids import AttemptNumber, OperatorId, SlotId, SubtaskId, VertexId
from tidegate.core.options import Options
from tidegate.core.states import JobStatus
from tidegate.core.words import number_of
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.completed_checkpoint import AcknowledgedCheckpoint
from tidegate.jobmanager.checkpoint.events import CheckpointAction, CheckpointEvent
from tidegate.jobmanager.checkpoint.retention import CompletedCheckpoints
from tidegate.jobmanager.checkpoint.statistics import (
    CheckpointHistory,
    CheckpointsOverview,
    CheckpointTracker,
)
from tidegate.jobmanager.events import ReportTrouble, SendToSlot, Tick
from tidegate.protocol import messages as m
from tidegate.snapshot.handles import SubtaskCheckpointMetrics, SubtaskSnapshot


@dataclass(eq=False)
class _Pending:
    """A checkpoint that is under way."""

    id: int
    attempt: AttemptNumber
    began_ms: int
    final: bool
    awaited: set[SubtaskId]
    tracker: CheckpointTracker
    phase: Literal["enumerators", "subtasks", "manifest"] = "enumerators"
    timestamp_ms: int = 0
    enumerators: Mapping[OperatorId, bytes] = field(default_factory=dict)
    acknowledged: dict[SubtaskId, tuple[SubtaskSnapshot, SubtaskCheckpointMetrics]] = field(
        default_factory=dict
    )
    value: AcknowledgedCheckpoint | None = None
    """What the manifest is made from; set when that is being written."""

    def all_parts(self, now_ms: int) -> AcknowledgedCheckpoint:
        parts = [part for _, part in sorted(self.acknowledged.items())]
        return AcknowledgedCheckpoint(
            self.id,
            self.attempt,
            self.timestamp_ms,
            now_ms - self.began_ms,
            tuple(snapshot for snapshot, _ in parts),
            tuple(metrics for _, metrics in parts),
            dict(self.enumerators),
            self.final,
        )


@dataclass(eq=False)
class _Attempt:
    """The attempt that runs, as far as checkpoints are concerned."""

    number: AttemptNumber
    slots: Mapping[SubtaskId, SlotId]
    names: Mapping[VertexId, str]
    started: bool = False
    due_ms: int = 0
    drained: set[SubtaskId] = field(default_factory=set)
    has_final: bool = False
    """Whether its final checkpoint is complete."""
    given_up: bool = False

    @property
    def all_drained(self) -> bool:
        return len(self.drained) == len(self.slots)

    def all_slots(self) -> list[SlotId]:
        return sorted(set(self.slots.values()))

    def name(self, id: SubtaskId) -> str:
        return f"{self.names.get(id.vertex, f'vertex {id.vertex}')!r} (subtask {id.index})"


class CheckpointCoordinator:
    """Decides everything about the checkpoints of one job."""

    SWEEPS_AFTER_LITTER = 2
    """How many completed checkpoints sweep after an abort: a slow writer may leave a file after the first sweep."""

    def __init__(self, options: Options, completed: CompletedCheckpoints, first_id: int = 1) -> None:
        """`first_id` must be above every id that was ever used in the job's directory."""
        self.completed = completed
        self._interval_ms = options.checkpoint_interval
        self._timeout_ms = options.checkpoint_timeout
        self._min_pause_ms = options.checkpoint_min_pause
        self._max_concurrent = options.checkpoint_max_concurrent
        self._tolerable = options.checkpoint_tolerable_failures
        self._keeps = {
            JobStatus.FINISHED: options.checkpoint_keep_on_finish,
            JobStatus.CANCELED: options.checkpoint_keep_on_cancel,
            JobStatus.FAILED: True,
        }
        self._next_id = max(first_id, completed.latest_id + 1)
        self._built_on_deleted = 0
        """Checkpoints, since the last complete one, in which a subtask built on a deleted checkpoint."""
        self._pending: dict[int, _Pending] = {}
        self._given_up_in_writing: set[int] = set()
        """Aborted while their manifests were being written: a manifest that appears late must be deleted."""
        self._attempt: _Attempt | None = None
        self._ended_ms: int | None = None
        self._failures = 0
        self._litter = 0
        self._history = CheckpointHistory(options.checkpoint_history)
        self._actions: list[CheckpointAction] = []

    # ---- what others may read ----

    @property
    def enabled(self) -> bool:
        """Whether the job takes checkpoints."""
        return self._interval_ms > 0

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Ids of the pending checkpoints, oldest first."""
        return tuple(self._pending)

    @property
    def failures_in_a_row(self) -> int:
        """Failed checkpoints since the last one that was completed."""
        return self._failures

    def overview(self) -> CheckpointsOverview:
        """The counts and the last checkpoints. Any thread."""
        return self._history.overview()

    def next_deadline_ms(self) -> int | None:
        """When a `Tick` has something to do at the latest; None: only other events do."""
        times = [pending.began_ms + self._timeout_ms for pending in self._pending.values()]
        due_ms = self._due_ms()
        return min([*times, due_ms] if due_ms is not None else times, default=None)

    # ---- the one way in ----

    def handle(self, event: CheckpointEvent, now_ms: int) -> list[CheckpointAction]:
        """Take an event and return the actions that it calls for, in order. `now_ms` never goes back."""
        self._actions = []
        match event:
            case ce.AttemptBegan():
                self._begin_attempt(event, now_ms)
            case ce.TasksStarted():
                attempt = self._attempt
                if attempt is not None and not attempt.started:
                    attempt.started = True
                    attempt.due_ms = now_ms if attempt.all_drained else now_ms + self._interval_ms
            case ce.TasksStopped(reason):
                self._end_attempt(reason, now_ms)
            case ce.JobEnded(status):
                self._end_job(status, now_ms)
            case ce.CheckpointMessageReceived(slot, message):
                self._on_message(slot, message, now_ms)
            case ce.EnumeratorsSnapshotted(id, states, timestamp_ms):
                self._on_enumerators(id, states, timestamp_ms)
            case ce.EnumeratorSnapshotFailed(id, reason):
                pending = self._pending.get(id)
                if pending is not None and pending.phase == "enumerators":
                    self._abort(pending, reason, now_ms)
            case ce.ManifestWritten(id, path):
                self._on_manifest(id, path, now_ms)
            case ce.ManifestFailed(id, reason):
                self._on_manifest_failed(id, reason, now_ms)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._expire(now_ms)
        self._trigger_if_due(now_ms)
        return self._actions

    # ---- attempts ----

    def _begin_attempt(self, event: ce.AttemptBegan, now_ms: int) -> None:
        self._end_attempt("another attempt began", now_ms)
        self._attempt = _Attempt(event.attempt, dict(event.slots), dict(event.names))
        self._failures = 0
        self._ended_ms = None
        self._history.restored(event.restored_checkpoint)
        self._litter = self.SWEEPS_AFTER_LITTER

    def _end_attempt(self, reason: str, now_ms: int) -> None:
        self._attempt = None
        for pending in list(self._pending.values()):
            self._abort(pending, reason, now_ms, counts=False)

    def _end_job(self, status: JobStatus, now_ms: int) -> None:
        self._end_attempt("the job has ended", now_ms)
        if not self._keeps.get(status, True):
            self._actions += self.completed.clear()
        if self._history.overview().triggered:
            self._do(ce.Sweep(self.completed.live_paths(), self._next_id))
        if self.enabled:
            self._do(ce.ReleaseStorage())

    # ---- 1, 2: the trigger ----

    def _due_ms(self) -> int | None:
        """When time alone triggers the next checkpoint; None: time alone does not."""
        attempt = self._attempt
        if (
            not self.enabled
            or attempt is None
            or not attempt.started
            or attempt.has_final
            or attempt.given_up
        ):
            return None
        if attempt.all_drained:
            return None if any(p.final for p in self._pending.values()) else attempt.due_ms
        if len(self._pending) >= self._max_concurrent:
            return None
        earliest_ms = 0 if self._ended_ms is None else self._ended_ms + self._min_pause_ms
        return max(attempt.due_ms, earliest_ms)

    def _trigger_if_due(self, now_ms: int) -> None:
        due_ms = self._due_ms()
        if due_ms is None or now_ms < due_ms:
            return
        attempt = self._attempt
        assert attempt is not None
        attempt.due_ms = max(attempt.due_ms + self._interval_ms, now_ms + 1)
        if attempt.due_ms <= now_ms + self._interval_ms // 2:
            # Too late for the schedule: keep the distance instead.
            attempt.due_ms = now_ms + self._interval_ms
        id, final = self._next_id, attempt.all_drained
        self._next_id += 1
        tracker = CheckpointTracker(id, attempt.number, now_ms, attempt.names, len(attempt.slots), final)
        self._pending[id] = _Pending(id, attempt.number, now_ms, final, set(attempt.slots), tracker)
        self._history.began(tracker)
        self._do(ce.SnapshotEnumerators(id))

    def _on_enumerators(self, id: int, states: Mapping[OperatorId, bytes], timestamp_ms: int) -> None:
        pending = self._pending.get(id)
        if pending is None or pending.phase != "enumerators":
            return
        pending.phase = "subtasks"
        pending.enumerators, pending.timestamp_ms = states, timestamp_ms
        pending.tracker.triggered(timestamp_ms)
        self._tell_slots(m.TriggerCheckpoint(id, timestamp_ms))

    # ---- 3: acknowledgements ----

    def _on_message(self, slot: SlotId, message: m.CheckpointMessage, now_ms: int) -> None:
        id = SubtaskId(message.vertex, message.subtask)
        attempt = self._attempt
        if attempt is None or attempt.slots.get(id) != slot:
            return
        if isinstance(message, m.TaskDrained):
            self._on_drained(attempt, id, now_ms)
            return
        pending = self._pending.get(message.checkpoint_id)
        if pending is None or pending.phase != "subtasks" or id not in pending.awaited:
            return
        match message:
            case m.DeclineCheckpoint():
                reason = f"{attempt.name(id)} declined it: {message.reason}"
                error = message.program_error
                culprit = f"vertex {message.vertex}: {error}" if error else ""
                self._abort(pending, reason, now_ms, counts=not message.subsumed, culprit=culprit)
            case m.AcknowledgeCheckpoint():
                self._on_acknowledged(attempt, pending, id, message, now_ms)
            case _:
                assert_never(message)

    def _on_drained(self, attempt: _Attempt, id: SubtaskId, now_ms: int) -> None:
        if not self.enabled or id in attempt.drained:
            return
        attempt.drained.add(id)
        if attempt.all_drained:
            attempt.due_ms = now_ms

    def _on_acknowledged(
        self,
        attempt: _Attempt,
        pending: _Pending,
        id: SubtaskId,
        message: m.AcknowledgeCheckpoint,
        now_ms: int,
    ) -> None:
        try:
            snapshot = m.decode_snapshot(message.snapshot)
        except ProtocolError as e:
            self._abort(pending, f"{attempt.name(id)} acknowledged it with something else: {e}", now_ms)
            return
        if (snapshot.vertex, snapshot.subtask) != id:
            other = SubtaskId(snapshot.vertex, snapshot.subtask)
            self._abort(
                pending,
                f"{attempt.name(id)} acknowledged it with the snapshot of {attempt.name(other)}",
                now_ms,
            )
            return
        lost = self.completed.lost_files(pending.id, snapshot)
        if lost:
            # The first time it is a harmless race: the slot is notified of the newer one in a moment. The second time
            # the notification is lost, and without a new attempt the slot will never get it.
            self._built_on_deleted += 1
            self._abort(
                pending,
                f"{attempt.name(id)} built on an older checkpoint that was deleted meanwhile "
                f"({number_of(len(lost), 'file')}, the first is {lost[0]})",
                now_ms,
                counts=self._built_on_deleted > 1,
            )
            return
        self.completed.hold(pending.id, snapshot)
        if message.attachments:
            self._do(ce.StoreAttachments(pending.id, message.attachments))
        pending.awaited.discard(id)
        pending.acknowledged[id] = (snapshot, message.metrics)
        pending.tracker.acknowledged(id, message.metrics, snapshot.finished, now_ms)
        if not pending.awaited:
            pending.phase = "manifest"
            pending.value = pending.all_parts(now_ms)
            self._do(ce.WriteManifest(pending.value))

    # ---- 4: completion ----

    def _on_manifest(self, id: int, path: str, now_ms: int) -> None:
        if id in self._given_up_in_writing:
            self._given_up_in_writing.discard(id)
            self._do(ce.DiscardCheckpoint(id, self.completed.live_paths()))
            return
        pending = self._pending.get(id)
        if pending is None or pending.value is None or pending.phase != "manifest":
            return
        del self._pending[id]
        self._ended_ms = now_ms
        self._failures = 0
        self._history.completed(pending.tracker, now_ms, path)
        self._tell_slots(m.NotifyCheckpointComplete(id, pending.final))
        if pending.final and self._attempt is not None:
            self._attempt.has_final = True
        for older in [p for p in self._pending.values() if p.id < id]:
            self._abort(older, f"checkpoint {id}, which is newer, was complete first", now_ms, counts=False)
        self._actions += self.completed.add(pending.value.completed(path), self._pending)
        self._built_on_deleted = 0
        if self._litter:
            self._litter -= 1
            self._do(ce.Sweep(self.completed.live_paths(), id))

    def _on_manifest_failed(self, id: int, reason: str, now_ms: int) -> None:
        self._given_up_in_writing.discard(id)
        pending = self._pending.get(id)
        if pending is not None and pending.phase == "manifest":
            pending.phase = "subtasks"  # the write has ended
            self._abort(pending, f"its manifest could not be written: {reason}", now_ms)

    # ---- 5: failures ----

    def _expire(self, now_ms: int) -> None:
        for pending in list(self._pending.values()):
            if now_ms - pending.began_ms >= self._timeout_ms:
                self._abort(pending, self._expired_text(pending), now_ms)

    def _expired_text(self, pending: _Pending) -> str:
        timeout = f"not complete within {format_duration_ms(self._timeout_ms)} (checkpoint.timeout)"
        if pending.phase == "enumerators":
            return f"{timeout}: the enumerators of the sources have not answered"
        if pending.phase == "manifest":
            return f"{timeout}: its manifest is still being written"
        attempt = self._attempt
        missing = sorted(pending.awaited)
        named = ", ".join(str(id) if attempt is None else attempt.name(id) for id in missing[:5])
        more = ", ..." if len(missing) > 5 else ""
        return f"{timeout}: {len(missing)} of {pending.tracker.total} subtasks are missing: {named}{more}"

    def _abort(
        self, pending: _Pending, reason: str, now_ms: int, *, counts: bool = True, culprit: str = ""
    ) -> None:
        """Abort a checkpoint. One that did not fail (subsumed, the attempt ended) does not count."""
        del self._pending[pending.id]
        self._ended_ms = now_ms
        self._litter = self.SWEEPS_AFTER_LITTER
        self._history.failed(pending.tracker, now_ms, reason)
        if pending.phase == "manifest":
            self._given_up_in_writing.add(pending.id)
        if pending.phase != "enumerators":
            self._tell_slots(m.NotifyCheckpointAborted(pending.id, reason))
        self._actions += self.completed.abort(pending.id)
        if counts:
            self._count_failure(pending, reason, culprit, now_ms)

    def _count_failure(self, pending: _Pending, reason: str, culprit: str, now_ms: int) -> None:
        self._failures += 1
        attempt = self._attempt
        if attempt is None or attempt.given_up:
            return
        if pending.final:
            attempt.due_ms = now_ms + self._interval_ms
        if self._failures > self._tolerable:
            attempt.given_up = True
            row = f"{self._failures} checkpoints in a row have" if self._failures > 1 else "a checkpoint has"
            self._do(
                ce.FailAttempt(
                    f"{row} failed, and checkpoint.tolerable_failures is {self._tolerable}. "
                    f"The last one, checkpoint {pending.id}: {reason}",
                    culprit,
                )
            )
        else:
            self._do(
                ReportTrouble(
                    f"checkpoint {pending.id} failed ({self._failures} in a row, {self._tolerable} are "
                    f"tolerated), the job goes on: {reason}"
                )
            )

    # ---- small parts ----

    def _do(self, *actions: CheckpointAction) -> None:
        self._actions.extend(actions)

    def _tell_slots(self, message: m.MasterMessage) -> None:
        if self._attempt is not None:
            self._do(*(SendToSlot(slot, message) for slot in self._attempt.all_slots()))
