"""`Sum` of integers, floats or decimals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.aggregates.aggregate import Column, Kernel, Longs, OfColumn, of_type
from tidegate.aggregates.decimal_totals import DecimalSumTotals
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.numbers import SeenDecimal, SeenNumber, is_number, reduce_seen
from tidegate.aggregates.totals import SumTotals, Totals
from tidegate.records.column_bits import null_mask
from tidegate.records.decimals import (
    MOST_DIGITS,
    check_digits,
    exact_sum,
    fits,
    limbs_of,
    narrow,
    numbers_of_limbs,
    overflow_advice,
    pairs_of,
    sum_type,
)

_INT64: Final = 1 << 63


@dataclass(frozen=True)
class Sum(OfColumn):
    """The sum of a column: an int64, a float64, or for decimals an exact decimal of 38 digits.

    An overflow of an int64 or a decimal is an error.
    """

    kind = "sum"

    def bind(self, *inputs: pa.Field) -> Kernel:
        kind = inputs[0].type
        if pa.types.is_decimal128(kind):
            return DecimalSum(self.label(), sum_type(kind))
        if not is_number(kind):
            raise of_type(self.kind, inputs[0], "an integer, a float or a decimal128")
        return NumberSum(self.label(), pa.float64() if pa.types.is_floating(kind) else pa.int64())


class NumberSum(SeenNumber):
    """The sum of integers (an int64) or of floats (a float64)."""

    stored_name = "sum"

    def __init__(self, label: str, result_type: pa.DataType) -> None:
        super().__init__("sum", result_type)
        self._label = label
        self.may_overflow = pa.types.is_integer(result_type)

    def totals(self) -> list[Totals] | None:
        return [SumTotals("sum", self.result_type)]

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        if kept is None:
            return value
        total = kept + value
        if self.may_overflow and not -_INT64 <= total < _INT64:
            raise OverflowError(
                f"{self._label}: {total} does not fit into int64. {overflow_advice(of_decimals=False)}"
            )
        return total

    def merge(self, left: Any, right: Any) -> Any:
        return left if right is None else self.add(left, right, 0)


class DecimalSum(SeenDecimal):
    """The exact sum of decimals. By rows it keeps (sum, count)."""

    may_overflow = True

    def __init__(self, label: str, result_type: pa.Decimal128Type) -> None:
        super().__init__("sum", result_type)
        self._label = label
        self._limit = Decimal(10) ** (MOST_DIGITS - result_type.scale)

    def totals(self) -> list[Totals] | None:
        return [DecimalSumTotals(self.result_type)]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        """As int64 if nothing can overflow, else limb by limb."""
        values = inputs[0]
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

    @property
    def stored(self) -> list[pa.Field]:
        return [pa.field("sum", self.result_type), pa.field("count", pa.int64())]

    def start(self) -> Any:
        return Decimal(0), 0

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        return self.merge(kept, (value, 1))

    def merge(self, left: Any, right: Any) -> Any:
        total = exact_sum(left[0], right[0])
        if abs(total) >= self._limit:
            raise OverflowError(
                f"{self._label}: {total} does not fit a {self.stored[0].type}. {overflow_advice(of_decimals=True)}"
            )
        return total, left[1] + right[1]

    def result(self, kept: Any) -> Any:
        return kept[0] if kept[1] else None
