"""One dictionary for parts that were encoded each with its own: the same rows, and codes that stay."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.formats import common_dictionary
from tidegate.formats.common_dictionary import CommonDictionary

WORDS = [f"word-{i}" for i in range(12)]
parts_of_a_column = st.lists(
    st.tuples(
        st.lists(st.sampled_from(WORDS), max_size=8, unique=True),
        st.lists(st.none() | st.integers(0, 7), max_size=6),
    ),
    max_size=8,
)


def part(values: list[str], codes: list[int | None], repeat: int = 40) -> pa.DictionaryArray:
    """A column with a dictionary of its own, long enough to be worth a common one."""
    indices = [None if c is None or not values else c % len(values) for c in codes] + list(range(len(values)))
    return pa.DictionaryArray.from_arrays(
        pa.array(indices * repeat, pa.int32()), pa.array(values, pa.string())
    )


@given(parts_of_a_column, st.integers(4, 12))
def test_rows_stay_what_they_are_and_codes_too_until_it_begins_anew(parts, most):
    common = CommonDictionary()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common_dictionary, "MOST_VALUES", most)
        before: list[str] = []
        for values, codes in parts:
            column = part(values, codes)
            got = common.encode(column)
            assert got.to_pylist() == column.to_pylist()
            got.validate(full=True)
            if len(values) > most:
                assert got.dictionary.equals(column.dictionary), "it came as it goes"
                continue
            assert got.type.index_type == common_dictionary.CODES
            now = got.dictionary.to_pylist()
            assert now[: len(before)] == before or now == values
            assert len(set(now)) == len(now) <= most
            before = now


def test_values_in_another_order_and_a_few_new_ones_leave_the_dictionary_as_it_is_or_longer():
    common = CommonDictionary()
    assert common.encode(part(["a", "b", "c"], [])).dictionary.to_pylist() == ["a", "b", "c"]
    again = common.encode(part(["c", "a"], [0, None]))
    assert again.dictionary.to_pylist() == ["a", "b", "c"]
    assert again.indices.to_pylist()[:2] == [2, None]
    assert common.encode(part(["b", "d"], [])).dictionary.to_pylist() == ["a", "b", "c", "d"]
    assert common.encode(part(["x", "y", "a"], [])).dictionary.to_pylist() == ["x", "y", "a"], "mostly new"


@pytest.mark.parametrize(
    "column",
    [
        part(["a", "b"], [], repeat=15),
        pa.DictionaryArray.from_arrays(pa.array([0, 1] * 99, pa.int32()), pa.array(["a", None])),
        pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), pa.array(["a"])),
    ],
    ids=["few rows for a value", "null among the values", "no rows"],
)
def test_what_does_not_pay_or_has_no_order_goes_as_it_came(column):
    common = CommonDictionary()
    common.encode(part(["b", "a"], []))
    assert common.encode(column) is column


def test_values_of_another_type_begin_anew():
    common = CommonDictionary()
    common.encode(part(["a", "b"], []))
    large = part(["b", "a"], []).cast(pa.dictionary(pa.int32(), pa.large_string()))
    assert common.encode(large).dictionary.equals(large.dictionary)


def test_long_values_are_not_gathered_beyond_a_size():
    common = CommonDictionary()
    words = [f"{i:0>2000}" for i in range(500)]
    for first in range(0, 480, 4):
        column = part(words[first : first + 20], [])
        got = common.encode(column)
        assert got.to_pylist() == column.to_pylist()
        assert got.dictionary.nbytes <= common_dictionary.MOST_BYTES
    huge = part(words, [])
    assert common.encode(huge) is huge
