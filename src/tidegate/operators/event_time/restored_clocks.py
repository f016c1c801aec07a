"""The event times of an operator's subtasks in a checkpoint, and the clock of a restored subtask. Pure.

Each subtask stores its clock. With an unchanged parallelism each restores its own. Otherwise key groups of several old
subtasks meet in a new one, and their clocks may differ: an unaligned barrier overtakes watermarks that wait, and of two
subtasks only one may have seen the end, or the idleness, of a channel before a barrier. So a window may have been
emitted for some key groups and not for others.

A watermark that reached one subtask of a keyed operator was sent to all of them before the barrier. Overtaken batches
forbid another parallelism, so the others only have to advance their clocks. A restored subtask starts at the smallest
clock, then advances to the largest, and leaves out what was emitted according to `by_key_group`. After an at-least-once
checkpoint it does not advance: there a clock may be ahead of records that are read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tidegate.core.key_groups import key_group_range
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP

Longs = npt.NDArray[np.int64]


class StoredClock(msgspec.Struct, frozen=True):
    """The event time of one subtask, as a checkpoint keeps it."""

    subtask: int
    parallelism: int
    watermark_ms: int
    at_least_once: bool = False
    """Whether the checkpoint may have records in state that are read again."""


@dataclass(frozen=True)
class RestoredClocks:
    """The clock at which a restored subtask starts."""

    all_reached_ms: int = MIN_TIMESTAMP
    """What every old subtask had reached: everything due by then was emitted."""
    some_reached_ms: int = MIN_TIMESTAMP
    """To where the subtask may advance at once; not before `all_reached_ms`."""
    by_key_group: Longs | None = None
    """Up to which time results were emitted, for each key group; None: the same for all."""
    repeats: bool = False
    """Whether records that are in state may be read again."""


def restored_clocks(
    stored: Sequence[StoredClock], subtask: int, parallelism: int, max_parallelism: int, *, keyed: bool
) -> RestoredClocks:
    """The clocks of one subtask. `keyed`: every subtask gets the same watermarks, and has key groups of its own.

    An old subtask without a stored clock had no event time yet, whatever the others had: they may have finished.
    """
    if not stored:
        return RestoredClocks()
    if stored[0].parallelism == parallelism:
        # Not further: overtaken batches may come before watermarks that other subtasks have got.
        own = next((c.watermark_ms for c in stored if c.subtask == subtask), MIN_TIMESTAMP)
        return RestoredClocks(own, own)
    is_whole = len(stored) == stored[0].parallelism
    smallest = min(c.watermark_ms for c in stored) if is_whole else MIN_TIMESTAMP
    # Do not start at the end of input: what is still open is closed when the other channels end, too.
    largest = max((c.watermark_ms for c in stored if c.watermark_ms != MAX_WATERMARK), default=smallest)
    if not keyed or largest <= smallest:
        return RestoredClocks(smallest, smallest)
    groups = np.full(max_parallelism, MIN_TIMESTAMP)
    for clock in stored:
        if clock.watermark_ms != MAX_WATERMARK:
            its = key_group_range(clock.subtask, clock.parallelism, max_parallelism)
            groups[its.start : its.end + 1] = clock.watermark_ms
    repeats = any(c.at_least_once for c in stored)
    return RestoredClocks(smallest, smallest if repeats else largest, groups, repeats)
