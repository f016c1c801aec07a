"""Triggers: when a window is computed, how often, and whether its contents are forgotten then.

A trigger belongs to no window: one object serves all keys and windows of a subtask, so what it must remember goes into
`context.state`, which is that of the key and the window, or into timers. It is called on the mailbox thread, and sent
to every slot by pickling. Event-time triggers fire again for each late record within the allowed lateness.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, Protocol, Self

from tidegate.api.windows import TimeWindow, check_count, not_inherited
from tidegate.core.durations import Duration, format_duration_ms, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity, class_identity
from tidegate.records.type_variables import AnyRecordIn


class TriggerResult(Enum):
    """What happens to the window now."""

    CONTINUE = (False, False)
    """Nothing."""
    FIRE = (True, False)
    """Compute and emit it; keep its contents."""
    PURGE = (False, True)
    """Forget its contents; emit nothing."""
    FIRE_AND_PURGE = (True, True)
    """Compute and emit it, then forget its contents."""

    @property
    def is_fire(self) -> bool:
        """Whether the window is computed."""
        return self.value[0]

    @property
    def is_purge(self) -> bool:
        """Whether its contents are forgotten."""
        return self.value[1]


class TriggerContext(Protocol):
    """What a trigger may do; it is about one key and one window."""

    @property
    def current_watermark(self) -> int:
        """The operator's event time; -2^63 before the first watermark."""
        ...

    @property
    def current_processing_time(self) -> int:
        """The wall clock."""
        ...

    @property
    def state(self) -> MutableMapping[str, Any]:
        """What the trigger remembers of the window: names to numbers, texts, bytes, None, and lists and dicts of these.

        It is in checkpoints, and gone when the window is cleaned up. A tuple comes back as a list.
        """
        ...

    def register_event_time_timer(self, time_ms: int) -> None:
        """Have `on_event_time` called when the watermark reaches this; twice the same is once."""
        ...

    def register_processing_time_timer(self, time_ms: int) -> None:
        """Have `on_processing_time` called when the wall clock reaches this; twice the same is once."""
        ...

    def delete_event_time_timer(self, time_ms: int) -> None:
        """Forget such a timer; one that does not exist is no error."""
        ...

    def delete_processing_time_timer(self, time_ms: int) -> None:
        """Forget such a timer; one that does not exist is no error."""
        ...


class OnMergeContext(TriggerContext, Protocol):
    """What a trigger may do when windows became one; `state` is that of the new window, empty at first."""

    @property
    def merged_states(self) -> Sequence[MutableMapping[str, Any]]:
        """The states of the windows that are gone; some may be empty."""
        ...


