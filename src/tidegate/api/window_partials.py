"""Windows in two stages: when built-in aggregates can be computed partly before the exchange, and what crosses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from tidegate.api.column_cuts import Slices
from tidegate.api.operations import TwoStages
from tidegate.api.window_aggregates import Avg, CountDistinct, TopN, WindowAggregate
from tidegate.api.window_operations import AggregateWindow, key_fields
from tidegate.records.decimals import sum_type
from tidegate.records.types import RecordType, RowType

SLICE_END: Final = "$slice_end"


def in_two_stages(operation: AggregateWindow, record_type: RecordType) -> TwoStages | None:
    """The operation cut in two, for records of this type.

    None where something forbids it: late records that must be handed over as they are, a key that is computed record
    by record, sessions (whether a record is late depends on the others), and whatever is not done by columns.
    """
    key = operation.key
    if operation.stage != "whole" or not isinstance(operation.column_cut, Slices):
        return None
    if operation.late_tag is not None or key is None or key.function is not None:
        return None
    local = replace(operation, stage="local")
    merge = replace(operation, stage="merge", aggregated_type=record_type)
    fields = [
        *key_fields(key),
        pa.field(SLICE_END, pa.int64(), False),
        pa.field("$records", pa.int64(), False),
    ]
    for i, (_, aggregate) in enumerate(operation.aggregates):
        fields += [
            pa.field(f"${i}.{j}", kind, True) for j, kind in enumerate(_partial_types(aggregate, record_type))
        ]
    return TwoStages(local, merge, RowType(pa.schema(fields)))


def _partial_types(aggregate: WindowAggregate, record_type: RecordType) -> list[pa.DataType]:
    result = aggregate.result_field("result", record_type).type
    kind = aggregate.kind
    if kind == "count":
        return [pa.int64()] if aggregate.columns() else []
    if kind in ("sum", "min", "max"):
        return [stored_number(result), pa.bool_()]
    if isinstance(aggregate, Avg):
        if not pa.types.is_decimal(result):
            return [pa.float64(), pa.int64()]
        return [sum_type(record_type.schema.field(aggregate.column).type), pa.int64()]
    if kind in ("first", "last"):
        return [pa.int64(), result]
    if isinstance(aggregate, TopN):
        by = record_type.schema.field(record_type.field_index(aggregate.by, kind)).type
        return [pa.list_(pa.field("item", best_record_type(by, list(result.value_type)), False))]
    assert isinstance(aggregate, CountDistinct)
    return [pa.list_(pa.field("item", record_type.schema.field(aggregate.column).type, False))]


def stored_number(kind: pa.DataType) -> pa.DataType:
    """The number that Arrow stores for a time; numbers are their own."""
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def best_record_type(by: pa.DataType, selected: list[pa.Field]) -> pa.DataType:
    """What is kept of each of the best records: `by`, the timestamp, and what is selected."""
    return pa.struct(
        [pa.field("$by", by, False), pa.field("$time", pa.int64(), False)]
        + [pa.field(f"${i}", f.type, True) for i, f in enumerate(selected)]
    )
