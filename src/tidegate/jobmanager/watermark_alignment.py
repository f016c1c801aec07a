"""Watermark alignment: how far the slowest source subtask of each group is, so that no other runs far ahead. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegate.core.ids import OperatorId
from tidegate.graph.job_graph import JobGraph
from tidegate.records.elements import MIN_TIMESTAMP

Member = tuple[OperatorId, int]
"""A source and the index of a subtask."""


class WatermarkGroups:
    """The watermarks that the source subtasks of each group report. One per attempt.

    A member that has not reported yet has no watermark and holds the others back: it may only be slow to open.

    >>> groups = WatermarkGroups({"g": [(OperatorId("clicks"), 0), (OperatorId("views"), 0)]})
    >>> groups.reported("g", OperatorId("clicks"), 0, 500) is None
    True
    >>> groups.reported("g", OperatorId("views"), 0, 200)
    200
    >>> groups.reported("g", OperatorId("clicks"), 0, 700) is None
    True
    """

    def __init__(self, members: Mapping[str, Iterable[Member]]) -> None:
        self._marks = {group: dict.fromkeys(each, MIN_TIMESTAMP) for group, each in members.items()}
        self._sent = dict.fromkeys(members, MIN_TIMESTAMP)
        """The minimum that the sources of a group know; they begin with the smallest without a message."""

    @staticmethod
    def of(graph: JobGraph) -> WatermarkGroups:
        members: dict[str, list[Member]] = {}
        for vertex in graph.vertices:
            if vertex.alignment_group is not None:
                head = vertex.operators[0].id
                members.setdefault(vertex.alignment_group, []).extend(
                    (head, subtask) for subtask in range(vertex.parallelism)
                )
        return WatermarkGroups(members)

    def reported(
        self, group: str, operator: OperatorId, subtask: int, watermark_ms: int | None
    ) -> int | None:
        """A subtask is at this watermark (None: it is idle and does not count).

        Returns the group's minimum if it has changed, to be sent to all slots.
        """
        marks = self._marks.setdefault(group, {})
        if watermark_ms is None:
            marks.pop((operator, subtask), None)
        else:
            marks[operator, subtask] = watermark_ms
        least = min(marks.values(), default=None)
        if least is None or least == self._sent.get(group):
            return None
        self._sent[group] = least
        return least
