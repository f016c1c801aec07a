"""Running count, sum, min and max per key.

| key by            | stage            | operator                      | state                         |
|-------------------|------------------|-------------------------------|-------------------------------|
| columns           | whole, merge     | `ColumnAggregateOperator`     | a `ColumnTable` of `Totals`   |
| typed function    | whole            | the same                      | the same                      |
| columns           | local            | `LocalAggregateOperator`      | none                          |
| untyped function  | whole            | `ObjectAggregateOperator`     | a dict, without checkpoints   |

With `emit="each"` there is one result per record, in order. With `emit="batch"` there is one per key of the batch, the
latest; their order means nothing, and may be another after a restore.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.api.operations import RollingAggregate
from tidegate.core.errors import SchemaError
from tidegate.operators.decimal_totals import totals_of
from tidegate.operators.failures import OperatorError, blame
from tidegate.operators.latest_values import MemoryValues
from tidegate.operators.operator import Operator
from tidegate.operators.results import wrong_type
from tidegate.operators.row_operator import RowOperator, batch_position
from tidegate.operators.totals import distinct
from tidegate.records.batch import Batch
from tidegate.records.column_bits import dictionary_codes, is_bytes_like
from tidegate.records.decimals import exact_sum, overflow_advice
from tidegate.records.key_index import KeyIndex
from tidegate.records.rolling import Ids, SumOverflow
from tidegate.records.types import column_values

STATE_NAME: Final = "total"
"""The name in checkpoints, of all aggregates: one that has become another is refused by its type."""


def aggregate_operator(operation: RollingAggregate) -> type[Operator]:
    """The operator for a rolling aggregate."""
    if operation.stage == "local":
        return LocalAggregateOperator
    if operation.key.function is not None and operation.key.record_type.is_object:
        return ObjectAggregateOperator
    return ColumnAggregateOperator


class AggregateOperator(RowOperator):
    """What the aggregates share: where the values are, and how results become batches."""

    def user_function(self) -> Any:
        """There is none but the key's."""
        return None

    def open(self) -> None:
        """Find the columns."""
        super().open()
        operation: RollingAggregate = self.operation
        record_type = self.input_types[0]
        self._key_positions = [record_type.field_index(c, "the key") for c in operation.key.columns]
        self._value_position: int | None = None
        if operation.column is not None:
            self._value_position = record_type.field_index(operation.column, operation.aggregate)
        self._schema: pa.Schema | None = None

    def values(self, columns: pa.RecordBatch) -> pa.Array | None:
        """The column to aggregate; None for a count of records."""
        return None if self._value_position is None else columns.column(self._value_position)

    def result(self, keys: list[pa.Array], values: pa.Array) -> pa.RecordBatch:
        """Key columns and results as the output type has them, text encoded or plain as it came."""
        arrays = [*keys, values]
        types = [a.type for a in arrays]
        if self._schema is None or self._schema.types != types:
            declared = self.output_type.schema
            fields = [f.with_type(t) for f, t in zip(declared, types, strict=True)]
            self._schema = pa.schema(fields)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def overflow(self, error: OverflowError, keys: list[pa.Array], ids: Ids) -> OverflowError:
        """Say which sum of which key does not fit its type, and what to do."""
        operation = self.operation
        what = f"{operation.aggregate}({operation.column!r})"
        if isinstance(error, SumOverflow):
            row = int(np.flatnonzero(ids == error.id)[0])
            what += f" of key {', '.join(repr(k[row].as_py()) for k in keys)}"
        of_decimals = pa.types.is_decimal(self.output_type.schema.types[-1])
        return OverflowError(f"{what}: {error}. {overflow_advice(of_decimals=of_decimals)}")


