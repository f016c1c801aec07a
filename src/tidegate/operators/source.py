"""Reads a source in one slot: polls the reader, checks what it gives, hands on splits and positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

import msgspec

from tidegate.api.source import IDLE, Finished, Gauge, Idle, ReaderContext, SourceReader
from tidegate.core.errors import SchemaError
from tidegate.core.pace import FIRST_ROWS, Pace, SourcePace
from tidegate.core.words import kind_of
from tidegate.metrics.snapshot import RECORDS_BEFORE, RECORDS_BEHIND, EventTime
from tidegate.operators.columns.schema_fit import conform
from tidegate.operators.event_time.event_times import GENERATORS, EventTimes
from tidegate.operators.event_time.split_watermarks import StoredSplit
from tidegate.operators.failures import OperatorError, blame, close_blamed
from tidegate.operators.operator import Operator, OperatorContext
from tidegate.operators.results import ResultType
from tidegate.records.batch import Batch
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP
from tidegate.records.types import RecordType, RowType, record_type_of

_NOTHING: Final[Batch] = Batch(record_type_of(None), rows=[])
"""What is left of a batch none of whose records has a timestamp."""

SPLITS = "splits"
"""The name of the operator state that holds a source's positions."""

READ: Final = "$read"
"""That of how many records the source has given, over all attempts, if it knows how many it will give: for displays."""

_AIM_NS: Final = 100_000_000
"""How long a batch should take the operators chained after the source. A checkpoint begins between two batches, so this
is how long it waits: 262,144 records would be four minutes for a function that takes a millisecond."""


