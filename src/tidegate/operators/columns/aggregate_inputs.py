"""Reads the inputs of aggregates from batches: columns as they are, expressions by one polars query for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tidegate.aggregates.aggregate import Aggregate, AggregateError, Kernel, input_rows
from tidegate.operators.columns.frames import Inputs, to_arrow
from tidegate.operators.columns.schema_fit import conform
from tidegate.program.aggregate_inputs import AggregateInput, inputs_of
from tidegate.records.batch import Batch
from tidegate.records.column_bits import null_mask
from tidegate.records.types import RecordType

Arrays = Sequence[Sequence[pa.Array]]
"""The inputs of each aggregate."""


class AggregateInputs:
    """The inputs of several aggregates of records of one type."""

    def __init__(self, aggregates: Sequence[Aggregate], record_type: RecordType) -> None:
        self._inputs = [inputs_of(a, record_type) for a in aggregates]
        self.kernels: list[Kernel] = [
            a.bind(*(i.field for i in own)) for a, own in zip(aggregates, self._inputs, strict=True)
        ]
        self.is_empty = not any(self._inputs)
        """Whether nothing is read: they count records."""
        self._wheres: dict[int, int] = {}
        self._expressions: list[pl.Expr] = []
        fields: list[pa.Field] = []
        self._made: dict[tuple[int, int], int] = {}
        for i, own in enumerate(self._inputs):
            where = aggregates[i].where
            if where is not None:
                self._wheres[i] = len(fields)
                self._expressions.append(where.fill_null(False).alias(f"{len(fields)}"))
                fields.append(pa.field(f"{len(fields)}", pa.bool_()))
            for j, each in enumerate(own):
                if each.expression is not None and each.expression is not where:
                    self._made[i, j] = len(fields)
                    self._expressions.append(each.expression.alias(f"{len(fields)}"))
                    fields.append(pa.field(f"{len(fields)}", each.field.type))
        self._positions = [[each.position for each in own] for own in self._inputs]
        self._schema = pa.schema(fields)
        self._frames = Inputs(tuple(self._expressions), record_type.schema) if fields else None

    def columns(self, batch: pa.RecordBatch) -> Arrays:
        """The inputs of each aggregate; null where its condition excludes the record."""
        if self._frames is None:
            return [[batch.column(position) for position in own] for own in self._positions]
        made = self._evaluate(self._frames, batch)
        found: list[list[pa.Array]] = []
        for i, own in enumerate(self._inputs):
            arrays = [self._column(i, j, each, batch, made) for j, each in enumerate(own)]
            if i in self._wheres:
                arrays[0] = _left(arrays[0], made[self._wheres[i]])
            found.append(arrays)
        return found

    def rows(self, batch: Batch) -> list[list[Any]]:
        """For each aggregate the value of each record, as `Kernel.add` takes it; None where it is excluded."""
        count = batch.num_rows
        arrays: Arrays = [()] * len(self._inputs) if self.is_empty else self.columns(batch.columns)
        return [input_rows(own, count) for own in arrays]

    def _column(
        self, i: int, j: int, each: AggregateInput, batch: pa.RecordBatch, made: list[pa.Array]
    ) -> pa.Array:
        if each.position is not None:
            return batch.column(each.position)
        return made[self._made.get((i, j), self._wheres.get(i, 0))]

    def _evaluate(self, frames: Inputs, batch: pa.RecordBatch) -> list[pa.Array]:
        # Not `select`: beside existing columns a literal gets their length, and polars refuses any other length.
        try:
            frame = frames.frame(batch).with_columns(*self._expressions)
        except pl.exceptions.PolarsError as e:
            raise AggregateError(f"an expression of an aggregate failed: {e}") from e
        arrays = [to_arrow(frame.get_column(name)) for name in self._schema.names]
        made = conform(pa.RecordBatch.from_arrays(arrays, names=self._schema.names), self._schema)
        return list(made.columns)


def _left(values: pa.Array, mask: pa.Array) -> pa.Array:
    """The values, null where the mask is not true."""
    out = ~mask.to_numpy(zero_copy_only=False)
    if not out.any():
        return values
    if pa.types.is_dictionary(values.type):
        out |= null_mask(values)
    return values.take(pa.array(np.arange(len(values)), mask=out))
