"""Running totals over dense key ids: arrays that each batch updates.

A kernel whose result is made from numbers says which `Totals` it needs. The arrays belong to a column table of the
state, or to a single batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.aggregates.numbers import UFUNCS, stored_number
from tidegate.aggregates.segmented_scans import (
    FEW_ROWS,
    Ids,
    Mask,
    RowGroups,
    empty_totals,
    few_running,
    running_counts,
    running_max,
    running_min,
    running_seen,
    running_sums,
)
from tidegate.records.column_bits import null_mask

Arrays = list[npt.NDArray[Any]]
_INT64_MAX: Final = np.iinfo(np.int64).max


class TotalColumn(NamedTuple):
    """One array of totals; names and types are part of checkpoints."""

    name: str
    dtype: np.dtype[Any]
    initial: Any
    decimal: pa.Decimal128Type | None = None


class RunningRows:
    """The rows of a batch with the ids of their keys, below `keys`; sorted once for all totals."""

    __slots__ = ("_groups", "ids", "keys")

    def __init__(self, ids: Ids, keys: int) -> None:
        self.ids = ids
        self.keys = keys
        self._groups: RowGroups | None = None

    def groups(self) -> RowGroups:
        """The rows key by key."""
        if self._groups is None:
            self._groups = RowGroups(self.ids, self.keys)
        return self._groups


class Totals(ABC):
    """How one running number is kept per key, and updated by a batch. It holds no totals itself.

    Totals are arrays by key id, described by `columns`. They are changed in place, or not at all if an error is
    raised. A key whose values were all null has a null total.
    """

    columns: list[TotalColumn]
    type: pa.DataType
    """The type of the totals as a column."""

    def fresh(self, keys: int) -> Arrays:
        """The arrays of keys without values."""
        return [np.full(keys, column.initial, column.dtype) for column in self.columns]

    @abstractmethod
    def each(self, rows: RunningRows, arrays: Arrays, values: pa.Array | None) -> tuple[pa.Array, Ids]:
        """Add a batch; return for each row the total of its key after it, and the ids that occur."""

    @abstractmethod
    def latest(self, ids: Ids, arrays: Arrays, values: pa.Array | None, touched: Ids) -> pa.Array:
        """Add a batch; return the totals of `touched`, the distinct ids of the batch."""

    def merging(self) -> Totals:
        """The totals that merge values which are totals of batches themselves."""
        return self


class CountTotals(Totals):
    """The number of records or, given values, of those that are not null."""

    type = pa.int64()

    def __init__(self) -> None:
        self.columns = [TotalColumn("count", np.dtype(np.int64), 0)]

    def each(self, rows: RunningRows, arrays: Arrays, values: pa.Array | None) -> tuple[pa.Array, Ids]:
        """Count."""
        valid = _valid(values)
        if len(rows.ids) <= FEW_ROWS and valid is None:
            few, touched = few_running("count", rows.ids, None, arrays[0])
            return pa.array(few), touched
        groups = rows.groups()
        return pa.array(running_counts(groups, arrays[0], valid)), groups.ids

    def latest(self, ids: Ids, arrays: Arrays, values: pa.Array | None, touched: Ids) -> pa.Array:
        """Count."""
        totals, valid = arrays[0], _valid(values)
        counted = ids if valid is None else ids[valid]
        if len(totals) > 4 * len(counted):
            np.add.at(totals, counted, 1)
        else:
            totals += np.bincount(counted, minlength=len(totals))
        return pa.array(totals[touched])

    def merging(self) -> Totals:
        """Counts are summed, and are never null."""
        return _MergedCounts()


class NumberTotals(Totals):
    """A folded number or time per key, and whether there was one."""

    fold: Literal["sum", "min", "max"]

    def __init__(self, name: str, value_type: pa.DataType) -> None:
        self.type = value_type
        self._storage = stored_number(value_type)
        dtype = np.dtype(self._storage.to_pandas_dtype())
        self._is_time = self._storage != value_type
        if self._is_time:
            name = f"{name} {value_type}"  # the same bits have another meaning
        self.columns = [
            TotalColumn(name, dtype, empty_totals(self.fold, dtype, 1)[0]),
            TotalColumn("seen", np.dtype(np.bool_), False),
        ]

    def each(self, rows: RunningRows, arrays: Arrays, values: pa.Array | None) -> tuple[pa.Array, Ids]:
        """Fold."""
        assert values is not None
        numbers, valid = self._numbers(values)
        totals = arrays[0]
        if (
            len(rows.ids) <= FEW_ROWS
            and valid is None
            and totals.dtype.kind == "i"
            and numbers.dtype.kind == "i"
        ):
            few, touched = few_running(self.fold, rows.ids, numbers, totals)
            self._mark(arrays, touched)
            return self._array(few, None), touched
        groups = rows.groups()
        results = self._run(groups, numbers, totals, valid)
        if valid is None:
            self._mark(arrays, groups.ids)
            return self._array(results, None), groups.ids
        return self._array(results, running_seen(groups, valid, arrays[1])), groups.ids

    def latest(self, ids: Ids, arrays: Arrays, values: pa.Array | None, touched: Ids) -> pa.Array:
        """Fold."""
        assert values is not None
        numbers, valid = self._numbers(values)
        self._add(ids, numbers, arrays[0], valid, touched)
        seen: Mask | None = None
        if valid is None:
            self._mark(arrays, touched)
        else:
            arrays[1][ids[valid]] = True
            seen = arrays[1][touched]
        return self._array(arrays[0][touched], seen)

    def _mark(self, arrays: Arrays, touched: Ids) -> None:
        arrays[1][touched] = True

    @abstractmethod
    def _run(
        self, groups: RowGroups, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None
    ) -> npt.NDArray[Any]:
        """The total after each row."""

    @abstractmethod
    def _add(
        self, ids: Ids, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None, touched: Ids
    ) -> None:
        """Add a batch to the totals without intermediate results."""

    def _array(self, numbers: npt.NDArray[Any], seen: Mask | None) -> pa.Array:
        mask = None if seen is None or seen.all() else ~seen
        array = pa.array(numbers, self._storage, mask=mask)
        return array.view(self.type) if self._is_time else array

    def _numbers(self, values: pa.Array) -> tuple[npt.NDArray[Any], Mask | None]:
        """The numbers of a column, and which are not null (None: all)."""
        if self._is_time:
            values = values.view(self._storage)
        if not values.null_count:
            return values.to_numpy(zero_copy_only=False), None
        return values.fill_null(0).to_numpy(zero_copy_only=False), ~null_mask(values)


class SumTotals(NumberTotals):
    """An int64 or a float64."""

    fold = "sum"

    def _run(
        self, groups: RowGroups, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None
    ) -> npt.NDArray[Any]:
        return running_sums(groups, numbers, totals, valid)

    def _add(
        self, ids: Ids, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None, touched: Ids
    ) -> None:
        if valid is not None:
            ids, numbers = ids[valid], numbers[valid]
        if not len(ids):
            return
        if _may_overflow(numbers, totals[touched]):
            running_sums(ids, numbers, totals)  # checks exactly
        else:
            np.add.at(totals, ids, numbers.astype(totals.dtype, copy=False))


class _MergedCounts(SumTotals):
    def __init__(self) -> None:
        super().__init__("count", pa.int64())
        del self.columns[1]

    def _mark(self, arrays: Arrays, touched: Ids) -> None:
        """Does nothing: a count is never null."""


class ExtremeTotals(NumberTotals):
    """The smallest or largest number or time."""

    def __init__(self, fold: Literal["min", "max"], value_type: pa.DataType) -> None:
        self.fold = fold
        super().__init__(fold, value_type)

    def _run(
        self, groups: RowGroups, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None
    ) -> npt.NDArray[Any]:
        running = running_min if self.fold == "min" else running_max
        return running(groups, numbers, totals, valid)

    def _add(
        self, ids: Ids, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None, touched: Ids
    ) -> None:
        if valid is not None:
            ids, numbers = ids[valid], numbers[valid]
        if not len(ids):
            return
        ufunc = UFUNCS[self.fold]
        groups = RowGroups(ids, len(totals))
        found = ufunc.reduceat(numbers[groups.order], groups.starts)
        totals[groups.ids] = ufunc(totals[groups.ids], found)


def distinct(ids: Ids, keys: int) -> tuple[Ids, Ids]:
    """The ids that occur, sorted, and for each a row with it."""
    if keys > 4 * len(ids):
        touched, rows = np.unique(ids, return_index=True)
        return touched, rows.astype(np.int64, copy=False)
    row_of = np.full(keys, -1, np.int64)
    row_of[ids] = np.arange(len(ids))
    touched = np.flatnonzero(row_of >= 0)
    return touched, row_of[touched]


def _valid(values: pa.Array | None) -> Mask | None:
    """Which values are not null; None: all."""
    if values is None or not (values.null_count or pa.types.is_dictionary(values.type)):
        return None
    return ~null_mask(values)


def _may_overflow(numbers: npt.NDArray[Any], totals: npt.NDArray[Any]) -> bool:
    """Whether a sum might exceed int64, judged by the sizes alone; never for floats."""
    if totals.dtype != np.int64:
        return False
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    start = max(abs(int(totals.min())), abs(int(totals.max())))
    return start + largest * len(numbers) > _INT64_MAX
