"""`CountDistinct`: the number of distinct values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.aggregates.aggregate import Column, Kernel, Longs, OfColumn, of_type
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.values import list_lengths, lists_of, plain, valid_rows
from tidegate.keys.key_index import KeyIndex


@dataclass(frozen=True)
class CountDistinct(OfColumn):
    """The exact number of distinct values of a column; the state grows with it. All NaN are one value."""

    kind = "count_distinct"

    def bind(self, *inputs: pa.Field) -> Kernel:
        kind, t = inputs[0].type, pa.types
        if t.is_nested(kind) or t.is_interval(kind) or t.is_null(kind):
            raise of_type(self.kind, inputs[0], "a scalar")
        return DistinctValues(kind)


class DistinctValues(Kernel):
    """Keeps the list of values; by rows a dict, whose order makes equal inputs have equal state."""

    result_type = pa.int64()
    nullable = False

    def __init__(self, value_type: pa.DataType) -> None:
        self._type = value_type
        self.partial = [pa.field("values", pa.list_(pa.field("item", value_type, False)), False)]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        (values,) = inputs
        codes, rows = groups.codes, valid_rows(values)
        if rows is not None:
            values, codes = values.take(pa.array(rows)), codes[rows]
        return self._distinct(groups, codes, values)

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        (lists,) = columns
        return self._distinct(groups, np.repeat(groups.codes, list_lengths(lists)), lists.flatten())

    def _distinct(self, groups: Groups, codes: Longs, values: pa.Array) -> list[Column]:
        index = KeyIndex()
        ids = index.ids([values]) if len(values) else np.empty(0, np.int64)
        pairs = codes * len(index) + ids
        if len(pairs) and groups.space * len(index) <= 16 * len(pairs):
            seen = np.zeros(groups.space * len(index), np.bool_)
            seen[pairs] = True
            found = np.flatnonzero(seen)
        else:
            found = np.unique(pairs)
        owners, value_ids = np.divmod(found, max(1, len(index)))
        items = index.keys(value_ids)[0] if len(found) else pa.array([], self._type)
        counts = np.bincount(owners, minlength=groups.space)[groups.present]
        return [lists_of(plain(items, self._type), counts, self.partial[0].type)]

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        return pa.array(list_lengths(columns[0]))

    @property
    def stored(self) -> list[pa.Field]:
        return [pa.field("values", pa.list_(self._type))]

    def start(self) -> Any:
        return {}

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        kept[value if value == value else nan] = None
        return kept

    def merge(self, left: Any, right: Any) -> Any:
        left.update(right)
        return left

    def result(self, kept: Any) -> Any:
        return len(kept)

    def dump(self, kept: Any) -> tuple[Any, ...]:
        return (list(kept),)

    def load(self, stored: tuple[Any, ...]) -> Any:
        return {value if value == value else nan: None for value in stored[0]}
