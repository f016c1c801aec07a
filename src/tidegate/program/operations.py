"""Operations: what each node of a program does, as frozen values that hold the user's live objects.

The streams of `api/streams.py` make them, the graph turns them into specs (pickled, described, hashed), and a slot
builds operators from them (`operators/`). An operation states all facts about itself as properties. Only the table of
`operators/factory.py` asks for its class.

`kind` and `detail` are text for plans. `identity` is durable: see `core/identity.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from tidegate.aggregates.aggregate import Aggregate, aggregate_words, columns_read
from tidegate.api.functions import Function, function_name, has_timers
from tidegate.api.sink import Sink
from tidegate.api.source import Source
from tidegate.api.state import KeyedState, StateDeclaration, declared_states
from tidegate.api.watermarks import WatermarkStrategy
from tidegate.core.identity import Identity, expression_identity, function_identity
from tidegate.program.expressions import fits_in_query
from tidegate.records.types import RecordType

Execution = Literal["reads", "writes", "vectorised", "per record"]
Stage = Literal["whole", "local", "merge"]
"""In a two-stage plan, "local" pre-aggregates before the exchange and "merge" completes after it; else "whole"."""


@dataclass(frozen=True)
class Key:
    """How a stream is keyed: by columns, or by a function of the record that returns `record_type`."""

    columns: tuple[str, ...]
    function: Callable[[Any], Any] | None
    record_type: RecordType

    def required_columns(self) -> frozenset[str] | None:
        """The columns that it reads, or None for all."""
        return frozenset(self.columns) if self.function is None else None

    def describe(self) -> str:
        return ", ".join(self.columns) if self.function is None else f"{function_name(self.function)}()"

    def identity(self) -> Identity:
        return self.columns if self.function is None else ("function", function_identity(self.function))


class TwoStages(NamedTuple):
    """An operation split into two stages, and the type of the records between them."""

    local: Operation
    merge: Operation
    between: RecordType


@dataclass(frozen=True)
class Operation(ABC):
    """What one node of a program does, and every fact that planner and slots need about it."""

    # ---- for plans ----

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "operation"

    def detail(self) -> str:
        """A few words for the plan after the kind."""
        return ""

    @property
    def execution(self) -> Execution:
        """How it runs, in the words of plans."""
        return "per record" if self.rows else "vectorised"

    # ---- what it is ----

    @abstractmethod
    def identity(self) -> Identity:
        """Its kind and what it does, durable: the id of an operator without a uid derives from this and its inputs.

        What may be tuned while state is kept (a capacity, a watermark strategy) is not part of it.
        """

    @property
    def read_source(self) -> Source | None:
        """The source that it reads."""
        return None

    @property
    def written_sink(self) -> Sink | None:
        """The sink that it writes to."""
        return None

    @property
    def watermark_strategy(self) -> WatermarkStrategy | None:
        """How its records get timestamps, if event time starts here."""
        return None

    @property
    def functions(self) -> tuple[Any, ...]:
        """The user's functions in it, except key functions; the last one makes its output."""
        return ()

    @property
    def hinted_function(self) -> Any:
        """The user's function whose return hint types the output; None if the type comes from elsewhere."""
        return self.functions[-1] if self.functions else None

    # ---- how it treats records ----

    @property
    def rows(self) -> bool:
        """Whether it runs the user's Python for each record, and so needs rows."""
        return False

    @property
    def runs_user_code(self) -> bool:
        """Whether it may run the user's code, whose speed is unknown."""
        return self.rows

    @property
    def keeps_type(self) -> bool:
        """Whether its output always has the type of its input."""
        return False

    @property
    def may_reorder(self) -> bool:
        """Whether the user's code can reorder the rows of a batch, so that timestamps no longer match."""
        return False

    @property
    def needs_event_time(self) -> bool:
        """Whether it is refused if records have no timestamps."""
        return False

    @property
    def alignment_group(self) -> str | None:
        """The group of sources whose slowest member it must not run ahead of."""
        return None

    def required_columns(self) -> frozenset[str] | None:
        """The input columns that it reads, or None for all."""
        return None

    # ---- what it keeps ----

    @property
    def commits(self) -> bool:
        """Whether it writes output that is committed with checkpoints."""
        sink = self.written_sink
        return sink is not None and sink.committable_type is not None

    def states(self) -> tuple[StateDeclaration, ...]:
        """The states that its functions declare."""
        functions = [f for f in self.functions if isinstance(f, Function)]
        return tuple(state for f in functions for state in declared_states(f).values())

    def state_key(self) -> Key | None:
        """The key of its keyed state; None without keys."""
        return getattr(self, "key", None)

    @property
    def has_timers(self) -> bool:
        """Whether one of its functions has timers."""
        return any(map(has_timers, self.functions))

    @property
    def keeps_keyed_state(self) -> bool:
        """Whether it keeps anything by key: declared states, timers, or its own state."""
        return self.has_timers or any(isinstance(state, KeyedState) for state in self.states())

    @property
    def keeps_state(self) -> bool:
        """Whether checkpoints contain something of it: positions, state, timers or committables."""
        return self.keeps_keyed_state or bool(self.states()) or self.commits or self.read_source is not None

    @property
    def keeps_untyped_keys(self) -> bool:
        """Whether it keeps keys without a type in plain memory, and so works with every state backend."""
        return False

    def unstorable(self, record_types: Sequence[RecordType]) -> str:
        """Why no checkpoint can hold what it keeps of input of these types, and what to do; empty: one can."""
        return ""

    # ---- for the planner's rewrites ----

    @property
    def is_local_stage(self) -> bool:
        """Whether it pre-aggregates, batch by batch, for another operation after an exchange. It keeps no state."""
        return False

    def in_two_stages(self, record_type: RecordType) -> TwoStages | None:
        """The same operation in two stages, for input of this type; None if it must not be split."""
        return None

    def joins_query(self, input_type: RecordType, output_type: RecordType) -> bool:
        """Whether one polars query can compute it together with its neighbours, with the same results."""
        return False

    def with_columns(self, names: Sequence[str]) -> Operation | None:
        """The same operation reading only these columns of its source; None if that saves nothing."""
        return None