class Trigger(ABC, Generic[AnyRecordIn]):
    """Decides when windows fire. The two facts are not inherited: a subclass states them for itself."""

    waits_for_end: ClassVar[Literal["event time", "processing time"] | None] = None
    """The time at whose passing a window's end it fires, and for late records, and never else; None: as it likes."""
    keeps_state: ClassVar[bool] = True
    """Whether it uses `context.state`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        not_inherited(cls, Trigger, "waits_for_end", "keeps_state")

    @abstractmethod
    def on_element(
        self, element: AnyRecordIn, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """A record came into the window. Without event time `timestamp_ms` is the wall clock's."""

    @abstractmethod
    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """An event-time timer of the window fired (also the engine's own, which cleans the window up)."""

    @abstractmethod
    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """A processing-time timer of the window fired."""

    def can_merge(self) -> bool:
        """Whether it works with session windows; then `on_merge` must be defined."""
        return False

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Windows became `window`: put what was remembered of them together, and register its timers."""
        raise ProgramError(
            f"{type(self).__name__} cannot follow windows that merge. Define can_merge and on_merge, or use windows "
            f"that do not merge"
        )

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        """The window is over: delete its timers. `context.state` is cleared by the engine."""

    def describe(self) -> str:
        """A few words for the plan."""
        return type(self).__name__

    def identity(self) -> Identity:
        """What it is, for ids of operators without a uid (see `core/identity.py`); not for display."""
        return (class_identity(self),)


class EventTimeTrigger(Trigger[object]):
    """Fires when the watermark passes the end of the window, and for each late record behind that.

    The trigger of event-time windows that name none. `TumblingEventTimeWindows` and the others use it.
    """

    waits_for_end = "event time"
    keeps_state = False

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """Wait for the end; at once if it has passed."""
        if window.max_timestamp_ms <= context.current_watermark:
            return TriggerResult.FIRE
        context.register_event_time_timer(window.max_timestamp_ms)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Fire at the end."""
        return TriggerResult.FIRE if time_ms == window.max_timestamp_ms else TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Nothing: it has no such timers."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Yes."""
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Wait for the new end; if that has passed, the record that made the windows merge fires it."""
        if window.max_timestamp_ms > context.current_watermark:
            context.register_event_time_timer(window.max_timestamp_ms)

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        """Forget the end."""
        context.delete_event_time_timer(window.max_timestamp_ms)


class ProcessingTimeTrigger(Trigger[object]):
    """Fires when the wall clock passes the end of the window; the trigger of processing-time windows."""

    waits_for_end = "processing time"
    keeps_state = False

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """Wait for the end."""
        context.register_processing_time_timer(window.max_timestamp_ms)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Nothing: it has no such timers."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Fire."""
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        """Yes."""
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Wait for the new end."""
        if window.max_timestamp_ms > context.current_processing_time:
            context.register_processing_time_timer(window.max_timestamp_ms)

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        """Forget the end."""
        context.delete_processing_time_timer(window.max_timestamp_ms)


class NeverTrigger(Trigger[object]):
    """Never fires; the trigger of `GlobalWindows`."""

    keeps_state = False

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Yes: there is nothing to remember."""
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Nothing."""


class CountTrigger(Trigger[object]):
    """Fires whenever `count` records have come since the last time."""

    def __init__(self, count: int) -> None:
        check_count("CountTrigger", count)
        self.count = count

    @classmethod
    def of(cls, count: int) -> Self:
        """The same as the constructor, as Flink writes it."""
        return cls(count)

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """Count."""
        seen = context.state.get("count", 0) + 1
        if seen >= self.count:
            context.state.pop("count", None)
            return TriggerResult.FIRE
        context.state["count"] = seen
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Yes."""
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Add the counts; if that is enough, the next record fires."""
        count = sum(s.get("count", 0) for s in context.merged_states)
        if count:
            context.state["count"] = count

    def describe(self) -> str:
        """The kind and the count."""
        return f"CountTrigger({self.count})"

    def identity(self) -> Identity:
        """The count."""
        return class_identity(self), self.count


class PurgingTrigger(Trigger[AnyRecordIn]):
    """Does what another trigger does, but forgets the contents of a window whenever that one fires."""

    def __init__(self, trigger: Trigger[AnyRecordIn]) -> None:
        if not isinstance(trigger, Trigger):
            raise ProgramError(f"PurgingTrigger needs a Trigger (an instance), got {trigger!r}")
        self.trigger = trigger

    @classmethod
    def of(cls, trigger: Trigger[AnyRecordIn]) -> Self:
        """The same as the constructor, as Flink writes it."""
        return cls(trigger)

    def on_element(
        self, element: AnyRecordIn, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """As the other."""
        return _purging(self.trigger.on_element(element, timestamp_ms, window, context))

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """As the other."""
        return _purging(self.trigger.on_event_time(time_ms, window, context))

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """As the other."""
        return _purging(self.trigger.on_processing_time(time_ms, window, context))

    def can_merge(self) -> bool:
        """As the other."""
        return self.trigger.can_merge()

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """As the other."""
        self.trigger.on_merge(window, context)

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        """As the other."""
        self.trigger.clear(window, context)

    def describe(self) -> str:
        """The other's words."""
        return f"PurgingTrigger({self.trigger.describe()})"

    def identity(self) -> Identity:
        """The other's."""
        return class_identity(self), self.trigger.identity()


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire else result


