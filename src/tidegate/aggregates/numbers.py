"""Numbers of groups of rows: the common part of the kernels of counts, sums, means and extremes.

A sum of integers that exceeds 64 bits, or of decimals that exceeds 38 digits, raises `OverflowError`. Floats are added
in the order of arrival within a batch and then batch by batch, so the last bits of a sum depend on where batches are
cut. Decimals are exact: the rows of a batch are reduced as int64 if they fit. A partial result is an array of Python's
integers, one per group; in checkpoints and exchanges it is a decimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.aggregates.aggregate import Column, Kernel, Longs, Mask
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.segmented_scans import empty_totals, running_sums
from tidegate.records.column_bits import null_mask
from tidegate.records.decimals import check_digits, decimals, unscaled

Fold = Literal["sum", "min", "max"]
"""How two numbers become one."""
UFUNCS: Final[dict[Fold, np.ufunc]] = {"sum": np.add, "min": np.fmin, "max": np.maximum}
"""NaN is the largest number."""
_INT64_MAX: Final = (1 << 63) - 1


class NumberKernel(Kernel):
    """A kernel whose partial results merge element by element."""

    numbers = 2

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        assert self.merging is not None
        return [
            reduce_numbers(groups, c, merging, initial)
            for c, merging, initial in zip(columns, self.merging, self.initial, strict=True)
        ]


class SeenNumber(NumberKernel):
    """A folded number or time per group; None without a value. By rows, it keeps the value itself."""

    stored_name: str

    def __init__(self, fold: Fold, result_type: pa.DataType) -> None:
        self.result_type = result_type
        self._storage = stored_number(result_type)
        dtype = np.dtype(self._storage.to_pandas_dtype())
        self._initial = empty_totals(fold, dtype, 1)[0]
        self._ufunc = UFUNCS[fold]
        self.partial = [pa.field(fold, self._storage, False), pa.field("seen", pa.bool_(), False)]
        self.merging = [self._ufunc, np.logical_or]
        self.initial = [self._initial, False]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        numbers, valid = numbers_of(inputs[0])
        return list(reduce_seen(groups, numbers, valid, self._ufunc, self._initial))

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        total, seen = columns
        return with_nulls(total, ~seen, self._storage, self.result_type)

    @property
    def stored(self) -> list[pa.Field]:
        return [pa.field(self.stored_name, self.result_type)]


class SeenDecimal(NumberKernel):
    """A folded decimal per group; None without a value. Subclasses define `reduce`."""

    def __init__(self, fold: Fold, result_type: pa.Decimal128Type) -> None:
        self.result_type = result_type
        self._fold: Fold = fold
        self._ufunc = UFUNCS[fold]
        self.partial = [pa.field(fold, result_type, False), pa.field("seen", pa.bool_(), False)]
        self.merging = [self._ufunc, np.logical_or]
        largest = 10**result_type.precision - 1
        neutral = {"sum": 0, "min": largest, "max": -largest}[fold]
        self.initial = [np.array(neutral, object), False]  # numpy would make an int64 of a small integer

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        total, seen = columns
        return decimals(total, self.result_type, ~seen)


# ---- reducing and merging ----


def reduce_seen(
    groups: Groups, numbers: npt.NDArray[Any], valid: Mask | None, ufunc: np.ufunc, initial: Any
) -> tuple[npt.NDArray[Any], Mask]:
    """Fold the `valid` numbers (None: all) of each present group; also returns which groups have one."""
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
    """Fold the numbers of each present group. Raises `OverflowError` if a sum exceeds int64, or 38 digits."""
    dtype = np.asarray(initial).dtype if ufunc is np.add else numbers.dtype
    if ufunc is np.add and dtype.kind == "i":
        numbers = _as_longs(numbers)
        if _may_overflow(numbers):
            totals = np.zeros(groups.space, np.int64)
            running_sums(groups.codes, numbers, totals)  # checks exactly
            return totals[groups.present]
    elif ufunc is np.add and dtype.kind == "f":
        numbers = numbers.astype(np.float64, copy=False)
    if len(groups) == len(groups.codes) and groups.space <= 4 * len(
        groups.codes
    ):  # each row is its own group
        return numbers[groups.first_rows]
    totals = np.full(groups.space, initial, numbers.dtype)
    with np.errstate(invalid="ignore"):  # NaN is the largest number
        ufunc.at(totals, groups.codes, numbers)
    found = totals[groups.present]
    if ufunc is np.add and dtype.kind == "O":
        check_digits(found)
    return found


def count_values(groups: Groups, values: pa.Array) -> Longs:
    """Count the values of each present group that are not null."""
    if not values.null_count and not pa.types.is_dictionary(values.type):
        return groups.sizes
    return np.bincount(groups.codes[~null_mask(values)], minlength=groups.space)[groups.present]


def merge_numbers(
    ufunc: np.ufunc, into: npt.NDArray[Any], other: npt.NDArray[Any], *, may_overflow: bool
) -> npt.NDArray[Any]:
    """Merge element by element into a new array. Raises `OverflowError` if a sum that may overflow does."""
    if not may_overflow:
        with np.errstate(invalid="ignore"):
            merged: npt.NDArray[Any] = ufunc(into, other)
        return merged
    sums: npt.NDArray[Any] = into + other
    if sums.dtype == np.object_:
        check_digits(sums)
    elif (
        len(sums) and int(((sums ^ into) & (sums ^ other)).min()) < 0
    ):  # both terms have the same sign, the sum has the other
        raise OverflowError("the sum of a window does not fit an int64")
    return sums


# ---- from and to Arrow ----


def stored_number(kind: pa.DataType) -> pa.DataType:
    """The number type that Arrow stores for a time; a number type is its own."""
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def numbers_of(values: pa.Array) -> tuple[npt.NDArray[Any], Mask | None]:
    """The numbers that Arrow stores (unscaled integers for decimals), and which are not null (None: all)."""
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


def with_nulls(numbers: npt.NDArray[Any], null: Mask, storage: pa.DataType, kind: pa.DataType) -> pa.Array:
    """Numbers as a column of type `kind`, which is stored as `storage`."""
    array = pa.array(numbers, storage, mask=null if null.any() else None)
    return array if storage == kind else array.view(kind)


def _as_longs(numbers: npt.NDArray[Any]) -> Longs:
    if numbers.dtype == np.uint64 and len(numbers) and int(numbers.max()) > _INT64_MAX:
        raise OverflowError("an unsigned value is larger than 2**63 - 1, the largest int64")
    return numbers.astype(np.int64, copy=False)


def _may_overflow(numbers: Longs) -> bool:
    """Whether a sum might exceed int64, judged by the sizes alone."""
    if not len(numbers):
        return False
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    return largest * len(numbers) > _INT64_MAX
