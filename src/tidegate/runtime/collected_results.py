"""Records on their way from `collect` and `print` sinks to the program in the driver.

The driver's thread delivers, any thread takes. The buffer needs no bound of its own: a sink subtask sends only a few
batches beyond the last one that the program has taken (`CollectedTaken`), so a slow program holds back the job.
Sequence numbers start again with every attempt, so taking a batch is reported to its own attempt only.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.events import CollectedConsumed, DeliverCollected
from tidegate.jobmanager.failover.events import OfAttempt

T = TypeVar("T")


class CollectedBuffer:
    """What one sink operator has sent and the program has not taken yet."""

    def __init__(self, operator: OperatorId, post: Callable[[OfAttempt], None]) -> None:
        self.operator = operator
        self._post = post
        self._changed = threading.Condition()
        self._batches: collections.deque[tuple[AttemptNumber, DeliverCollected]] = collections.deque()
        self._ended = False
        self._error: Exception | None = None

    def deliver(self, attempt: AttemptNumber, batch: DeliverCollected) -> None:
        with self._changed:
            if not self._ended:
                self._batches.append((attempt, batch))
                self._changed.notify_all()

    def end(self, error: Exception | None) -> None:
        """No batch follows; `take` raises `error` after the last one."""
        with self._changed:
            if not self._ended:
                self._ended = True
                self._error = error
                self._changed.notify_all()

    def take(self) -> DeliverCollected | None:
        """Wait for a batch; after the last one return None, or raise the job's error."""
        with self._changed:
            while not self._batches and not self._ended:
                self._changed.wait()
            if not self._batches:
                if self._error is not None:
                    raise self._error
                return None
            taken = self._batches.popleft()
        return self._took(*taken)

    def take_now(self) -> DeliverCollected | None:
        """Take a batch if there is one now."""
        with self._changed:
            if not self._batches:
                return None
            taken = self._batches.popleft()
        return self._took(*taken)

    def _took(self, attempt: AttemptNumber, batch: DeliverCollected) -> DeliverCollected:
        self._post(OfAttempt(attempt, CollectedConsumed(batch.operator, batch.subtask, batch.sequence)))
        return batch


class CollectedBuffers:
    """The `Collected` of a driver: a buffer for each operator that may send."""

    def __init__(self, job_graph: JobGraph, post: Callable[[OfAttempt], None]) -> None:
        operators = [operator.id for vertex in job_graph.vertices for operator in vertex.operators]
        self._buffers = {operator: CollectedBuffer(operator, post) for operator in operators}

    def __getitem__(self, operator: OperatorId) -> CollectedBuffer:
        return self._buffers[operator]

    def deliver(self, attempt: AttemptNumber, batch: DeliverCollected) -> None:
        self._buffers[batch.operator].deliver(attempt, batch)

    def end(self, error: Exception | None) -> None:
        """No batch follows; `take` raises `error` after the last one."""
        for buffer in self._buffers.values():
            buffer.end(error)


class CollectedResults(Iterator[T]):
    """An iterator over collected batches. Leaving it early (`close`, `with`, dropping it) cancels the job.

    It ends after `await_end` has returned: then nothing of the job is left, also no thread that uses staged files.
    """

    def __init__(
        self,
        buffer: CollectedBuffer,
        convert: Callable[[DeliverCollected], T],
        cancel: Callable[[bool], None],
        await_end: Callable[[], object],
    ) -> None:
        self._buffer = buffer
        self._convert = convert
        self._cancel = cancel
        self._await_end = await_end
        self._done = False

    def __iter__(self) -> CollectedResults[T]:
        return self

    def __next__(self) -> T:
        if self._done:
            raise StopIteration
        try:
            batch = self._buffer.take()
        except Exception:
            self._end()
            raise
        if batch is None:
            self._end()
            raise StopIteration
        return self._convert(batch)

    def _end(self) -> None:
        self._done = True
        self._await_end()

    def close(self) -> None:
        """Stop taking. The job is cancelled, unless it has ended, and nothing of it is left when this returns."""
        if not self._done:
            self._done = True
            self._cancel(True)

    def __enter__(self) -> CollectedResults[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._done:
            self._done = True
            self._cancel(False)
