"""`WindowComputation`: what windows hold, and how one is computed.

The operator decides which window of the current key is computed, and when. This part has the accumulators or elements,
the evictor, the user's functions and their states, and the results that wait to be emitted. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidegate.api.evictors import Evictor, TimestampedValue
from tidegate.api.window_functions import ProcessWindowFunction
from tidegate.api.windows import TimeWindow
from tidegate.operators.functions.row_operator import RowOperator, UnkeyedContext
from tidegate.operators.window.contents import NOTHING, AccumulatedContents, Contents, ListedContents
from tidegate.operators.window.contexts import LiveWindowContext, TimeContext
from tidegate.operators.window.results import AggregateResults, FunctionResults, Results
from tidegate.operators.window.row_accumulators import (
    Accumulators,
    AggregateAccumulators,
    FunctionAccumulators,
    ReduceAccumulators,
)
from tidegate.operators.window.window_state import RememberedByKey, RememberedByWindow
from tidegate.program.window_operations import AggregateWindow, ApplyWindow
from tidegate.records.batch import Batch
from tidegate.state.backend import KeyedStateBackend

WINDOW_STATE: Final = "$window_state"
GLOBAL_STATE: Final = "$global_state"


class WindowComputation:
    """All windows of one subtask, computed by the user's functions.

    `place` is where the contents of a window are: usually the window itself.
    """

    results: Results
    """The results that wait to be emitted."""

    def __init__(
        self, operator: RowOperator, operation: ApplyWindow | AggregateWindow, backend: KeyedStateBackend
    ) -> None:
        self._operation = operation
        self._backend = backend
        self._record_type = operator.input_types[0]
        self._is_event_time = operation.assigner.is_event_time
        self._evictor: Evictor | None = operation.evictor
        self._evictor_context = TimeContext(operator)
        self._accumulators = self._make_accumulators(operation)
        self.contents: Contents = self._make_contents()
        self._function: ProcessWindowFunction[Any, Any, Any] | None = None
        self._window_state: RememberedByWindow | None = None
        self._global_state: RememberedByKey | None = None
        self._make_results(operator, operation)
        self.contents.count_restored()

    def _make_accumulators(self, operation: Any) -> Accumulators | None:
        """What accumulates records; None: every element is kept."""
        if operation.form == "reduce":
            function = operation.function
            reduce: Callable[[Any, Any], Any] = getattr(function, "reduce", function)
            return ReduceAccumulators(reduce, self._record_type)
        if operation.form == "aggregate":
            assert operation.accumulator_type is not None
            return FunctionAccumulators(operation.function, operation.accumulator_type)
        return None

    def _make_contents(self) -> Contents:
        if self._accumulators is None or self._evictor is not None:
            return ListedContents(
                self._backend,
                self._record_type,
                timestamped=self._evictor is not None,
                merging=self._operation.assigner.is_merging,
            )
        return AccumulatedContents(self._backend, self._accumulators)

    def _make_results(self, operator: RowOperator, operation: Any) -> None:
        side = UnkeyedContext([tag for tag in operator.side_outputs if tag != operation.late_tag])
        if operation.window_function is not None:
            self._function = operation.window_function
            if not operation.assigner.is_merging:
                self._window_state = RememberedByWindow(self._backend, WINDOW_STATE, operator.name)
            self._global_state = RememberedByKey(self._backend, GLOBAL_STATE, operator.name)
            self._context = LiveWindowContext(operator, self._window_state, self._global_state, side)
        self.results = FunctionResults(operator, side, many=self._function is not None)

    # ---- records in ----

    def values(self, batch: Batch) -> list[Any]:
        """What `add` takes, for each record of a batch."""
        return batch.rows

    def add(self, place: TimeWindow, value: Any, timestamp_ms: int) -> bool:
        """Add a record to a window; returns whether it is new. Without event time, first and last are by arrival."""
        if not self._is_event_time and self._evictor is None:
            timestamp_ms = 0
        return self.contents.add(place, value, timestamp_ms)

    # ---- results out ----

    def fire(self, window: TimeWindow, place: TimeWindow, timestamp_ms: int | None) -> None:
        """Compute a window, if it holds something; its results have this timestamp."""
        if self._evictor is None:
            held = self.contents.get(place)
            if held is not NOTHING:
                accumulators = self._accumulators
                self._emit(window, held if accumulators is None else accumulators.result(held), timestamp_ms)
            return
        assert isinstance(self.contents, ListedContents)
        elements = self.contents.timestamped(place)
        if not elements:
            return
        left = list(self._evictor.evict_before(list(elements), window, self._evictor_context))
        if self._accumulators is None:
            self._emit(window, [e.value for e in left], timestamp_ms)
        elif left:
            self._emit(window, self._result_of(self._accumulators, left), timestamp_ms)
        left = list(self._evictor.evict_after(left, window, self._evictor_context))
        if len(left) != len(elements) or any(a is not b for a, b in zip(left, elements, strict=True)):
            self.contents.replace(place, elements, left)

    def clear(self, window: TimeWindow, place: TimeWindow) -> None:
        """The window is over: remove everything of it."""
        self.contents.clear(place)
        if self._function is None:
            return
        context = self._context
        context.window, context.is_clearing = window, True
        self._function.clear(context)
        context.is_clearing = False
        if self._window_state is not None:
            self._window_state.remove(window)

    def flush(self) -> None:
        """Write everything to the state. Changes the current key."""
        self.contents.flush()
        for part in (self._window_state, self._global_state):
            if part is not None:
                part.flush()

    def _emit(self, window: TimeWindow, result: Any, timestamp_ms: int | None) -> None:
        key = None if self._operation.key is None else self._backend.current_key
        if self._function is not None:
            self._context.window = window
            elements: Sequence[Any] = result if self._accumulators is None else [result]
            result = self._function.process(key, self._context, elements)
        self.results.add(key, window, result, timestamp_ms)

    def _result_of(self, accumulators: Accumulators, elements: list[TimestampedValue]) -> Any:
        values = self._accumulated([e.value for e in elements])
        stamps = [e.timestamp_ms if self._is_event_time else 0 for e in elements]
        return accumulators.result(accumulators.of_all(zip(values, stamps, strict=True)))

    def _accumulated(self, elements: list[Any]) -> list[Any]:
        """What the accumulators take, for each element that was kept."""
        return elements


class AggregateComputation(WindowComputation):
    """Windows of built-in aggregates; the only code of the user's is an evictor."""

    _built_in: AggregateAccumulators

    def _make_accumulators(self, operation: Any) -> Accumulators:
        self._built_in = AggregateAccumulators(operation.aggregates, self._record_type)
        return self._built_in

    def _make_results(self, operator: RowOperator, operation: Any) -> None:
        self.results = AggregateResults(operator, operation.key, not operation.assigner.is_global)

    def values(self, batch: Batch) -> list[Any]:
        """The values of the aggregated columns; with an evictor, which sees records, the records."""
        return self._built_in.values(batch) if self._evictor is None else batch.rows

    def _accumulated(self, elements: list[Any]) -> list[Any]:
        return self._built_in.values(Batch(self._record_type, rows=elements))
