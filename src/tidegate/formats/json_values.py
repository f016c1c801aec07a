"""Columns from the values of lines with one layout: equal to msgspec's, or None if that is not certain.

`json_layout` has proved that the values are JSON, so only their type and range are left to check. If a value does not
fit, the result is None, and the parser then finds the bad line and the reason.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.formats.json_layout import LineValues
from tidegate.formats.line_loops import Integers, whole_numbers

ReadColumn = Callable[[LineValues, pa.Field], pa.Array | None]

_QUOTE, _MINUS, _ZERO, _N, _T, _F = (ord(c) for c in '"-0ntf')
_LONGEST_FLOAT = 40


def column_reader(data_type: pa.DataType) -> ReadColumn | None:
    """The function that reads a column of this type; None if only the parser can."""
    types = pa.types
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_timestamp(data_type):
        return _strings
    if types.is_integer(data_type):
        return _integers
    if types.is_float64(data_type):
        return _floats
    if types.is_boolean(data_type):
        return _booleans
    return None


def _strings(values: LineValues, field: pa.Field) -> pa.Array | None:
    starts, ends = values.places[field.name]
    first = values.text[starts]
    nulls = _nulls(values, first)
    fit = first == _QUOTE if nulls is None else (first == _QUOTE) | nulls
    if not fit.all() or (nulls is not None and not field.nullable):
        return None
    array = _texts(values, starts + 1, ends - 1, nulls)
    if array.type.equals(field.type):
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException:
        return None


def _integers(values: LineValues, field: pa.Field) -> pa.Array | None:
    starts, ends = values.places[field.name]
    numbers, nulls = np.empty(values.lines, np.int64), np.empty(values.lines, np.bool_)
    if not whole_numbers(values.text, starts, ends, numbers, nulls):
        return None
    limits = np.iinfo(field.type.to_pandas_dtype())
    if numbers.min() < limits.min or numbers.max() > limits.max:
        return None
    has_nulls = values.has_literals and bool(nulls.any())
    if has_nulls and not field.nullable:
        return None
    exact = numbers.astype(field.type.to_pandas_dtype(), copy=False)
    return pa.array(exact, field.type, mask=nulls if has_nulls else None)


def _floats(values: LineValues, field: pa.Field) -> pa.Array | None:
    starts, ends = values.places[field.name]
    first = values.text[starts]
    nulls = _nulls(values, first)
    others = (first == _QUOTE) | (first == _T) | (first == _F)
    if others.any() or (nulls is not None and not field.nullable):
        return None
    sizes = ends - starts
    if sizes.max() > _LONGEST_FLOAT:
        return None
    # The parser reads "-0" as the integer 0 without its sign, but "-0.0" as negative zero.
    if values.has_signs and ((first == _MINUS) & (sizes == 2) & (values.text[ends - 1] == _ZERO)).any():
        return None
    return _texts(values, starts, ends, nulls).cast(pa.float64())


def _booleans(values: LineValues, field: pa.Field) -> pa.Array | None:
    first = values.text[values.places[field.name][0]]
    nulls = _nulls(values, first)
    true = first == _T
    fit = true | (first == _F) if nulls is None else true | (first == _F) | nulls
    if not fit.all() or (nulls is not None and not field.nullable):
        return None
    return pa.array(true, pa.bool_(), mask=nulls)


def _nulls(values: LineValues, first: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_] | None:
    """A mask of the null values; None if there are none."""
    if not values.has_literals:
        return None
    nulls = first == _N
    return nulls if nulls.any() else None


def _texts(
    values: LineValues, starts: Integers, ends: Integers, nulls: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Pieces of the chunk as strings."""
    offsets = np.empty(2 * values.lines, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    # Every second element is a piece; the others are the text between the pieces.
    buffers = (pa.py_buffer(offsets), pa.py_buffer(values.chunk))
    pieces = pa.StringArray.from_buffers(len(offsets) - 1, *buffers)
    chosen = pa.array(np.arange(0, len(offsets), 2, dtype=np.int32), mask=nulls)
    return pieces.take(chosen)
