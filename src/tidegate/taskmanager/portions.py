"""Portions: a large batch enters a chain of per-record Python part by part, one part per step of the mailbox loop.

Between two parts the slot can answer a cancellation, move data and show its progress, however slow the user's function
is; and parts of about two thousand rows stay in the processor's caches (65,536 rows at once cost half as much again).
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
    """The batch that a chain is at work on. Mailbox thread only."""

    def __init__(self, clock: Clock) -> None:
        self.enabled = False
        """Whether the chain runs Python per record; a vectorised one takes batches whole."""
        self._clock = clock
        # From the start: a source whose functions may be slow begins with few.
        self._pace = Pace(_AIM_NS, MOST_ROWS, MOST_ROWS)
        self._batch: Batch | None = None
        self._start = 0
        self._receive: Receiver | None = None
        self._began_ns = 0
        self._waited_ns = 0
        self._spent_ns: int | None = None
        """What the last batch took up to the end of its last part, until that is told."""
        self._unready_ns: int | None = None
        """Since when an operator has been busy with that last part."""
        self.took: Callable[[int], None] = _nobody_asks
        """Called when the chain is done with a batch and ready for another, with the nanoseconds that it took: also
        those in which an operator was not ready (it waits for answers), but not those of `waited_for_credit`."""

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
        """Hand a batch on: whole if the chain is vectorised, else what takes about 10 ms of it now."""
        while self._batch is not None:  # offered twice within one step: order before everything
            self.step()
        self._spent_ns = self._unready_ns = None
        self._began_ns, self._waited_ns = self._clock.monotonic_ns(), 0
        if not self.enabled or not batch.num_rows:
            receive(batch)
            self._done()
            return
        self._batch, self._start, self._receive = batch, 0, receive
        self.step()

    def step(self) -> None:
        """Hand the next part on, as large as takes about 10 ms."""
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
        if is_last:
            self._done()

    def waited_for_credit(self, ns: int) -> None:
        """So long the next part had to wait because nobody had room for what comes out: that says nothing about it."""
        self._waited_ns += ns

    def chain_is_busy(self) -> None:
        """An operator is not ready: it has enough to do with what it has got."""
        if self._spent_ns is not None and self._unready_ns is None:
            self._unready_ns, self._waited_ns = self._clock.monotonic_ns(), 0

    def chain_is_ready(self) -> None:
        """All operators are ready for more."""
        if self._spent_ns is not None:
            spent_ns, self._spent_ns = self._spent_ns, None
            if self._unready_ns is not None:
                spent_ns += max(0, self._clock.monotonic_ns() - self._unready_ns - self._waited_ns)
                self._unready_ns = None
            self.took(spent_ns)

    def _done(self) -> None:
        self._spent_ns = max(0, self._clock.monotonic_ns() - self._began_ns - self._waited_ns)


def _nobody_asks(spent_ns: int) -> None:
    pass
