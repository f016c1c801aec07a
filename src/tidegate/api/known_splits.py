"""Sources that know all their splits when the job starts, and readers that ask for a split when they have none left."""

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
    """A source that lists its splits; a subclass says `boundedness` and `split_type`, and makes the reader."""

    def __init__(self, record_type: RecordType) -> None:
        self._type = record_type

    @property
    def on_request(self) -> bool:
        """Whether a reader takes the next split when it is out of work; else split i belongs to reader i."""
        return True

    @abstractmethod
    def splits(self, parallelism: int) -> Sequence[SourceSplit]:
        """All splits, for this many readers."""

    @property
    def record_type(self) -> RecordType:
        """The type that it was made with."""
        return self._type

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Hands out all splits."""
        return self._enumerator(context, self.splits(context.parallelism))

    def restore_enumerator(self, context: EnumeratorContext, state: Any) -> SplitEnumerator:
        """Hands out the splits that no reader had yet."""
        if not self.on_request:
            return AssignedSplitsEnumerator.restored(context, state, self.split_type)
        return self._enumerator(context, [msgspec.convert(split, self.split_type) for split in state])

    def _enumerator(self, context: EnumeratorContext, splits: Sequence[SourceSplit]) -> SplitEnumerator:
        return (FixedSplitsEnumerator if self.on_request else AssignedSplitsEnumerator)(context, splits)


class AssignedSplitsEnumerator(SplitEnumerator):
    """Gives every reader its own splits (split i to reader i modulo parallelism) when it first asks, then no more.

    After a restore a split still belongs to its reader: another one may have finished, and would never ask for it.
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
        """From what `snapshot` returned; with another number of readers they are dealt out anew."""
        owned = [[msgspec.convert(split, split_type) for split in own] for own in state]
        if len(owned) != context.parallelism:
            return cls(context, [split for own in owned for split in own])
        made = cls(context, ())
        made._pending = owned
        return made

    def handle_split_request(self, subtask: int) -> None:
        """Assign what belongs to this reader, all at once, and say that nothing follows."""
        own, self._pending[subtask] = self._pending[subtask], []
        if own:
            self._context.assign(own, subtask)
        self._context.no_more_splits(subtask)

    def snapshot(self) -> Any:
        """The splits not yet assigned, by reader."""
        return [list(own) for own in self._pending]


class RequestingReader(SourceReader[AnyRecordOut]):
    """A reader that asks for a split when it has none left: its `poll` then returns `out_of_splits()`."""

    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._no_more = False
        self._asked = False

    def out_of_splits(self) -> Idle | Finished:
        """Finished if nothing follows; else ask, once, and wait."""
        if self._no_more:
            return FINISHED
        if not self._asked:
            self._asked = True
            self._context.request_split()
        return IDLE

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Extend this with what is done with the splits."""
        self._asked = False

    def no_more_splits(self) -> None:
        """Finish after the splits that are there."""
        self._no_more = True
