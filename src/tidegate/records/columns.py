"""One column between Python values and Arrow: strict on the way in, because Arrow by itself rounds 1.5 to 1.

Arrow's conversion to a given type also takes text for bytes, drops time zones and turns moments into days. A record
must not depend on whether it crossed an exchange, so `build_column` refuses what would come back as another value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import numbers
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.core.words import kind_of

_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, KeyError)
_INFERRED_EXACTLY = frozenset((pa.int64(), pa.float64(), pa.string()))
"""Types that Arrow infers from values of just the right classes; inferring costs next to nothing."""
_PACKED: dict[pa.DataType, tuple[type, str]] = {pa.int64(): (int, "q"), pa.float64(): (float, "d")}
"""Types whose buffer `struct` writes from values of one class, at half of Arrow's price."""


def column_values(column: pa.Array, decode: Callable[[Any], Any] | None, name: str = "") -> list[Any]:
    """The Python values of a column; dictionary-encoded ones share their objects.

    Raises `SchemaError` for a date or time that Python's `datetime` has no year for; `name` is said then.
    """
    if pa.types.is_dictionary(column.type) and column.null_count == 0:
        table = column.dictionary.to_pylist()
        codes = column.indices.to_pylist()
        if decode is not None:  # of text, so what it makes may be shared
            for i in set(codes):  # what no row has may be no value at all
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
    if not pa.types.is_temporal(kind) or pa.types.is_duration(kind):  # a time within a list, say
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
    """Make one column, or raise `SchemaError` naming the column and the first value that does not fit."""
    if encode is not None:
        values = _encoded(field, values, encode)
    array = _packed(field.type, values)
    if array is None:
        array = _inferred(field.type, values)
    if array is None:
        check_values(field.name, field.type, field.nullable, values)
        array = _converted(field, values)
    if array.null_count and not field.nullable:
        _refuse_none(field.name, field.type)
    return array


def check_values(name: str, data_type: pa.DataType, nullable: bool, values: Sequence[Any]) -> None:
    """Raise `SchemaError` for the first value whose class is not that of the Arrow type, inside lists and maps too."""
    classes = set(map(type, values))
    if type(None) in classes:
        if not nullable:
            _refuse_none(name, data_type)
        classes.discard(type(None))
    for found in classes:
        if not _fits(found, data_type):
            _refuse(name, data_type, next(v for v in values if type(v) is found))
    if pa.types.is_timestamp(data_type) or pa.types.is_time(data_type):
        _check_time_zones(name, data_type, values)
    elif pa.types.is_nested(data_type):
        _check_nested(name, data_type, [v for v in values if v is not None])


def brief(value: Any, limit: int = 120) -> str:
    """A value's repr, cut to a line."""
    try:
        text = repr(value)
    except Exception as e:  # noqa: BLE001 - the user's repr may raise anything; the message must still be made
        text = f"<{type(value).__name__} whose repr raises {type(e).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _encoded(field: pa.Field, values: Sequence[Any], encode: Callable[[Any], Any]) -> list[Any]:
    try:
        return [None if v is None else encode(v) for v in values]
    except _REFUSALS:
        for value in values:
            try:
                if value is not None:
                    encode(value)
            except _REFUSALS:
                _refuse(field.name, field.type, value)
        raise


def _packed(data_type: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    """The column if every value is of just the class of the type; None where Arrow must look."""
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
    """The column if Arrow infers just this type without being told; None where a closer look is needed."""
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
                _refuse(field.name, field.type, value)
        raise SchemaError(f"column {field.name!r} ({field.type}): {e}") from e


def _fits(found: type, t: pa.DataType) -> bool:
    if pa.types.is_boolean(t):
        return issubclass(found, (bool, np.bool_))
    if pa.types.is_integer(t):
        return found is not bool and issubclass(found, numbers.Integral)
    if pa.types.is_floating(t):
        return found is not bool and issubclass(found, (numbers.Real, np.floating))
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return issubclass(found, str)
    if pa.types.is_binary(t) or pa.types.is_large_binary(t):
        return issubclass(found, (bytes, bytearray, memoryview))
    if pa.types.is_date(t):
        return issubclass(found, dt.date) and not issubclass(found, dt.datetime)
    if pa.types.is_timestamp(t):
        return issubclass(found, (dt.datetime, np.datetime64))
    if pa.types.is_time(t):
        return issubclass(found, dt.time)
    if pa.types.is_duration(t):
        return issubclass(found, (dt.timedelta, np.timedelta64))
    if pa.types.is_decimal(t):
        return found is not bool and issubclass(found, (decimal.Decimal, int))
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return issubclass(found, Iterable) and not issubclass(found, (str, bytes, dict))
    return True


def _check_time_zones(name: str, data_type: pa.DataType, values: Sequence[Any]) -> None:
    zoned = pa.types.is_timestamp(data_type) and data_type.tz is not None
    for value in values:
        if value is not None and (getattr(value, "tzinfo", None) is not None) != zoned:
            if isinstance(value, np.datetime64):
                continue
            raise SchemaError(
                f"column {name!r} is {data_type}, {'with' if zoned else 'without'} a time zone, but got "
                f"{brief(value)}. Declare Annotated[datetime, pyarrow.timestamp('us', 'UTC')] for times with a zone"
            )


def _check_nested(name: str, t: pa.DataType, values: list[Any]) -> None:
    if pa.types.is_struct(t):
        for child in t:
            inside = [v.get(child.name) if isinstance(v, dict) else None for v in values]
            if all(isinstance(v, dict) for v in values):
                check_values(f"{name}.{child.name}", child.type, child.nullable, inside)
    elif pa.types.is_map(t):
        pairs = [pair for v in values for pair in (v.items() if isinstance(v, dict) else v)]
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            check_values(f"{name} key", t.key_type, False, [k for k, _ in pairs])
            check_values(f"{name} value", t.item_type, t.item_field.nullable, [v for _, v in pairs])
    elif pa.types.is_list(t) or pa.types.is_large_list(t):
        check_values(f"{name} item", t.value_type, t.value_field.nullable, [i for v in values for i in v])


def _refuse(name: str, data_type: pa.DataType, value: Any) -> NoReturn:
    raise SchemaError(f"column {name!r} is {data_type} but got {kind_of(value)}: {brief(value)}") from None


def _refuse_none(name: str, data_type: pa.DataType) -> NoReturn:
    raise SchemaError(
        f"column {name!r} is {data_type} without None, but got None. Declare it Optional if None is meant"
    )


def join_columns(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all parts, which have the same columns of the same types, in one; see `join_arrays`."""
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
    """One array behind the other. Dictionaries become one; where they cannot, rows are decoded.

    They cannot if there are more values together than codes can tell, or nulls among the values.
    """
    try:
        return pa.concat_arrays(chunks)
    except pa.ArrowInvalid:
        if not pa.types.is_dictionary(chunks[0].type):
            raise
        return pa.concat_arrays([chunk.dictionary_decode() for chunk in chunks])


def rows_without_columns(count: int) -> pa.RecordBatch:
    """So many rows of which nothing is known but that they are there."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))
