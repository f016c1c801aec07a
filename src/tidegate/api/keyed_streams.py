"""`KeyedStream`: a stream by key, with rolling aggregates, keyed windows and joins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Unpack

from typing_extensions import TypeForm

from tidegate.aggregates.aggregate import Aggregate, Input
from tidegate.aggregates.best_by import MaxBy, MinBy, Selected
from tidegate.aggregates.count import Count
from tidegate.aggregates.extremes import Max, Min
from tidegate.aggregates.sum import Sum
from tidegate.api.functions import (
    OutputTag,
    OutputTags,
    ProcessContext,
    ProcessFunction,
    ReduceFunction,
    check_callable,
    function_name,
)
from tidegate.api.streams import DataStream
from tidegate.core.durations import Duration
from tidegate.core.errors import ProgramError
from tidegate.program import partitioning as p
from tidegate.program.aggregate_inputs import kernel_of, named_aggregates
from tidegate.program.key_types import aggregate_type, totals_type
from tidegate.program.operations import Key, RollingAggregate, RollingReduce
from tidegate.program.operator_settings import Settings
from tidegate.program.signatures import check_function
from tidegate.program.state_checks import check_states
from tidegate.program.transformations import StreamRef
from tidegate.records.rows import Row
from tidegate.records.type_variables import NOT_GIVEN, K, O, T, V
from tidegate.records.types import RecordType

if TYPE_CHECKING:
    from tidegate.api.environment import Environment
    from tidegate.api.joins import IntervalJoinStreams
    from tidegate.api.windowed_streams import WindowedStream
    from tidegate.api.windows import WindowAssigner

Emit = Literal["each", "batch"]


class KeyedStream(DataStream[T], Generic[K, T]):
    """A stream in which all records of a key go to the same subtask."""

    def __init__(
        self, env: Environment, refs: tuple[StreamRef, ...], record_type: RecordType, key: Key
    ) -> None:
        super().__init__(env, refs, record_type)
        self._key_spec = key

    def count(
        self, *, emit: Emit | None = None, output: str = "count", **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """Running count per key.

        Emits one result per record (`emit="each"`), or the latest per key and batch with a local pre-aggregation
        before the exchange (`emit="batch"`; the default follows the option `mini_batch`).

        >>> from tidegate import Environment
        >>> env = Environment(runtime="in-process")
        >>> clicks = env.from_collection([{"app": "a"}, {"app": "b"}, {"app": "a"}])
        >>> [tuple(r) for r in clicks.key_by("app").count().execute_and_collect()]
        [('a', 1), ('b', 1), ('a', 2)]
        """
        return self._running({output: Count()}, emit, settings)

    def aggregate(
        self,
        aggregate: Aggregate | None = None,
        *,
        emit: Emit | None = None,
        **outputs: Aggregate | str | int,
    ) -> DataStream[Row]:
        """Running aggregates per key, each under the name of its result column; `emit` as for `count`.

        If one of them is not a running number (a text, the best record), all are computed record by record, without
        the local pre-aggregation.

        >>> from tidegate import Count, Environment, MaxBy, Sum
        >>> env = Environment(runtime="in-process")
        >>> sold = [{"shop": "n", "id": i, "price": price} for i, price in enumerate([5, 9, 1])]
        >>> by_shop = env.from_collection(sold).key_by("shop")
        >>> running = by_shop.aggregate(n=Count(), revenue=Sum("price"), best=MaxBy("price", "id"))
        >>> [tuple(r) for r in running.execute_and_collect()]
        [('n', 1, 5, 0), ('n', 2, 14, 1), ('n', 3, 15, 1)]
        """
        found, settings = named_aggregates(aggregate, outputs)
        if not found or not (aggregate is None or isinstance(aggregate, Aggregate)):
            raise ProgramError(
                'aggregate takes aggregates by name: aggregate(total=Sum("x"), n=Count()). A function of your own is '
                "for reduce(function); or derive a class from Aggregate"
            )
        return self._running(found, emit, settings)

    def sum(
        self, column: Input, *, emit: Emit | None = None, output: str = "", **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """Running sum of a column per key. None values are left out."""
        return self._one(Sum(column), emit, output, settings)

    def min(
        self, column: Input, *, emit: Emit | None = None, output: str = "", **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """Running minimum of a column per key."""
        return self._one(Min(column), emit, output, settings)

    def max(
        self, column: Input, *, emit: Emit | None = None, output: str = "", **settings: Unpack[Settings]
    ) -> DataStream[Row]:
        """Running maximum of a column per key."""
        return self._one(Max(column), emit, output, settings)

    def max_by(
        self,
        by: Input,
        select: Selected = None,
        *,
        emit: Emit | None = None,
        output: str = "",
        **settings: Unpack[Settings],
    ) -> DataStream[Row]:
        """Running maximum by a column: the selected column of the record with the largest `by` so far.

        Several columns, or all if `select` is None, become a struct.
        """
        return self._one(MaxBy(by, select), emit, output, settings)

    def min_by(
        self,
        by: Input,
        select: Selected = None,
        *,
        emit: Emit | None = None,
        output: str = "",
        **settings: Unpack[Settings],
    ) -> DataStream[Row]:
        """Running minimum by a column: the selected column of the record with the smallest `by` so far.

        Several columns, or all if `select` is None, become a struct.
        """
        return self._one(MinBy(by, select), emit, output, settings)

    def window(self, assigner: WindowAssigner) -> WindowedStream[K, T]:
        """Cut the records of each key into windows; see `docs/guide/event-time.md`."""
        from tidegate.api.windowed_streams import WindowedStream

        return WindowedStream(self, assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[K, T]:
        """Windows of `size` records of a key; with a slide, the last `size` records, every `slide` records.

        A window that is incomplete when the input ends is not computed.

        >>> from tidegate import Environment
        >>> env = Environment(runtime="in-process")
        >>> numbers = env.from_sequence(1, 5).key_by(lambda n: 0, returns=int)
        >>> [r.sum_value for r in numbers.count_window(2).sum("value").execute_and_collect()]
        [3, 7]
        """
        from tidegate.api.windowed_streams import count_windows

        return count_windows(self, size, slide)

    def reduce(
        self,
        function: Callable[[T, T], T] | ReduceFunction[T],
        *,
        emit: Emit | None = None,
        **settings: Unpack[Settings],
    ) -> DataStream[T]:
        """Running reduce per key: `function(so_far, record)` returns a record of the same type.

        Emits one result per record, or with `emit="batch"` the latest per key and batch.
        """
        check_callable(function, ReduceFunction, "reduce")
        operation = RollingReduce(function, self._key_spec, self._emit(emit))
        name = f"reduce {function_name(function)}"
        check_function(function, ReduceFunction, settings.get("name") or name)
        check_states(function, settings.get("name") or name, self._key_spec)
        return self._then(operation, name, self._type, settings)

    def interval_join(self, other: KeyedStream[K, V]) -> IntervalJoinStreams[K, T, V]:
        """Pair the records of this stream with those of another that have the same key and a time nearby.

        >>> from tidegate import Environment, WatermarkStrategy
        >>> env = Environment(runtime="in-process")
        >>> def timed(*records: tuple[str, int]) -> DataStream[tuple[str, int]]:
        ...     stream = env.from_collection(list(records), type=tuple[str, int])
        ...     return stream.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("f1"))
        >>> orders = timed(("a", 1_000), ("b", 2_000)).key_by("f0")
        >>> payments = timed(("a", 5_000), ("b", 60_000)).key_by("f0")
        >>> def wait(order: tuple[str, int], payment: tuple[str, int]) -> tuple[str, int]:
        ...     return order[0], payment[1] - order[1]
        >>> list(orders.interval_join(payments).between("0 s", "10 s").apply(wait).execute_and_collect())
        [('a', 4000)]
        """
        from tidegate.api.joins import IntervalJoinStreams

        return IntervalJoinStreams(self, other)

    def deduplicate(
        self,
        *,
        within: Duration,
        keep: str = "first",
        late_data: OutputTag[T] | None = None,
        **settings: Unpack[Settings],
    ) -> DataStream[T]:
        """Emit the first record of each key, then none of that key until `within` of event time after it.

        A record is emitted at once if it is the first of its key, or if its time is at least `within` after that of
        the last emitted one. Late records (not after the watermark) are dropped, or go to the side output `late_data`;
        the metric `late_records` counts them. A key is forgotten when the watermark is `within` after its record.

        >>> from tidegate import Environment, WatermarkStrategy
        >>> env = Environment(runtime="in-process")
        >>> seen = env.from_collection([("a", 1_000), ("a", 2_000), ("b", 2_500), ("a", 61_000)], type=tuple[str, int])
        >>> timed = seen.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("f1"))
        >>> list(timed.key_by("f0").deduplicate(within="1 min").execute_and_collect())
        [('a', 1000), ('b', 2500), ('a', 61000)]
        """
        from tidegate.api.deduplication import deduplicated

        return deduplicated(self, within, keep, late_data, settings)

    if TYPE_CHECKING:  # the same, where the key has a type

        def process(  # type: ignore[override]  # the key is another
            self,
            function: ProcessFunction[T, O, K] | Callable[[T, ProcessContext[K]], Iterable[O] | None],
            *,
            returns: TypeForm[O] = NOT_GIVEN,
            side_outputs: OutputTags = (),
            **settings: Unpack[Settings],
        ) -> DataStream[O]: ...

    def _key(self) -> Key | None:
        return self._key_spec

    def _inputs(self) -> tuple[StreamRef, ...]:
        hashed = p.Hash(self._key_spec)
        return tuple(StreamRef(r.upstream, r.tag, hashed) for r in self._refs)

    def _emit(self, emit: Emit | None) -> Emit:
        if emit not in (None, "each", "batch"):
            raise ProgramError(f'emit is "each" or "batch", got {emit!r}')
        return emit or ("batch" if self._env.options.mini_batch else "each")

    def _one(
        self, aggregate: Aggregate, emit: Emit | None, output: str, settings: Mapping[str, Any]
    ) -> DataStream[Row]:
        return self._running({output or aggregate.default_output(): aggregate}, emit, settings)

    def _running(
        self, outputs: dict[str, Aggregate], emit: Emit | None, settings: Mapping[str, Any]
    ) -> DataStream[Row]:
        mode, key, aggregates = self._emit(emit), self._key_spec, tuple(outputs.items())
        out_type = aggregate_type(self._type, key, aggregates)
        kernels = [(output, kernel_of(a, self._type)) for output, a in aggregates]
        by_rows = out_type.is_object or any(kernel.totals() is None for _, kernel in kernels)
        name = ", ".join(a.describe() for a in outputs.values()).removesuffix("()")
        whole = RollingAggregate(aggregates, key, mode, by_rows)
        if mode == "each" or key.function is not None or by_rows:
            return self._then(whole, name, out_type, settings)
        local = replace(whole, stage="local")
        merge = replace(whole, stage="merge", aggregated_type=self._type)
        between = totals_type(key, kernels)
        node = self._env._add(local, f"local {name}", (self._refs,), between)
        refs = (StreamRef(node, None, p.Hash(key)),)
        merged: DataStream[Row] = DataStream(self._env, refs, between)
        return merged._then(merge, name, out_type, settings)
