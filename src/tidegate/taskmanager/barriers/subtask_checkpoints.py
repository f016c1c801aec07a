"""A subtask's part in checkpoints: performs what the alignment decides. Mailbox thread, except for the upload.

1. The barrier is forwarded.
2. The synchronous part: every operator freezes its state.
3. The asynchronous part, on the slot's upload thread: the frozen state is written (`SnapshotUpload`).
4. Back on the mailbox thread: the acknowledgement with the handles, or a decline with the reason.

A failure in 2 to 4 declines the checkpoint; the task itself goes on. Batches that an unaligned barrier overtakes are
encoded at once; the upload waits until every channel has its barrier.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from tidegate.core.clock import Clock
from tidegate.core.errors import ProgramError, SchemaError, SerializationError
from tidegate.core.failpoints import failpoint
from tidegate.core.ids import ChannelId, SubtaskId
from tidegate.operators.failures import OperatorError, describe_error
from tidegate.protocol import messages as m
from tidegate.records.elements import CheckpointBarrier
from tidegate.storage.storage import CheckpointStorage
from tidegate.taskmanager.barriers import alignment as al
from tidegate.taskmanager.barriers.in_flight import overtaken
from tidegate.taskmanager.barriers.snapshot_upload import RunningCheckpoint, SnapshotUpload
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.input_gate import InputGate
from tidegate.taskmanager.output_channel import OutputChannel
from tidegate.taskmanager.upload_thread import Uploads

log = logging.getLogger(__name__)
"""At DEBUG a trace of every checkpoint: a few lines per subtask and checkpoint, none per record."""
_PROGRAM_ERRORS = (ProgramError, SchemaError, SerializationError)
"""Raised for a value or a type that a checkpoint cannot hold."""


@dataclass(frozen=True)
class CheckpointHost:
    """What the checkpoints of a slot's tasks share."""

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
        host: CheckpointHost,
    ) -> None:
        self._id = id
        self._chain = chain
        self._gate = gate
        self._alignment = gate.alignment
        self._outputs = outputs
        self._host = host
        self._upload = SnapshotUpload(id, host.attempt, host.clock, host.storage)
        self._running: dict[int, RunningCheckpoint] = {}
        self._aligning_since_ms: float | None = None
        self._output_ended = False

    # ---- what the task reports ----

    def barrier_received(self, channel: ChannelId, barrier: CheckpointBarrier) -> None:
        """A barrier was taken from its queue, or overtakes what is ahead of it there."""
        self._trace(barrier.checkpoint_id, "barrier received on %s", tuple(channel))
        now_ms = self._now_ms()
        was_aligning = self._alignment.is_aligning
        self._perform(self._alignment.barrier_received(channel, barrier, self._wall_ms()))
        if self._alignment.is_aligning and not was_aligning:
            self._aligning_since_ms = now_ms

    def channel_ended(self, channel: ChannelId) -> None:
        self._perform(self._alignment.channel_ended(channel))

    def output_ended(self) -> None:
        """The end of input was sent: no element may follow it, not even a barrier."""
        self._output_ended = True

    def triggered(self, barrier: CheckpointBarrier) -> None:
        """The JobManager triggers a checkpoint; a task with open inputs waits for the barriers."""
        self._perform(self._alignment.triggered(barrier, self._wall_ms()))

    def drained(self) -> None:
        """Everything is read, processed and sent: the task waits for the final checkpoint."""
        self._host.send(m.TaskDrained(self._id.vertex, self._id.index))

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: operators commit, backends build on it."""
        self._running = {id: r for id, r in self._running.items() if id > checkpoint_id}
        self._chain.checkpoint_completed(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        self._perform(self._alignment.checkpoint_aborted(checkpoint_id))
        if not self._alignment.is_aligning:
            self._aligning_since_ms = None
            self._gate.take_aligned_records()
        self._forget(checkpoint_id)
        self._chain.checkpoint_aborted(checkpoint_id)

    @property
    def is_due(self) -> bool:
        """Whether `step` may have something to do. Asked in every step of the task."""
        alignment = self._alignment
        return alignment.is_due or (alignment.timeout_ms is not None and bool(self._running))

    def step(self) -> bool:
        """Let barriers overtake, and do what is due by now; returns whether a barrier overtook."""
        moved = self._receive_overtaking()
        self._perform(self._alignment.time_passed(self._wall_ms()))
        moved = self._receive_overtaking() or moved
        for running in list(self._running.values()):
            self._hurry_outputs(running)
        return moved

    @property
    def deadline_ns(self) -> int | None:
        """The monotonic time at which `step` has something to do; None: never."""
        timeout_ms = self._alignment.timeout_ms
        if timeout_ms is None:
            return None
        times = [r.barrier.timestamp_ms + timeout_ms for r in self._running.values() if r.stuck]
        if self._alignment.deadline_ms is not None:
            times.append(self._alignment.deadline_ms)
        if not times:
            return None
        clock = self._host.clock
        return clock.monotonic_ns() + max(0, min(times) - clock.now_ms()) * 1_000_000

    def _receive_overtaking(self) -> bool:
        moved = False
        while (overtaking := self._alignment.next_overtaking()) is not None:
            self.barrier_received(*overtaking)
            moved = True
        return moved

    # ---- what the alignment decides ----

    def _perform(self, actions: list[al.Action]) -> None:
        for action in actions:
            match action:
                case al.BlockChannel(channel):
                    self._gate.block(channel)
                case al.UnblockChannels(channels):
                    self._gate.unblock(channels)
                case al.RemoveBarrier(channel, barrier):
                    self._gate.remove_barrier(channel, barrier)
                case al.BeginCheckpoint():
                    self._begin(action)
                case al.CompleteRecording(checkpoint_id):
                    self._complete_recording(checkpoint_id)
                case al.AbandonCheckpoint(checkpoint_id, reason):
                    self._forget(checkpoint_id)
                    id = self._id
                    self._host.send(
                        m.DeclineCheckpoint(checkpoint_id, id.vertex, id.index, reason, subsumed=True)
                    )
                case _:
                    assert_never(action)

    def _begin(self, begin: al.BeginCheckpoint) -> None:
        barrier, id = begin.barrier, begin.barrier.checkpoint_id
        if begin.by_trigger:
            self._trace(id, "triggered by the JobManager")
        self._trace(id, "processing stopped")
        since_ms, self._aligning_since_ms = self._aligning_since_ms, None
        running = RunningCheckpoint(
            barrier,
            alignment_ms=0.0 if since_ms is None else self._now_ms() - since_ms,
            start_delay_ms=max(0.0, self._wall_ms() - barrier.timestamp_ms),
            aligned_records=self._gate.take_aligned_records(),
            recording=barrier.unaligned,
            finished=self._output_ended,
        )
        self._running[id] = running
        self._forward(running)
        try:
            if barrier.unaligned:
                self._store_overtaken(running, begin)
            started_ms = self._now_ms()
            failpoint("checkpoint.sync")
            running.parts = self._chain.snapshot(id)
            running.sync_ms = self._now_ms() - started_ms
            self._trace(id, "snapshot of %s", [operator for operator, _ in running.parts])
        except Exception as e:  # noqa: BLE001 - the checkpoint fails, not the task
            self._forget(id)
            self._decline(id, e)
            return
        self._upload_if_ready(running)
        self._trace(id, "processing resumed")

    def _forward(self, running: RunningCheckpoint) -> None:
        if self._output_ended:
            return
        barrier = running.barrier
        for output in self._outputs:
            if barrier.unaligned:
                running.in_flight += overtaken("out", output.id, output.overtake(barrier))
            else:
                output.add_event(barrier)
                if self._alignment.timeout_ms is not None:
                    running.stuck.append(output)
        if self._outputs:
            self._trace(
                barrier.checkpoint_id, "barrier forwarded to %s", [tuple(o.id) for o in self._outputs]
            )

    def _store_overtaken(self, running: RunningCheckpoint, begin: al.BeginCheckpoint) -> None:
        """Store first what is left of the current batch: it was taken before what waits in the queues."""
        waiting = self._gate.overtake(begin)
        rest, channel = self._chain.rest, self._gate.last_batch
        if rest is not None and channel is not None:
            running.in_flight += overtaken("in", channel, [rest])
        for channel, batches in waiting.items():
            running.in_flight += overtaken("in", channel, batches)

    def _complete_recording(self, checkpoint_id: int) -> None:
        running = self._running.get(checkpoint_id)
        if running is not None:
            running.in_flight += self._gate.take_recorded()
            running.recording = False
            self._upload_if_ready(running)

    def _hurry_outputs(self, running: RunningCheckpoint) -> None:
        """A forwarded barrier that is late and still waits for batches ahead of it overtakes them."""
        if not running.stuck:
            return
        running.drop_sent()
        if running.stuck and self._alignment.is_late(running.barrier, self._wall_ms()):
            late = al.unaligned(running.barrier)
            for output in running.stuck:
                batches = output.overtake(late, instead_of=running.barrier)
                running.in_flight += overtaken("out", output.id, batches)
            running.stuck = []
            running.overtook = True
        self._upload_if_ready(running)

    # ---- the upload ----

    def _upload_if_ready(self, running: RunningCheckpoint) -> None:
        if running.parts is None or running.recording or running.uploading:
            return
        running.drop_sent()
        if running.stuck:
            return
        running.uploading = True
        self._host.uploads.submit(lambda: self._run_upload(running))

    def _run_upload(self, running: RunningCheckpoint) -> None:
        """On the upload thread: write everything, then post the result to the mailbox thread."""
        result: m.AcknowledgeCheckpoint | Exception
        try:
            if running.is_over:
                return
            result = self._upload.run(running)
        except Exception as e:  # noqa: BLE001 - the checkpoint fails, not the task
            result = e
        self._host.uploads.post(partial(self._uploaded, running, result))

    def _uploaded(self, running: RunningCheckpoint, result: m.AcknowledgeCheckpoint | Exception) -> None:
        id = running.barrier.checkpoint_id
        if self._running.get(id) is not running:
            return  # aborted meanwhile
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
            if running.recording:  # else what is recorded belongs to a newer one
                self._alignment.checkpoint_failed(checkpoint_id)
                self._gate.take_recorded()

    def _trace(self, checkpoint_id: int, what: str, *args: object) -> None:
        if log.isEnabledFor(logging.DEBUG):
            id = self._id
            log.debug(
                "checkpoint %d: subtask %d of vertex %d: %s", checkpoint_id, id.index, id.vertex, what % args
            )

    def _now_ms(self) -> float:
        return self._host.clock.monotonic_ns() / 1e6

    def _wall_ms(self) -> int:
        return self._host.clock.now_ms()
