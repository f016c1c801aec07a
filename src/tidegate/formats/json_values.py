"""Columns from the values of lines with one layout: the same as msgspec would give, or none if that is not certain.

The values are shown to be JSON (`json_layout`), so what is left is their type and range. Where a value does not fit,
the answer is None, and the parser that reads line by line says what is wrong with which one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.formats.byte_windows import LAST_BYTES, WORD, Positions, Words, words_before
from tidegate.formats.json_layout import LineValues

ReadColumn = Callable[[LineValues, pa.Field], pa.Array | None]

_QUOTE, _MINUS, _ZERO, _N, _T, _F = (ord(c) for c in '"-0ntf')
_MOST_DIGITS = 18
_LONGEST_FLOAT = 40
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINE = np.uint64(0x7676767676767676)
_HIGH_BITS = np.uint64(0x8080808080808080)


def column_reader(data_type: pa.DataType) -> ReadColumn | None:
    """How to read a column of this type; None if only the parser can."""
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
    starts, ends = values.of(field.name)
    first = values.bytes[starts]
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
    starts, ends = values.of(field.name)
    nulls = negative = None
    if values.layout.literals or values.layout.signs:
        first = values.bytes[starts]
        nulls = _nulls(values, first)
        negative = first == _MINUS
        starts = starts + negative
        if nulls is not None:
            if not field.nullable:
                return None
            starts = np.where(nulls, ends, starts)
    numbers = _digits(values.chunk, starts, ends)
    if numbers is None:
        return None
    if negative is not None:
        np.negative(numbers, out=numbers, where=negative)
    limits = np.iinfo(field.type.to_pandas_dtype())
    if numbers.min() < limits.min or numbers.max() > limits.max:
        return None
    return pa.array(numbers.astype(field.type.to_pandas_dtype(), copy=False), field.type, mask=nulls)


def _floats(values: LineValues, field: pa.Field) -> pa.Array | None:
    starts, ends = values.of(field.name)
    first = values.bytes[starts]
    nulls = _nulls(values, first)
    others = (first == _QUOTE) | (first == _T) | (first == _F)
    if others.any() or (nulls is not None and not field.nullable):
        return None
    sizes = ends - starts
    if sizes.max() > _LONGEST_FLOAT:
        return None
    # The parser takes "-0" for the integer 0, and "-0.0" for what it is.
    if values.layout.signs and ((first == _MINUS) & (sizes == 2) & (values.bytes[ends - 1] == _ZERO)).any():
        return None
    return _texts(values, starts, ends, nulls).cast(pa.float64())


def _booleans(values: LineValues, field: pa.Field) -> pa.Array | None:
    first = values.bytes[values.of(field.name)[0]]
    nulls = _nulls(values, first)
    true = first == _T
    fit = true | (first == _F) if nulls is None else true | (first == _F) | nulls
    if not fit.all() or (nulls is not None and not field.nullable):
        return None
    return pa.array(true, pa.bool_(), mask=nulls)


def _nulls(values: LineValues, first: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_] | None:
    """Which values are null; None if none is."""
    if not values.layout.literals:
        return None
    nulls = first == _N
    return nulls if nulls.any() else None


def _texts(
    values: LineValues, starts: Positions, ends: Positions, nulls: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Pieces of the chunk as strings."""
    offsets = np.empty(2 * values.lines, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    # Every second one of these is a piece, and the others are what is between them.
    buffers = (pa.py_buffer(offsets), pa.py_buffer(values.chunk))
    pieces = pa.StringArray.from_buffers(len(offsets) - 1, *buffers)
    chosen = pa.array(np.arange(0, len(offsets), 2, dtype=np.int32), mask=nulls)
    return pieces.take(chosen)


def _digits(chunk: bytes, starts: Positions, ends: Positions) -> npt.NDArray[np.int64] | None:
    """Decimal numbers without sign; None if one is too long or has something else than digits."""
    sizes = ends - starts
    longest = int(sizes.max())
    if longest > _MOST_DIGITS:
        return None
    count = max(1, -(-longest // WORD))
    words = words_before(chunk, ends, count)
    total: Words | None = None
    for i in range(count):
        # How many of the number's digits are in this word, at its end.
        inside = np.clip(sizes - (count - 1 - i) * WORD, 0, WORD)
        digits = (words[:, i] ^ _ZEROS) & LAST_BYTES[inside]
        if ((digits + _ABOVE_NINE) & _HIGH_BITS).any() or (digits & _HIGH_BITS).any():
            return None
        number = _eight_digits(digits)
        total = number if total is None else total * np.uint64(10**WORD) + number
    assert total is not None
    return total.astype(np.int64)


def _eight_digits(digits: Words) -> Words:
    """The number of eight digits, each a byte, the first one lowest: pairs, then fours, then all."""
    pairs = (digits * np.uint64(1 + (10 << 8))) >> np.uint64(8)
    pairs &= np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(1 + (100 << 16))) >> np.uint64(16)
    fours &= np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(1 + (10_000 << 32))) >> np.uint64(32)
