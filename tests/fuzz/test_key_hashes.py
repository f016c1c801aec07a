"""Key hashes beside docs/design/key-hashing.md, written down again in plain Python, for every layout of a key in Arrow.

The oracle works on the numbers and bytes that a key is made of, and shares no code with `tidegate.records`. Equal keys
must hash the same in every layout: sliced, in chunks, as a dictionary (with values that nobody uses, that are there
twice, or that are null), as a view, as runs, in another width or unit, with any bits where the null is.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.kit import run_long
from tidegate.core.key_groups import key_group_for_hash
from tidegate.keys.hashing import hash_column, hash_columns, hash_value, hash_values
from tidegate.keys.key_group_columns import channel_for_key_groups, channel_table, key_groups
from tidegate.records.plain_types import plain_type

ALL = 2**64 - 1
NULL = 0x6A09E667F3BCC908
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


# ---- the page, in Python ----


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & ALL
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ALL
    return x ^ (x >> 31)


def number_hash(number: int) -> int:
    return mix(number & ALL)


def float_hash(number: float) -> int:
    if number != number:
        bits = 0x7FF8000000000000
    else:
        bits = struct.unpack("<Q", struct.pack("<d", 0.0 if number == 0 else number))[0]
    return mix(bits ^ 0xBB67AE8584CAA73B)


def bytes_hash(content: bytes) -> int:
    if len(content) > 256:
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    h = 0x510E527FADE682D1 ^ ((len(content) * 0x9E3779B97F4A7C15) & ALL)
    padded = content + b"\0" * (-len(content) % 8)
    for (word,) in struct.iter_unpack("<Q", padded):
        h = mix(h ^ word)
    return h


def decimal_hash(unscaled: int, scale: int) -> int:
    exponent = -scale
    while unscaled and unscaled % 10 == 0:
        unscaled, exponent = unscaled // 10, exponent + 1
    return bytes_hash(f"{unscaled}e{exponent if unscaled else 0}".encode())


def tuple_hash(parts: list[int]) -> int:
    if len(parts) == 1:
        return parts[0]
    h = 0xA54FF53A5F1D36F1
    for part in parts:
        h = mix(h ^ part)
    return h


# ---- keys, and the ways to hold them ----


def some_text(random: Random) -> str:
    length = random.choice([0, 1, 7, 8, 9, 15, 16, 17, 40, 255, 256, 257, 300])
    return "".join(random.choice("ab\0é☃𝄞") for _ in range(length))[: random.choice([length, length, 3])]


def some_number(random: Random, bits: int, signed: bool) -> int:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return random.choice([least, most, 0, 1, random.randint(least, most), random.randint(0, 100)])


def some_float(random: Random) -> float:
    edges = [0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 5e-324, 1.5]
    return random.choice([*edges, random.uniform(-1e6, 1e6), float(random.randint(-9, 9))])


Keys = tuple[list[Any], list[int], list[pa.Array]]
"""Python's values, their hashes, and columns of them."""


def keys(random: Random, count: int) -> Keys:
    """Some keys of one kind, with nulls."""
    return random.choice(
        [integers, floats, texts, binaries, moments, spans, days, times, decimals, booleans]
    )(random, count)


def with_nulls(random: Random, make: Any, count: int) -> list[Any]:
    share = random.choice([0, 0, 0.3, 1])
    return [None if random.random() < share else make() for _ in range(count)]


def hashed(values: list[Any], hash_one: Any) -> list[int]:
    return [NULL if value is None else hash_one(value) for value in values]


def integers(random: Random, count: int) -> Keys:
    bits, signed = random.choice([8, 16, 32, 64]), random.random() < 0.7
    values = with_nulls(random, partial(some_number, random, bits, signed), count)
    widths = [w for w in (8, 16, 32, 64) if w >= bits]
    columns = [pa.array(values, getattr(pa, f"{'' if signed else 'u'}int{w}")()) for w in widths]
    return values, hashed(values, number_hash), columns


def booleans(random: Random, count: int) -> Keys:
    values = with_nulls(random, lambda: random.random() < 0.5, count)
    return (
        values,
        hashed(values, int_hash_of_bool),
        [pa.array(values, pa.bool_()), pa.array(values, pa.bool_()).cast(pa.int8())],
    )


