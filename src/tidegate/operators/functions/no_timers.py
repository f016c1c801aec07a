"""The `TimerService` of functions without timers: it knows the time, and refuses timers with advice how to get them."""

from __future__ import annotations

from typing import NoReturn

from tidegate.api.functions import TimedFunction, function_name, has_timers
from tidegate.core.errors import ProgramError
from tidegate.operators.operator import Operator


class NoTimers:
    """Made when a function asks for its timer service. Mailbox thread only."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    @property
    def current_watermark(self) -> int:
        return self._operator.clock_ms

    @property
    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        self._refuse("register_event_time_timer", timestamp_ms)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        self._refuse("delete_event_time_timer", timestamp_ms)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        self._refuse("register_processing_time_timer", timestamp_ms)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        self._refuse("delete_processing_time_timer", timestamp_ms)

    def _refuse(self, call: str, timestamp_ms: int) -> NoReturn:
        operator = self._operator
        function = operator.operation.function
        name = function_name(function)
        if operator.operation.state_key() is None:
            reason = "the stream has no keys, and a timer belongs to a key"
            advice = "Call key_by, and derive the function from KeyedProcessFunction"
        elif not isinstance(function, TimedFunction):
            reason = f"{name} has no timers"
            advice = "Derive it from KeyedProcessFunction (KeyedCoProcessFunction for two streams)"
        elif not has_timers(function):
            reason = f"{name} has no on_timer method that it would call"
            advice = "Define on_timer(timestamp, context)"
        else:
            reason = "a broadcast record has no key, and a timer belongs to a key"
            advice = "Register timers in process"
        raise ProgramError(
            f"operator {operator.context.operator_name!r}: {call}({timestamp_ms}): {reason}. {advice}"
        )
