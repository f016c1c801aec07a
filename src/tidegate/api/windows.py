"""Windows and their assigners: finite pieces of a stream, by event time, by the wall clock, or by your own rule.

An assigner says which windows a record belongs to; a trigger (`api/triggers.py`) says when a window is computed. Sizes
are durations ("10 s", a number of milliseconds, a `timedelta`). Windows are half-open, [start, end), and aligned to
1970-01-01 UTC plus `offset`, or with `time_zone` to the days of that zone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, TypeVar

import numpy as np

from tidegate.api.column_cuts import ColumnCut, SessionGap, Slices, Timestamps
from tidegate.core.durations import Duration, format_duration_ms, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity, class_identity, function_identity
from tidegate.program.local_days import DAY_MS, LocalDays
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP

if TYPE_CHECKING:
    from tidegate.api.triggers import Trigger

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


Assign = TypeVar("Assign", bound=Callable[..., Any])
C = TypeVar("C")

LONGEST_MS: Final = 10_000 * 366 * 86_400_000
"""The longest duration: it can be added to any timestamp without overflow."""


class Constructor:
    """A class attribute that is the class itself: `of = Constructor()` allows Flink's `CountTrigger.of(3)`."""

    def __get__(self, instance: object, owner: type[C]) -> type[C]:
        return owner


