"""The results of windows in a batch or a pass of timers: gathered, and emitted a few thousand at a time.

`FunctionResults` has the records of the user's functions, `AggregateResults` those of built-in aggregates, which become
columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import pyarrow as pa

from tidegate.api.windows import GlobalWindow, TimeWindow
from tidegate.operators.failures import blame
from tidegate.operators.functions.row_keys import keys_to_columns
from tidegate.operators.functions.row_operator import RowOperator, SideOutputs, records_of
from tidegate.operators.functions.stamped_results import stamps
from tidegate.program.operations import Key
from tidegate.program.window_operations import WINDOW_TIME_TYPE
from tidegate.records.batch import Batch
from tidegate.records.columns import build_column

MOST_ROWS: Final = 4096


class Results(ABC):
    """Results with timestamps; one has none if a record without a timestamp fired a global window."""

    def __init__(self, operator: RowOperator) -> None:
        self._operator = operator
        self._times: list[int | None] = []

    @property
    def waiting(self) -> int:
        return len(self._times)

    @abstractmethod
    def add(self, key: Any, window: TimeWindow, result: Any, timestamp_ms: int | None) -> None:
        """Take the result of a window."""

    def send(self) -> None:
        if self._times:
            self._operator.check_states()
            times, self._times = self._times, []
            self._emit(stamps(times))

    @abstractmethod
    def _emit(self, timestamps: Any) -> None:
        """Emit the gathered results, with these timestamps."""


class FunctionResults(Results):
    """Records of the user's functions, and of their side outputs."""

    def __init__(self, operator: RowOperator, side_outputs: SideOutputs, many: bool) -> None:
        super().__init__(operator)
        self._many = many
        self._rows: list[Any] = []
        self._side = side_outputs
        self._side_times: dict[str, list[int | None]] = {tag: [] for tag in side_outputs.buffers}

    @property
    def waiting(self) -> int:
        return len(self._times) + sum(map(len, self._side.buffers.values()))

    def add(self, key: Any, window: TimeWindow, result: Any, timestamp_ms: int | None) -> None:
        """Take one record, or all records of a process function."""
        rows, times = self._rows, self._times
        if not self._many:
            rows.append(result)
            times.append(timestamp_ms)
            return
        if result is not None:
            rows.extend(result if result.__class__ is list else records_of(result))
            times.extend([timestamp_ms] * (len(rows) - len(times)))
        for tag, values in self._side.buffers.items():
            side_times = self._side_times[tag]
            side_times.extend([timestamp_ms] * (len(values) - len(side_times)))

    def send(self) -> None:
        """Emit the records, then the side outputs, tag by tag."""
        super().send()
        for tag, values in self._side.buffers.items():
            if values:
                times = self._side_times[tag]
                self._side.buffers[tag], self._side_times[tag] = [], []
                self._operator.emit_side(tag, values, stamps(times))

    def _emit(self, timestamps: Any) -> None:
        rows, self._rows = self._rows, []
        self._operator.emit_results(rows, timestamps=timestamps)


class AggregateResults(Results):
    """Results of built-in aggregates: key columns, window, aggregates; plain tuples if keys have no type."""

    def __init__(self, operator: RowOperator, key: Key | None, has_windows: bool) -> None:
        super().__init__(operator)
        self._key = key
        self._has_windows = has_windows
        self._keys: list[Any] = []
        self._windows: list[TimeWindow] = []
        self._values: list[list[Any]] = []

    def add(self, key: Any, window: TimeWindow, result: Any, timestamp_ms: int | None) -> None:
        self._keys.append(key)
        self._windows.append(window)
        self._values.append(result)
        self._times.append(timestamp_ms)

    def _emit(self, timestamps: Any) -> None:
        keys, windows, values = self._keys, self._windows, self._values
        self._keys, self._windows, self._values = [], [], []
        operator = self._operator
        if operator.output_type.is_object:
            rows = [
                (key, *((w.start, w.end) if self._has_windows else ()), *results)
                for key, w, results in zip(keys, windows, values, strict=True)
            ]
            operator.emit_checked(rows, None, timestamps, None)
            return
        arrays = self._key_columns(keys)
        if self._has_windows:
            arrays += [pa.array([w[i] for w in windows], pa.int64()).cast(WINDOW_TIME_TYPE) for i in (0, 1)]
        schema = operator.output_type.schema
        fields = list(schema)[len(arrays) :]
        columns = zip(*values, strict=True)
        arrays += [build_column(f, list(column), None) for f, column in zip(fields, columns, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        operator.context.emit(Batch(operator.output_type, columns=batch, timestamps=timestamps))

    def _key_columns(self, keys: list[Any]) -> list[pa.Array]:
        key = self._key
        if key is None:
            return []
        if key.function is None and len(key.columns) == 1:
            return [build_column(key.record_type.schema.field(0), keys, None)]
        with blame(self._operator.name):
            return keys_to_columns(keys, key)


def result_time(window: TimeWindow, fired_at_ms: int | None) -> int | None:
    """The timestamp of a window's results: its last moment; for a global window, when it fired."""
    return fired_at_ms if window.__class__ is GlobalWindow else window.max_timestamp_ms
