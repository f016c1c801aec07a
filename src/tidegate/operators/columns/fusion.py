"""A query: adjacent `select` and `with_columns` of a chain in one call of polars.

The planner decides which operators are one query (`graph/expression_fusion.py`). Pure: nothing is kept between two
batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from tidegate.operators.columns.frames import ROWS, frame_of, to_arrow
from tidegate.operators.columns.schema_fit import conform
from tidegate.program.expressions import is_plain_column
from tidegate.program.operations import ApplyExpressions


class FusedExpressions:
    """Several operations as one query. Columns that all of them only pass on are not given to polars."""

    def __init__(
        self, declared: pa.Schema, operations: Sequence[ApplyExpressions], output: pa.Schema
    ) -> None:
        """The query computes columns of `output` types from input columns of `declared` types."""
        read, self._passed = _follow(declared, operations)
        self._fields = [(i, declared.field(i)) for i in sorted(read)]
        self._output = output
        self._queries: list[tuple[str, list[pl.Expr]]] = []
        self._computes = False
        shown = {field.name for _, field in self._fields}
        for operation in operations:
            kept = list(operation.expressions)
            if operation.form == "select":
                kept = [e for e in kept if not is_plain_column(e) or e.meta.root_names()[0] in shown]
                shown = set()
            shown |= {e.meta.output_name() for e in kept}
            self._computes |= bool(kept)
            rows = [pl.col(ROWS)] if operation.form == "select" else []
            self._queries.append((operation.form, [*rows, *kept]))

    def evaluate(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """The columns after the last operation, with the same number of rows; raises what polars raises."""
        computed: dict[str, pa.Array] = {}
        if self._computes:
            frame = self.run(frame_of(columns, self._fields))
            names = set(self._output.names) - self._passed.keys()
            computed = {s.name: to_arrow(s) for s in frame.get_columns() if s.name in names}
        arrays = [
            columns.column(self._passed[name]) if name in self._passed else computed[name]
            for name in self._output.names
        ]
        return conform(pa.RecordBatch.from_arrays(arrays, names=self._output.names), self._output)

    def run(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Run all operations without optimizations: an expression whose result is not read may still fail."""
        query = frame.lazy()
        for form, expressions in self._queries:
            query = query.select(expressions) if form == "select" else query.with_columns(expressions)
        return query.collect(engine="in-memory", optimizations=pl.QueryOptFlags.none())


def _follow(declared: pa.Schema, operations: Sequence[ApplyExpressions]) -> tuple[set[int], dict[str, int]]:
    """Which input columns are read, and which columns of the result are input columns, by position."""
    passed = {name: i for i, name in enumerate(declared.names)}
    read: set[int] = set()
    for operation in operations:
        selects = operation.form == "select"
        plain = [e for e in operation.expressions if selects and is_plain_column(e)]
        computing = [e for e in operation.expressions if not any(e is p for p in plain)]
        read |= {passed[root] for e in computing for root in e.meta.root_names() if root in passed}
        if selects:
            names = [(e.meta.output_name(), e.meta.root_names()[0]) for e in plain]
            passed = {new: passed[old] for new, old in names if old in passed}
        else:
            made = {e.meta.output_name() for e in computing}
            passed = {name: i for name, i in passed.items() if name not in made}
    return read, passed
