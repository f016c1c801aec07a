"""Watermark alignment: how far the slowest source subtask of each group is, so that no other runs far ahead. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegate.core.ids import OperatorId
from tidegate.graph.job_graph import JobGraph
from tidegate.records.elements import MIN_TIMESTAMP

Member = tuple[OperatorId, int]
"""A source and the index of a subtask."""


class WatermarkGroups:
    """The watermarks of all source subtasks that belong to a group, as they report them. One per attempt.

    A member that has not reported yet has no watermark, and holds the others: it may only be slow to open.

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
        self._told = dict.fromkeys(members, MIN_TIMESTAMP)
        """What the sources go by; each begins with the smallest, without being told."""

    @staticmethod
    def of(graph: JobGraph) -> WatermarkGroups:
        """The groups of a job."""
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
