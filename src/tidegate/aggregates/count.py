"""`Count`: the number of records, or of values that are not None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tidegate.aggregates.aggregate import Aggregate, Column, Input, Kernel, Longs
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.numbers import NumberKernel, count_values
from tidegate.aggregates.totals import CountTotals, Totals


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of records; with a column, of its values that are not None. An int64."""

    kind = "count"
    runs_user_code = False
    column: Input | None = None
    where: pl.Expr | None = field(default=None, kw_only=True)

    def bind(self, *inputs: pa.Field) -> Kernel:
        return CountValues() if inputs else CountRecords()


class _Counts(Kernel):
    """Keeps a number by rows; subclasses define the columns."""

    result_type = pa.int64()
    nullable = False

    @property
    def stored(self) -> list[pa.Field]:
        return [pa.field("count", pa.int64())]

    def totals(self) -> list[Totals]:
        return [CountTotals()]

    def start(self) -> Any:
        return 0

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        return kept + 1

    def merge(self, left: Any, right: Any) -> Any:
        return left + right


class CountRecords(_Counts):
    """Counts records. Windows count them anyway, so the partial result has no columns."""

    def __init__(self) -> None:
        self.partial = []
        self.merging = []

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        return []

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        return []

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        return pa.array(records)


class CountValues(_Counts, NumberKernel):
    """Counts values that are not null."""

    def __init__(self) -> None:
        self.partial = [pa.field("count", pa.int64(), False)]
        self.merging = [np.add]
        self.initial = [0]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        return [count_values(groups, inputs[0])]

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        return pa.array(columns[0])
