"""Fusion: adjacent `select` and `with_columns` of a chain as one polars query.

A call of polars costs about 50 us whatever it computes, as much as adding a number to 150,000 values; then its result
is converted to Arrow and checked. A run of expressions pays for that once, not per operator. Pure: made from the
operations at the first batch; it keeps nothing between two batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from tidegate.operators.columns.frames import ROWS, frame_of, has_selector, to_arrow
from tidegate.operators.columns.schema_fit import conform
from tidegate.program.expressions import empty_frame, is_plain_column, polars_has

LONGEST_RUN = 64
"""How many operators become one query at most; polars walks a query by recursion."""


class Stage(NamedTuple):
    """One operator of a run: its expressions, and the columns of its output."""

    form: str
    expressions: tuple[pl.Expr, ...]
    output: pa.Schema


class FusedExpressions:
    """Several stages as one query. Columns that all of them only pass on are not given to polars."""

    def __init__(
        self,
        fields: list[tuple[int, pa.Field]],
        queries: list[tuple[str, list[pl.Expr]]],
        passed: dict[str, int],
        output: pa.Schema,
    ) -> None:
        self._fields = fields
        self._queries = queries
        self._passed = passed
        self._output = output

    def evaluate(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the last stage's output, with the same number of rows; raises what polars raises."""
        computed: dict[str, pa.Array] = {}
        if self._queries:
            frame = self.run(frame_of(columns, self._fields))
            names = set(self._output.names) - self._passed.keys()
            computed = {s.name: to_arrow(s) for s in frame.get_columns() if s.name in names}
        arrays = [
            columns.column(self._passed[name]) if name in self._passed else computed[name]
            for name in self._output.names
        ]
        return conform(pa.RecordBatch.from_arrays(arrays, names=self._output.names), self._output)

    def run(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Run all stages on a frame without optimizations: an expression whose result is not read may still fail."""
        query = frame.lazy()
        for form, expressions in self._queries:
            query = query.select(expressions) if form == "select" else query.with_columns(expressions)
        return query.collect(engine="in-memory", optimizations=pl.QueryOptFlags.none())


def fuse(declared: pa.Schema, stages: Sequence[Stage]) -> FusedExpressions | None:
    """One query for the stages over columns of `declared` types; None if it could differ from one query per stage."""
    if any(has_selector(stage.expressions) for stage in stages):
        return None
    try:
        read, passed = _follow(declared, stages)
    except pl.exceptions.PolarsError:  # a column name that depends on the data
        return None
    fields = [(i, declared.field(i)) for i in sorted(read)]
    if not all(polars_has(field.type) for _, field in fields):
        return None
    known = {field.name for _, field in fields}
    frame = frame_of(pa.RecordBatch.from_pylist([], schema=declared), fields)
    queries: list[tuple[str, list[pl.Expr]]] = []
    for form, expressions, output in stages:
        kept = list(expressions)
        if form == "select":
            kept = [e for e in expressions if not is_plain_column(e) or e.meta.root_names()[0] in known]
            kept.insert(0, pl.col(ROWS))
        queries.append((form, kept))
        try:
            frame = frame.select(kept) if form == "select" else frame.with_columns(kept)
        except pl.exceptions.PolarsError:
            return None
        known = set(frame.columns) - {ROWS}
        types = empty_frame(output).schema
        # One by one, each operator would see the declared types of the one before it.
        if any(frame.schema[name] != types[name] for name in known & types.keys()):
            return None
    computes = any(len(kept) > (form == "select") for form, kept in queries)
    return FusedExpressions(fields, queries if computes else [], passed, stages[-1].output)


def _follow(declared: pa.Schema, stages: Sequence[Stage]) -> tuple[set[int], dict[str, int]]:
    """Which input columns are read, and which columns of the result are input columns, by position."""
    passed = {name: i for i, name in enumerate(declared.names)}
    read: set[int] = set()
    for form, expressions, _ in stages:
        plain = [e for e in expressions if form == "select" and is_plain_column(e)]
        computing = [e for e in expressions if not any(e is p for p in plain)]
        read |= {passed[root] for e in computing for root in e.meta.root_names() if root in passed}
        if form == "select":
            names = [(e.meta.output_name(), e.meta.root_names()[0]) for e in plain]
            passed = {new: passed[old] for new, old in names if old in passed}
        else:
            made = {e.meta.output_name() for e in computing}
            passed = {name: i for name, i in passed.items() if name not in made}
    return read, passed
