"""The errors of all backends for a state without a current key, and for a value that does not fit."""

from __future__ import annotations

from typing import Any

from tidegate.api.state import StateAccessError
from tidegate.core.errors import SchemaError, SerializationError
from tidegate.core.words import kind_of
from tidegate.records.columns import brief


def without_key(operator: str, state: str) -> StateAccessError:
    """The error for keyed state without a current key."""
    return StateAccessError(
        f"operator {operator!r}: state {state!r} is kept by key, but there is no current key here. Use it while a "
        f"record of a keyed stream is processed"
    )


def cannot_store(operator: str, state: str, key: Any, value: Any, reason: SchemaError) -> SerializationError:
    """The error for a value that does not fit its state."""
    return SerializationError(
        f"operator {operator!r}: state {state!r} cannot store {kind_of(value)} for key {brief(key)}: {reason}. "
        f"Store values of the declared type, or declare the type of what is stored"
    )
