"""The contexts of triggers, evictors and window functions: one of each per operator, which sets the window."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

from tidegate.api.functions import OutputTag
from tidegate.api.windows import GLOBAL_WINDOW, TimeWindow
from tidegate.core.errors import ProgramError
from tidegate.core.words import kind_of
from tidegate.operators.functions.row_operator import SideOutputs
from tidegate.operators.operator import Operator
from tidegate.operators.window.window_state import RememberedByKey, RememberedByWindow
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.timers import TimerService

_INT64: Final = 1 << 63


class TimeContext:
    """The times of the operator: the `EvictorContext`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    @property
    def current_watermark(self) -> int:
        return self._operator.clock_ms

    @property
    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()


class LiveTriggerContext(TimeContext):
    """The `TriggerContext` and `OnMergeContext`."""

    window: TimeWindow = GLOBAL_WINDOW

    def __init__(
        self,
        operator: Operator,
        backend: KeyedStateBackend,
        timers: TimerService,
        remembered: RememberedByWindow | None,
    ) -> None:
        super().__init__(operator)
        self._backend = backend
        self._timers = timers
        self._remembered = remembered
        self.merged_states: Sequence[MutableMapping[str, Any]] = ()

    @property
    def state(self) -> MutableMapping[str, Any]:
        """What the trigger remembers of this key and window."""
        assert self._remembered is not None
        return self._remembered.of(self.window)

    def register_event_time_timer(self, time_ms: int) -> None:
        self._timers.register_event_time(self._backend.current_key, _checked(time_ms), self.window)

    def register_processing_time_timer(self, time_ms: int) -> None:
        self._timers.register_processing_time(self._backend.current_key, _checked(time_ms), self.window)

    def delete_event_time_timer(self, time_ms: int) -> None:
        self._timers.delete_event_time(self._backend.current_key, time_ms, self.window)

    def delete_processing_time_timer(self, time_ms: int) -> None:
        self._timers.delete_processing_time(self._backend.current_key, time_ms, self.window)


class LiveWindowContext(TimeContext):
    """The `WindowContext` of a `ProcessWindowFunction`."""

    window: TimeWindow = GLOBAL_WINDOW

    def __init__(
        self,
        operator: Operator,
        by_window: RememberedByWindow | None,
        by_key: RememberedByKey,
        side_outputs: SideOutputs,
    ) -> None:
        super().__init__(operator)
        self._by_window = by_window
        self._by_key = by_key
        self._put: Callable[[OutputTag[Any], Any], None] = side_outputs.output
        self.is_clearing = False

    @property
    def window_state(self) -> MutableMapping[str, Any]:
        """What the function remembers of this key and window."""
        if self._by_window is None:
            raise ProgramError(
                "context.window_state: windows that merge have no state of their own. Use context.global_state, which "
                "is that of the key"
            )
        return self._by_window.of(self.window)

    @property
    def global_state(self) -> MutableMapping[str, Any]:
        """What the function remembers of this key."""
        return self._by_key.of_key()

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if self.is_clearing:
            raise ProgramError("context.output: a window that is cleared can emit nothing. Emit in process")
        self._put(tag, value)


def _checked(time_ms: int) -> int:
    if time_ms.__class__ is not int:
        raise ProgramError(
            f"a timer's time is a whole number of milliseconds (int), got {kind_of(time_ms)}: {time_ms!r}"
        )
    if not -_INT64 <= time_ms < _INT64:
        raise ProgramError(
            f"a window would end at {time_ms}, which does not fit into 64 bits. Look at the record's timestamp: it is "
            f"in milliseconds since 1970"
        )
    return time_ms
