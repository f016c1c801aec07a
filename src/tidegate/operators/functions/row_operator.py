"""The base of operators that run the user's Python per record: life cycle, the three loops, results, blame.

The loops do no bookkeeping, except for the current key if the function has keyed state. When the user's function
raises, the index of its record is read from the iterator of the loop, and the error gets the operator's name, the
record and its position.

A record whose fields do not fit its type is found only when columns are needed: after `emit`, perhaps three operators
later. So a bare `SchemaError` out of `emit` belongs to the operator that made the records, and operators that only pass
records on do not catch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from types import GeneratorType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.api.functions import Function, OutputTag, TimerService
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.words import kind_of
from tidegate.operators.failures import OperatorError, blame, close_blamed, record_failure, rows_of
from tidegate.operators.functions.no_timers import NoTimers
from tidegate.operators.functions.row_keys import key_position, record_keys
from tidegate.operators.functions.state_binding import BoundStates, bind_states
from tidegate.operators.operator import Operator
from tidegate.operators.results import (
    RETURNED,
    ResultType,
    emit_checked,
    first_misfit,
    misfit,
    wrong_type,
)
from tidegate.program.operations import Key
from tidegate.records.batch import Batch, Origin
from tidegate.records.elements import MAX_WATERMARK
from tidegate.records.types import RecordType, brief
from tidegate.state.backend import NO_KEY, KeyedStateBackend


class RowOperator(Operator):
    """Runs a user's function for every record; `operation.function` is a callable or a `Function`."""

    _opened = False
    _finished = False
    _known_position: tuple[RecordType, int | None] | None = None
    backend: KeyedStateBackend | None = None
    """Where the function's keyed state is; None if it declares none."""
    _bound: tuple[BoundStates, ...] = ()

    def open(self) -> None:
        """Give the user's function its states, open it, and prepare the types of its results."""
        self.results = ResultType(self.output_type)
        self._side_results = {tag: ResultType(t) for tag, t in self.side_outputs.items()}
        function = self.user_function()
        if isinstance(function, Function):
            self.backend = self.give_states(function)
            self._opened = True
            self.open_function(function)

    def give_states(self, function: Function) -> KeyedStateBackend | None:
        """Put the live states on a function, to be checked later; returns the backend if any of them is keyed."""
        with blame(self.name):
            bound = bind_states(function, self.name, self.context.states, self.operation.state_key())
        if bound.live:
            self._bound = (*self._bound, bound)
        return bound.backend

    def open_function(self, function: Function) -> None:
        """Open a function that has its states."""
        with blame(self.name):
            try:
                function.open(self.context.runtime_context())
            finally:
                self.check_states()

    def on_event_time(self, watermark_ms: int) -> None:
        """Set the time for state with an event-time TTL; the end of input does not count as time."""
        if self.backend is not None and watermark_ms != MAX_WATERMARK:
            self.backend.current_watermark_ms = watermark_ms

    def finish(self) -> None:
        """The input has ended; from now on a failing `close` fails the job."""
        self._finished = True

    def close(self) -> None:
        """Close the user's function if `open` was called; after an earlier failure an error here is only logged."""
        if not self._opened:
            return
        self._opened = False
        close_blamed(self.name, self.user_function().close, clean=self._finished)

    def user_function(self) -> Any:
        """The user's function as it is in the operation."""
        return self.operation.function

    def method(self, name: str) -> Callable[..., Any]:
        """The user's callable: the function itself, or this method of a `Function`."""
        function = self.user_function()
        found: Callable[..., Any] = getattr(function, name) if isinstance(function, Function) else function
        return found

    @property
    def timer_service(self) -> TimerService:
        """The `TimerService` of the function; here without timers."""
        return NoTimers(self)

    # ---- the loops ----

    def run_map(self, batch: Batch, function: Callable[[Any], Any], key: Key | None = None) -> None:
        """Emit `function(record)` for every record."""
        rows = self.rows(batch)
        keys = self.state_keys(batch, key)
        records = iter(rows)
        try:
            out = [function(r) for r in self.with_keys(records, keys)]
        except BaseException as e:
            raise self.failure(batch, rows, records) from e
        finally:
            self.leave_keys()
        self.emit_results(out, batch.origin, batch.timestamps, rows)

    def run_flat_map(self, batch: Batch, function: Callable[[Any], Any], key: Key | None = None) -> None:
        """Emit everything in `function(record)` for every record."""
        rows = self.rows(batch)
        keys = self.state_keys(batch, key)
        records = iter(rows)
        out: list[Any] = []
        extend = out.extend
        ends: list[int] | None = None if batch.timestamps is None else []
        try:
            for r in self.with_keys(records, keys):
                part = function(r)
                if type(part) is not list and type(part) is not GeneratorType:
                    part = records_of(part)
                extend(part)
                if ends is not None:
                    ends.append(len(out))
        except BaseException as e:
            raise self.failure(batch, rows, records) from e
        finally:
            self.leave_keys()
        self._emit_many(batch, out, ends)

    def run_process(
        self,
        batch: Batch,
        function: Callable[[Any, Any], Any],
        key: Key | None,
        context: Any = None,
    ) -> None:
        """Emit everything in `function(record, context)`, then what went to side outputs, tag by tag."""
        rows = self.rows(batch)
        position = None if key is None or batch.timestamps is not None else self._position_in(key, batch.type)
        keys = rows if key is None or position is not None else self.keys(batch, key)
        holder: Any  # has the attribute `current_key`, which the loop sets
        if key is None:
            context = context or UnkeyedContext(self.side_outputs)
            holder = _Nobody()
        elif self.backend is not None:
            context, holder = StatefulContext(self.side_outputs, self.backend), self.backend
        else:
            context = holder = KeyedContext(self.side_outputs)
        records = iter(rows)
        context.enter(self, batch, records)
        out: list[Any] = []
        extend = out.extend
        ends: list[int] | None = None if batch.timestamps is None else []
        buffers: dict[str, list[Any]] = context.buffers
        side_ends: dict[str, list[int]] = {tag: [] for tag in buffers}
        try:
            if position is not None:
                _process_tuples(records, position, holder, function, context, extend)
            else:
                # The keys come second: zip has then taken the record before it sets the key.
                for r, holder.current_key in zip(records, keys, strict=True):
                    part = function(r, context)
                    if part is not None:
                        if type(part) is not list and type(part) is not GeneratorType:
                            part = records_of(part)
                        extend(part)
                    if ends is not None:
                        ends.append(len(out))
                        for tag, values in buffers.items():
                            side_ends[tag].append(len(values))
        except BaseException as e:
            raise self.failure(batch, rows, records) from e
        finally:
            self.leave_keys()
        self._emit_many(batch, out, ends)
        for tag, values in buffers.items():
            if values:
                self.emit_side(tag, values, _repeat(batch.timestamps, side_ends[tag]))

    # ---- keys for state ----

    def _position_in(self, key: Key, record_type: RecordType) -> int | None:
        """The position of the key in a tuple; cached for the type that nearly all batches have."""
        if self._known_position is None or self._known_position[0] is not record_type:
            self._known_position = record_type, key_position(key, record_type)
        return self._known_position[1]

    def state_keys(self, batch: Batch, key: Key | None) -> list[Any] | None:
        """The key of every record if the function has keyed state, else None."""
        return None if self.backend is None or key is None else self.keys(batch, key)

    def with_keys(self, records: Iterator[Any], keys: list[Any] | None) -> Iterator[Any]:
        """The records; taking one makes its key the current one."""
        return records if keys is None or self.backend is None else _keyed(records, keys, self.backend)

    def leave_keys(self) -> None:
        """Unset the key after the last record of a batch. Called before anything of it is emitted."""
        if self.backend is not None:
            self.backend.current_key = NO_KEY
        self.check_states()

    def check_states(self) -> None:
        """Raise if the function has assigned to a state; another error of it is then only a consequence."""
        for bound in self._bound:
            try:
                bound.check()
            except ProgramError as e:
                raise OperatorError(self.name) from e

    # ---- in and out ----

    def rows(self, batch: Batch) -> list[Any]:
        return rows_of(batch, self.name)

    def keys(self, batch: Batch, key: Key) -> list[Any]:
        return record_keys(batch, key, self.name)

    def emit_results(
        self,
        out: list[Any],
        origin: Origin | None = None,
        timestamps: Any = None,
        inputs: list[Any] | None = None,
    ) -> None:
        """Check and emit the results of the user's function; `inputs` if it made one result for each of them."""
        try:
            out = self.results.adopt(out)
        except SchemaError as e:
            index = first_misfit(self.output_type, out)
            raise misfit(self.name, origin, index, inputs) from wrong_type(e, RETURNED)
        self.emit_checked(out, origin, timestamps, inputs)

    def emit_checked(
        self, out: list[Any], origin: Origin | None, timestamps: Any, inputs: list[Any] | None
    ) -> None:
        """Emit records of the right class. If their fields turn out wrong later, this operator is blamed."""
        emit_checked(self, out, origin, timestamps, inputs)

    def _emit_many(self, batch: Batch, out: list[Any], ends: list[int] | None) -> None:
        if not out:
            return
        self.emit_results(out, timestamps=_repeat(batch.timestamps, ends))

    def emit_side(self, tag: str, values: list[Any], timestamps: Any) -> None:
        """Check and emit what the user's function sent to a side output."""
        record_type = self.side_outputs[tag]
        where = f"the function gave side output {tag!r} the wrong type"
        try:
            values = self._side_results[tag].adopt(values)
        except SchemaError as e:
            raise OperatorError(self.name) from wrong_type(e, where)
        try:
            self.context.emit_side(tag, Batch(record_type, rows=values, timestamps=timestamps))
        except SchemaError as e:
            if first_misfit(record_type, values) < 0:
                raise
            raise OperatorError(self.name) from wrong_type(e, where)

    # ---- blame ----

    def failure(self, batch: Batch, rows: list[Any], records: Iterator[Any]) -> OperatorError:
        """Blame the record that the loop over `records` (an iterator of `rows`) took last."""
        return record_failure(self.name, batch, rows, records)