class SourceOperator(Operator):
    """The head of a source task. The task calls `advance` while its outputs have room, instead of `process`.

    Restored splits are added between `open` and the first `advance`, which starts the reader.
    """

    _reader: SourceReader | None = None
    _started = False
    _finished = False
    _behind: Gauge | None = None
    _given = 0
    _times: EventTimes | None = None

    def __init__(
        self,
        operation: Any,
        input_types: tuple[RecordType, ...],
        output_type: RecordType,
        side_outputs: dict[str, RecordType],
        context: OperatorContext,
    ) -> None:
        super().__init__(operation, input_types, output_type, side_outputs, context)
        after, most = context.chained_after, context.options.batch_rows
        strategy = operation.strategy
        careful = after.may_run_users_code or (strategy is not None and strategy.reads_rows)
        pace = Pace(_AIM_NS, FIRST_ROWS if careful else most, most)
        self.pace = SourcePace(context.clock, pace, after.most_objects)
        """How many records to read at a time; the task reports to it."""

    def open(self) -> None:
        """Make the reader."""
        c = self.context
        self._results = ResultType(self.output_type)
        self._split_type = self.operation.source.split_type
        strategy = self.operation.strategy
        self._reading = ReaderContext(
            subtask=c.subtask,
            clock=c.clock,
            batch_rows=self.pace.rows,
            most_batch_rows=c.options.batch_rows,
            request_split=c.request_split,
            wake=c.wake,
            counter=c.counter,
            side_output=c.emit_side,
        )
        with blame(c.operator_name):
            self._reader = self.operation.source.create_reader(self._reading)
        self._times = None if strategy is None else EventTimes(strategy, c, self.process_watermark)
        marks = [msgspec.json.decode(e, type=StoredSplit) for e in c.states.entries(GENERATORS)]
        self._begun = {mark.split for mark in marks if mark.watermark_ms > MIN_TIMESTAMP}
        restored = c.states.entries(SPLITS)
        if restored:
            self.add_splits(restored)
        read = c.states.entries(READ)  # a subtask may get those of several, or none
        if read:
            self._given = sum(msgspec.json.decode(e, type=int) for e in read)
            c.gauge(RECORDS_BEFORE).set(self._given)

    def start(self) -> None:
        """Join the alignment group, if there is one."""
        if self._times is not None:
            self._times.watermarks.resume(self.clock_ms)
            self._times.report(self.clock_ms)

    def leave_alignment(self) -> None:
        """Everything was read before the checkpoint that this is restored from: no other source waits for it."""
        if self._times is not None:
            self._times.report(MAX_WATERMARK)

    def align(self, group: str, watermark_ms: int) -> bool:
        """The slowest of a group is so far; returns whether this source may go on now, and could not before."""
        return self._times is not None and self._times.align(group, watermark_ms)

    def advance(self) -> Idle | Finished | None:
        """Poll once. Emits the batch if there is one and returns None (call again); else says why there is none."""
        if self._times is not None and self._times.is_ahead:
            return IDLE  # woken by `align`
        try:
            if not self._started:
                self._started = True
                self.reader.start()
            asked = self._reading.batch_rows = self.pace.rows
            polled = self.reader.poll()
            behind = self.reader.records_behind()
            if behind is not None:
                self._tell_behind(behind)
            batch = self._checked(polled) if isinstance(polled, Batch) else None
            if batch is not None and batch.num_rows:
                rows, objects, own_ns = batch.num_rows, not batch.has_columns, 0
                if self._times is not None:
                    began_ns = self.context.clock.monotonic_ns()
                    batch = self._times.assign(batch, self.reader.last_split) or _NOTHING
                    own_ns = self.context.clock.monotonic_ns() - began_ns
                # A reader may leave out a few of what it has read.
                self.pace.batch_emitted(rows, own_ns, full=2 * rows >= asked, objects=objects)
        except OperatorError:
            raise
        except BaseException as e:
            raise OperatorError(self.context.operator_name) from e
        if batch is not None:
            if batch.num_rows:
                self._given += batch.num_rows
                self.context.emit(batch)
            return None
        if isinstance(polled, (Idle, Finished)):
            return polled
        raise OperatorError(self.context.operator_name) from TypeError(
            f"poll() of {type(self.reader).__name__} must return a Batch, Idle or Finished, "
            f"but returned {kind_of(polled)}"
        )

    def on_event_time(self, watermark_ms: int) -> None:
        """Report it to the alignment group."""
        if self._times is not None:
            self._times.report(watermark_ms)

    @property
    def next_processing_time_ms(self) -> int | None:
        """When a watermark is to be sent."""
        return None if self._times is None or self.clock_ms == MAX_WATERMARK else self._times.next_ms

    def on_processing_time(self, now_ms: int) -> None:
        """Send it, of the splits that the reader has now."""
        assert self._times is not None
        with blame(self.context.operator_name):
            if self.reader.last_split is None:
                self._times.tell(now_ms)
            else:
                reading = self.reader.reading()
                self._times.tell(now_ms, reading, self._waiting(reading))

    def _waiting(self, reading: Iterable[str]) -> set[str]:
        """The splits that were begun before the checkpoint and wait for their turn.

        What several subtasks had read at the same time may be with one reader then, which reads it one after the other:
        the first would take the clock with it, and what is left of the others would be late.
        """
        if self._begun:
            self._begun &= {split.id for split in self.reader.snapshot()}
        return self._begun.difference(reading)

    def _tell_behind(self, records: int) -> None:
        if self._behind is None:  # only sources that know it have the gauge
            self._behind = self.context.gauge(RECORDS_BEHIND)
        self._behind.set(records)

    def event_time(self) -> EventTime | None:
        """How far event time is, and the split that holds it back; for the metrics, so from another thread."""
        return None if self._times is None else self._times.describe(self.clock_ms)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Hand splits (JSON of the source's split type) to the reader."""
        if self._times is not None:
            self._times.watermarks.changed = True  # a source that is idle is not, from now on
        with blame(self.context.operator_name):
            self.reader.add_splits([msgspec.json.decode(s, type=self._split_type) for s in splits])

    def no_more_splits(self) -> None:
        """Tell the reader that no splits follow."""
        with blame(self.context.operator_name):
            self.reader.no_more_splits()

    def snapshot(self, checkpoint_id: int) -> None:
        """Keep the positions."""
        self.context.states.put_entries(SPLITS, self.positions())
        if getattr(self.operation.source, "expected_records", None) is not None:
            self.context.states.put_entries(READ, [msgspec.json.encode(self._given)])
        if self._times is not None:
            self._times.snapshot()

    def positions(self) -> list[bytes]:
        """The unfinished splits at their positions, as `add_splits` takes them."""
        with blame(self.context.operator_name):
            return [msgspec.json.encode(split) for split in self.reader.snapshot()]

    def process(self, batch: Batch, input_index: int) -> NoReturn:
        """Refused: a source has no input."""
        raise AssertionError(f"source {self.context.operator_name!r} has no input")

    def finish(self) -> None:
        """Everything is read; from now on a failing `close` fails the job."""
        self._finished = True

    def close(self) -> None:
        """Close the reader."""
        reader, self._reader = self._reader, None
        if reader is not None:
            close_blamed(self.context.operator_name, reader.close, clean=self._finished)

    @property
    def reader(self) -> SourceReader:
        """The reader; exists from `open` to `close`."""
        assert self._reader is not None, "the source is not open"
        return self._reader

    def _checked(self, batch: Batch) -> Batch:
        """The batch with exactly the declared columns; `Row` records where the reader gave tuples or dicts."""
        declared = self.output_type
        if batch.has_columns:
            columns = batch.columns
            names_fit = columns.schema.names == declared.schema.names
            if names_fit and columns.schema.types == declared.schema.types and batch.type is declared:
                return batch
            fitting = conform(columns, declared.schema)
            same = fitting is columns and batch.type is declared
            return batch if same else batch.with_columns(declared, fitting)
        if batch.type is not declared and batch.type != declared:
            raise SchemaError(
                f"{type(self.reader).__name__} gave {batch.type.describe()}, declared is {declared.describe()}"
            )
        rows: list[Any] = batch.rows
        if isinstance(declared, RowType):
            rows = self._results.adopt(rows)
        return Batch(declared, rows=rows, origin=batch.origin, timestamps=batch.timestamps)
