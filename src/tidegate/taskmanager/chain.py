"""A chain: the operators of one task, wired so that each calls the next directly with the same batch object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, cast

import msgspec

from tidegate.core.clock import Clock
from tidegate.core.ids import OperatorId
from tidegate.core.options import Options
from tidegate.core.subtask_info import SubtaskInfo
from tidegate.graph.job_graph import JobVertex
from tidegate.metrics.registry import OperatorMetrics, TaskMetrics
from tidegate.metrics.snapshot import EventTime
from tidegate.operators.columns.column_functions import ExpressionOperator
from tidegate.operators.event_time.restored_clocks import RestoredClocks, StoredClock, restored_clocks
from tidegate.operators.factory import build_operator
from tidegate.operators.operator import ChainedAfter, Operator, OperatorContext
from tidegate.operators.sink import SinkOperator
from tidegate.operators.source import SourceOperator
from tidegate.records.batch import Batch
from tidegate.records.elements import MIN_TIMESTAMP, Watermark, WatermarkStatus
from tidegate.state.operator_states import OperatorAsyncPart, OperatorStates
from tidegate.taskmanager.portions import MOST_ROWS, Portions, Receiver


@dataclass(frozen=True)
class ChainHost:
    """What the operators of a chain use of their slot."""

    job_id: str
    attempt: int
    clock: Clock
    options: Options
    wake: Callable[[], None]
    request_split: Callable[[OperatorId, int], None]
    send_to_driver: Callable[[OperatorId, int, Batch], None]
    driver_backlog: Callable[[OperatorId, int], int]
    report_watermark: Callable[[OperatorId, int, str, int | None], None]
    report_dropped: Callable[[OperatorId, int, int, int, int], None]
    states: Callable[[JobVertex, SubtaskInfo], OperatorStates]
    """The state of an operator subtask, restored if the checkpoint has any."""


WATERMARK: Final = "$watermark"
"""The name of the entry that holds a task's clock, with its head operator."""


def _no_event(operator: int, event: object) -> None:
    """The chain has no channels."""


