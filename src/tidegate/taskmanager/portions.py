"""Portions: a large batch enters a chain of per-record Python in parts, one part per step of the mailbox loop.

Between two parts the slot can answer a cancellation, move data and show its progress, however slow the user's function
is. Parts of about two thousand rows stay in the processor's caches (65,536 rows at once cost 1.5 times as much).
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core.clock import Clock
from tidegate.core.pace import Pace
from tidegate.records.batch import Batch

Receiver = Callable[[Batch], None]

MOST_ROWS = 2048
_AIM_NS = 10_000_000


class Portions:
    """The batch that a chain is processing. Mailbox thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Large from the start: a source whose functions may be slow begins with few records.
        self._pace = Pace(_AIM_NS, MOST_ROWS, MOST_ROWS)
        self._batch: Batch | None = None
        self._start = 0
        self._receive: Receiver | None = None

    @property
    def is_empty(self) -> bool:
        return self._batch is None

    @property
    def rest(self) -> Batch | None:
        """The rows of the batch that were not passed on yet."""
        batch = self._batch
        return None if batch is None else batch.slice(self._start, batch.num_rows - self._start)

    def offer(self, batch: Batch, receive: Receiver) -> None:
        """Pass on as much of the batch as takes about 10 ms; the rest waits."""
        while self._batch is not None:  # offered twice within one step: keep the order
            self.step()
        if not batch.num_rows:
            receive(batch)
            return
        self._batch, self._start, self._receive = batch, 0, receive
        self.step()

    def step(self) -> None:
        """Pass on the next part, as large as takes about 10 ms."""
        batch, receive = self._batch, self._receive
        assert batch is not None
        assert receive is not None
        start, rows = self._start, batch.portion(self._start, self._pace.rows)
        self._start += rows
        is_last = self._start == batch.num_rows
        if is_last:
            self._batch = self._receive = None
        part = batch if rows == batch.num_rows else batch.slice(start, rows)
        began_ns = self._clock.monotonic_ns()
        receive(part)
        self._pace.took(rows, self._clock.monotonic_ns() - began_ns, full=not is_last)
