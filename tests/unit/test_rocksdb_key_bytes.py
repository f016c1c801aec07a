# Times without a zone are a type of their own.
# ruff: noqa: DTZ001

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import KeyTypeError
from tidegate.keys.hashing import hash_value
from tidegate.state.rocksdb.key_bytes import (
    EntryKeys,
    end_of_prefix,
    group_start,
    key_bytes,
    state_of_entry,
    with_state,
)

ENTRIES = EntryKeys(7, 128)

COLUMNS: list[pa.Array] = [
    pa.array([0, -1, 2**62, -(2**63), None]),
    pa.array([1, 2, None, -3], pa.int16()),
    pa.array([0, 2**63 - 1, 2**63, 2**64 - 1, None], pa.uint64()),
    pa.array([0.0, -0.0, 1.5, math.nan, -math.inf, None]),
    pa.array([0.5, math.nan], pa.float32()),
    pa.array([True, False, None]),
    pa.array(["", "a", "snow ☃", "x" * 500, None]),
    pa.array(["a", None, "b"], pa.large_string()),
    pa.array([b"", b"\x00\xff", None]),
    pa.array([b"abcd", None], pa.binary(4)),
    pa.array([dt.date(1969, 1, 1), dt.date(2024, 2, 29), None]),
    pa.array([dt.date(2024, 2, 29)], pa.date64()),
    pa.array([dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), None], pa.timestamp("us")),
    pa.array([dt.datetime(2024, 2, 29, 1, 2, 3), None], pa.timestamp("s")),
    pa.array([dt.datetime(2024, 2, 29, 1, 2, 3, 4), None], pa.timestamp("ns")),
    pa.array([dt.timedelta(days=-3, microseconds=1), None]),
    pa.array([dt.time(23, 59, 59, 1), None]),
    pa.array([Decimal("1.10"), Decimal("-3.00"), None], pa.decimal128(10, 2)),
    pa.nulls(3),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: str(c.type))
def test_a_column_has_the_bytes_of_its_values(column: pa.Array) -> None:
    values = column.to_pylist()
    assert ENTRIES.of_columns([column]) == [ENTRIES.of_key(v) for v in values] == ENTRIES.of_keys(values)


def test_several_columns_have_the_bytes_of_their_tuples() -> None:
    columns = [COLUMNS[0], COLUMNS[6], COLUMNS[0].take(pa.array([4, 3, 2, 1, 0]))]
    rows = list(zip(*(c.to_pylist() for c in columns), strict=True))
    assert ENTRIES.of_columns(columns) == ENTRIES.of_keys(rows)


def test_an_entry_begins_with_key_group_and_state() -> None:
    for key in (5, "five", ("five", 5)):
        entry = ENTRIES.of_key(key)
        group = hash_value(key) % 128
        assert entry[:3] == group.to_bytes(2, "big") + b"\x07"
        start, end = ENTRIES.range_of_group(group)
        assert group_start(group) <= start <= entry < end <= group_start(group + 1)
        assert state_of_entry(entry) == 7
        assert with_state(entry, 9) == EntryKeys(9, 128).of_key(key)


KEYS = st.recursive(
    st.none()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False).map(lambda f: f + 0.0)
    | st.text(max_size=12)
    | st.binary(max_size=12)
    | st.dates()
    | st.datetimes(),
    lambda part: st.tuples(part, part) | st.tuples(part, part, part),
    max_leaves=4,
)


@given(KEYS, KEYS)
def test_no_key_is_the_beginning_of_another(one: Any, other: Any) -> None:
    same = type(one) is type(other) and one == other
    assert (key_bytes(one) == key_bytes(other)) == same or isinstance(one, tuple)
    if key_bytes(one) != key_bytes(other):
        assert not key_bytes(one).startswith(key_bytes(other))


def test_equal_keys_of_other_classes_have_equal_bytes() -> None:
    for same in [
        (1, True, np.int32(1)),
        (0.0, -0.0),
        ("a", np.str_("a")),
        (b"a", bytearray(b"a")),
        (5, (5,)),
    ]:
        assert len({key_bytes(k) for k in same}) == 1
    for different in product([1, 1.0, "1", b"1", Decimal(1), None], repeat=2):
        assert (key_bytes(different[0]) == key_bytes(different[1])) == (different[0] is different[1])


def test_the_end_of_a_prefix_is_behind_all_that_begin_with_it() -> None:
    for prefix in (b"\x00\x05", b"\x00\x05\xff", b"\x00\xff\xff"):
        end = end_of_prefix(prefix)
        assert prefix < prefix + b"\xff" * 20 < end
        assert not end.startswith(prefix)


def test_the_order_of_columns_is_that_of_their_entries() -> None:
    column = pa.array(np.random.default_rng(3).integers(-1000, 1000, 500))
    sorted_entries = ENTRIES.of_columns([column.take(pa.array(ENTRIES.order_of_columns([column])))])
    assert all(a <= b for a, b in pairwise(sorted_entries))
    texts = pa.array([f"user-{i}" for i in range(500)])
    by_group = ENTRIES.of_columns([texts.take(pa.array(ENTRIES.order_of_columns([texts])))])
    assert all(a[:2] <= b[:2] for a, b in pairwise(by_group))


def test_what_has_no_stable_bytes_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="list"):
        key_bytes([1])
    with pytest.raises(KeyTypeError, match="290,000 years"):
        ENTRIES.of_columns([pa.array([2**62], pa.timestamp("s"))])


def test_bytes_of_keys_never_change() -> None:
    """They are in checkpoints: a golden test."""
    golden = {
        None: "00",
        7: "018000000000000007",
        -1: "017fffffffffffffff",
        2**63: "028000000000000000",
        1.5: "033ff8000000000000",
        "é": "0400000002c3a9",
        b"\x01": "050000000101",
        dt.date(1970, 1, 2): "068000000000000001",
        dt.datetime(1970, 1, 1, 0, 0, 1): "0780000000000f42400000",
        dt.timedelta(microseconds=1): "0880000000000000010000",
        dt.time(0, 0, 0, 2): "0980000000000000020000",
        Decimal("1.10"): "0a000000053131652d31",
        ("a", 1): "0b0204000000016101" + "8000000000000001",
    }
    assert {k: key_bytes(k).hex() for k in golden} == golden