class OperatorChain:
    """The operators of one subtask. `exchanges[(operator, tag)]` are the receivers outside the chain.

    `send_event(operator, event)` sends an event on all channels of an operator. `users_partition`: a user's function is
    called for each record that leaves the chain, for its key or its channel.
    """

    def __init__(
        self,
        vertex: JobVertex,
        subtask: int,
        host: ChainHost,
        metrics: TaskMetrics,
        exchanges: dict[tuple[int, str | None], list[Receiver]],
        send_event: Callable[[int, Watermark | WatermarkStatus], None] = _no_event,
        *,
        users_partition: bool = False,
    ) -> None:
        counts = [metrics.operator(spec.name) for spec in vertex.operators]
        receivers = {key: list(found) for key, found in exchanges.items()}
        built: list[Operator] = []
        portions: Portions | None = None
        after = ChainedAfter()
        for i in reversed(range(len(vertex.operators))):  # an operator must know its receivers
            outputs = {tag: _fan_out(found) for (op, tag), found in receivers.items() if op == i}
            if i == 0 and vertex.is_source:
                if any(o.operation.rows for o in built):
                    portions = Portions(host.clock)
                    outputs[None] = partial(portions.offer, receive=outputs.get(None, _drop))
                users_code = users_partition or any(o.operation.runs_user_code for o in built)
                after = ChainedAfter(users_code, None if portions is None else MOST_ROWS)
            behind = [built[link.target - i - 1] for link in vertex.links if link.source == i]
            times = _TimeOutput(behind, counts[i], partial(send_event, i))
            spec = vertex.operators[i]
            info = SubtaskInfo(
                job_id=host.job_id,
                attempt=host.attempt,
                operator_id=spec.id,
                operator_name=spec.name,
                subtask_index=subtask,
                parallelism=vertex.parallelism,
                max_parallelism=vertex.max_parallelism,
            )
            states = host.states(vertex, info)
            context = _context(info, states, host, metrics, outputs, counts[i], times, after)
            operator = build_operator(spec, context)
            built.insert(0, operator)
            for link in vertex.links:
                if link.target == i:
                    receivers.setdefault((link.source, link.tag), []).append(_chained(operator, counts[i]))
        for query in vertex.queries:
            first, *followers = cast("list[ExpressionOperator]", [built[i] for i in query])
            first.lead(followers, partial(_count_passed, [counts[i] for i in query]))
        self.operators = built
        self._timed = [o for o in built if _keeps_processing_time(o)]
        self._ready_checks = [o for o in built if type(o).is_ready is not Operator.is_ready]
        self._head = head = built[0]
        if not vertex.is_source and any(o.operation.rows for o in built):
            portions = Portions(host.clock)
        self._portions = portions
        """None: the chain is vectorised and takes batches whole."""
        self._head_counts = counts[0]
        self._sink_counts = [c for o, c in zip(built, counts, strict=True) if isinstance(o, SinkOperator)]
        self.source = head if isinstance(head, SourceOperator) else None
        self._opened = 0
        self._finished = 0
        self.restored_clocks = RestoredClocks()
        """The head's event time in the checkpoint; known when the head is open."""

    def open(self) -> None:
        """Open all operators, last first, so that each can emit from the start."""
        for operator in reversed(self.operators):
            self._opened += 1
            operator.open()
            if operator is self._head:
                self.restored_clocks = self._read_clocks()
            operator.context.states.check_claimed()
        for operator in self.operators:
            operator.clocks_restored(self.restored_clocks)

    def start(self) -> None:
        """The first record is about to come; operators may emit what was restored."""
        for operator in self.operators:
            operator.start()

    def process(self, batch: Batch, input_index: int) -> None:
        """Run a batch through the whole chain."""
        self._head_counts.records_in += batch.num_rows
        if self._portions is None:
            self._head.process(batch, input_index)
        else:
            self._portions.offer(batch, partial(self._head.process, input_index=input_index))

    @property
    def records_read(self) -> int:
        """How many records the source of the chain has emitted; 0 where there is none."""
        return 0 if self.source is None else self._head_counts.records_out

    @property
    def records_written(self) -> int:
        """How many records the sinks of the chain have received."""
        return sum(counts.records_in for counts in self._sink_counts)

    @property
    def has_more(self) -> bool:
        """Whether a part of the last batch still waits to be processed, by `process_more`."""
        return self._portions is not None and not self._portions.is_empty

    @property
    def rest(self) -> Batch | None:
        """The part of the last batch that still waits."""
        return None if self._portions is None else self._portions.rest

    def process_more(self) -> None:
        """Process the next part of a large batch."""
        assert self._portions is not None
        self._portions.step()

    def is_ready(self) -> bool:
        """Whether every operator can take records now."""
        return all(o.is_ready() for o in self._ready_checks)

    # ---- time ----

    def process_watermark(self, watermark_ms: int) -> None:
        """Event time has advanced at the head."""
        self._head.process_watermark(watermark_ms)

    def process_status(self, idle: bool) -> None:
        """The input of the head has become idle, or active again."""
        self._head.process_status(idle)

    @property
    def keeps_time(self) -> bool:
        """Whether an operator may wait for the wall clock."""
        return bool(self._timed)

    @property
    def next_processing_time_ms(self) -> int | None:
        """When the first operator wants to be called by the wall clock; None: none does."""
        asked = [o for o in self._timed if o is not self.source or not self.has_more]
        return min((t for o in asked if (t := o.next_processing_time_ms) is not None), default=None)

    def on_processing_time(self, now_ms: int) -> bool:
        """Call the operators that are due, in order; returns whether there were any.

        A source is left out while a part of its last batch waits: its watermark would overtake those records.
        """
        fired = False
        for operator in self._timed:
            if operator is self.source and self.has_more:
                continue
            due_ms = operator.next_processing_time_ms
            if due_ms is not None and due_ms <= now_ms:
                operator.on_processing_time(now_ms)
                fired = True
        return fired

    @property
    def clock_ms(self) -> int:
        return self._head.clock_ms

    def event_time(self) -> EventTime | None:
        """What the last operator that makes watermarks reports of them; None where there is none."""
        found = (operator.event_time() for operator in reversed(self.operators))
        return next((time for time in found if time is not None), None)

    def _read_clocks(self) -> RestoredClocks:
        context = self._head.context
        stored = [msgspec.json.decode(entry, type=StoredClock) for entry in context.states.entries(WATERMARK)]
        return restored_clocks(
            stored,
            context.subtask_index,
            context.parallelism,
            context.subtask.max_parallelism,
            keyed=context.states.is_keyed,
        )

    def end_input(self, input_index: int) -> None:
        """One input of the head has ended."""
        self._head.end_input(input_index)

    @property
    def is_settled(self) -> bool:
        """Whether no operator holds records of its input any more; asked at the end."""
        return all(o.is_settled for o in self.operators)

    def finish(self) -> bool:
        """All inputs have ended: finish the operators in order, each before the next; returns whether all are done.

        If not, an operator still holds records of its input (perhaps the last output of the one before it): call again
        when `is_settled`, and it goes on from there.
        """
        while self._finished < len(self.operators):
            operator = self.operators[self._finished]
            if not operator.is_settled:
                return False
            if self._finished:
                operator.end_input(0)
            operator.finish()
            self._finished += 1
        return True

    def snapshot(self, checkpoint_id: int) -> list[tuple[str, OperatorAsyncPart]]:
        """The synchronous part of all operators; their asynchronous parts by operator id."""
        parts: list[tuple[str, OperatorAsyncPart]] = []
        if self.clock_ms != MIN_TIMESTAMP:
            context = self._head.context
            at_least_once = context.options.checkpoint_mode == "at_least_once"
            stored = StoredClock(context.subtask_index, context.parallelism, self.clock_ms, at_least_once)
            context.states.put_entries(WATERMARK, [msgspec.json.encode(stored)], "union")
        for operator in self.operators:
            operator.snapshot(checkpoint_id)
            states = operator.context.states
            parts.append((operator.context.subtask.operator_id, states.snapshot(checkpoint_id)))
        return parts

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        for operator in self.operators:
            operator.checkpoint_completed(checkpoint_id)
            operator.context.states.checkpoint_completed(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        for operator in self.operators:
            operator.checkpoint_aborted(checkpoint_id)
            operator.context.states.checkpoint_aborted(checkpoint_id)

    def close(self) -> list[BaseException]:
        """Close every operator that was opened, even if some fail; returns the errors."""
        errors: list[BaseException] = []
        for operator in self.operators[len(self.operators) - self._opened :]:
            for close in (operator.close, operator.context.states.close):
                try:
                    close()
                except BaseException as e:  # noqa: BLE001 - whatever it is, it is reported
                    errors.append(e)
        self._opened = 0
        return errors


def _context(
    subtask: SubtaskInfo,
    states: OperatorStates,
    host: ChainHost,
    metrics: TaskMetrics,
    outputs: dict[str | None, Receiver],
    counts: OperatorMetrics,
    times: _TimeOutput,
    after: ChainedAfter,
) -> OperatorContext:
    main = outputs.get(None, _drop)
    me = subtask.operator_id, subtask.subtask_index

    def emit(batch: Batch) -> None:
        counts.records_out += batch.num_rows
        main(batch)

    def emit_side(tag: str, batch: Batch) -> None:
        outputs.get(tag, _drop)(batch)

    return OperatorContext(
        subtask=subtask,
        clock=host.clock,
        options=host.options,
        counter=metrics.counter,
        gauge=metrics.gauge,
        emit=emit,
        emit_side=emit_side,
        emit_watermark=times.watermark,
        emit_status=times.status,
        request_split=partial(host.request_split, *me),
        wake=host.wake,
        send_to_driver=partial(host.send_to_driver, *me),
        driver_backlog=partial(host.driver_backlog, *me),
        states=states,
        report_watermark=partial(host.report_watermark, *me),
        report_dropped=partial(host.report_dropped, *me),
        chained_after=after,
    )


class _TimeOutput:
    """Sends an operator's watermarks to the operators chained after it, in order, then to the channels."""

    def __init__(
        self,
        behind: list[Operator],
        counts: OperatorMetrics,
        send_event: Callable[[Watermark | WatermarkStatus], None],
    ) -> None:
        self._behind = behind
        self._counts = counts
        self._send_event = send_event

    def watermark(self, watermark_ms: int) -> None:
        self._counts.watermark_ms = watermark_ms
        for operator in self._behind:
            operator.process_watermark(watermark_ms)
        self._send_event(Watermark(watermark_ms))

    def status(self, idle: bool) -> None:
        for operator in self._behind:
            operator.process_status(idle)
        self._send_event(WatermarkStatus(idle))


def _keeps_processing_time(operator: Operator) -> bool:
    return type(operator).next_processing_time_ms is not Operator.next_processing_time_ms


def _count_passed(query: list[OperatorMetrics], records: int) -> None:
    for source, target in pairwise(query):
        source.records_out += records
        target.records_in += records


def _fan_out(receivers: list[Receiver]) -> Receiver:
    if len(receivers) == 1:
        return receivers[0]
    if not receivers:
        return _drop

    *others, last = receivers

    def to_all(batch: Batch) -> None:
        for receiver in others:
            receiver(batch.unshared())
        last(batch)

    return to_all


def _drop(batch: Batch) -> None:
    """The output has no receiver."""


def _chained(operator: Operator, counts: OperatorMetrics) -> Receiver:
    process = operator.process

    def receive(batch: Batch) -> None:
        counts.records_in += batch.num_rows
        process(batch, 0)

    return receive
