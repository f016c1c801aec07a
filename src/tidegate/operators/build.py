"""From an operator's spec to the running operator."""

from __future__ import annotations

from typing import Any

from tidegate.api import operations as ops
from tidegate.api.async_io import ApplyAsync
from tidegate.api.join_operations import Deduplicate, IntervalJoin, WindowJoin
from tidegate.api.sink import FunctionSink
from tidegate.api.window_operations import WindowOperation
from tidegate.core.errors import SerializationError
from tidegate.core.words import kind_of
from tidegate.graph.blobs import load_in_slot
from tidegate.graph.job_graph import OperatorPayload, OperatorSpec
from tidegate.operators.async_io import AsyncOperator
from tidegate.operators.broadcast import BroadcastProcessOperator
from tidegate.operators.co_functions import CO_FORMS
from tidegate.operators.columns import BatchFunctionOperator, ExpressionFilterOperator, ExpressionOperator
from tidegate.operators.deduplicate import deduplicate_operator
from tidegate.operators.event_time.assigner import AssignTimestampsOperator
from tidegate.operators.functions import FORMS
from tidegate.operators.join.interval_join import IntervalJoinOperator
from tidegate.operators.join.window_join import WindowJoinOperator
from tidegate.operators.operator import Operator, OperatorContext
from tidegate.operators.rolling import aggregate_operator
from tidegate.operators.rolling_reduce import ReduceOperator
from tidegate.operators.sink import FunctionSinkOperator, SinkOperator
from tidegate.operators.source import SourceOperator
from tidegate.operators.timed_functions import with_timers
from tidegate.operators.window.build import window_operator


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
    match operation:
        case ops.ReadSource():
            return SourceOperator
        case ApplyAsync():
            return AsyncOperator
        case ops.AssignTimestamps():
            return AssignTimestampsOperator
        case ops.WriteSink(sink):
            return FunctionSinkOperator if type(sink) is FunctionSink else SinkOperator
        case ops.ApplyFunction(form, function):
            return with_timers(FORMS[form], function)
        case ops.ApplyCoFunction(form, function):
            return with_timers(CO_FORMS[form], function)
        case ops.ApplyBroadcastFunction(function):
            return with_timers(BroadcastProcessOperator, function)
        case Deduplicate():
            return deduplicate_operator(operation)
        case IntervalJoin():
            return IntervalJoinOperator
        case WindowJoin():
            return WindowJoinOperator
        case ops.ApplyBatchFunction():
            return BatchFunctionOperator
        case ops.ApplyExpressions(form):
            return ExpressionFilterOperator if form == "filter" else ExpressionOperator
        case ops.RollingAggregate():
            return aggregate_operator(operation)
        case ops.RollingReduce():
            return ReduceOperator
        case WindowOperation():
            return window_operator(operation)
    raise TypeError(f"no operator performs {kind_of(operation)}")
