"""Results with timestamps of their own: gathered, checked and emitted a few thousand at a time.

For operators whose results do not follow one input batch: timers that fire, pairs of a join.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from tidegate.operators.functions.row_operator import RowOperator, SideOutputs, records_of

MOST_ROWS: Final = 4096


def stamps(times: Sequence[int | None]) -> pa.Array | None:
    """Timestamps of records, null for a record without one; None if no record has one."""
    return None if all(map(_is_none, times)) else pa.array(times, pa.int64())


def _is_none(time: int | None) -> bool:
    return time is None


class StampedResults:
    """The results so far, for the main output and (in the context's buffers) for side outputs."""

    def __init__(self, operator: RowOperator, context: SideOutputs, *, has_times: bool = True) -> None:
        self.waiting = 0
        """How many records there are."""
        self._operator = operator
        self._context = context
        self._has_times = has_times
        self._rows: list[Any] = []
        self._times: list[int] = []
        self._side_times: dict[str, list[int]] = {tag: [] for tag in context.buffers}

    def add(self, timestamp_ms: int, part: Any) -> None:
        """Take what one call of the function returned, and what it sent to side outputs."""
        rows = self._rows
        if part is not None:
            rows.extend(part if part.__class__ is list else records_of(part))
            self._times.extend(repeat(timestamp_ms, len(rows) - len(self._times)))
        waiting = len(rows)
        for tag, values in self._context.buffers.items():
            times = self._side_times[tag]
            times.extend(repeat(timestamp_ms, len(values) - len(times)))
            waiting += len(values)
        self.waiting = waiting

    def add_rows(self, timestamps_ms: list[int], rows: list[Any]) -> None:
        """Take records of the main output only."""
        self._rows.extend(rows)
        self._times.extend(timestamps_ms)
        self.waiting += len(rows)

    def emit(self) -> None:
        """Emit everything gathered."""
        self._operator.check_states()
        self.waiting = 0
        operator, buffers = self._operator, self._context.buffers
        if self._rows:
            rows, times = self._rows, self._times
            self._rows, self._times = [], []
            operator.emit_results(rows, timestamps=self._stamps(times))
        for tag, values in buffers.items():
            if values:
                times = self._side_times[tag]
                buffers[tag], self._side_times[tag] = [], []
                operator.emit_side(tag, values, self._stamps(times))

    def _stamps(self, times: list[int]) -> Any:
        return pa.array(times, pa.int64()) if self._has_times else None
