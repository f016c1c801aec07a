"""Tables that are looked up by the codes of a dictionary column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidegate.records.column_bits import CodeTable, take

APPS = pa.array(["a", "b", "c"])


def column(codes: list[int | None], index_type: pa.DataType | None = None) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, index_type or pa.int32()), APPS)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, np.uint64])
@pytest.mark.parametrize("index_type", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_each_row_gets_the_number_of_its_code(dtype: type, index_type: pa.DataType) -> None:
    table = CodeTable(np.array([10, 20, 30, 99], dtype))
    found = table.look_up(column([2, 0, 0, 1], index_type)).to_numpy()
    assert found.tolist() == [30, 10, 10, 20]
    assert found.dtype == dtype


def test_a_null_row_gets_the_number_behind_those_of_the_values() -> None:
    table = CodeTable(np.array([10, 20, 30, 99]))
    assert table.look_up(column([1, None, 2])).to_pylist() == [20, 99, 30]


def test_a_slice_gets_the_numbers_of_its_own_rows() -> None:
    table = CodeTable(np.array([10, 20, 30, 99]))
    assert table.look_up(column([0, 1, 2, 1]).slice(1, 2)).to_pylist() == [20, 30]
    assert table.look_up(column([])).to_pylist() == []


def test_what_is_changed_in_place_is_found() -> None:
    table = CodeTable(np.array([-1, 20, -1, 99]))
    assert table.look_up(column([0, 1])).to_pylist() == [-1, 20]
    table.numbers[0] = 7
    assert table.look_up(column([0, 1])).to_pylist() == [7, 20]


def test_take_keeps_the_type_of_the_values() -> None:
    taken = take(pa.array(["x", "y"]), pa.array([1, 1, 0]))
    assert taken.equals(pa.array(["y", "y", "x"]))
