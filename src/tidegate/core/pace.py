"""Learns how many rows to take at a time from the cost of earlier batches.

Batches of different sizes show two costs: that of each row, which smaller batches spread out, and that of each batch (a
call to a service, a commit), which smaller batches would only make more frequent.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate.core.clock import Clock

FIRST_ROWS: Final = 16
"""The first batch if a row may take a second."""
_MOST_GROWTH: Final = 16
_MOST_GROWTH_BY_BATCH: Final = 2
"""If rows seem to cost nothing: measured times are not exact, so that may be wrong."""


class Pace:
    """Aims at batches that take a given time, or twice the fixed cost of a batch if that is longer. Pure."""

    def __init__(self, aim_ns: int, first_rows: int, most_rows: int) -> None:
        self._aim_ns = aim_ns
        self._most = most_rows
        self._taken: deque[tuple[int, int]] = deque(maxlen=4)
        self._batch_ns = 0
        self._knows_batch = False
        self.rows = min(first_rows, most_rows)
        """The most rows to take next."""

    def took(self, rows: int, spent_ns: int, *, full: bool = True) -> None:
        """Report the time of a batch; `full`: it had as many rows as allowed, so the next may have more."""
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
        """Estimate the fixed cost per batch by comparing with the last batch of at least twice or half the rows."""
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


class SourcePace:
    """How many records a source reads at a time, by what they cost the operators chained after it. Mailbox thread only.

    The source reports each batch that it emits, the task when the operators are done with it and whether they are ready
    for more. A batch costs the time until they are done, and then the time until they are ready (one that waits for
    answers is not). Time spent waiting for credit is excluded, and so is that of other tasks.
    """

    def __init__(self, clock: Clock, pace: Pace, most_objects: int | None = None) -> None:
        """`most_objects`: how many to read at most if they come as Python objects."""
        self.rows = pace.rows
        """How many to read next, at most."""
        self._clock = clock
        self._pace = pace
        self._most_objects = most_objects
        self._batch_rows = 0
        self._full = self._objects = False
        self._began_ns: int | None = None
        self._cost_ns: int | None = None
        """What the last batch cost up to the end of its processing, until the operators are ready for more."""
        self._busy_since_ns: int | None = None
        self._waited_ns = 0

    def batch_emitted(self, rows: int, own_ns: int, *, full: bool, objects: bool) -> None:
        """The source is about to emit a batch on which it spent `own_ns`. `objects`: its records are Python objects."""
        self._batch_rows, self._full, self._objects = rows, full, objects
        self._began_ns = self._clock.monotonic_ns() - own_ns
        self._cost_ns = self._busy_since_ns = None
        self._waited_ns = 0

    def batch_processed(self) -> None:
        """The operators have processed what the source emitted, if it did."""
        if self._began_ns is not None:
            self._cost_ns = max(0, self._clock.monotonic_ns() - self._began_ns - self._waited_ns)
            self._began_ns = None

    def waited_for_credit(self, ns: int) -> None:
        """Time spent waiting for credit; excluded from the cost."""
        self._waited_ns += ns

    def was_ready(self, ready: bool) -> None:
        """Whether the operators are ready for more."""
        if self._cost_ns is None:
            return
        if not ready:
            if self._busy_since_ns is None:
                self._busy_since_ns, self._waited_ns = self._clock.monotonic_ns(), 0
            return
        cost_ns, self._cost_ns = self._cost_ns, None
        if self._busy_since_ns is not None:
            cost_ns += max(0, self._clock.monotonic_ns() - self._busy_since_ns - self._waited_ns)
        self._pace.took(self._batch_rows, cost_ns, full=self._full)
        self.rows = self._pace.rows
        if self._objects and self._most_objects is not None:
            self.rows = min(self.rows, self._most_objects)
