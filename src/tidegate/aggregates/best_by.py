"""`MaxBy` and `MinBy`: columns of the record with the largest or smallest value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa

from tidegate.aggregates.aggregate import Aggregate, Column, Input, Kernel, Longs, input_name
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.top_n import selected_names
from tidegate.aggregates.values import best_rows, check_ordered, plain, rank_of, ranks_of, taken, valid_rows

Selected = str | Sequence[str] | None
"""One column, several columns, or (None) all of them."""


@dataclass(frozen=True)
class _BestBy(Aggregate):
    runs_user_code = False
    largest: ClassVar[bool]
    by: Input
    select: Selected = None
    where: pl.Expr | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.select is not None and not isinstance(self.select, str):
            chosen = selected_names(type(self).__name__, self.select)
            object.__setattr__(self, "select", chosen)  # the dataclass is frozen

    def inputs(self, names: Sequence[str]) -> tuple[Input, ...]:
        return (self.by, *((self.select,) if isinstance(self.select, str) else self.select or names))

    def columns(self) -> tuple[str, ...] | None:
        return None if self.select is None else self.columns_of(self.inputs(()))

    def default_output(self) -> str:
        return f"{self.kind}_{input_name(self.by)}"

    def bind(self, *inputs: pa.Field) -> Kernel:
        by, *selected = inputs
        is_record = not isinstance(self.select, str)
        return BestValue(check_ordered(self.kind, by), selected, is_record, largest=self.largest)


@dataclass(frozen=True)
class MaxBy(_BestBy):
    """The `select`ed column of the record with the largest `by`; several columns (default: all) become a struct.

    Of records with an equal `by`, the one with the earliest timestamp wins, then the one that arrived first. Records
    whose `by` is None are left out; NaN is the largest number.
    """

    kind = "max_by"
    largest = True


@dataclass(frozen=True)
class MinBy(_BestBy):
    """The `select`ed column of the record with the smallest `by`; several columns (default: all) become a struct.

    Of records with an equal `by`, the one with the earliest timestamp wins, then the one that arrived first. Records
    whose `by` is None are left out; NaN is the largest number.
    """

    kind = "min_by"
    largest = False


class BestValue(Kernel):
    """Keeps (timestamp, by, value), or None."""

    numbers = 1

    def __init__(self, by: pa.DataType, selected: list[pa.Field], is_record: bool, *, largest: bool) -> None:
        self._by = by
        self._largest = largest
        self._selected = [f.with_nullable(True) for f in selected]
        self._is_record = is_record
        self.result_type = pa.struct(self._selected) if is_record else selected[0].type
        self.partial = [
            pa.field("time", pa.int64(), False),
            pa.field("by", by),
            pa.field("value", self.result_type),
        ]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        by, *selected = inputs
        value = selected[0]
        if self._is_record:
            arrays = [plain(c, f.type) for c, f in zip(selected, self._selected, strict=True)]
            value = pa.StructArray.from_arrays(arrays, fields=self._selected)
        return self.combine(groups, [timestamps, by, value])

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        times, by, values = columns
        ranks = ranks_of(by)
        rows = best_rows(groups, valid_rows(by), ~ranks if self._largest else ranks, times)
        found = np.where(rows < 0, 0, times[rows]) if len(times) else np.zeros(len(rows), np.int64)
        return [found, taken(by, rows, self._by), taken(values, rows, self.result_type)]

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        return columns[2]

    @property
    def stored(self) -> list[pa.Field]:
        return [f.with_nullable(True) for f in self.partial]

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        by, *selected = value
        names = [f.name for f in self._selected]
        return self.merge(
            kept,
            (
                timestamp_ms,
                by,
                dict(zip(names, selected, strict=True)) if self._is_record else selected[0],
            ),
        )

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        mine, other = rank_of(left[1]), rank_of(right[1])
        if mine == other:
            return right if right[0] < left[0] else left
        return right if (other > mine) == self._largest else left

    def result(self, kept: Any) -> Any:
        return None if kept is None else kept[2]
