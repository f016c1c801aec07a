"""The contract between an operator and the task that runs it.

One thread (the slot's mailbox thread) makes every call, in this order: construct, `open`, any number of `process` and
`end_input` (once per input), `finish` after the last input has ended, `close` (also after a failure, then without
`finish`). An operator emits by calling `context.emit`, which returns when all operators chained after it are done.

Between batches: `process_watermark` when event time advances (the last one, before `finish`, is `MAX_WATERMARK`),
`process_status` when the stream becomes idle or active, and `on_processing_time` when `next_processing_time_ms` is due.

With checkpoints, at any time between `open` and `close` (also after `finish`): `snapshot` of a checkpoint,
then later its `checkpoint_completed` or `checkpoint_aborted`. State lives in `context.states`: what is
there when `snapshot` returns is in the checkpoint, and is there again in `open` of the next attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.api.functions import RuntimeContext
from tidegate.api.source import Counter, Gauge
from tidegate.core.clock import Clock
from tidegate.core.options import Options
from tidegate.core.subtask_info import SubtaskContext, SubtaskInfo
from tidegate.metrics.snapshot import EventTime
from tidegate.operators.event_time.restored_clocks import RestoredClocks
from tidegate.records.batch import Batch
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.records.types import RecordType
from tidegate.state.operator_states import OperatorStates


@dataclass(frozen=True)
class ChainedAfter:
    """What a source must know of the operators chained after it."""

    may_run_users_code: bool = False
    """Whether they, or what partitions their output, may run the user's code: then nobody knows what a record costs."""
    most_objects: int | None = None
    """How many records to emit at once if they are Python objects, for functions that take them one by one. What is cut
    into portions later has left the caches by then: the Python chain takes an eighth longer from batches of 10,000."""


@dataclass(frozen=True, kw_only=True)
class OperatorContext(SubtaskContext):
    """What an operator may use; made by the task."""

    subtask: SubtaskInfo
    clock: Clock
    options: Options
    counter: Callable[[str], Counter]
    emit: Callable[[Batch], None]
    """Send a batch (never an empty one) to the main output."""
    emit_side: Callable[[str, Batch], None]
    """Send a batch to the side output with this tag id; dropped where nobody listens."""
    request_split: Callable[[], None]
    wake: Callable[[], None]
    send_to_driver: Callable[[Batch], None]
    driver_backlog: Callable[[], int]
    states: OperatorStates
    """The operator's state; restored before `open`."""
    emit_watermark: Callable[[int], None]
    """Send a watermark to every output, after what was emitted."""
    emit_status: Callable[[bool], None]
    """Say to every output whether this stream is idle."""
    gauge: Callable[[str], Gauge]
    """A named metric of this subtask that goes up and down."""
    report_watermark: Callable[[str, int | None], None]
    """Tell the JobManager how far this source is in its alignment group; None: it is idle."""
    report_dropped: Callable[[int, int, int], None]
    """Tell the JobManager of late records: how many were dropped in all, the watermark, how late the last ones are."""
    chained_after: ChainedAfter = ChainedAfter()
    """Of a source: what is chained after it."""

    def runtime_context(self) -> RuntimeContext:
        """The part that user functions see."""
        return RuntimeContext(subtask=self.subtask, counter=self.counter)


class Operator(ABC):
    """Turns batches into batches. Subclasses take (operation, input_types, output_type, side_outputs, context)."""

    def __init__(
        self,
        operation: Any,
        input_types: tuple[RecordType, ...],
        output_type: RecordType,
        side_outputs: dict[str, RecordType],
        context: OperatorContext,
    ) -> None:
        self.operation = operation
        self.input_types = input_types
        self.output_type = output_type
        self.side_outputs = side_outputs
        self.context = context
        self.name = context.operator_name

    def open(self) -> None:
        """Get ready; may call the user's `open`."""

    def start(self) -> None:
        """The first record is about to come, and all operators are open: repeat what downstream operators must know."""

    @abstractmethod
    def process(self, batch: Batch, input_index: int) -> None:
        """Handle a batch (never empty) of one input."""

    clock_ms: int = MIN_TIMESTAMP
    """The operator's event time: the last watermark."""

    def clocks_restored(self, clocks: RestoredClocks) -> None:
        """Every operator of the chain is open: where the subtasks of the checkpoint had the head's event time."""

    def process_watermark(self, watermark_ms: int) -> None:
        """Event time has advanced: set the clock, fire what is due, then emit the watermark (S3-19)."""
        self.clock_ms = watermark_ms
        self.on_event_time(watermark_ms)
        self.context.emit_watermark(watermark_ms)

    def on_event_time(self, watermark_ms: int) -> None:
        """Emit what was waiting for a time up to and including this."""

    def event_time(self) -> EventTime | None:
        """Of one that makes watermarks: how far they are and what holds them back; for the metrics, any thread."""
        return None

    def process_status(self, idle: bool) -> None:
        """No input has records for now, or (False) one has again."""
        self.context.emit_status(idle)

    @property
    def next_processing_time_ms(self) -> int | None:
        """When (wall clock) `on_processing_time` wants to be called; None: not at all. Asked between batches."""
        return None

    def on_processing_time(self, now_ms: int) -> None:
        """The wall clock has reached `next_processing_time_ms`: emit what is due."""

    def end_input(self, input_index: int) -> None:
        """Nothing follows on this input."""

    def finish(self) -> None:
        """Nothing follows on any input: emit and flush what is left."""

    def snapshot(self, checkpoint_id: int) -> None:
        """Put what is not in `context.states` already there; short. Raising declines the checkpoint."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """The checkpoint, and with it every earlier one, is complete: commit. Raising fails the task."""

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint was given up; its records belong to the next one."""

    def is_ready(self) -> bool:
        """Whether `process` may be called now; False back-pressures the task. Must not block."""
        return True

    @property
    def is_settled(self) -> bool:
        """Whether nothing of the input waits inside; asked after the last watermark, before `finish`."""
        return True

    def close(self) -> None:
        """Release everything; never raises over an earlier failure."""
