"""A source gives as many records at a time as what is behind it takes about 100 ms for."""

from __future__ import annotations

import pytest

from tidegate.operators.source_batches import SourceBatches

MOST = 262_144
MS = 1_000_000


def sizes(batches: SourceBatches, ns_per_row: int, count: int) -> list[int]:
    found = []
    for _ in range(count):
        found.append(batches.rows)
        batches.took(batches.rows, batches.rows * ns_per_row)
    return found


def test_a_fast_function_has_full_batches_after_three_small_ones() -> None:
    assert sizes(SourceBatches(MOST, careful=True), 40, 5) == [256, 4096, 65_536, MOST, MOST]


def test_what_is_known_to_be_fast_has_full_batches_at_once_and_smaller_ones_if_it_is_not() -> None:
    batches = SourceBatches(MOST, careful=False)
    assert sizes(batches, 40, 2) == [MOST, MOST]
    assert sizes(batches, MS, 3) == [MOST, 100, 100]


def test_batches_are_never_larger_than_asked_for() -> None:
    assert sizes(SourceBatches(10, careful=True), 0, 3) == [10, 10, 10]
    assert max(sizes(SourceBatches(1000, careful=True), 0, 9)) == 1000


@pytest.mark.parametrize("us_per_row", [1, 10, 100, 1_000, 10_000, 90_000])
def test_from_the_second_batch_on_each_takes_a_fifth_of_a_second_at_most(us_per_row: int) -> None:
    for rows in sizes(SourceBatches(MOST, careful=True), us_per_row * 1_000, 8)[1:]:
        assert rows * us_per_row <= 200_000
        assert rows * us_per_row >= 25_000 or rows == 256 or rows == 4096


def test_a_function_slower_than_that_gets_one_record_at_a_time() -> None:
    assert sizes(SourceBatches(MOST, careful=True), 5_000 * MS, 4) == [256, 1, 1, 1]


def test_a_function_that_becomes_slow_gets_less_and_more_again_when_it_is_fast() -> None:
    batches = SourceBatches(MOST, careful=True)
    sizes(batches, 100, 6)
    assert sizes(batches, MS, 3) == [MOST, 100, 100]
    assert sizes(batches, 100, 5)[-1] == MOST


def test_a_source_that_has_little_to_give_is_not_asked_for_more() -> None:
    batches = SourceBatches(MOST, careful=True)
    for _ in range(10):
        batches.took(3, 1000)
    assert batches.rows == 256
