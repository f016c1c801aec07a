"""`Min` and `Max` of numbers, decimals, times or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from tidegate.aggregates.aggregate import Column, Kernel, Longs, OfColumn
from tidegate.aggregates.decimal_totals import DecimalExtremeTotals
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.numbers import SeenDecimal, SeenNumber, numbers_of, reduce_seen
from tidegate.aggregates.segmented_scans import empty_totals
from tidegate.aggregates.totals import ExtremeTotals, Totals
from tidegate.aggregates.values import best_rows, check_ordered, is_text, ranks_of, taken, valid_rows


@dataclass(frozen=True)
class _Extreme(OfColumn):
    fold: ClassVar[Literal["min", "max"]]

    def bind(self, *inputs: pa.Field) -> Kernel:
        kind = check_ordered(self.kind, inputs[0])
        if is_text(kind):
            return TextExtreme(self.fold, kind)
        return (DecimalExtreme if pa.types.is_decimal128(kind) else NumberExtreme)(self.fold, kind)


@dataclass(frozen=True)
class Min(_Extreme):
    """The smallest value of a column of numbers, times or texts, in the column's type; NaN is the largest number."""

    kind = fold = "min"


@dataclass(frozen=True)
class Max(_Extreme):
    """The largest value of a column of numbers, times or texts, in the column's type; NaN is the largest number."""

    kind = fold = "max"


class _ValueRows(Kernel):
    """Keeps the value itself by rows, or None."""

    fold: Literal["min", "max"]

    @property
    def stored(self) -> list[pa.Field]:
        return [pa.field("value", self.result_type)]

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        if kept is None:
            return value
        if self.fold == "min":
            return value if value < kept or kept != kept else kept
        return value if value > kept or value != value else kept

    def merge(self, left: Any, right: Any) -> Any:
        return left if right is None else self.add(left, right, 0)


class NumberExtreme(_ValueRows, SeenNumber):
    """The smallest or largest number or time."""

    def __init__(self, fold: Literal["min", "max"], kind: pa.DataType) -> None:
        super().__init__(fold, kind)
        self.fold = fold

    def totals(self) -> list[Totals] | None:
        return [ExtremeTotals(self.fold, self.result_type)]


class DecimalExtreme(_ValueRows, SeenDecimal):
    """The smallest or largest decimal."""

    def __init__(self, fold: Literal["min", "max"], kind: pa.Decimal128Type) -> None:
        super().__init__(fold, kind)
        self.fold = fold

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        """As int64 if all values fit."""
        numbers, valid = numbers_of(inputs[0])
        if numbers.dtype == np.object_:
            return list(reduce_seen(groups, numbers, valid, self._ufunc, self.initial[0]))
        start = empty_totals(self.fold, np.int64, 1)[0]
        total, seen = reduce_seen(groups, numbers, valid, self._ufunc, start)
        return [np.where(seen, total.astype(object), self.initial[0]), seen]

    def totals(self) -> list[Totals] | None:
        return [DecimalExtremeTotals(self.fold, self.result_type)]


class TextExtreme(_ValueRows):
    """The smallest or largest text, by code points. Partial results merge by group."""

    def __init__(self, fold: Literal["min", "max"], kind: pa.DataType) -> None:
        self.fold = fold
        self.result_type = kind
        self.partial = [pa.field(fold, kind)]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        return self.combine(groups, list(inputs))

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        (values,) = columns
        ranks = ranks_of(values)
        rows = best_rows(groups, valid_rows(values), ranks if self.fold == "min" else ~ranks)
        return [taken(values, rows, self.result_type)]

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        return columns[0]
