"""Which operator performs built-in aggregates over windows."""

from __future__ import annotations

from typing import Final, assert_never

from tidegate.api.column_cuts import SessionGap, Slices
from tidegate.operators.operator import Operator
from tidegate.operators.window.session_operator import SessionColumnsOperator
from tidegate.operators.window.slice_operator import (
    LocalWindowOperator,
    MergeWindowOperator,
    SliceWindowOperator,
)
from tidegate.operators.window.window_operator import AggregateWindowOperator
from tidegate.program.window_operations import AggregateWindow

_OF_SLICES: Final = {"whole": SliceWindowOperator, "local": LocalWindowOperator, "merge": MergeWindowOperator}


def aggregate_window_operator(operation: AggregateWindow) -> type[Operator]:
    """By columns if the windows have a column cut, else record by record."""
    match operation.column_cut:
        case Slices():
            return _OF_SLICES[operation.stage]
        case SessionGap():
            return SessionColumnsOperator
        case None:
            return AggregateWindowOperator
        case other:
            assert_never(other)
