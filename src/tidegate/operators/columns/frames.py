"""Batches as polars frames and back: the columns that expressions read, in their declared types."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from tidegate.program.expressions import polars_has

ROWS = "__tidegate_rows__"
"""A column that only gives a frame its length: beside it, literals get that length too."""


class Inputs:
    """The part of a batch that expressions read, as a polars frame of the declared types (dictionaries decoded)."""

    def __init__(self, expressions: tuple[pl.Expr, ...], declared: pa.Schema) -> None:
        """A selector sees all columns that polars can hold: one that would select others was refused before."""
        roots = {name for e in expressions for name in e.meta.root_names()}
        self._selects = has_selector(expressions)
        self._fields = [
            (i, f)
            for i, f in enumerate(declared)
            if f.name in roots or (self._selects and polars_has(f.type))
        ]

    def frame(self, columns: pa.RecordBatch) -> pl.DataFrame:
        """Convert a batch, with the column `ROWS`, except where a selector would select it."""
        return frame_of(columns, self._fields, with_rows=not self._selects)


def frame_of(
    columns: pa.RecordBatch, fields: list[tuple[int, pa.Field]], *, with_rows: bool = True
) -> pl.DataFrame:
    """Columns by position as a frame of their declared types (dictionaries decoded), with a column of the length."""
    series = [pl.Series(ROWS, pa.nulls(columns.num_rows, pa.bool_()))] if with_rows else []
    for index, field in fields:
        array = columns.column(index)
        series.append(pl.Series(field.name, array if array.type == field.type else array.cast(field.type)))
    return pl.DataFrame(series)


def to_arrow(series: pl.Series) -> pa.Array:
    """A column of a result as one Arrow array."""
    array = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def has_selector(expressions: tuple[pl.Expr, ...]) -> bool:
    """Whether one of them selects columns by a pattern or a type, so that only polars knows which it reads."""
    return any(e.meta.has_multiple_outputs() for e in expressions)
