"""Column cuts: how the windows of a whole column of timestamps are found at once. An assigner states its own cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Timestamps = npt.NDArray[np.int64]
AssignArray = Callable[[Timestamps], tuple[Timestamps, Timestamps]]
"""Start and end of the window of each timestamp."""


@dataclass(frozen=True)
class Slices:
    """Windows of `size_ms`, one every `step_ms`, from `offset_ms` on: runs of slices, with each record in one slice.

    `cumulative` windows begin every `size_ms` and end after each step. In a `time_zone` each window has its own length,
    and `assign` finds it; `size_ms` is then about that.
    """

    has_partials: ClassVar[bool] = True
    """Whether windows can be computed partly before an exchange: each slice by itself."""
    size_ms: int
    step_ms: int
    offset_ms: int = 0
    cumulative: bool = False
    time_zone: str | None = None
    assign: AssignArray | None = field(default=None, compare=False)

    def identity(self) -> str:
        """Which slices these are, durable: it is in the schema of what is kept of them."""
        text = f"slices of {self.size_ms} every {self.step_ms} from {self.offset_ms} ms"
        if self.cumulative:
            text = f"cumulative {text}"
        return text if self.time_zone is None else f"{text} in {self.time_zone}"


@dataclass(frozen=True)
class SessionGap:
    """Sessions: records of a key that are at most `gap_ms` apart are in one window."""

    has_partials: ClassVar[bool] = False
    """Whether a record is late, and which window it is in, depends on all others of its key."""
    gap_ms: int

    def identity(self) -> str:
        """Which sessions these are, durable: it is in the schema of what is kept of them."""
        return f"sessions with a gap of {self.gap_ms} ms"


ColumnCut = Slices | SessionGap
