"""A subtask's part in checkpoints: what the alignment decides is done here. Mailbox thread, but for the upload.

1. The barrier is forwarded.
2. The synchronous part: every operator freezes its state.
3. The asynchronous part, on the slot's upload thread: the frozen state is written.
4. Back on the mailbox thread: the acknowledgement with the handles, or a decline with the reason.

Whatever fails in 2 to 4 declines the checkpoint; the task itself goes on. What an unaligned barrier overtakes is
encoded when it is overtaken; the upload waits until every channel's barrier has come.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tidegate.core.clock import Clock
from tidegate.core.errors import ProgramError, SchemaError, SerializationError
from tidegate.core.failpoints import failpoint
from tidegate.core.ids import ChannelId, SubtaskId
from tidegate.operators.failures import OperatorError, describe_error
from tidegate.protocol import messages as m
from tidegate.records.batch import Batch
from tidegate.records.elements import CheckpointBarrier
from tidegate.snapshot.handles import (
    InFlightHandle,
    OperatorSnapshot,
    StateFile,
    SubtaskCheckpointMetrics,
    SubtaskSnapshot,
)
from tidegate.state.operator_states import OperatorAsyncPart
from tidegate.storage.storage import CheckpointStorage, Scope, SnapshotWriter
from tidegate.taskmanager import alignment as al
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.channels import InputGate, OutputChannel
from tidegate.taskmanager.in_flight import OvertakenBatch, encode_in_flight, overtaken

log = logging.getLogger(__name__)
"""At DEBUG a trace of every checkpoint: a few lines per subtask and checkpoint, none per record."""
_PROGRAM_ERRORS = (ProgramError, SchemaError, SerializationError)
"""What a value or a type does that no checkpoint can hold."""
write_log = logging.getLogger(f"{__name__}.write")
"""At DEBUG the four stages of each operator's asynchronous part: open, state, metadata, close.

A state's file is written in one piece and describes itself (the footer of a Parquet file, the index of a RocksDB
checkpoint). The handles hold the types of all states again; they are complete when the last file is durable."""


class Uploads(Protocol):
    """Runs the asynchronous parts: one after the other, on another thread (or when a simulation chooses)."""

    posted: deque[Callable[[], None]]
    """What the mailbox thread is to run."""

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` soon; it does not raise."""
        ...

    def post(self, then: Callable[[], None]) -> None:
        """Called from inside `work`: put `then` into `posted` and wake the mailbox thread."""
        ...


@dataclass(frozen=True)
class CheckpointHost:
    """What the slot gives to the checkpoints of its tasks."""

    attempt: int
    clock: Clock
    storage: CheckpointStorage
    uploads: Uploads
    send: Callable[[m.SlotMessage], None]


