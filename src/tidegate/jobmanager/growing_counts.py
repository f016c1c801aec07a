"""Counts of what slots report (late records, warnings): said first, and then whenever they are ten times as many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple


class Grown(NamedTuple):
    """So many there are, in all; said again when there are `next_at`."""

    total: int
    next_at: int


@dataclass
class _Counted:
    by_reporter: dict[Hashable, int] = field(default_factory=dict)
    next_at: int = 1


class GrowingCounts:
    """What several report of the same thing, added up. One per attempt; pure.

    >>> counts = GrowingCounts()
    >>> said = [counts.reported("late records", "subtask 0", 2**n) for n in range(8)]
    >>> [grown.total for grown in said if grown]
    [1, 16, 128]
    """

    MOST = 1_000
    """Things that are remembered; those that were reported longest ago are forgotten."""

    def __init__(self) -> None:
        self._counted: OrderedDict[Hashable, _Counted] = OrderedDict()

    def reported(self, what: Hashable, reporter: Hashable, count: int) -> Grown | None:
        """A reporter has had so many, in all; None if enough was said."""
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
