"""Late records that operators drop: said when the first is, and then whenever they are ten times as many. Pure."""

from __future__ import annotations

from tidegate.core.ids import OperatorId
from tidegate.metrics.event_time import drop_words
from tidegate.protocol.messages import LateRecordsDropped


class DroppedRecords:
    """What the subtasks of each operator report, added up. One per attempt.

    >>> count, dropped = OperatorId("count"), DroppedRecords()
    >>> said = [dropped.reported(LateRecordsDropped(count, 0, 2**n, 5_000, 10), "count") for n in range(8)]
    >>> [number for number, words in enumerate(said) if words]
    [0, 4, 7]
    """

    def __init__(self) -> None:
        self._dropped: dict[OperatorId, dict[int, int]] = {}
        self._next: dict[OperatorId, int] = {}

    def reported(self, report: LateRecordsDropped, name: str) -> str:
        """What to say about it; empty if enough was said. `name` is the operator's."""
        dropped = self._dropped.setdefault(report.operator, {})
        dropped[report.subtask] = report.dropped
        total = sum(dropped.values())
        if total < self._next.get(report.operator, 1):
            return ""
        self._next[report.operator] = following = 10 ** len(str(total))
        return drop_words(name, total, report.watermark_ms, report.late_by_ms, following)
