"""`First` and `Last`: the value with the earliest or latest timestamp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.aggregates.aggregate import Column, Kernel, Longs, OfColumn
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.values import best_rows, taken, valid_rows


@dataclass(frozen=True)
class First(OfColumn):
    """The value of the record with the earliest timestamp; of several, the one that arrived first.

    In windows without event time, the record that arrived first.
    """

    kind = "first"

    def bind(self, *inputs: pa.Field) -> Kernel:
        return EdgeValue(inputs[0].type, latest=False)


@dataclass(frozen=True)
class Last(OfColumn):
    """The value of the record with the latest timestamp; of several, the one that arrived last.

    In windows without event time, the record that arrived last.
    """

    kind = "last"

    def bind(self, *inputs: pa.Field) -> Kernel:
        return EdgeValue(inputs[0].type, latest=True)


class EdgeValue(Kernel):
    """Keeps (timestamp, value), or None."""

    numbers = 1

    def __init__(self, value_type: pa.DataType, *, latest: bool) -> None:
        self.result_type = value_type
        self._latest = latest
        name = "last" if latest else "first"
        self.partial = [pa.field("time", pa.int64(), False), pa.field(name, value_type)]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        return self.combine(groups, [timestamps, inputs[0]])

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        times, values = columns
        key = ~times if self._latest else times  # the reverse order, without overflow
        rows = best_rows(groups, valid_rows(values), key, last=self._latest)
        found = np.where(rows < 0, 0, times[rows]) if len(times) else np.zeros(len(rows), np.int64)
        return [found, taken(values, rows, self.result_type)]

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        return columns[1]

    @property
    def stored(self) -> list[pa.Field]:
        return [pa.field("time", pa.int64()), pa.field("value", self.result_type)]

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        return self.merge(kept, (timestamp_ms, value))

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        newer = right[0] >= left[0] if self._latest else right[0] < left[0]
        return right if newer else left

    def result(self, kept: Any) -> Any:
        return None if kept is None else kept[1]
