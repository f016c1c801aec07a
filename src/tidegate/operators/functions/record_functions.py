"""map, flat_map, filter and process with the user's own Python, record by record."""

from __future__ import annotations

from itertools import compress
from typing import Any

import pyarrow as pa

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
        mask: list[bool] | None = None
        try:
            if batch.has_columns or batch.timestamps is not None:
                mask = [True if function(r) else False for r in taken]  # noqa: SIM210 - bool() is a call
                kept = list(compress(rows, mask))
            else:
                kept = [r for r in taken if function(r)]
        except BaseException as e:
            raise self.failure(batch, rows, records) from e
        finally:
            self.leave_keys()
        if len(kept) == len(rows):
            self.context.emit(batch)
        elif kept:
            self.context.emit(keep(batch, kept, mask))


def keep(batch: Batch, rows: list[Any] | None, mask: Any) -> Batch:
    """The part of a batch where `mask` (a list or an Arrow array) is true; `rows` are its rows if they exist.

    Positions in the source are lost. The mask may be None if there are only rows.
    """
    columns = timestamps = None
    if mask is not None:
        chosen = pa.array(mask, pa.bool_()) if isinstance(mask, list) else mask
        columns = batch.columns.filter(chosen) if batch.has_columns else None
        timestamps = None if batch.timestamps is None else batch.timestamps.filter(chosen)
    return Batch(batch.type, columns, rows, None, timestamps)


FORMS: dict[str, type[Operator]] = {
    "map": MapOperator,
    "flat_map": FlatMapOperator,
    "filter": FilterOperator,
    "process": ProcessOperator,
}
