"""The operations of joins by time, and of deduplication within a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tidegate.api.functions import function_name
from tidegate.api.operations import Key, Operation
from tidegate.api.window_operations import WindowOperation
from tidegate.core.durations import format_duration_ms

How = Literal["inner", "left", "right", "full"]
Sides = tuple[bool, bool]

BUFFERS = ("$join.left", "$join.right")
"""The names in checkpoints of the records that wait; no state that a function declares has such a name."""


@dataclass(frozen=True)
class IntervalJoin(Operation):
    """Pairs records of two keyed streams whose times are near: right - left in [lower_ms, upper_ms].

    With `form` "apply" the function makes one record of each pair, with "process" any number.
    """

    rows: ClassVar[bool] = True
    form: Literal["apply", "process"]
    function: Any
    keys: tuple[Key, Key]
    lower_ms: int
    upper_ms: int
    how: How = "inner"
    late_tags: tuple[str | None, str | None] = (None, None)

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "interval-join"

    @property
    def needs_event_time(self) -> bool:
        """Both streams must have timestamps and watermarks."""
        return True

    @property
    def outer(self) -> Sides:
        """Whether records of the left and of the right are emitted without a partner."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def reach_ms(self) -> tuple[int, int]:
        """How long, in event time, a record of either side waits for partners."""
        return max(0, self.upper_ms), max(0, -self.lower_ms)

    def detail(self) -> str:
        """The function, the key and the bounds."""
        key = self.keys[0].describe()
        bounds = f"[{_signed(self.lower_ms)}, {_signed(self.upper_ms)}]"
        return f"{self.how} {function_name(self.function)} per {key}, right within {bounds} of left"

    def state_key(self) -> Key | None:
        """That of the left; the right's are equal to it."""
        return self.keys[0]


@dataclass(frozen=True)
class WindowJoin(WindowOperation):
    """Joins or co-groups the records of two keyed streams that are in one window. `key` is that of the left."""

    rows: ClassVar[bool] = True
    form: Literal["join", "co_group"] = "join"
    function: Any = None
    keys: tuple[Key, ...] = ()
    how: How = "inner"
    late_tags: tuple[str | None, str | None] = (None, None)

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "window-join" if self.form == "join" else "co-group"

    @property
    def outer(self) -> Sides:
        """Whether records of the left and of the right are emitted without a partner."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    def detail(self) -> str:
        """The function and the windows."""
        how = f"{self.how} " if self.form == "join" else ""
        return f"{how}{function_name(self.function)}, {self.window_words()}"


@dataclass(frozen=True)
class Deduplicate(Operation):
    """Passes the first record of each key, and then none whose time is less than `within_ms` after it."""

    key: Key
    within_ms: int
    late_tag: str | None = None

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "deduplicate"

    @property
    def needs_event_time(self) -> bool:
        """The stream must have timestamps and watermarks."""
        return True

    def detail(self) -> str:
        """The key and the time."""
        return f"first per {self.key.describe()} within {format_duration_ms(self.within_ms)}"


def _signed(ms: int) -> str:
    return f"{'-' if ms < 0 else '+' if ms else ''}{format_duration_ms(abs(ms))}"
