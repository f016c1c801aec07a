"""Tables as records: rows of a pandas or polars DataFrame or of an Arrow table, and rows that Spark collects.

This module imports neither pandas nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import polars as pl
import pyarrow as pa

from tidegate.core.errors import ProgramError, SchemaError
from tidegate.records.columns import brief
from tidegate.records.plain_types import canonical_type
from tidegate.records.types import RecordType, RowType, record_type_of


class ArrowTable(Protocol):
    """A DataFrame of pandas or polars, or a table of Arrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Its columns, by the Arrow C stream protocol."""
        ...


def records_of(values: Iterable[Any], declared: Any) -> tuple[list[Any], Any]:
    """The records of a collection, and their type if it is known: the declared one, or that of a table."""
    table = as_table(values)
    if table is not None:
        return _rows_of(table, declared)
    records = list(values)
    if records and _is_spark_row(records[0]):
        return [r.asDict(recursive=True) if _is_spark_row(r) else r for r in records], declared
    return records, declared


def as_table(values: Any) -> pa.Table | None:
    """The Arrow table of a DataFrame or an Arrow object; None for anything else."""
    if isinstance(values, pa.RecordBatch):
        return pa.Table.from_batches([values])
    if isinstance(values, pa.Table):
        return values
    kind = type(values)
    package = kind.__module__.partition(".")[0]
    if kind.__name__ != "DataFrame":
        return None
    if package == "pyspark":
        raise ProgramError("from_collection got a Spark DataFrame; read it with env.from_dataframe(df)")
    try:
        if package == "pandas":
            return pa.Table.from_pandas(values, preserve_index=False)
        if package == "polars":  # Arrow has no cast for the dictionaries of views that categories would be
            return values.to_arrow(compat_level=pl.CompatLevel.oldest())
        return pa.table(values) if hasattr(values, "__arrow_c_stream__") else None
    except (pa.ArrowException, TypeError) as e:
        raise SchemaError(f"from_collection cannot read this DataFrame of {package}: {e}") from e


def _rows_of(table: pa.Table, declared: Any) -> tuple[list[Any], RecordType]:
    record_type = _table_type(table) if declared is None else record_type_of(declared)
    missing = [name for name in record_type.names if name not in table.column_names]
    if record_type.is_object or missing:
        columns = ", ".join(table.column_names)
        reason = f"it has no column {missing[0]!r}" if not record_type.is_object else "it has no columns"
        raise SchemaError(
            f"from_collection cannot read a table of {columns} as {record_type.describe()}: {reason}"
        )
    try:
        whole = table.select(record_type.names).cast(record_type.schema).combine_chunks()
    except (pa.ArrowException, ValueError) as e:
        raise SchemaError(f"from_collection cannot read this table as {record_type.describe()}: {e}") from e
    batches = whole.to_batches() or [record_type.schema.empty_table().to_batches()]
    return [row for batch in batches if batch for row in record_type.to_rows(batch)], record_type


def _table_type(table: pa.Table) -> RecordType:
    fields = []
    for field in table.schema:
        if not isinstance(field.name, str) or pa.types.is_null(field.type):
            some = brief(table.column(field.name).to_pylist()[:3])
            raise SchemaError(
                f"from_collection: column {field.name!r} has no values that tell its type: {some}. Pass type=, or cast "
                f"the column"
            )
        fields.append(pa.field(field.name, _without_nanoseconds(table, field), True))
    return RowType(pa.schema(fields))


def _without_nanoseconds(table: pa.Table, field: pa.Field) -> pa.DataType:
    """Microseconds for the times of pandas, which have unit ns but seldom nanoseconds; Python has none."""
    t = canonical_type(field.type)
    if not pa.types.is_timestamp(t) or t.unit != "ns":
        return t
    coarser = pa.timestamp("us", t.tz)
    try:
        table.column(field.name).cast(coarser)
    except pa.ArrowInvalid:
        return t
    return coarser


def _is_spark_row(value: Any) -> bool:
    cls = type(value)
    return cls.__name__ == "Row" and cls.__module__ == "pyspark.sql.types"