class TimeWindow(NamedTuple):
    """The time from `start_ms` (inclusive) to `end_ms` (exclusive), in milliseconds since 1970.

    >>> window = TimeWindow(0, 10_000)
    >>> window.max_timestamp_ms, window.cover(TimeWindow(5_000, 20_000))
    (9999, TimeWindow(start_ms=0, end_ms=20000))
    """

    start_ms: int
    end_ms: int

    @property
    def max_timestamp_ms(self) -> int:
        """The last millisecond of the window: when the watermark reaches it, the window is complete."""
        return self.end_ms - 1

    @property
    def start(self) -> datetime:
        """The start, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.start_ms)

    @property
    def end(self) -> datetime:
        """The end, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.end_ms)

    def intersects(self, other: TimeWindow) -> bool:
        """Whether they overlap or touch."""
        return self.start_ms <= other.end_ms and self.end_ms >= other.start_ms

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that contains both."""
        return TimeWindow(min(self.start_ms, other.start_ms), max(self.end_ms, other.end_ms))


class GlobalWindow(TimeWindow):
    """The one window of `GlobalWindows`, which has no end."""

    __slots__ = ()

    def __new__(cls) -> GlobalWindow:
        return tuple.__new__(cls, (MIN_TIMESTAMP, MAX_WATERMARK))

    @property
    def max_timestamp_ms(self) -> int:
        return MAX_WATERMARK

    def __repr__(self) -> str:
        return "GlobalWindow()"

    def __reduce__(self) -> Any:
        return GlobalWindow, ()


GLOBAL_WINDOW: Final = GlobalWindow()


class WindowAssigner(ABC):
    """Says which windows a record belongs to. Derive your own from it; it is sent to every slot."""

    is_event_time: ClassVar[bool] = True
    """Whether `timestamp_ms` is the record's event time; else it is the wall clock."""
    is_merging: ClassVar[bool] = False
    """Whether windows of a key that overlap or touch become one (sessions)."""
    is_global: ClassVar[bool] = False
    """Whether its one window has no bounds: results do not name it, and the end of input does not compute it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        not_inherited(cls, WindowAssigner, "column_cut")

    @abstractmethod
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        """Return the windows of a record, earliest first; an empty list drops it, and does not count it as late."""

    def column_cut(self) -> ColumnCut | None:
        """How the same windows are computed on columns; None: they are computed record by record.

        It is not inherited: a subclass may assign differently, so it must state its own.
        """
        return None

    @property
    def reads_element(self) -> bool:
        """Whether `assign_windows` reads the record, and not only its time."""
        return not getattr(type(self).assign_windows, "by_time_alone", False)

    def default_trigger(self) -> Trigger:
        """The trigger of a stream that sets none."""
        from tidegate.api.triggers import EventTimeTrigger, ProcessingTimeTrigger

        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()

    def describe(self) -> str:
        """A few words for the plan."""
        return type(self).__name__

    def identity(self) -> Identity:
        """How it cuts, for ids of operators without a uid (see `core/identity.py`); not for display."""
        return (class_identity(self),)


def not_inherited(cls: type, base: type, *names: str) -> None:
    """Reset these attributes of a class to those of `base`, unless the class defines them itself."""
    for name in names:
        if name not in vars(cls):
            setattr(cls, name, getattr(base, name))


def _by_time_alone(assign_windows: Assign) -> Assign:
    assign_windows.by_time_alone = True  # type: ignore[attr-defined]
    return assign_windows


# ---- tumbling ----


@dataclass(frozen=True)
class TumblingWindows(WindowAssigner):
    """Windows of one size, one after the other; every record is in exactly one.

    With `time_zone` a size of whole days means the days of the zone, which last 23 to 25 hours when the clock changes.
    Other sizes must divide a day. Each day is cut from its midnight, so its last window ends at the next midnight.
    """

    size: Duration
    offset: Duration = 0
    time_zone: str | None = None
    size_ms: int = field(init=False, repr=False)
    offset_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _set(self, "size_ms", _positive(self, "size", self.size))
        _set(self, "offset_ms", _offset(self, self.offset))
        if self.time_zone is None:
            if abs(self.offset_ms) >= self.size_ms:
                raise ProgramError(
                    f"{type(self).__name__}: the offset ({self.offset!r}) must be shorter than the size ({self.size!r})"
                )
        else:
            _ = self.days
            _check_divides_days(self, "size", self.size, self.size_ms)

    of = Constructor()

    @cached_property
    def days(self) -> LocalDays:
        assert self.time_zone is not None
        return LocalDays(self.time_zone, self.offset_ms)

    def __reduce__(self) -> Any:
        return type(self), (self.size, self.offset, self.time_zone)

    @_by_time_alone
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        if self.time_zone is None:
            start = timestamp_ms - (timestamp_ms - self.offset_ms) % self.size_ms
            return (TimeWindow(start, start + self.size_ms),)
        starts, ends = self.assign_array(np.array([timestamp_ms], np.int64))
        return (TimeWindow(int(starts[0]), int(ends[0])),)

    def assign_array(self, timestamps: Timestamps) -> tuple[Timestamps, Timestamps]:
        """The start and the end of the window of each timestamp."""
        if self.time_zone is None:
            starts = timestamps - (timestamps - self.offset_ms) % self.size_ms
            return starts, starts + self.size_ms
        days = self.days.days_of(timestamps)
        if self.size_ms % DAY_MS == 0:
            n = self.size_ms // DAY_MS
            first = days - days % n
            return self.days.starts_of(first), self.days.starts_of(first + n)
        midnights = self.days.starts_of(days)
        starts = timestamps - (timestamps - midnights) % self.size_ms
        return starts, np.minimum(starts + self.size_ms, self.days.starts_of(days + 1))

    def describe(self) -> str:
        return _words(self, "tumbling", [_ms(self.size_ms)], self.offset_ms, self.time_zone)

    def identity(self) -> Identity:
        return class_identity(self), self.size_ms, self.offset_ms, self.time_zone


class TumblingEventTimeWindows(TumblingWindows):
    """Tumbling windows by the records' timestamps.

    >>> hours = TumblingEventTimeWindows("1 h", offset="15 min")
    >>> hours.assign_windows(None, 7_200_000)
    (TimeWindow(start_ms=4500000, end_ms=8100000),)

    A day of 25 hours, in Berlin:

    >>> days = TumblingEventTimeWindows("1 d", time_zone="Europe/Berlin")
    >>> window = days.assign_windows(None, 1_761_440_400_000)[0]
    >>> f"{window.start:%Y-%m-%d %H:%M} {window.end:%Y-%m-%d %H:%M}"
    '2025-10-25 22:00 2025-10-26 23:00'
    """

    def column_cut(self) -> Slices:
        """Each window is one slice."""
        if self.time_zone is None:
            return Slices(self.size_ms, self.size_ms, self.offset_ms)
        return Slices(
            self.size_ms, self.size_ms, self.offset_ms, time_zone=self.time_zone, assign=self.assign_array
        )


class TumblingProcessingTimeWindows(TumblingWindows):
    """Tumbling windows by the wall clock of the subtask."""

    is_event_time = False


# ---- sliding ----


@dataclass(frozen=True)
class SlidingWindows(WindowAssigner):
    """Windows of one size that start every `slide`; a record is in about `size / slide` of them.

    The slide need not divide the size (then it costs more slices, see `docs/guide/event-time.md`). It may be longer
    than the size: then there are gaps, and a record in a gap is in no window. With `time_zone` both must be whole days.
    """

    size: Duration
    slide: Duration
    offset: Duration = 0
    time_zone: str | None = None
    size_ms: int = field(init=False, repr=False)
    slide_ms: int = field(init=False, repr=False)
    offset_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _set(self, "size_ms", _positive(self, "size", self.size))
        _set(self, "slide_ms", _positive(self, "slide", self.slide))
        _set(self, "offset_ms", _offset(self, self.offset))
        if self.time_zone is None:
            if abs(self.offset_ms) >= self.slide_ms:
                raise ProgramError(
                    f"{type(self).__name__}: the offset ({self.offset!r}) must be shorter than the slide "
                    f"({self.slide!r})"
                )
        else:
            _ = self.days
            if self.size_ms % DAY_MS or self.slide_ms % DAY_MS:
                raise ProgramError(
                    f"{type(self).__name__}: with a time_zone size and slide must be whole days, got {self.size!r} "
                    f"and {self.slide!r}. Leave the time_zone out, or use tumbling windows"
                )

    of = Constructor()

    @cached_property
    def days(self) -> LocalDays:
        assert self.time_zone is not None
        return LocalDays(self.time_zone, self.offset_ms)

    def __reduce__(self) -> Any:
        return type(self), (self.size, self.slide, self.offset, self.time_zone)

    @_by_time_alone
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        if self.time_zone is not None:
            return self._assign_days(timestamp_ms)
        size, slide = self.size_ms, self.slide_ms
        last = timestamp_ms - (timestamp_ms - self.offset_ms) % slide
        count = -(
            (timestamp_ms - size - last) // slide
        )  # how many starts s <= last have s + size > timestamp
        return [TimeWindow(s, s + size) for s in range(last - (count - 1) * slide, last + 1, slide)]

    def _assign_days(self, timestamp_ms: int) -> Sequence[TimeWindow]:
        days, n, slide = self.days, self.size_ms // DAY_MS, self.slide_ms // DAY_MS
        day = days.day_of(timestamp_ms)
        last = day - day % slide
        first = last - (n - 1 - (day - last)) // slide * slide
        return [TimeWindow(days.start_ms(d), days.start_ms(d + n)) for d in range(first, last + 1, slide)]

    def describe(self) -> str:
        return _words(
            self, "sliding", [_ms(self.size_ms), _ms(self.slide_ms)], self.offset_ms, self.time_zone
        )

    def identity(self) -> Identity:
        return class_identity(self), self.size_ms, self.slide_ms, self.offset_ms, self.time_zone


class SlidingEventTimeWindows(SlidingWindows):
    """Sliding windows by the records' timestamps.

    >>> SlidingEventTimeWindows("10 s", "5 s").assign_windows(None, 12_000)
    [TimeWindow(start_ms=5000, end_ms=15000), TimeWindow(start_ms=10000, end_ms=20000)]
    """

    def column_cut(self) -> Slices | None:
        """Slices that end where a window starts or ends; None for the days of a time zone."""
        return Slices(self.size_ms, self.slide_ms, self.offset_ms) if self.time_zone is None else None


class SlidingProcessingTimeWindows(SlidingWindows):
    """Sliding windows by the wall clock of the subtask."""

    is_event_time = False


# ---- cumulative ----


@dataclass(frozen=True)
class CumulativeWindows(WindowAssigner):
    """Windows that grow by `step` up to `max_size` and then start again: the day so far, every hour.

    The step must divide the largest size.
    """

    max_size: Duration
    step: Duration
    offset: Duration = 0
    max_size_ms: int = field(init=False, repr=False)
    step_ms: int = field(init=False, repr=False)
    offset_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _set(self, "max_size_ms", _positive(self, "max_size", self.max_size))
        _set(self, "step_ms", _positive(self, "step", self.step))
        _set(self, "offset_ms", _offset(self, self.offset))
        if self.max_size_ms % self.step_ms:
            raise ProgramError(
                f"{type(self).__name__}: the step ({self.step!r}) must divide max_size ({self.max_size!r}) without rest"
            )
        if abs(self.offset_ms) >= self.max_size_ms:
            raise ProgramError(
                f"{type(self).__name__}: the offset ({self.offset!r}) must be shorter than max_size ({self.max_size!r})"
            )

    of = Constructor()

    @_by_time_alone
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        past = (timestamp_ms - self.offset_ms) % self.max_size_ms
        start, step = timestamp_ms - past, self.step_ms
        first = start + (past // step + 1) * step
        return [TimeWindow(start, end) for end in range(first, start + self.max_size_ms + 1, step)]

    def describe(self) -> str:
        return _words(self, "cumulative", [_ms(self.max_size_ms), _ms(self.step_ms)], self.offset_ms, None)

    def identity(self) -> Identity:
        return class_identity(self), self.max_size_ms, self.step_ms, self.offset_ms


class CumulativeEventTimeWindows(CumulativeWindows):
    """Cumulative windows by the records' timestamps.

    >>> CumulativeEventTimeWindows("15 s", "5 s").assign_windows(None, 7_000)
    [TimeWindow(start_ms=0, end_ms=10000), TimeWindow(start_ms=0, end_ms=15000)]
    """

    def column_cut(self) -> Slices:
        """One slice for each step."""
        return Slices(self.max_size_ms, self.step_ms, self.offset_ms, cumulative=True)


class CumulativeProcessingTimeWindows(CumulativeWindows):
    """Cumulative windows by the wall clock of the subtask."""

    is_event_time = False


# ---- sessions ----


@dataclass(frozen=True)
class SessionWindows(WindowAssigner):
    """Windows of activity: records of a key that are at most `gap` apart share a window.

    `gap` is a duration, or a function of the record that returns one (a dynamic gap).
    """

    is_merging: ClassVar[bool] = True
    gap: Duration | Callable[[Any], Duration]
    gap_ms: int | None = field(init=False, repr=False)
    """The gap; None if it depends on the record."""

    def __post_init__(self) -> None:
        _set(self, "gap_ms", None if callable(self.gap) else _positive(self, "gap", self.gap))

    @classmethod
    def with_gap(cls, gap: Duration) -> Self:
        """Sessions with one gap for all records."""
        return cls(gap)

    @classmethod
    def with_dynamic_gap(cls, gap: Callable[[Any], Duration]) -> Self:
        """Sessions in which each record sets the gap that follows it."""
        if not callable(gap):
            raise ProgramError(f"{cls.__name__}.with_dynamic_gap needs a function of the record, got {gap!r}")
        return cls(gap)

    @property
    def reads_element(self) -> bool:
        return self.gap_ms is None or super().reads_element

    @_by_time_alone
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        """The session of this record alone; the engine merges sessions that overlap or touch."""
        gap = self.gap_ms
        if gap is None:
            assert callable(self.gap)
            gap = _positive(self, "gap", self.gap(element))
        return (TimeWindow(timestamp_ms, timestamp_ms + gap),)

    def describe(self) -> str:
        return _words(self, "session", ["dynamic gap" if self.gap_ms is None else _ms(self.gap_ms)], 0, None)

    def identity(self) -> Identity:
        return class_identity(self), function_identity(self.gap) if self.gap_ms is None else self.gap_ms


class EventTimeSessionWindows(SessionWindows):
    """Sessions by the records' timestamps.

    >>> EventTimeSessionWindows.with_gap("30 s").assign_windows(None, 5_000)
    (TimeWindow(start_ms=5000, end_ms=35000),)
    """

    def column_cut(self) -> SessionGap | None:
        return None if self.gap_ms is None else SessionGap(self.gap_ms)


class ProcessingTimeSessionWindows(SessionWindows):
    """Sessions by the wall clock of the subtask."""

    is_event_time = False


# ---- global ----


@dataclass(frozen=True)
class GlobalWindows(WindowAssigner):
    """One window per key that never ends. It is computed only when its trigger fires, so set a trigger."""

    is_event_time: ClassVar[bool] = False
    is_global: ClassVar[bool] = True

    create = Constructor()

    @_by_time_alone
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        return (GLOBAL_WINDOW,)

    def default_trigger(self) -> Trigger:
        from tidegate.api.triggers import NeverTrigger

        return NeverTrigger()

    def describe(self) -> str:
        return "global"


# ---- checks ----


def check_count(what: str, count: object) -> None:
    """Refuse anything but a positive number of records."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ProgramError(f"{what} needs a number of records from 1 on, got {count!r}")


