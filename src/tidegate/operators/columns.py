"""Operators on columns: the user's functions on Arrow batches, and polars expressions.

Expressions see the declared types. Columns that an expression only passes on, or that a filter only thins out, are
not shown to polars at all, so that a dictionary-encoded text column stays encoded.
"""

from __future__ import annotations

from itertools import compress
from typing import Any

import polars as pl
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.operators.conform import conform
from tidegate.operators.failures import OperatorError
from tidegate.operators.functions import keep
from tidegate.operators.operator import Operator
from tidegate.operators.row_operator import batch_position
from tidegate.records.batch import Batch

_ROWS = "__tidegate_rows__"
_MASK = "__tidegate_mask__"


class BatchFunctionOperator(Operator):
    """Calls the user's function with each batch as an Arrow record batch of exactly the declared types."""

    def process(self, batch: Batch, input_index: int) -> None:
        """Call the function; emit what it returns, cast to the declared types where nothing is lost."""
        columns = batch.plain_columns  # if this fails, whoever made the records is to blame
        try:
            result = conform(_as_record_batch(self.operation.function(columns)), self.output_type.schema)
        except BaseException as e:
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e
        if result.num_rows:
            same = result.num_rows == batch.num_rows
            stamps = batch.timestamps if same else None
            self.context.emit(Batch(self.output_type, result, None, None, stamps))


class ExpressionOperator(Operator):
    """`select` and `with_columns`: new columns from polars expressions."""

    def open(self) -> None:
        """Divide the result's columns into those that are computed and those that are passed on."""
        schema = self.input_types[0].schema
        expressions = self.operation.expressions
        self._adds = self.operation.form == "with_columns"
        self._passed: dict[str, int] = {}
        """Columns of the result that are columns of the input, by their position there."""
        if self._adds:
            computed = set(pl.DataFrame(schema.empty_table()).select(*expressions).columns)
            names = self.output_type.names
            self._passed = {n: schema.get_field_index(n) for n in names if n not in computed}
        elif not _has_selector(expressions):
            plain = [e for e in expressions if _is_plain_column(e)]
            self._passed = {
                e.meta.output_name(): schema.get_field_index(e.meta.root_names()[0]) for e in plain
            }
            expressions = tuple(e for e in expressions if not _is_plain_column(e))
        self._expressions = expressions
        self._inputs = _Inputs(expressions, schema)

    def process(self, batch: Batch, input_index: int) -> None:
        """Evaluate the expressions on the columns that they read."""
        columns = batch.columns  # if this fails, whoever made the records is to blame
        try:
            result = self._evaluate(columns)
        except BaseException as e:
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e
        if result.num_rows:
            same = result.num_rows == batch.num_rows
            stamps, origin = (batch.timestamps, batch.origin) if same else (None, None)
            self.context.emit(Batch(self.output_type, result, None, origin, stamps))

    def _evaluate(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.output_type.schema
        computed: dict[str, pa.Array] = {}
        if self._expressions:
            frame = self._inputs.frame(columns)
            if self._adds:
                frame = frame.with_columns(*self._expressions)
            elif self._passed:
                # Beside a column of all rows, literals and aggregates get the length that the passed columns have.
                frame = frame.select(pl.col(_ROWS), *self._expressions)
            else:
                frame = frame.select(*self._expressions)
            names = set(schema.names) - self._passed.keys()
            computed = {s.name: _to_arrow(s) for s in frame.get_columns() if s.name in names}
        arrays = [
            columns.column(self._passed[name]) if name in self._passed else computed[name]
            for name in schema.names
        ]
        return conform(pa.RecordBatch.from_arrays(arrays, names=schema.names), schema)


class ExpressionFilterOperator(Operator):
    """`filter` with polars expressions: the mask is computed from the columns that it reads, and put on all."""

    def open(self) -> None:
        """Find the columns that the predicates read."""
        self._inputs = _Inputs(self.operation.expressions, self.input_types[0].schema)
        self._predicate = pl.all_horizontal(*self.operation.expressions).fill_null(False).alias(_MASK)

    def process(self, batch: Batch, input_index: int) -> None:
        """Pass on the records where every predicate is true (null is not true)."""
        columns = batch.columns  # if this fails, whoever made the records is to blame
        try:
            frame = self._inputs.frame(columns).with_columns(self._predicate)
            mask = frame.get_column(_MASK)
            kept = int(mask.sum())
        except BaseException as e:
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e
        if kept == batch.num_rows:
            self.context.emit(batch)
        elif kept:
            rows = list(compress(batch.rows, mask.to_list())) if batch.has_rows else None
            self.context.emit(keep(batch, rows, _to_arrow(mask)))


class _Inputs:
    """The part of a batch that expressions read, as a polars frame of the declared types (dictionaries decoded)."""

    def __init__(self, expressions: tuple[pl.Expr, ...], declared: pa.Schema) -> None:
        roots = {name for e in expressions for name in e.meta.root_names()}
        self._selects = _has_selector(expressions)
        self._fields = [(i, f) for i, f in enumerate(declared) if self._selects or f.name in roots]

    def frame(self, columns: pa.RecordBatch) -> pl.DataFrame:
        """Convert a batch. Unless a selector would take it for data, a column is added that has just its length."""
        series = [] if self._selects else [pl.Series(_ROWS, pa.nulls(columns.num_rows, pa.bool_()))]
        for index, field in self._fields:
            array = columns.column(index)
            series.append(
                pl.Series(field.name, array if array.type == field.type else array.cast(field.type))
            )
        return pl.DataFrame(series)


def _as_record_batch(result: Any) -> pa.RecordBatch:
    if isinstance(result, pa.RecordBatch):
        return result
    if isinstance(result, pa.Table):
        batches = result.combine_chunks().to_batches()
        if len(batches) > 1:
            raise SchemaError(
                f"the function returned a table of {result.nbytes} bytes, too large for one batch"
            )
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)
    hint = ". Call .to_arrow() on it" if hasattr(result, "to_arrow") else ""
    raise SchemaError(
        f"the function returned the wrong type: expected a pyarrow.RecordBatch (or Table) but got a "
        f"{type(result).__module__}.{type(result).__qualname__}{hint}"
    )


def _to_arrow(series: pl.Series) -> pa.Array:
    array = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _has_selector(expressions: tuple[pl.Expr, ...]) -> bool:
    """Whether one of them stands for columns by a pattern or a type, so that only polars knows which it reads."""
    return any(e.meta.has_multiple_outputs() for e in expressions)


def _is_plain_column(expression: pl.Expr) -> bool:
    """Whether it is one column by name, perhaps under another name."""
    roots = expression.meta.root_names()
    if len(roots) != 1 or expression.meta.has_multiple_outputs():
        return False
    return bool(expression.meta.undo_aliases().meta.eq(pl.col(roots[0])))
