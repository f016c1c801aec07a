"""The operations of windows: `ApplyWindow` runs the user's functions, `AggregateWindow` built-in aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import pyarrow as pa

from tidegate.aggregates.aggregate import Aggregate, aggregate_words, columns_read
from tidegate.api.column_cuts import ColumnCut
from tidegate.api.evictors import Evictor
from tidegate.api.functions import function_name
from tidegate.api.triggers import Trigger
from tidegate.api.windows import WindowAssigner
from tidegate.core.durations import format_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity, function_identity
from tidegate.program.aggregate_inputs import result_field
from tidegate.program.operations import Key, Operation, Stage, TwoStages
from tidegate.records.types import ObjectType, RecordType, RowType, ScalarType, record_type_of

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TIME_TYPE: Final = pa.timestamp("ms", "UTC")


def _everything(record: Any) -> int:
    return 0


WHOLE_STREAM: Final = Key((), _everything, record_type_of(int))
"""The key of the state of `window_all`, where the operation's own key is None."""


@dataclass(frozen=True)
class WindowOperation(Operation):
    """The common part of all window operations. `trigger` and `evictor` are None if the user set none."""

    assigner: WindowAssigner
    key: Key | None
    """None: the windows are over the whole stream (`window_all`)."""
    trigger: Trigger | None = None
    evictor: Evictor | None = None
    allowed_lateness_ms: int = 0
    late_tag: str | None = None
    """The id of the side output for late records; its type is the input's."""

    @property
    def keeps_keyed_state(self) -> bool:
        return not self.is_local_stage

    @cached_property
    def effective_trigger(self) -> Trigger:
        """The user's trigger, or the default of the assigner."""
        return self.assigner.default_trigger() if self.trigger is None else self.trigger

    @property
    def needs_event_time(self) -> bool:
        return self.assigner.is_event_time

    def state_key(self) -> Key | None:
        """The key; without keys, the constant `WHOLE_STREAM`."""
        return WHOLE_STREAM if self.key is None else self.key

    def unstorable(self, record_types: Sequence[RecordType]) -> str:
        """Asked of every type that its windows hold: here records."""
        if not any(t.is_object for t in record_types):
            return ""
        return _unstorable("a record", "Give the function that makes the records a return type hint")

    def window_words(self) -> str:
        """The windows in words, for the plan."""
        words = self.assigner.describe()
        if self.key is not None:
            words += f" per {self.key.describe()}"
        if self.trigger is not None:
            words += f", {self.trigger.describe()}"
        if self.evictor is not None:
            words += f", {self.evictor.describe()}"
        if self.allowed_lateness_ms:
            words += f", lateness {format_duration_ms(self.allowed_lateness_ms)}"
        return words

    def identity(self) -> Identity:
        return (
            self.assigner.identity(),
            None if self.key is None else self.key.identity(),
            None if self.trigger is None else self.trigger.identity(),
            None if self.evictor is None else self.evictor.identity(),
            self.allowed_lateness_ms,
        )


@dataclass(frozen=True)
class ApplyWindow(WindowOperation):
    """Runs the user's functions over windows, record by record.

    `form` says what `function` is: a reduce function, an `AggregateFunction`, or None for "process", which keeps every
    element. `window_function` is the `ProcessWindowFunction`; without one, the reduced value or the result of the
    aggregate is emitted.
    """

    kind = "window"
    rows = True
    form: Literal["reduce", "aggregate", "process"] = "process"
    function: Any = None
    window_function: Any = None
    accumulator_type: RecordType | None = None
    """The type that is kept per window, with form "aggregate"."""

    @property
    def functions(self) -> tuple[Any, ...]:
        return tuple(f for f in (self.function, self.window_function) if f is not None)

    def unstorable(self, record_types: Sequence[RecordType]) -> str:
        """An aggregate function's windows hold accumulators; with an evictor, records."""
        if self.form != "aggregate" or self.evictor is not None:
            return super().unstorable(record_types)
        if self.accumulator_type is None or not self.accumulator_type.is_object:
            return ""
        advice = "Give create_accumulator a return type hint, or pass accumulator_type="
        return _unstorable("the accumulator", advice)

    def detail(self) -> str:
        return f"{self.form} {' + '.join(map(function_name, self.functions))}, {self.window_words()}"

    def identity(self) -> Identity:
        return "window", self.form, tuple(map(function_identity, self.functions)), super().identity()


