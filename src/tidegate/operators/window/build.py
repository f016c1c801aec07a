"""Which operator performs an operation on windows."""

from __future__ import annotations

from tidegate.api.window_operations import WindowOperation
from tidegate.operators.operator import Operator
from tidegate.operators.window.window_operator import WindowOperator


def window_operator(operation: WindowOperation) -> type[Operator]:
    """The operator for an operation; by columns where it can be done so."""
    return WindowOperator
