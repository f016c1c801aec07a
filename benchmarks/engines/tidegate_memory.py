"""A source for tidegate's runners that hands out records which were loaded before the clock started, once or again.

Its splits are blocks of records. A reader asks for one after the other, as for files: a slot that has less work after
the exchange reads more of them. So each reader has all records in its memory. Bytewax and Pathway give every worker its
part at the start; they have no such setting.
"""

from __future__ import annotations

from collections import deque
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

SPLIT = 20_000
Load = Callable[[], Iterable[Any]]
"""All records."""


class AllTogether(FixedSplitsEnumerator):
    """Lets the readers start together, when the last has loaded its records, as the peers' workers do."""

    def __init__(self, context: Any, splits: list[SourceSplit], readers: int) -> None:
        super().__init__(context, splits)
        self._readers = readers
        self._loading = set(range(readers))

    def handle_split_request(self, subtask: int) -> None:
        """Answer the first requests of all at once."""
        if not self._loading:
            super().handle_split_request(subtask)
            return
        self._loading.discard(subtask)
        if not self._loading:
            for reader in range(self._readers):
                super().handle_split_request(reader)


class Block(SourceSplit):
    """SPLIT records from `start` on."""

    start: int


class MemorySource(Source):
    """Batches from memory, as long as they are asked for."""

    split_type = Block

    def __init__(
        self, load: Load, type: Any, notes: Path, records: int, parallelism: int, repeats: int = 1
    ) -> None:
        self._load, self._type, self._notes = load, type, notes
        self._records, self._parallelism, self._repeats = records, parallelism, repeats

    @property
    def boundedness(self) -> Boundedness:
        """It ends."""
        return Boundedness.BOUNDED

    @property
    def record_type(self) -> RecordType:
        """As it was given."""
        return record_type_of(self._type)

    def create_enumerator(self, context: Any) -> FixedSplitsEnumerator:
        """Blocks of records, for the reader that asks next."""
        blocks: list[SourceSplit] = [
            Block(id=f"{repeat}-{start}", start=start)
            for repeat in range(self._repeats)
            for start in range(0, self._records, SPLIT)
        ]
        return AllTogether(context, blocks, self._parallelism)

    def restore_enumerator(self, context: Any, state: Any) -> FixedSplitsEnumerator:
        """Not needed here."""
        raise AssertionError("a benchmark is not restored")

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """A reader that has all records."""
        return _MemoryReader(list(self._load()), self.record_type, self._notes, context)


class _MemoryReader(SourceReader):
    def __init__(self, records: list[Any], type: RecordType, notes: Path, context: ReaderContext) -> None:
        self._records, self._type = records, type
        self._notes = notes / f"source-{context.subtask_index}.json"
        self._context = context
        self._blocks: deque[Block] = deque()
        self._next = self._end = 0
        self._is_first = True
        self._is_last = False

    def start(self) -> None:
        self._context.request_split()

    def poll(self) -> Batch | Idle | Finished:
        if self._next == self._end:
            if not self._blocks:
                return FINISHED if self._is_last else IDLE
            self._next = self._blocks.popleft().start
            self._end = min(self._next + SPLIT, len(self._records))
            if not self._is_last:
                self._context.request_split()  # it comes while this one is read
        if self._is_first:
            self._is_first = False
            note_first_read(self._notes)
        rows = self._records[self._next : min(self._next + self._context.batch_rows, self._end)]
        self._next += len(rows)
        return Batch(self._type, rows=rows)

    def add_splits(self, splits: Sequence[Any]) -> None:
        self._blocks.extend(splits)

    def no_more_splits(self) -> None:
        self._is_last = True

    def snapshot(self) -> list[Any]:
        return []
