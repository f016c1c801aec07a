"""`DataStream`: how a user writes a program. Each call adds a transformation and returns a new stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Unpack, overload

import polars as pl
import pyarrow as pa
from typing_extensions import TypeForm

from tidegate.api.async_io import AsyncFunction, AsyncRetry, async_operation
from tidegate.api.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    MapFunction,
    OutputTag,
    OutputTags,
    ProcessContext,
    ProcessFunction,
    check_callable,
    function_name,
    one_result_type,
    require_keys,
    result_type,
)
from tidegate.api.sink import FunctionSink, Sink
from tidegate.api.watermarks import WatermarkStrategy
from tidegate.core.durations import Duration
from tidegate.core.errors import ProgramError
from tidegate.core.words import kind_of
from tidegate.program import partitioning as p
from tidegate.program.driver_sinks import PrintSink
from tidegate.program.expressions import Columns, expression_result_type, resolved_columns
from tidegate.program.foreign_names import missing_attribute
from tidegate.program.key_types import make_key
from tidegate.program.operations import (
    ApplyBatchFunction,
    ApplyExpressions,
    ApplyFunction,
    AssignTimestamps,
    Key,
    Operation,
    WriteSink,
)
from tidegate.program.operator_settings import SETTINGS, OperatorSettings, Settings, apply_settings
from tidegate.program.side_outputs import declare_side_outputs, declare_strategy
from tidegate.program.signatures import check_arguments, check_function
from tidegate.program.state_checks import check_states, refuse_state_of_callable
from tidegate.program.transformations import StreamRef, Transformation
from tidegate.records.rows import Row
from tidegate.records.type_variables import NOT_GIVEN, K, O, T, V
from tidegate.records.types import RecordType, record_type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.api.connected_streams import ConnectedStreams
    from tidegate.api.environment import Environment
    from tidegate.api.keyed_streams import KeyedStream
    from tidegate.api.window_joins import JoinedStreams, WindowCoGroupedStreams, WindowJoinedStreams
    from tidegate.api.windowed_streams import WindowedStream
    from tidegate.api.windows import WindowAssigner


class NoKey:
    """The key type of a stream without keys: a type checker refuses a function that needs a key."""


class NotKeyedError(ProgramError, AttributeError):
    """A method of keyed streams was called on a stream without keys."""


class DataStream(OperatorSettings, Generic[T]):
    """A stream of records of one type. An `Environment` makes it; every operation returns a new stream.

    >>> from tidegate import Environment
    >>> env = Environment(runtime="in-process")
    >>> def double(n: int) -> int:
    ...     return 2 * n
    >>> sorted(env.from_collection([1, 2, 3]).map(double).execute_and_collect())
    [2, 4, 6]
    """

    def __init__(self, env: Environment, refs: tuple[StreamRef, ...], record_type: RecordType) -> None:
        self._env = env
        self._refs = refs
        self._type = record_type
        self._node = refs[0].upstream

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._node.name!r}: {self._type.describe()}>"

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a stream is not iterated over; iterate over the results: stream.execute_and_collect()"
        )

    def __getitem__(self, key: object) -> NoReturn:
        raise TypeError(f"a stream has no items; select({key!r}) gives a stream with that column")

    @property
    def record_type(self) -> RecordType:
        """The type of the records."""
        return self._type

    # ---- per record, in the user's own Python ----

    def map(
        self,
        function: Callable[[T], O] | MapFunction[T, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Turn each record into another. Its type is the return hint of the function, or `returns`."""
        check_callable(function, MapFunction, "map")
        return self._apply(
            "map", MapFunction, function, result_type(function, "map", returns, many=False), settings
        )

    def flat_map(
        self,
        function: Callable[[T], Iterable[O]] | FlatMapFunction[T, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Turn each record into any number of others: the function returns an iterable or yields.

        >>> from collections.abc import Iterator
        >>> from tidegate import Environment
        >>> def words(line: str) -> Iterator[str]:
        ...     yield from line.split()
        >>> env = Environment(runtime="in-process")
        >>> list(env.from_collection(["to be", "or not"]).flat_map(words).execute_and_collect())
        ['to', 'be', 'or', 'not']
        """
        check_callable(function, FlatMapFunction, "flat_map")
        out = result_type(function, "flat_map", returns, many=True)
        return self._apply("flat_map", FlatMapFunction, function, out, settings)

    @overload
    def filter(
        self, predicate: Callable[[T], object] | FilterFunction[T], /, **settings: Unpack[Settings]
    ) -> DataStream[T]: ...

    @overload
    def filter(self, *predicates: pl.Expr, **settings: Unpack[Settings]) -> DataStream[T]: ...

    def filter(self, *predicates: Any, **settings: Unpack[Settings]) -> DataStream[T]:
        """Keep the records for which the function (or each of the polars expressions) is true.

        >>> import polars as pl
        >>> from tidegate import Environment
        >>> env = Environment(runtime="in-process")
        >>> list(env.from_sequence(1, 6).filter(pl.col("value") % 2 == 0).execute_and_collect())
        [2, 4, 6]
        """
        if predicates and all(isinstance(p, pl.Expr) for p in predicates):
            self._columnar("filter(expression)")
            expression_result_type(self._type, "filter", predicates)
            return self._then(ApplyExpressions("filter", predicates), "filter", self._type, settings)
        if len(predicates) != 1:
            raise ProgramError(
                f"filter takes one function, or polars expressions, got {', '.join(map(repr, predicates)) or 'nothing'}"
            )
        (predicate,) = predicates
        check_callable(predicate, FilterFunction, "filter")
        return self._apply("filter", FilterFunction, predicate, self._type, settings)

    def process(
        self,
        function: ProcessFunction[T, O, NoKey] | Callable[[T, ProcessContext], Iterable[O] | None],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        side_outputs: OutputTags = (),
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Run a `ProcessFunction`, which emits any number of records, also to the `side_outputs` named here."""
        if not isinstance(function, ProcessFunction):
            check_callable(function, ProcessFunction, "process")
        require_keys(function, self._key(), self._node.name)
        out = one_result_type(function, ("process",), returns, many=True)
        stream = self._apply("process", ProcessFunction, function, out, settings)
        declare_side_outputs(stream, side_outputs)
        return stream

    def map_async(
        self,
        function: Callable[[T], Awaitable[O]] | AsyncFunction[T, O],
        *,
        returns: TypeForm[O] = NOT_GIVEN,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Duration = "30 s",
        retry: AsyncRetry | None = None,
        **settings: Unpack[Settings],
    ) -> DataStream[O]:
        """Make a request for each record with an `async def` function, for at most `capacity` records at a time.

        The function returns one record; an `AsyncFunction` returns any number. Results come in the order of the input,
        or with `ordered=False` in the order of the answers (never past a watermark). Checkpoints hold open requests.

        >>> from tidegate import Environment
        >>> async def look_up(user: int) -> str:
        ...     return f"user {user}"
        >>> env = Environment(runtime="in-process")
        >>> list(env.from_collection([1, 2]).map_async(look_up).execute_and_collect())
        ['user 1', 'user 2']
        """
        operation = async_operation(
            function, ordered=ordered, capacity=capacity, timeout=timeout, retry=retry
        )
        name = f"async {function_name(function)}"
        is_class = isinstance(function, AsyncFunction)
        check_function(function, AsyncFunction, settings.get("name") or name)
        if is_class:
            check_states(function, settings.get("name") or name, None)
        out = result_type(function, "invoke", returns, many=is_class)
        return self._then(operation, name, out, settings)

    # ---- per batch ----

    @overload
    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], **settings: Unpack[Settings]
    ) -> DataStream[T]: ...

    @overload
    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        returns: TypeForm[O],
        **settings: Unpack[Settings],
    ) -> DataStream[O]: ...

    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        returns: object = None,
        **settings: Unpack[Settings],
    ) -> DataStream[Any]:
        """Turn each Arrow record batch into another, with the schema `returns` (default: the same type).

        Event time: if the new batch has as many rows, row i keeps its timestamp; else the rows have no timestamps.
        """
        self._columnar("map_batches")
        if not callable(function):
            raise ProgramError(f"map_batches needs a callable, got {function!r}")
        check_arguments(function, ("batch",), f"map_batches: {function_name(function)}")
        refuse_state_of_callable(function, f"map_batches {function_name(function)}")
        out = self._type if returns is None else record_type_of(returns)
        return self._then(
            ApplyBatchFunction(function), f"map_batches {function_name(function)}", out, settings
        )

    def select(self, *expressions: Columns, **settings: pl.Expr | str | int) -> DataStream[Row]:
        """Make new columns from polars expressions or column names; only these remain.

        The keyword of an expression names its column, as in polars. (A setting of the operator, such as `name="..."`,
        is not an expression and stays a setting.)

        >>> import polars as pl
        >>> from tidegate import Environment
        >>> env = Environment(runtime="in-process")
        >>> squares = env.from_sequence(1, 3).select("value", square=pl.col("value").pow(2))
        >>> list(squares.execute_and_collect())
        [Row(value=1, square=1), Row(value=2, square=4), Row(value=3, square=9)]
        """
        return self._expressions("select", expressions, settings)

    def with_columns(self, *expressions: Columns, **settings: pl.Expr | str | int) -> DataStream[Row]:
        """Add or replace columns with polars expressions; the others remain. Keywords name columns, as in `select`."""
        return self._expressions("with_columns", expressions, settings)

    # ---- event time ----

    def assign_timestamps_and_watermarks(
        self, strategy: WatermarkStrategy, **settings: Unpack[Settings]
    ) -> DataStream[T]:
        """Give the records event times. At the source it is better: `from_source(source, strategy)`.

        >>> from tidegate import Environment, WatermarkStrategy
        >>> env = Environment(runtime="in-process")
        >>> clicks = env.from_collection([{"app": "a", "ts": 1_000}])
        >>> clicks.assign_timestamps_and_watermarks(WatermarkStrategy.bounded("2 s", "ts"))
        <DataStream of 'timestamps': Row(app: string?, ts: int64?)>
        """
        if not isinstance(strategy, WatermarkStrategy):
            raise ProgramError(
                f"assign_timestamps_and_watermarks needs a WatermarkStrategy, got {strategy!r}"
            )
        if strategy.alignment is not None:
            raise ProgramError(
                f"assign_timestamps_and_watermarks cannot make a source wait for group {strategy.alignment.group!r}: "
                f"with_alignment is for from_source(source, strategy)"
            )
        stream = self._then(AssignTimestamps(strategy), "timestamps", self._type, settings)
        declare_strategy(stream._node, strategy, stream._node.name)
        return stream

    # ---- keys and several streams ----

    @overload
    def key_by(self, key: Callable[[T], K], /, *, returns: TypeForm[K] = ...) -> KeyedStream[K, T]: ...

    @overload
    def key_by(self, *key: str) -> KeyedStream[Any, T]: ...

    def key_by(self, *key: Any, returns: object = None) -> KeyedStream[Any, T]:
        """Group records by columns, or by a function of the record. A key's records go to one subtask, in order.

        A key of None is a key like any other. A key function without a return hint works, but is slower.
        """
        from tidegate.api.keyed_streams import KeyedStream

        return KeyedStream(self._env, self._refs, self._type, make_key(self._type, key, returns))

    def window_all(self, assigner: WindowAssigner) -> WindowedStream[None, T]:
        """Cut the whole stream into windows, without keys. One subtask computes them."""
        from tidegate.api.windowed_streams import WindowedStream

        return WindowedStream(DataStream(self._env, self._refs, self._type), assigner)

    def count_window_all(self, size: int, slide: int | None = None) -> WindowedStream[None, T]:
        """Windows of `size` records of the whole stream, as `KeyedStream.count_window`. One subtask computes them."""
        from tidegate.api.windowed_streams import count_windows

        return count_windows(DataStream(self._env, self._refs, self._type), size, slide)

    def union(self, *others: DataStream[T]) -> DataStream[T]:
        """Merge this stream with others of the same type; order holds only within each.

        A stream may occur twice (`s.union(s)`): then each of its records does.
        """
        refs = self._refs
        for other in others:
            if not isinstance(other, DataStream):
                raise ProgramError(f"union needs streams, got {kind_of(other)}: {other!r}")
            if other._type != self._type:
                raise ProgramError(
                    f"union needs streams of one type: {self._node.name!r} has {self._type.describe()}, "
                    f"{other._node.name!r} has {other._type.describe()}"
                )
            if other._env is not self._env:
                raise ProgramError("union needs streams of one environment")
            refs = (*refs, *other._refs)
        return DataStream(self._env, refs, self._type)

    def connect(self, other: DataStream[V]) -> ConnectedStreams[T, V]:
        """Pair this stream with one of any type, for a function that processes both."""
        if not isinstance(other, DataStream):
            raise ProgramError(f"connect needs a stream, got {kind_of(other)}: {other!r}")
        if other._env is not self._env:
            raise ProgramError("connect needs streams of one environment")
        from tidegate.api.connected_streams import ConnectedStreams

        return ConnectedStreams(self, other)

    def join(self, other: DataStream[V]) -> JoinedStreams[T, V, WindowJoinedStreams[T, V]]:
        """Pair the records of two streams that have the same key and are in the same window.

        `a.join(b).where("id").equal_to("id").window(TumblingEventTimeWindows("1 min")).apply(f)`
        """
        from tidegate.api.window_joins import JoinedStreams

        return JoinedStreams(self, other, "join")

    def co_group(self, other: DataStream[V]) -> JoinedStreams[T, V, WindowCoGroupedStreams[T, V]]:
        """Compute results from all records of two streams that have the same key and are in the same window.

        `a.co_group(b).where("id").equal_to("id").window(TumblingEventTimeWindows("1 min")).apply(f)`
        """
        from tidegate.api.window_joins import JoinedStreams

        return JoinedStreams(self, other, "co_group")

    def get_side_output(self, tag: OutputTag[V]) -> DataStream[V]:
        """The records that this stream's operator emitted to the tag."""
        declared = self._own_node("get_side_output").side_outputs
        if tag.id not in declared:
            names = ", ".join(sorted(declared)) or "none"
            raise ProgramError(
                f"operator {self._node.name!r} has no side output {tag.id!r} (declared: {names}). "
                f"Name it in process(..., side_outputs=(tag,)), or late records in side_output_late_data(tag)"
            )
        return DataStream(self._env, (StreamRef(self._node, tag.id),), declared[tag.id])

    # ---- partitioning ----

    def forward(self) -> DataStream[T]:
        """Send the records of subtask i to subtask i of the next operator; both need the same parallelism."""
        return self._partitioned(p.Forward())

    def rebalance(self) -> DataStream[T]:
        """Send records evenly to all subtasks of the next operator."""
        return self._partitioned(p.Rebalance())

    def rescale(self) -> DataStream[T]:
        """Send records evenly to a nearby group of subtasks of the next operator."""
        return self._partitioned(p.Rescale())

    def shuffle(self) -> DataStream[T]:
        """Send each record to a random subtask of the next operator."""
        return self._partitioned(p.Shuffle())

    def broadcast(self) -> DataStream[T]:
        """Send every record to every subtask of the next operator."""
        return self._partitioned(p.Broadcast())

    def global_(self) -> DataStream[T]:
        """Send every record to subtask 0 of the next operator."""
        return self._partitioned(p.Global())

    @overload
    def partition_custom(
        self, function: Callable[[K, int], int], key: Callable[[T], K], /, *, returns: TypeForm[K] = ...
    ) -> DataStream[T]: ...

    @overload
    def partition_custom(self, function: Callable[[Any, int], int], *key: str) -> DataStream[T]: ...

    def partition_custom(
        self, function: Callable[[Any, int], int], *key: Any, returns: object = None
    ) -> DataStream[T]:
        """Send each record to the subtask that `function(key, number_of_subtasks)` returns."""
        if not callable(function):
            raise ProgramError(f"partition_custom needs a callable, got {function!r}")
        check_arguments(
            function, ("key", "number_of_subtasks"), f"partition_custom: {function_name(function)}"
        )
        return self._partitioned(p.Custom(function, make_key(self._type, key, returns, "partition_custom")))

    # ---- results ----

    def sink_to(self, sink: Sink[T] | Callable[[T], object], **settings: Unpack[Settings]) -> DataStreamSink:
        """End the stream in a sink: a `Sink`, or a function that is called with every record.

        A stream may have several sinks, and other operators beside them: every sink gets every record.
        """
        if not isinstance(sink, Sink):
            if isinstance(sink, type) and issubclass(sink, Sink):
                raise ProgramError(f"sink_to got the class {sink.__name__}; give it an instance")
            if not callable(sink):
                raise ProgramError(
                    f"sink_to needs a Sink or a callable, got {kind_of(sink)}: {sink!r}{_file_hint(sink)}"
                )
            check_arguments(sink, ("value",), f"sink_to: {function_name(sink)}")
            refuse_state_of_callable(sink, f"sink {function_name(sink)}")
            sink = FunctionSink(sink)
        sink.check_type(self._type)
        operation = WriteSink(sink)
        node = self._env._add(operation, f"sink {sink.describe()}", (self._refs,), self._type)
        stream = DataStreamSink(node)
        apply_settings(stream, settings)
        return stream

    def print(self, sink_identifier: str = "") -> DataStreamSink:
        """Print every record in the driver, as `sink_identifier:subtask> record`.

        The identifier tells several print sinks apart, in the output as in the plan and the metrics.
        """
        name = f"print {sink_identifier}" if sink_identifier else "print"
        return self.sink_to(PrintSink(sink_identifier or None), name=name)

    def execute_and_collect(self, job_name: str | None = None) -> Iterator[T]:
        """Run the job that leads to this stream (and to no other sink) and yield its records as they arrive."""
        sink = self._collect_sink()
        return self._env._collect(sink._node, job_name)

    def explain(self, format: str = "text", job_name: str | None = None) -> str:
        """The plan of the job that `execute_and_collect` would run; formats as those of `Environment.explain`.

        >>> from tidegate import Environment
        >>> numbers = Environment(runtime="in-process").from_sequence(1, 3, name="numbers")
        >>> print(numbers.map(str, returns=str).explain(job_name="texts").splitlines()[0])
        job 'texts': 1 task, 1 slot needed (default 1)
        """
        return self._env._explain_stream(self, format, job_name)

    def to_dataframe(self, job_name: str | None = None) -> DataFrame:
        """Run the bounded job that leads to this stream and return its records as a Spark DataFrame."""
        return self._env._to_dataframe(self, job_name)

    # ---- inside ----

    if not TYPE_CHECKING:  # a type checker shall see that there is no such method

        def __getattr__(self, name: str) -> Any:
            from tidegate.api.keyed_streams import KeyedStream

            if name.startswith("_") or not hasattr(KeyedStream, name):
                raise missing_attribute(type(self), name, among=KeyedStream)
            instead = (
                f", or {name}_all(...) for the whole stream" if hasattr(DataStream, f"{name}_all") else ""
            )
            raise NotKeyedError(f"{name}() needs keys: call key_by(...).{name}(...){instead}")

    def _collect_sink(self) -> DataStreamSink:
        return DataStreamSink(self._env._collected(self._refs, self._type))

    def _own_node(self, setting: str) -> Transformation:
        ref = self._refs[0]
        if (
            len(self._refs) > 1
            or ref.tag is not None
            or ref.partitioning is not None
            or self._key() is not None
        ):
            raise ProgramError(
                f"{setting} belongs to an operator, but this stream is not one's own output (it comes from key_by, "
                f"union, a side output or a partitioning). Call it on {self._node.name!r}, or on the operator "
                f"that follows"
            )
        return self._node

    def _key(self) -> Key | None:
        return None

    def _inputs(self) -> tuple[StreamRef, ...]:
        return self._refs

    def _apply(
        self, form: Any, cls: type[Function], function: Any, out: RecordType, settings: Mapping[str, Any]
    ) -> DataStream[Any]:
        name = f"{form} {function_name(function)}"
        check_function(function, cls, settings.get("name") or name)
        check_states(function, settings.get("name") or name, self._key())
        return self._then(ApplyFunction(form, function, self._key()), name, out, settings)

    def _then(
        self, operation: Operation, name: str, out: RecordType, settings: Mapping[str, Any]
    ) -> DataStream[Any]:
        node = self._env._add(operation, name, (self._inputs(),), out)
        stream: DataStream[Any] = DataStream(self._env, (StreamRef(node),), out)
        apply_settings(stream, settings)
        return stream

    def _partitioned(self, partitioning: p.Partitioning) -> DataStream[T]:
        refs = tuple(StreamRef(r.upstream, r.tag, partitioning) for r in self._refs)
        return DataStream(self._env, refs, self._type)

    def _columnar(self, operation: str) -> None:
        if self._type.is_object:
            raise ProgramError(
                f"{operation} needs columns, but {self._node.name!r} gives Python objects without a schema. "
                f"Give its function a return type hint, or pass returns="
            )

    def _expressions(
        self, form: Literal["select", "with_columns"], expressions: Any, settings: Mapping[str, Any]
    ) -> DataStream[Row]:
        self._columnar(form)
        named = {key: value for key, value in settings.items() if isinstance(value, pl.Expr)}
        settings = {key: value for key, value in settings.items() if key not in named}
        for key, value in settings.items():
            if key not in SETTINGS:
                raise ProgramError(
                    f"{form}({key}={value!r}): a new column is a polars expression, such as {key}=pl.lit({value!r}) "
                    f"for a value or {key}=pl.col(...) for another column"
                )
        resolved, out = resolved_columns(self._type, form, expressions, named)
        return self._then(ApplyExpressions(form, resolved), form, out, settings)


class DataStreamSink(OperatorSettings):
    """The end of a stream."""

    def __init__(self, node: Transformation) -> None:
        self._node = node


def _file_hint(target: object) -> str:
    is_path = isinstance(target, (str, PurePath))
    return f". For files write sink_to(FileSink({str(target)!r}, format='parquet'))" if is_path else ""
