"""Triggers: when a window is computed, how often, and whether its contents are deleted then.

One trigger object serves all keys and windows of a subtask. What it must remember goes into `context.state`, which
belongs to the key and the window, or into timers. The mailbox thread calls it; it is pickled and sent to every slot.
Event-time triggers fire again for each late record within the allowed lateness.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, Protocol

from tidegate.api.windows import Constructor, TimeWindow, check_count, not_inherited
from tidegate.core.durations import Duration, format_duration_ms, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity, class_identity
from tidegate.records.type_variables import AnyRecordIn


class TriggerResult(Enum):
    """What happens to the window now."""

    CONTINUE = (False, False)
    """Nothing."""
    FIRE = (True, False)
    """Compute and emit the window; keep its contents."""
    PURGE = (False, True)
    """Delete the contents; emit nothing."""
    FIRE_AND_PURGE = (True, True)
    """Compute and emit the window, then delete its contents."""

    @property
    def is_fire(self) -> bool:
        return self.value[0]

    @property
    def is_purge(self) -> bool:
        return self.value[1]


class TriggerContext(Protocol):
    """What a trigger may do. It belongs to one key and one window."""

    @property
    def current_watermark(self) -> int:
        """The operator's event time; -2^63 before the first watermark."""
        ...

    @property
    def current_processing_time(self) -> int:
        """The wall clock, in milliseconds since 1970 (UTC)."""
        ...

    @property
    def state(self) -> MutableMapping[str, Any]:
        """What the trigger remembers of the window: names to numbers, texts, bytes, None, and lists and dicts of these.

        It is part of checkpoints, and is deleted when the window is cleaned up. A tuple comes back as a list.
        """
        ...

    def register_event_time_timer(self, time_ms: int) -> None:
        """Have `on_event_time` called when the watermark reaches this time; repeating it changes nothing."""
        ...

    def register_processing_time_timer(self, time_ms: int) -> None:
        """Have `on_processing_time` called when the wall clock reaches this time; repeating it changes nothing."""
        ...

    def delete_event_time_timer(self, time_ms: int) -> None:
        """Delete the timer for this time, if there is one."""
        ...

    def delete_processing_time_timer(self, time_ms: int) -> None:
        """Delete the timer for this time, if there is one."""
        ...


class OnMergeContext(TriggerContext, Protocol):
    """What a trigger may do when windows have merged; `state` is that of the new window, empty at first."""

    @property
    def merged_states(self) -> Sequence[MutableMapping[str, Any]]:
        """The states of the windows that have merged; some may be empty."""
        ...


class Trigger(ABC, Generic[AnyRecordIn]):
    """Decides when windows fire. `waits_for_end` and `keeps_state` are not inherited: each subclass states its own."""

    waits_for_end: ClassVar[Literal["event time", "processing time"] | None] = None
    """If it fires only when this time passes the end of a window, and for late records: this time; else None."""
    keeps_state: ClassVar[bool] = True
    """Whether it uses `context.state`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        not_inherited(cls, Trigger, "waits_for_end", "keeps_state")

    @abstractmethod
    def on_element(
        self, element: AnyRecordIn, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        """Called for each record of the window. Without event time, `timestamp_ms` is the wall clock."""

    @abstractmethod
    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Called when an event-time timer of the window fires (also the engine's own, which cleans the window up)."""

    @abstractmethod
    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Called when a processing-time timer of the window fires."""

    def can_merge(self) -> bool:
        """Whether it works with session windows; then `on_merge` must be defined."""
        return False

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Called when windows have merged into `window`: merge their states, and register the new timers."""
        raise ProgramError(
            f"{type(self).__name__} cannot follow windows that merge. Define can_merge and on_merge, or use windows "
            f"that do not merge"
        )

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        """Called when the window is cleaned up: delete its timers. The engine clears `context.state`."""

    def describe(self) -> str:
        """A few words for the plan."""
        return type(self).__name__

    def identity(self) -> Identity:
        """What it is, for ids of operators without a uid (see `core/identity.py`); not for display."""
        return (class_identity(self),)


class _BuiltInTrigger(Trigger[object]):
    """A trigger that does nothing at a time of which it has no timer."""

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE


class EventTimeTrigger(_BuiltInTrigger):
    """Fires when the watermark passes the end of the window, and then for each late record.

    It is the default trigger of event-time windows.
    """

    waits_for_end = "event time"
    keeps_state = False

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        if window.max_timestamp_ms <= context.current_watermark:
            return TriggerResult.FIRE
        context.register_event_time_timer(window.max_timestamp_ms)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time_ms == window.max_timestamp_ms else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Wait for the new end. If that has passed, the record that made the windows merge fires it."""
        if window.max_timestamp_ms > context.current_watermark:
            context.register_event_time_timer(window.max_timestamp_ms)

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.max_timestamp_ms)


class ProcessingTimeTrigger(_BuiltInTrigger):
    """Fires when the wall clock passes the end of the window; the default of processing-time windows."""

    waits_for_end = "processing time"
    keeps_state = False

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        context.register_processing_time_timer(window.max_timestamp_ms)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        if window.max_timestamp_ms > context.current_processing_time:
            context.register_processing_time_timer(window.max_timestamp_ms)

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        context.delete_processing_time_timer(window.max_timestamp_ms)


class NeverTrigger(_BuiltInTrigger):
    """Never fires; the default trigger of `GlobalWindows`."""

    keeps_state = False

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Nothing."""


