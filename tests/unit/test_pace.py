"""How many rows are taken at a time is learned from what the last ones took."""

from __future__ import annotations

import random

import pytest

from tidegate.core.clock import ManualClock
from tidegate.core.pace import FIRST_ROWS, Pace, SourcePace

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


class Noted(Pace):
    """Notes what batches cost."""

    def __init__(self) -> None:
        super().__init__(AIM, FIRST_ROWS, MOST)
        self.costs: list[tuple[int, int]] = []

    def took(self, rows: int, spent_ns: int, *, full: bool = True) -> None:
        super().took(rows, spent_ns, full=full)
        self.costs.append((rows, spent_ns))


class PacedSource:
    """A source, its pace, and time."""

    def __init__(self, most_objects: int | None = None) -> None:
        self.clock, self.noted = ManualClock(), Noted()
        self.pace = SourcePace(self.clock, self.noted, most_objects)

    def emit(self, rows: int, own_ns: int = 0, *, objects: bool = False) -> None:
        self.pace.batch_emitted(rows, own_ns, full=True, objects=objects)

    def pass_ns(self, ns: int) -> None:
        self.clock.advance_ns(ns)


def test_a_batch_costs_the_time_until_it_is_processed_and_what_the_source_spent_itself() -> None:
    source = PacedSource()
    source.emit(7, own_ns=5)
    source.pass_ns(21)
    source.pace.batch_processed()
    source.pass_ns(1_000)  # other tasks
    assert source.noted.costs == []
    source.pace.was_ready(True)
    source.pace.was_ready(True)
    assert source.noted.costs == [(7, 26)]
    assert source.pace.rows == source.noted.rows > FIRST_ROWS


def test_time_spent_waiting_for_credit_between_two_parts_is_no_cost() -> None:
    source = PacedSource()
    source.emit(2_049)
    source.pass_ns(2_048)
    source.pace.was_ready(True)  # it has not processed all of it
    source.pass_ns(1_000)  # not ready
    source.pass_ns(1_000_000)  # no credit
    source.pace.waited_for_credit(1_000_000)
    source.pass_ns(1)
    source.pace.batch_processed()
    source.pace.was_ready(True)
    assert source.noted.costs == [(2_049, 2_049 + 1_000)]


def test_the_time_until_operators_are_ready_for_more_is_part_of_the_cost() -> None:
    source = PacedSource()
    source.emit(7)
    source.pass_ns(21)
    source.pace.batch_processed()
    source.pass_ns(10)  # other tasks
    source.pace.was_ready(False)
    source.pass_ns(1_000)
    source.pace.was_ready(False)
    source.pass_ns(1_000_000)  # no credit
    source.pace.waited_for_credit(1_000_000)
    source.pass_ns(500)
    source.pace.was_ready(True)
    assert source.noted.costs == [(7, 21 + 1_500)]
    source.emit(3)
    source.pass_ns(4)
    source.pace.batch_processed()
    source.pace.was_ready(True)
    assert source.noted.costs[1:] == [(3, 4)], "the batch after it has nothing of that"


def test_a_poll_without_a_batch_costs_nothing() -> None:
    source = PacedSource()
    source.pace.batch_processed()
    source.pace.was_ready(True)
    assert source.noted.costs == []
    assert source.pace.rows == FIRST_ROWS


def test_python_objects_are_read_in_smaller_batches_than_columns() -> None:
    source = PacedSource(most_objects=100)
    for objects, rows in ((True, 100), (False, 256)):
        source.emit(FIRST_ROWS, objects=objects)
        source.pace.batch_processed()
        source.pace.was_ready(True)
        assert source.pace.rows == rows
