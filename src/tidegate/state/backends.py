"""Makes the backend that the option `state.backend` names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from tidegate.core.errors import StateCompatibilityError
from tidegate.core.state_backends import STATE_BACKENDS
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.backend import BackendContext, KeyedStateBackend


def make_backend(context: BackendContext) -> KeyedStateBackend:
    """Make the backend that the options name, empty. Only its module is imported."""
    module, _, name = STATE_BACKENDS[context.options.state_backend].implementation.partition(":")
    backend: type[KeyedStateBackend] = getattr(importlib.import_module(module), name)
    return backend(context)


def check_written_by(backend: str, handles: Iterable[KeyedStateHandle], operator: str) -> None:
    """Refuse files of another backend: a backend reads only its own."""
    for handle in handles:
        if handle.backend != backend:
            known = handle.backend in STATE_BACKENDS
            advice = f"Set state.backend={handle.backend}, or start" if known else "Start"
            raise StateCompatibilityError(
                f"operator {operator!r} cannot restore key groups {handle.range}: the checkpoint was written with "
                f"state.backend={handle.backend}, but the job uses {backend}. {advice} without state"
            )
