"""What both backends say to a value that does not fit its state."""

from __future__ import annotations

from typing import Any

from tidegate.core.errors import SchemaError, SerializationError
from tidegate.records.columns import brief


def cannot_store(operator: str, state: str, key: Any, value: Any, reason: SchemaError) -> SerializationError:
    """The error for a value that does not fit its state."""
    return SerializationError(
        f"operator {operator!r}: state {state!r} cannot store a {type(value).__name__} for key {brief(key)}: {reason}. "
        f"Store values of the declared type, or declare the type of what is stored"
    )
