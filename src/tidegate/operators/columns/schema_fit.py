"""Convert columns to a declared schema if nothing is lost; otherwise refuse them with a message that shows both."""

from __future__ import annotations

import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.records.plain_types import laid_out


def conform(columns: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns in the order and of the types of `schema`; raises `SchemaError` naming both.

    Dictionary-encoded columns of the declared type stay encoded. Casts that keep every value (int32 to int64, a
    timestamp to a finer unit, int64 to int32 if all values fit) are made. Text is never parsed, numbers are never
    made text.
    """
    if columns.schema.equals(schema) and not _has_forbidden_nulls(columns, schema):
        return columns
    if set(columns.schema.names) != set(schema.names) or len(columns.schema) != len(schema):
        raise _refusal(columns.schema, schema, _difference(columns.schema.names, schema.names))
    arrays = [_fit(columns.column(field.name), field, columns.schema, schema) for field in schema]
    fields = [field.with_type(array.type) for field, array in zip(schema, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _has_forbidden_nulls(columns: pa.RecordBatch, schema: pa.Schema) -> bool:
    return any(not f.nullable and c.null_count for f, c in zip(schema, columns.columns, strict=True))


def _fit(array: pa.Array, field: pa.Field, got: pa.Schema, schema: pa.Schema) -> pa.Array:
    array = laid_out(array)
    if array.null_count and not field.nullable:
        raise _refusal(got, schema, f"column {field.name!r} has nulls but is declared without None")
    if array.type == field.type or _is_encoded(array.type, field.type):
        return array
    if not _may_cast(array.type, field.type):
        raise _refusal(got, schema, f"column {field.name!r} is {array.type}, not {field.type}")
    try:
        return array.cast(field.type)
    except pa.ArrowException as e:
        reason = f"column {field.name!r} is {array.type} and does not fit {field.type}: {e}"
        raise _refusal(got, schema, reason) from e


def _is_encoded(kind: pa.DataType, declared: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) and kind.value_type == declared)


def _may_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a safe cast keeps what the values mean; whether they fit is found while casting."""
    t = pa.types
    if t.is_dictionary(source) or t.is_run_end_encoded(source):
        return _may_cast(source.value_type, target) or bool(source.value_type == target)
    if t.is_null(source) or source == target:
        return True
    for family in (
        _is_text,
        _is_binary,
        t.is_integer,
        t.is_timestamp,
        t.is_duration,
        t.is_time,
        t.is_date,
        t.is_decimal,
    ):
        if family(source) and family(target):
            return not (t.is_timestamp(source) and source.tz != target.tz)
    if t.is_floating(target):
        narrower = t.is_floating(source) and source.bit_width <= target.bit_width
        return bool(narrower or t.is_integer(source))
    if _is_list(source) and _is_list(target):
        return _may_cast(source.value_type, target.value_type)
    if t.is_map(source) and t.is_map(target):
        return _may_cast(source.key_type, target.key_type) and _may_cast(source.item_type, target.item_type)
    if t.is_struct(source) and t.is_struct(target):
        names = [f.name for f in source]
        return names == [f.name for f in target] and all(
            _may_cast(a.type, b.type) for a, b in zip(source, target, strict=True)
        )
    return False


def _is_text(t: pa.DataType) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def _is_binary(t: pa.DataType) -> bool:
    of = pa.types
    return bool(
        of.is_binary(t) or of.is_large_binary(t) or of.is_binary_view(t) or of.is_fixed_size_binary(t)
    )


def _is_list(t: pa.DataType) -> bool:
    return bool(pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t))


def _difference(got: list[str], declared: list[str]) -> str:
    missing = [n for n in declared if n not in got]
    extra = [n for n in got if n not in declared]
    parts = []
    if missing:
        parts.append(f"{', '.join(map(repr, missing))} missing")
    if extra:
        parts.append(f"{', '.join(map(repr, extra))} not declared")
    return "; ".join(parts) or "a column appears twice"


def _refusal(got: pa.Schema, declared: pa.Schema, reason: str) -> SchemaError:
    return SchemaError(
        f"returned the wrong type: {reason}. Declared: {_describe(declared)}. Got: {_describe(got)}"
    )


def _describe(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{f.name}: {f.type}" for f in schema) + ")"
