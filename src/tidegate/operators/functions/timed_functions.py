"""Process functions with timers: these operators keep timers, fire them in order, and store them in checkpoints.

Event-time timers fire when the watermark arrives, before it is passed on (S3-19). A timer that fires may register
others, which fire in the same pass if they are due. Only functions that define `on_timer` run here; all others run in
the plain operators, which have no timers.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, Final, Literal, NoReturn

from tidegate.api.functions import TimerService as UserTimers
from tidegate.api.functions import has_timers
from tidegate.core.errors import ProgramError
from tidegate.core.words import kind_of
from tidegate.operators.failures import OperatorError
from tidegate.operators.functions.broadcast_functions import BroadcastProcessOperator
from tidegate.operators.functions.co_functions import CoProcessOperator
from tidegate.operators.functions.no_timers import NoTimers
from tidegate.operators.functions.record_functions import ProcessOperator
from tidegate.operators.functions.row_operator import RowOperator, StatefulContext
from tidegate.operators.functions.stamped_results import MOST_ROWS, StampedResults
from tidegate.operators.operator import Operator
from tidegate.records.elements import MAX_WATERMARK
from tidegate.records.types import brief
from tidegate.state.backend import NO_KEY, KeyedStateBackend
from tidegate.state.timers import Timer, TimerService

TimeDomain = Literal["event", "processing"]

_RUNAWAY: Final = 1_000_000
_INT64: Final = 1 << 63


class TimedOperator(RowOperator):
    """Mixin that adds timers to an operator. Mailbox thread only."""

    backend: KeyedStateBackend

    def open(self) -> None:
        """Open the function, and restore the timers."""
        super().open()
        key = self.operation.state_key()
        self.backend = self.context.states.keyed(key.record_type)
        self._timers = TimerService(self.backend)
        self._service = KeyTimers(self, self._timers)
        self._on_timer = self.method("on_timer")
        self._pending = self.context.gauge("timers")
        self._pending.set(self._timers.pending)

    @property
    def timer_service(self) -> UserTimers:
        return self._service

    def leave_keys(self) -> None:
        """After the last record of a batch, and after the last timer of a pass."""
        super().leave_keys()
        self._pending.set(self._timers.pending)

    def on_event_time(self, watermark_ms: int) -> None:
        """Fire the event-time timers up to this time."""
        super().on_event_time(watermark_ms)
        due_ms = self._timers.next_event_time_ms
        if due_ms is not None and due_ms <= watermark_ms:
            self._fire(self._timers.due_event_time(watermark_ms), "event")

    @property
    def next_processing_time_ms(self) -> int | None:
        """When the first processing-time timer is due; one that was missed while the job was down is due at once."""
        return self._timers.next_processing_time_ms

    def on_processing_time(self, now_ms: int) -> None:
        """Fire the processing-time timers up to this time."""
        self._fire(self._timers.due_processing_time(now_ms), "processing")

    def snapshot(self, checkpoint_id: int) -> None:
        super().snapshot(checkpoint_id)
        self._timers.snapshot()

    def _fire(self, due: Iterable[Timer], domain: TimeDomain) -> None:
        """Call `on_timer` for each, and emit the results a few thousand records at a time."""
        backend, function = self.backend, self._on_timer
        context = TimerContext(self.side_outputs, backend, self._service, domain)
        fired = StampedResults(self, context, has_times=domain == "event")
        is_last = domain == "event" and self.clock_ms == MAX_WATERMARK
        most = max(_RUNAWAY, 100 * self._timers.pending)
        count = 0
        try:
            for context.timestamp, backend.current_key, _ in due:
                try:
                    fired.add(context.timestamp, function(context.timestamp, context))
                    count += 1
                    if is_last and count > most:
                        _refuse_runaway(count)
                except BaseException as e:
                    where = (
                        f"the {domain}-time timer for {context.timestamp} of key {brief(backend.current_key)}"
                    )
                    raise OperatorError(self.name, where) from e
                if fired.waiting >= MOST_ROWS:
                    fired.emit()
        finally:
            self.leave_keys()
        fired.emit()


def _refuse_runaway(count: int) -> NoReturn:
    raise ProgramError(
        f"{count:,} timers have fired since the input ended, and on_timer registers more. Register none when "
        f"context.timer_service.current_watermark is {MAX_WATERMARK} (2^63 - 1)"
    )


class TimerContext(StatefulContext):
    """The `OnTimerContext`; one for all timers that fire together."""

    __slots__ = ("_service", "time_domain", "timestamp")
    timestamp: int

    def __init__(
        self, tags: Iterable[str], backend: KeyedStateBackend, service: KeyTimers, domain: TimeDomain
    ) -> None:
        super().__init__(tags, backend)
        self._service = service
        self.time_domain = domain

    @property
    def timer_service(self) -> UserTimers:
        return self._service


class KeyTimers:
    """The timers of the current key, as a function sees them (`tidegate.TimerService`)."""

    def __init__(self, operator: TimedOperator, timers: TimerService) -> None:
        self._operator = operator
        self._backend = operator.backend
        self._timers = timers

    @property
    def current_watermark(self) -> int:
        return self._operator.clock_ms

    @property
    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Fire when the watermark has reached this time."""
        self._timers.register_event_time(self._key("register_event_time_timer", timestamp_ms), timestamp_ms)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        self._timers.delete_event_time(self._key("delete_event_time_timer", timestamp_ms), timestamp_ms)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Fire when the wall clock has reached this time."""
        key = self._key("register_processing_time_timer", timestamp_ms)
        self._timers.register_processing_time(key, timestamp_ms)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        key = self._key("delete_processing_time_timer", timestamp_ms)
        self._timers.delete_processing_time(key, timestamp_ms)

    def _key(self, call: str, timestamp_ms: int) -> Any:
        key = self._backend.current_key
        if key is NO_KEY:
            getattr(NoTimers(self._operator), call)(timestamp_ms)
        if timestamp_ms.__class__ is not int or not -_INT64 <= timestamp_ms < _INT64:
            raise ProgramError(
                f"{call}({timestamp_ms!r}): a time is a whole number of milliseconds (int, 64 bits), not "
                f"{kind_of(timestamp_ms)}. Use {_advice(timestamp_ms)}"
            )
        return key


def _advice(value: Any) -> str:
    try:
        index(value)
    except TypeError:
        return "int(...)"
    return "a time within 64 bits, as int"


class KeyedProcessOperator(TimedOperator, ProcessOperator):
    """A `KeyedProcessFunction` with `on_timer`."""


class KeyedCoProcessOperator(TimedOperator, CoProcessOperator):
    """A `KeyedCoProcessFunction` with `on_timer`."""


class KeyedBroadcastProcessOperator(TimedOperator, BroadcastProcessOperator):
    """A `KeyedBroadcastProcessFunction` with `on_timer`."""


_TIMED: Final[dict[type[Operator], type[Operator]]] = {
    ProcessOperator: KeyedProcessOperator,
    CoProcessOperator: KeyedCoProcessOperator,
    BroadcastProcessOperator: KeyedBroadcastProcessOperator,
}


def with_timers(operator: type[Operator], function: Any) -> type[Operator]:
    """The operator for a function: with timers if the function has any."""
    return _TIMED[operator] if operator in _TIMED and has_timers(function) else operator