def _set(target: Any, name: str, value: Any) -> None:
    object.__setattr__(target, name, value)  # the dataclass is frozen


def _positive(assigner: Any, what: str, value: Any) -> int:
    try:
        ms = parse_duration_ms(value)
    except ValueError as e:
        raise ProgramError(f"{type(assigner).__name__}: {what}={value!r}: {e}") from None
    if ms <= 0:
        raise ProgramError(f"{type(assigner).__name__}: {what}={value!r} must be longer than 0")
    if ms > LONGEST_MS:
        raise ProgramError(f"{type(assigner).__name__}: {what}={value!r} is longer than 10,000 years")
    return ms


def _offset(assigner: Any, value: Any) -> int:
    negative = False
    if isinstance(value, str):
        text = value.strip()
        negative, magnitude = text.startswith("-"), text.removeprefix("-")
    else:
        magnitude = value
        if isinstance(value, timedelta):
            negative = value < timedelta(0)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            negative = value < 0
        magnitude = -value if negative else value
    try:
        ms = parse_duration_ms(magnitude)
    except ValueError as e:
        raise ProgramError(f"{type(assigner).__name__}: offset={value!r}: {e}") from None
    return -ms if negative else ms


def _check_divides_days(assigner: Any, what: str, value: Any, ms: int) -> None:
    if ms % DAY_MS and DAY_MS % ms:
        raise ProgramError(
            f"{type(assigner).__name__}: with a time_zone the {what} must be whole days or divide a day, got {value!r}"
            f". Use such a {what}, or leave the time_zone out"
        )


def _ms(ms: int) -> str:
    return format_duration_ms(ms)


def _words(assigner: WindowAssigner, kind: str, sizes: list[str], offset_ms: int, zone: str | None) -> str:
    words = f"{kind} {' / '.join(sizes)}"
    if offset_ms:
        words += f", offset {'-' if offset_ms < 0 else ''}{_ms(abs(offset_ms))}"
    if zone is not None:
        words += f", {zone}"
    return words if assigner.is_event_time else f"{words}, processing time"
