"""`Avg`: the mean of numbers or decimals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.aggregates.aggregate import Column, Kernel, Longs, OfColumn, of_type
from tidegate.aggregates.decimal_totals import DecimalSumTotals
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.numbers import (
    NumberKernel,
    count_values,
    is_number,
    numbers_of,
    reduce_numbers,
    with_nulls,
)
from tidegate.aggregates.sum import DecimalSum
from tidegate.aggregates.totals import CountTotals, SumTotals, Totals
from tidegate.records.decimals import average_type, averages, decimals, exact_average, sum_type, unscaled


@dataclass(frozen=True)
class Avg(OfColumn):
    """The mean of a column of numbers, a float64.

    For a decimal(p, s) it is a decimal(p + 4, s + 4), or as close to that as 38 digits allow, computed from the exact
    sum; halves are rounded away from zero.
    """

    kind = "avg"

    def bind(self, *inputs: pa.Field) -> Kernel:
        kind = inputs[0].type
        if pa.types.is_decimal128(kind):
            return DecimalMean(self.label(), kind)
        if not is_number(kind):
            raise of_type(self.kind, inputs[0], "an integer, a float or a decimal128")
        return NumberMean()


class NumberMean(NumberKernel):
    """A float64. Keeps (sum, count)."""

    result_type = pa.float64()

    def __init__(self) -> None:
        self.partial = [pa.field("sum", pa.float64(), False), pa.field("count", pa.int64(), False)]
        self.merging = [np.add, np.add]
        self.initial = [-0.0, 0]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        numbers, valid = numbers_of(inputs[0])
        doubles = numbers.astype(np.float64, copy=False)
        if valid is not None:
            doubles = np.where(valid, doubles, -0.0)
        return [reduce_numbers(groups, doubles, np.add, -0.0), count_values(groups, inputs[0])]

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        total, count = columns
        none = count == 0
        return with_nulls(total / np.where(none, 1, count), none, pa.float64(), pa.float64())

    def totals(self) -> list[Totals] | None:
        return [SumTotals("sum", pa.float64()), CountTotals()]

    def of_totals(self, totals: list[pa.Array]) -> pa.Array:
        return pc.divide(totals[0], totals[1].cast(pa.float64()))

    def start(self) -> Any:
        return 0.0, 0

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        return kept[0] + value, kept[1] + 1

    def merge(self, left: Any, right: Any) -> Any:
        return left[0] + right[0], left[1] + right[1]

    def result(self, kept: Any) -> Any:
        return kept[0] / kept[1] if kept[1] else None


class DecimalMean(DecimalSum):
    """Computed from the exact sum; halves are rounded away from zero."""

    def __init__(self, label: str, value_type: pa.Decimal128Type) -> None:
        super().__init__(label, sum_type(value_type))
        self._sum_type = self.result_type
        self.partial = [pa.field("sum", self._sum_type, False), pa.field("count", pa.int64(), False)]
        self.merging = [np.add, np.add]
        self.initial = [self.initial[0], 0]
        self.result_type = average_type(value_type)

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        return [super().reduce(groups, inputs, timestamps)[0], count_values(groups, inputs[0])]

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        total, count = columns
        none = count == 0
        quotients = averages(total, np.where(none, 1, count), self._sum_type.scale, self.result_type)
        return decimals(quotients, self.result_type, none)

    def totals(self) -> list[Totals] | None:
        return [DecimalSumTotals(self._sum_type), CountTotals()]

    def of_totals(self, totals: list[pa.Array]) -> pa.Array:
        return self.finish([unscaled(totals[0]), totals[1].to_numpy()], totals[1].to_numpy())

    @property
    def stored(self) -> list[pa.Field]:
        return [pa.field("sum", self._sum_type), pa.field("count", pa.int64())]

    def result(self, kept: Any) -> Any:
        total, count = kept
        return exact_average(total, count, self.result_type.scale) if count else None