class _ContinuousTrigger(Trigger[object]):
    """What the continuous triggers share: early firings at every multiple of an interval while there are records."""

    def __init__(self, interval: Duration) -> None:
        name = type(self).__name__
        try:
            self.interval_ms = parse_duration_ms(interval)
        except ValueError as e:
            raise ProgramError(f"{name}({interval!r}): {e}") from None
        if self.interval_ms <= 0:
            raise ProgramError(f"{name}({interval!r}): the interval must be longer than 0")

    @classmethod
    def of(cls, interval: Duration) -> Self:
        """The same as the constructor, as Flink writes it."""
        return cls(interval)

    def can_merge(self) -> bool:
        """Yes."""
        return True

    def _next_ms(self, time_ms: int, window: TimeWindow) -> int:
        return min(time_ms - time_ms % self.interval_ms + self.interval_ms, window.max_timestamp_ms)

    def describe(self) -> str:
        """The kind and the interval."""
        return f"{type(self).__name__}({format_duration_ms(self.interval_ms)})"

    def identity(self) -> Identity:
        """The interval."""
        return class_identity(self), self.interval_ms


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires at the end of the window, and before that whenever event time passes a multiple of the interval."""

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """Wait for the next multiple behind the record, and for the end."""
        if window.max_timestamp_ms <= context.current_watermark:
            return TriggerResult.FIRE
        context.register_event_time_timer(window.max_timestamp_ms)
        if "next" not in context.state:
            self._schedule(max(timestamp_ms, context.current_watermark), window, context)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Fire at the end and at the multiples; then wait for the next one."""
        if time_ms == window.max_timestamp_ms:
            return TriggerResult.FIRE
        if context.state.get("next") != time_ms:
            return TriggerResult.CONTINUE
        self._schedule(max(time_ms, context.current_watermark), window, context)
        return TriggerResult.FIRE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Go on with the earliest of their times."""
        if window.max_timestamp_ms > context.current_watermark:
            context.register_event_time_timer(window.max_timestamp_ms)
        times = [s["next"] for s in context.merged_states if "next" in s]
        if times:
            context.state["next"] = min(times)
            context.register_event_time_timer(min(times))

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        """Forget both."""
        context.delete_event_time_timer(window.max_timestamp_ms)
        if "next" in context.state:
            context.delete_event_time_timer(context.state["next"])

    def _schedule(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> None:
        context.state["next"] = due_ms = self._next_ms(time_ms, window)
        context.register_event_time_timer(due_ms)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires whenever the wall clock passes a multiple of the interval, while the window has records.

    With event-time windows it gives early results, and a last one when the window is over, behind the allowed lateness.
    """

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """Wait for the next multiple."""
        if "next" not in context.state:
            self._schedule(context.current_processing_time, context)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Fire before an event-time window is cleaned up."""
        return TriggerResult.FIRE if time_ms >= window.max_timestamp_ms else TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Fire, and wait for the next multiple."""
        if time_ms == window.max_timestamp_ms:
            return TriggerResult.FIRE
        if context.state.get("next") != time_ms:
            return TriggerResult.CONTINUE
        self._schedule(max(time_ms, context.current_processing_time), context)
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Go on with the earliest of their times."""
        times = [s["next"] for s in context.merged_states if "next" in s]
        if times:
            context.state["next"] = min(times)
            context.register_processing_time_timer(min(times))

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        """Forget the next time."""
        if "next" in context.state:
            context.delete_processing_time_timer(context.state["next"])

    def _schedule(self, time_ms: int, context: TriggerContext) -> None:
        due_ms = time_ms - time_ms % self.interval_ms + self.interval_ms
        context.state["next"] = due_ms
        context.register_processing_time_timer(due_ms)