def int_hash_of_bool(value: bool) -> int:
    return number_hash(1 if value else 0)


def floats(random: Random, count: int) -> Keys:
    kind = random.choice([pa.float16(), pa.float32(), pa.float64()])
    with np.errstate(over="ignore"):
        column = np.array([some_float(random) for _ in range(count)]).astype(kind.to_pandas_dtype())
    values = with_nulls(random, lambda: 0.0, count)
    values = [None if v is None else float(c) for v, c in zip(values, column, strict=True)]
    wider = [k for k in (pa.float16(), pa.float32(), pa.float64()) if k.bit_width >= kind.bit_width]
    columns = [pa.array(values, pa.float64()).cast(k, safe=False) for k in wider]
    return values, hashed(values, float_hash), columns


def texts(random: Random, count: int) -> Keys:
    values = with_nulls(random, partial(some_text, random), count)
    columns = [pa.array(values, k) for k in (pa.string(), pa.large_string(), pa.string_view())]
    return values, hashed(values, lambda v: bytes_hash(v.encode())), columns


def binaries(random: Random, count: int) -> Keys:
    size = random.choice([None, None, 1, 8, 11])
    make = lambda: random.randbytes(random.choice([0, 5, 8, 20, 300]) if size is None else size)  # noqa: E731
    values = with_nulls(random, make, count)
    kinds = [pa.binary(), pa.large_binary(), pa.binary_view()] + ([] if size is None else [pa.binary(size)])
    return values, hashed(values, bytes_hash), [pa.array(values, k) for k in kinds]


