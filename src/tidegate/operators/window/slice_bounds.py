"""Where windows begin and end: every record lies in one slice, and a window is a run of slices. Pure arithmetic.

| windows                  | slices                                        | windows of a slice                    |
|--------------------------|-----------------------------------------------|---------------------------------------|
| tumbling                 | the windows                                   | one                                   |
| sliding                  | cut where a window begins and where one ends  | those that cover it                   |
| cumulative               | of one step                                   | all of its span that end at or after  |

Slices are cut only where windows begin or end, so they are as long as possible: a slide has at most two, even where it
does not divide the size (their greatest common divisor may be a millisecond). They are numbered in order of time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.api.column_cuts import ColumnCut, Slices

Longs = npt.NDArray[np.int64]

_FARTHEST_MS: Final = 1 << 61
"""Timestamps beyond (73 million years) are a mistake, and the arithmetic would wrap around."""


@dataclass(frozen=True)
class Slicing:
    """Windows of `size_ms`, one every `step_ms`, from `offset_ms` on.

    `cumulative` windows begin every `size_ms` and end after each step; others begin every `step_ms`.
    """

    size_ms: int
    step_ms: int
    offset_ms: int = 0
    cumulative: bool = False

    @property
    def _end_phase_ms(self) -> int:
        """Where in a step windows end; 0: where they begin."""
        return 0 if self.cumulative else self.size_ms % self.step_ms

    @property
    def has_gaps(self) -> bool:
        """Whether there are times that no window covers."""
        return not self.cumulative and self.step_ms > self.size_ms

    def numbers(self, timestamps: Longs) -> Longs:
        """The number of each timestamp's slice. Raises `ValueError` for a timestamp that cannot be one."""
        low, high = checked_range(timestamps)
        relative = timestamps - self.offset_ms if self.offset_ms else timestamps
        first = low - self.offset_ms
        # A batch is often in one step, and dividing is slow.
        if high - low < self.step_ms - first % self.step_ms:
            numbers = np.full(len(timestamps), first // self.step_ms)
        else:
            numbers = relative // self.step_ms
        phase = self._end_phase_ms
        if not phase:
            return numbers
        is_second = (relative - numbers * self.step_ms) >= phase
        numbers <<= 1
        numbers += is_second
        return numbers

    def ends(self, numbers: Longs) -> Longs:
        """The end of each slice, exclusive."""
        phase = self._end_phase_ms
        if not phase:
            return numbers * self.step_ms + (self.offset_ms + self.step_ms)
        odd = (numbers & 1).astype(np.bool_)
        return (numbers >> 1) * self.step_ms + np.where(odd, self.step_ms, phase) + self.offset_ms

    def window_start(self, window_end: int) -> int:
        """Where the window that ends there begins."""
        if not self.cumulative:
            return window_end - self.size_ms
        return window_end - 1 - (window_end - 1 - self.offset_ms) % self.size_ms

    def window_starts(self, window_ends: Longs) -> Longs:
        """As `window_start`, for many windows."""
        if not self.cumulative:
            return window_ends - self.size_ms
        last = window_ends - 1
        return last - (last - self.offset_ms) % self.size_ms

    def next_window_end(self, time: int) -> int:
        """The first end of a window at or after a time."""
        phase = self.offset_ms if self.cumulative else self.offset_ms + self.size_ms
        return time + (phase - time) % self.step_ms

    def last_window_end(self, slice_end: int) -> int:
        """The end of the last window that covers a slice; if none does, not after the slice's end."""
        every = self.size_ms if self.cumulative else self.step_ms
        return slice_end - 1 - (slice_end - 1 - self.offset_ms) % every + self.size_ms

    def block_start(self, window_end: int) -> int:
        """The last multiple of the size before a window's end: in the window, or where it begins."""
        return window_end - 1 - (window_end - 1 - self.offset_ms) % self.size_ms

    def late_before(self, clock_ms: int, lateness_ms: int) -> int:
        """The time before which every window is over: `last window end - 1 + lateness <= clock`."""
        every = self.size_ms if self.cumulative else self.step_ms
        last_begin = clock_ms + 1 - lateness_ms - self.size_ms
        return last_begin - (last_begin - self.offset_ms) % every + every


@dataclass(frozen=True)
class ZonedSlicing(Slicing):
    """Tumbling windows by the clock of a time zone, each of its own length. A slice's number is its end."""

    assign: Callable[[Longs], tuple[Longs, Longs]] = field(kw_only=True)
    """Start and end of the window of each timestamp."""

    @property
    def has_gaps(self) -> bool:
        return False

    def numbers(self, timestamps: Longs) -> Longs:
        checked_range(timestamps)
        return self.assign(timestamps)[1]

    def ends(self, numbers: Longs) -> Longs:
        return numbers

    def window_start(self, window_end: int) -> int:
        return int(self.window_starts(np.array([window_end]))[0])

    def window_starts(self, window_ends: Longs) -> Longs:
        return self.assign(window_ends - 1)[0]

    def next_window_end(self, time: int) -> int:
        return int(self.assign(np.array([time - 1]))[1][0])

    def last_window_end(self, slice_end: int) -> int:
        return slice_end

    def block_start(self, window_end: int) -> int:
        return self.window_start(window_end)

    def late_before(self, clock_ms: int, lateness_ms: int) -> int:
        """The start of the window that holds the first moment that is not over."""
        moment = min(max(clock_ms + 1 - lateness_ms, -_FARTHEST_MS), 2 * _FARTHEST_MS)
        return int(self.assign(np.array([moment]))[0][0])


def slicing_of(cut: ColumnCut | None) -> Slicing:
    """The arithmetic of windows that are cut into slices."""
    assert isinstance(cut, Slices)
    if cut.assign is not None:
        return ZonedSlicing(cut.size_ms, cut.step_ms, assign=cut.assign)
    return Slicing(cut.size_ms, cut.step_ms, cut.offset_ms, cut.cumulative)


def checked_range(timestamps: Longs) -> tuple[int, int]:
    """The smallest and the largest timestamp; raises `ValueError` for one that cannot be a time."""
    low, high = int(timestamps.min()), int(timestamps.max())
    if low < -_FARTHEST_MS or high > _FARTHEST_MS:
        found = low if low < -_FARTHEST_MS else high
        raise ValueError(
            f"timestamp {found} is more than 73 million years from 1970. Timestamps are milliseconds: divide micro- or "
            f"nanoseconds where they are assigned"
        )
    return low, high
