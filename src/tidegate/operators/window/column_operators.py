"""Windows of built-in aggregates by columns: what their operators share.

| windows                        | stage | operator                 | live state     |
|--------------------------------|-------|--------------------------|----------------|
| tumbling, sliding, cumulative  | whole | `SliceWindowOperator`    | `SliceState`   |
| the same                       | merge | `MergeWindowOperator`    | `SliceState`   |
| the same                       | local | `LocalWindowOperator`    | none           |
| sessions                       | whole | `SessionColumnsOperator` | `SessionState` |

The live state is in memory; a snapshot writes what has changed since the last one to the backend's `PaneTable`. Results
are emitted in order of their windows' ends, with the timestamp `end - 1`. A window that changes after it was emitted
(allowed lateness) is emitted again at the end of the batch, once for each key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.core.errors import ProgramError
from tidegate.keys.hashing import hash_columns
from tidegate.keys.key_group_columns import key_groups
from tidegate.keys.key_index import KeyIndex
from tidegate.operators.columns.aggregate_inputs import AggregateInputs
from tidegate.operators.event_time.late_records import LateRecords
from tidegate.operators.event_time.restored_clocks import RestoredClocks
from tidegate.operators.failures import OperatorError, batch_position
from tidegate.operators.functions.row_keys import KeyColumns
from tidegate.operators.operator import Operator
from tidegate.operators.window.parts import Columns, Inputs, WindowAggregates, take
from tidegate.program.window_operations import WINDOW_TIME_TYPE, AggregateWindow
from tidegate.records.batch import Batch
from tidegate.records.decimals import DecimalOverflow, overflow_advice
from tidegate.records.types import RecordType
from tidegate.state.backend import PaneRows

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

STATE_NAME: Final = "windows"
"""The name in checkpoints."""
MOST_ROWS: Final = 1 << 16
"""How many results are emitted together."""


class ColumnWindowOperator(Operator):
    """Reads keys, times and values of a batch by columns, and emits results."""

    operation: AggregateWindow
    emitted_ms: Longs | None = None
    """By key group, the event time up to which a checkpoint of another parallelism had emitted; None: all the same."""
    records_repeat = False
    """Whether that checkpoint was at least once: records that are in state may be read again."""

    def clocks_restored(self, clocks: RestoredClocks) -> None:
        """Remember what was emitted before the checkpoint, to leave it out."""
        self.emitted_ms, self.records_repeat = clocks.by_key_group, clocks.repeats

    def open(self) -> None:
        operation = self.operation
        key = operation.key
        self._keys = None if key is None else KeyColumns(key, self.input_types[0], self.name)
        self._key_positions: list[int] = [] if self._keys is None else self._keys.positions
        self._inputs = AggregateInputs([a for _, a in operation.aggregates], self.record_type())
        cut = operation.column_cut
        assert cut is not None
        self.aggregates = WindowAggregates(self._inputs.kernels, cut.identity())
        self._late = LateRecords(self)
        self._windows = self.context.gauge("windows")
        self._encoded: tuple[KeyIndex, int, pa.Array] | None = None
        self._schema: pa.Schema | None = None

    def record_type(self) -> RecordType:
        """The type of the records that are aggregated."""
        return self.input_types[0]

    # ---- in ----

    def timestamps(self, batch: Batch) -> Longs:
        """The event times of a batch; raises `OperatorError` if a record has none."""
        if batch.timestamps is None or batch.timestamps.null_count:
            whose = "those" if batch.timestamps is None else "some (as of processing-time timers)"
            raise OperatorError(self.name, batch_position(batch)) from ProgramError(
                f"windows in event time need records with timestamps, but {whose} of {self.name!r} have none. Give the "
                f"source a WatermarkStrategy, or call assign_timestamps_and_watermarks before the window"
            )
        times: Longs = batch.timestamps.to_numpy()
        return times

    def without_late(self, batch: Batch, late: Mask | None) -> Batch | None:
        """Count late records, send them to the side output if there is one, and return the others."""
        if late is None or not late.any():
            return batch
        self._late.leave_out(batch, late, self.operation.late_tag)
        return None if late.all() else batch.filter(~late)

    def key_columns(self, batch: Batch) -> list[pa.Array]:
        if self._keys is None:
            return [pa.array(np.zeros(batch.num_rows, np.int64))]
        return self._keys.of(batch)

    def inputs(self, batch: Batch) -> Inputs:
        """The columns that each aggregate reads."""
        if self._inputs.is_empty:
            return [()] * len(self.aggregates.kernels)
        return self._inputs.columns(batch.columns)

    def refusal(self, error: Exception) -> Exception:
        """The error for the user; for a sum that does not fit, with what to do."""
        if not isinstance(error, OverflowError):
            return error
        kernels = zip(self.operation.aggregates, self.aggregates.kernels, strict=True)
        sums = [a.describe() for (_, a), kernel in kernels if kernel.may_overflow]
        advice = overflow_advice(of_decimals=isinstance(error, DecimalOverflow))
        return OverflowError(f"{', '.join(sums) or 'windows'}: {error}. {advice}")

    # ---- out ----

    def emit_windows(self, index: KeyIndex, ids: Longs, starts: Longs, ends: Longs, columns: Columns) -> None:
        """Emit results, one for each row, except those that a restored key group has emitted before."""
        # If late records can emit a window again, so can records that are read again: better twice than never.
        changes_again = self.records_repeat and self.operation.allowed_lateness_ms > 0
        if self.emitted_ms is not None and not changes_again and len(ids):
            groups = key_groups(hash_columns(index.keys(ids)), self.context.subtask.max_parallelism)
            news = np.flatnonzero(self.emitted_ms[groups] < ends - 1)
            ids, starts, ends, columns = ids[news], starts[news], ends[news], take(columns, news)
        if not len(ids):
            return
        keys = self._keys_of(index, ids) if self.operation.key is not None else []
        arrays = [
            *keys,
            pa.array(starts).view(WINDOW_TIME_TYPE),
            pa.array(ends).view(WINDOW_TIME_TYPE),
            *self.aggregates.results(columns),
        ]
        types = [a.type for a in arrays]
        if self._schema is None or self._schema.types != types:
            declared = self.output_type.schema
            self._schema = pa.schema([f.with_type(t) for f, t in zip(declared, types, strict=True)])
        out = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self.context.emit(Batch(self.output_type, columns=out, timestamps=pa.array(ends - 1)))

    def _keys_of(self, index: KeyIndex, ids: Longs) -> list[pa.Array]:
        """The keys of ids; one column of text stays dictionary-encoded, which is cheap here and downstream."""
        kind = self.output_type.schema.types[0]
        keys = len(index)
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if len(self._key_positions) != 1 or not is_text or keys > 2 * len(ids) + 1024:
            return index.keys(ids)
        known = self._encoded
        if known is None or known[0] is not index or known[1] != keys:
            known = self._encoded = (index, keys, index.keys()[0])
        values = known[2]
        if values.null_count:
            return index.keys(ids)
        return [pa.DictionaryArray.from_arrays(pa.array(ids.astype(np.int32)), values)]


class KeepingWindowOperator(ColumnWindowOperator):
    """An operator that keeps windows: the clock, snapshots and the restore."""

    _recovering = False

    def open(self) -> None:
        """Find the state: empty, or as a checkpoint has it."""
        super().open()
        key = self.operation.state_key()
        assert key is not None
        self._panes = self.context.states.keyed(key.record_type).panes(STATE_NAME, self.pane_values())
        for rows in self._panes.restored():
            if len(rows):
                self._recovering = True
                self.restore(rows)

    def start(self) -> None:
        """From now on an advance of the clock emits windows."""
        self._recovering = False

    def on_event_time(self, watermark_ms: int) -> None:
        """Emit the windows that end by now; before `start` only set the clock, as the checkpoint had emitted them."""
        try:
            if self._recovering:
                self.recover_clock(watermark_ms)
            else:
                self.fire(watermark_ms)
                if self.emitted_ms is not None and watermark_ms >= int(self.emitted_ms.max()):
                    self.emitted_ms = None
        except (OverflowError, ValueError) as e:
            raise OperatorError(self.name) from self.refusal(e)

    def snapshot(self, checkpoint_id: int) -> None:
        self._panes.write(self.changed_rows(), self.removed_rows(), self.all_rows)

    @abstractmethod
    def pane_values(self) -> pa.Schema:
        """The values of a pane in checkpoints."""

    @abstractmethod
    def restore(self, rows: PaneRows) -> None:
        """Add rows of a checkpoint."""

    @abstractmethod
    def recover_clock(self, clock_ms: int) -> None:
        """Set the clock of the checkpoint."""

    @abstractmethod
    def fire(self, clock_ms: int) -> None:
        """Emit the windows that end by now."""

    @abstractmethod
    def changed_rows(self) -> PaneRows:
        """What has changed since the last snapshot."""

    @abstractmethod
    def removed_rows(self) -> PaneRows:
        """What was removed since the last snapshot."""

    @abstractmethod
    def all_rows(self) -> PaneRows:
        """Everything."""

    def rows_of_keys(self, keys: Sequence[list[pa.Array]], panes: Sequence[Longs]) -> PaneRows:
        """Keys and panes as rows without values."""
        key = self.operation.state_key()
        assert key is not None
        if not keys:
            empty = [pa.array([], f.type) for f in key.record_type.schema]
            return PaneRows(empty, np.empty(0, np.int64), [])
        columns = [pa.concat_arrays([k[i] for k in keys]) for i in range(len(keys[0]))]
        return PaneRows(columns, np.concatenate(panes), [])

    def keys_of_rows(self, index: KeyIndex, ids: Longs) -> list[pa.Array]:
        """The keys of ids for a snapshot."""
        if len(ids):
            return index.keys(ids)
        return list(self.rows_of_keys([], []).keys)
