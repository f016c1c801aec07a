"""The stable hash: pinned values, and the column-wise twin equal to the scalar one for every type."""

from __future__ import annotations

import datetime as dt
import math
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.errors import KeyTypeError
from tidegate.keys.hashing import NULL_HASH, hash_column, hash_columns, hash_value, hash_values

GOLDEN: list[tuple[Any, int]] = [
    # Never change these: key groups in users' checkpoints depend on them.
    (None, 0x6A09E667F3BCC908),
    (0, 0xE220A8397B1DCDAF),
    (1, 0x910A2DEC89025CC1),
    (-1, 0xE4D971771B652C20),
    (2**63 - 1, 0x2A67D7552E039EA7),
    (-(2**63), 0x481EC0A212A9F3DB),
    (2**64 - 1, 0xE4D971771B652C20),
    (True, 0x910A2DEC89025CC1),
    (0.0, 0x0D35B78B9930A2BD),
    (1.5, 0x2B9A157C40C98318),
    (-2.25, 0xC3A0E8E482AE6C81),
    (float("nan"), 0x0FA365BB47CC52F6),
    (float("inf"), 0xD0D3109747CB8C3E),
    ("", 0x510E527FADE682D1),
    ("a", 0xF46862E874FAF11C),
    ("app-17", 0x66D5DC9C3D85BEF0),
    ("12345678", 0xB8419AB810BAB3B1),
    ("123456789", 0xA6219276D3B0ADA4),
    ("é" * 20, 0x97DFF15D1BAE9EC3),
    (b"\x00\xff", 0x32CCBDDB836C4C41),
    ("x" * 256, 0x5A83E4FFA5E66E29),
    ("x" * 257, 0x76C3513E21D32A54),
    (dt.date(2024, 2, 29), 0xDB8C04CA25F6E90D),
    (dt.datetime(2024, 2, 29, 12, 30, 0, 250, dt.UTC), 0x70458BC2C73C5029),
    (dt.timedelta(seconds=90), 0x39565664E0F782EB),
    (dt.time(12, 30), 0x5E3EDBBBB8BB8468),
    (Decimal("12.50"), 0x7516B853DDB7906E),
    (Decimal("-3e10"), 0x92E4DEE0D9462407),
    (("a", 1), 0x91B19A17B363CD59),
    ((None, "b", 2.5), 0x76406D414F21B404),
]

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text("ab\0", max_size=20)
MOMENTS = st.datetimes(
    *(dt.datetime(year, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None) for year in (1700, 2200))
)


def ints(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((getattr(pa, f"int{bits}")(), ints(bits, True)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), ints(bits, False)) for bits in (8, 16, 32, 64)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.string_view(), TEXT),
    (pa.binary(), st.binary(max_size=300)),
    (pa.large_binary(), st.binary(max_size=300)),
    (pa.binary_view(), st.binary(max_size=40)),
    (pa.binary(11), st.binary(min_size=11, max_size=11)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.timestamp("s"), MOMENTS.map(lambda moment: moment.replace(microsecond=0))),
    (
        pa.timestamp("ms"),
        MOMENTS.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
    ),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us", "Europe/Zurich"), MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC))),
    (pa.timestamp("ns"), MOMENTS),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-10_000), dt.timedelta(10_000))),
    (pa.time64("us"), st.times()),
    (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    (pa.decimal256(50, 2), st.decimals(-(10**15), 10**15, places=2)),
    (pa.null(), st.none()),
]


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, list[Any]]:
    """A column, sliced, with nulls, with the same values as Python objects."""
    kind, values = draw(st.sampled_from(COLUMNS))
    content = draw(st.lists(st.none() | values, max_size=30))
    start = draw(st.integers(0, len(content)))
    length = draw(st.integers(0, len(content) - start))
    return pa.array(content, kind).slice(start, length), content[start : start + length]


@given(columns())
@settings(max_examples=600)
def test_a_column_hashes_as_its_values_do(both: tuple[pa.Array, list[Any]]) -> None:
    column, values = both
    expected = [hash_value(value) for value in values]
    assert hash_column(column).tolist() == expected
    assert hash_column(pa.chunked_array([column, column], column.type)).tolist() == expected * 2
    assert hash_values(values).tolist() == expected


@given(columns().filter(lambda both: not pa.types.is_null(both[0].type)), st.data())
@settings(max_examples=200)
def test_a_dictionary_column_hashes_as_the_plain_one(
    both: tuple[pa.Array, list[Any]], data: st.DataObject
) -> None:
    column, values = both
    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        return
    start = data.draw(st.integers(0, len(values)))
    assert hash_column(encoded.slice(start)).tolist() == hash_column(column).tolist()[start:]


def test_a_dictionary_with_a_null_or_far_too_many_values_hashes_as_the_plain_column() -> None:
    odd = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], pa.int8()), pa.array(["a", None, "b"]))
    assert hash_column(odd).tolist() == [hash_value(value) for value in ("a", None, None, "b")]
    large = pa.DictionaryArray.from_arrays(pa.array([4999, 0]), pa.array([str(i) for i in range(5000)]))
    assert hash_column(large).tolist() == [hash_value("4999"), hash_value("0")]


