"""Tumbling, sliding and cumulative windows by columns, in one stage or, with `LocalWindowOperator`, in two.

In two stages, the local operator, before the exchange, aggregates each batch by (key, slice) and keeps nothing; the
merge operator keeps the slices. A partial result has its number of records, so that late ones are counted as records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.keys.key_index import KeyIndex
from tidegate.operators.failures import OperatorError, batch_position, blame
from tidegate.operators.window.column_operators import MOST_ROWS, ColumnWindowOperator, KeepingWindowOperator
from tidegate.operators.window.parts import Columns, Part, concat
from tidegate.operators.window.slice_bounds import slicing_of
from tidegate.operators.window.slices import SliceState, aggregate_batch
from tidegate.program.window_operations import AggregateWindow
from tidegate.records.batch import Batch
from tidegate.records.column_bits import dictionary_codes, is_bytes_like
from tidegate.records.types import RecordType
from tidegate.state.backend import PaneRows

Longs = npt.NDArray[np.int64]

_MOST_LOCAL_KEYS: Final = 1 << 17


class SliceWindowOperator(KeepingWindowOperator):
    """Keeps slices and merges them into windows."""

    def open(self) -> None:
        self._state: SliceState | None = None
        super().open()
        self._windows.set(len(self.state))

    @property
    def state(self) -> SliceState:
        """The live state; made on first use, which may be to restore it."""
        if self._state is None:
            slicing = slicing_of(self.operation.column_cut)
            self._state = SliceState(slicing, self.aggregates, self.operation.allowed_lateness_ms)
        return self._state

    def process(self, batch: Batch, input_index: int) -> None:
        """Add a batch to the slices, and emit again the windows that it changes."""
        found = self.without_late(batch, self.state.late(self.timestamps(batch)))
        if found is None:
            return
        state = self.state
        keys = self.key_columns(found)
        with blame(self.name, batch_position(batch)):
            ids = state.index.ids(keys)
        try:
            rows = state.group(ids, self.timestamps(found), self.inputs(found))
            if len(rows[0]):
                state.add(*rows)
            self._emit_parts(state.refreshed())
        except (OverflowError, ValueError) as e:
            raise OperatorError(self.name, batch_position(batch)) from self.refusal(e)
        self._windows.set(len(state))

    def fire(self, clock_ms: int) -> None:
        self._emit_parts(self.state.advance(clock_ms))
        self.state.forget_keys()
        self._windows.set(len(self.state))

    def _emit_parts(self, parts: Iterator[tuple[int, Part]]) -> None:
        waiting: list[tuple[int, Longs, Columns]] = []
        count = 0
        for end, part in parts:
            ids, columns = part.rows()
            waiting.append((end, ids, columns))
            count += len(ids)
            if count >= MOST_ROWS:
                self._emit_rows(waiting)
                waiting, count = [], 0
        if waiting:
            self._emit_rows(waiting)

    def _emit_rows(self, waiting: list[tuple[int, Longs, Columns]]) -> None:
        state = self.state
        lengths = [len(ids) for _, ids, _ in waiting]
        window_ends = np.array([end for end, _, _ in waiting], np.int64)
        ends = np.repeat(window_ends, lengths)
        starts = np.repeat(state.slicing.window_starts(window_ends), lengths)
        ids = np.concatenate([ids for _, ids, _ in waiting])
        columns = [concat([w[2][i] for w in waiting]) for i in range(len(self.aggregates.schema))]
        self.emit_windows(state.index, ids, starts, ends, columns)

    # ---- snapshots ----

    def pane_values(self) -> pa.Schema:
        return self.aggregates.schema

    def restore(self, rows: PaneRows) -> None:
        """Take rows of a checkpoint; a pane is the end of a slice."""
        ids = self.state.index.ids(rows.keys)
        self.state.restore(ids, rows.panes, self.aggregates.from_arrow(rows.values))

    def recover_clock(self, clock_ms: int) -> None:
        self.state.recover_clock(clock_ms)
        self._windows.set(len(self.state))

    def changed_rows(self) -> PaneRows:
        """The rows that have changed since the last snapshot."""
        return self._pane_rows(*self.state.take_changes())

    def removed_rows(self) -> PaneRows:
        """The rows of slices that are over since the last snapshot."""
        removed = self.state.take_removed()
        panes = [np.full(len(keys[0]), end) for keys, end in removed]
        return self.rows_of_keys([keys for keys, _ in removed], panes)

    def all_rows(self) -> PaneRows:
        return self._pane_rows(*self.state.everything())

    def _pane_rows(self, ids: Longs, ends: Longs, columns: Columns) -> PaneRows:
        return PaneRows(self.keys_of_rows(self.state.index, ids), ends, self.aggregates.to_arrow(columns))


class MergeWindowOperator(SliceWindowOperator):
    """As `SliceWindowOperator`, for partial results: key columns, end of the slice, columns of the aggregates."""

    def record_type(self) -> RecordType:
        """The type of the records before the exchange."""
        record_type = self.operation.aggregated_type
        assert record_type is not None
        return record_type

    def process(self, batch: Batch, input_index: int) -> None:
        """Add partial results to the slices, and emit again the windows that they change."""
        columns = batch.columns
        first = len(self._key_positions)
        state = self.state
        ends: Longs = columns.column(first).to_numpy()
        late = state.late(ends - 1)
        if late is not None and late.any():
            records: Longs = columns.column(first + 1).to_numpy()
            self._late.drop(int(records[late].sum()), int(ends[late].min()) - 1)
            kept = np.flatnonzero(~late)
            if not len(kept):
                return
            columns, ends = columns.take(pa.array(kept)), ends[kept]
        with blame(self.name, batch_position(batch)):
            ids = state.index.ids([columns.column(i) for i in self._key_positions])
        try:
            state.add_partials(ids, ends, self.aggregates.from_arrow(columns.columns[first + 1 :]))
            self._emit_parts(state.refreshed())
        except (OverflowError, ValueError) as e:
            raise OperatorError(self.name, batch_position(batch)) from self.refusal(e)
        self._windows.set(len(state))


class LocalWindowOperator(ColumnWindowOperator):
    """Aggregates each batch by key and slice, so that the exchange carries one record for each."""

    operation: AggregateWindow

    def open(self) -> None:
        super().open()
        self._slicing = slicing_of(self.operation.column_cut)
        self._index = KeyIndex()

    def process(self, batch: Batch, input_index: int) -> None:
        """Emit one partial result per key and slice of the batch; keep nothing."""
        keys = self.key_columns(batch)
        text = keys[0] if len(keys) == 1 and _is_encoded(keys[0]) else None
        if text is not None:
            ids, count = dictionary_codes(text), len(text.dictionary) + 1
        else:
            if len(self._index) > _MOST_LOCAL_KEYS:
                self._index = KeyIndex()
            with blame(self.name, batch_position(batch)):
                ids = self._index.ids(keys)
            count = len(self._index)
        try:
            found, ends, columns = aggregate_batch(
                self._slicing, self.aggregates, ids, count, self.timestamps(batch), self.inputs(batch)
            )
        except (OverflowError, ValueError) as e:
            raise OperatorError(self.name, batch_position(batch)) from self.refusal(e)
        if not len(found):
            return
        if text is not None:
            null = found == len(text.dictionary)
            codes = pa.array(found.astype(np.int32), mask=null if null.any() else None)
            keys = [pa.DictionaryArray.from_arrays(codes, text.dictionary)]
        else:
            keys = self._index.keys(found)
        arrays = [*keys, pa.array(ends), *self.aggregates.to_arrow(columns)]
        fields = [f.with_type(a.type) for f, a in zip(self.output_type.schema, arrays, strict=True)]
        out = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        self.context.emit(Batch(self.output_type, columns=out, timestamps=pa.array(ends - 1)))


def _is_encoded(column: pa.Array) -> bool:
    """Whether it is text with a dictionary that is not much longer than the column."""
    return (
        pa.types.is_dictionary(column.type)
        and is_bytes_like(column.type.value_type)
        and not column.dictionary.null_count
        and len(column.dictionary) <= 2 * len(column) + 1024
    )
