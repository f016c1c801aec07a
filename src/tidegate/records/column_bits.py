"""Key columns in numpy: 64 bits per number, bytes and positions per text, and a mask of the nulls.

The stable hash and the tables of dense ids use it. Slices (an offset into the buffers) are respected; the content of a
null row is undefined.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.records.codecs import key_form

Bits = npt.NDArray[np.uint64]

NAN_BITS: Final = 0x7FF8000000000000
# The part of the last word that belongs to the value, by the number of bytes left.
TAIL_MASKS: Final = np.array([0] + [(1 << 8 * n) - 1 for n in range(1, 9)], dtype=np.uint64)


def is_fixed_width(kind: pa.DataType) -> bool:
    """Whether a key of this type is a number of at most 64 bits: see `fixed_width_bits`."""
    form = key_form(kind)
    return form is not None and form.dtype is not None


def is_bytes_like(kind: pa.DataType) -> bool:
    """Whether a key of this type is a byte string: text or binary in any Arrow layout."""
    form = key_form(kind)
    return form is not None and form.dtype is None


def fixed_width_bits(array: pa.Array) -> Bits:
    """A new array of 64 bits per row, equal exactly if the values are equal (null rows: undefined).

    Integers are sign-extended, floats are the bits of the double with one zero and one NaN, the rest is the integer
    that Arrow stores.
    """
    dtype = _dtype(array.type)
    if dtype.kind == "b":
        flags: npt.NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
        return flags.astype(np.uint64)
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), np.uint64)
    values = np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
    if dtype.kind != "f":
        return values.astype(np.int64 if dtype.kind == "i" else np.uint64).view(np.uint64)
    with np.errstate(invalid="ignore"):  # a null row may hold any bits, also those of a signalling NaN
        doubles = values.astype(np.float64)
        doubles += 0.0  # -0.0 becomes 0.0
    bits: Bits = doubles.view(np.uint64)
    bits[np.isnan(doubles)] = NAN_BITS
    return bits


def from_fixed_width_bits(
    bits: Bits, kind: pa.DataType, null: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """The column with these `fixed_width_bits`, null where ``null`` is set."""
    dtype = _dtype(kind)
    if dtype.kind == "b":
        return pa.array(bits.astype(np.bool_), mask=null)
    values: npt.NDArray[Any] = (bits.view(np.float64) if dtype.kind == "f" else bits).astype(dtype)
    validity = None if null is None or not null.any() else pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(values)])


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    form = key_form(kind)
    assert form is not None
    assert form.dtype is not None
    return form.dtype


def has_nulls(array: pa.Array) -> bool:
    """Whether a row is null; in a dictionary array also by referring to a null in the dictionary."""
    if pa.types.is_dictionary(array.type):
        return bool(array.indices.null_count or array.dictionary.null_count)
    return bool(array.null_count)


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.dictionary_decode()
    mask: npt.NDArray[np.bool_] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return mask


def dictionary_codes(array: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """The index of each row into the dictionary; the length of the dictionary if the row is null."""
    indices = array.indices
    codes = fixed_width_bits(indices).view(np.int64)
    if indices.null_count:
        codes[null_mask(indices)] = len(array.dictionary)
    return codes


def take(values: pa.Array, indices: pa.Array) -> pa.Array:
    """The values at these indices, unchecked: Arrow's kernel without its wrapper, which halves the fixed cost."""
    return _TAKE.call([values, indices], _UNCHECKED)


_TAKE: Final = pc.get_function("take")
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)


class CodeTable:
    """A number for each value of a dictionary, followed by one for null if there are nulls; looked up by code.

    `numbers` may be changed in place; they must be contiguous.
    """

    __slots__ = ("_column", "numbers")

    def __init__(self, numbers: npt.NDArray[Any]) -> None:
        self.numbers = numbers
        assert numbers.flags.c_contiguous  # else Arrow would copy them
        self._column = pa.array(numbers)

    def look_up(self, array: pa.DictionaryArray) -> pa.Array:
        """The number of each row. Arrow needs a third of numpy's time, which would widen the codes to 64 bits first."""
        indices = array.indices
        if indices.null_count:
            return pa.array(self.numbers.take(dictionary_codes(array)))
        return take(self._column, indices)


def bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of all rows, followed by 8 zero bytes, and the start and the length of each row."""
    kind = array.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = pc.cast(array, pa.large_binary())
        kind = array.type
    buffers = array.buffers()
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
        content = buffers[1]
    else:
        dtype = np.dtype(
            np.int64 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else np.int32
        )
        if buffers[1] is None or not buffers[1].size:
            offsets = np.zeros(len(array) + 1, np.int64)
        else:
            offsets = np.frombuffer(buffers[1], dtype, len(array) + 1, array.offset * dtype.itemsize).astype(
                np.int64
            )
        content = buffers[2]
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)
    if last > first:
        data[:-8] = np.frombuffer(content, np.uint8, last - first, first)
    return data, offsets[:-1] - first, np.diff(offsets)


def words_of(data: npt.NDArray[np.uint8]) -> Bits:
    """A view of the 8 bytes at each position as a little-endian word."""
    return np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