class SubtaskCheckpoints:
    """The checkpoints of one task."""

    def __init__(
        self,
        id: SubtaskId,
        chain: OperatorChain,
        gate: InputGate,
        outputs: Sequence[OutputChannel],
        alignment: al.BarrierAlignment,
        alignment_timeout_ms: int | None,
        host: CheckpointHost,
    ) -> None:
        self._id = id
        self._chain = chain
        self._gate = gate
        self._outputs = outputs
        self._alignment = alignment
        self._timeout_ms = alignment_timeout_ms
        self._host = host
        self._running: dict[int, _Running] = {}
        self._aligning_since_ms: float | None = None
        self._triggered: CheckpointBarrier | None = None
        """The newest trigger of the JobManager, until that checkpoint has begun here: for when all channels end without
        its barrier."""
        self._begun = 0
        self.rest_in_flight: Callable[[], tuple[ChannelId, Batch] | None] = lambda: None
        """What of a batch is not processed yet, when an unaligned barrier does not wait for it."""
        self.output_ended = False
        """Whether the end of input was sent: nothing may follow it, no barrier either."""

    # ---- what the task tells ----

    def barrier_received(self, channel: ChannelId, barrier: CheckpointBarrier) -> None:
        """A barrier came, in its turn or past everything that waits."""
        self._trace(barrier.checkpoint_id, "barrier received on %s", tuple(channel))
        now_ms = self._now_ms()
        was_aligning = self._alignment.is_aligning
        self._perform(self._alignment.barrier_received(channel, barrier, self._wall_ms()))
        if self._alignment.is_aligning and not was_aligning:
            self._aligning_since_ms = now_ms

    def channel_ended(self, channel: ChannelId) -> None:
        """Nothing follows on a channel."""
        self._perform(self._alignment.channel_ended(channel, self._wall_ms()))

    def triggered(self, barrier: CheckpointBarrier) -> None:
        """The JobManager triggers a checkpoint; for a task with open inputs it waits for the barriers."""
        if barrier.checkpoint_id > self._begun:
            self._triggered = barrier
            self.look_for_trigger()

    def look_for_trigger(self) -> None:
        """Take the newest triggered checkpoint if no barrier of it can come (any more).

        If the end of every input has come but waits behind batches, one that may overtake does so.
        """
        barrier = self._triggered
        if barrier is None:
            return
        waits_behind_batches = self._chain.source is None and not self._gate.all_ended
        if waits_behind_batches and self._gate.only_ends_follow and self._may_overtake(barrier):
            waits_behind_batches = False
            barrier = al.unaligned(barrier)
        if not waits_behind_batches:
            self._triggered = None
            actions = self._alignment.triggered(barrier)
            if actions:  # else it has taken that checkpoint already
                self._trace(barrier.checkpoint_id, "triggered by the JobManager")
            self._perform(actions)

    def drained(self) -> None:
        """Everything is read, processed and sent: the task waits for the final checkpoint."""
        self._host.send(m.TaskDrained(self._id.vertex, self._id.index))

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: operators commit, backends build on it."""
        self._running = {id: r for id, r in self._running.items() if id > checkpoint_id}
        self._chain.checkpoint_completed(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up."""
        self._perform(self._alignment.checkpoint_aborted(checkpoint_id))
        if not self._alignment.is_aligning:
            self._aligning_since_ms = None
            self._gate.take_aligned_records()
        self._forget(checkpoint_id)
        self._chain.checkpoint_aborted(checkpoint_id)

    def step(self) -> None:
        """Go on unaligned where that is due."""
        if self._triggered is not None:
            self.look_for_trigger()
        if self._timeout_ms is None:
            return
        now_ms = self._wall_ms()
        self._perform(self._alignment.time_passed(now_ms))
        first = self._gate.first_barrier
        if first is not None and self._alignment.is_free and self._may_overtake(first):
            self.barrier_received(*self._gate.hurry_first_barrier())
        for running in list(self._running.values()):
            self._hurry_outputs(running, now_ms)

    @property
    def deadline_ns(self) -> int | None:
        """The monotonic time at which `step` has something to do; None: never."""
        if self._timeout_ms is None:
            return None
        times = [r.barrier.timestamp_ms + self._timeout_ms for r in self._running.values() if r.stuck]
        if self._alignment.deadline_ms is not None:
            times.append(self._alignment.deadline_ms)
        waiting = self._gate.first_barrier
        if waiting is None and self._gate.only_ends_follow:
            waiting = self._triggered
        if waiting is not None and self._alignment.is_free:
            times.append(waiting.timestamp_ms + self._timeout_ms)
        if not times:
            return None
        clock = self._host.clock
        return clock.monotonic_ns() + max(0, min(times) - clock.now_ms()) * 1_000_000

    def _may_overtake(self, barrier: CheckpointBarrier) -> bool:
        if barrier.unaligned:
            return True
        return self._timeout_ms is not None and self._wall_ms() - barrier.timestamp_ms >= self._timeout_ms

    def _record(self, checkpoint_id: int, channel: ChannelId, batch: Batch) -> None:
        """A batch came on a channel whose unaligned barrier is still to come."""
        running = self._running.get(checkpoint_id)
        if running is not None:
            running.in_flight += overtaken("in", channel, [batch])

    # ---- what the alignment says ----

    def _perform(self, actions: list[al.Action]) -> None:
        for action in actions:
            match action:
                case al.BlockChannel(channel):
                    self._gate.block(channel)
                case al.UnblockChannels():
                    self._gate.unblock()
                case al.BeginCheckpoint(barrier, recording):
                    self._begin(barrier, recording)
                case al.StopRecording(_, channel):
                    self._gate.stop_recording(channel)
                case al.CompleteRecording(checkpoint_id):
                    running = self._running.get(checkpoint_id)
                    if running is not None:
                        running.recording = False
                        self._upload_if_ready(running)
                case al.DeclineCheckpoint(checkpoint_id, reason):
                    self._forget(checkpoint_id)
                    id = self._id
                    self._host.send(
                        m.DeclineCheckpoint(checkpoint_id, id.vertex, id.index, reason, subsumed=True)
                    )

    def _begin(self, barrier: CheckpointBarrier, recording: frozenset[ChannelId]) -> None:
        self._trace(barrier.checkpoint_id, "processing stopped")
        now_ms = self._now_ms()
        aligning_ms = 0.0 if self._aligning_since_ms is None else now_ms - self._aligning_since_ms
        self._aligning_since_ms = None
        running = _Running(
            barrier,
            alignment_ms=aligning_ms,
            start_delay_ms=max(0.0, self._wall_ms() - barrier.timestamp_ms),
            aligned_records=self._gate.take_aligned_records(),
            recording=bool(recording),
            finished=self.output_ended,
        )
        self._running[barrier.checkpoint_id] = running
        self._begun = barrier.checkpoint_id
        if self._triggered is not None and self._triggered.checkpoint_id <= self._begun:
            self._triggered = None
        self._forward(running)
        try:
            if barrier.unaligned:
                rest = self.rest_in_flight()
                if rest is not None:
                    running.in_flight += overtaken("in", rest[0], [rest[1]])
                for channel, batches in self._gate.overtaken_by(barrier, recording).items():
                    running.in_flight += overtaken("in", channel, batches)
                self._gate.record = partial(self._record, barrier.checkpoint_id)
            started_ms = self._now_ms()
            failpoint("checkpoint.sync")
            running.parts = self._chain.snapshot(barrier.checkpoint_id)
            running.sync_ms = self._now_ms() - started_ms
            names = [operator for operator, _ in running.parts]
            self._trace(barrier.checkpoint_id, "snapshot of %s", names)
        except Exception as e:  # noqa: BLE001 - the checkpoint fails, not the task
            self._forget(barrier.checkpoint_id)
            self._decline(barrier.checkpoint_id, e)
            return
        self._upload_if_ready(running)
        self._trace(barrier.checkpoint_id, "processing resumed")

    def _forward(self, running: _Running) -> None:
        if self.output_ended:
            return
        barrier = running.barrier
        for output in self._outputs:
            if barrier.unaligned:
                running.in_flight += overtaken("out", output.id, output.overtake(barrier))
            else:
                output.add_event(barrier)
                if self._timeout_ms is not None:
                    running.stuck.append(output)
        if self._outputs:
            self._trace(
                barrier.checkpoint_id, "barrier forwarded to %s", [tuple(o.id) for o in self._outputs]
            )

    def _hurry_outputs(self, running: _Running, now_ms: int) -> None:
        """A forwarded barrier that still waits behind batches when its time is over overtakes them."""
        if not running.stuck or self._timeout_ms is None:
            return
        running.stuck = [o for o in running.stuck if o.has_queued(running.barrier)]
        if running.stuck and now_ms - running.barrier.timestamp_ms >= self._timeout_ms:
            late = al.unaligned(running.barrier)
            for output in running.stuck:
                batches = output.overtake(late, instead_of=running.barrier)
                running.in_flight += overtaken("out", output.id, batches)
            running.stuck = []
            running.overtook = True
        self._upload_if_ready(running)

    # ---- the upload ----

    def _upload_if_ready(self, running: _Running) -> None:
        if running.parts is None or running.recording or running.uploading:
            return
        running.stuck = [o for o in running.stuck if o.has_queued(running.barrier)]
        if running.stuck:
            return
        running.uploading = True
        self._host.uploads.submit(lambda: self._upload(running))

    def _upload(self, running: _Running) -> None:
        """On the upload thread: write everything, then go back to the mailbox thread with the result."""
        host, id = self._host, running.barrier.checkpoint_id
        started_ms = self._now_ms()
        try:
            if running.is_over:
                return
            snapshot, attachments = self._write(running)
        except Exception as e:  # noqa: BLE001 - the checkpoint fails, not the task
            host.uploads.post(partial(self._uploaded, running, e))
            return
        full = sum(f.size for f in snapshot.files())
        new = sum(o.keyed.bytes_new for o in snapshot.operators if o.keyed is not None)
        new += sum(s.file.size for o in snapshot.operators for s in o.states if s.file is not None)
        in_flight = 0 if snapshot.in_flight is None else snapshot.in_flight.file.size
        metrics = SubtaskCheckpointMetrics(
            alignment_ms=running.alignment_ms,
            sync_ms=running.sync_ms,
            async_ms=self._now_ms() - started_ms,
            start_delay_ms=running.start_delay_ms,
            bytes_new=new + in_flight,
            bytes_full=full,
            bytes_in_flight=in_flight,
            aligned_records=running.aligned_records,
            unaligned=running.barrier.unaligned or running.overtook,
        )
        message = m.AcknowledgeCheckpoint(
            id, self._id.vertex, self._id.index, m.encode_snapshot(snapshot), metrics, attachments
        )
        host.uploads.post(lambda: self._uploaded(running, message))

    def _write(self, running: _Running) -> tuple[SubtaskSnapshot, dict[str, bytes]]:
        host, id = self._host, running.barrier.checkpoint_id
        failpoint("checkpoint.async.before_write")
        operators = []
        attachments: dict[str, bytes] = {}
        for operator, part in running.parts or ():
            self._trace_write(id, operator, "1 open")
            writer = self._traced(
                host.storage.writer(id, host.attempt, operator, self._id.index), id, operator
            )
            written = part(writer)
            self._trace_write(id, operator, "3 metadata of %s", _described(written))
            operators.append(written)
            attachments.update(writer.attachments)
            files = SubtaskSnapshot(self._id.vertex, self._id.index, (written,)).files()
            self._trace_write(id, operator, "4 close, %d files are durable", len(files))
        handle = None
        if running.in_flight:
            name = f"v{self._id.vertex}"
            writer = host.storage.writer(id, host.attempt, name, self._id.index)
            file = writer.write("in-flight", encode_in_flight(running.in_flight), "exclusive")
            attachments.update(writer.attachments)
            handle = InFlightHandle(file, len(running.in_flight))
        failpoint("checkpoint.async.after_write")
        kept = tuple(o for o in operators if not o.is_empty)
        snapshot = SubtaskSnapshot(self._id.vertex, self._id.index, kept, handle, running.finished)
        return snapshot, attachments

    def _uploaded(self, running: _Running, result: m.AcknowledgeCheckpoint | Exception) -> None:
        id = running.barrier.checkpoint_id
        if self._running.get(id) is not running:
            return  # aborted meanwhile: nobody waits for it
        if isinstance(result, Exception):
            self._forget(id)
            self._decline(id, result)
        else:
            self._trace(id, "acknowledged")
            self._host.send(result)

    def _decline(self, checkpoint_id: int, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, OperatorError) else error
        program_error = cause.__class__.__name__ if isinstance(cause, _PROGRAM_ERRORS) else ""
        reason = describe_error(error)
        self._host.send(
            m.DeclineCheckpoint(
                checkpoint_id, self._id.vertex, self._id.index, reason, program_error=program_error
            )
        )

    def _forget(self, checkpoint_id: int) -> None:
        running = self._running.pop(checkpoint_id, None)
        if running is not None:
            running.is_over = True
            if running.recording:  # else the channels that are being recorded are those of a newer one
                self._gate.stop_recording_all()

    def _trace(self, checkpoint_id: int, what: str, *args: object) -> None:
        if log.isEnabledFor(logging.DEBUG):
            id = self._id
            log.debug(
                "checkpoint %d: subtask %d of vertex %d: %s", checkpoint_id, id.index, id.vertex, what % args
            )

    def _trace_write(self, checkpoint_id: int, operator: str, stage: str, *args: object) -> None:
        if write_log.isEnabledFor(logging.DEBUG):
            where = f"write of checkpoint {checkpoint_id}: operator {operator} subtask {self._id.index}"
            write_log.debug("%s: %s", where, stage % args)

    def _traced(self, writer: SnapshotWriter, checkpoint_id: int, operator: str) -> SnapshotWriter:
        if not write_log.isEnabledFor(logging.DEBUG):
            return writer
        tell = partial(self._trace_write, checkpoint_id, operator, "2 state in %s, %d bytes")
        return _TracedWriter(writer, lambda file: tell(file.path, file.size))

    def _now_ms(self) -> float:
        return self._host.clock.monotonic_ns() / 1e6

    def _wall_ms(self) -> int:
        return self._host.clock.now_ms()