class SideOutputs:
    """The part of a `ProcessContext` that every stream has; one per batch."""

    __slots__ = ("_batch", "_owner", "_records", "_times", "buffers")

    def __init__(self, tags: Iterable[str]) -> None:
        self.buffers: dict[str, list[Any]] = {tag: [] for tag in tags}

    def enter(self, operator: RowOperator, batch: Batch, records: Iterator[Any]) -> None:
        """Begin the loop over a batch; the iterator of its rows tells which record is the current one."""
        self._owner = operator
        self._batch = batch
        self._records = records
        self._times: list[int] | None = None

    @property
    def timestamp(self) -> int | None:
        """The event time of the current record, found on demand."""
        if self._times is None:
            if self._batch.timestamps is None:
                return None
            self._times = self._batch.timestamps.to_pylist()
        return self._times[self._batch.num_rows - length_hint(self._records) - 1]

    @property
    def timer_service(self) -> TimerService:
        """The time, and timers if the function has them."""
        return self._owner.timer_service

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        """Keep a value for a side output; it is emitted after the batch."""
        try:
            self.buffers[tag.id].append(value)
        except (KeyError, AttributeError):
            raise ProgramError(self._refusal(tag)) from None

    def _refusal(self, tag: Any) -> str:
        if not isinstance(tag, OutputTag):
            return f"context.output needs an OutputTag, got {kind_of(tag)}: {brief(tag)}"
        names = ", ".join(map(repr, sorted(self.buffers))) or "none"
        return (
            f"side output {tag.id!r} is not declared (declared: {names}). "
            f"Name it in process(..., side_outputs=(tag,))"
        )


