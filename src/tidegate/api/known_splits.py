"""Sources that know all splits when the job starts, and readers that request a split when they have none left."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.api.source import (
    FINISHED,
    IDLE,
    EnumeratorContext,
    Finished,
    FixedSplitsEnumerator,
    Idle,
    ReaderContext,
    Source,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from tidegate.records.type_variables import AnyRecordOut
from tidegate.records.types import RecordType


class KnownSplitsSource(Source[AnyRecordOut]):
    """A source that lists its splits. A subclass defines `boundedness`, `split_type` and the reader."""

    def __init__(self, record_type: RecordType) -> None:
        self._type = record_type

    @property
    def on_request(self) -> bool:
        """Whether readers request splits one by one; else split i belongs to reader i modulo parallelism."""
        return True

    @abstractmethod
    def splits(self, parallelism: int) -> Sequence[SourceSplit]:
        """List all splits, for this many readers."""

    @property
    def record_type(self) -> RecordType:
        return self._type

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        return self._enumerator(context, self.splits(context.parallelism))

    def restore_enumerator(self, context: EnumeratorContext, state: Any) -> SplitEnumerator:
        """Make an enumerator of the splits that no reader had yet."""
        if not self.on_request:
            return AssignedSplitsEnumerator.restored(context, state, self.split_type)
        return self._enumerator(context, [msgspec.convert(split, self.split_type) for split in state])

    def _enumerator(self, context: EnumeratorContext, splits: Sequence[SourceSplit]) -> SplitEnumerator:
        return (FixedSplitsEnumerator if self.on_request else AssignedSplitsEnumerator)(context, splits)


class AssignedSplitsEnumerator(SplitEnumerator):
    """Gives each reader its own splits (split i to reader i modulo parallelism) at its first request, then no more.

    After a restore a split still belongs to its reader: another reader may have finished and would never request it.
    """

    def __init__(self, context: EnumeratorContext, splits: Sequence[Any]) -> None:
        self._context = context
        self._pending: list[list[Any]] = [[] for _ in range(context.parallelism)]
        for i, split in enumerate(splits):
            self._pending[i % context.parallelism].append(split)

    @classmethod
    def restored(
        cls, context: EnumeratorContext, state: Sequence[Any], split_type: Any
    ) -> AssignedSplitsEnumerator:
        """Restore from a `snapshot`; if the number of readers has changed, distribute the splits again."""
        owned = [[msgspec.convert(split, split_type) for split in own] for own in state]
        if len(owned) != context.parallelism:
            return cls(context, [split for own in owned for split in own])
        made = cls(context, ())
        made._pending = owned
        return made

    def handle_split_request(self, subtask: int) -> None:
        own, self._pending[subtask] = self._pending[subtask], []
        if own:
            self._context.assign(own, subtask)
        self._context.no_more_splits(subtask)

    def snapshot(self) -> Any:
        return [list(own) for own in self._pending]


class RequestingReader(SourceReader[AnyRecordOut]):
    """A reader that requests a split when it has none left: its `poll` then returns `out_of_splits()`."""

    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._no_more = False
        self._asked = False

    def out_of_splits(self) -> Idle | Finished:
        """Return FINISHED if no split follows; else request one, once, and return IDLE."""
        if self._no_more:
            return FINISHED
        if not self._asked:
            self._asked = True
            self._context.request_split()
        return IDLE

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Note that the request was answered. A subclass extends this to take the splits."""
        self._asked = False

    def no_more_splits(self) -> None:
        self._no_more = True
