"""The running reduce: per record the user's function of what the key had so far and the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tidegate.core.errors import SchemaError
from tidegate.operators.failures import OperatorError
from tidegate.operators.keys import key_position
from tidegate.operators.latest_values import latest_values
from tidegate.operators.results import wrong_type
from tidegate.operators.row_operator import RETURNED, RowOperator, batch_position
from tidegate.records.batch import Batch
from tidegate.state.heap.table import REMOVED

STATE_NAME: Final = "reduce-result"
"""The name in checkpoints; no attribute's name, so no state that the user's function declares has it."""

Load = Callable[[Any], Any]


class ReduceOperator(RowOperator):
    """Keeps the latest result of each key. The first record of a key is its first result."""

    def open(self) -> None:
        """Open the function and find the state."""
        super().open()
        self._function = self.method("reduce")
        self._latest = latest_values(self.context, self.operation.key, self.output_type, STATE_NAME)
        self._key_position = key_position(self.operation.key, self.input_types[0])

    def process(self, batch: Batch, input_index: int) -> None:
        """Reduce each record in order; emit each result, or the latest of each key in the batch."""
        rows = self.rows(batch)
        each = self.operation.emit == "each"
        position = self._key_position if each and self.backend is None else None
        keys = self.keys(batch, self.operation.key) if position is None else []
        records = iter(rows)
        taken = self.with_keys(records, keys)
        cls, length = self.results.exact_class, self.results.exact_length
        state, load, function = self._latest.begin(), self._latest.load, self._function
        out: list[Any] = []
        copy_row = self.output_type.copy_row
        append: Callable[[Any], None] = out.append
        if self.output_type.is_mutable:  # what is emitted must not change with what the key has
            append = lambda result: out.append(copy_row(result))  # noqa: E731
        try:
            if cls is None:
                _reduce(state, load, keys, taken, function, append)
            elif length is None:
                _reduce_checked(state, load, keys, taken, function, append, cls, self._adopt)
            elif position is None:
                _reduce_tuples(state, load, keys, taken, function, out, length, self._adopt)
            else:
                _reduce_keyed_tuples(state, load, position, taken, function, out, length, self._adopt)
        except BaseException as e:
            raise self.failure(batch, rows, records) from e
        finally:
            self.leave_keys()
        if not each:
            out = [copy_row(state[k]) for k in dict.fromkeys(keys)]
        self._commit(batch)
        emit = self.emit_results if cls is None else self.emit_checked
        if each:
            emit(out, batch.origin, batch.timestamps, rows)
        else:
            emit(out, None, None, None)

    def snapshot(self, checkpoint_id: int) -> None:
        """The state is in the backend, or nowhere that a checkpoint could have it from."""
        self._latest.check_snapshot()

    def _commit(self, batch: Batch) -> None:
        try:
            self._latest.commit()
        except SchemaError as e:
            raise OperatorError(self.name, batch_position(batch)) from wrong_type(e, RETURNED)

    def _adopt(self, result: Any) -> Any:
        try:
            return self.results.adopt([result])[0]
        except SchemaError as e:
            raise wrong_type(e, RETURNED) from e


def _reduce(
    state: dict[Any, Any],
    load: Load,
    keys: list[Any],
    records: Iterator[Any],
    function: Callable[[Any, Any], Any],
    append: Callable[[Any], None],
) -> None:
    for k, r in zip(keys, records, strict=True):
        try:  # costs nothing where the key is known, which is nearly always
            so_far = state[k]
        except KeyError:
            so_far = load(k)
            if so_far is REMOVED:
                state[k] = r
                append(r)
                continue
        state[k] = r = function(so_far, r)
        append(r)


def _reduce_checked(
    state: dict[Any, Any],
    load: Load,
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
            so_far = load(k)
            if so_far is REMOVED:
                state[k] = r
                append(r)
                continue
        r = function(so_far, r)
        if type(r) is not cls:  # a call in name only: the interpreter has an instruction for it
            r = adopt(r)
        state[k] = r
        append(r)


def _reduce_tuples(
    state: dict[Any, Any],
    load: Load,
    keys: list[Any],
    records: Iterator[Any],
    function: Callable[[Any, Any], Any],
    out: list[Any],
    length: int,
    adopt: Callable[[Any], Any],
) -> None:
    """The same for tuples of one length, checked while they are in the cache: later it costs twice as much."""
    for k, r in zip(keys, records, strict=True):
        try:
            so_far = state[k]
        except KeyError:
            so_far = load(k)
            if so_far is REMOVED:
                state[k] = r
                out.append(r)
                continue
        r = function(so_far, r)
        if type(r) is not tuple or len(r) != length:
            r = adopt(r)
        state[k] = r
        out.append(r)


def _reduce_keyed_tuples(
    state: dict[Any, Any],
    load: Load,
    position: int,
    records: Iterator[Any],
    function: Callable[[Any, Any], Any],
    out: list[Any],
    length: int,
    adopt: Callable[[Any], Any],
) -> None:
    """The same where the key is a field: taken here it costs a tenth of what a list of all keys costs."""
    for r in records:
        k = r[position]
        try:
            so_far = state[k]
        except KeyError:
            so_far = load(k)
            if so_far is REMOVED:
                state[k] = r
                out.append(r)
                continue
        r = function(so_far, r)
        if type(r) is not tuple or len(r) != length:
            r = adopt(r)
        state[k] = r
        out.append(r)
