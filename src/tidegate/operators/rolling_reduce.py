"""The running reduce: per record the user's function of what the key had so far and the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidegate.core.errors import SchemaError
from tidegate.operators.results import wrong_type
from tidegate.operators.row_operator import RETURNED, RowOperator
from tidegate.records.batch import Batch


class ReduceOperator(RowOperator):
    """Keeps the latest result of each key in a dict. The first record of a key is its first result."""

    def open(self) -> None:
        """Open the function."""
        super().open()
        self._function = self.method("reduce")
        self._state: dict[Any, Any] = {}

    def process(self, batch: Batch, input_index: int) -> None:
        """Reduce each record in order; emit each result, or the latest of each key in the batch."""
        rows = self.rows(batch)
        keys = self.keys(batch, self.operation.key)
        records = iter(rows)
        cls = self.results.exact_class
        out: list[Any] = []
        copy_row = self.output_type.copy_row
        append: Callable[[Any], None] = out.append
        if self.output_type.is_mutable:  # what is emitted must not change with what the key has
            append = lambda result: out.append(copy_row(result))  # noqa: E731
        try:
            if cls is None:
                _reduce(self._state, keys, records, self._function, append)
            else:
                _reduce_checked(self._state, keys, records, self._function, append, cls, self._adopt)
        except BaseException as e:
            raise self.failure(batch, rows, records) from e
        emit = self.emit_results if cls is None else self.emit_checked
        if self.operation.emit == "each":
            emit(out, batch.origin, batch.timestamps, rows)
        else:
            emit([copy_row(self._state[k]) for k in dict.fromkeys(keys)], None, None, None)

    def _adopt(self, result: Any) -> Any:
        try:
            return self.results.adopt([result])[0]
        except SchemaError as e:
            raise wrong_type(e, RETURNED) from e


def _reduce(
    state: dict[Any, Any],
    keys: list[Any],
    records: Iterator[Any],
    function: Callable[[Any, Any], Any],
    append: Callable[[Any], None],
) -> None:
    for k, r in zip(keys, records, strict=True):
        try:  # costs nothing where the key is known, which is nearly always
            so_far = state[k]
        except KeyError:
            pass
        else:
            r = function(so_far, r)
        state[k] = r
        append(r)


def _reduce_checked(
    state: dict[Any, Any],
    keys: list[Any],
    records: Iterator[Any],
    function: Callable[[Any, Any], Any],
    append: Callable[[Any], None],
    cls: type,
    adopt: Callable[[Any], Any],
) -> None:
    """The same; a result of another class than `cls` is adopted, so that the function never sees it as it is."""
    for k, r in zip(keys, records, strict=True):
        try:
            so_far = state[k]
        except KeyError:
            pass
        else:
            r = function(so_far, r)
            if r.__class__ is not cls:
                r = adopt(r)
        state[k] = r
        append(r)
