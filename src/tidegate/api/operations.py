"""Operations: what each node of a program does, as frozen values that hold the user's live objects.

The streams of `api/streams.py` make them, the graph turns them into specs (pickled, described, hashed), and
`operators/` builds the running thing from them in a slot. They have no behaviour but a few facts for the planner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tidegate.api.functions import Function, function_name
from tidegate.api.sink import Sink
from tidegate.api.source import Source
from tidegate.api.state import StateDeclaration, declared_states
from tidegate.api.watermarks import WatermarkStrategy
from tidegate.records.types import RecordType

AggregateKind = Literal["count", "sum", "min", "max"]


@dataclass(frozen=True)
class Key:
    """How a stream is keyed: by columns, or by a function of the record whose result has `record_type`."""

    columns: tuple[str, ...]
    function: Callable[[Any], Any] | None
    record_type: RecordType

    def required_columns(self) -> frozenset[str] | None:
        """The columns that it reads, or None for all."""
        return frozenset(self.columns) if self.function is None else None

    def describe(self) -> str:
        """The columns or the function's name."""
        return ", ".join(self.columns) if self.function is None else f"{function_name(self.function)}()"


@dataclass(frozen=True)
class Operation:
    """Base of all operations."""

    rows: ClassVar[bool] = False
    """Whether it runs the user's Python per record (and so needs rows)."""

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "operation"

    @property
    def needs_event_time(self) -> bool:
        """Whether it is refused where records have no timestamps."""
        return False

    @property
    def alignment_group(self) -> str | None:
        """The group of sources that it may not run ahead of."""
        return None

    @property
    def commits(self) -> bool:
        """Whether it writes output that is committed with checkpoints."""
        return False

    def required_columns(self) -> frozenset[str] | None:
        """The input columns that it reads, or None for all."""
        return None

    def detail(self) -> str:
        """A few words for the plan beside the kind."""
        return ""

    def states(self) -> tuple[StateDeclaration, ...]:
        """The states that its function declares."""
        function = getattr(self, "function", None)
        return tuple(declared_states(function).values()) if isinstance(function, Function) else ()

    def state_key(self) -> Key | None:
        """The key by which its keyed state is kept; None without keys."""
        return getattr(self, "key", None)


@dataclass(frozen=True)
class ReadSource(Operation):
    """Reads a source; with a strategy its records have event times."""

    source: Source
    strategy: WatermarkStrategy | None = None

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "source"

    @property
    def alignment_group(self) -> str | None:
        """That of its strategy."""
        alignment = None if self.strategy is None else self.strategy.alignment
        return None if alignment is None else alignment.group

    def detail(self) -> str:
        """What is read; the strategy is told apart."""
        return self.source.describe()


@dataclass(frozen=True)
class AssignTimestamps(Operation):
    """Gives records event times, and the stream watermarks."""

    strategy: WatermarkStrategy

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "timestamps"


@dataclass(frozen=True)
class WriteSink(Operation):
    """Writes to a sink."""

    sink: Sink

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "sink"

    @property
    def commits(self) -> bool:
        """Whether the sink has transactions."""
        return self.sink.committable_type is not None

    def detail(self) -> str:
        """What is written."""
        return self.sink.describe()


@dataclass(frozen=True)
class ApplyFunction(Operation):
    """Runs a per-record function of the user: `form` is map, flat_map, filter or process."""

    rows: ClassVar[bool] = True
    form: Literal["map", "flat_map", "filter", "process"]
    function: Any
    key: Key | None = None

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return self.form

    def detail(self) -> str:
        """The function's name."""
        return function_name(self.function)


@dataclass(frozen=True)
class ApplyCoFunction(Operation):
    """Runs a per-record function over two inputs: `form` is map, flat_map or process."""

    rows: ClassVar[bool] = True
    form: Literal["map", "flat_map", "process"]
    function: Any
    keys: tuple[Key, Key] | None = None

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return f"co-{self.form}"

    def detail(self) -> str:
        """The function's name."""
        return function_name(self.function)

    def state_key(self) -> Key | None:
        """That of the first stream; the other's are equal to it."""
        return None if self.keys is None else self.keys[0]


@dataclass(frozen=True)
class ApplyBroadcastFunction(Operation):
    """Runs a function over a stream, keyed or not, and a second one that every subtask gets all of."""

    rows: ClassVar[bool] = True
    function: Any
    key: Key | None = None

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "broadcast-process"

    def detail(self) -> str:
        """The function's name."""
        return function_name(self.function)


@dataclass(frozen=True)
class ApplyBatchFunction(Operation):
    """Runs the user's function on Arrow record batches."""

    function: Callable[[Any], Any]

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "map_batches"

    def detail(self) -> str:
        """The function's name."""
        return function_name(self.function)


@dataclass(frozen=True)
class ApplyExpressions(Operation):
    """Runs polars expressions: `form` is select, with_columns or filter."""

    form: Literal["select", "with_columns", "filter"]
    expressions: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return self.form

    def required_columns(self) -> frozenset[str] | None:
        """The roots of a select's expressions; the others pass every column on, and `pl.all()` may mean any."""
        if self.form != "select" or any(e.meta.has_multiple_outputs() for e in self.expressions):
            return None
        return frozenset(name for e in self.expressions for name in e.meta.root_names())

    def detail(self) -> str:
        """The expressions."""
        return ", ".join(str(e) for e in self.expressions)


@dataclass(frozen=True)
class RollingAggregate(Operation):
    """A running count, sum, min or max per key; one result per record, or the latest per key and batch.

    `stage` is "local" for the pre-aggregation before an exchange, "merge" for what comes behind it, else "whole".
    """

    aggregate: AggregateKind
    column: str | None
    output: str
    key: Key
    emit: Literal["each", "batch"]
    stage: Literal["whole", "local", "merge"] = "whole"

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "aggregate"

    def required_columns(self) -> frozenset[str] | None:
        """The key columns and the aggregated one."""
        key = self.key.required_columns()
        return key if key is None or self.column is None else key | {self.column}

    def detail(self) -> str:
        """The aggregate in words."""
        what = self.aggregate if self.column is None else f"{self.aggregate}({self.column})"
        stage = "" if self.stage == "whole" else f", {self.stage}"
        return f"{what} per {self.key.describe()}, {'each record' if self.emit == 'each' else 'per batch'}{stage}"


@dataclass(frozen=True)
class RollingReduce(Operation):
    """A running reduce per key with the user's function; one result per record."""

    rows: ClassVar[bool] = True
    function: Any
    key: Key
    emit: Literal["each", "batch"] = "each"

    @property
    def kind(self) -> str:
        """The word that plans use."""
        return "reduce"

    def detail(self) -> str:
        """The function and the key."""
        return f"{function_name(self.function)} per {self.key.describe()}"
