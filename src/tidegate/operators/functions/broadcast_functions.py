"""A stream, keyed or not, connected with a broadcast stream: broadcast state, and rules applied to all keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tidegate.api.functions import Function
from tidegate.api.state import KeyedState, declared_states
from tidegate.core.errors import ProgramError
from tidegate.operators.functions.row_operator import RowOperator, SideOutputs
from tidegate.records.batch import Batch
from tidegate.state.backend import NO_KEY, KeyedStateBackend


class BroadcastProcessOperator(RowOperator):
    """Calls `process` for records of the first input, `process_broadcast` for those of the second.

    Broadcast state can be written only while a broadcast record is processed.
    """

    def open(self) -> None:
        super().open()
        self._process = self.method("process")
        self._process_broadcast = self.method("process_broadcast")

    def process(self, batch: Batch, input_index: int) -> None:
        if input_index == 0:
            self.run_process(batch, self._process, self.operation.key)
            return
        states = self.context.states
        context = BroadcastSide(self.side_outputs, self.name, self.user_function(), self.backend)
        states.set_broadcast_writable(True)
        try:
            self.run_process(batch, self._process_broadcast, None, context)
        finally:
            states.set_broadcast_writable(False)


class BroadcastSide(SideOutputs):
    """The `BroadcastContext`: side outputs, and keyed state of all keys of the subtask. One per batch."""

    __slots__ = ("_backend", "_function", "_operator")

    def __init__(
        self, tags: Iterable[str], operator: str, function: Function, backend: KeyedStateBackend | None
    ) -> None:
        super().__init__(tags)
        self._operator = operator
        self._function = function
        self._backend = backend

    @property
    def current_key(self) -> Any:
        """Raises `ProgramError`: a broadcast record has no key."""
        raise ProgramError(
            f"operator {self._operator!r}: context.current_key: a broadcast record has no key. Use "
            f"context.apply_to_keyed_state to reach the state of every key"
        )

    def apply_to_keyed_state(self, state: KeyedState | str, function: Callable[[Any, Any], object]) -> None:
        """Call `function(key, state)` for every key that has a value in the state."""
        name = state if isinstance(state, str) else getattr(state, "name", None)
        keyed = {
            s.name: getattr(self._function, attribute)
            for attribute, s in declared_states(self._function).items()
            if isinstance(s, KeyedState)
        }
        backend = self._backend
        if backend is None or name not in keyed:
            known = ", ".join(map(repr, keyed)) or "none"
            raise ProgramError(
                f"operator {self._operator!r}: apply_to_keyed_state({name!r}): the function declares no such keyed "
                f"state (declared: {known})"
            )
        live = keyed[name]
        try:
            for key in backend.keys(name):
                backend.current_key = key
                function(key, live)
        finally:
            backend.current_key = NO_KEY