class ColumnAggregateOperator(AggregateOperator):
    """Keys and values are columns; every step is vectorised."""

    def open(self) -> None:
        """Find the state: empty, or as a checkpoint has it."""
        super().open()
        operation: RollingAggregate = self.operation
        value_type = self.output_type.schema.types[-1]
        self._totals = totals_of(operation.aggregate, value_type, merges=operation.stage == "merge")
        backend = self.context.states.keyed(operation.key.record_type)
        self._table = backend.columns(STATE_NAME, self._totals.columns)

    def process(self, batch: Batch, input_index: int) -> None:
        """Bring the batch into the totals and emit results."""
        columns: pa.RecordBatch | None = None
        if self._key_positions or self._value_position is not None:
            columns = batch.columns
        if self.operation.key.function is None:
            assert columns is not None
            keys = [columns.column(i) for i in self._key_positions]
        else:
            keys = self._function_keys(batch)
        values = None if columns is None else self.values(columns)
        with blame(self.name, batch_position(batch)):
            ids, count, arrays = self._table.begin(keys)
        try:
            if self.operation.emit == "each":
                results, touched = self._totals.each(ids, count, arrays, values)
            else:
                touched, rows = distinct(ids, count)
                results = self._totals.latest(ids, arrays, values, touched)
                keys = [k.take(pa.array(rows)) for k in keys]
        except OverflowError as e:
            raise OperatorError(self.name, batch_position(batch)) from self.overflow(e, keys, ids)
        self._table.commit(touched)
        out = self.result(keys, results)
        if self.operation.emit == "each":
            self.context.emit(Batch(self.output_type, out, None, batch.origin, batch.timestamps))
        else:
            self.context.emit(Batch.of_columns(self.output_type, out))

    def _function_keys(self, batch: Batch) -> list[pa.Array]:
        key = self.operation.key
        values = self.keys(batch, key)
        try:
            key.record_type.check_rows(values)
            return list(key.record_type.to_columns(values).columns)
        except SchemaError as e:
            reason = wrong_type(e, f"the key function {key.describe()} returned the wrong type")
            raise OperatorError(self.name, batch_position(batch)) from reason


class LocalAggregateOperator(AggregateOperator):
    """Aggregates each batch by itself, so that the exchange carries one record per key and batch."""

    def process(self, batch: Batch, input_index: int) -> None:
        """Emit one partial result per key of the batch. Nothing is kept."""
        columns = batch.columns
        keys = [columns.column(i) for i in self._key_positions]
        values = self.values(columns)
        totals = totals_of(self.operation.aggregate, self.output_type.schema.types[-1])
        if len(keys) == 1 and is_bytes_like(_value_type(keys[0])):
            keys = [_compact(keys[0])]
            ids, count = dictionary_codes(keys[0]), len(keys[0].dictionary) + 1
        else:
            index = KeyIndex()
            with blame(self.name, batch_position(batch)):
                ids = index.ids(keys)
            count = len(index)
        touched, rows = distinct(ids, count)
        try:
            results = totals.latest(ids, totals.fresh(count), values, touched)
        except OverflowError as e:
            raise OperatorError(self.name, batch_position(batch)) from self.overflow(e, keys, ids)
        chosen = pa.array(rows)
        out = self.result([k.take(chosen) for k in keys], results)
        self.context.emit(Batch.of_columns(self.output_type, out))


class ObjectAggregateOperator(AggregateOperator):
    """Keys are any hashable Python objects; results are `(key, value)` tuples."""

    def open(self) -> None:
        """Start without keys; refuse to with checkpoints on, which could not have them."""
        super().open()
        self._latest = MemoryValues(self.context, self.operation.key, self.output_type)
        self._combine = _COMBINE[self.operation.aggregate]

    def process(self, batch: Batch, input_index: int) -> None:
        """Bring each record into its key's total, in order."""
        rows = self.rows(batch)
        keys = self.keys(batch, self.operation.key)
        values: list[Any] = [1] * len(rows)
        if self._value_position is not None:
            values = column_values(batch.columns.column(self._value_position), None)
        state, combine = self._latest.begin(), self._combine
        get = state.get
        out: list[Any] = []
        records = iter(rows)
        try:
            for _, k, v in zip(records, keys, values, strict=True):
                so_far = get(k)
                if so_far is None:
                    so_far = v
                elif v is not None:
                    so_far = combine(so_far, v)
                state[k] = so_far
                out.append((k, so_far))
        except BaseException as e:  # a key that cannot be hashed, or whose comparison raises
            raise self.failure(batch, rows, records) from e
        if self.operation.emit == "each":
            self.emit_checked(out, batch.origin, batch.timestamps, rows)
        else:
            self.emit_checked(list(dict(out).items()), None, None, None)

    def snapshot(self, checkpoint_id: int) -> None:
        """Objects cannot be in a checkpoint."""
        self._latest.check_snapshot()


def _smaller(so_far: Any, value: Any) -> Any:
    return value if value < so_far or so_far != so_far else so_far  # NaN is the largest number


def _larger(so_far: Any, value: Any) -> Any:
    return value if value > so_far or value != value else so_far


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "count": add,
    "sum": exact_sum,
    "min": _smaller,
    "max": _larger,
}


def _value_type(array: pa.Array) -> pa.DataType:
    return array.type.value_type if pa.types.is_dictionary(array.type) else array.type


def _compact(array: pa.Array) -> pa.DictionaryArray:
    """The column dictionary-encoded, with a dictionary that is not much longer than the column."""
    if not pa.types.is_dictionary(array.type):
        return array.dictionary_encode()
    if len(array.dictionary) <= 2 * len(array) + 1024:
        return array
    return array.dictionary_decode().dictionary_encode()
