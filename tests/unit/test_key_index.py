"""Dense ids: equal keys get equal ids in every layout, across batches, and keys come back."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.errors import KeyTypeError
from tidegate.keys import bytes_table
from tidegate.keys.bytes_table import BytesTable
from tidegate.keys.id_table import IdTable
from tidegate.keys.key_index import KeyIndex

WORDS = st.text("ab\0é", max_size=20)
COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 3) | st.integers(0, 2**64 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.string(), WORDS),
    (pa.large_string(), WORDS),
    (pa.string_view(), WORDS),
    (pa.binary(), st.binary(max_size=20)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(12, 2), st.decimals(-100, 100, places=2)),
]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[tuple[Any, ...]]]]:
    kinds = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3))
    rows = st.tuples(*(st.none() | values for _, values in kinds))
    return [kind for kind, _ in kinds], draw(st.lists(st.lists(rows, max_size=20), min_size=1, max_size=4))


@given(batches(), st.data())
@settings(max_examples=300)
def test_ids_are_dense_equal_for_equal_keys_and_lead_back_to_the_keys(
    drawn: tuple[list[pa.DataType], list[list[tuple[Any, ...]]]], data: st.DataObject
) -> None:
    kinds, parts = drawn
    index, seen = KeyIndex(), dict[tuple[Any, ...], int]()
    for rows in parts:
        arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
        shown = [
            array.dictionary_encode() if data.draw(st.booleans(), label="encoded") else array
            for array in arrays
        ]
        ids = index.ids(shown)
        for row, given_id in zip(rows, ids.tolist(), strict=True):
            assert seen.setdefault(row, given_id) == given_id
        assert sorted(seen.values()) == list(range(len(index)))
        assert [list(key) for key in zip(*(key.to_pylist() for key in index.keys(ids)), strict=True)] == [
            list(row) for row in rows
        ]
    assert all(key.type == kind for key, kind in zip(index.keys(), kinds, strict=True))
    everything = zip(*map(pa.Array.to_pylist, index.keys()), strict=True)
    assert {row: i for i, row in enumerate(everything)} == seen


def test_new_keys_get_the_next_ids_in_order() -> None:
    index = KeyIndex()
    assert index.ids([pa.array(["b", "a", "b", "c"])]).tolist() == [0, 1, 0, 2]
    assert index.ids([pa.array(["d", "a", "e"]).dictionary_encode()]).tolist() == [3, 1, 4]
    assert index.keys()[0].to_pylist() == ["b", "a", "c", "d", "e"]


def test_one_zero_and_one_nan() -> None:
    index = KeyIndex()
    assert index.ids([pa.array([0.0, -0.0, math.nan, -math.nan, None])]).tolist() == [0, 0, 1, 1, 2]


def test_null_keeps_its_id_while_others_come() -> None:
    index = KeyIndex()
    assert index.ids([pa.array([7, None, 8])]).tolist() == [0, 2, 1]
    assert index.ids([pa.array([9, 7, None])]).tolist() == [3, 0, 2]
    assert index.keys()[0].to_pylist() == [7, 8, None, 9]
    only_null = KeyIndex()
    assert only_null.ids([pa.array([None, None], pa.string())]).tolist() == [0, 0]
    assert only_null.keys()[0] == pa.array([None], pa.string())


def test_values_of_a_dictionary_that_no_row_uses_are_no_keys() -> None:
    shared = pa.array(["a", "b", "c", None, "a"])
    index = KeyIndex()
    assert index.ids([pa.DictionaryArray.from_arrays(pa.array([1, 3, None, 1]), shared)]).tolist() == [
        0,
        1,
        1,
        0,
    ]
    assert len(index) == 2
    assert index.ids([pa.DictionaryArray.from_arrays(pa.array([4, 0, 1]), shared)]).tolist() == [2, 2, 0]
    assert index.keys()[0].to_pylist() == ["b", None, "a"]


def test_senders_whose_dictionaries_differ_take_turns() -> None:
    index = KeyIndex()
    words = [f"word-{i}" for i in range(40)]
    known: dict[str, int] = {}
    for turn in range(200):
        start = turn * 7 % 23  # more than are remembered
        dictionary = words[start:] + words[:start]
        used = list(range(turn % 5, 40, 1 + turn % 9)) * 3
        column = pa.DictionaryArray.from_arrays(pa.array(used, pa.int16()), pa.array(dictionary))
        for code, id in zip(used, index.ids([column]).tolist(), strict=True):
            assert known.setdefault(dictionary[code], id) == id
    assert sorted(known.values()) == list(range(40)) == list(range(len(index)))
    assert index.keys()[0].to_pylist() == sorted(known, key=known.__getitem__)


def test_a_sliced_a_chunked_and_a_run_end_encoded_column_are_the_same_keys() -> None:
    index = KeyIndex()
    column = pa.array(["x", "a", "b", "a"])
    assert index.ids([column.slice(1)]).tolist() == [0, 1, 0]
    assert index.ids([pa.chunked_array([column.slice(1, 1), column.slice(2)])]).tolist() == [0, 1, 0]
    parts = [part.dictionary_encode() for part in (column.slice(1, 1), column.slice(2))]
    assert index.ids([pa.chunked_array(parts)]).tolist() == [0, 1, 0]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["b", "a"]))
    assert index.ids([runs]).tolist() == [1, 1, 0]
    assert index.ids([column.cast(pa.large_string())]).tolist() == [2, 0, 1, 0]


def test_a_dictionary_of_decimals_and_one_far_longer_than_its_column() -> None:
    index = KeyIndex()
    prices = pa.array([Decimal("1.10"), Decimal("2.00")], pa.decimal128(10, 2))
    assert index.ids([pa.DictionaryArray.from_arrays(pa.array([1, 0]), prices)]).tolist() == [1, 0]
    assert index.keys()[0].to_pylist() == [Decimal("1.10"), Decimal("2.00")]
    words = KeyIndex()
    large = pa.DictionaryArray.from_arrays(pa.array([4999, 0]), pa.array([str(i) for i in range(5000)]))
    assert words.ids([large]).tolist() == [0, 1]
    assert words.keys()[0].to_pylist() == ["4999", "0"]


def test_a_column_without_a_type_is_one_null_key() -> None:
    index = KeyIndex()
    assert index.ids([pa.nulls(2), pa.array([1, 2])]).tolist() == [0, 1]
    assert list(map(pa.Array.to_pylist, index.keys())) == [[None, None], [1, 2]]
    assert len(KeyIndex()) == 0
    assert KeyIndex().keys() == []


def test_wrong_columns_are_refused() -> None:
    index = KeyIndex()
    with pytest.raises(ValueError, match="at least one column"):
        index.ids([])
    with pytest.raises(KeyTypeError, match=r"list<.*cannot be a key"):
        index.ids([pa.array([[1]])])
    index.ids([pa.array([1]), pa.array(["a"])])
    with pytest.raises(ValueError, match="has 2 columns, but the batch has 1"):
        index.ids([pa.array([1])])
    with pytest.raises(ValueError, match="different lengths"):
        index.ids([pa.array([1]), pa.array(["a", "b"])])
    with pytest.raises(KeyTypeError, match="type int64 became double"):
        index.ids([pa.array([1.0]), pa.array(["a"])])
    with pytest.raises(KeyTypeError, match="type string became binary"):
        index.ids([pa.array([1]), pa.array([b"a"])])
    with pytest.raises(IndexError, match="from 0 to 0, but are 0 to 1"):
        index.keys(np.array([0, 1]))


@given(st.lists(st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 1), max_size=60), max_size=6))
def test_the_table_agrees_with_a_dict(parts: list[list[int]]) -> None:
    table, truth = IdTable(), dict[int, int]()
    for keys in parts:
        before = table.find(np.array(keys, np.uint64)).tolist()
        assert before == [truth.get(key, -1) for key in keys]
        assert table.ids(np.array(keys, np.uint64)).tolist() == [
            truth.setdefault(key, len(truth)) for key in keys
        ]
    assert table.keys(np.arange(len(table))).tolist() == list(truth)


@pytest.mark.parametrize("step", [1, 1 << 32, (1 << 32) + 1, 0x9E3779B97F4A7C15])
def test_the_table_grows_under_regular_keys(step: int) -> None:
    table = IdTable()
    keys = np.arange(100_000, dtype=np.uint64) * np.uint64(step)
    for start in range(0, len(keys), 7_000):
        part = keys[start : start + 7_000]
        assert table.ids(part).tolist() == list(range(start, start + len(part)))
    assert table.find(keys).tolist() == list(range(len(keys)))
    assert table.nbytes < 32 * len(keys)


def test_values_with_equal_hashes_are_still_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_alike(array: pa.Array) -> Any:
        return np.full(len(array), 42, np.uint64)

    monkeypatch.setattr(bytes_table, "hash_column", all_alike)
    table = BytesTable()
    words = [f"{'w' * (i % 30)}{i}" for i in range(40)] + ["", "\0", "w1", "w1\0"]
    first = table.ids(pa.array(words))
    truth: dict[str, int] = {}
    assert sorted(set(first.tolist())) == list(range(len(set(words))))
    for word, given_id in zip(words, first.tolist(), strict=True):
        assert truth.setdefault(word, given_id) == given_id
    assert table.find(pa.array([*words, "other"])).tolist() == [*first.tolist(), -1]
    assert [value.decode() for value in table.array().take(pa.array(first)).to_pylist()] == words


def test_many_long_values_over_several_batches() -> None:
    index = KeyIndex()
    moments = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i) for i in range(30_000)]
    words = [f"{moment:%c} {'x' * (i % 50)}" for i, moment in enumerate(moments)]
    for start in range(0, len(words), 10_000):
        part = words[start : start + 10_000]
        assert index.ids([pa.array(part + part[::-1])]).tolist()[:10_000] == list(
            range(start, start + 10_000)
        )
    assert index.keys()[0].to_pylist() == words
