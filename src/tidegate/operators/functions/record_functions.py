"""map, flat_map, filter and process with the user's own Python, record by record."""

from __future__ import annotations

from typing import Any

from tidegate.operators.functions.row_operator import RowOperator
from tidegate.operators.operator import Operator
from tidegate.records.batch import Batch


class MapOperator(RowOperator):
    """One record out for each one in; positions in the source stay known."""

    def open(self) -> None:
        super().open()
        self._function = self.method("map")

    def process(self, batch: Batch, input_index: int) -> None:
        self.run_map(batch, self._function, self.operation.key)


class FlatMapOperator(RowOperator):
    """Any number of records out for each one in."""

    def open(self) -> None:
        super().open()
        self._function = self.method("flat_map")

    def process(self, batch: Batch, input_index: int) -> None:
        self.run_flat_map(batch, self._function, self.operation.key)


class ProcessOperator(RowOperator):
    """Any number of records out for each one in, to the main and to side outputs."""

    def open(self) -> None:
        super().open()
        self._function = self.method("process")

    def process(self, batch: Batch, input_index: int) -> None:
        self.run_process(batch, self._function, self.operation.key)


class FilterOperator(RowOperator):
    """Passes on the records for which the function is true in Python's sense.

    A batch that loses no record is passed on as it is. One that has columns keeps them, filtered, beside its rows.
    """

    def open(self) -> None:
        super().open()
        self._function = self.method("filter")

    def process(self, batch: Batch, input_index: int) -> None:
        rows = self.rows(batch)
        function = self._function
        keys = self.state_keys(batch, self.operation.key)
        records = iter(rows)
        taken = self.with_keys(records, keys)
        mask: list[bool] = []
        kept: list[Any] = []
        cuts_rows_only = not batch.has_columns and batch.timestamps is None
        try:
            if cuts_rows_only:
                kept = [r for r in taken if function(r)]
            else:
                mask = [True if function(r) else False for r in taken]  # noqa: SIM210 - bool() is a call
        except BaseException as e:
            raise self.failure(batch, rows, records) from e
        finally:
            self.leave_keys()
        count = len(kept) if cuts_rows_only else mask.count(True)
        if count == len(rows):
            self.context.emit(batch)
        elif count:
            self.context.emit(Batch(batch.type, rows=kept) if cuts_rows_only else batch.filter(mask))


FORMS: dict[str, type[Operator]] = {
    "map": MapOperator,
    "flat_map": FlatMapOperator,
    "filter": FilterOperator,
    "process": ProcessOperator,
}
