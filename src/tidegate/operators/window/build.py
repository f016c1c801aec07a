"""Which operator performs built-in aggregates over windows."""

from __future__ import annotations

from tidegate.api.window_operations import AggregateWindow
from tidegate.api.windows import EventTimeSessionWindows
from tidegate.operators.operator import Operator
from tidegate.operators.window.session_operator import SessionColumnsOperator
from tidegate.operators.window.slice_operator import (
    LocalWindowOperator,
    MergeWindowOperator,
    SliceWindowOperator,
    slicing_of,
)
from tidegate.operators.window.window_operator import AggregateWindowOperator


def aggregate_window_operator(operation: AggregateWindow) -> type[Operator]:
    """By columns where it can be done so."""
    if not operation.is_columnar:
        return AggregateWindowOperator
    if slicing_of(operation.assigner) is not None:
        stages = {"whole": SliceWindowOperator, "local": LocalWindowOperator, "merge": MergeWindowOperator}
        return stages[operation.stage]
    assigner = operation.assigner
    if type(assigner) is EventTimeSessionWindows and assigner.gap_ms is not None:
        return SessionColumnsOperator
    return AggregateWindowOperator
