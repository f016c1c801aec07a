"""The reader of files: reads one split after the other, requests the next one early, and tracks its position."""

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
        """The next records; None if this step found none (check `finished`)."""

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
    """Reads splits in the order of arrival; keeps at most one more in reserve, so that it does not wait for one."""

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
                # The split stays in the queue until it is open: a snapshot must not lose one that fails to open.
                self._open = self._open_split(self._waiting[0])
                self.last_split = self._waiting.popleft().id
                self._request()
            batch = self._open.next_batch(self._context.batch_rows)
            if self._open.finished:
                self._open.close()
                self._open = None
            elif batch is None:
                # A whole chunk without a record: let the task do other work before the next chunk.
                return Idle(self._context.clock.monotonic_ns())
            if batch is not None:
                return batch

    def snapshot(self) -> list[SourceSplit]:
        held = [] if self._open is None else [self._open.current()]
        return held + list(self._waiting)

    def reading(self) -> list[str]:
        return [] if self._open is None else [self._open.current().id]

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _request(self) -> None:
        if not (self._requested or self._no_more or self._waiting):
            self._requested = True  # first: the answer may come within the call
            self._context.request_split()
