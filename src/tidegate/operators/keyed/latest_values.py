"""One value per key for operators that loop over rows: a dict while a batch is processed, backed by a state backend.

    values = latest.begin()             per batch: the dict that the loop reads and writes
    try:
        so_far = values[key]
    except KeyError:
        so_far = latest.load(key)       REMOVED if the key has no value
    values[key] = result
    latest.commit()                     when the batch is done

So a known key costs no more than a dict, on every backend. `load` may change with each `begin`. Mailbox thread only;
must not be used after a failure between `begin` and `commit`. `latest_values` chooses the form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tidegate.api.state import ValueState
from tidegate.core.errors import ProgramError
from tidegate.operators.operator import OperatorContext
from tidegate.program.operations import Key
from tidegate.records.types import RecordType, ScalarType, TupleType
from tidegate.state.backend import NO_KEY, KeyedStateBackend
from tidegate.state.copies import copier_for
from tidegate.state.generations import REMOVED, ValueGenerations
from tidegate.state.serializers import KeySerializer


def latest_values(
    context: OperatorContext, key: Key, value_type: RecordType, state_name: str, *, by_state: bool = False
) -> LatestValues:
    """The values of an operator, restored. Raises if checkpoints are on and cannot store them.

    `by_state`: each value passes through the state, which checks it; for values that users make.
    """
    if key.record_type.is_object or value_type.is_object:
        return MemoryValues(context, key, value_type)
    backend = context.states.keyed(key.record_type)
    if isinstance(value_type, ScalarType) and value_type.schema.field(0).nullable:
        # None is a value here, but in a state it means no value.
        boxed = TupleType([(value_type._codec, True)])
        return StateValues(backend, key, ValueState(boxed, name=state_name), is_boxed=True)
    declaration: ValueState[Any] = ValueState(value_type, name=state_name)
    table = None if by_state else backend.table(declaration)
    if table is not None:
        return TableValues(table, value_type)
    return StateValues(backend, key, declaration)


class LatestValues(ABC):
    """The latest value of each key."""

    load: Callable[[Any], Any]
    """The value of a key that is not in the dict, or `REMOVED`, which is never in it. The caller may change it."""

    @abstractmethod
    def begin(self) -> dict[Any, Any]:
        """The dict of this batch; a key that is not in it may still have a value."""

    @abstractmethod
    def commit(self) -> None:
        """Store what is in the dict."""

    def check_snapshot(self) -> None:
        """Raise if the values cannot be stored in a checkpoint."""


class TableValues(LatestValues):
    """For a backend that keeps the values themselves: the dict is the table's own."""

    def __init__(self, table: ValueGenerations, value_type: RecordType) -> None:
        self._table = table
        self._copy = copier_for(value_type)
        self.load = _nothing

    def begin(self) -> dict[Any, Any]:
        """The values that changed since the last snapshot; without checkpoints, all."""
        table = self._table
        if table.has_older:
            self.load = table.load if self._copy is None else self._load_copy
        return table.changed

    def _load_copy(self, key: Any) -> Any:
        """A copy: a snapshot may be reading the older value now, and the user's function may change it."""
        found = self._table.load(key)
        return found if found is REMOVED or self._copy is None else self._copy(found)

    def commit(self) -> None:
        """It is in the table already."""


class StateValues(LatestValues):
    """On any backend: each key of the batch is read once and written once."""

    def __init__(
        self, backend: KeyedStateBackend, key: Key, declaration: ValueState[Any], is_boxed: bool = False
    ) -> None:
        self._backend = backend
        live = backend.state(declaration)
        assert isinstance(live, ValueState)
        self._state: ValueState[Any] = live
        self._is_boxed = is_boxed
        self._keys = None if key.function is None else KeySerializer(key.record_type)
        self._batch: dict[Any, Any] = {}
        self.load = self._read

    def begin(self) -> dict[Any, Any]:
        self._batch = {}
        return self._batch

    def _read(self, key: Any) -> Any:
        """Read the key's state; keeps the current key, which may be set for the user's own states."""
        backend = self._backend
        current = backend.current_key
        backend.current_key = self._stored_key(key)
        found = self._state.value()
        backend.current_key = current
        if found is None:
            return REMOVED
        return found[0] if self._is_boxed else found

    def commit(self) -> None:
        """Write the state of every key of the batch."""
        backend, update, boxed = self._backend, self._state.update, self._is_boxed
        for key, value in self._batch.items():
            backend.current_key = self._stored_key(key)
            update((value,) if boxed else value)
        backend.current_key = NO_KEY

    def _stored_key(self, key: Any) -> Any:
        """The key in its declared type: a function may return an int for a float, which is another key in bytes."""
        keys = self._keys
        return key if keys is None or key.__class__ is keys.exact_class else keys.adopt(key)


class MemoryValues(LatestValues):
    """Python objects without a type: a plain dict, for jobs without checkpoints."""

    def __init__(self, context: OperatorContext, key: Key, value_type: RecordType) -> None:
        self._values: dict[Any, Any] = {}
        self.load = _nothing
        self._refusal = not_storable(context.operator_name, key, value_type)
        if context.options.checkpoint_interval:
            self.check_snapshot()

    def begin(self) -> dict[Any, Any]:
        return self._values

    def commit(self) -> None:
        """They are in the dict."""

    def check_snapshot(self) -> None:
        raise ProgramError(self._refusal)


def _nothing(key: Any) -> Any:
    return REMOVED


def not_storable(operator: str, key: Key, value_type: RecordType) -> str:
    """Why the state of an operator cannot be in a checkpoint, and what to do."""
    if key.record_type.is_object:
        reason = f"its key {key.describe()} has no type"
        advice = "Give the key function a return type hint (or key_by(..., returns=...)), or key by columns"
    else:
        reason = f"its records are of type {value_type.describe()}"
        advice = "Give the function that makes the records a return type hint: a dataclass, NamedTuple, tuple or scalar"
    return (
        f"operator {operator!r} keeps keyed state that cannot be stored in a checkpoint: {reason}. {advice}; or switch "
        f"checkpoints off"
    )
