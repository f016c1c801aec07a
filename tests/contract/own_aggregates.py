"""Aggregates as a user writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from tidegate import Aggregate


class Spread(Aggregate):
    """The distance between the largest and the smallest number of a column."""

    kind = "spread"

    def __init__(self, column: str) -> None:
        self.column = column

    def result_type(self, *inputs: pa.DataType) -> pa.DataType:
        return inputs[0]

    def partial(self, *inputs: pa.DataType) -> dict[str, pa.DataType]:
        return {"low": inputs[0], "high": inputs[0]}

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        return self.merge(kept, (value, value))

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return min(left[0], right[0]), max(left[1], right[1])

    def result(self, kept: Any) -> Any:
        return None if kept is None else kept[1] - kept[0]


@dataclass(frozen=True)
class Words(Aggregate):
    """All words, each once, in order of their letters; with a start of its own, and what is kept goes on changing."""

    kind = "words"
    column: str
    where: pl.Expr | None = None

    def result_type(self, *inputs: pa.DataType) -> pa.DataType:
        return pa.list_(inputs[0])

    def partial(self, *inputs: pa.DataType) -> dict[str, pa.DataType]:
        return {"words": pa.list_(inputs[0])}

    def start(self) -> Any:
        return []

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        if value not in kept:
            kept.append(value)
            kept.sort()
        return kept

    def merge(self, left: Any, right: Any) -> Any:
        for word in right:
            self.add(left, word, 0)
        return left
