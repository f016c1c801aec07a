"""Running aggregates agree with a dict that is updated record by record, however the stream is cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.aggregates.segmented_scans import (
    RowGroups,
    empty_totals,
    few_running,
    running_counts,
    running_max,
    running_min,
    running_seen,
    running_sums,
)

Kind = Literal["sum", "min", "max"]
FUNCTIONS: dict[Kind, Callable[..., npt.NDArray[Any]]] = {
    "sum": running_sums,
    "min": running_min,
    "max": running_max,
}


def oracle(kind: Kind, total: Any, value: Any) -> Any:
    """One step as Spark defines it: nulls are ignored, NaN is the largest number."""
    if value is None:
        return total
    if total is None:
        return value
    if kind == "sum":
        return total + value
    if math.isnan(value) or math.isnan(total):
        larger = math.nan
        return larger if kind == "max" else (total if math.isnan(value) else value)
    return min(total, value) if kind == "min" else max(total, value)


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
        for a, b in zip(left, right, strict=True)
    )


@st.composite
def streams(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[int, list[list[tuple[int, Any]]]]:
    keys = draw(st.sampled_from([1, 2, 5, 300, 70_000]))
    record = st.tuples(st.integers(0, keys - 1) | st.just(0), st.none() | values)
    return keys, draw(st.lists(st.lists(record, max_size=40), max_size=4))


@pytest.mark.parametrize("kind", ["sum", "min", "max"])
@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.int64, st.integers(-(2**50), 2**50)),
        (np.float64, st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf])),
    ],
)
def test_running_aggregates_agree_with_a_dict(kind: Kind, dtype: Any, values: st.SearchStrategy[Any]) -> None:
    @given(streams(values))
    @settings(max_examples=80)
    def check(stream: tuple[int, list[list[tuple[int, Any]]]]) -> None:
        keys, batches = stream
        totals, seen = empty_totals(kind, dtype, keys), np.zeros(keys, np.bool_)
        truth: dict[int, Any] = {}
        for batch in batches:
            ids = np.array([key for key, _ in batch], np.int64)
            valid = np.array([value is not None for _, value in batch], np.bool_)
            numbers = np.array([7 if value is None else value for _, value in batch], dtype)
            groups = RowGroups(ids, keys)
            with np.errstate(invalid="ignore"):
                results = FUNCTIONS[kind](groups, numbers, totals, valid).tolist()
            known = running_seen(groups, valid, seen).tolist()
            expected = []
            for key, value in batch:
                truth[key] = oracle(kind, truth.get(key), value)
                expected.append(truth[key])
            assert same([r if k else None for r, k in zip(results, known, strict=True)], expected)
        for key, total in truth.items():
            assert same([totals[key].item() if seen[key] else None], [total])

    check()


@given(streams(st.integers(0, 9)))
def test_running_counts_agree_with_a_dict(stream: tuple[int, list[list[tuple[int, Any]]]]) -> None:
    keys, batches = stream
    totals, of_values = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    records, values = dict[int, int](), dict[int, int]()
    for batch in batches:
        ids = np.array([key for key, _ in batch], np.int64)
        valid = np.array([value is not None for _, value in batch], np.bool_)
        expected, expected_values = [], []
        for key, value in batch:
            records[key] = records.get(key, 0) + 1
            values[key] = values.get(key, 0) + (value is not None)
            expected.append(records[key])
            expected_values.append(values[key])
        assert running_counts(ids, totals).tolist() == expected
        assert running_counts(ids, of_values, valid).tolist() == expected_values
    assert {key: count for key, count in enumerate(totals.tolist()) if count} == records


def test_float_sums_do_not_depend_on_the_batches() -> None:
    random = np.random.default_rng(7)
    ids = np.minimum(random.zipf(1.3, 20_000), 500) - 1
    values = random.normal(size=20_000) * 10.0 ** random.integers(-8, 8, 20_000)
    results = []
    for rows in (20_000, 1_000, 7):
        totals = empty_totals("sum", np.float64, 500)
        parts = [
            running_sums(ids[i : i + rows], values[i : i + rows], totals) for i in range(0, len(ids), rows)
        ]
        results.append(np.concatenate(parts))
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_one_key_cannot_spoil_another() -> None:
    totals = empty_totals("sum", np.float64, 3)
    values = np.array([math.inf, 1.0, math.nan, 2.0, 1e300])
    assert running_sums(np.array([0, 1, 2, 1, 2]), values, totals)[[1, 3]].tolist() == [1.0, 3.0]


@pytest.mark.parametrize("first", [2**63 - 1, -(2**63)])
def test_an_int_sum_that_leaves_its_range_raises_and_changes_nothing(first: int) -> None:
    totals = np.zeros(2, np.int64)
    sign = 1 if first > 0 else -1
    assert running_sums(np.array([0, 1, 0]), np.array([first, sign, 0]), totals).tolist() == [
        first,
        sign,
        first,
    ]
    before = totals.tolist()
    with pytest.raises(OverflowError, match="running sum at row 1 of the batch does not fit an int64"):
        running_sums(np.array([1, 0, 0]), np.array([sign, sign, -sign]), totals)
    assert totals.tolist() == before
    assert running_sums(np.array([0, 0]), np.array([-sign, sign]), totals).tolist() == [first - sign, first]


def test_an_unsigned_value_beyond_int64_is_refused() -> None:
    values = np.array([2**63], np.uint64)
    with pytest.raises(OverflowError, match="unsigned"):
        running_sums(np.array([0]), values, np.zeros(1, np.int64))
    assert running_sums(np.array([0]), values, np.zeros(1, np.int64), np.array([False])).tolist() == [0]


def test_narrow_values_are_summed_in_the_type_of_the_totals() -> None:
    totals = np.zeros(1, np.int64)
    assert running_sums(np.array([0, 0]), np.array([100, 100], np.int8), totals).tolist() == [100, 200]


def test_an_empty_batch_has_no_results() -> None:
    none = np.empty(0, np.int64)
    assert running_counts(none, np.zeros(3, np.int64)).tolist() == []
    assert running_sums(none, none, np.zeros(3, np.int64)).tolist() == []
    assert running_min(none, none.astype(float), empty_totals("min", float, 3)).tolist() == []
    assert running_seen(none, None, np.zeros(3, np.bool_)).tolist() == []


@given(st.data())
@settings(max_examples=200)
def test_a_few_rows_give_what_many_do_by_the_other_way(data: st.DataObject) -> None:
    kind: Any = data.draw(st.sampled_from(["count", "sum", "min", "max"]))
    dtype = np.int64 if kind in ("count", "sum") else data.draw(st.sampled_from([np.int64, np.int32]))
    limits = np.iinfo(dtype)
    value = st.integers(-9, 9) | st.sampled_from([int(limits.min), int(limits.max)])
    rows = data.draw(st.lists(st.tuples(st.integers(0, 4), value), max_size=12))
    ids = np.array([id for id, _ in rows], np.int64)
    values = np.array([v for _, v in rows], dtype)
    before = empty_totals(kind, dtype, 5)
    by_few, by_many = before.copy(), before.copy()

    def many() -> npt.NDArray[Any]:
        return running_counts(ids, by_many) if kind == "count" else FUNCTIONS[kind](ids, values, by_many)

    def few() -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        return few_running(kind, ids, None if kind == "count" else values, by_few)

    refusal = ""
    try:
        expected = many()
    except OverflowError as e:
        refusal = str(e)
    if refusal:
        with pytest.raises(OverflowError, match=refusal):
            few()
        assert by_few.tolist() == before.tolist()
        return
    results, touched = few()
    assert results.dtype == expected.dtype
    assert results.tolist() == expected.tolist()
    assert by_few.tolist() == by_many.tolist()
    assert touched.tolist() == RowGroups(ids, 5).ids.tolist()


@pytest.mark.parametrize("keys", [1, 255, 1000, 4096, 4097, 70_000])
@pytest.mark.parametrize("rows", [1, 1023, 1024, 5000])
def test_rows_of_a_key_keep_their_order_however_many_keys_and_rows_there_are(keys: int, rows: int):
    ids = np.random.default_rng(keys + rows).integers(0, keys, rows)
    ids[-1] = keys - 1
    groups = RowGroups(ids, keys)
    assert groups.order.tolist() == sorted(range(rows), key=ids.__getitem__)
    assert groups.order.dtype == np.int64
    assert groups.ids.tolist() == sorted(set(ids.tolist()))
    assert np.repeat(groups.ids, groups.lengths).tolist() == sorted(ids.tolist())
    assert groups.scatter(ids[groups.order]).tolist() == ids.tolist()