def in_units(values: list[Any], unit: str, kind: Any) -> list[pa.Array]:
    """The same spans in their unit and all finer ones."""
    columns = []
    for other, size in UNITS.items():
        if UNITS[unit] % size == 0:
            scaled = [None if v is None else v * (UNITS[unit] // size) for v in values]
            columns.append(pa.array(scaled, pa.int64()).cast(kind(other)))
    return columns


def moments(random: Random, count: int) -> Keys:
    unit = random.choice(list(UNITS))
    zone = random.choice([None, "UTC", "Europe/Zurich", "-03:30"])
    values = with_nulls(random, lambda: random.randint(-(10**18), 10**18) // UNITS[unit], count)
    columns = in_units(values, unit, lambda u: pa.timestamp(u, zone))
    return [], hashed(values, lambda v: number_hash(v * UNITS[unit])), columns


def spans(random: Random, count: int) -> Keys:
    unit = random.choice(list(UNITS))
    values = with_nulls(random, lambda: random.randint(-(10**18), 10**18) // UNITS[unit], count)
    return (
        [],
        hashed(values, lambda v: number_hash(v * UNITS[unit])),
        in_units(values, unit, pa.duration),
    )


def times(random: Random, count: int) -> Keys:
    unit = random.choice(list(UNITS))
    values = with_nulls(random, lambda: random.randrange(86_400 * 10**9) // UNITS[unit], count)
    kinds = {"s": pa.time32("s"), "ms": pa.time32("ms"), "us": pa.time64("us"), "ns": pa.time64("ns")}
    columns = []
    for other, kind in kinds.items():
        if UNITS[unit] % UNITS[other] == 0:
            scaled = [None if v is None else v * (UNITS[unit] // UNITS[other]) for v in values]
            columns.append(pa.array(scaled, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind))
    return [], hashed(values, lambda v: number_hash(v * UNITS[unit])), columns


def days(random: Random, count: int) -> Keys:
    values = with_nulls(random, lambda: random.randint(-719_162, 2_932_896), count)
    columns = [pa.array(values, pa.int32()).cast(pa.date32())]
    columns.append(
        pa.array([None if v is None else v * 86_400_000 for v in values], pa.int64()).cast(pa.date64())
    )
    moments = [None if v is None else dt.date.fromordinal(v + 719_163) for v in values]
    return moments, hashed(values, number_hash), columns


def decimals(random: Random, count: int) -> Keys:
    scale = random.randint(0, 4)
    values = with_nulls(
        random, lambda: random.choice([0, 10, 100, -250, random.randint(-(10**8), 10**8)]), count
    )
    written = [None if v is None else Decimal(v).scaleb(-scale) for v in values]
    kinds = [pa.decimal128(20, s) for s in range(scale, 6)] + [
        pa.decimal256(60, scale),
        pa.decimal64(18, scale),
    ]
    return written, hashed(values, lambda v: decimal_hash(v, scale)), [pa.array(written, k) for k in kinds]


def layouts(random: Random, column: pa.Array) -> Iterator[pa.Array | pa.ChunkedArray]:
    """The same rows in other layouts."""
    yield column
    rows = len(column)
    others = [rows_at(column, [random.randrange(rows)] * random.randint(0, 9)) for _ in range(2) if rows]
    if others:
        yield pa.concat_arrays([others[0], column, others[1]]).slice(len(others[0]), rows)
    cut = random.randint(0, rows)
    yield pa.chunked_array([column.slice(0, cut), column.slice(cut)], column.type)
    if rows:
        yield as_dictionary(random, column)
        if plain_type(column.type) == column.type:  # Arrow does not decode runs of views
            yield pa.RunEndEncodedArray.from_arrays(pa.array(range(1, rows + 1), pa.int32()), column)
    if pa.types.is_primitive(column.type) and column.null_count and column.type.bit_width >= 8:
        yield other_bits_under_nulls(random, column)


def rows_at(column: pa.Array, rows: list[int]) -> pa.Array:
    plain = plain_type(column.type)  # Arrow does not take from views
    return column.cast(plain).take(pa.array(rows, pa.int64())).cast(column.type)


def as_dictionary(random: Random, column: pa.Array) -> pa.DictionaryArray:
    """A dictionary that also has values that no row has, values twice, and nulls."""
    rows = len(column)
    order = random.sample(range(rows), rows) + [random.randrange(rows) for _ in range(random.randint(0, 3))]
    place = {row: code for code, row in enumerate(order)}
    codes = [None if not column[i].is_valid and random.random() < 0.5 else place[i] for i in range(rows)]
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, random.choice([pa.int16(), pa.int32(), pa.int64()])), rows_at(column, order)
    )


def other_bits_under_nulls(random: Random, column: pa.Array) -> pa.Array:
    """Arrow does not say what is stored where a value is null."""
    valid, data = column.buffers()
    noisy = bytearray(data.to_pybytes())
    width = column.type.bit_width // 8
    for i in range(len(column)):
        if not column[i].is_valid:
            noisy[(column.offset + i) * width : (column.offset + i + 1) * width] = random.randbytes(width)
    return pa.Array.from_buffers(
        column.type, len(column), [valid, pa.py_buffer(bytes(noisy))], offset=column.offset
    )


# ---- the check ----


def check(random: Random, most: int = 12) -> int:
    """Hash some keys in all their layouts; gives how many hashes were looked at."""
    count = random.randint(0, most)
    done = 0
    parts = []
    for _ in range(random.randint(1, 3)):
        values, expected, columns = keys(random, count)
        for column in columns:
            for layout in layouts(random, column):
                assert hash_column(layout).tolist() == expected, (column.type, layout)
                done += count
        if len(values) == count:
            assert [hash_value(value) for value in values] == expected
            assert hash_values(values).tolist() == expected
        parts.append((expected, random.choice(columns)))
    whole = [tuple_hash([expected[i] for expected, _ in parts]) for i in range(count)]
    assert hash_columns([column for _, column in parts]).tolist() == whole
    check_groups(random, whole)
    return done


def check_groups(random: Random, hashes: list[int]) -> None:
    most = random.choice([1, 2, 100, 128, 32_768, random.randint(1, 32_768)])
    parallelism = random.randint(1, min(most, 200))
    groups = key_groups(np.array(hashes, np.uint64), most)
    assert groups.tolist() == [h % most for h in hashes] == [key_group_for_hash(h, most) for h in hashes]
    subtasks = channel_for_key_groups(groups, channel_table(parallelism, most))
    assert subtasks.tolist() == [h % most * parallelism // most for h in hashes]


@settings(max_examples=40)
@given(random=st.randoms(use_true_random=False))
def test_keys_hash_as_the_page_says_in_every_layout(random: Random):
    check(random)


@pytest.mark.parametrize("seed", range(30))
def test_many_keys_hash_as_the_page_says_in_every_layout(seed: int):
    check(Random(seed), most=200)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_keys_hash_as_the_page_says_in_every_layout_for_long():
    run_long(partial(check, most=300), least=1_000_000)
