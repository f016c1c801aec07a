"""The running reduce: for each record, the user's function of the key's latest result and the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.core.errors import ProgramError, SchemaError
from tidegate.operators.failures import OperatorError, batch_position
from tidegate.operators.functions.row_keys import key_position
from tidegate.operators.functions.row_operator import RowOperator
from tidegate.operators.keyed.latest_values import latest_values
from tidegate.operators.results import RETURNED, ResultType, wrong_type
from tidegate.records.batch import Batch
from tidegate.state.copies import Copier, itself, row_copier
from tidegate.state.generations import REMOVED

STATE_NAME: Final = "reduce-result"
"""The name in checkpoints. No attribute can have it, so a state of the user's function has it only if named so."""


class ReduceOperator(RowOperator):
    """Keeps the latest result of each key. The first record of a key is its first result."""

    def open(self) -> None:
        """Open the function and find the state."""
        super().open()
        if STATE_NAME in (state.name for bound in self._bound for _, state in bound.live):
            raise OperatorError(self.name) from ProgramError(
                f"a state of the function is named {STATE_NAME!r}, as the reduce's own is. Name it otherwise"
            )
        self._function = self.method("reduce")
        self._latest = latest_values(self.context, self.operation.key, self.output_type, STATE_NAME)
        self._key_position = key_position(self.operation.key, self.input_types[0])
        copier = row_copier(self.output_type)  # the key's result must not change with the emitted one
        self._copy_row: Copier = copier or itself
        self._loop = _write_loop(None, self.results, copied=copier is not None)
        self._keyed_loop = _write_loop(self._key_position, self.results, copied=copier is not None)

    def process(self, batch: Batch, input_index: int) -> None:
        """Reduce each record in order; emit each result, or the latest of each key in the batch."""
        rows = self.rows(batch)
        each = self.operation.emit == "each"
        position = self._key_position if each and self.backend is None else None
        keys = self.keys(batch, self.operation.key) if position is None else []
        records = iter(rows)
        taken = self.with_keys(records, keys)
        state, load, function = self._latest.begin(), self._latest.load, self._function
        out: list[Any] = []
        copy_row = self._copy_row
        loop = self._loop if position is None else self._keyed_loop
        try:
            loop(state, load, keys, taken, function, out, self._adopt, copy_row)
        except BaseException as e:
            raise self.failure(batch, rows, records) from e
        finally:
            self.leave_keys()
        if not each:
            out = [copy_row(state[k]) for k in dict.fromkeys(keys)]
        self._commit(batch)
        emit = self.emit_results if self.results.exact_class is None else self.emit_checked
        if each:
            emit(out, batch.origin, batch.timestamps, rows)
        else:
            emit(out, None, None, None)

    def snapshot(self, checkpoint_id: int) -> None:
        """Raise if the results cannot be stored; otherwise they are in the backend already."""
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


def _write_loop(position: int | None, results: ResultType, *, copied: bool) -> Callable[..., None]:
    """The loop over a batch, generated for exactly this type.

    The key is read from the record if it is a field (a list of all keys costs ten times as much). A result is checked
    while it is in the cache; one of another class is converted, so that the function always gets the declared class.
    """
    cls, length = results.exact_class, results.exact_length
    wrong = "" if cls is None else "type(r) is not cls"  # the interpreter has an instruction for this call
    if length is not None:
        wrong += f" or len(r) != {length}"
    text = f"""
def loop(state, load, keys, records, function, out, adopt, copy):
    for {"k, r in zip(keys, records, strict=True)" if position is None else "r in records"}:
        {"" if position is None else f"k = r[{position}]"}
        try:  # costs nothing where the key is known, which is nearly always
            so_far = state[k]
        except KeyError:
            so_far = load(k)
            if so_far is REMOVED:
                state[k] = {"copy(r)" if copied else "r"}
                out.append(r)
                continue
        r = function(so_far, r)
        {f"if {wrong}: r = adopt(r)" if wrong else ""}
        state[k] = {"copy(r)" if copied else "r"}
        out.append(r)
"""
    made: dict[str, Any] = {"cls": cls, "REMOVED": REMOVED}
    # Under this file's name, so that user tracebacks leave it out.
    exec(compile(text, __file__, "exec"), made)
    found: Callable[..., None] = made["loop"]
    return found
