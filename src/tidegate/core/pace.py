"""How many rows to take at a time where nobody knows what they cost: learned from what the last ones took.

Two costs are told apart by batches of different sizes: that of each row, which smaller batches make shorter, and that
of each batch (a call to a service, a commit), which they would only make more frequent.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST_ROWS: Final = 16
"""To begin with where a row may take a second."""
_MOST_GROWTH: Final = 16
_MOST_GROWTH_BY_BATCH: Final = 2
"""Where it looks as if rows cost nothing: that may be a mistake, as times are not exact."""


class Pace:
    """Aims at batches that take a given time, or twice the cost of a batch where that alone takes longer. Pure."""

    def __init__(self, aim_ns: int, first_rows: int, most_rows: int) -> None:
        self._aim_ns = aim_ns
        self._most = most_rows
        self._taken: deque[tuple[int, int]] = deque(maxlen=4)
        self._batch_ns = 0
        self._knows_batch = False
        self.rows = min(first_rows, most_rows)
        """How many to take next, at most."""

    def took(self, rows: int, spent_ns: int, *, full: bool = True) -> None:
        """So many rows took so long; `full`: there were as many as there could be, so there may be more next time."""
        self._learn(rows, spent_ns)
        aim_ns = max(self._aim_ns, 2 * self._batch_ns)
        row_ns = max(spent_ns - self._batch_ns, 1) / rows
        fitting = max(1, int((aim_ns - self._batch_ns) / row_ns))
        if spent_ns > aim_ns * 5 // 4:
            self.rows = min(self.rows, fitting)
        elif full and spent_ns < aim_ns * 4 // 5:
            growth = _MOST_GROWTH_BY_BATCH if 2 * self._batch_ns > spent_ns else _MOST_GROWTH
            self.rows = min(self._most, max(self.rows, min(fitting, rows * growth)))
        elif full and not self._knows_batch:
            self.rows = min(self._most, 2 * rows)

    def _learn(self, rows: int, spent_ns: int) -> None:
        """Tell the cost of a batch from that of its rows, by the last one that had at least twice or half as many."""
        for other_rows, other_ns in reversed(self._taken):
            if 2 * rows <= other_rows or 2 * other_rows <= rows:
                row_ns = max(0.0, (spent_ns - other_ns) / (rows - other_rows))
                found = max(0, spent_ns - int(row_ns * rows))
                self._batch_ns = (self._batch_ns + found) // 2 if self._knows_batch else found
                self._knows_batch = True
                break
        else:
            self._batch_ns = min(self._batch_ns, spent_ns)
        self._taken.append((rows, spent_ns))
