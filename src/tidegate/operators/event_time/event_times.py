"""`EventTimes`: timestamps in, watermarks out, for sources and for `assign_timestamps_and_watermarks`.

A watermark is sent every `watermark.interval` (after every batch if 0), starting one interval after the first record,
and never before a record it was derived from: the operator calls `tell` between batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tidegate.api.watermarks import WatermarkStrategy
from tidegate.metrics.snapshot import EventTime, event_time_of
from tidegate.operators.event_time.split_watermarks import GeneratorFailure, SplitWatermarks
from tidegate.operators.event_time.timestamps import TimestampAssigner
from tidegate.operators.failures import OperatorError
from tidegate.operators.operator import OperatorContext
from tidegate.records.batch import Batch
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.records.types import brief

GENERATORS: Final = "$generators"
"""The name of the operator state that holds how far each split is."""


class EventTimes:
    """The event time of one subtask's output. Mailbox thread only."""

    def __init__(
        self, strategy: WatermarkStrategy, context: OperatorContext, send_watermark: Callable[[int], None]
    ) -> None:
        now_ms = context.clock.now_ms()
        self.watermarks = SplitWatermarks(strategy, context.subtask_index, now_ms, context.parallelism)
        self._strategy = strategy
        self._context = context
        self._send_watermark = send_watermark
        self._assigner = TimestampAssigner(strategy, context.operator_name)
        self._interval_ms = context.options.watermark_interval
        self._told_ms = context.clock.now_ms()
        self._has_begun = False
        self._refused = 0
        alignment = strategy.alignment
        # Until the group's watermark arrives, some other source of it has no watermark yet.
        self._limit_ms = None if alignment is None else MIN_TIMESTAMP + alignment.max_drift_ms
        self.watermarks.restore(context.states.entries(GENERATORS), self._told_ms)

    def assign(self, batch: Batch, split: str | None) -> Batch | None:
        """The batch with timestamps, which count from now on; None if no record has one. Emit it before `tell`."""
        if not self._has_begun:
            self._has_begun, self._told_ms = True, self._context.clock.now_ms()
        stamped, missing = self._assigner.assign(batch)
        if missing is not None and self._strategy.missing is not None:
            self._context.counter("records_without_timestamp").inc(missing.num_rows)
            self._context.emit_side(self._strategy.missing.id, missing)
        if stamped is None:
            return None
        if self.watermarks.is_idle:  # active again, before the record
            self._context.emit_status(False)
            self.report(self.watermarks.emitted_ms)
            self.watermarks.is_idle = False
        try:
            self.watermarks.observe(split, stamped, self._context.clock.now_ms())
        except GeneratorFailure as e:
            at = "" if stamped.origin is None else stamped.origin.at(e.row)
            raise OperatorError(self._context.operator_name, at, brief(stamped.rows[e.row])) from e.__cause__
        return stamped

    # ---- alignment with other sources ----

    @property
    def is_ahead(self) -> bool:
        """Whether this source must wait for the others of its group; records that it has read count, emitted or not."""
        return self._limit_ms is not None and self.watermarks.reached_ms > self._limit_ms

    def report(self, watermark_ms: int | None) -> None:
        """Report to the group how far this source is; None: it is idle."""
        if self._strategy.alignment is not None:
            self._context.report_watermark(self._strategy.alignment.group, watermark_ms)

    def align(self, group: str, watermark_ms: int) -> bool:
        """Take the watermark of the slowest of a group; returns whether this source was waiting and may go on now."""
        alignment = self._strategy.alignment
        if alignment is None or alignment.group != group:
            return False
        was_ahead = self.is_ahead
        self._limit_ms = watermark_ms + alignment.max_drift_ms
        if was_ahead and not self.is_ahead:
            self.watermarks.touch(self._context.clock.now_ms())  # it was quiet because it had to be
            return True
        return False

    # ---- watermarks ----

    @property
    def next_ms(self) -> int | None:
        """When `tell` has something to do; None: never."""
        times = []
        now_ms = self._context.clock.now_ms()
        if now_ms < self._told_ms:  # the wall clock was set back: do not wait until it has caught up
            self._told_ms = now_ms
            self.watermarks.touch(now_ms)
        if self.is_ahead:  # the others may wait for its watermark, so do not wait for the interval
            return self._told_ms if self.watermarks.changed else None
        if self.watermarks.changed:
            at_once = not self._interval_ms or self.watermarks.punctuated
            times.append(self._told_ms if at_once else self._told_ms + self._interval_ms)
        elif self._strategy.kind == "generator":  # it may follow the wall clock
            times.append(self._told_ms + max(1, self._interval_ms))
        idle_ms = self.watermarks.next_idle_ms()
        if idle_ms is not None:
            times.append(idle_ms)
        return min(times, default=None)

    def tell(self, now_ms: int, splits: Iterable[str] | None = None, waiting: Iterable[str] = ()) -> None:
        """Send what has changed. A reader reads `splits` now and those `waiting` later, which must not become late."""
        if splits is not None:
            self.watermarks.keep(splits, now_ms, waiting)
        self._told_ms = now_ms
        status, watermark_ms = self.watermarks.advance(now_ms)
        if self.watermarks.refused > self._refused:
            self._context.counter("watermarks_refused").inc(self.watermarks.refused - self._refused)
            self._refused = self.watermarks.refused
        if status is False:
            self._context.emit_status(False)
            self.report(self.watermarks.emitted_ms)
        if watermark_ms is not None:
            self._send_watermark(watermark_ms)
        if status is True:
            self._context.emit_status(True)
            self.report(None)

    def describe(self, clock_ms: int) -> EventTime:
        """How far event time is, and the split that it waits for."""
        now_ms = self._context.clock.now_ms()
        split, quiet_ms = self.watermarks.holder(now_ms)
        return event_time_of(clock_ms, now_ms, idle=self.watermarks.is_idle, split=split, quiet_ms=quiet_ms)

    def snapshot(self) -> None:
        """Store how far each split is. All subtasks get all entries: a split may be read elsewhere later."""
        self._context.states.put_entries(GENERATORS, self.watermarks.snapshot(), "union")
