"""The state of triggers and window functions, per window or per key: dicts, stored as MessagePack.

All calls concern the backend's current key. Dicts live until `flush`, which writes those that have changed and removes
those that are empty. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tidegate.api.state import MapState, ValueState
from tidegate.api.windows import TimeWindow
from tidegate.core.errors import ProgramError
from tidegate.state.backend import KeyedStateBackend


class _Held(NamedTuple):
    stored: bytes | None
    live: dict[str, Any]


class RememberedByWindow:
    """A dict per key and window."""

    def __init__(self, backend: KeyedStateBackend, name: str, operator: str) -> None:
        self._backend = backend
        self._operator = operator
        self._name = name
        self._state: Any = backend.state(MapState(TimeWindow, bytes, name=name))
        self._held: dict[tuple[Any, TimeWindow], _Held] = {}

    def of(self, window: TimeWindow) -> dict[str, Any]:
        """The dict of a window, to be changed in place."""
        if window.__class__ is not TimeWindow:  # the state stores no other class
            window = TimeWindow(*window)
        place = (self._backend.current_key, window)
        held = self._held.get(place)
        if held is None:
            stored = self._state.get(window)
            held = self._held[place] = _Held(stored, {} if stored is None else _decode(stored))
        return held.live

    def remove(self, window: TimeWindow) -> None:
        window = TimeWindow(*window)
        self._held.pop((self._backend.current_key, window), None)
        if self._state.contains(window):
            self._state.remove(window)

    def flush(self) -> None:
        """Write what has changed to the state. Changes the current key."""
        backend, state = self._backend, self._state
        for (backend.current_key, window), held in self._held.items():
            new = _encode(held.live, self._operator, self._name)
            if new is None and held.stored is not None:
                state.remove(window)
            elif new is not None and new != held.stored:
                state.put(window, new)
        self._held.clear()


class RememberedByKey:
    """A dict per key."""

    def __init__(self, backend: KeyedStateBackend, name: str, operator: str) -> None:
        self._backend = backend
        self._operator = operator
        self._name = name
        self._state: Any = backend.state(ValueState(bytes, name=name))
        self._held: dict[Any, _Held] = {}

    def of_key(self) -> dict[str, Any]:
        """The dict of the current key, to be changed in place."""
        key = self._backend.current_key
        held = self._held.get(key)
        if held is None:
            stored = self._state.value()
            held = self._held[key] = _Held(stored, {} if stored is None else _decode(stored))
        return held.live

    def flush(self) -> None:
        """Write what has changed to the state. Changes the current key."""
        backend = self._backend
        for backend.current_key, held in self._held.items():
            new = _encode(held.live, self._operator, self._name)
            if new != held.stored:
                self._state.update(new)
        self._held.clear()


def _encode(live: dict[str, Any], operator: str, name: str) -> bytes | None:
    if not live:
        return None
    try:
        return msgspec.msgpack.encode(live)
    except Exception as e:
        raise ProgramError(
            f"operator {operator!r}: {name.lstrip('$')} cannot store {live!r}: {e}. Store numbers, texts, bytes, None, "
            f"and lists and dicts of these"
        ) from e


_decode: Callable[[bytes], dict[str, Any]] = msgspec.msgpack.Decoder().decode