@dataclass(frozen=True)
class AggregateWindow(WindowOperation):
    """Built-in aggregates over windows; `aggregates` are (output column, aggregate) in order.

    Results are rows: the key columns, `window_start`, `window_end` (not with `GlobalWindows`), the aggregates; see
    `aggregate_window_type`.
    """

    kind = "window"
    aggregates: tuple[tuple[str, Aggregate], ...] = ()
    stage: Stage = "whole"
    aggregated_type: RecordType | None = None
    """In stage "merge", the type of the records before the exchange; see `window_partials`."""

    @property
    def rows(self) -> bool:
        return self.column_cut is None

    @property
    def runs_user_code(self) -> bool:
        return self.rows or (self.key is not None and self.key.function is not None)

    @property
    def is_local_stage(self) -> bool:
        return self.stage == "local"

    @property
    def hinted_function(self) -> Any:
        """The key function: only the key may lack a type."""
        return None if self.key is None else self.key.function

    def in_two_stages(self, record_type: RecordType) -> TwoStages | None:
        from tidegate.program.window_partials import in_two_stages

        return in_two_stages(self, record_type)

    def unstorable(self, record_types: Sequence[RecordType]) -> str:
        """Accumulators of columns are typed; only an evictor needs the records."""
        return "" if self.evictor is None else super().unstorable(record_types)

    @property
    def column_cut(self) -> ColumnCut | None:
        """How it runs on columns; None: record by record, because a part is the user's own code."""
        if self.effective_trigger.waits_for_end != "event time":
            return None
        return None if self.evictor is not None or self.has_object_keys else self.assigner.column_cut()

    @property
    def has_object_keys(self) -> bool:
        """Whether keys are Python objects without a type; results are tuples then."""
        return self.key is not None and self.key.record_type.is_object

    def required_columns(self) -> frozenset[str] | None:
        """The key columns and the aggregated ones; None (all) if the user's code reads the record."""
        if self.stage == "merge":
            return None
        mine = columns_read(a for _, a in self.aggregates)
        key = frozenset[str]() if self.key is None else self.key.required_columns()
        own_trigger = self.effective_trigger.waits_for_end is None
        reads_records = own_trigger or self.evictor is not None or self.late_tag is not None
        if mine is None or key is None or reads_records or self.assigner.reads_element:
            return None
        return key | mine

    def detail(self) -> str:
        what = aggregate_words(self.aggregates)
        stage = "" if self.stage == "whole" else f", {self.stage}"
        return f"{what}, {self.window_words()}{stage}"

    def identity(self) -> Identity:
        aggregates = tuple((name, a.identity()) for name, a in self.aggregates)
        return "aggregate window", aggregates, super().identity(), self.stage


def _unstorable(what: str, advice: str) -> str:
    return (
        f"keeps windows that cannot be stored in a checkpoint: {what} is a Python object without a type. {advice}; "
        f"or run without checkpoints and without resume"
    )


def aggregate_window_type(
    record_type: RecordType,
    key: Key | None,
    assigner: WindowAssigner,
    aggregates: tuple[tuple[str, Aggregate], ...],
) -> RecordType:
    """The type of the results: rows, or objects (plain tuples of the same fields) for an untyped key function."""
    fields = key_fields(key)
    if not assigner.is_global:
        fields += [pa.field(name, WINDOW_TIME_TYPE, False) for name in (WINDOW_START, WINDOW_END)]
    fields += [result_field(output, aggregate, record_type) for output, aggregate in aggregates]
    names = [f.name for f in fields]
    keys = [] if key is None else [f.name for f in key_fields(key)]
    for name in names:
        if names.count(name) > 1:
            remedy = "Give the aggregate another name: aggregate(other_name=...)"
            if name in keys and name in (WINDOW_START, WINDOW_END):
                remedy = f"Rename the key before: with_columns(earlier=pl.col({name!r})).key_by('earlier')"
            raise ProgramError(
                f"the windows' results would have two columns named {name!r} ({', '.join(names)}). {remedy}"
            )
    if key is not None and key.record_type.is_object:
        return ObjectType()
    return RowType(pa.schema(fields))


def key_fields(key: Key | None) -> list[pa.Field]:
    """The key columns of results: their own names, or `key` for a function that returns a scalar; none without keys."""
    if key is None or key.record_type.is_object:
        return []
    return [
        f.with_name("key") if isinstance(key.record_type, ScalarType) else f for f in key.record_type.schema
    ]
