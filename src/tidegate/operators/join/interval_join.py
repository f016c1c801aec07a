"""The interval join: records of two keyed streams whose times are near, in pairs; outer joins emit the others too.

Each record looks for partners among the waiting records of the other side, and then waits itself until the watermark
shows that no more can come. A record with a time before the watermark is late: it is counted, sent to its side output,
and not joined. One at exactly the time of the watermark is not late (as in Flink) and meets all its partners.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.core.errors import ProgramError
from tidegate.operators.event_time.late_records import LateRecords
from tidegate.operators.failures import OperatorError, batch_position
from tidegate.operators.functions.row_operator import RowOperator, StatefulContext
from tidegate.operators.functions.stamped_results import MOST_ROWS, StampedResults
from tidegate.operators.join.buffers import Entry, JoinBuffer, StoredEntries
from tidegate.operators.keyed.latest_values import not_storable
from tidegate.program.join_operations import BUFFERS, IntervalJoin
from tidegate.records.batch import Batch
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP
from tidegate.records.types import brief
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.copies import row_copier


class IntervalJoinOperator(RowOperator):
    """Mailbox thread only. State: the records that wait, see `JoinBuffer`."""

    operation: IntervalJoin
    backend: KeyedStateBackend

    def open(self) -> None:
        """Open the function, and restore the records that waited."""
        super().open()
        operation = self.operation
        key = operation.keys[0]
        self.backend = self.context.states.keyed(key.record_type)
        self._function = self.method("join" if operation.form == "apply" else "process")
        self._refusal = next(
            (
                not_storable(self.name, key, t)
                for t in self.input_types
                if t.is_object or key.record_type.is_object
            ),
            None,
        )
        if self.context.options.checkpoint_interval:
            self._check_storable()
        outer = operation.outer
        self._outer = outer
        self._copiers = tuple(map(row_copier, self.input_types))
        self._buffers = tuple(
            JoinBuffer(
                operation.reach_ms[side],
                is_outer=outer[side],
                store=None
                if self._refusal is not None
                else StoredEntries(self.backend, BUFFERS[side], self.input_types[side]),
            )
            for side in (0, 1)
        )
        # A record without a partner is emitted after its reach: until then the watermark must stay before its time.
        self._delay_ms = max(
            (reach + 1 for reach, is_outer in zip(operation.reach_ms, outer, strict=True) if is_outer),
            default=0,
        )
        self._late = LateRecords(self)
        self._buffered = self.context.gauge("buffered_records")
        self._show_buffered()

    def process(self, batch: Batch, input_index: int) -> None:
        """Pair each record with those of the other side, and let it wait for more."""
        times = _times(batch, self.name)
        batch, times = self._without_late(batch, times, input_index)
        if not batch.num_rows:
            return
        rows = self.rows(batch)
        keys = self.keys(batch, self.operation.keys[input_index])
        context = PairContext(self.side_outputs, self.backend)
        results = StampedResults(self, context)
        pair = self._pairing(input_index, context, results)
        records = iter(rows)
        backend, operation = self.backend, self.operation
        mine, others = self._buffers[input_index], self._buffers[1 - input_index]
        add, between = mine.add, others.between
        tells_others = self._outer[1 - input_index]
        first, last = (
            (operation.lower_ms, operation.upper_ms)
            if input_index == 0
            else (-operation.upper_ms, -operation.lower_ms)
        )
        copy_row = self._copiers[input_index]
        try:
            for row, key, time in zip(records, keys, times, strict=True):
                found = between(key, time + first, time + last)
                # Add it before the function sees it, and as a copy if the function could change it.
                add(key, time, row if copy_row is None else copy_row(row), bool(found))
                if not found:
                    continue
                backend.current_key = key
                if tells_others:
                    for entry in found:
                        if not entry.is_matched:
                            others.matched(key, entry)
                try:
                    pair(row, time, found)
                except BaseException as e:
                    raise self.failure(batch, rows, records) from e
                if results.waiting >= MOST_ROWS:
                    results.emit()
        finally:
            self.leave_keys()
            self._show_buffered()
        results.emit()

    def process_watermark(self, watermark_ms: int) -> None:
        """Emit the watermark; an outer join delays it, because it emits a record without a partner after its reach."""
        self.clock_ms = watermark_ms
        self.on_event_time(watermark_ms)
        if watermark_ms != MAX_WATERMARK:
            watermark_ms = max(MIN_TIMESTAMP, watermark_ms - self._delay_ms)
        self.context.emit_watermark(watermark_ms)

    def on_event_time(self, watermark_ms: int) -> None:
        """Remove records that can meet no partner any more; an outer join emits those without one, in order of time."""
        super().on_event_time(watermark_ms)
        alone: list[tuple[int, int, Any, Any]] = []
        for side, buffer in enumerate(self._buffers):
            alone += [(e.timestamp_ms, side, key, e.row) for e, key in buffer.advance(watermark_ms)]
        if self._outer == (True, True):
            alone.sort(key=lambda one: one[:2])
        if alone:
            self._emit_alone(alone)
        self._show_buffered()

    def snapshot(self, checkpoint_id: int) -> None:
        """Write the records that wait to the backend."""
        self._check_storable()
        for buffer in self._buffers:
            buffer.snapshot()

    # ---- inside ----

    def _pairing(self, side: int, context: PairContext, results: StampedResults) -> Any:
        """Calls the function with a record of `side` and each one that it met, and takes what it gives."""
        function = self._function
        copy_other = self._copiers[1 - side]

        def apply(row: Any, time: int, found: list[Entry]) -> None:
            others = [e.row if copy_other is None else copy_other(e.row) for e in found]
            if side == 0:
                joined = [function(row, other) for other in others]
            else:
                joined = [function(other, row) for other in others]
            results.add_rows([e.timestamp_ms if e.timestamp_ms > time else time for e in found], joined)

        def process(row: Any, time: int, found: list[Entry]) -> None:
            for entry in found:
                other = entry.row if copy_other is None else copy_other(entry.row)
                context.timestamp = max(time, entry.timestamp_ms)
                if side == 0:
                    context.left_timestamp, context.right_timestamp = time, entry.timestamp_ms
                    part = function(row, other, context)
                else:
                    context.left_timestamp, context.right_timestamp = entry.timestamp_ms, time
                    part = function(other, row, context)
                results.add(context.timestamp, part)

        return apply if self.operation.form == "apply" else process

    def _emit_alone(self, alone: Iterable[tuple[int, int, Any, Any]]) -> None:
        backend, function = self.backend, self._function
        context = PairContext(self.side_outputs, backend)
        results = StampedResults(self, context)
        is_apply = self.operation.form == "apply"
        try:
            for time, side, backend.current_key, row in alone:
                pair = (row, None) if side == 0 else (None, row)
                try:
                    if is_apply:
                        part = [function(*pair)]
                    else:
                        context.timestamp = time
                        context.left_timestamp = time if side == 0 else None
                        context.right_timestamp = time if side == 1 else None
                        part = function(*pair, context)
                    results.add(time, part)
                except BaseException as e:
                    where = f"a record of the {('left', 'right')[side]} without a partner"
                    raise OperatorError(self.name, where, brief(row)) from e
                if results.waiting >= MOST_ROWS:
                    results.emit()
        finally:
            self.leave_keys()
        results.emit()

    def _without_late(self, batch: Batch, times: Any, side: int) -> tuple[Batch, list[int]]:
        late = times < self.clock_ms
        if not late.any():
            return batch, times.tolist()
        self._late.leave_out(batch, late, self.operation.late_tags[side])
        in_time = ~late
        return batch.filter(in_time), times[in_time].tolist()

    def _check_storable(self) -> None:
        if self._refusal is not None:
            raise ProgramError(self._refusal)

    def _show_buffered(self) -> None:
        self._buffered.set(sum(buffer.size for buffer in self._buffers))


class PairContext(StatefulContext):
    """The `JoinContext`; one per batch."""

    __slots__ = ("left_timestamp", "right_timestamp", "timestamp")
    timestamp: int
    left_timestamp: int | None
    right_timestamp: int | None


def _times(batch: Batch, operator: str) -> Any:
    """The event times of a batch, as an array."""
    stamps = batch.timestamps
    if stamps is None or stamps.null_count:
        cause = ProgramError(
            "records have no event time, which this join goes by. Give the sources of both streams a WatermarkStrategy"
        )
        raise OperatorError(operator, batch_position(batch)) from cause
    return stamps.to_numpy()
