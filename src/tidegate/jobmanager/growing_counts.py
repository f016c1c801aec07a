"""Counts of what slots report (late records, warnings): logged at the first one, then at each power of ten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple


class Grown(NamedTuple):
    """The total over all reporters; the next log line is due when it reaches `next_at`."""

    total: int
    next_at: int


@dataclass
class _Counted:
    by_reporter: dict[Hashable, int] = field(default_factory=dict)
    next_at: int = 1


class GrowingCounts:
    """Adds up what several reporters count of the same thing. One per attempt; pure.

    >>> counts = GrowingCounts()
    >>> said = [counts.reported("late records", "subtask 0", 2**n) for n in range(8)]
    >>> [grown.total for grown in said if grown]
    [1, 16, 128]
    """

    MOST = 1_000
    """How many things are remembered; the least recently reported is forgotten first."""

    def __init__(self) -> None:
        self._counted: OrderedDict[Hashable, _Counted] = OrderedDict()

    def reported(self, what: Hashable, reporter: Hashable, count: int) -> Grown | None:
        """Take a reporter's total so far; None if no log line is due."""
        counted = self._counted.setdefault(what, _Counted())
        self._counted.move_to_end(what)
        if len(self._counted) > self.MOST:
            self._counted.popitem(last=False)
        counted.by_reporter[reporter] = count
        total = sum(counted.by_reporter.values())
        if total < counted.next_at:
            return None
        counted.next_at = 10 ** len(str(total))
        return Grown(total, counted.next_at)
