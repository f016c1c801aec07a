"""`WindowOperator`: windows record by record, for everything that the user can plug in.

A record is added to its windows, and the trigger is called; timers call it again and clean up windows. An event-time
window is cleaned up when the watermark has passed its end and the allowed lateness, a processing-time window at its
end. The logic is that of Flink's operator of the same name, with two differences:

- at the end of input, processing-time windows that are still open are computed (Flink drops them);
- a result of `GlobalWindows` has the timestamp of the record or timer that fired it, not the end of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from tidegate.api.functions import Function
from tidegate.api.triggers import TriggerResult
from tidegate.api.windows import GLOBAL_WINDOW, TimeWindow, WindowAssigner
from tidegate.core.errors import ProgramError
from tidegate.operators.event_time.late_records import LateRecords
from tidegate.operators.failures import OperatorError, close_blamed
from tidegate.operators.functions.row_operator import RowOperator
from tidegate.operators.window.computation import AggregateComputation, WindowComputation
from tidegate.operators.window.contexts import LiveTriggerContext
from tidegate.operators.window.merging_windows import MergingWindowSet
from tidegate.operators.window.results import MOST_ROWS, result_time
from tidegate.operators.window.window_state import RememberedByWindow
from tidegate.program.window_operations import WindowOperation
from tidegate.records.batch import Batch
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP
from tidegate.records.types import brief
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.timers import Timer, TimerService

TRIGGER_STATE: Final = "$trigger"


class WindowOperator(RowOperator):
    """Performs `ApplyWindow`."""

    operation: Any
    backend: KeyedStateBackend
    _second: Function | None = None

    # ---- life cycle ----

    def open(self) -> None:
        """Open the functions, and find the state: empty, or as a checkpoint has it."""
        super().open()
        operation: WindowOperation = self.operation
        context = self.context
        key = operation.state_key()
        assert key is not None
        unstorable = operation.unstorable(self.input_types)
        if unstorable and (context.options.checkpoint_interval or context.options.resume):
            raise ProgramError(f"operator {self.name!r} {unstorable}")
        self.backend = context.states.keyed(key.record_type)
        self._open_second_function()
        self._assigner, self._trigger = operation.assigner, operation.effective_trigger
        self._is_event_time = self._assigner.is_event_time
        self._is_users_assigner = not type(self._assigner).__module__.startswith("tidegate.")
        own_time = "event time" if self._is_event_time else "processing time"
        self._waits_for_end = self._trigger.waits_for_end == own_time
        self._lateness_ms = operation.allowed_lateness_ms
        self._timers = TimerService(self.backend)
        self._trigger_state: RememberedByWindow | None = None
        if self._trigger.keeps_state:
            self._trigger_state = RememberedByWindow(self.backend, TRIGGER_STATE, self.name)
        self._trigger_context = LiveTriggerContext(self, self.backend, self._timers, self._trigger_state)
        self._sessions = MergingWindowSet(self.backend) if self._assigner.is_merging else None
        self._computation = self._make_computation()
        self._highest_ms: int | None = None
        self._late = LateRecords(self)
        self._gauges = context.gauge("windows"), context.gauge("timers")
        self._show()

    def _make_computation(self) -> WindowComputation:
        return WindowComputation(self, self.operation, self.backend)

    def _open_second_function(self) -> None:
        """Open the reduce function, if the one that `RowOperator` opened is the process function after it."""
        for function in self.operation.functions[:-1]:
            if isinstance(function, Function):
                self.give_states(function)
                self._second = function
                self.open_function(function)

    def user_function(self) -> Any:
        """The last function: the process function, or else the reduce or aggregate function."""
        functions = self.operation.functions
        return functions[-1] if functions else None

    def close(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            close_blamed(self.name, second.close, clean=self._finished)
        super().close()

    def snapshot(self, checkpoint_id: int) -> None:
        """Store the timers; everything else is stored after each batch."""
        super().snapshot(checkpoint_id)
        self._timers.snapshot()

    # ---- records ----

    def process(self, batch: Batch, input_index: int) -> None:
        """Add each record to its windows, in order; then emit what fired, and what was late."""
        if self._is_event_time and (batch.timestamps is None or batch.timestamps.null_count):
            some = "" if batch.timestamps is None else " for some records (as of processing-time timers)"
            raise ProgramError(
                f"operator {self.name!r} needs event time, but its input has no timestamps{some}. Give the source a "
                f"WatermarkStrategy, or call assign_timestamps_and_watermarks before it"
            )
        key, now_ms = self.operation.key, self.context.clock.now_ms()
        own: Sequence[int | None] = [None] * batch.num_rows
        stamps: Sequence[int] = [now_ms] * batch.num_rows
        if batch.timestamps is not None:
            own = batch.timestamps.to_pylist()
            stamps = [now_ms if t is None else t for t in own]
            known = [t for t in (self._highest_ms, pc.max(batch.timestamps).as_py()) if t is not None]
            self._highest_ms = max(known, default=None)
        times: Iterable[int] = stamps if self._is_event_time else repeat(now_ms, batch.num_rows)
        rows = self.rows(batch)
        values = self._computation.values(batch)
        keys: Iterable[Any] = repeat(0, batch.num_rows) if key is None else self.keys(batch, key)
        records = iter(rows)
        late: list[bool] = []
        backend, add = self.backend, self._add
        try:
            for r, backend.current_key, value, stamp_ms, time_ms, own_ms in zip(
                records, keys, values, stamps, times, own, strict=True
            ):
                late.append(add(r, value, stamp_ms, time_ms, own_ms))
        except BaseException as e:
            self.check_states()
            raise self.failure(batch, rows, records) from e
        self._flush()
        if any(late):
            self._late.leave_out(batch, np.array(late), self._late_tag)

    def _add(self, record: Any, value: Any, stamp_ms: int, time_ms: int, own_ms: int | None) -> bool:
        """Add a record to its windows; returns whether it is too late for all of them."""
        sessions, context = self._sessions, self._trigger_context
        skipped = taken = False
        for window in self._assigner.assign_windows(record, time_ms):
            if self._is_users_assigner:
                check_window(window, self._assigner)
            if sessions is not None:
                window = sessions.add(window, self._merged)
            if self._is_event_time and self._cleanup_ms(window) <= self.clock_ms:
                skipped = True
                if sessions is not None:
                    sessions.retire(window)
                continue
            taken = True
            place = self._place_of(window)
            assert place is not None
            is_new = self._computation.add(place, value, stamp_ms)
            if not is_new and self._waits_for_end and window.max_timestamp_ms > self.clock_ms:
                continue  # the trigger would return CONTINUE; its timer is as old as the window
            context.window = window
            result = self._trigger.on_element(record, stamp_ms, window, context)
            if result is not TriggerResult.CONTINUE:
                self._act(result, window, place, own_ms)
            if is_new:
                self._register_cleanup(window)
        return skipped and not taken

    def _merged(
        self,
        window: TimeWindow,
        replaced: Sequence[TimeWindow],
        place: TimeWindow,
        others: Sequence[TimeWindow],
    ) -> None:
        """Several sessions have become one."""
        context, remembered = self._trigger_context, self._trigger_state
        context.merged_states = [] if remembered is None else [dict(remembered.of(w)) for w in replaced]
        context.window = window
        self._trigger.on_merge(window, context)
        for old in replaced:
            context.window = old
            self._trigger.clear(old, context)
            if remembered is not None:
                remembered.remove(old)
            self._delete_cleanup(old)
        self._computation.contents.merge(place, others)
        self._register_cleanup(window)

    @property
    def _late_tag(self) -> str | None:
        """The side output for late records of the current batch."""
        return self.operation.late_tag

    # ---- time ----

    def on_event_time(self, watermark_ms: int) -> None:
        """Call the trigger of every window that has a timer up to this time."""
        super().on_event_time(watermark_ms)
        due_ms = self._timers.next_event_time_ms
        if due_ms is not None and due_ms <= watermark_ms:
            self._fire_timers(self._timers.due_event_time(watermark_ms), is_event=True)
        if watermark_ms == MAX_WATERMARK:  # before it is passed on: records after it would be late
            self._compute_open()

    @property
    def next_processing_time_ms(self) -> int | None:
        """When the first processing-time timer is due."""
        return self._timers.next_processing_time_ms

    def on_processing_time(self, now_ms: int) -> None:
        """Call the trigger of every window that has a timer up to this time."""
        self._fire_timers(self._timers.due_processing_time(now_ms), is_event=False)

    def _compute_open(self) -> None:
        """Compute the processing-time windows that are open: their end will never come."""
        if self._is_event_time or self._assigner.is_global:
            return
        due: list[Timer] = []
        contents = self._computation.contents
        for key in contents.all_keys():
            self.backend.current_key = key
            windows = contents.windows() if self._sessions is None else self._sessions.windows()
            due += [(w.max_timestamp_ms, key, w) for w in windows]
        due.sort(key=lambda timer: timer[0])
        self._fire_timers(due, is_event=False)

    def _fire_timers(self, due: Iterable[Timer], *, is_event: bool) -> None:
        backend, results = self.backend, self._computation.results
        for time_ms, backend.current_key, namespace in due:
            assert namespace is not None
            window = _window_of(namespace)
            try:
                self._on_timer(time_ms, window, is_event)
            except OperatorError:
                raise
            except BaseException as e:
                self.check_states()
                kind = "event" if is_event else "processing"
                where = f"the {kind}-time timer for {time_ms} of key {brief(backend.current_key)}, {window}"
                raise OperatorError(self.name, where) from e
            if results.waiting >= MOST_ROWS:
                results.send()
        self._flush()

    def _on_timer(self, time_ms: int, window: TimeWindow, is_event: bool) -> None:
        place = self._place_of(window)
        if place is None:  # a session that was merged into another
            return
        context = self._trigger_context
        context.window = window
        if is_event:
            result = self._trigger.on_event_time(time_ms, window, context)
        else:
            result = self._trigger.on_processing_time(time_ms, window, context)
        if result is not TriggerResult.CONTINUE:
            self._act(result, window, place, time_ms if is_event else self._highest_ms)
        if is_event is self._is_event_time and time_ms == self._cleanup_ms(window) != MAX_WATERMARK:
            self._clean_up(window, place)

    # ---- windows ----

    def _place_of(self, window: TimeWindow) -> TimeWindow | None:
        """Where the contents of a window are; None for a session that was merged."""
        if self._sessions is not None:
            return self._sessions.state_window(window)
        return window if window.__class__ is TimeWindow else TimeWindow(*window)

    def _act(
        self, result: TriggerResult, window: TimeWindow, place: TimeWindow, fired_at_ms: int | None
    ) -> None:
        if result.__class__ is not TriggerResult:
            raise ProgramError(
                f"{type(self._trigger).__name__} returned {result!r}; a trigger returns a TriggerResult, such as "
                f"TriggerResult.CONTINUE"
            )
        if result.is_fire:
            self._computation.fire(window, place, result_time(window, fired_at_ms))
        if result.is_purge:
            self._computation.contents.clear(place)

    def _clean_up(self, window: TimeWindow, place: TimeWindow) -> None:
        self._computation.clear(window, place)
        self._trigger_context.window = window
        self._trigger.clear(window, self._trigger_context)
        if self._trigger_state is not None:
            self._trigger_state.remove(window)
        if self._sessions is not None:
            self._sessions.retire(window)
        self._delete_cleanup(window)

    def _cleanup_ms(self, window: TimeWindow) -> int:
        return min(window.max_timestamp_ms + self._lateness_ms, MAX_WATERMARK)

    def _register_cleanup(self, window: TimeWindow) -> None:
        time_ms = self._cleanup_ms(window)
        if time_ms == MAX_WATERMARK:
            return
        timers = self._timers
        register = timers.register_event_time if self._is_event_time else timers.register_processing_time
        register(self.backend.current_key, time_ms, window)

    def _delete_cleanup(self, window: TimeWindow) -> None:
        timers = self._timers
        delete = timers.delete_event_time if self._is_event_time else timers.delete_processing_time
        delete(self.backend.current_key, self._cleanup_ms(window), window)

    # ---- the end of a batch or of a pass of timers ----

    def _flush(self) -> None:
        self._computation.flush()
        for part in (self._sessions, self._trigger_state):
            if part is not None:
                part.flush()
        self.leave_keys()
        self._show()
        self._computation.results.send()

    def _show(self) -> None:
        windows, timers = self._gauges
        windows.set(self._computation.contents.open_windows)
        timers.set(self._timers.pending)


def _window_of(namespace: tuple[int, int]) -> TimeWindow:
    start_ms, end_ms = namespace
    is_global = start_ms == MIN_TIMESTAMP and end_ms == MAX_WATERMARK
    return GLOBAL_WINDOW if is_global else TimeWindow(start_ms, end_ms)


class AggregateWindowOperator(WindowOperator):
    """Performs `AggregateWindow` record by record, where it cannot be done by columns."""

    def _make_computation(self) -> WindowComputation:
        return AggregateComputation(self, self.operation, self.backend)


def check_window(window: Any, assigner: WindowAssigner) -> None:
    """Refuse what a user's assigner returns instead of windows."""
    if not isinstance(window, TimeWindow) or window.end_ms <= window.start_ms:
        raise ProgramError(
            f"{type(assigner).__name__}.assign_windows must return a list of TimeWindow(start_ms, end_ms), each "
            f"of which ends after its start; in what it returned is {brief(window)}"
        )
