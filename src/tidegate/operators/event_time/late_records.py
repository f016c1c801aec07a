"""Late records are always counted; without a side output they are dropped, which is reported to the JobManager.

All operators that leave out late records (windows, joins, deduplication) do so here.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.operators.operator import Operator
from tidegate.records.batch import Batch

LATE: Final = "late_records"
DROPPED: Final = "late_records_dropped"

Mask = npt.NDArray[np.bool_]


class LateRecords:
    """The late records of one operator subtask."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._late = operator.context.counter(LATE)
        self._dropped = operator.context.counter(DROPPED)
        self._count = 0
        self._next_report = 1

    def leave_out(self, batch: Batch, late: Mask, tag: str | None) -> None:
        """Send the late records of a batch to the side output `tag`; without a tag, drop them."""
        count = int(np.count_nonzero(late))
        if not count:
            return
        if tag is None:
            assert batch.timestamps is not None
            self.drop(count, int(batch.timestamps.to_numpy()[late].min()))
        else:
            self._late.inc(count)
            self._operator.context.emit_side(tag, batch.filter(late))

    def drop(self, records: int, earliest_ms: int) -> None:
        """Drop this many late records, the earliest with this timestamp."""
        self._late.inc(records)
        self._dropped.inc(records)
        self._count += records
        if self._count >= self._next_report:
            self._next_report = 2 * self._count
            watermark_ms = self._operator.clock_ms
            self._operator.context.report_dropped(self._count, watermark_ms, watermark_ms - earliest_ms)
