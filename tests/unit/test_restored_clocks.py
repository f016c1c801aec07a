"""Where restored subtasks go on in event time."""

from __future__ import annotations

import numpy as np

from tidegate.operators.event_time.restored_clocks import RestoredClocks, StoredClock, restored_clocks
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP


def restored(*clocks: int, subtask: int = 0, parallelism: int = 3, keyed: bool = True, repeats: bool = False):
    stored = [StoredClock(i, len(clocks), ms, repeats) for i, ms in enumerate(clocks) if ms != MIN_TIMESTAMP]
    return restored_clocks(stored, subtask, parallelism, 8, keyed=keyed)


def test_with_an_unchanged_parallelism_each_goes_on_at_its_own():
    assert restored(5, 9, subtask=1, parallelism=2) == RestoredClocks(9, 9)
    assert restored(MIN_TIMESTAMP, 9, parallelism=2) == RestoredClocks(), "one that had none has none"


def test_equal_clocks_are_the_clock_of_all():
    assert restored(5, 5) == RestoredClocks(5, 5)


def test_of_different_ones_the_smallest_is_where_to_go_on_and_the_largest_where_to_go_to():
    found = restored(5, 9)
    assert (found.all_reached_ms, found.some_reached_ms) == (5, 9)
    assert found.by_key_group is not None
    assert found.by_key_group.tolist() == [5] * 4 + [9] * 4


def test_one_without_a_clock_has_given_nothing_out():
    found = restored(MIN_TIMESTAMP, 9)
    assert (found.all_reached_ms, found.some_reached_ms) == (MIN_TIMESTAMP, 9)
    assert found.by_key_group is not None
    assert np.unique(found.by_key_group).tolist() == [MIN_TIMESTAMP, 9]


def test_the_end_of_input_is_not_where_those_go_on_that_have_not_ended():
    assert restored(5, MAX_WATERMARK) == RestoredClocks(5, 5)
    assert restored(MAX_WATERMARK, MAX_WATERMARK) == RestoredClocks(MAX_WATERMARK, MAX_WATERMARK)


def test_subtasks_without_keys_hear_different_watermarks_and_go_on_at_the_smallest():
    assert restored(5, 9, keyed=False) == RestoredClocks(5, 5)


def test_records_that_are_read_again_must_not_be_late():
    found = restored(5, 9, repeats=True)
    assert (found.all_reached_ms, found.some_reached_ms) == (5, 5)
    assert found.by_key_group is not None, "but nothing is given out twice"
    assert found.repeats
