"""How many rows are taken at a time is learned from what the last ones took."""

from __future__ import annotations

import random

import pytest

from tidegate.core.pace import FIRST_ROWS, Pace

MOST = 262_144
MS = 1_000_000
AIM = 100 * MS


def careful() -> Pace:
    return Pace(AIM, FIRST_ROWS, MOST)


def sizes(pace: Pace, count: int, *, row_ns: int, batch_ns: int = 0) -> list[int]:
    found = []
    for _ in range(count):
        found.append(pace.rows)
        pace.took(pace.rows, batch_ns + pace.rows * row_ns)
    return found


def test_what_is_fast_has_full_batches_after_four_small_ones() -> None:
    assert sizes(careful(), 6, row_ns=40) == [16, 256, 4096, 65_536, MOST, MOST]
    assert sizes(careful(), 6, row_ns=0)[-1] == MOST


def test_what_begins_with_full_batches_has_smaller_ones_if_it_is_slow() -> None:
    pace = Pace(AIM, MOST, MOST)
    assert sizes(pace, 2, row_ns=40) == [MOST, MOST]
    assert sizes(pace, 3, row_ns=MS) == [MOST, 100, 100]


def test_batches_are_never_larger_than_asked_for() -> None:
    assert sizes(Pace(AIM, FIRST_ROWS, 10), 3, row_ns=0) == [10, 10, 10]
    assert max(sizes(Pace(AIM, FIRST_ROWS, 1000), 9, row_ns=0)) == 1000


@pytest.mark.parametrize("us_per_row", [1, 10, 100, 1_000, 5_000])
def test_where_only_rows_cost_something_a_batch_comes_to_take_the_time_that_is_aimed_at(
    us_per_row: int,
) -> None:
    found = sizes(careful(), 12, row_ns=us_per_row * 1000)
    assert all(rows * us_per_row <= 200_000 for rows in found), (
        "it has to try once what a batch costs by itself"
    )
    assert all(rows * us_per_row <= 125_000 for rows in found[-6:])
    assert found[-1] * us_per_row >= 75_000


def test_what_takes_seconds_for_a_row_gets_one_at_a_time() -> None:
    assert sizes(careful(), 4, row_ns=5_000 * MS) == [FIRST_ROWS, 1, 1, 1]


@pytest.mark.parametrize("batch_ms", [5, 60, 90, 150, 250, 2_000])
@pytest.mark.parametrize("first", [FIRST_ROWS, MOST])
def test_a_cost_of_each_batch_does_not_make_batches_small(batch_ms: int, first: int) -> None:
    found = sizes(Pace(AIM, first, MOST), 40, row_ns=100, batch_ns=batch_ms * MS)
    assert found[-1] > MOST // 2


def test_with_both_costs_half_of_the_time_at_least_goes_to_rows() -> None:
    rows = sizes(careful(), 40, row_ns=MS, batch_ns=300 * MS)[-1]
    assert 200 <= rows <= 400


def test_it_follows_what_becomes_slow_and_fast_again() -> None:
    pace = careful()
    sizes(pace, 6, row_ns=100)
    assert sizes(pace, 4, row_ns=MS)[-1] == 100
    assert sizes(pace, 8, row_ns=100)[-1] == MOST
    assert sizes(pace, 30, row_ns=100, batch_ns=1_000 * MS)[-1] > MOST // 2
    assert sizes(pace, 30, row_ns=100)[-1] == MOST


def test_a_batch_that_is_not_full_is_no_reason_to_ask_for_more_nor_for_less() -> None:
    pace = careful()
    for _ in range(10):
        pace.took(3, 1000, full=False)
    assert pace.rows == FIRST_ROWS
    sizes(pace, 6, row_ns=40)
    for _ in range(10):
        pace.took(3, MS, full=False)
    assert pace.rows == MOST


@pytest.mark.parametrize("seed", range(20))
def test_times_that_vary_do_not_lead_it_astray(seed: int) -> None:
    chance = random.Random(seed)
    pace = careful()
    spent = []
    for _ in range(300):
        ns = int(pace.rows * MS * chance.lognormvariate(0, 0.5))
        spent.append(ns)
        pace.took(pace.rows, ns)
    assert sorted(spent)[150] < 300 * MS
    assert sum(spent) > 300 * 20 * MS, "and batches are not tiny"
    assert max(spent) < 4_000 * MS
