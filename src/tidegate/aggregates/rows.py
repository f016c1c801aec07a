"""Several aggregates together, record by record: for triggers, evictors, count windows and running results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.aggregates.aggregate import Kernel
from tidegate.records.types import RecordType, RowType


class RowAggregates:
    """Keeps a list for each group, with one entry per aggregate. A value has one input per aggregate."""

    stored_type: RecordType
    """The type of what is kept in state: the fields of all aggregates, one after the other."""

    def __init__(self, kernels: Sequence[tuple[str, Kernel]]) -> None:
        """`kernels` come with the names of their results."""
        self._kernels = [kernel for _, kernel in kernels]
        self._adds = [(i, kernel.add) for i, kernel in enumerate(self._kernels)]
        fields: list[pa.Field] = []
        self._parts: list[slice] = []
        for output, kernel in kernels:
            stored = kernel.stored
            self._parts.append(slice(len(fields), len(fields) + len(stored)))
            fields += [pa.field(f"{output}.{f.name}", f.type, True) for f in stored]
        self.stored_type = RowType(pa.schema(fields))

    def start(self) -> list[Any]:
        return [kernel.start() for kernel in self._kernels]

    def add(self, kept: list[Any], values: Sequence[Any], timestamp_ms: int) -> list[Any]:
        """Add a record; changes `kept`."""
        for i, add in self._adds:
            value = values[i]
            if value is not None:
                kept[i] = add(kept[i], value, timestamp_ms)
        return kept

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Return two as one; may change both."""
        return [k.merge(x, y) for k, x, y in zip(self._kernels, left, right, strict=True)]

    def result(self, kept: list[Any]) -> list[Any]:
        return [k.result(each) for k, each in zip(self._kernels, kept, strict=True)]

    def dump(self, kept: list[Any]) -> tuple[Any, ...]:
        return tuple(v for k, each in zip(self._kernels, kept, strict=True) for v in k.dump(each))

    def load(self, stored: Any) -> list[Any]:
        row = tuple(stored)
        return [k.load(row[part]) for k, part in zip(self._kernels, self._parts, strict=True)]
