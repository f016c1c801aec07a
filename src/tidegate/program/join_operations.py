"""The operations of time-based joins, and of deduplication within a time span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tidegate.api.functions import function_name
from tidegate.core.durations import format_duration_ms
from tidegate.core.identity import Identity, function_identity
from tidegate.program.operations import FunctionOperation, Key, Operation
from tidegate.program.window_operations import WindowOperation

How = Literal["inner", "left", "right", "full"]
Sides = tuple[bool, bool]

BUFFERS = ("$join.left", "$join.right")
"""The names of the waiting records in checkpoints; states that functions declare cannot have such names."""


@dataclass(frozen=True)
class IntervalJoin(FunctionOperation):
    """Pairs records of two keyed streams whose times are close: right - left in [lower_ms, upper_ms].

    With `form` "apply" the function makes one record of each pair, with "process" any number.
    """

    kind = "interval-join"
    needs_event_time = True
    keeps_keyed_state = True
    form: Literal["apply", "process"]
    function: Any
    keys: tuple[Key, Key]
    lower_ms: int
    upper_ms: int
    how: How = "inner"
    late_tags: tuple[str | None, str | None] = (None, None)

    @property
    def outer(self) -> Sides:
        """Whether (left, right) records without a partner are emitted."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def reach_ms(self) -> tuple[int, int]:
        """How long, in event time, a record of the left and of the right waits for partners."""
        return max(0, self.upper_ms), max(0, -self.lower_ms)

    def detail(self) -> str:
        key = self.keys[0].describe()
        bounds = f"[{_signed(self.lower_ms)}, {_signed(self.upper_ms)}]"
        return f"{self.how} {function_name(self.function)} per {key}, right within {bounds} of left"

    def identity(self) -> Identity:
        function, key = function_identity(self.function), self.keys[0].identity()
        return "interval join", self.form, function, key, self.how, self.lower_ms, self.upper_ms

    def state_key(self) -> Key | None:
        """The key of the left stream; keys of the right stream are equal to it."""
        return self.keys[0]


@dataclass(frozen=True)
class WindowJoin(WindowOperation):
    """Joins or co-groups the records of two keyed streams that are in the same window. `key` is that of the left."""

    rows = True
    form: Literal["join", "co_group"] = "join"
    function: Any = None
    keys: tuple[Key, ...] = ()
    how: How = "inner"
    late_tags: tuple[str | None, str | None] = (None, None)

    @property
    def kind(self) -> str:
        return "window-join" if self.form == "join" else "co-group"

    @property
    def functions(self) -> tuple[Any, ...]:
        return (self.function,)

    @property
    def outer(self) -> Sides:
        """Whether (left, right) records without a partner are emitted."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    def detail(self) -> str:
        how = f"{self.how} " if self.form == "join" else ""
        return f"{how}{function_name(self.function)}, {self.window_words()}"

    def identity(self) -> Identity:
        return "window join", self.form, function_identity(self.function), self.how, super().identity()


@dataclass(frozen=True)
class Deduplicate(Operation):
    """Emits the first record of each key, then none whose time is less than `within_ms` after it."""

    kind = "deduplicate"
    keeps_type = True
    needs_event_time = True
    keeps_keyed_state = True
    keeps_untyped_keys = True
    key: Key
    within_ms: int
    late_tag: str | None = None

    @property
    def runs_user_code(self) -> bool:
        return self.key.function is not None

    def detail(self) -> str:
        return f"first per {self.key.describe()} within {format_duration_ms(self.within_ms)}"

    def identity(self) -> Identity:
        return "deduplicate", self.key.identity(), self.within_ms


def _signed(ms: int) -> str:
    return f"{'-' if ms < 0 else '+' if ms else ''}{format_duration_ms(abs(ms))}"
