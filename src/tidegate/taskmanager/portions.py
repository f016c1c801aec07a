"""Portions: a large batch enters a chain of per-record Python part by part, one part per step of the mailbox loop.

Between two parts the slot can answer a cancellation, move data and show its progress, however slow the user's function
is; and parts of a few thousand rows stay in the processor's caches (65,536 rows at once cost half as much again).
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core.clock import Clock
from tidegate.records.batch import Batch

Receiver = Callable[[Batch], None]

MOST_ROWS = 4096
_SLOW_NS = 20_000_000
_FAST_NS = 5_000_000
_AIM_NS = 10_000_000


class Portions:
    """The batch that a chain is at work on. Mailbox thread only."""

    def __init__(self, clock: Clock) -> None:
        self.enabled = False
        """Whether the chain runs Python per record; a vectorised one takes batches whole."""
        self._clock = clock
        self._rows = MOST_ROWS
        self._batch: Batch | None = None
        self._start = 0
        self._receive: Receiver | None = None
        self._spent_ns = 0
        self.took: Callable[[int, int], None] = _nobody_asks
        """Called when a batch was handed on to its end, with its rows and the nanoseconds that its parts took."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._batch is None

    @property
    def rest(self) -> Batch | None:
        """What of the batch was not handed on yet."""
        batch = self._batch
        return None if batch is None else batch.slice(self._start, batch.num_rows - self._start)

    def offer(self, batch: Batch, receive: Receiver) -> None:
        """Hand a batch on: whole if it is small or the chain is vectorised, else its first part now."""
        while self._batch is not None:  # offered twice within one step: order before everything
            self.step()
        if not self.enabled or batch.num_rows <= self._rows:
            self.took(batch.num_rows, self._hand_on(batch, receive))
            return
        self._batch, self._start, self._receive, self._spent_ns = batch, 0, receive, 0
        self.step()

    def step(self) -> None:
        """Hand the next part on, as large as takes about 10 ms."""
        batch, receive = self._batch, self._receive
        assert batch is not None
        assert receive is not None
        start, rows = self._start, batch.portion(self._start, self._rows)
        self._start += rows
        done = self._start == batch.num_rows
        if done:
            self._batch = self._receive = None
        spent_ns = self._hand_on(batch.slice(start, rows), receive)
        self._spent_ns += spent_ns
        if done:
            self.took(batch.num_rows, self._spent_ns)
        if spent_ns > _SLOW_NS:
            self._rows = max(1, rows * _AIM_NS // spent_ns)
        elif spent_ns < _FAST_NS:
            self._rows = min(MOST_ROWS, self._rows * 2)

    def _hand_on(self, part: Batch, receive: Receiver) -> int:
        began_ns = self._clock.monotonic_ns()
        receive(part)
        return self._clock.monotonic_ns() - began_ns


def _nobody_asks(rows: int, spent_ns: int) -> None:
    pass
