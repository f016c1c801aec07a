"""Late records are counted, always; those that no side output takes are dropped, and the JobManager is told.

The one place where operators leave records out because they are late: windows, joins and deduplication.
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
    """Those of one operator subtask."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._late = operator.context.counter(LATE)
        self._dropped = operator.context.counter(DROPPED)
        self._count = 0
        self._next_report = 1

    def leave_out(self, batch: Batch, late: Mask, tag: str | None) -> None:
        """These records of a batch are late; those of the side output `tag` go there, without one they are dropped."""
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
        """So many records, the earliest of this time, are late and go nowhere."""
        self._late.inc(records)
        self._dropped.inc(records)
        self._count += records
        if self._count >= self._next_report:
            self._next_report = 2 * self._count
            watermark_ms = self._operator.clock_ms
            self._operator.context.report_dropped(self._count, watermark_ms, watermark_ms - earliest_ms)
