"""The built-in aggregates record by record: for triggers, evictors, processing time, count and global windows.

A value here is the tuple of the columns that the aggregates read. `columns/` does the same by columns; both must agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from decimal import Decimal
from math import nan
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidegate.api.window_aggregates import (
    Avg,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    Min,
    Sum,
    TopN,
    WindowAggregate,
)
from tidegate.core.words import kind_of
from tidegate.operators.window.row_accumulators import Accumulators
from tidegate.records.batch import Batch
from tidegate.records.decimals import MOST_DIGITS, exact_average, exact_sum, overflow_advice, sum_type
from tidegate.records.types import RecordType, RowType, column_values

_INT64: Final = 1 << 63


class RowAggregate(ABC):
    """One aggregate. What it keeps is any Python object; in the state it is one value per field."""

    fields: list[tuple[str, pa.DataType]]

    @abstractmethod
    def start(self) -> Any:
        """What is kept of no records."""

    @abstractmethod
    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        """With one record more; may change the given one."""

    @abstractmethod
    def merge(self, left: Any, right: Any) -> Any:
        """Two as one; may change both."""

    @abstractmethod
    def result(self, kept: Any) -> Any:
        """The result."""

    def dump(self, kept: Any) -> tuple[Any, ...]:
        """One value per field."""
        return (kept,)

    def load(self, stored: tuple[Any, ...]) -> Any:
        """What was kept."""
        return stored[0]


class BuiltInAccumulators(Accumulators):
    """Several aggregates side by side; the result is a list with one value each."""

    def __init__(self, aggregates: tuple[tuple[str, WindowAggregate], ...], record_type: RecordType) -> None:
        self._columns: list[int] = []
        self._aggregates = [self._make(aggregate, record_type) for _, aggregate in aggregates]
        fields: list[pa.Field] = []
        self._parts: list[slice] = []
        for (output, _), aggregate in zip(aggregates, self._aggregates, strict=True):
            self._parts.append(slice(len(fields), len(fields) + len(aggregate.fields)))
            fields += [pa.field(f"{output}.{name}", t, True) for name, t in aggregate.fields]
        self.stored_type = RowType(pa.schema(fields))

    def values(self, batch: Batch) -> list[tuple[Any, ...]]:
        """The values of a batch's records."""
        if not self._columns:
            return [()] * batch.num_rows
        columns = batch.columns
        return list(zip(*(column_values(columns.column(i), None) for i in self._columns), strict=True))

    def create(self, value: Any, timestamp_ms: int) -> Any:
        """Those of one record."""
        return [a.add(a.start(), value, timestamp_ms) for a in self._aggregates]

    def add(self, accumulator: Any, value: Any, timestamp_ms: int) -> Any:
        """Add to each."""
        for i, aggregate in enumerate(self._aggregates):
            accumulator[i] = aggregate.add(accumulator[i], value, timestamp_ms)
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        """Merge each."""
        return [a.merge(x, y) for a, x, y in zip(self._aggregates, left, right, strict=True)]

    def result(self, accumulator: Any) -> Any:
        """The results."""
        return [a.result(kept) for a, kept in zip(self._aggregates, accumulator, strict=True)]

    def dump(self, accumulator: Any) -> Any:
        """All fields as one row."""
        return tuple(v for a, kept in zip(self._aggregates, accumulator, strict=True) for v in a.dump(kept))

    def load(self, stored: Any) -> Any:
        """The parts of the row."""
        row = tuple(stored)
        return [a.load(row[part]) for a, part in zip(self._aggregates, self._parts, strict=True)]

    def _make(self, aggregate: WindowAggregate, record_type: RecordType) -> RowAggregate:
        def place(column: str) -> int:
            index = record_type.field_index(column, aggregate.kind)
            if index not in self._columns:
                self._columns.append(index)
            return self._columns.index(index)

        def type_of(column: str) -> pa.DataType:
            return record_type.schema.field(record_type.field_index(column, aggregate.kind)).type

        match aggregate:
            case Count(column):
                return _Count(None if column is None else place(column))
            case Sum(column) | Avg(column) if pa.types.is_decimal(type_of(column)):
                result = aggregate.result_field("", record_type).type
                return _DecimalSum(aggregate, place(column), type_of(column), result)
            case Sum(column):
                return _Sum(column, place(column), aggregate.result_field("", record_type).type)
            case Min(column):
                return _Extreme(place(column), type_of(column), smallest=True)
            case Max(column):
                return _Extreme(place(column), type_of(column), smallest=False)
            case Avg(column):
                return _Avg(place(column))
            case First(column):
                return _AtTime(place(column), type_of(column), earliest=True)
            case Last(column):
                return _AtTime(place(column), type_of(column), earliest=False)
            case CountDistinct(column):
                return _CountDistinct(place(column), type_of(column))
            case TopN():
                names = aggregate.selected(record_type)
                return _TopN(
                    aggregate,
                    place(aggregate.by),
                    type_of(aggregate.by),
                    [(n, place(n), type_of(n)) for n in names],
                )
        raise TypeError(f"no accumulator for {kind_of(aggregate)}")


