"""Windows in two stages: when built-in aggregates can be pre-aggregated before the exchange, and what crosses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from tidegate.program.aggregate_inputs import kernel_of
from tidegate.program.operations import TwoStages
from tidegate.program.window_operations import AggregateWindow, key_fields
from tidegate.records.types import RecordType, RowType

SLICE_END: Final = "$slice_end"


def in_two_stages(operation: AggregateWindow, record_type: RecordType) -> TwoStages | None:
    """Split the operation into two stages, for records of this type.

    None if something forbids it: a side output for late records (which needs the records), a key function (it runs
    record by record), sessions (whether a record is late depends on the others), or windows that do not run on columns.
    """
    key, cut = operation.key, operation.column_cut
    if operation.stage != "whole" or cut is None or not cut.has_partials:
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
        partial = kernel_of(aggregate, record_type).partial
        fields += [pa.field(f"${i}.{j}", f.type, True) for j, f in enumerate(partial)]
    return TwoStages(local, merge, RowType(pa.schema(fields)))
