"""Running aggregates per key.

| key by            | aggregates       | stage            | operator                  | state                     |
|-------------------|------------------|------------------|---------------------------|---------------------------|
| columns           | of numbers       | whole, merge     | `ColumnAggregateOperator` | a `ColumnTable` of totals |
| typed function    | of numbers       | whole            | the same                  | the same                  |
| columns           | of numbers       | local            | `LocalAggregateOperator`  | none                      |
| both              | any              | whole            | `RowAggregateOperator`    | a row per key             |
| untyped function  | any              | whole            | `ObjectAggregateOperator` | a dict, no checkpoints    |

With `emit="each"` there is one result per record, in order. With `emit="batch"` there is one per key of the batch, the
latest; their order is undefined and may change after a restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import length_hint
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.aggregates.aggregate import Aggregate, Kernel
from tidegate.aggregates.rows import RowAggregates
from tidegate.aggregates.segmented_scans import Ids, SumOverflow
from tidegate.aggregates.totals import RunningRows, TotalColumn, Totals, distinct
from tidegate.keys.key_index import KeyIndex
from tidegate.operators.columns.aggregate_inputs import AggregateInputs
from tidegate.operators.failures import OperatorError, batch_position, blame, record_failure
from tidegate.operators.functions.row_keys import KeyColumns, record_keys
from tidegate.operators.keyed.latest_values import MemoryValues, latest_values
from tidegate.operators.operator import Operator
from tidegate.operators.results import emit_checked
from tidegate.program.operations import RollingAggregate
from tidegate.records.batch import Batch
from tidegate.records.column_bits import dictionary_codes, is_bytes_like
from tidegate.records.columns import build_column
from tidegate.records.decimals import overflow_advice
from tidegate.records.types import RecordType
from tidegate.state.backend import ColumnArray
from tidegate.state.generations import REMOVED

STATE_NAME: Final = "total"
"""The name in checkpoints, of all aggregates: if the program changes one into another, its type is refused."""
_NOTHING: Final = (None,)


def aggregate_operator(operation: RollingAggregate) -> type[Operator]:
    if operation.stage == "local":
        return LocalAggregateOperator
    if operation.key.record_type.is_object:
        return ObjectAggregateOperator
    return RowAggregateOperator if operation.by_rows else ColumnAggregateOperator


class AggregateOperator(Operator):
    """The base of these operators: what they read, and how results become batches."""

    operation: RollingAggregate

    def open(self) -> None:
        operation = self.operation
        self.keys = KeyColumns(operation.key, self.input_types[0], self.name)
        aggregated: RecordType = operation.aggregated_type or self.input_types[0]
        self.inputs = AggregateInputs([a for _, a in operation.aggregates], aggregated)
        self.emits_each = operation.emit == "each"
        self._schema: pa.Schema | None = None

    def emit_columns(self, batch: Batch, keys: list[pa.Array], results: list[pa.Array]) -> None:
        """Emit key columns and results in the output type, text dictionary-encoded or plain as it came."""
        arrays = [*keys, *results]
        types = [a.type for a in arrays]
        if self._schema is None or self._schema.types != types:
            declared = self.output_type.schema
            self._schema = pa.schema([f.with_type(t) for f, t in zip(declared, types, strict=True)])
        out = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        kind = self.output_type
        self.context.emit(batch.with_columns(kind, out) if self.emits_each else Batch(kind, columns=out))


@dataclass
class _Running:
    """One aggregate, and which of the arrays are those of its totals."""

    aggregate: Aggregate
    kernel: Kernel
    totals: list[tuple[Totals, slice]]


class TotalsOperator(AggregateOperator):
    """Keys and values are columns; every step is vectorised."""

    def open(self) -> None:
        super().open()
        self.running: list[_Running] = []
        self.columns: list[TotalColumn] = []
        several = len(self.operation.aggregates) > 1
        pairs = zip(self.operation.aggregates, self.inputs.kernels, strict=True)
        for (output, aggregate), kernel in pairs:
            own: list[tuple[Totals, slice]] = []
            for each in kernel.totals() or []:
                totals = each.merging() if self.operation.stage == "merge" else each
                start = len(self.columns)
                own.append((totals, slice(start, start + len(totals.columns))))
                names = [f"{output} {c.name}" if several else c.name for c in totals.columns]
                self.columns += [c._replace(name=n) for c, n in zip(totals.columns, names, strict=True)]
            self.running.append(_Running(aggregate, kernel, own))
        self._is_merge = self.operation.stage == "merge"

    def values(self, batch: Batch) -> Sequence[Sequence[pa.Array | None]]:
        """What each aggregate folds: a column (None to count records), or the partial results of its totals."""
        if self._is_merge:
            rest = iter(batch.columns.columns[len(self.keys.positions) :])
            return [[next(rest) for _ in each.totals] for each in self.running]
        if self.inputs.is_empty:
            return [_NOTHING] * len(self.running)
        arrays = self.inputs.columns(batch.columns)
        return [own or _NOTHING for own in arrays]

    def refusal(self, of: _Running, error: OverflowError, keys: list[pa.Array], ids: Ids) -> OverflowError:
        """The error that says which sum of which key does not fit its type, and what to do."""
        what = of.aggregate.label()
        if isinstance(error, SumOverflow):
            row = int(np.flatnonzero(ids == error.id)[0])
            what += f" of key {', '.join(repr(k[row].as_py()) for k in keys)}"
        of_decimals = pa.types.is_decimal(of.kernel.result_type)
        return OverflowError(f"{what}: {error}. {overflow_advice(of_decimals=of_decimals)}")


class ColumnAggregateOperator(TotalsOperator):
    """Keeps the totals of all keys in a column table."""

    def open(self) -> None:
        """Find the state: empty, or as a checkpoint has it."""
        super().open()
        backend = self.context.states.keyed(self.operation.key.record_type)
        self._table = backend.columns(STATE_NAME, [ColumnArray(*c) for c in self.columns])

    def process(self, batch: Batch, input_index: int) -> None:
        """Add the batch to the totals and emit results."""
        each = self.emits_each
        keys = self.keys.of(batch)
        with blame(self.name, batch_position(batch)):
            values = self.values(batch)
            ids, count, arrays = self._table.begin(keys)
        rows = RunningRows(ids, count)
        touched, chosen = (ids, ids) if each else distinct(ids, count)
        results: list[pa.Array] = []
        for i, running in enumerate(self.running):
            made: list[pa.Array] = []
            try:
                for j, (totals, part) in enumerate(running.totals):
                    column = values[i][j if self._is_merge else 0]
                    if each:
                        found, touched = totals.each(rows, arrays[part], column)
                    else:
                        found = totals.latest(ids, arrays[part], column, touched)
                    made.append(found)
            except OverflowError as e:
                reason = self.refusal(running, e, keys, ids)
                raise OperatorError(self.name, batch_position(batch)) from reason
            results.append(running.kernel.of_totals(made))
        self._table.commit(touched)
        del rows  # free large arrays before the next operators run
        if not each:
            keys = [k.take(pa.array(chosen)) for k in keys]
        self.emit_columns(batch, keys, results)


class LocalAggregateOperator(TotalsOperator):
    """Aggregates each batch by itself, so that the exchange carries one record per key and batch."""

    def process(self, batch: Batch, input_index: int) -> None:
        """Emit one partial result per key of the batch; keep nothing."""
        keys = self.keys.of(batch)
        with blame(self.name, batch_position(batch)):
            values = self.values(batch)
            if len(keys) == 1 and is_bytes_like(_value_type(keys[0])):
                keys = [_compact(keys[0])]
                ids, count = dictionary_codes(keys[0]), len(keys[0].dictionary) + 1
            else:
                index = KeyIndex()
                ids = index.ids(keys)
                count = len(index)
        touched, rows = distinct(ids, count)
        results: list[pa.Array] = []
        for running, own in zip(self.running, values, strict=True):
            try:
                for totals, _ in running.totals:
                    results.append(totals.latest(ids, totals.fresh(count), own[0], touched))
            except OverflowError as e:
                reason = self.refusal(running, e, keys, ids)
                raise OperatorError(self.name, batch_position(batch)) from reason
        chosen = pa.array(rows)
        self.emit_columns(batch, [k.take(chosen) for k in keys], results)


class RowAggregateOperator(AggregateOperator):
    """Any aggregates, record by record: what is kept is a row of the state."""

    def open(self) -> None:
        super().open()
        outputs = [output for output, _ in self.operation.aggregates]
        self._rows = RowAggregates(list(zip(outputs, self.inputs.kernels, strict=True)))
        # What a user's aggregate keeps gets the form that it has after a restore.
        by_state = any(a.runs_user_code for _, a in self.operation.aggregates)
        stored_type = self._rows.stored_type
        self._latest = latest_values(
            self.context, self.operation.key, stored_type, STATE_NAME, by_state=by_state
        )

    def process(self, batch: Batch, input_index: int) -> None:
        """Add each record to what is kept of its key, in order."""
        each = self.emits_each
        with blame(self.name, batch_position(batch)):
            values = zip(*self.inputs.rows(batch), strict=True)
        keys = record_keys(batch, self.operation.key, self.name)
        stored, load = self._latest.begin(), self._latest.load
        live: dict[Any, list[Any]] = {}
        place: dict[Any, int] = {}
        rows = self._rows
        out: list[list[Any]] = []
        records = iter(keys)
        try:
            for key, value, time in zip(records, values, _times(batch), strict=True):
                kept = live.get(key)
                if kept is None:
                    place[key] = len(out) if each else batch.num_rows - length_hint(records) - 1
                    found = stored.get(key, REMOVED)
                    if found is REMOVED:
                        found = load(key)
                    kept = live[key] = rows.start() if found is REMOVED else rows.load(found)
                rows.add(kept, value, time)
                if each:
                    out.append(rows.result(kept))
            for key, kept in live.items():
                stored[key] = rows.dump(kept)
            self._latest.commit()
            if not each:
                out = [rows.result(kept) for kept in live.values()]
        except BaseException as e:
            raise record_failure(self.name, batch, batch.rows, records) from e
        columns = self.keys.of(batch, keys)
        if not each:
            chosen = pa.array(list(place.values()))
            columns = [c.take(chosen) for c in columns]
        fields = list(self.output_type.schema)[len(columns) :]
        results = zip(*out, strict=True)
        with blame(self.name, batch_position(batch)):
            arrays = [build_column(f, list(found), None) for f, found in zip(fields, results, strict=True)]
        self.emit_columns(batch, columns, arrays)

    def snapshot(self, checkpoint_id: int) -> None:
        self._latest.check_snapshot()


class ObjectAggregateOperator(AggregateOperator):
    """Keys are any hashable Python objects; results are tuples of the key and the results."""

    def open(self) -> None:
        """Start without keys; raise if checkpoints are on, which cannot store them."""
        super().open()
        self._latest = MemoryValues(self.context, self.operation.key, self.output_type)

    def process(self, batch: Batch, input_index: int) -> None:
        """Add each record to what is kept of its key, in order."""
        with blame(self.name, batch_position(batch)):
            values = self.inputs.rows(batch)
        keys = record_keys(batch, self.operation.key, self.name)
        records = iter(keys)
        try:
            if len(values) == 1:
                out = self._one(self.inputs.kernels[0], records, values[0], _times(batch))
            else:
                out = self._several(records, zip(*values, strict=True), _times(batch))
        except BaseException as e:  # a key that cannot be hashed, or whose comparison raises
            raise record_failure(self.name, batch, batch.rows, records) from e
        if self.emits_each:
            emit_checked(self, out, batch.origin, batch.timestamps, batch.rows)
        else:
            emit_checked(self, list({row[0]: row for row in out}.values()), None, None, None)

    def _one(
        self, kernel: Kernel, keys: Iterator[Any], values: list[Any], times: Iterable[int]
    ) -> list[tuple[Any, ...]]:
        state, start, add, result = self._latest.begin(), kernel.start, kernel.add, kernel.result
        is_result = type(kernel).result is Kernel.result  # what is kept is the result itself
        out: list[tuple[Any, ...]] = []
        append = out.append
        for key, value, time in zip(keys, values, times, strict=True):
            try:  # costs nothing where the key is known, which is nearly always
                kept = state[key]
            except KeyError:
                kept = start()
            if value is not None:
                kept = add(kept, value, time)
            state[key] = kept
            append((key, kept if is_result else result(kept)))
        return out

    def _several(
        self, keys: Iterator[Any], values: Iterator[tuple[Any, ...]], times: Iterable[int]
    ) -> list[tuple[Any, ...]]:
        state = self._latest.begin()
        rows = RowAggregates([("", kernel) for kernel in self.inputs.kernels])
        out: list[tuple[Any, ...]] = []
        for key, value, time in zip(keys, values, times, strict=True):
            kept = state.get(key)
            if kept is None:
                kept = state[key] = rows.start()
            rows.add(kept, value, time)
            out.append((key, *rows.result(kept)))
        return out

    def snapshot(self, checkpoint_id: int) -> None:
        """Raise: objects cannot be stored in a checkpoint."""
        self._latest.check_snapshot()


def _times(batch: Batch) -> Iterable[int]:
    """The timestamp of every record; without one, 0: then first and last are by arrival."""
    if batch.timestamps is None:
        return repeat(0, batch.num_rows)
    times: list[int] = batch.timestamps.fill_null(0).to_pylist()
    return times


def _value_type(array: pa.Array) -> pa.DataType:
    return array.type.value_type if pa.types.is_dictionary(array.type) else array.type


def _compact(array: pa.Array) -> pa.DictionaryArray:
    """The column dictionary-encoded, with a dictionary that is not much longer than the column."""
    if not pa.types.is_dictionary(array.type):
        return array.dictionary_encode()
    if len(array.dictionary) <= 2 * len(array) + 1024:
        return array
    return array.dictionary_decode().dictionary_encode()