class _TracedWriter(SnapshotWriter):
    """Tells of each file when it is durable."""

    def __init__(self, writer: SnapshotWriter, tell: Callable[[StateFile], None]) -> None:
        self._writer = writer
        self._tell = tell

    def write(self, name: str, data: Any, scope: Scope = "shared") -> StateFile:
        file = self._writer.write(name, data, scope)
        self._tell(file)
        return file

    def upload(self, name: str, local_path: str, scope: Scope = "shared") -> StateFile:
        file = self._writer.upload(name, local_path, scope)
        self._tell(file)
        return file

    @property
    def attachments(self) -> dict[str, bytes]:
        return self._writer.attachments


def _described(written: OperatorSnapshot) -> list[str]:
    """The states of an operator as its handles describe them."""
    keyed = () if written.keyed is None else written.keyed.states
    return [f"{s.name} ({s.kind} of {s.value})" for s in keyed] + [
        f"{s.name} ({s.redistribution}, {s.rows} rows)" for s in written.states
    ]


@dataclass
class _Running:
    """A checkpoint between its barrier and its acknowledgement."""

    barrier: CheckpointBarrier
    alignment_ms: float
    start_delay_ms: float
    aligned_records: int
    recording: bool
    """Whether some channel's barrier is still to come (unaligned)."""
    finished: bool
    """Whether the task had done all its work when the snapshot was taken; it may be done when the upload begins."""
    sync_ms: float = 0.0
    in_flight: list[OvertakenBatch] = field(default_factory=list)
    parts: list[tuple[str, OperatorAsyncPart]] | None = None
    stuck: list[OutputChannel] = field(default_factory=list)
    """Outputs in which the forwarded barrier may still wait; only watched with an alignment timeout."""
    overtook: bool = False
    uploading: bool = False
    is_over: bool = False