class _Count(RowAggregate):
    fields = [("count", pa.int64())]

    def __init__(self, place: int | None) -> None:
        self._place = place

    def start(self) -> Any:
        return 0

    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        return kept + 1 if self._place is None or values[self._place] is not None else kept

    def merge(self, left: Any, right: Any) -> Any:
        return left + right

    def result(self, kept: Any) -> Any:
        return kept


class _Sum(RowAggregate):
    def __init__(self, column: str, place: int, result_type: pa.DataType) -> None:
        self._column = column
        self._place = place
        self._is_float = pa.types.is_floating(result_type)
        self.fields = [("sum", result_type)]

    def start(self) -> Any:
        return None

    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        return self.merge(kept, values[self._place])

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        total = left + right
        if not self._is_float and not -_INT64 <= total < _INT64:
            raise OverflowError(
                f"sum({self._column!r}): {total} does not fit into int64. Cast the column to float before it is summed"
            )
        return total

    def result(self, kept: Any) -> Any:
        return kept


class _DecimalSum(RowAggregate):
    """The exact sum of decimals, or the mean made from it. What is kept is (sum, count)."""

    def __init__(
        self, aggregate: Sum | Avg, place: int, value_type: pa.Decimal128Type, result_type: pa.Decimal128Type
    ) -> None:
        self._name = f"{aggregate.kind}({aggregate.column!r})"
        self._is_sum = isinstance(aggregate, Sum)
        self._place = place
        self._type = sum_type(value_type)
        self._limit = Decimal(10) ** (MOST_DIGITS - value_type.scale)
        self._result = result_type
        self.fields = [("sum", self._type), ("count", pa.int64())]

    def start(self) -> Any:
        return Decimal(0), 0

    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        value = values[self._place]
        return kept if value is None else self.merge(kept, (value, 1))

    def merge(self, left: Any, right: Any) -> Any:
        total = exact_sum(left[0], right[0])
        if abs(total) >= self._limit:
            raise OverflowError(
                f"{self._name}: {total} does not fit a {self._type}. {overflow_advice(of_decimals=True)}"
            )
        return total, left[1] + right[1]

    def result(self, kept: Any) -> Any:
        total, count = kept
        if not count:
            return None
        return total if self._is_sum else exact_average(total, count, self._result.scale)

    def dump(self, kept: Any) -> tuple[Any, ...]:
        return tuple(kept)

    def load(self, stored: tuple[Any, ...]) -> Any:
        return stored


class _Extreme(RowAggregate):
    """NaN is the largest number."""

    def __init__(self, place: int, value_type: pa.DataType, smallest: bool) -> None:
        self._place = place
        self._smallest = smallest
        self.fields = [("value", value_type)]

    def start(self) -> Any:
        return None

    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        return self.merge(kept, values[self._place])

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        if self._smallest:
            return right if right < left or left != left else left
        return right if right > left or right != right else left

    def result(self, kept: Any) -> Any:
        return kept


class _Avg(RowAggregate):
    fields = [("sum", pa.float64()), ("count", pa.int64())]

    def __init__(self, place: int) -> None:
        self._place = place

    def start(self) -> Any:
        return 0.0, 0

    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        value = values[self._place]
        return kept if value is None else (kept[0] + value, kept[1] + 1)

    def merge(self, left: Any, right: Any) -> Any:
        return left[0] + right[0], left[1] + right[1]

    def result(self, kept: Any) -> Any:
        return kept[0] / kept[1] if kept[1] else None

    def dump(self, kept: Any) -> tuple[Any, ...]:
        return tuple(kept)

    def load(self, stored: tuple[Any, ...]) -> Any:
        return stored


