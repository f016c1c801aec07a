"""`assign_timestamps_and_watermarks` in the middle of a program."""

from __future__ import annotations

from tidegate.metrics.snapshot import EventTime
from tidegate.operators.event_time.event_times import EventTimes
from tidegate.operators.failures import blame
from tidegate.operators.operator import Operator
from tidegate.records.batch import Batch
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP


class AssignTimestampsOperator(Operator):
    """Gives records new timestamps and the stream new watermarks; of the earlier ones only the last is passed on."""

    def open(self) -> None:
        """Restore the watermarks of the checkpoint."""
        self._times = EventTimes(self.operation.strategy, self.context, self._advance)

    def start(self) -> None:
        """Emit the restored watermark."""
        self._times.tell(self.context.clock.now_ms())

    def process(self, batch: Batch, input_index: int) -> None:
        with blame(self.context.operator_name):
            stamped = self._times.assign(batch, None)
        if stamped is not None:
            self.context.emit(stamped)

    def process_watermark(self, watermark_ms: int) -> None:
        """Ignore earlier watermarks, which mean other timestamps, except the end of input."""
        if watermark_ms == MAX_WATERMARK:
            self._advance(watermark_ms)

    def process_status(self, idle: bool) -> None:
        """Ignored: the strategy decides whether this stream is idle."""

    @property
    def next_processing_time_ms(self) -> int | None:
        """When a watermark is to be sent."""
        return None if self.clock_ms == MAX_WATERMARK else self._times.next_ms

    def on_processing_time(self, now_ms: int) -> None:
        with blame(self.context.operator_name):
            self._times.tell(now_ms)

    def event_time(self) -> EventTime | None:
        """How far the stream is that begins here; None before `open`."""
        times: EventTimes | None = getattr(self, "_times", None)
        return None if times is None else times.describe(self.clock_ms)

    def snapshot(self, checkpoint_id: int) -> None:
        self._times.snapshot()

    def _advance(self, watermark_ms: int) -> None:
        self.clock_ms = max(self.clock_ms, watermark_ms, MIN_TIMESTAMP)
        self.context.emit_watermark(self.clock_ms)
