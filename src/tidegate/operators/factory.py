"""From an operator's spec to the running operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.api.async_io import ApplyAsync
from tidegate.api.sink import FunctionSink
from tidegate.core.errors import SerializationError
from tidegate.core.words import kind_of
from tidegate.graph.blobs import load_in_slot
from tidegate.graph.job_graph import OperatorPayload, OperatorSpec
from tidegate.operators.columns.column_functions import (
    BatchFunctionOperator,
    ExpressionFilterOperator,
    ExpressionOperator,
)
from tidegate.operators.event_time.assigner import AssignTimestampsOperator
from tidegate.operators.functions.async_functions import AsyncOperator
from tidegate.operators.functions.broadcast_functions import BroadcastProcessOperator
from tidegate.operators.functions.co_functions import CO_FORMS
from tidegate.operators.functions.record_functions import FORMS
from tidegate.operators.functions.timed_functions import with_timers
from tidegate.operators.join.interval_join import IntervalJoinOperator
from tidegate.operators.join.window_join import WindowJoinOperator
from tidegate.operators.keyed.deduplication import deduplicate_operator
from tidegate.operators.keyed.running_aggregates import aggregate_operator
from tidegate.operators.keyed.running_reduce import ReduceOperator
from tidegate.operators.operator import Operator, OperatorContext
from tidegate.operators.sink import FunctionSinkOperator, SinkOperator
from tidegate.operators.source import SourceOperator
from tidegate.operators.window.factory import aggregate_window_operator
from tidegate.operators.window.window_operator import WindowOperator
from tidegate.program import operations as ops
from tidegate.program.join_operations import Deduplicate, IntervalJoin, WindowJoin
from tidegate.program.window_operations import AggregateWindow, ApplyWindow


def build_operator(spec: OperatorSpec, context: OperatorContext) -> Operator:
    """Load a spec's blob and make its operator; raises `SerializationError` naming the operator.

    Called in the slot by the task, on the mailbox thread. `open` has not been called yet.
    """
    payload = load_in_slot(spec.blob, spec.name)
    if not isinstance(payload, OperatorPayload):
        raise SerializationError(
            f"the blob of operator {spec.name!r} holds {kind_of(payload)}, not an OperatorPayload"
        )
    return make_operator(payload, context)


def make_operator(payload: OperatorPayload, context: OperatorContext) -> Operator:
    """Make the operator of an operation that is at hand already."""
    cls = operator_class(payload.operation)
    return cls(payload.operation, payload.input_types, payload.output_type, payload.side_outputs, context)


def operator_class(operation: Any) -> type[Operator]:
    """The operator that performs an operation."""
    choose = _OPERATORS.get(type(operation))
    if choose is None:
        raise TypeError(f"no operator performs {kind_of(operation)}")
    return choose(operation)


def _sink_operator(operation: ops.WriteSink) -> type[Operator]:
    return FunctionSinkOperator if type(operation.sink) is FunctionSink else SinkOperator


def _expression_operator(operation: ops.ApplyExpressions) -> type[Operator]:
    return ExpressionFilterOperator if operation.form == "filter" else ExpressionOperator


_OPERATORS: Final[dict[type[ops.Operation], Callable[[Any], type[Operator]]]] = {
    ops.ReadSource: lambda o: SourceOperator,
    ops.AssignTimestamps: lambda o: AssignTimestampsOperator,
    ops.WriteSink: _sink_operator,
    ops.ApplyFunction: lambda o: with_timers(FORMS[o.form], o.function),
    ops.ApplyCoFunction: lambda o: with_timers(CO_FORMS[o.form], o.function),
    ops.ApplyBroadcastFunction: lambda o: with_timers(BroadcastProcessOperator, o.function),
    ops.ApplyBatchFunction: lambda o: BatchFunctionOperator,
    ops.ApplyExpressions: _expression_operator,
    ops.RollingAggregate: aggregate_operator,
    ops.RollingReduce: lambda o: ReduceOperator,
    ApplyAsync: lambda o: AsyncOperator,
    Deduplicate: deduplicate_operator,
    IntervalJoin: lambda o: IntervalJoinOperator,
    WindowJoin: lambda o: WindowJoinOperator,
    ApplyWindow: lambda o: WindowOperator,
    AggregateWindow: aggregate_window_operator,
}
"""The one place that knows which operator performs which operation."""