class _AtTime(RowAggregate):
    """First or last: what is kept is (timestamp, value), or None."""

    def __init__(self, place: int, value_type: pa.DataType, earliest: bool) -> None:
        self._place = place
        self._earliest = earliest
        self.fields = [("time", pa.int64()), ("value", value_type)]

    def start(self) -> Any:
        return None

    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        value = values[self._place]
        return kept if value is None else self.merge(kept, (timestamp_ms, value))

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        newer = right[0] < left[0] if self._earliest else right[0] >= left[0]
        return right if newer else left

    def result(self, kept: Any) -> Any:
        return None if kept is None else kept[1]

    def dump(self, kept: Any) -> tuple[Any, ...]:
        return (None, None) if kept is None else kept

    def load(self, stored: tuple[Any, ...]) -> Any:
        return None if stored[0] is None else stored


class _CountDistinct(RowAggregate):
    """What is kept is a dict, which remembers the order: the state is the same for the same input."""

    def __init__(self, place: int, value_type: pa.DataType) -> None:
        self._place = place
        self.fields = [("values", pa.list_(value_type))]

    def start(self) -> Any:
        return {}

    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        value = values[self._place]
        if value is not None:
            kept[value if value == value else nan] = None
        return kept

    def merge(self, left: Any, right: Any) -> Any:
        left.update(right)
        return left

    def result(self, kept: Any) -> Any:
        return len(kept)

    def dump(self, kept: Any) -> tuple[Any, ...]:
        return (list(kept),)

    def load(self, stored: tuple[Any, ...]) -> Any:
        return {value if value == value else nan: None for value in stored[0]}


class _Ranked(NamedTuple):
    rank: tuple[bool, Any]
    """Whether it is NaN, which is the largest number, and the number."""
    timestamp_ms: int
    record: tuple[Any, ...]


class _TopN(RowAggregate):
    """What is kept is a list of at most n `_Ranked`, best first."""

    def __init__(
        self, aggregate: TopN, by: int, by_type: pa.DataType, selected: list[tuple[str, int, pa.DataType]]
    ) -> None:
        self._n = aggregate.n
        self._largest = aggregate.largest
        self._by = by
        self._names = [name for name, _, _ in selected]
        self._places = [place for _, place, _ in selected]
        record = pa.struct([pa.field(name, t, True) for name, _, t in selected])
        self.fields = [
            ("by", pa.list_(by_type)),
            ("times", pa.list_(pa.int64())),
            ("records", pa.list_(record)),
        ]

    def start(self) -> Any:
        return []

    def add(self, kept: Any, values: tuple[Any, ...], timestamp_ms: int) -> Any:
        by = values[self._by]
        if by is None:
            return kept
        record = tuple(values[place] for place in self._places)
        return self._insert(kept, _Ranked(_rank(by), timestamp_ms, record))

    def merge(self, left: Any, right: Any) -> Any:
        for ranked in right:
            self._insert(left, ranked)
        return left

    def result(self, kept: Any) -> Any:
        return [dict(zip(self._names, r.record, strict=True)) for r in kept]

    def dump(self, kept: Any) -> tuple[Any, ...]:
        return [r.rank[1] for r in kept], [r.timestamp_ms for r in kept], self.result(kept)

    def load(self, stored: tuple[Any, ...]) -> Any:
        return [
            _Ranked(_rank(by), time, tuple(record[name] for name in self._names))
            for by, time, record in zip(*stored, strict=True)
        ]

    def _insert(self, kept: list[_Ranked], new: _Ranked) -> list[_Ranked]:
        if len(kept) == self._n and not self._is_better(new, kept[-1]):
            return kept
        place = len(kept)
        while place and self._is_better(new, kept[place - 1]):
            place -= 1
        kept.insert(place, new)
        del kept[self._n :]
        return kept

    def _is_better(self, one: _Ranked, other: _Ranked) -> bool:
        if one.rank == other.rank:
            return one.timestamp_ms < other.timestamp_ms
        return one.rank > other.rank if self._largest else one.rank < other.rank


def _rank(by: Any) -> tuple[bool, Any]:
    return (False, by) if by == by else (True, nan)
