"""From declared states to live ones: before a function is opened, what its class declares is put on the instance."""

from __future__ import annotations

from typing import Any

from tidegate.api.functions import Function
from tidegate.api.operations import Key
from tidegate.api.state import KeyedState, OperatorState, declared_states
from tidegate.core.errors import ProgramError
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.operator_states import OperatorStates


def bind_states(
    function: Any, operator: str, states: OperatorStates, key: Key | None
) -> KeyedStateBackend | None:
    """Put the live states, restored ones included, on the function; the backend if any of them is keyed.

    Called once in the slot, on the mailbox thread, before the function's `open`. Whoever runs the function sets the
    backend's `current_key` for each record, and `NO_KEY` behind the last.
    """
    if not isinstance(function, Function):
        return None
    backend: KeyedStateBackend | None = None
    for attribute, declaration in declared_states(function).items():
        live: object
        if isinstance(declaration, KeyedState):
            if key is None:
                raise ProgramError(
                    f"operator {operator!r}: state {declaration.name!r} is kept by key, but the stream has no keys. "
                    f"Call key_by before it"
                )
            backend = states.keyed(key.record_type)
            live = backend.state(declaration)
        elif isinstance(declaration, OperatorState):
            live = states.operator_state(declaration)
        else:
            raise ProgramError(
                f"operator {operator!r}: state {declaration.name!r} is of no known kind: {type(declaration).__name__}"
            )
        object.__setattr__(function, attribute, live)  # a function may be a frozen dataclass
    return backend