@dataclass(frozen=True)
class ReadSource(Operation):
    """Reads a source; with a strategy its records have event times."""

    kind = "source"
    execution = "reads"
    source: Source
    strategy: WatermarkStrategy | None = None

    @property
    def read_source(self) -> Source:
        return self.source

    @property
    def watermark_strategy(self) -> WatermarkStrategy | None:
        return self.strategy

    @property
    def alignment_group(self) -> str | None:
        alignment = None if self.strategy is None else self.strategy.alignment
        return None if alignment is None else alignment.group

    def detail(self) -> str:
        return self.source.describe()

    def identity(self) -> Identity:
        """The source; the strategy may change."""
        return "source", self.source.identity()

    def with_columns(self, names: Sequence[str]) -> Operation | None:
        narrower = self.source.with_columns(names)
        return None if narrower is None else replace(self, source=narrower)


@dataclass(frozen=True)
class AssignTimestamps(Operation):
    """Gives records event times, and the stream watermarks."""

    kind = "timestamps"
    keeps_type = True
    strategy: WatermarkStrategy

    @property
    def watermark_strategy(self) -> WatermarkStrategy:
        return self.strategy

    @property
    def execution(self) -> Execution:
        return "per record" if self.strategy.reads_rows else "vectorised"

    @property
    def runs_user_code(self) -> bool:
        return self.strategy.reads_rows

    def identity(self) -> Identity:
        """Without the strategy, which may change."""
        return ("timestamps",)


@dataclass(frozen=True)
class WriteSink(Operation):
    """Writes to a sink."""

    kind = "sink"
    runs_user_code = True
    sink: Sink

    @property
    def written_sink(self) -> Sink:
        return self.sink

    @property
    def rows(self) -> bool:
        return self.sink.per_record

    @property
    def execution(self) -> Execution:
        return "per record" if self.rows else "writes"

    def detail(self) -> str:
        return self.sink.describe()

    def identity(self) -> Identity:
        return "sink", self.sink.identity()


class FunctionOperation(Operation):
    """An operation that runs a function of the user per record."""

    rows = True
    function: Any

    @property
    def functions(self) -> tuple[Any, ...]:
        return (self.function,)

    def detail(self) -> str:
        return function_name(self.function)


@dataclass(frozen=True)
class ApplyFunction(FunctionOperation):
    """Runs a per-record function of the user: `form` is map, flat_map, filter or process."""

    form: Literal["map", "flat_map", "filter", "process"]
    function: Any
    key: Key | None = None

    @property
    def kind(self) -> str:
        return self.form

    @property
    def keeps_type(self) -> bool:
        return self.form == "filter"

    def identity(self) -> Identity:
        return self.form, function_identity(self.function)


