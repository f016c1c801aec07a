"""The stable hash of keys: 64 bits, equal on every machine and in every version, by column or by value.

Checkpoints store key groups, so this function is a durable format: it never changes. The algorithm is
described in ``docs/design/key-hashing.md`` and pinned by golden tests. In short, with ``mix`` the
splitmix64 step (add the golden gamma, then its finaliser), all arithmetic modulo 2**64:

- integers and bools: ``mix(v)`` of the two's complement; dates: days; timestamps, durations and times of
  day: nanoseconds, so that the unit of the column does not matter;
- floats: ``mix(bits ^ FLOAT_SEED)`` of the double's bits, with one zero and one NaN;
- text and binary: ``h = BYTES_SEED ^ (length * GAMMA)``, then ``h = mix(h ^ word)`` for each 8-byte
  little-endian word of the (UTF-8) bytes, the last padded with zeros; more than 256 bytes: blake2b, 8 bytes,
  little-endian;
- decimals: as the text ``<unscaled>e<exponent>`` without trailing zeros;
- null: ``NULL_HASH``; a composite key: ``h = TUPLE_SEED``, then ``h = mix(h ^ hash)`` for each part. A composite
  of one part is that part.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import KeyTypeError
from tidegate.core.words import kind_of
from tidegate.records.codecs import DATE, FLOAT, INTEGER, key_form
from tidegate.records.column_bits import (
    NAN_BITS,
    TAIL_MASKS,
    CodeTable,
    bytes_of,
    fixed_width_bits,
    is_bytes_like,
    is_fixed_width,
    null_mask,
    words_of,
)

Hashes = npt.NDArray[np.uint64]

GAMMA: Final = 0x9E3779B97F4A7C15
NULL_HASH: Final = 0x6A09E667F3BCC908
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_FLOAT_SEED: Final = 0xBB67AE8584CAA73B
_BYTES_SEED: Final = 0x510E527FADE682D1
_TUPLE_SEED: Final = 0xA54FF53A5F1D36F1
_LONGEST_MIXED: Final = 256
_BLOCK_ROWS: Final = 16384  # temporaries of 128 KiB stay in the cache
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF

_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_ADVICE: Final = (
    "Key by columns of numbers, text, binary, dates, times or decimals, or by a function that returns these."
)


def hash_column(array: pa.Array | pa.ChunkedArray) -> Hashes:
    """One hash per row. A dictionary-encoded column is hashed once per dictionary value."""
    if isinstance(array, pa.ChunkedArray):
        parts = [hash_column(chunk) for chunk in array.chunks]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _hash_dictionary(array)
    if pa.types.is_null(kind):
        return np.full(len(array), NULL_HASH, np.uint64)
    if pa.types.is_run_end_encoded(kind):
        return hash_column(pc.run_end_decode(array))
    if is_fixed_width(kind):
        hashes = _hash_fixed_width(array)
    elif is_bytes_like(kind):
        hashes = np.empty(len(array), np.uint64)
        for start in range(0, len(array), _BLOCK_ROWS):
            hashes[start : start + _BLOCK_ROWS] = _hash_bytes_like(array.slice(start, _BLOCK_ROWS))
    elif pa.types.is_decimal(kind):
        texts = [None if value is None else decimal_text(value) for value in array.to_pylist()]
        return hash_column(pa.array(texts, pa.string()))
    else:
        raise KeyTypeError(f"a column of type {kind} cannot be a key: it has no stable hash. {_ADVICE}")
    if array.null_count:
        hashes[null_mask(array)] = NULL_HASH
    return hashes


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """One hash per row of a key of several columns. For one column it is the hash of that column."""
    return combine_hashes([hash_column(column) for column in columns])


def combine_hashes(parts: Sequence[Hashes]) -> Hashes:
    """The hash of a composite key from the hashes of its parts, in order."""
    if not parts:
        raise ValueError("a key needs at least one column")
    if len({len(part) for part in parts}) > 1:
        raise ValueError(f"key columns have different lengths: {[len(part) for part in parts]}")
    if len(parts) == 1:
        return parts[0]
    combined = np.full(len(parts[0]), _TUPLE_SEED, np.uint64)
    for part in parts:
        combined ^= part
        mix_in_place(combined)
    return combined


def hash_value(value: object) -> int:
    """The hash of one Python value, equal to its hash in a column. A tuple is a composite key."""
    if value is None:
        return NULL_HASH
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise KeyTypeError(f"an int of {value.bit_length()} bits cannot be a key: it must fit 64 bits.")
        return _mix(int(value))
    if isinstance(value, str):
        try:
            return _hash_bytes(value.encode())
        except UnicodeEncodeError as reason:
            raise KeyTypeError(f"the text {value!r} cannot be a key: {reason}") from reason
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _hash_bytes(bytes(value))
    if isinstance(value, float):
        return _hash_float(value)
    if isinstance(value, tuple):
        return _hash_tuple(value)
    if isinstance(value, dt.datetime):
        return _mix(_nanoseconds(_since_epoch(value)) + getattr(value, "nanosecond", 0))
    if isinstance(value, dt.date):
        return _mix(value.toordinal() - _EPOCH_DAY)
    if isinstance(value, dt.timedelta):
        return _mix(_nanoseconds(value) + getattr(value, "nanoseconds", 0))
    if isinstance(value, dt.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return _mix((seconds * 1_000_000 + value.microsecond) * 1_000)
    if isinstance(value, Decimal):
        return _hash_bytes(decimal_text(value).encode())
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64, np.void)):
        return hash_value(value.item())
    raise KeyTypeError(f"{kind_of(value)} cannot be a key: it has no stable hash. {_ADVICE}")


_COLUMN_TYPES: Final[dict[type, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.large_string(),
    bytes: pa.large_binary(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us"),
    dt.timedelta: pa.duration("us"),
}


def hash_values(values: Sequence[object]) -> Hashes:
    """The `hash_value` of each: by column if all have one type (or are None), else one by one."""
    types = set(map(type, values))
    types.discard(type(None))
    if len(types) == 1:
        (only,) = types
        if only is tuple and None not in values:
            widths = set(map(len, values))  # type: ignore[arg-type]
            if len(widths) == 1 and 0 not in widths:
                return combine_hashes([hash_values(part) for part in zip(*values, strict=True)])
        if only in _COLUMN_TYPES:
            try:
                return hash_column(pa.array(values, _COLUMN_TYPES[only]))
            except (OverflowError, UnicodeError, pa.ArrowInvalid):
                pass  # a value beyond the column type (2**63, a lone surrogate): hash one by one, or name it
    return np.fromiter(map(hash_value, values), np.uint64, len(values))


def _hash_dictionary(array: pa.DictionaryArray) -> Hashes:
    if len(array.dictionary) > 2 * len(array) + 1024:  # a few rows of a large shared dictionary
        return hash_column(array.dictionary_decode())
    hashes = np.append(hash_column(array.dictionary), np.uint64(NULL_HASH))
    taken: Hashes = CodeTable(hashes).look_up(array).to_numpy()
    return taken


def _hash_fixed_width(array: pa.Array) -> Hashes:
    form = key_form(array.type)
    assert form is not None
    bits = fixed_width_bits(array)
    if form.tag == FLOAT:
        bits ^= np.uint64(_FLOAT_SEED)
    elif form.tag == DATE:
        if pa.types.is_date64(array.type):
            bits = (bits.view(np.int64) // 86_400_000).view(np.uint64)
    elif form.tag != INTEGER:
        bits *= np.uint64(_NANOSECONDS[array.type.unit])
    return mix_in_place(bits)


def _hash_bytes_like(array: pa.Array) -> Hashes:
    """Mix in the words at one position of all values at once, then at the next, while values are long enough."""
    data, starts, lengths = bytes_of(array)
    hashes = lengths.astype(np.uint64)
    hashes *= np.uint64(GAMMA)
    hashes ^= np.uint64(_BYTES_SEED)
    words = words_of(data)
    longest = int(lengths.max(initial=0))
    active: npt.NDArray[np.intp] | None = None  # None: all rows
    for position in range(0, min(longest, _LONGEST_MIXED), 8):
        left = lengths - position
        shortest = int(left.min(initial=8))
        if shortest <= 0:
            still = np.flatnonzero(left > 0)
            active = still if active is None else active[still]
            starts, lengths, left = starts[still], lengths[still], left[still]
        word = words[starts + position]
        if shortest < 8:
            word &= TAIL_MASKS.take(left, mode="clip")
        if active is None:
            hashes ^= word
            mix_in_place(hashes)
        else:
            word ^= hashes[active]
            hashes[active] = mix_in_place(word)
    if longest > _LONGEST_MIXED:
        _, starts, lengths = bytes_of(array)
        view = memoryview(data)  # type: ignore[arg-type]
        for row in np.flatnonzero(lengths > _LONGEST_MIXED):
            hashes[row] = _digest(view[starts[row] : starts[row] + lengths[row]])
    return hashes


def mix_in_place(values: Hashes) -> Hashes:
    """Apply the splitmix64 step to every element."""
    values += np.uint64(GAMMA)
    shifted = values >> np.uint64(30)
    values ^= shifted
    values *= np.uint64(_MIX_1)
    np.right_shift(values, np.uint64(27), out=shifted)
    values ^= shifted
    values *= np.uint64(_MIX_2)
    np.right_shift(values, np.uint64(31), out=shifted)
    values ^= shifted
    return values


def _mix(value: int) -> int:
    value = (value + GAMMA) & _MASK
    value = (value ^ value >> 30) * _MIX_1 & _MASK
    value = (value ^ value >> 27) * _MIX_2 & _MASK
    return value ^ value >> 31


def _digest(content: bytes | memoryview) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _hash_bytes(content: bytes) -> int:
    if len(content) > _LONGEST_MIXED:
        return _digest(content)
    hashed = _BYTES_SEED ^ (len(content) * GAMMA & _MASK)
    for position in range(0, len(content), 8):
        hashed = _mix(hashed ^ int.from_bytes(content[position : position + 8], "little"))
    return hashed


def _hash_float(value: float) -> int:
    bits = NAN_BITS if value != value else int.from_bytes(struct.pack("<d", value + 0.0), "little")
    return _mix(bits ^ _FLOAT_SEED)


def _hash_tuple(parts: tuple[Any, ...]) -> int:
    if not parts:
        raise KeyTypeError("an empty tuple cannot be a key: a key needs at least one part.")
    if len(parts) == 1:
        return hash_value(parts[0])
    hashed = _TUPLE_SEED
    for part in parts:
        hashed = _mix(hashed ^ hash_value(part))
    return hashed


def _since_epoch(moment: dt.datetime) -> dt.timedelta:
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)) - _EPOCH


def _nanoseconds(span: dt.timedelta) -> int:
    return ((span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds) * 1_000


def decimal_text(value: Decimal) -> str:
    """The same text for equal decimals. Not ``normalize()``: that rounds to the context's precision."""
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, str):
        return "nan" if value.is_nan() else "-inf" if sign else "inf"
    unscaled = "".join(map(str, digits)).lstrip("0")
    significant = unscaled.rstrip("0")
    if not significant:
        return "0e0"
    return f"{'-' if sign else ''}{significant}e{exponent + len(unscaled) - len(significant)}"
