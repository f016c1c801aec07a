"""Column cuts: how the windows of a whole column of timestamps are found. Each window assigner states its own cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tidegate.core.errors import ProgramError

Timestamps = npt.NDArray[np.int64]
AssignArray = Callable[[Timestamps], tuple[Timestamps, Timestamps]]
"""Returns the start and the end of the window of each timestamp."""


def _check_ms(cut: object, name: str, *, positive: bool = True) -> None:
    value = getattr(cut, name)
    if type(value) is not int or (positive and value < 1):
        least = ", 1 or more" if positive else ""
        raise ProgramError(
            f"{type(cut).__name__}({name}={value!r}): write whole milliseconds{least}, such as {name}=5_000"
        )


@dataclass(frozen=True)
class Slices:
    """Windows of `size_ms`, one every `step_ms`, aligned to `offset_ms`.

    Each record is in one slice; a window is a run of slices. `cumulative` windows start every `size_ms` and end after
    each step. In a `time_zone` the lengths of windows vary: `assign` finds each window, and `size_ms` is only the usual
    length.
    """

    has_partials: ClassVar[bool] = True
    """Whether windows can be computed partly before an exchange: each slice by itself."""
    size_ms: int
    step_ms: int
    offset_ms: int = 0
    cumulative: bool = False
    time_zone: str | None = None
    assign: AssignArray | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_ms(self, "size_ms")
        _check_ms(self, "step_ms")
        _check_ms(self, "offset_ms", positive=False)

    def identity(self) -> str:
        """Identify these slices; durable, since it is part of the schema of window state."""
        text = f"slices of {self.size_ms} every {self.step_ms} from {self.offset_ms} ms"
        if self.cumulative:
            text = f"cumulative {text}"
        return text if self.time_zone is None else f"{text} in {self.time_zone}"


@dataclass(frozen=True)
class SessionGap:
    """Sessions: records of a key that are at most `gap_ms` apart share a window."""

    has_partials: ClassVar[bool] = False
    """Whether a record is late, and which window it is in, depends on all others of its key."""
    gap_ms: int

    def __post_init__(self) -> None:
        _check_ms(self, "gap_ms")

    def identity(self) -> str:
        """Identify these sessions; durable, since it is part of the schema of window state."""
        return f"sessions with a gap of {self.gap_ms} ms"


ColumnCut = Slices | SessionGap
