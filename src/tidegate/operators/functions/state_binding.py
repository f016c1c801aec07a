"""State binding: before a function is opened, the states that its class declares become live states of the instance.

A function that assigns to a state (`self.last = 5`) replaces it by an attribute, which all keys share. Python cannot
refuse that without a cost for every record, so the operator calls `BoundStates.check` after each batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tidegate.api.state import KeyedState, OperatorState, StateDeclaration, declared_states
from tidegate.core.errors import ProgramError
from tidegate.program.operations import Key
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.operator_states import OperatorStates


class BoundStates(NamedTuple):
    """The live states of one function, as they were put on it."""

    function: Any
    live: tuple[tuple[str, StateDeclaration], ...]
    """Each with its attribute."""
    backend: KeyedStateBackend | None
    """The backend of the keyed ones; None if none is keyed."""

    def check(self) -> None:
        """Raise if the function has replaced a state by something else."""
        for attribute, live in self.live:
            if getattr(self.function, attribute, None) is not live:
                raise ProgramError(
                    f"state {live.name!r} of {type(self.function).__name__} was assigned to (self.{attribute} = ...), "
                    f"which is not kept, and is the same for all keys. Write self.{attribute}.{live.how_to_write}"
                )


def bind_states(function: Any, operator: str, states: OperatorStates, key: Key | None) -> BoundStates:
    """Put the live states, restored ones included, on the function.

    Called once in the slot, on the mailbox thread, before the function's `open`. The operator sets the backend's
    `current_key` for each record, and `NO_KEY` after the last.
    """
    backend: KeyedStateBackend | None = None
    bound: list[tuple[str, StateDeclaration]] = []
    for attribute, declaration in declared_states(function).items():
        live: StateDeclaration
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
        bound.append((attribute, live))
    return BoundStates(function, tuple(bound), backend)
