"""A slot: its tasks, the channels between them and to other slots. No thread, no socket, no clock of its own.

The mailbox loop (a real one on Spark, a simulated one in tests) calls `step` until it returns False, `flush` before it
waits, `receive_frame` and `receive_message` for what arrives, and `next_wake_ns` for how long it may wait.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Iterator
from typing import Protocol, assert_never

import msgspec

from tidegate.core.clock import Clock
from tidegate.core.errors import ProtocolError, StateCompatibilityError, TidegateError
from tidegate.core.failpoints import failpoint
from tidegate.core.ids import ChannelId, OperatorId, SlotId, SubtaskId, VertexId
from tidegate.core.options import Options
from tidegate.core.states import ExecutionState
from tidegate.core.subtask_info import SubtaskInfo
from tidegate.graph.blobs import load_in_slot
from tidegate.graph.job_graph import JobEdge, JobGraph, JobVertex
from tidegate.metrics.registry import TaskMetrics
from tidegate.operators.failures import OperatorError, describe_error, user_traceback
from tidegate.operators.source import SourceOperator
from tidegate.program.partitioning import Partitioning
from tidegate.protocol import messages as m
from tidegate.protocol.frames import BATCH, CREDIT, EVENT, DataHeader, data_header
from tidegate.records.batch import Batch
from tidegate.records.elements import CheckpointBarrier, EndOfInput, Watermark, WatermarkStatus
from tidegate.records.types import RecordType, projected
from tidegate.records.wire import (
    Event,
    decode_batch,
    decode_event,
    decode_frame,
    encode_columns,
    encode_event,
    encode_frame,
)
from tidegate.state.operator_states import OperatorStates, StatesContext
from tidegate.taskmanager.barriers.alignment import BarrierAlignment
from tidegate.taskmanager.barriers.subtask_checkpoints import CheckpointHost, SubtaskCheckpoints
from tidegate.taskmanager.chain import ChainHost, OperatorChain
from tidegate.taskmanager.credits import SenderCredits
from tidegate.taskmanager.input_gate import InputGate
from tidegate.taskmanager.local_directories import LocalDirectories
from tidegate.taskmanager.output_channel import OutputChannel
from tidegate.taskmanager.partitioners import make_partitioner, reachable_consumers
from tidegate.taskmanager.portions import Receiver
from tidegate.taskmanager.slot_restore import SlotRestore
from tidegate.taskmanager.task import ResultPartition, Task
from tidegate.taskmanager.upload_thread import Uploads


class Network(Protocol):
    """Frames to other slots: queued at once, sent in order, never blocking."""

    def send(self, peer: SlotId, header: bytes, body: object) -> None:
        """Queue a frame; `body` is any buffer."""
        ...


class Slot:
    """The subtasks that a `Deploy` message puts in one slot."""

    def __init__(
        self,
        slot_id: SlotId,
        job_id: str,
        attempt: int,
        deploy: m.Deploy,
        options: Options,
        clock: Clock,
        network: Network,
        send_message: Callable[[m.SlotMessage], None],
        wake: Callable[[], None],
        uploads: Uploads,
    ) -> None:
        self.slot_id = slot_id
        self._graph = JobGraph.decode(deploy.job_graph)
        self._placement = deploy.placement
        self._attempt = attempt
        self._options = options
        self._clock = clock
        self._local_directories = LocalDirectories()
        self._network = network
        self._send_message = send_message
        self._wake = wake
        self._uploads = uploads
        self._restore = SlotRestore(deploy)
        self._timeout_ns = options.buffer_timeout * 1_000_000
        self._gates: dict[SubtaskId, InputGate] = {}
        self._outputs: dict[ChannelId, OutputChannel] = {}
        self._input_types: dict[int, RecordType] = {}
        self._collect_sent: dict[tuple[str, int], int] = {}
        self._collect_taken: dict[tuple[str, int], int] = {}
        self._open_channels: dict[SlotId, int] = {}
        self._host = ChainHost(
            job_id,
            attempt,
            clock,
            options,
            wake,
            lambda operator, subtask: send_message(m.RequestSplit(operator, subtask)),
            self._send_to_driver,
            self._driver_backlog,
            lambda operator, subtask, group, ms: send_message(
                m.ReportWatermark(group, operator, subtask, ms)
            ),
            lambda operator, subtask, dropped, watermark_ms, late_by_ms: send_message(
                m.LateRecordsDropped(operator, subtask, dropped, watermark_ms, late_by_ms)
            ),
            self._make_states,
        )
        self.failure: m.TaskFailed | None = None
        self.current: Task | None = None
        """The task that is in a step, or is opened, started, notified or closed; read by the control thread."""
        mine = [SubtaskId(d.vertex, d.subtask) for d in deploy.subtasks]
        for subtask in mine:
            self._gates[subtask] = self._make_gate(subtask)
        self.tasks: list[Task] = []
        self._by_operator: dict[tuple[str, int], Task] = {}
        for subtask in mine:
            self._guarded(subtask, lambda s=subtask: self._make_task(s))  # type: ignore[misc]
        # Consumers before producers: process what is there before more is produced.
        self.tasks.sort(key=lambda t: -t.id.vertex)

    # ---- life cycle ----

    def open(self) -> None:
        """Open every task; reports INITIALIZING, then RUNNING, or the failure."""
        for task in self._in_turn():
            self._set_state(task, ExecutionState.INITIALIZING)
            if not self._guarded(task.id, lambda t=task: self._open(t)):  # type: ignore[misc]
                return
            self._set_state(task, ExecutionState.RUNNING)
        for task in self._in_turn():
            self._guarded(task.id, lambda t=task: self._put_back(t))  # type: ignore[misc]
            self._guarded(task.id, task.start)

    def _in_turn(self) -> Iterator[Task]:
        """The tasks, each the current one while it is its turn: what it warns of has its name."""
        try:
            for task in self.tasks:
                self.current = task
                yield task
        finally:
            self.current = None

    def _open(self, task: Task) -> None:
        failpoint("restore.before_open")
        task.open(self._restore.is_finished(task.id))

    @property
    def is_done(self) -> bool:
        return self.failure is None and all(t.is_finished for t in self.tasks)

    def close(self) -> None:
        """Close every task; unfinished ones are reported as canceled (or failed, if one did)."""
        for task in self._in_turn():
            for error in task.chain.close():
                self._fail(task.id, error)
            failed = self.failure is not None and (self.failure.vertex, self.failure.subtask) == task.id
            if not task.is_finished and not failed:
                self._set_state(task, ExecutionState.CANCELED)
        self._local_directories.remove()

    def release(self) -> None:
        """Release memory and local files and do nothing else, as the end of a killed process would."""
        for task in self.tasks:
            for operator in task.chain.operators:
                operator.context.states.close()
        self._local_directories.remove()

    def fail(self, error: BaseException) -> None:
        """Report an error outside the tasks (a bug, or a peer that broke the protocol) as the current task's."""
        task = self.current or self.tasks[0]
        self._fail(task.id, error)

    # ---- the mailbox loop's calls ----

    def step(self) -> bool:
        """Let every task do one unit of work; returns whether anything moved."""
        if self.failure is not None:
            return False
        moved = self._take_posted()
        now_ns = self._clock.monotonic_ns()
        for task in self.tasks:
            if task.is_finished:
                continue
            self.current = task
            try:
                if task.step(now_ns):
                    moved = True
                    if task.is_finished:
                        self._send_message(
                            m.TaskStateChanged(task.id.vertex, task.id.index, ExecutionState.FINISHED)
                        )
                if self._timeout_ns:
                    task.flush(now_ns - self._timeout_ns)
                now_ns = self._clock.monotonic_ns()
                task.pause(now_ns)
            except BaseException as e:  # noqa: BLE001 - whatever it is, it is reported
                self._fail(task.id, e)
                return True
        self.current = None
        return moved

    def _take_posted(self) -> bool:
        """Run what the upload thread posted."""
        posted = self._uploads.posted
        if not posted:
            return False
        while posted:
            posted.popleft()()
        return True

    def flush(self) -> bool:
        """Send all batches that wait for more; called when there is nothing else to do."""
        if self.failure is not None:
            return False
        flushed = False
        for task in self.tasks:
            try:
                flushed = task.flush() or flushed
            except BaseException as e:  # noqa: BLE001 - a record that does not fit its type is found when it is encoded
                self._fail(task.id, e)
                return True
        return flushed

    def next_wake_ns(self) -> int | None:
        """The monotonic time of the next step even if nothing arrives; None: only when something arrives."""
        times = [t.wake_at_ns for t in self.tasks if not t.is_finished]
        return min((t for t in times if t is not None), default=None)

    def receive_message(self, message: m.TaskMessage) -> None:
        """A message of the JobManager for the tasks."""
        match message:
            case m.AssignSplits(operator, subtask, splits):
                self._order_source(operator, subtask, lambda source: source.add_splits(list(splits)))
            case m.NoMoreSplits(operator, subtask):
                self._order_source(operator, subtask, lambda source: source.no_more_splits())
            case m.AlignWatermarks(group, watermark_ms):
                for task in self.tasks:
                    if task.chain.source is not None and task.chain.source.align(group, watermark_ms):
                        task.wake()
            case m.CollectedTaken(operator, subtask, sequence):
                self._collect_taken[(operator, subtask)] = sequence
            case m.TriggerCheckpoint(checkpoint_id, timestamp_ms):
                unaligned = self._options.checkpoint_unaligned
                barrier = CheckpointBarrier(checkpoint_id, timestamp_ms, unaligned)
                self._for_each_task(lambda task: task.trigger(barrier))
            case m.NotifyCheckpointComplete(checkpoint_id, final):
                self._for_each_task(lambda task: task.checkpoint_completed(checkpoint_id, final))
            case m.NotifyCheckpointAborted(checkpoint_id):
                self._for_each_task(lambda task: task.checkpoint_aborted(checkpoint_id))
            case _:
                assert_never(message)

    def _order_source(
        self, operator: OperatorId, subtask: int, order: Callable[[SourceOperator], None]
    ) -> None:
        task = self._by_operator.get((operator, subtask))
        if task is None or task.chain.source is None:
            raise ProtocolError(f"no source {operator} subtask {subtask} in slot {self.slot_id}")
        source = task.chain.source
        self._guarded(task.id, lambda: task.order(lambda: order(source)))
        task.wake()

    def _for_each_task(self, action: Callable[[Task], None]) -> None:
        for task in self._in_turn():
            if not task.is_finished and task.checkpoints is not None:
                self._guarded(task.id, lambda t=task: action(t))  # type: ignore[misc]

    def receive_frame(self, header: DataHeader, body: memoryview | bytes) -> None:
        """Take a frame from another slot. One that does not fit raises `ProtocolError`."""
        channel = header.channel
        if header.kind == CREDIT:
            output = self._outputs.get(channel)
            if output is None:
                raise ProtocolError(f"credit for unknown channel {channel}")
            producer = SubtaskId(self._graph.edges[channel.edge].source, channel.producer)
            self._guarded(producer, lambda: output.granted(header.extra))
            return
        if channel.edge >= len(self._graph.edges):
            raise ProtocolError(f"frame for unknown channel {channel}")
        edge = self._graph.edges[channel.edge]
        gate = self._gates.get(SubtaskId(edge.target, channel.consumer))
        if gate is None or not gate.has_channel(channel):
            raise ProtocolError(f"frame for unknown channel {channel}")
        element: Batch | Event
        if header.kind == BATCH:
            element = decode_frame(body, self._input_types[edge.id])
        else:
            element = decode_event(body)
            if isinstance(element, EndOfInput):
                self._open_channels[self._slot_of(edge.source, channel.producer)] -= 1
        gate.bytes_in += header.length
        gate.receive(channel, element, header.extra)

    def needs(self, peer: SlotId) -> bool:
        """Whether a channel from or to this peer has not ended: losing it now loses data."""
        if self.failure is not None:
            return False
        if self._open_channels.get(peer, 0) > 0:
            return True
        return any(
            not output.ended and self._slot_of(self._graph.edges[c.edge].target, c.consumer) == peer
            for c, output in self._outputs.items()
        )

    def peers(self) -> set[SlotId]:
        """The other slots that this one exchanges data with."""
        out = {self._slot_of(self._graph.edges[c.edge].target, c.consumer) for c in self._outputs}
        return (out | set(self._open_channels)) - {self.slot_id}

    def metrics(self) -> tuple[tuple[VertexId, bytes], ...]:
        """The metrics of all tasks, encoded; may be called from the control thread."""
        now_ns = self._clock.monotonic_ns()
        return tuple((t.id.vertex, msgspec.msgpack.encode(t.metrics(now_ns))) for t in self.tasks)

    # ---- wiring ----

    def _slot_of(self, vertex: int, subtask: int) -> SlotId:
        return self._placement[vertex][subtask]

    def _make_gate(self, subtask: SubtaskId) -> InputGate:
        channels: dict[ChannelId, int] = {}
        for edge in self._graph.inputs(subtask.vertex):
            producers = self._graph.vertex(edge.source).parallelism
            consumers = self._graph.vertex(edge.target).parallelism
            for producer in range(producers):
                if subtask.index in reachable_consumers(edge.pointwise, producer, producers, consumers):
                    channel = ChannelId(edge.id, producer, subtask.index)
                    channels[channel] = edge.input
                    owner = self._slot_of(edge.source, producer)
                    if owner != self.slot_id:
                        self._open_channels[owner] = self._open_channels.get(owner, 0) + 1
        options = self._options
        alignment = BarrierAlignment(
            channels,
            at_least_once=options.checkpoint_mode == "at_least_once",
            timeout_ms=options.checkpoint_alignment_timeout or None,
        )
        return InputGate(
            channels, options.buffers_per_channel, options.floating_buffers, self._grant, alignment
        )

    def _make_task(self, subtask: SubtaskId) -> None:
        vertex = self._graph.vertex(subtask.vertex)
        metrics = TaskMetrics(subtask.index, self._clock.monotonic_ns())
        exchanges: dict[tuple[int, str | None], list[Receiver]] = {}
        partitions = []
        users_partition = False
        for edge in self._graph.outputs(vertex.id):
            partitioning: Partitioning = load_in_slot(edge.blob, vertex.operators[edge.source_operator].name)
            users_partition |= partitioning.runs_users_code
            partition = self._make_partition(edge, vertex, subtask.index, partitioning)
            partitions.append(partition)
            exchanges.setdefault((edge.source_operator, edge.tag), []).append(partition.emit)
        made: list[Task] = []

        def send_event(operator: int, event: Watermark | WatermarkStatus) -> None:
            for edge, partition in zip(self._graph.outputs(vertex.id), partitions, strict=True):
                if edge.source_operator == operator:
                    partition.send_event(event)

        def wake() -> None:
            for task in made:
                task.wake()
            self._wake()

        host = dataclasses.replace(self._host, wake=wake)
        chain = OperatorChain(
            vertex, subtask.index, host, metrics, exchanges, send_event, users_partition=users_partition
        )
        for edge in self._graph.inputs(vertex.id):
            self._input_types[edge.id] = chain.operators[0].input_types[edge.input]
        producers = {edge.id: edge.source for edge in self._graph.inputs(vertex.id)}
        gate = self._gates[subtask]
        storage = self._restore.storage
        checkpoints = None
        if storage is not None and self._options.checkpoint_interval:
            host_of = CheckpointHost(self._attempt, self._clock, storage, self._uploads, self._send_message)
            outputs = [channel for partition in partitions for channel in partition.channels]
            checkpoints = SubtaskCheckpoints(subtask, chain, gate, outputs, host_of)
        task = Task(
            subtask, vertex.name, chain, gate, partitions, metrics, self._clock, checkpoints, producers
        )
        self.tasks.append(task)
        self._by_operator[(vertex.operators[0].id, subtask.index)] = task
        made.append(task)

    def _put_back(self, task: Task) -> None:
        """Put batches that were in flight at the checkpoint back where they were, before all others."""
        for direction, channel, data in self._restore.in_flight(task.id):
            if direction == "in":
                record_type = self._input_types[channel.edge]
                task.gate.put_back(channel, self._decode_stored(data, record_type, task))
            else:
                edge = self._graph.edges[channel.edge]
                record_type = task.output_type(edge.source_operator, edge.tag)
                if edge.columns is not None:
                    record_type = projected(record_type, edge.columns)
                batch = self._decode_stored(data, record_type, task)
                self._outputs[channel].add(batch, self._clock.monotonic_ns())

    def _decode_stored(self, data: bytes, record_type: RecordType, task: Task) -> Batch:
        """Decode a batch of a checkpoint; a pickle is read only if the program allows that by name."""
        if record_type.is_object and not self._options.checkpoint_allow_pickle:
            raise StateCompatibilityError(
                f"the checkpoint holds records without a type that were on their way at {task.name!r}: pickles, and "
                f"reading one runs code. If nobody else can write to checkpoint.dir, set checkpoint.allow_pickle=true; "
                f"else start without state"
            )
        return decode_batch(data, record_type)

    def _make_states(self, vertex: JobVertex, subtask: SubtaskInfo) -> OperatorStates:
        restored = self._restore.operator(SubtaskId(vertex.id, subtask.subtask_index), subtask.operator_id)
        context = StatesContext(
            subtask=subtask,
            clock=self._clock,
            options=self._options,
            local_directory=self._local_directories.make,
        )
        return OperatorStates(context, restored)

    def _make_partition(
        self, edge: JobEdge, vertex: JobVertex, producer: int, partitioning: Partitioning
    ) -> ResultPartition:
        target = self._graph.vertex(edge.target)
        reachable = reachable_consumers(edge.pointwise, producer, vertex.parallelism, target.parallelism)
        channels = []
        for consumer in reachable:
            channel = ChannelId(edge.id, producer, consumer)
            slot = self._slot_of(edge.target, consumer)
            remote = slot != self.slot_id
            output = OutputChannel(
                channel,
                SenderCredits(self._options.buffers_per_channel),
                self._options.buffer_size,
                self._deliver_remote if remote else self._deliver_local,
                remote=remote,
                as_rows=edge.as_rows,
            )
            self._outputs[channel] = output
            channels.append(output)
        partitioner = make_partitioner(
            partitioning, len(channels), target.max_parallelism, producer, target.operators[0].name
        )
        return ResultPartition(partitioner, channels, self._timeout_ns == 0, edge.columns)

    # ---- channels ----

    def _deliver_local(self, channel: ChannelId, element: Batch | Event, backlog: int) -> int:
        target = self._graph.edges[channel.edge].target
        size = element.nbytes() if isinstance(element, Batch) else 0
        gate = self._gates[SubtaskId(target, channel.consumer)]
        gate.bytes_in += size
        gate.receive(channel, element, backlog)
        return size

    def _deliver_remote(self, channel: ChannelId, element: Batch | Event, backlog: int) -> int:
        peer = self._slot_of(self._graph.edges[channel.edge].target, channel.consumer)
        if isinstance(element, Batch):
            body = encode_frame(element)
            size = memoryview(body).nbytes
            self._network.send(peer, data_header(BATCH, channel, size, backlog), body)
            return size
        event = encode_event(element)
        self._network.send(peer, data_header(EVENT, channel, len(event), backlog), event)
        return len(event)

    def _grant(self, channel: ChannelId, n: int) -> None:
        owner = self._slot_of(self._graph.edges[channel.edge].source, channel.producer)
        if owner == self.slot_id:
            self._outputs[channel].granted(n)
        else:
            self._network.send(owner, data_header(CREDIT, channel, 0, n), b"")

    # ---- the driver's side ----

    def _send_to_driver(self, operator: OperatorId, subtask: int, batch: Batch) -> None:
        sequence = self._collect_sent.get((operator, subtask), 0) + 1
        self._collect_sent[(operator, subtask)] = sequence
        data = encode_columns(batch.columns).to_pybytes()
        self._send_message(m.CollectedBatch(operator, subtask, sequence, data))

    def _driver_backlog(self, operator: OperatorId, subtask: int) -> int:
        key = (operator, subtask)
        return self._collect_sent.get(key, 0) - self._collect_taken.get(key, 0)

    # ---- failures and states ----

    def _set_state(self, task: Task, state: ExecutionState) -> None:
        task.state = state
        self._send_message(m.TaskStateChanged(task.id.vertex, task.id.index, state))

    def _guarded(self, subtask: SubtaskId, action: Callable[[], object]) -> bool:
        try:
            action()
        except BaseException as e:  # noqa: BLE001 - whatever it is, it is reported
            self._fail(subtask, e)
            return False
        return True

    def _fail(self, subtask: SubtaskId, error: BaseException) -> None:
        """Report the first failure of the slot; later ones are its consequences."""
        if self.failure is not None:
            return
        vertex = self._graph.vertex(subtask.vertex)
        if isinstance(error, OperatorError) and error.__cause__ is not None:
            cause = error.__cause__
            operator, position, record = error.operator, error.position, error.record
            trace = user_traceback(cause)
        else:
            # Our own error: show our frames, unless it is a message to the user already.
            cause, operator, position, record = error, vertex.name, "", ""
            known = isinstance(error, TidegateError)
            trace = user_traceback(error) if known else "".join(traceback.format_exception(error))
        self.failure = m.TaskFailed(
            subtask.vertex, subtask.index, operator, describe_error(cause), trace, position, record
        )
        self._send_message(self.failure)
