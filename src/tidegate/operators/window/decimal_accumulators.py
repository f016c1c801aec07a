"""Sums, extremes and means of decimals over groups of rows: exact, whatever the order and the cut of batches.

A batch's rows are reduced as int64 where they fit; a partial result is an array of Python's integers, one per group,
and a decimal in checkpoints and exchanges. See `accumulators` for the contract.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from tidegate.operators.window.accumulators import (
    Column,
    Longs,
    NumberAccumulator,
    count_values,
    numbers_of,
    reduce_seen,
)
from tidegate.operators.window.groups import Groups
from tidegate.records.column_bits import null_mask
from tidegate.records.decimals import (
    averages,
    check_digits,
    decimals,
    fits,
    limbs_of,
    narrow,
    numbers_of_limbs,
    pairs_of,
    sum_type,
)
from tidegate.records.rolling import empty_totals


class DecimalTotal(NumberAccumulator):
    """A sum, or the smallest or largest decimal."""

    def __init__(self, kind: Literal["sum", "min", "max"], result_type: pa.Decimal128Type) -> None:
        self._kind: Literal["sum", "min", "max"] = kind
        self._type = result_type
        self._ufunc: np.ufunc = {"sum": np.add, "min": np.fmin, "max": np.maximum}[kind]
        self.fields = [pa.field(kind, result_type, False), pa.field("seen", pa.bool_(), False)]
        self.merging = [self._ufunc, np.logical_or]
        largest = 10**result_type.precision - 1
        neutral = {"sum": 0, "min": largest, "max": -largest}[kind]
        self.initial = [np.array(neutral, object), False]  # a small integer by itself would be an int64
        self.may_overflow = kind == "sum"

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """Reduce."""
        assert values is not None
        if self._kind == "sum":
            return self._sums(groups, values)
        numbers, valid = numbers_of(values)
        if numbers.dtype == np.object_:
            return list(reduce_seen(groups, numbers, valid, self._ufunc, self.initial[0]))
        start = empty_totals(self._kind, np.int64, 1)[0]
        total, seen = reduce_seen(groups, numbers, valid, self._ufunc, start)
        return [np.where(seen, total.astype(object), self.initial[0]), seen]

    def _sums(self, groups: Groups, values: pa.Array) -> list[Column]:
        valid = ~null_mask(values) if values.null_count else None
        pairs = pairs_of(values if valid is None else values.fill_null(pa.scalar(0, values.type)))
        numbers = narrow(pairs)
        if numbers is not None and fits(numbers):
            total, seen = reduce_seen(groups, numbers, valid, np.add, np.int64(0))
            return [total.astype(object), seen]
        limbs = [reduce_seen(groups, limb, valid, np.add, np.int64(0)) for limb in limbs_of(pairs)]
        sums = numbers_of_limbs([limb for limb, _ in limbs])
        check_digits(sums)
        return [sums, limbs[0][1]]

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """The decimal, null where none was seen."""
        total, seen = columns
        return decimals(total, self._type, ~seen)


class DecimalAverage(NumberAccumulator):
    """The mean, from the exact sum: a half is rounded away from zero."""

    def __init__(self, value_type: pa.Decimal128Type, result_type: pa.Decimal128Type) -> None:
        self._type = result_type
        self._sum_type = sum_type(value_type)
        self._sum = DecimalTotal("sum", self._sum_type)
        self.fields = [pa.field("sum", self._sum_type, False), pa.field("count", pa.int64(), False)]
        self.merging = [np.add, np.add]
        self.initial = [self._sum.initial[0], 0]
        self.may_overflow = True

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """Sum and count."""
        assert values is not None
        return [self._sum.partial(groups, values, timestamps)[0], count_values(groups, values)]

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """The quotient, null where nothing was seen."""
        total, count = columns
        none = count == 0
        quotients = averages(total, np.where(none, 1, count), self._sum_type.scale, self._type)
        return decimals(quotients, self._type, none)
