"""Operators on columns: the user's functions on Arrow batches, and polars expressions.

Expressions see the declared types. Columns that an expression only passes on, or that a filter only filters, are not
given to polars at all, so that a dictionary-encoded text column stays encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.operators.columns.frames import Inputs, to_arrow
from tidegate.operators.columns.fusion import FusedExpressions
from tidegate.operators.columns.schema_fit import conform
from tidegate.operators.failures import OperatorError, batch_position
from tidegate.operators.operator import Operator
from tidegate.program.expressions import divided
from tidegate.records.batch import Batch
from tidegate.records.canonical import in_canonical_form

_MASK = "__tidegate_mask__"


class BatchFunctionOperator(Operator):
    """Calls the user's function with each batch as an Arrow record batch of exactly the declared types."""

    def process(self, batch: Batch, input_index: int) -> None:
        """Call the function; emit its result, cast to the declared types if nothing is lost."""
        columns = batch.plain_columns  # if this fails, the operator that made the records is blamed
        try:
            result = conform(_as_record_batch(self.operation.function(columns)), self.output_type.schema)
            result = in_canonical_form(result, self.output_type.canonical)
        except BaseException as e:
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e
        if result.num_rows:
            same = result.num_rows == batch.num_rows
            stamps = batch.timestamps if same else None
            self.context.emit(Batch(self.output_type, columns=result, timestamps=stamps))


class ExpressionOperator(Operator):
    """`select` and `with_columns`: new columns from polars expressions.

    The first operator of a query evaluates for all of it. If that fails they run one by one, so that the error names
    the right operator.
    """

    _followers: Sequence[ExpressionOperator] = ()
    _fused: FusedExpressions | None = None

    def lead(self, followers: Sequence[ExpressionOperator], count: Callable[[int], None]) -> None:
        """Run as one query with `followers`; `count` counts the records that go from each of them to the next.

        Called by the chain before `open`.
        """
        self._followers, self._count = followers, count

    def open(self) -> None:
        """Divide the result's columns into those that are computed and those that are passed on."""
        schema = self.input_types[0].schema
        passed, self._expressions, _ = divided(schema, self.operation.form, self.operation.expressions)
        self._passed = {name: schema.get_field_index(root) for name, root in passed.items()}
        """Columns of the result that are columns of the input, by their position there."""
        self._inputs = Inputs(self._expressions, schema)
        if self._followers:
            operations = [o.operation for o in (self, *self._followers)]
            self._fused = FusedExpressions(schema, operations, self._followers[-1].output_type.schema)

    def process(self, batch: Batch, input_index: int) -> None:
        """Evaluate the expressions on the columns that they read: those of the whole query, or its own."""
        columns = batch.columns  # if this fails, the operator that made the records is blamed
        if self._fused is None:
            self._process_alone(batch, columns)
            return
        try:
            result = self._fused.evaluate(columns)
        except BaseException:  # noqa: BLE001 - whatever it is, its operator raises it again
            self._process_alone(batch, columns)
            self._fused = None  # one by one they succeed
            return
        self._count(batch.num_rows)
        last = self._followers[-1]
        last.context.emit(batch.with_columns(last.output_type, result))

    def _process_alone(self, batch: Batch, columns: pa.RecordBatch) -> None:
        try:
            result = self._evaluate(columns)
        except BaseException as e:
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e
        self.context.emit(batch.with_columns(self.output_type, result))

    def _evaluate(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.output_type.schema
        computed: dict[str, pa.Array] = {}
        if self._expressions:
            # Not `select`: beside existing columns a literal gets their length, and polars refuses any other length.
            frame = self._inputs.frame(columns).with_columns(*self._expressions)
            names = set(schema.names) - self._passed.keys()
            computed = {s.name: to_arrow(s) for s in frame.get_columns() if s.name in names}
        arrays = [
            columns.column(self._passed[name]) if name in self._passed else computed[name]
            for name in schema.names
        ]
        return conform(pa.RecordBatch.from_arrays(arrays, names=schema.names), schema)


class ExpressionFilterOperator(Operator):
    """`filter` with polars expressions: computes the mask from the columns that they read, and applies it to all."""

    def open(self) -> None:
        """Find the columns that the predicates read."""
        self._inputs = Inputs(self.operation.expressions, self.input_types[0].schema)
        self._predicate = pl.all_horizontal(*self.operation.expressions).fill_null(False).alias(_MASK)

    def process(self, batch: Batch, input_index: int) -> None:
        """Emit the records where every predicate is true (null is not true)."""
        columns = batch.columns  # if this fails, the operator that made the records is blamed
        try:
            frame = self._inputs.frame(columns).with_columns(self._predicate)
            mask = frame.get_column(_MASK)
            kept = int(mask.sum())
        except BaseException as e:
            raise OperatorError(self.context.operator_name, batch_position(batch)) from e
        if kept == batch.num_rows:
            self.context.emit(batch)
        elif kept:
            self.context.emit(batch.filter(to_arrow(mask)))


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
