"""Built-in aggregates over groups of rows: partial results that merge, and what is given out in the end.

A partial result is one or more columns. Those of counts, sums, averages and extremes of numbers and times are numpy
arrays that merge element by element (`merging`), so whole slices of a window merge at the speed of memory; the others
(see `value_accumulators`) are Arrow arrays that merge by group. Nulls are left out; what has seen nulls only is null.

A sum of integers that leaves 64 bits, or of decimals that has more than 38 digits, raises `OverflowError`. Sums of
floats are added in the order of arrival within a batch and then batch by batch, so their last bits depend on where
batches are cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.api.window_partials import stored_number
from tidegate.operators.window.groups import Groups
from tidegate.records.column_bits import null_mask
from tidegate.records.decimals import check_digits, unscaled
from tidegate.records.rolling import empty_totals, running_sums

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Column = Any
"""A numpy array, or an Arrow array."""
_INT64_MAX: Final = (1 << 63) - 1


class Accumulator(ABC):
    """One aggregate. Holds no results itself."""

    fields: list[pa.Field]
    """The columns of a partial result, as checkpoints and exchanges have them."""
    numbers: int = 0
    """How many of them, from the first, are numpy arrays."""
    merging: list[np.ufunc] | None = None
    """For each column what merges two of its elements; None: merge by group only."""
    may_overflow: bool = False
    """Whether the first column is a sum that may leave its type; counts of records do not."""
    initial: Sequence[Any] = ()
    """For each column that has a `merging` the element that changes no other."""

    @abstractmethod
    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """The partial result of each present group of rows."""

    @abstractmethod
    def merge(self, groups: Groups, columns: list[Column]) -> list[Column]:
        """Rows are partial results, in order of arrival: one for each present group."""

    @abstractmethod
    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """What is given out. `records` is how many records there were, nulls included."""


class CountRecords(Accumulator):
    """How many records there are: that is known anyway."""

    def __init__(self) -> None:
        self.fields = []
        self.merging = []

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """Nothing."""
        return []

    def merge(self, groups: Groups, columns: list[Column]) -> list[Column]:
        """Nothing."""
        return []

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """The records."""
        return pa.array(records)


class NumberAccumulator(Accumulator):
    """What merges element by element."""

    numbers = 2

    def merge(self, groups: Groups, columns: list[Column]) -> list[Column]:
        """Each column by its `merging`."""
        assert self.merging is not None
        return [
            reduce_numbers(groups, c, merging, initial)
            for c, merging, initial in zip(columns, self.merging, self.initial, strict=True)
        ]


class CountValues(NumberAccumulator):
    """How many values are not null."""

    def __init__(self) -> None:
        self.fields = [pa.field("count", pa.int64(), False)]
        self.merging = [np.add]
        self.initial = [0]

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """Count."""
        assert values is not None
        return [count_values(groups, values)]

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """The count."""
        return pa.array(columns[0])


class Total(NumberAccumulator):
    """A sum (int64 or float64), or the smallest or largest number or time."""

    def __init__(self, kind: Literal["sum", "min", "max"], result_type: pa.DataType) -> None:
        self._kind = kind
        self._type = result_type
        self._storage = stored_number(result_type)
        dtype = np.dtype(self._storage.to_pandas_dtype())
        self._initial = empty_totals(kind, dtype, 1)[0]
        self._ufunc = {"sum": np.add, "min": np.fmin, "max": np.maximum}[kind]
        self.fields = [pa.field(kind, self._storage, False), pa.field("seen", pa.bool_(), False)]
        self.merging = [self._ufunc, np.logical_or]
        self.may_overflow = kind == "sum" and dtype.kind == "i"
        self.initial = [self._initial, False]

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """Reduce."""
        assert values is not None
        numbers, valid = numbers_of(values)
        return list(reduce_seen(groups, numbers, valid, self._ufunc, self._initial))

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """The number, null where none was seen."""
        total, seen = columns
        return _with_nulls(total, ~seen, self._storage, self._type)


class Average(NumberAccumulator):
    """The mean as a float64."""

    def __init__(self) -> None:
        self.fields = [pa.field("sum", pa.float64(), False), pa.field("count", pa.int64(), False)]
        self.merging = [np.add, np.add]
        self.initial = [-0.0, 0]

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """Sum and count."""
        assert values is not None
        numbers, valid = numbers_of(values)
        doubles = numbers.astype(np.float64, copy=False)
        if valid is not None:
            doubles = np.where(valid, doubles, -0.0)
        return [reduce_numbers(groups, doubles, np.add, -0.0), count_values(groups, values)]

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """The quotient, null where nothing was seen."""
        total, count = columns
        none = count == 0
        return _with_nulls(total / np.where(none, 1, count), none, pa.float64(), pa.float64())


# ---- numbers ----


def reduce_seen(
    groups: Groups, numbers: npt.NDArray[Any], valid: Mask | None, ufunc: np.ufunc, initial: Any
) -> tuple[npt.NDArray[Any], Mask]:
    """One number for each present group of those that are `valid` (None: all are), and which groups have one."""
    if valid is None:
        return reduce_numbers(groups, numbers, ufunc, initial), np.ones(len(groups), np.bool_)
    rows = np.flatnonzero(valid)
    seen = np.zeros(groups.space, np.bool_)
    seen[groups.codes[rows]] = True
    seen = seen[groups.present]
    total = np.full(len(groups), initial)
    if len(rows):
        total[seen] = reduce_numbers(groups.subset(rows), numbers[rows], ufunc, initial)
    return total, seen


def reduce_numbers(
    groups: Groups, numbers: npt.NDArray[Any], ufunc: np.ufunc, initial: Any
) -> npt.NDArray[Any]:
    """One number for each present group. Raises `OverflowError` where a sum leaves int64, or 38 digits."""
    dtype = np.asarray(initial).dtype if ufunc is np.add else numbers.dtype
    if ufunc is np.add and dtype.kind == "i":
        numbers = _as_longs(numbers)
        if _may_overflow(numbers):
            totals = np.zeros(groups.space, np.int64)
            running_sums(groups.codes, numbers, totals)  # finds out exactly
            return totals[groups.present]
    elif ufunc is np.add and dtype.kind == "f":
        numbers = numbers.astype(np.float64, copy=False)
    if len(groups) == len(groups.codes) and groups.space <= 4 * len(
        groups.codes
    ):  # every row a group of its own
        return numbers[groups.first_rows]
    totals = np.full(groups.space, initial, numbers.dtype)
    with np.errstate(invalid="ignore"):  # NaN is a number like any other, the largest
        ufunc.at(totals, groups.codes, numbers)
    found = totals[groups.present]
    if ufunc is np.add and dtype.kind == "O":
        check_digits(found)
    return found


def count_values(groups: Groups, values: pa.Array) -> Longs:
    """How many values of each present group are not null."""
    if not values.null_count and not pa.types.is_dictionary(values.type):
        return groups.sizes
    return np.bincount(groups.codes[~null_mask(values)], minlength=groups.space)[groups.present]


def merge_numbers(
    ufunc: np.ufunc, into: npt.NDArray[Any], other: npt.NDArray[Any], *, may_overflow: bool
) -> npt.NDArray[Any]:
    """Element by element, into a new array. Raises `OverflowError` where a sum that may do so wraps around."""
    if not may_overflow:
        with np.errstate(invalid="ignore"):
            merged: npt.NDArray[Any] = ufunc(into, other)
        return merged
    sums: npt.NDArray[Any] = into + other
    if sums.dtype == np.object_:
        check_digits(sums)
    elif (
        len(sums) and int(((sums ^ into) & (sums ^ other)).min()) < 0
    ):  # both terms have the sign that the sum has not
        raise OverflowError("the sum of a window does not fit an int64")
    return sums


def numbers_of(values: pa.Array) -> tuple[npt.NDArray[Any], Mask | None]:
    """The numbers that Arrow stores (of decimals the whole numbers), and which are not null (None: all)."""
    if pa.types.is_decimal128(values.type):
        return unscaled(values), ~null_mask(values) if values.null_count else None
    storage = stored_number(values.type)
    if storage != values.type:
        values = values.view(storage)
    valid: Mask | None = None
    if values.null_count:
        valid = ~null_mask(values)
        values = values.fill_null(0)
    return values.to_numpy(zero_copy_only=False), valid


def _with_nulls(numbers: npt.NDArray[Any], null: Mask, storage: pa.DataType, kind: pa.DataType) -> pa.Array:
    array = pa.array(numbers, storage, mask=null if null.any() else None)
    return array if storage == kind else array.view(kind)


def _as_longs(numbers: npt.NDArray[Any]) -> Longs:
    if numbers.dtype == np.uint64 and len(numbers) and int(numbers.max()) > _INT64_MAX:
        raise OverflowError("an unsigned value is larger than 2**63 - 1, the largest int64")
    return numbers.astype(np.int64, copy=False)


def _may_overflow(numbers: Longs) -> bool:
    """Whether a sum may leave int64, as far as the sizes alone tell."""
    if not len(numbers):
        return False
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    return largest * len(numbers) > _INT64_MAX
