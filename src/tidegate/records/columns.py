"""Converts one column between Python values and Arrow. Input is strict: Arrow alone would round 1.5 to 1.

Arrow's conversion to a given type also accepts text for bytes, drops time zones and turns moments into days. A record
must not depend on whether it crossed an exchange, so `build_column` refuses what would come back different.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.core.words import brief as brief
from tidegate.records.codecs import check_values, refuse, refuse_none

_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, KeyError)
_INFERRED_EXACTLY = frozenset((pa.int64(), pa.float64(), pa.string()))
"""Types that Arrow infers from values of exactly the right classes; inferring costs almost nothing."""
_PACKED: dict[pa.DataType, tuple[type, str]] = {pa.int64(): (int, "q"), pa.float64(): (float, "d")}
"""Types whose buffer `struct` writes from values of one class, in half of Arrow's time."""


def column_values(column: pa.Array, decode: Callable[[Any], Any] | None, name: str = "") -> list[Any]:
    """The Python values of a column; rows of a dictionary-encoded column share objects.

    Raises `SchemaError` for a date or time whose year Python's `datetime` does not have; the error contains `name`.
    """
    if pa.types.is_dictionary(column.type) and column.null_count == 0:
        table = column.dictionary.to_pylist()
        codes = column.indices.to_pylist()
        if decode is not None:  # of text, so decoded values can be shared
            for i in set(codes):  # an unused entry may be invalid
                table[i] = None if table[i] is None else decode(table[i])
        return [table[i] for i in codes]
    elif column.type in _PACKED and column.null_count == 0:
        values = column.to_numpy().tolist()
    else:
        try:
            values = column.to_pylist()
        except OverflowError as e:
            raise _no_such_year(column, name) from e
    return values if decode is None else [None if v is None else decode(v) for v in values]


def _no_such_year(column: pa.Array, name: str) -> SchemaError:
    whose = f"column {name!r}" if name else "a column"
    kind = column.type
    if not pa.types.is_temporal(kind) or pa.types.is_duration(kind):  # such as a time inside a list
        return SchemaError(
            f"{whose} of {kind} has a value that Python's datetime cannot hold: its years are 1 to 9999, and "
            f"its durations up to 999999999 days. Look at where the times come from, or cast the column"
        )
    for value in column.drop_null():
        try:
            value.as_py()
        except OverflowError:
            break
    return SchemaError(
        f"{whose} has the {kind} {value.value}, which Python's datetime cannot hold: its years are 1 to 9999. "
        f"Look at where the times come from (microseconds taken for milliseconds?), or cast the column to int"
    )


def build_column(field: pa.Field, values: Sequence[Any], encode: Callable[[Any], Any] | None) -> pa.Array:
    """Make one column, or raise a `SchemaError` that names the column and the first value that does not fit."""
    if encode is not None:
        values = _encoded(field, values, encode)
    array = _packed(field.type, values)
    if array is None:
        array = _inferred(field.type, values)
    if array is None:
        check_values(field.name, field.type, field.nullable, values)
        array = _converted(field, values)
    if array.null_count and not field.nullable:
        refuse_none(field.name, field.type)
    return array


def _encoded(field: pa.Field, values: Sequence[Any], encode: Callable[[Any], Any]) -> list[Any]:
    try:
        return [None if v is None else encode(v) for v in values]
    except _REFUSALS:
        for value in values:
            try:
                if value is not None:
                    encode(value)
            except _REFUSALS:
                refuse(field.name, field.type, value)
        raise


def _packed(data_type: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    """The column if every value has exactly the class of the type; None if Arrow must check."""
    cls, code = _PACKED.get(data_type, (None, ""))
    count = len(values)
    if cls is None or list(map(type, values)).count(cls) != count:
        return None
    try:
        data = struct.pack(f"{count}{code}", *values)
    except struct.error:  # more than 64 bits
        return None
    return pa.Array.from_buffers(data_type, count, [None, pa.py_buffer(data)])


def _inferred(data_type: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    """The column if Arrow infers exactly this type by itself; None if a closer check is needed."""
    if data_type not in _INFERRED_EXACTLY:
        return None
    try:
        array = pa.array(values)
    except _REFUSALS:
        return None
    return array if array.type == data_type else None


def _converted(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except _REFUSALS as e:
        for value in values:
            try:
                pa.array([value], field.type)
            except _REFUSALS:
                refuse(field.name, field.type, value)
        raise SchemaError(f"column {field.name!r} ({field.type}): {e}") from e


def join_columns(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all parts, which have the same columns of the same types, as one batch; see `join_arrays`."""
    if len(parts) == 1:
        return parts[0]
    arrays = [join_arrays(chunks) for chunks in zip(*(p.columns for p in parts), strict=True)]
    if not arrays:
        return rows_without_columns(sum(p.num_rows for p in parts))
    schema = parts[0].schema
    if any(array.type != kind for array, kind in zip(arrays, schema.types, strict=True)):
        schema = pa.schema([field.with_type(a.type) for field, a in zip(schema, arrays, strict=True)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def join_arrays(chunks: Sequence[pa.Array]) -> pa.Array:
    """Concatenate arrays. Dictionaries are unified; if that is impossible, rows are decoded.

    It is impossible if all values together exceed the range of the codes, or if there are nulls among the values.
    """
    try:
        return pa.concat_arrays(chunks)
    except pa.ArrowInvalid:
        if not pa.types.is_dictionary(chunks[0].type):
            raise
        return pa.concat_arrays([chunk.dictionary_decode() for chunk in chunks])


def rows_without_columns(count: int) -> pa.RecordBatch:
    """A batch of `count` rows without columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))
