"""Late records are counted, always; those that no side output takes are counted as dropped too."""

from __future__ import annotations

from typing import Final

from tidegate.operators.operator import OperatorContext

LATE: Final = "late_records"
DROPPED: Final = "late_records_dropped"


class LateRecords:
    """The counts of one operator subtask."""

    def __init__(self, context: OperatorContext) -> None:
        self._late = context.counter(LATE)
        self._dropped = context.counter(DROPPED)

    def count(self, records: int, *, handed_over: bool) -> None:
        """So many records were late; `handed_over`: they went to a side output."""
        self._late.inc(records)
        if not handed_over:
            self._dropped.inc(records)
