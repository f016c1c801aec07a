"""Key groups: the unit in which keyed state is partitioned, stored and moved when a job is rescaled.

A key's stable hash determines its key group; ranges of key groups belong to subtasks. The rules are those of Flink's
``KeyGroupRangeAssignment``; `tidegate.keys.key_group_columns` has the vectorised twins. The number of key groups is the
job's max parallelism, fixed once there is state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.core.errors import ConfigurationError

DEFAULT_LOWER_BOUND_MAX_PARALLELISM: Final = 1 << 7
UPPER_BOUND_MAX_PARALLELISM: Final = 1 << 15


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """The key groups ``start`` to ``end``, both inclusive; empty if ``end`` is before ``start``."""

    start: int
    end: int

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __len__(self) -> int:
        return max(0, self.end - self.start + 1)

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """The key groups in both ranges: a restored subtask takes these from a stored range."""
        return KeyGroupRange(max(self.start, other.start), min(self.end, other.end))


def key_group_for_hash(key_hash: int, max_parallelism: int) -> int:
    """The key group of a key's stable 64-bit hash (`tidegate.keys.hashing.hash_value`)."""
    return key_hash % max_parallelism


def subtask_for_key_group(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The index of the subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups that a subtask owns; never empty, because parallelism is at most max parallelism."""
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise ValueError(f"subtask {subtask} is not from 0 to {parallelism - 1}")
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def default_max_parallelism(parallelism: int) -> int:
    """The max parallelism of an operator that sets none: room to grow by half, between 128 and 32768.

    >>> default_max_parallelism(1), default_max_parallelism(100), default_max_parallelism(30_000)
    (128, 256, 32768)
    """
    wanted = parallelism + parallelism // 2
    power_of_two = 1 << max(0, wanted - 1).bit_length()
    return min(max(power_of_two, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Refuse a parallelism that leaves a subtask without key group, or a max parallelism out of bounds."""
    if not 1 <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ConfigurationError(
            f"max parallelism is {max_parallelism}, but must be from 1 to {UPPER_BOUND_MAX_PARALLELISM}."
        )
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"parallelism is {parallelism}, but must be from 1 to the max parallelism {max_parallelism}. "
            f"Set max_parallelism={default_max_parallelism(max(parallelism, 1))} or a smaller parallelism."
        )
