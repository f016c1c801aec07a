"""Which operator performs an operation on windows."""

from __future__ import annotations

from tidegate.api.window_operations import AggregateWindow, WindowOperation
from tidegate.api.windows import EventTimeSessionWindows
from tidegate.operators.operator import Operator
from tidegate.operators.window.session_operator import SessionColumnsOperator
from tidegate.operators.window.slice_operator import (
    LocalWindowOperator,
    MergeWindowOperator,
    SliceWindowOperator,
    slicing_of,
)
from tidegate.operators.window.window_operator import WindowOperator


def window_operator(operation: WindowOperation) -> type[Operator]:
    """The operator for an operation; by columns where it can be done so."""
    return column_operator(operation) or WindowOperator


def column_operator(operation: WindowOperation) -> type[Operator] | None:
    """The vectorised operator, if there is one for it."""
    if not isinstance(operation, AggregateWindow) or not operation.is_columnar:
        return None
    if slicing_of(operation.assigner) is not None:
        stages = {"whole": SliceWindowOperator, "local": LocalWindowOperator, "merge": MergeWindowOperator}
        return stages[operation.stage]
    assigner = operation.assigner
    if type(assigner) is EventTimeSessionWindows and assigner.gap_ms is not None:
        return SessionColumnsOperator
    return None