@pytest.mark.parametrize("valid", [0b1, 0b11])
def test_a_signalling_nan_is_a_nan_and_no_warning(valid: int) -> None:
    bits = np.array([0x7FF0000000000001, 0xFFF0000000000001], np.uint64)
    buffers = [pa.py_buffer(bytes([valid])), pa.py_buffer(bits)]
    column = pa.Array.from_buffers(pa.float64(), 2, buffers)
    second = NULL_HASH if valid == 1 else hash_value(math.nan)
    assert hash_column(column).tolist() == [hash_value(math.nan), second]


@given(st.lists(st.tuples(INT64, st.none() | TEXT, st.booleans()), max_size=20))
def test_a_composite_key_hashes_as_its_tuples(rows: list[tuple[int, str | None, bool]]) -> None:
    parts = [[row[i] for row in rows] for i in range(3)]
    arrays = [
        pa.array(part, kind) for part, kind in zip(parts, (pa.int64(), pa.string(), pa.bool_()), strict=True)
    ]
    expected = [hash_value(row) for row in rows]
    assert hash_columns(arrays).tolist() == expected
    assert hash_values(rows).tolist() == expected
    assert hash_columns(arrays[:1]).tolist() == hash_column(arrays[0]).tolist()


@given(
    st.lists(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT | st.floats() | st.tuples(INT64)
    )
)
def test_mixed_values_hash_one_by_one(values: list[Any]) -> None:
    assert hash_values(values).tolist() == [hash_value(value) for value in values]


@pytest.mark.parametrize(("value", "expected"), GOLDEN, ids=lambda value: repr(value)[:30])
def test_the_hash_never_changes(value: Any, expected: int) -> None:
    assert hash_value(value) == expected
    assert hash_values([value]).tolist() == [expected]


def test_the_hash_of_zero_is_the_first_number_of_splitmix64() -> None:
    assert hash_value(0) == 0xE220A8397B1DCDAF


def test_equal_keys_hash_alike() -> None:
    assert hash_value(0.0) == hash_value(-0.0)
    assert hash_value(math.nan) == hash_value(-math.nan) == hash_value(np.float32("nan"))
    assert hash_value(Decimal("1.10")) == hash_value(Decimal("1.1")) == hash_value(Decimal("11e-1"))
    assert hash_value(Decimal("-0.00")) == hash_value(Decimal(0))
    assert hash_value(Decimal("1" * 40 + "0")) == hash_value(Decimal("1" * 40 + "e1"))
    assert hash_value("é") == hash_value("é".encode()) == hash_value(bytearray("é".encode()))
    assert hash_value(True) == hash_value(1) == hash_value(np.int16(1))
    zurich = dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    assert hash_value(zurich) == hash_value(zurich.astimezone(dt.UTC).replace(tzinfo=None))
    assert hash_value((5,)) == hash_value(5)
    assert hash_value(None) == NULL_HASH
    nanoseconds = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
    assert hash_column(nanoseconds).tolist() == [hash_value(nanoseconds[0].as_py())]


def test_different_keys_hash_apart() -> None:
    values = [
        0,
        1,
        -1,
        0.0,
        1.0,
        "",
        "0",
        "\0",
        "\0\0",
        "a",
        "a\0",
        None,
        (0, 0),
        (0, 1),
        (1, 0),
        (0, 0, 0),
        b"\x01",
    ]
    values += ["x" * length for length in range(1, 300)]
    assert len({hash_value(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    "column",
    [pa.array(range(0, 1_280_000, 100)), pa.array([f"user-{i:06}" for i in range(12_800)])],
    ids=["regular ints", "numbered words"],
)
def test_keys_spread_evenly_over_key_groups(column: pa.Array) -> None:
    counts = np.bincount((hash_column(column) % np.uint64(128)).astype(np.int64), minlength=128)
    assert counts.min() > 60  # 100 each on average; chance alone stays within 4 standard deviations
    assert counts.max() < 140


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**64, "int of 65 bits cannot be a key"),
        (-(2**63) - 1, "int of 64 bits cannot be a key"),
        ([1], "a list cannot be a key"),
        ({}, "a dict cannot be a key"),
        (object(), "an object cannot be a key"),
        ((), "empty tuple"),
        ((1, [2]), "a list cannot be a key"),
        ("\ud800", "surrogates not allowed"),
        (np.datetime64("2024-01-01"), "datetime64 cannot be a key"),
    ],
)
def test_what_has_no_stable_hash_is_refused(value: Any, message: str) -> None:
    with pytest.raises(KeyTypeError, match=message):
        hash_value(value)
    with pytest.raises(KeyTypeError, match=message):
        hash_values([value])


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())]
)
def test_a_nested_column_is_refused_by_its_type(kind: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match=r"a column of type (list|struct|map)<.*cannot be a key"):
        hash_column(pa.array([None], kind))


def test_key_columns_must_fit() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        hash_columns([])
    with pytest.raises(ValueError, match=r"different lengths: \[1, 2\]"):
        hash_columns([pa.array([1]), pa.array([1, 2])])


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_the_hash_does_not_depend_on_the_process(seed: str) -> None:
    program = "from tidegate.keys.hashing import *; print(hash_value('a'), hash_values([1, 2]).tolist())"
    path = ":".join(filter(None, sys.path))
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == f"{hash_value('a')} {hash_values([1, 2]).tolist()}\n"
