"""Functions over two connected streams: the loops of `RowOperator`, with one method per input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.operators.functions.row_operator import RowOperator
from tidegate.operators.operator import Operator
from tidegate.program.operations import Key
from tidegate.records.batch import Batch


class CoOperator(RowOperator):
    """Finds the two methods of the user's function, `<form>1` and `<form>2`."""

    def open(self) -> None:
        super().open()
        form = self.operation.form
        self._methods: tuple[Callable[..., Any], Callable[..., Any]] = (
            self.method(f"{form}1"),
            self.method(f"{form}2"),
        )

    def key(self, input_index: int) -> Key | None:
        """The key of an input's stream; None if it is not keyed."""
        keys = self.operation.keys
        return None if keys is None else keys[input_index]


class CoMapOperator(CoOperator):
    """One record out for each one in, of either input."""

    def process(self, batch: Batch, input_index: int) -> None:
        self.run_map(batch, self._methods[input_index], self.key(input_index))


class CoFlatMapOperator(CoOperator):
    """Any number of records out for each one in, of either input."""

    def process(self, batch: Batch, input_index: int) -> None:
        self.run_flat_map(batch, self._methods[input_index], self.key(input_index))


class CoProcessOperator(CoOperator):
    """Any number of records out for each one in, of either input, to the main and to side outputs."""

    def process(self, batch: Batch, input_index: int) -> None:
        self.run_process(batch, self._methods[input_index], self.key(input_index))


CO_FORMS: dict[str, type[Operator]] = {
    "map": CoMapOperator,
    "flat_map": CoFlatMapOperator,
    "process": CoProcessOperator,
}