class UnkeyedContext(SideOutputs):
    """The `ProcessContext` of a stream without keys."""

    __slots__ = ()

    @property
    def current_key(self) -> Any:
        """Raises `ProgramError`: there is no key."""
        raise ProgramError("context.current_key: the stream has no key. Call key_by before process")


class KeyedContext(SideOutputs):
    """The `ProcessContext` of a keyed stream; the loop sets the key before each record."""

    __slots__ = ("current_key",)
    current_key: Any


class StatefulContext(SideOutputs):
    """The `ProcessContext` of a keyed stream whose function has keyed state: the backend has the key."""

    __slots__ = ("_backend",)

    def __init__(self, tags: Iterable[str], backend: KeyedStateBackend) -> None:
        super().__init__(tags)
        self._backend = backend

    @property
    def current_key(self) -> Any:
        return self._backend.current_key


class _Nobody:
    """Null object that accepts `current_key` on unkeyed streams."""

    __slots__ = ("current_key",)


def _process_tuples(
    records: Iterator[Any],
    position: int,
    holder: Any,
    function: Callable[[Any, Any], Any],
    context: Any,
    extend: Callable[[Iterable[Any]], None],
) -> None:
    """The loop of `run_process` over tuples without timestamps: it reads the key from the record."""
    for r in records:
        holder.current_key = r[position]
        part = function(r, context)
        if part is not None:
            if type(part) is not list and type(part) is not GeneratorType:
                part = records_of(part)
            extend(part)


def _keyed(records: Iterator[Any], keys: list[Any], backend: KeyedStateBackend) -> Iterator[Any]:
    # The record comes first: zip has then taken it before it sets the key.
    for r, backend.current_key in zip(records, keys, strict=True):
        yield r


def _repeat(timestamps: Any, ends: list[int] | None) -> Any:
    """The timestamp of each input for all records made from it; `ends` counts those made up to each input."""
    if timestamps is None or ends is None:
        return None
    counts: npt.NDArray[np.int64] = np.diff(np.array([0, *ends]))
    return timestamps.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def records_of(result: Any) -> Iterable[Any]:
    """The records that a flat_map or process function returned; an obvious mistake raises `SchemaError`."""
    if isinstance(result, (str, bytes, dict)) or hasattr(result, "_fields"):
        raise SchemaError(
            f"the function must return an iterable of records, but returned {kind_of(result)}: "
            f"{brief(result)}. Return a list, or yield it"
        )
    if not isinstance(result, Iterable):
        try:
            return iter(result)
        except TypeError:
            raise SchemaError(
                f"the function must return an iterable of records, but returned "
                f"{'None' if result is None else f'{kind_of(result)}: {brief(result)}'}. "
                f"Return a list (empty for no records), or yield"
            ) from None
    return result
