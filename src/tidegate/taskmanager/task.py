"""A task: one subtask of a job vertex, stepped by the slot's mailbox loop. One step is at most one batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from tidegate.api.source import Finished, Idle
from tidegate.core.clock import Clock
from tidegate.core.ids import ChannelId, EdgeId, SubtaskId, VertexId
from tidegate.core.states import ExecutionState
from tidegate.metrics.registry import TaskMetrics, TaskState
from tidegate.metrics.snapshot import EventTime, SubtaskMetrics, event_time_of
from tidegate.records.batch import Batch
from tidegate.records.elements import (
    END_OF_INPUT,
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    CheckpointBarrier,
    EndOfInput,
    Watermark,
    WatermarkStatus,
)
from tidegate.records.types import RecordType, projected
from tidegate.taskmanager.barriers.subtask_checkpoints import SubtaskCheckpoints
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.input_gate import InputGate
from tidegate.taskmanager.output_channel import OutputChannel
from tidegate.taskmanager.partitioners import Partitioner
from tidegate.taskmanager.watermark_valve import Action, AdvanceClock, WatermarkValve

_LOOK_AGAIN_NS = 10_000_000
"""How long to wait before asking again an operator that is not ready (a sink that waits for another system)."""


_LOOK_AT_CLOCK_MS = 1_000
"""How often to look at the wall clock at least: setting it forward makes timers due."""


class ResultPartition:
    """What a subtask sends over one edge: a partitioner and the channels to the reachable consumers."""

    def __init__(
        self,
        partitioner: Partitioner,
        channels: list[OutputChannel],
        flush_at_once: bool,
        columns: tuple[str, ...] | None = None,
    ) -> None:
        """`columns`: those that the consumers read, if not all."""
        self.channels = channels
        self._partition = partitioner
        self._flush_at_once = flush_at_once
        self._columns = columns
        self._type: RecordType | None = None
        self.now_ns = 0
        self.records_out = 0

    def emit(self, batch: Batch) -> None:
        """Partition a batch over the channels."""
        self.records_out += batch.num_rows
        if self._columns is not None:
            if self._type is None:
                self._type = projected(batch.type, self._columns)
            batch = batch.project(self._type)
        for position, part in self._partition(batch):
            channel = self.channels[position]
            channel.add(part, self.now_ns)
            if self._flush_at_once:
                channel.flush()

    def send_event(self, event: Watermark | WatermarkStatus) -> None:
        """Send a watermark or a status to every consumer, after the records so far."""
        for channel in self.channels:
            channel.add_event(event)


class Task:
    """One subtask: takes elements and runs the chain until its input has ended and its output is sent."""

    def __init__(
        self,
        id: SubtaskId,
        name: str,
        chain: OperatorChain,
        gate: InputGate,
        partitions: list[ResultPartition],
        metrics: TaskMetrics,
        clock: Clock,
        checkpoints: SubtaskCheckpoints | None = None,
        producers: Mapping[EdgeId, VertexId] | None = None,
    ) -> None:
        """`checkpoints`: None if they are off. `producers`: the vertices at the other ends of the input edges."""
        self.id = id
        self.name = name
        self.chain = chain
        self.gate = gate
        self.partitions = partitions
        self.channels = [c for p in partitions for c in p.channels]
        self.state = ExecutionState.DEPLOYING
        self.checkpoints = checkpoints
        self._pace = None if chain.source is None else chain.source.pace
        self.valve = WatermarkValve(gate.channels())
        self._metrics = metrics
        self._clock = clock
        self._producers = producers or {}
        self._received = 0
        """Records that came over the edges."""
        self._orders: deque[Callable[[], None]] = deque()
        """The JobManager's messages since a trigger that waits until the current batch is done."""
        self._ending = False
        """Whether the input has ended, and an operator still has something of it."""
        self._draining = False
        self._drained = False
        self._may_end = False
        self._wake_at_ns: int | None = 0
        """When to poll the source again; None: only when woken; 0: at once. Mailbox thread only."""
        self._woken = False
        """Set by any thread, reset only before a poll: so no wake is lost."""
        self._blocked = False
        """Whether the last step found no credit; the next one comes with a frame."""
        self._blocked_since_ns = 0
        self._look_again_ns: int | None = None
        """When to ask again an operator that was not ready."""

    @property
    def is_finished(self) -> bool:
        """Whether everything was read, processed and sent."""
        return self.state is ExecutionState.FINISHED

    @property
    def wake_at_ns(self) -> int | None:
        """When to step even if nothing arrives; None: never."""
        times = [self._usual_wake_ns]
        if self.checkpoints is not None:
            times.append(self.checkpoints.deadline_ns)
        if self.chain.keeps_time and not (self._draining or self._blocked):
            times.append(self._processing_time_ns())
        return min((t for t in times if t is not None), default=None)

    def _processing_time_ns(self) -> int | None:
        """When the wall clock should reach what an operator waits for; asked again, as the clock may jump."""
        due_ms = self.chain.next_processing_time_ms
        if due_ms is None:
            return None
        ahead_ms = min(max(0, due_ms - self._clock.now_ms()), _LOOK_AT_CLOCK_MS)
        return self._clock.monotonic_ns() + ahead_ms * 1_000_000

    @property
    def _usual_wake_ns(self) -> int | None:
        if self._draining or self._blocked:
            return None
        if self._look_again_ns is not None:
            return self._look_again_ns
        if self.chain.source is None or self._ending:
            return None
        return 0 if self._woken else self._wake_at_ns

    def wake(self) -> None:
        """Poll the source in the next step; may be called from any thread."""
        self._woken = True

    def open(self, finished: bool = False) -> None:
        """Open the operators. `finished`: the task had done all its work before the checkpoint it is restored from."""
        self.chain.open()
        if finished:
            # Its producers had finished before it: they send no barrier.
            for channel in self.gate.channels():
                self.gate.end_channel(channel)
                if self.checkpoints is not None:
                    self.checkpoints.channel_ended(channel)
            self._end_output()

    def start(self) -> None:
        """Set the event time of the checkpoint, before the first record and after the batches that were in flight."""
        if self._draining:
            if self.chain.source is not None:
                self.chain.source.leave_alignment()
            return
        clocks = self.chain.restored_clocks
        if clocks.some_reached_ms != MIN_TIMESTAMP:
            self.valve = WatermarkValve(self.gate.channels(), clocks.some_reached_ms)
        if clocks.all_reached_ms != MIN_TIMESTAMP:
            self.chain.process_watermark(clocks.all_reached_ms)
        self.chain.start()
        if clocks.some_reached_ms > clocks.all_reached_ms:
            self.chain.process_watermark(clocks.some_reached_ms)

    # ---- messages of the JobManager ----

    def order(self, action: Callable[[], None]) -> None:
        """Do something between two batches: now, or after the orders that wait already."""
        if self._orders:
            self._orders.append(action)
        else:
            action()

    def trigger(self, barrier: CheckpointBarrier) -> None:
        """Take part in a checkpoint; a source does so when the current batch is processed."""
        assert self.checkpoints is not None
        checkpoints = self.checkpoints
        if self._orders or (self.chain.source is not None and self.chain.has_more):
            self._orders.append(lambda: checkpoints.triggered(barrier))
        else:
            checkpoints.triggered(barrier)

    def checkpoint_completed(self, checkpoint_id: int, final: bool) -> None:
        """A checkpoint is complete; after the final one the task may end."""
        assert self.checkpoints is not None
        self.checkpoints.completed(checkpoint_id)
        if final and self._draining:
            self._may_end = True

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        assert self.checkpoints is not None
        self.checkpoints.aborted(checkpoint_id)

    # ---- work ----

    def step(self, now_ns: int) -> bool:
        """Do one unit of work; False if there was nothing to do or nowhere to put the result."""
        account = self._metrics.time
        checkpoints = self.checkpoints
        if (
            checkpoints is not None
            and (self._orders or checkpoints.is_due)
            and self._step_checkpoints(checkpoints, now_ns)
        ):
            return True
        if self._draining:
            return self._drain(now_ns)
        for channel in self.channels:
            if not channel.is_available:
                account.switch(TaskState.BACKPRESSURED, now_ns)
                if not self._blocked:
                    self._blocked, self._blocked_since_ns = True, now_ns
                return False
        if self._blocked:
            self._blocked = False
            if self._pace is not None:
                self._pace.waited_for_credit(now_ns - self._blocked_since_ns)
        for partition in self.partitions:
            partition.now_ns = now_ns
        # Before asking whether operators are ready: this may make one ready.
        fired = self.chain.keeps_time and self.chain.on_processing_time(self._clock.now_ms())
        ready = self.chain.is_ready()
        if self._pace is not None:
            self._pace.was_ready(ready)
        if fired:
            account.switch(TaskState.BUSY, now_ns)
            return True
        if not ready:
            account.switch(TaskState.BACKPRESSURED, now_ns)
            self._look_again_ns = now_ns + _LOOK_AGAIN_NS
            return False
        self._look_again_ns = None
        if self.chain.has_more:
            account.switch(TaskState.BUSY, now_ns)
            self._process_more()
            return True
        if self._ending:
            if self.chain.is_settled:
                self._finish()
                return True
            account.switch(TaskState.IDLE, now_ns)
            return False
        if self.chain.source is not None:
            return self._step_source(now_ns)
        found = self.gate.poll()
        if found is None:
            account.switch(TaskState.IDLE, now_ns)
            return False
        account.switch(TaskState.BUSY, now_ns)
        input_index, channel_id, element = found
        if isinstance(element, Batch):
            self._received += element.num_rows
            self.chain.process(element, input_index)
        elif isinstance(element, CheckpointBarrier):
            if self.checkpoints is not None:
                self.checkpoints.barrier_received(channel_id, element)
        elif isinstance(element, Watermark):
            self._advance_time(self.valve.watermark_received(channel_id, element.timestamp_ms))
        elif isinstance(element, WatermarkStatus):
            self._advance_time(self.valve.status_received(channel_id, idle=element.idle))
        elif isinstance(element, EndOfInput):
            self._channel_ended(input_index, channel_id)
        return True

    def _process_more(self) -> None:
        self.chain.process_more()
        if self._pace is not None and not self.chain.has_more:
            self._pace.batch_processed()

    def _advance_time(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, AdvanceClock):
                self.chain.process_watermark(action.watermark_ms)
            else:
                self.chain.process_status(action.idle)

    def _channel_ended(self, input_index: int, channel_id: ChannelId) -> None:
        """A checkpoint that waits for this channel comes first: in it, the input has not ended yet."""
        ended = self.gate.end_channel(channel_id)
        if self.checkpoints is not None:
            self.checkpoints.channel_ended(channel_id)
        self._advance_time(self.valve.channel_ended(channel_id))
        if ended:
            self.chain.end_input(input_index)
        if self.gate.all_ended:
            self._finish()

    def _step_checkpoints(self, checkpoints: SubtaskCheckpoints, now_ns: int) -> bool:
        """Barriers that overtake, then the JobManager's messages; returns whether that was the step."""
        moved = checkpoints.step()
        if self._orders:
            if self.chain.has_more:  # without checking credit: a barrier waits, and the rest is bounded
                if not self.chain.is_ready():
                    return moved
                if self._blocked and self._pace is not None:  # so far it has waited; what comes now is work
                    self._pace.waited_for_credit(now_ns - self._blocked_since_ns)
                self._metrics.time.switch(TaskState.BUSY, now_ns)
                self._process_more()
                if self._blocked:
                    self._blocked_since_ns = self._clock.monotonic_ns()
                return True
            while self._orders:
                self._orders.popleft()()
            return True
        return moved

    def pause(self, now_ns: int) -> None:
        """The thread goes on to another task of the slot: that time is not this task's."""
        if self._metrics.time.state is TaskState.BUSY:
            self._metrics.time.switch(TaskState.IDLE, now_ns)

    def flush(self, before_ns: int | None = None) -> bool:
        """Send pending batches: all, or those that have waited since `before_ns`; returns whether there were any."""
        flushed = False
        for channel in self.channels:
            if channel.has_pending and (before_ns is None or channel.pending_since_ns <= before_ns):
                channel.flush()
                flushed = True
        return flushed

    def output_type(self, operator: int, tag: str | None) -> RecordType:
        """The record type of an operator's main or side output."""
        found = self.chain.operators[operator]
        return found.output_type if tag is None else found.side_outputs[tag]

    def metrics(self, now_ns: int) -> SubtaskMetrics:
        """The current values; may be called from the control thread (it only reads numbers)."""
        m = self._metrics
        m.records_in = self.chain.records_read or self._received
        m.records_out = self.chain.records_written + sum(p.records_out for p in self.partitions)
        m.bytes_out = sum(c.bytes_out for c in self.channels)
        m.bytes_in = self.gate.bytes_in
        m.backlog = self.gate.backlog + sum(c.backlog for c in self.channels)
        m.credits = sum(c.credits.available for c in self.channels)
        m.event_time = self._event_time()
        return m.snapshot(now_ns)

    def _event_time(self) -> EventTime | None:
        made = self.chain.event_time()
        if made is not None or self.chain.source is not None:
            return made
        clock_ms = self.chain.clock_ms
        holding = self.valve.holding()
        if clock_ms == MIN_TIMESTAMP and len(holding) == len(self.gate.channels()):
            return None  # no channel has a watermark
        held_by = None
        if holding and clock_ms != MAX_WATERMARK:
            held_by = (self._producers[holding[0].edge], holding[0].producer)
        return event_time_of(clock_ms, self._clock.now_ms(), idle=self.valve.is_idle, held_by=held_by)

    def _step_source(self, now_ns: int) -> bool:
        account = self._metrics.time
        if not self._woken and (self._wake_at_ns is None or self._wake_at_ns > now_ns):
            account.switch(TaskState.IDLE, now_ns)
            return False
        self._woken = False  # a wake() from another thread after this line is not lost
        self._wake_at_ns = None
        source = self.chain.source
        assert source is not None
        account.switch(TaskState.BUSY, now_ns)
        answer = source.advance()
        if answer is None:
            self._wake_at_ns = 0
            if not self.chain.has_more:
                source.pace.batch_processed()
        elif isinstance(answer, Idle):
            account.switch(TaskState.IDLE, now_ns)
            self._wake_at_ns = answer.wake_at_ns
            return False
        elif isinstance(answer, Finished):
            self._finish()
        return True

    def _finish(self) -> None:
        # True only for a source: other tasks got the last watermark with the end of their channels.
        if not self._ending and self.chain.clock_ms != MAX_WATERMARK:
            self.chain.process_watermark(MAX_WATERMARK)
        self._ending = not self.chain.finish()
        if self._ending:
            return
        self._end_output()

    def _end_output(self) -> None:
        for channel in self.channels:
            channel.add_event(END_OF_INPUT)
        self._draining = True
        if self.checkpoints is not None:
            self.checkpoints.output_ended()

    def _drain(self, now_ns: int) -> bool:
        if not all(c.is_drained for c in self.channels):
            self._metrics.time.switch(TaskState.BACKPRESSURED, now_ns)
            return False
        self._metrics.time.switch(TaskState.IDLE, now_ns)
        if self.checkpoints is not None and not self._may_end:
            if not self._drained:
                self._drained = True
                self.checkpoints.drained()
            return False
        self.state = ExecutionState.FINISHED
        return True
