"""Sources of numbered records: a Python collection, and a range of numbers.

Both read spans of indices. A span is a split, and its position is the next index. So a stored position is exact, and a
reader that gets the span back continues with that record. The order inside a span is kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.api.known_splits import KnownSplitsSource, RequestingReader
from tidegate.api.source import Boundedness, Finished, Idle, ReaderContext, SourceReader, SourceSplit
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.identity import Identity
from tidegate.records.batch import Batch, Origin
from tidegate.records.tables import records_of
from tidegate.records.type_variables import AnyRecordOut
from tidegate.records.types import RecordType, RowType, ScalarType, infer_record_type, record_type_of

_INT64_MAX = 2**63 - 1
_SPLITS_PER_READER = 8
_ROWS_WORTH_A_SPLIT = 1 << 16


class SpanSplit(SourceSplit, frozen=True, kw_only=True):
    """The indices from `position` (the next one) up to, but not including, `end`."""

    position: int
    end: int


def cut_into_spans(count: int, pieces: int, align: int = 1) -> list[tuple[int, int]]:
    """Cut the indices 0..count-1 into at most `pieces` spans of nearly equal length, none empty.

    All inner borders are multiples of `align`.

    >>> cut_into_spans(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    >>> cut_into_spans(10, 3, align=4)
    [(0, 4), (4, 8), (8, 10)]
    >>> cut_into_spans(2, 5)
    [(0, 1), (1, 2)]
    """
    units = -(-count // align)
    pieces = min(pieces, units)
    borders = [min(count, align * (units * i // pieces)) for i in range(pieces + 1)] if pieces else []
    return list(pairwise(borders))


def spans_for(count: int, parallelism: int, align: int = 1) -> list[tuple[int, int]]:
    """Cut indices for readers that request splits: several spans per reader, so that fast readers take more.

    Small inputs get one span per reader, large ones eight, each of at least 65,536 records.
    """
    pieces = max(parallelism, min(parallelism * _SPLITS_PER_READER, count // _ROWS_WORTH_A_SPLIT))
    return cut_into_spans(count, pieces, align if count >= parallelism * align else 1)


class SpanReader(RequestingReader[AnyRecordOut]):
    """Reads spans one after the other, each in order, and requests the next when it has none left."""

    last_split = ""

    def __init__(self, context: ReaderContext) -> None:
        super().__init__(context)
        self._splits: deque[SpanSplit] = deque()
        self._position = 0

    @abstractmethod
    def read(self, start: int, stop: int, split: SpanSplit) -> Batch[AnyRecordOut]:
        """Make the records with these indices."""

    def poll(self) -> Batch[AnyRecordOut] | Idle | Finished:
        while self._splits:
            split = self._splits[0]
            start = self._position
            if start < split.end:
                self._position = min(split.end, start + self._context.batch_rows)
                self.last_split = split.id
                return self.read(start, self._position, split)
            self._splits.popleft()
            self._position = self._splits[0].position if self._splits else 0
        return self.out_of_splits()

    def add_splits(self, splits: Sequence[Any]) -> None:
        super().add_splits(splits)
        if splits and not self._splits:
            self._position = splits[0].position
        self._splits.extend(splits)

    def snapshot(self) -> list[Any]:
        """The spans with records left, the first at its current position."""
        splits = list(self._splits)
        if splits:
            splits[0] = msgspec.structs.replace(splits[0], position=self._position)
        return [split for split in splits if split.position < split.end]

    def reading(self) -> list[str]:
        """The current span, until its last record."""
        return [split.id for split in list(self._splits)[:1] if self._position < split.end]


class CollectionSource(KnownSplitsSource):
    """Reads the values of a Python collection, which are sent with the program: for tests, examples, small tables.

    Each reader gets at most one span of adjacent values. Without a record type, it is inferred from the values, and
    integers among floats become floats. Values that do not fit a given type are refused in the user's process.

    >>> source = CollectionSource(["tide", "gate"], str)
    >>> source.describe()
    'collection of 2 str'
    """

    boundedness = Boundedness.BOUNDED
    split_type = SpanSplit
    on_request = False

    def __init__(self, values: Iterable[Any], record_type: Any = None) -> None:
        self._values, found = records_of(values, record_type)
        super().__init__(infer_record_type(self._values) if found is None else record_type_of(found))
        try:
            self._type.check_rows(self._values)
            if not self._type.is_object:  # objects are pickled only if they leave their process
                columns = self._type.to_columns(self._values)
                if record_type is None and isinstance(self._type, (RowType, ScalarType)):
                    self._values = self._type.to_rows(columns)  # dicts are rows, and 1 among floats is 1.0
        except SchemaError as e:
            raise SchemaError(f"from_collection: {e}") from e

    @property
    def expected_records(self) -> int:
        """The number of records."""
        return len(self._values)

    def splits(self, parallelism: int) -> list[SourceSplit]:
        spans = cut_into_spans(len(self._values), parallelism)
        return [SpanSplit(id=f"values {a}..{b - 1}", position=a, end=b) for a, b in spans]

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _CollectionReader(context, self._values, self._type)

    def describe(self) -> str:
        return f"collection of {len(self._values)} {self._type.describe()}"

    def identity(self) -> Identity:
        return "collection", len(self._values), tuple(self._type.names)


class _CollectionReader(SpanReader):
    def __init__(self, context: ReaderContext, values: list[Any], record_type: RecordType) -> None:
        super().__init__(context)
        self._values = values
        self._type = record_type

    def read(self, start: int, stop: int, split: SpanSplit) -> Batch:
        return Batch(self._type, rows=self._values[start:stop], origin=Origin("collection", start, "value"))


class NumberSequenceSource(KnownSplitsSource[int]):
    """The integers from `start` to `end`, both included, in the column `value`.

    Readers request spans one by one; within a span the numbers are in order.

    >>> NumberSequenceSource(1, 1_000_000).describe()
    'numbers 1 to 1000000'
    """

    boundedness = Boundedness.BOUNDED
    split_type = SpanSplit

    def __init__(self, start: int, end: int) -> None:
        super().__init__(record_type_of(int))
        given: list[tuple[str, Any]] = [("start", start), ("end", end)]
        for name, value in given:
            if isinstance(value, bool) or not isinstance(value, int) or not -_INT64_MAX <= value < _INT64_MAX:
                raise ProgramError(f"number sequence: {name} must be a 64-bit whole number, not {value!r}.")
        if end < start - 1:
            raise ProgramError(f"number sequence: end ({end}) must not be less than start ({start}).")
        self._start = start
        self._count = end - start + 1
        if self._count > _INT64_MAX:
            raise ProgramError(f"number sequence: {start} to {end} are more than 2**63 - 1 numbers.")

    @property
    def expected_records(self) -> int:
        """The number of records."""
        return self._count

    def splits(self, parallelism: int) -> list[SourceSplit]:
        first = self._start
        return [
            SpanSplit(id=f"numbers {first + a}..{first + b - 1}", position=a, end=b)
            for a, b in spans_for(self._count, parallelism)
        ]

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _NumberReader(context, self._start, self._type)

    def describe(self) -> str:
        return f"numbers {self._start} to {self._start + self._count - 1}"

    def identity(self) -> Identity:
        return "numbers", self._start, self._count


class _NumberReader(SpanReader):
    def __init__(self, context: ReaderContext, first: int, record_type: RecordType) -> None:
        super().__init__(context)
        self._first = first
        self._type = record_type

    def read(self, start: int, stop: int, split: SpanSplit) -> Batch:
        numbers = np.arange(self._first + start, self._first + stop, dtype=np.int64)
        columns = pa.RecordBatch.from_arrays([pa.array(numbers)], schema=self._type.schema)
        return Batch(self._type, columns=columns, origin=Origin(split.id, start, "number"))
