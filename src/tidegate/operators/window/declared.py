"""From an operation's declared aggregates to the accumulators that perform them, and to the columns that these read."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tidegate.api.window_aggregates import Avg, Count, CountDistinct, TopN, WindowAggregate
from tidegate.api.window_operations import AggregateWindow
from tidegate.operators.window.accumulators import Accumulator, Average, CountRecords, CountValues, Total
from tidegate.operators.window.decimal_accumulators import DecimalAverage, DecimalTotal
from tidegate.operators.window.parts import WindowAggregates
from tidegate.operators.window.value_accumulators import BestRecords, DistinctValues, EdgeValue
from tidegate.records.types import RecordType

ReadColumn = Callable[[pa.RecordBatch], pa.Array | None]


def window_aggregates(operation: AggregateWindow, record_type: RecordType) -> WindowAggregates:
    """The accumulators of an operation over records of this type."""
    accumulators = [_accumulator(a, record_type) for _, a in operation.aggregates]
    cut = operation.column_cut
    assert cut is not None
    return WindowAggregates(accumulators, cut.identity())


def column_readers(operation: AggregateWindow, record_type: RecordType) -> list[ReadColumn]:
    """For each aggregate what it reads of a batch; None for a count of records."""
    return [_reader(a, record_type) for _, a in operation.aggregates]


def _accumulator(aggregate: WindowAggregate, record_type: RecordType) -> Accumulator:
    result = aggregate.result_field("result", record_type).type
    kind = aggregate.kind
    if isinstance(aggregate, Count):
        return CountRecords() if aggregate.column is None else CountValues()
    if kind == "sum" or kind == "min" or kind == "max":
        return DecimalTotal(kind, result) if pa.types.is_decimal(result) else Total(kind, result)
    if isinstance(aggregate, Avg):
        if not pa.types.is_decimal(result):
            return Average()
        return DecimalAverage(record_type.schema.field(aggregate.column).type, result)
    if kind == "first" or kind == "last":
        return EdgeValue(result, latest=kind == "last")
    if isinstance(aggregate, TopN):
        by = record_type.schema.field(record_type.field_index(aggregate.by, kind))
        return BestRecords(aggregate.n, by.type, list(result.value_type), largest=aggregate.largest)
    if isinstance(aggregate, CountDistinct):
        return DistinctValues(record_type.schema.field(aggregate.column).type)
    raise TypeError(f"no accumulator performs {aggregate!r}")


def _reader(aggregate: WindowAggregate, record_type: RecordType) -> ReadColumn:
    kind = aggregate.kind
    if isinstance(aggregate, TopN):
        names = [aggregate.by, *aggregate.selected(record_type)]
        positions = [record_type.field_index(name, kind) for name in names]
        fields = [f"{i}" for i in range(len(positions))]
        return lambda batch: pa.StructArray.from_arrays([batch.column(p) for p in positions], fields)
    columns = aggregate.columns()
    if not columns:
        return lambda batch: None
    position = record_type.field_index(columns[0], kind)
    return lambda batch: batch.column(position)
