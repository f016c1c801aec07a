"""Key groups: ranges cover all groups once, agree with the assignment, and follow Flink's rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ConfigurationError
from tidegate.core.key_groups import (
    KeyGroupRange,
    check_parallelism,
    default_max_parallelism,
    key_group_for_hash,
    key_group_range,
    subtask_for_key_group,
)
from tidegate.keys.key_group_columns import channel_for_key_groups, channel_table, key_groups


@st.composite
def parallelisms(draw: st.DrawFn) -> tuple[int, int]:
    max_parallelism = draw(st.integers(1, 600) | st.sampled_from([1024, 32768]))
    return draw(st.integers(1, min(max_parallelism, 300))), max_parallelism


@given(parallelisms())
def test_ranges_cover_every_key_group_once_and_agree_with_the_assignment(both: tuple[int, int]) -> None:
    parallelism, max_parallelism = both
    ranges = [key_group_range(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    assert [group for owned in ranges for group in owned] == list(range(max_parallelism))
    owners = [subtask for subtask, owned in enumerate(ranges) for _ in owned]
    assert owners == [subtask_for_key_group(g, parallelism, max_parallelism) for g in range(max_parallelism)]
    assert owners == channel_table(parallelism, max_parallelism).tolist()
    sizes = {len(owned) for owned in ranges}
    assert max(sizes) - min(sizes) <= 1


def test_ranges_are_those_of_flink() -> None:
    assert [str(key_group_range(subtask, 3, 10)) for subtask in range(3)] == ["0-3", "4-6", "7-9"]
    assert str(key_group_range(1, 2, 128)) == "64-127"


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (170, 256), (171, 256), (172, 512), (32768, 32768)],
)
def test_default_max_parallelism_is_that_of_flink(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@given(st.lists(st.integers(0, 2**64 - 1)), parallelisms())
def test_vectorised_key_groups_and_channels_equal_the_scalar_ones(
    hashes: list[int], both: tuple[int, int]
) -> None:
    parallelism, max_parallelism = both
    groups = key_groups(np.array(hashes, np.uint64), max_parallelism)
    assert groups.dtype == np.uint16
    assert groups.tolist() == [key_group_for_hash(one, max_parallelism) for one in hashes]
    channels = channel_for_key_groups(groups, channel_table(parallelism, max_parallelism))
    assert channels.tolist() == [
        subtask_for_key_group(group, parallelism, max_parallelism) for group in groups.tolist()
    ]


def test_a_range_is_a_collection_of_key_groups() -> None:
    four = KeyGroupRange(4, 7)
    assert (4 in four, 7 in four, 8 in four, "4" in four, len(four)) == (True, True, False, False, 4)
    assert four.intersection(KeyGroupRange(6, 9)) == KeyGroupRange(6, 7)
    assert len(four.intersection(KeyGroupRange(8, 9))) == 0


def test_impossible_parallelism_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        ConfigurationError, match=r"parallelism is 200.*max parallelism 128.*max_parallelism=512"
    ):
        key_group_range(0, 200, 128)
    with pytest.raises(ConfigurationError, match="max parallelism is 40000"):
        check_parallelism(1, 40_000)
    with pytest.raises(ValueError, match="subtask 2 is not from 0 to 1"):
        key_group_range(2, 2, 128)
