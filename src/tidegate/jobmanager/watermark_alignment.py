"""Watermark alignment: how far the slowest source subtask of each group is, so that no other runs far ahead. Pure."""

from __future__ import annotations

from tidegate.core.ids import OperatorId


class WatermarkGroups:
    """The watermarks of all source subtasks that belong to a group, as they report them. One per attempt.

    >>> groups = WatermarkGroups()
    >>> groups.reported("g", OperatorId("clicks"), 0, 500)
    500
    >>> groups.reported("g", OperatorId("views"), 0, 200)
    200
    >>> groups.reported("g", OperatorId("clicks"), 0, 700) is None
    True
    """

    def __init__(self) -> None:
        self._marks: dict[str, dict[tuple[OperatorId, int], int]] = {}
        self._told: dict[str, int] = {}

    def reported(
        self, group: str, operator: OperatorId, subtask: int, watermark_ms: int | None
    ) -> int | None:
        """A subtask is at this watermark (None: it is idle and counts for nothing).

        Returns the group's minimum if it has changed, for all slots to know.
        """
        marks = self._marks.setdefault(group, {})
        if watermark_ms is None:
            marks.pop((operator, subtask), None)
        else:
            marks[operator, subtask] = watermark_ms
        least = min(marks.values(), default=None)
        if least is None or least == self._told.get(group):
            return None
        self._told[group] = least
        return least
