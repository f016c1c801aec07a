"""Evictors: which elements of a window are left out when it is computed.

With an evictor all elements are kept until the window is cleaned up: there is no incremental aggregation. An evicted
element is also missing in later firings of the window.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol

from tidegate.api.windows import Constructor, TimeWindow, check_count
from tidegate.core.durations import Duration, format_duration_ms, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity, class_identity
from tidegate.records.type_variables import AnyRecord, AnyRecordOut


class TimestampedValue(NamedTuple, Generic[AnyRecordOut]):
    """An element of a window with its timestamp; in processing time, the wall clock when it arrived."""

    value: AnyRecordOut
    timestamp_ms: int


class EvictorContext(Protocol):
    """The times that an evictor may ask for."""

    @property
    def current_watermark(self) -> int:
        """The operator's event time; -2^63 before the first watermark."""
        ...

    @property
    def current_processing_time(self) -> int:
        """The wall clock, in milliseconds since 1970 (UTC)."""
        ...


class Evictor(ABC, Generic[AnyRecord]):
    """Chooses the elements that stay. Derive from it and define one of the two methods.

    Both return the elements that stay, in their order.
    """

    def evict_before(
        self, elements: Sequence[TimestampedValue[AnyRecord]], window: TimeWindow, context: EvictorContext
    ) -> Sequence[TimestampedValue[AnyRecord]]:
        """Called before the window function, which gets the elements that stay."""
        return elements

    def evict_after(
        self, elements: Sequence[TimestampedValue[AnyRecord]], window: TimeWindow, context: EvictorContext
    ) -> Sequence[TimestampedValue[AnyRecord]]:
        """Called after the window function."""
        return elements

    def describe(self) -> str:
        """A few words for the plan."""
        return type(self).__name__

    def identity(self) -> Identity:
        """What it is, for ids of operators without a uid (see `core/identity.py`); not for display."""
        return (class_identity(self),)


class CountEvictor(Evictor[AnyRecord]):
    """Keeps the last `count` elements in order of arrival, also when sessions have merged."""

    def __init__(self, count: int, *, after: bool = False) -> None:
        check_count("CountEvictor", count)
        self.count = count
        self.after = after

    of = Constructor()

    def evict_before(
        self, elements: Sequence[TimestampedValue[AnyRecord]], window: TimeWindow, context: EvictorContext
    ) -> Sequence[TimestampedValue[AnyRecord]]:
        return elements if self.after else elements[-self.count :]

    def evict_after(
        self, elements: Sequence[TimestampedValue[AnyRecord]], window: TimeWindow, context: EvictorContext
    ) -> Sequence[TimestampedValue[AnyRecord]]:
        return elements[-self.count :] if self.after else elements

    def describe(self) -> str:
        return f"CountEvictor({self.count})"

    def identity(self) -> Identity:
        return class_identity(self), self.count, self.after


class TimeEvictor(Evictor[AnyRecord]):
    """Keeps the elements whose timestamp is later than the latest timestamp minus `duration`."""

    def __init__(self, duration: Duration, *, after: bool = False) -> None:
        try:
            self.duration_ms = parse_duration_ms(duration)
        except ValueError as e:
            raise ProgramError(f"TimeEvictor({duration!r}): {e}") from None
        if self.duration_ms <= 0:
            raise ProgramError(f"TimeEvictor({duration!r}): the time must be longer than 0")
        self.after = after

    of = Constructor()

    def evict_before(
        self, elements: Sequence[TimestampedValue[AnyRecord]], window: TimeWindow, context: EvictorContext
    ) -> Sequence[TimestampedValue[AnyRecord]]:
        return elements if self.after else self._latest(elements)

    def evict_after(
        self, elements: Sequence[TimestampedValue[AnyRecord]], window: TimeWindow, context: EvictorContext
    ) -> Sequence[TimestampedValue[AnyRecord]]:
        return self._latest(elements) if self.after else elements

    def _latest(
        self, elements: Sequence[TimestampedValue[AnyRecord]]
    ) -> Sequence[TimestampedValue[AnyRecord]]:
        if not elements:
            return elements
        cut_ms = max(e.timestamp_ms for e in elements) - self.duration_ms
        return [e for e in elements if e.timestamp_ms > cut_ms]

    def describe(self) -> str:
        return f"TimeEvictor({format_duration_ms(self.duration_ms)})"

    def identity(self) -> Identity:
        return class_identity(self), self.duration_ms, self.after