class CountTrigger(_BuiltInTrigger):
    """Fires whenever `count` records have arrived since it last fired."""

    def __init__(self, count: int) -> None:
        check_count("CountTrigger", count)
        self.count = count

    of = Constructor()

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        seen = context.state.get("count", 0) + 1
        if seen >= self.count:
            context.state.pop("count", None)
            return TriggerResult.FIRE
        context.state["count"] = seen
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Add the counts; if that reaches `count`, the next record fires."""
        count = sum(s.get("count", 0) for s in context.merged_states)
        if count:
            context.state["count"] = count

    def describe(self) -> str:
        return f"CountTrigger({self.count})"

    def identity(self) -> Identity:
        return class_identity(self), self.count


class PurgingTrigger(Trigger[AnyRecordIn]):
    """Does what another trigger does, and deletes the contents of a window whenever it fires."""

    def __init__(self, trigger: Trigger[AnyRecordIn]) -> None:
        if not isinstance(trigger, Trigger):
            raise ProgramError(f"PurgingTrigger needs a Trigger (an instance), got {trigger!r}")
        self.trigger = trigger

    of = Constructor()

    def on_element(
        self, element: AnyRecordIn, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        return _purging(self.trigger.on_element(element, timestamp_ms, window, context))

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return _purging(self.trigger.on_event_time(time_ms, window, context))

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return _purging(self.trigger.on_processing_time(time_ms, window, context))

    def can_merge(self) -> bool:
        return self.trigger.can_merge()

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        self.trigger.on_merge(window, context)

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        self.trigger.clear(window, context)

    def describe(self) -> str:
        return f"PurgingTrigger({self.trigger.describe()})"

    def identity(self) -> Identity:
        return class_identity(self), self.trigger.identity()


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire else result


class _ContinuousTrigger(_BuiltInTrigger):
    """The common part of the continuous triggers: firings at the multiples of an interval while there are records."""

    def __init__(self, interval: Duration) -> None:
        name = type(self).__name__
        try:
            self.interval_ms = parse_duration_ms(interval)
        except ValueError as e:
            raise ProgramError(f"{name}({interval!r}): {e}") from None
        if self.interval_ms <= 0:
            raise ProgramError(f"{name}({interval!r}): the interval must be longer than 0")

    of = Constructor()

    def can_merge(self) -> bool:
        return True

    def _next_ms(self, time_ms: int, window: TimeWindow) -> int:
        return min(time_ms - time_ms % self.interval_ms + self.interval_ms, window.max_timestamp_ms)

    def describe(self) -> str:
        return f"{type(self).__name__}({format_duration_ms(self.interval_ms)})"

    def identity(self) -> Identity:
        return class_identity(self), self.interval_ms


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires at the end of the window, and before that whenever event time passes a multiple of the interval."""

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        if window.max_timestamp_ms <= context.current_watermark:
            return TriggerResult.FIRE
        context.register_event_time_timer(window.max_timestamp_ms)
        if "next" not in context.state:
            self._schedule(max(timestamp_ms, context.current_watermark), window, context)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        if time_ms == window.max_timestamp_ms:
            return TriggerResult.FIRE
        if context.state.get("next") != time_ms:
            return TriggerResult.CONTINUE
        self._schedule(max(time_ms, context.current_watermark), window, context)
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Continue with the earliest of the merged times."""
        if window.max_timestamp_ms > context.current_watermark:
            context.register_event_time_timer(window.max_timestamp_ms)
        times = [s["next"] for s in context.merged_states if "next" in s]
        if times:
            context.state["next"] = min(times)
            context.register_event_time_timer(min(times))

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.max_timestamp_ms)
        if "next" in context.state:
            context.delete_event_time_timer(context.state["next"])

    def _schedule(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> None:
        context.state["next"] = due_ms = self._next_ms(time_ms, window)
        context.register_event_time_timer(due_ms)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires whenever the wall clock passes a multiple of the interval, while the window has records.

    With event-time windows it emits early results, and a last one when the window is cleaned up, after the allowed
    lateness.
    """

    def on_element(
        self, element: object, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        if "next" not in context.state:
            self._schedule(context.current_processing_time, context)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """Fire before an event-time window is cleaned up."""
        return TriggerResult.FIRE if time_ms >= window.max_timestamp_ms else TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        if time_ms == window.max_timestamp_ms:
            return TriggerResult.FIRE
        if context.state.get("next") != time_ms:
            return TriggerResult.CONTINUE
        self._schedule(max(time_ms, context.current_processing_time), context)
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, context: OnMergeContext) -> None:
        """Continue with the earliest of the merged times."""
        times = [s["next"] for s in context.merged_states if "next" in s]
        if times:
            context.state["next"] = min(times)
            context.register_processing_time_timer(min(times))

    def clear(self, window: TimeWindow, context: TriggerContext) -> None:
        if "next" in context.state:
            context.delete_processing_time_timer(context.state["next"])

    def _schedule(self, time_ms: int, context: TriggerContext) -> None:
        due_ms = time_ms - time_ms % self.interval_ms + self.interval_ms
        context.state["next"] = due_ms
        context.register_processing_time_timer(due_ms)
