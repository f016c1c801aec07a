"""`WindowedStream`: a stream cut into windows; its methods configure the windows or compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Unpack, overload

from typing_extensions import TypeForm

from tidegate.aggregates.aggregate import Aggregate, Input
from tidegate.aggregates.best_by import MaxBy, MinBy, Selected
from tidegate.aggregates.count import Count
from tidegate.aggregates.distinct import CountDistinct
from tidegate.aggregates.edges import First, Last
from tidegate.aggregates.extremes import Max, Min
from tidegate.aggregates.mean import Avg
from tidegate.aggregates.sum import Sum
from tidegate.aggregates.top_n import Order, Ties, TopN
from tidegate.api.evictors import CountEvictor, Evictor
from tidegate.api.functions import (
    OutputTag,
    OutputTags,
    ReduceFunction,
    check_callable,
    function_name,
    result_type,
)
from tidegate.api.state import AggregateFunction
from tidegate.api.streams import DataStream
from tidegate.api.triggers import CountTrigger, PurgingTrigger, Trigger
from tidegate.api.window_functions import ProcessWindowFunction
from tidegate.api.windows import GlobalWindows, WindowAssigner, check_count
from tidegate.core.durations import Duration, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.core.words import kind_of
from tidegate.program.aggregate_inputs import named_aggregates
from tidegate.program.foreign_names import FlinkNames
from tidegate.program.operations import Key
from tidegate.program.operator_settings import Settings, apply_settings
from tidegate.program.side_outputs import declare_side_outputs
from tidegate.program.signatures import check_function, check_methods
from tidegate.program.state_checks import check_states
from tidegate.program.transformations import StreamRef
from tidegate.program.window_operations import (
    WHOLE_STREAM,
    AggregateWindow,
    ApplyWindow,
    WindowOperation,
    aggregate_window_type,
)
from tidegate.records.rows import Row
from tidegate.records.type_variables import ACC, NOT_GIVEN, K, O, T, V
from tidegate.records.types import RecordType


class WindowedStream(FlinkNames, Generic[K, T]):
    """A stream cut into windows. `trigger`, `evictor` and the like return a new one; the other methods compute.

    >>> from tidegate import Environment, TumblingEventTimeWindows, WatermarkStrategy
    >>> env = Environment(runtime="in-process")
    >>> clicks = env.from_collection([{"app": "a", "ts": 1_000}, {"app": "b", "ts": 4_000}, {"app": "a", "ts": 12_000}])
    >>> timed = clicks.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"))
    >>> counts = timed.key_by("app").window(TumblingEventTimeWindows("10 s")).count()
    >>> for row in sorted(counts.execute_and_collect()):
    ...     print(row.app, f"{row.window_start:%H:%M:%S} {row.window_end:%H:%M:%S}", row.count)
    a 00:00:00 00:00:10 1
    a 00:00:10 00:00:20 1
    b 00:00:00 00:00:10 1
    """

    def __init__(self, stream: DataStream[T], assigner: WindowAssigner) -> None:
        if isinstance(assigner, type) and issubclass(assigner, WindowAssigner):
            raise ProgramError(
                f"window got the class {assigner.__name__}; give it an instance, with its size"
            )
        if not isinstance(assigner, WindowAssigner):
            raise ProgramError(
                f"window needs a WindowAssigner such as TumblingEventTimeWindows('10 s'), got {kind_of(assigner)}: "
                f"{assigner!r}"
            )
        self._stream = stream
        self._windows = WindowOperation(assigner, stream._key())
        self._late_tag: OutputTag[Any] | None = None

    def __repr__(self) -> str:
        return f"<WindowedStream of {self._stream!r}: {self._windows.window_words()}>"

    # ---- configuration ----

    def trigger(self, trigger: Trigger[T]) -> WindowedStream[K, T]:
        """Set when windows are computed; this replaces the default trigger of the assigner."""
        if not isinstance(trigger, Trigger):
            raise ProgramError(f"trigger needs a Trigger (an instance), got {trigger!r}")
        return self._changed(trigger=trigger)

    def evictor(self, evictor: Evictor[T]) -> WindowedStream[K, T]:
        """Leave out elements when windows are computed; all elements are kept until the window is cleaned up."""
        if not isinstance(evictor, Evictor):
            raise ProgramError(f"evictor needs an Evictor (an instance), got {evictor!r}")
        return self._changed(evictor=evictor)

    def allowed_lateness(self, lateness: Duration) -> WindowedStream[K, T]:
        """Keep windows this much longer than the watermark; a record in that time fires its window again."""
        self._event_time_only("allowed_lateness")
        try:
            lateness_ms = parse_duration_ms(lateness)
        except ValueError as e:
            raise ProgramError(f"allowed_lateness({lateness!r}): {e}") from None
        return self._changed(allowed_lateness_ms=lateness_ms)

    def side_output_late_data(self, tag: OutputTag[T]) -> WindowedStream[K, T]:
        """Send records that are too late for all their windows to this side output of the result.

        The metric `late_records` counts them in any case.
        """
        self._event_time_only("side_output_late_data")
        if not isinstance(tag, OutputTag):
            raise ProgramError(f"side_output_late_data needs an OutputTag, got {tag!r}")
        mine = self._stream.record_type
        if not tag.record_type.is_object and tag.record_type != mine:
            raise ProgramError(
                f"side_output_late_data({tag!r}): late records are of the stream's type, {mine.describe()}. Leave the "
                f"tag's type out: OutputTag({tag.id!r})"
            )
        changed = self._changed(late_tag=tag.id)
        changed._late_tag = tag
        return changed

    # ---- the user's functions ----

    @overload
    def reduce(
        self, function: Callable[[T, T], T] | ReduceFunction[T], **settings: Unpack[Settings]
    ) -> DataStream[T]: ...

    @overload
    def reduce(
        self,
        function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: ProcessWindowFunction[K, T, O],
        *,
        returns: TypeForm[O] = ...,
        side_outputs: OutputTags = (),
        **settings: Unpack[Settings],
    ) -> DataStream[O]: ...

    def reduce(
        self,
        function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: ProcessWindowFunction[K, T, Any] | None = None,
        *,
        returns: object = None,
        side_outputs: OutputTags = (),
        **settings: Unpack[Settings],
    ) -> DataStream[Any]:
        """Combine the records of a window, as they arrive, with `function(so_far, record)`.

        The result is a record of the same type, or what the `window_function` makes of it.
        """
        check_callable(function, ReduceFunction, "reduce")
        check_function(function, ReduceFunction, settings.get("name") or self._name(function))
        check_states(function, settings.get("name") or self._name(function), self._state_key())
        out = self._stream.record_type
        if window_function is not None:
            out = self._process_type(window_function, returns, settings)
        operation = self._apply("reduce", function, window_function)
        return self._compute(operation, out, side_outputs, settings, function)

    @overload
    def aggregate(self, **outputs: Aggregate | str | int) -> DataStream[Row]: ...

    @overload
    def aggregate(self, function: Aggregate, **outputs: Aggregate | str | int) -> DataStream[Row]: ...

    @overload
    def aggregate(
        self,
        function: AggregateFunction[T, ACC, O],
        *,
        returns: TypeForm[O] = ...,
        accumulator_type: TypeForm[ACC] = ...,
        **settings: Unpack[Settings],
    ) -> DataStream[O]: ...

    @overload
    def aggregate(
        self,
        function: AggregateFunction[T, ACC, V],
        window_function: ProcessWindowFunction[K, V, O],
        *,
        returns: TypeForm[O] = ...,
        accumulator_type: TypeForm[ACC] = ...,
        side_outputs: OutputTags = (),
        **settings: Unpack[Settings],
    ) -> DataStream[O]: ...

    def aggregate(
        self,
        function: Any = None,
        window_function: Any = None,
        *,
        returns: Any = None,
        accumulator_type: Any = None,
        side_outputs: Any = (),
        **outputs: Aggregate | str | int,
    ) -> DataStream[Any]:
        """Compute built-in aggregates, each under the name of its result column, or your own `AggregateFunction`.

        `aggregate(total=Sum("x"), n=Count())` gives rows: the key columns, `window_start`, `window_end`, `total`, `n`.

        With an `AggregateFunction` the types come from the hints of `create_accumulator` and `get_result`, or from
        `accumulator_type` and `returns`; a `window_function` gets the result together with the window.
        """
        built_in, settings = named_aggregates(function, outputs)
        if function is None or isinstance(function, Aggregate):
            if not built_in or window_function is not None:
                raise ProgramError(
                    'aggregate takes built-in aggregates by name, aggregate(total=Sum("x"), n=Count()), or an '
                    "AggregateFunction, alone or with a window_function"
                )
            return self._aggregate(built_in, settings)
        if built_in:
            raise ProgramError("aggregate takes built-in aggregates or an AggregateFunction, not both")
        if not isinstance(function, AggregateFunction):
            raise ProgramError(f"aggregate needs an AggregateFunction (an instance), got {function!r}")
        if self._windows.assigner.is_merging and type(function).merge is AggregateFunction.merge:
            raise ProgramError(
                f"{type(function).__name__} has no merge(left, right), which session windows need: two sessions become "
                f"one when a record comes between them. Define it"
            )
        check_methods(function, str(settings.get("name") or self._name(function)))
        accumulator = result_type(function, "create_accumulator", accumulator_type, many=False)
        if window_function is None:
            out = result_type(function, "get_result", returns, many=False)
        else:
            out = self._process_type(window_function, returns, settings)
        operation = self._apply("aggregate", function, window_function, accumulator)
        return self._compute(operation, out, side_outputs, settings, function)

    def process(
        self,
        function: ProcessWindowFunction[K, T, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        side_outputs: OutputTags = (),
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Compute windows from all their elements, which are kept until the window is cleaned up."""
        out = self._process_type(function, returns, settings)
        return self._compute(self._apply("process", None, function), out, side_outputs, settings, function)

    # ---- built-in aggregates ----

    def count(self, *, output: str = "count", **settings: Unpack[Settings]) -> DataStream[Row]:
        """Count the records of each window."""
        return self._aggregate({output: Count()}, settings)

    def sum(
        self, column: Input, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """The sum of a column."""
        return self._one(Sum(column), output, settings)

    def min(
        self, column: Input, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """The smallest value of a column."""
        return self._one(Min(column), output, settings)

    def max(
        self, column: Input, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """The largest value of a column."""
        return self._one(Max(column), output, settings)

    def avg(
        self, column: Input, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """The mean of a column."""
        return self._one(Avg(column), output, settings)

    def first(
        self, column: Input, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """The value of the record with the earliest timestamp."""
        return self._one(First(column), output, settings)

    def last(
        self, column: Input, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """The value of the record with the latest timestamp."""
        return self._one(Last(column), output, settings)

    def count_distinct(
        self, column: Input, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """Count the distinct values of a column."""
        return self._one(CountDistinct(column), output, settings)

    def top_n(
        self,
        n: int,
        by: Order | Sequence[Order],
        *,
        select: Iterable[str] | None = None,
        largest: bool = True,
        ties: Ties = "first",
        output: str | None = None,
        **settings: Unpack[Settings],
    ) -> DataStream[Row]:
        """The `n` records with the largest (or smallest) value of a column, or of several, as a list of structs."""
        chosen = select if select is None or isinstance(select, str) else tuple(select)
        return self._one(TopN(n, by, chosen, largest, ties=ties), output, settings)

    def max_by(
        self, by: Input, select: Selected = None, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """The selected column of the record with the largest `by`; several columns, or all, become a struct."""
        return self._one(MaxBy(by, select), output, settings)

    def min_by(
        self, by: Input, select: Selected = None, *, output: str | None = None, **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """The selected column of the record with the smallest `by`; several columns, or all, become a struct."""
        return self._one(MinBy(by, select), output, settings)

    # ---- inside ----

    def _changed(self, **changes: Any) -> WindowedStream[K, T]:
        other: WindowedStream[K, T] = WindowedStream(self._stream, self._windows.assigner)
        other._windows = replace(self._windows, **changes)
        other._late_tag = self._late_tag
        return other

    def _event_time_only(self, call: str) -> None:
        if not self._windows.assigner.is_event_time:
            raise ProgramError(
                f"{call} is for event-time windows; nothing is late for {self._windows.assigner.describe()} windows"
            )

    def _state_key(self) -> Key:
        return WHOLE_STREAM if self._windows.key is None else self._windows.key

    def _name(self, function: Any) -> str:
        return f"window {function_name(function)}"

    def _fields(self) -> dict[str, Any]:
        w = self._windows
        return {
            "assigner": w.assigner,
            "key": w.key,
            "trigger": w.trigger,
            "evictor": w.evictor,
            "allowed_lateness_ms": w.allowed_lateness_ms,
            "late_tag": w.late_tag,
        }

    def _apply(
        self, form: Any, function: Any, window_function: Any, accumulator: RecordType | None = None
    ) -> ApplyWindow:
        return ApplyWindow(
            **self._fields(),
            form=form,
            function=function,
            window_function=window_function,
            accumulator_type=accumulator,
        )

    def _process_type(self, function: Any, returns: object, settings: Mapping[str, Any]) -> RecordType:
        if isinstance(function, type) and issubclass(function, ProcessWindowFunction):
            raise ProgramError(f"the window function is the class {function.__name__}; give it an instance")
        if not isinstance(function, ProcessWindowFunction):
            raise ProgramError(
                f"a window function is a ProcessWindowFunction, got {kind_of(function)}: {function!r}"
            )
        check_function(function, ProcessWindowFunction, settings.get("name") or self._name(function))
        check_states(function, settings.get("name") or self._name(function), self._state_key())
        return result_type(function, "process", returns, many=True)

    def _one(self, aggregate: Aggregate, output: str | None, settings: Mapping[str, Any]) -> DataStream[Row]:
        return self._aggregate({output or aggregate.default_output(): aggregate}, settings)

    def _aggregate(self, built_in: dict[str, Aggregate], settings: Mapping[str, Any]) -> DataStream[Row]:
        aggregates = tuple(built_in.items())
        windows = self._windows
        out = aggregate_window_type(self._stream.record_type, windows.key, windows.assigner, aggregates)
        operation = AggregateWindow(**self._fields(), aggregates=aggregates)
        words = ", ".join(a.describe() for a in built_in.values())
        return self._compute(operation, out, (), settings, None, f"window {words}")

    def _compute(
        self,
        operation: WindowOperation,
        out: RecordType,
        side_outputs: OutputTags,
        settings: Mapping[str, Any],
        function: Any,
        name: str | None = None,
    ) -> DataStream[Any]:
        stream = self._stream
        name = name or self._name(function)
        check_windows(operation, settings.get("name") or name)
        node = stream._env._add(operation, name, (stream._inputs(),), out)
        if operation.key is None:
            node.fixed_parallelism = 1
        result: DataStream[Any] = DataStream(stream._env, (StreamRef(node),), out)
        declare_side_outputs(result, side_outputs)
        if self._late_tag is not None:
            declare_side_outputs(result, (self._late_tag,))
            node.side_outputs[self._late_tag.id] = stream.record_type
        apply_settings(result, settings)
        return result


def count_windows(stream: DataStream[T], size: int, slide: int | None) -> WindowedStream[Any, T]:
    """Windows of `size` records, computed every `slide` records; without a slide they do not overlap."""
    check_count("count_window(size)", size)
    if slide is not None:
        check_count("count_window(slide)", slide)
    windowed: WindowedStream[Any, T] = WindowedStream(stream, GlobalWindows())
    if slide is None:
        return windowed.trigger(PurgingTrigger(CountTrigger(size)))
    return windowed.trigger(CountTrigger(slide)).evictor(CountEvictor(size))


def check_windows(operation: WindowOperation, name: str) -> None:
    """Refuse triggers that cannot follow their windows, and windows that would never be computed."""
    assigner, trigger = operation.assigner, operation.effective_trigger
    if assigner.is_merging and not trigger.can_merge():
        raise ProgramError(
            f"operator {name!r}: {trigger.describe()} cannot follow windows that merge, as "
            f"{assigner.describe()} windows do. Define can_merge and on_merge, or use other windows"
        )
    if assigner.is_global and operation.trigger is None:
        raise ProgramError(
            f"operator {name!r}: GlobalWindows without a trigger would never be computed. Give it one: "
            f"window(GlobalWindows()).trigger(CountTrigger(100))"
        )
