"""A source for tidegate's runners that hands out records which were loaded before the clock started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tidegate_probe import note_first_read

from tidegate.api.source import (
    FINISHED,
    IDLE,
    Boundedness,
    Finished,
    FixedSplitsEnumerator,
    Idle,
    ReaderContext,
    Source,
    SourceReader,
    SourceSplit,
)
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType, record_type_of

BATCH = 10_000
Load = Callable[[int, int], Iterable[Any]]
"""The records of one of several parts, given its index and the number of parts."""


class AllTogether(FixedSplitsEnumerator):
    """Lets the readers start together, when the last has loaded its records, as the peers' workers do."""

    def __init__(self, context: Any, splits: list[SourceSplit]) -> None:
        super().__init__(context, splits)
        self._waiting: list[int] = []
        self._readers = len(splits)

    def handle_split_request(self, subtask: int) -> None:
        """Answer all requests at once."""
        self._waiting.append(subtask)
        if len(self._waiting) == self._readers:
            for reader in self._waiting:
                super().handle_split_request(reader)


class MemorySource(Source):
    """Batches of BATCH records from memory."""

    def __init__(self, load: Load, type: Any, notes: Path, parallelism: int) -> None:
        self._load, self._type, self._notes, self._parallelism = load, type, notes, parallelism

    @property
    def boundedness(self) -> Boundedness:
        """It ends."""
        return Boundedness.BOUNDED

    @property
    def record_type(self) -> RecordType:
        """As it was given."""
        return record_type_of(self._type)

    def create_enumerator(self, context: Any) -> FixedSplitsEnumerator:
        """One split for each reader."""
        return AllTogether(context, [SourceSplit(id=str(i)) for i in range(self._parallelism)])

    def restore_enumerator(self, context: Any, state: Any) -> FixedSplitsEnumerator:
        """Not needed here."""
        raise AssertionError("a benchmark is not restored")

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """A reader with its own part of the records."""
        records = list(self._load(context.subtask_index, self._parallelism))
        return _MemoryReader(records, self.record_type, self._notes, context)


class _MemoryReader(SourceReader):
    def __init__(self, records: list[Any], type: RecordType, notes: Path, context: ReaderContext) -> None:
        self._records, self._type = records, type
        self._notes = notes / f"source-{context.subtask_index}.json"
        self._context = context
        self._next = 0
        self._assigned = False

    def start(self) -> None:
        self._context.request_split()

    def poll(self) -> Batch | Idle | Finished:
        if not self._assigned:
            return IDLE
        if self._next == 0:
            note_first_read(self._notes)
        rows = self._records[self._next : self._next + BATCH]
        self._next += BATCH
        return Batch.of_rows(self._type, rows) if rows else FINISHED

    def add_splits(self, splits: Sequence[Any]) -> None:
        self._assigned = True

    def no_more_splits(self) -> None:
        pass

    def snapshot(self) -> list[Any]:
        return []