@dataclass(frozen=True)
class ApplyCoFunction(FunctionOperation):
    """Runs a per-record function over two inputs: `form` is map, flat_map or process."""

    form: Literal["map", "flat_map", "process"]
    function: Any
    keys: tuple[Key, Key] | None = None

    @property
    def kind(self) -> str:
        return f"co-{self.form}"

    def identity(self) -> Identity:
        return "co", self.form, function_identity(self.function)

    def state_key(self) -> Key | None:
        """The key of the first stream; keys of the second are equal to it."""
        return None if self.keys is None else self.keys[0]


@dataclass(frozen=True)
class ApplyBroadcastFunction(FunctionOperation):
    """Runs a function over a stream, keyed or not, and a broadcast stream."""

    kind = "broadcast-process"
    function: Any
    key: Key | None = None

    def identity(self) -> Identity:
        return "broadcast", function_identity(self.function)


@dataclass(frozen=True)
class ApplyBatchFunction(FunctionOperation):
    """Runs the user's function on Arrow record batches."""

    kind = "map_batches"
    rows = False
    runs_user_code = True
    may_reorder = True
    function: Callable[[Any], Any]

    def identity(self) -> Identity:
        return "batches", function_identity(self.function)


@dataclass(frozen=True)
class ApplyExpressions(Operation):
    """Runs polars expressions: `form` is select, with_columns or filter."""

    form: Literal["select", "with_columns", "filter"]
    expressions: tuple[Any, ...]

    @property
    def kind(self) -> str:
        return self.form

    @property
    def keeps_type(self) -> bool:
        return self.form == "filter"

    def required_columns(self) -> frozenset[str] | None:
        """The root columns of a select. The other forms pass every column on, and `pl.all()` may read any."""
        if self.form != "select" or any(e.meta.has_multiple_outputs() for e in self.expressions):
            return None
        return frozenset(name for e in self.expressions for name in e.meta.root_names())

    def joins_query(self, input_type: RecordType, output_type: RecordType) -> bool:
        """Unless it is a filter, after which there are fewer records."""
        return self.form != "filter" and fits_in_query(
            input_type.schema, self.form, self.expressions, output_type.schema
        )

    def detail(self) -> str:
        return ", ".join(str(e) for e in self.expressions)

    def identity(self) -> Identity:
        return "expressions", self.form, tuple(expression_identity(e) for e in self.expressions)


@dataclass(frozen=True)
class RollingAggregate(Operation):
    """Running aggregates per key; one result per record, or the latest per key and batch.

    `aggregates` are (output column, aggregate) in order.
    """

    kind = "aggregate"
    keeps_untyped_keys = True
    aggregates: tuple[tuple[str, Aggregate], ...]
    key: Key
    emit: Literal["each", "batch"]
    by_rows: bool = False
    """Whether they run record by record: one of them is not a running number, or keys have no type."""
    stage: Stage = "whole"
    aggregated_type: RecordType | None = None
    """In stage "merge", the type of the records before the exchange."""

    @property
    def is_local_stage(self) -> bool:
        return self.stage == "local"

    @property
    def keeps_keyed_state(self) -> bool:
        return not self.is_local_stage

    @property
    def hinted_function(self) -> Any:
        """The key function: only the key may lack a type."""
        return self.key.function

    @property
    def runs_user_code(self) -> bool:
        return self.key.function is not None or self.by_rows

    def required_columns(self) -> frozenset[str] | None:
        key, mine = self.key.required_columns(), columns_read(a for _, a in self.aggregates)
        return None if key is None or mine is None or self.stage == "merge" else key | mine

    def detail(self) -> str:
        what = aggregate_words(self.aggregates).removesuffix("()")
        stage = "" if self.stage == "whole" else f", {self.stage}"
        return f"{what} per {self.key.describe()}, {'each record' if self.emit == 'each' else 'per batch'}{stage}"

    def identity(self) -> Identity:
        aggregates = tuple((output, a.identity()) for output, a in self.aggregates)
        return "aggregate", aggregates, self.key.identity(), self.emit, self.stage


@dataclass(frozen=True)
class RollingReduce(FunctionOperation):
    """A running reduce per key with the user's function."""

    kind = "reduce"
    keeps_type = True
    keeps_keyed_state = True
    keeps_untyped_keys = True
    function: Any
    key: Key
    emit: Literal["each", "batch"] = "each"

    def detail(self) -> str:
        return f"{function_name(self.function)} per {self.key.describe()}"

    def identity(self) -> Identity:
        return "reduce", function_identity(self.function), self.key.identity()
