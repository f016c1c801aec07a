"""The reader of files: takes splits one after the other, asks for the next in time, knows its position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from tidegate.api.source import (
    FINISHED,
    IDLE,
    Finished,
    Idle,
    ReaderContext,
    SourceReader,
    SourceSplit,
)
from tidegate.records.batch import Batch


class OpenSplit(ABC):
    """A split that is being read."""

    @abstractmethod
    def next_batch(self, max_rows: int) -> Batch | None:
        """The next records; None when this step had none (look at `finished`)."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether all records were returned."""

    @abstractmethod
    def current(self) -> SourceSplit:
        """The split with the position of the next record."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class FileReader(SourceReader):
    """Reads splits in the order they came; holds at most one more than it reads, so that it never waits for one."""

    last_split = ""

    def __init__(self, context: ReaderContext, open_split: Callable[[SourceSplit], OpenSplit]) -> None:
        self._context = context
        self._open_split = open_split
        self._waiting: deque[SourceSplit] = deque()
        self._open: OpenSplit | None = None
        self._requested = False
        self._no_more = False

    def start(self) -> None:
        self._request()

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._requested = False
        self._waiting.extend(splits)

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self) -> Batch | Idle | Finished:
        while True:
            if self._open is None:
                if not self._waiting:
                    self._request()
                    if not self._waiting:
                        return FINISHED if self._no_more else IDLE
                # Stays in the queue until it is open: a split that cannot be opened is not lost from a snapshot.
                self._open = self._open_split(self._waiting[0])
                self.last_split = self._waiting.popleft().id
                self._request()
            batch = self._open.next_batch(self._context.batch_rows)
            if self._open.finished:
                self._open.close()
                self._open = None
            elif batch is None:
                # A whole chunk without a record: let the task do something else before the next one.
                return Idle(self._context.clock.monotonic_ns())
            if batch is not None:
                return batch

    def snapshot(self) -> list[SourceSplit]:
        held = [] if self._open is None else [self._open.current()]
        return held + list(self._waiting)

    def reading(self) -> list[str]:
        """The split that is open."""
        return [] if self._open is None else [self._open.current().id]

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _request(self) -> None:
        if not (self._requested or self._no_more or self._waiting):
            self._requested = True  # first: the answer may come within the call
            self._context.request_split()
