"""`MergingWindowSet`: the session windows of each key, and where the contents of each are.

When windows merge, the new one keeps its contents where those of one of the old ones are (its state window), so that a
session that grows moves nothing. All calls concern the backend's current key. Mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

from tidegate.api.state import MapState
from tidegate.api.windows import TimeWindow
from tidegate.state.backend import KeyedStateBackend

SESSIONS: Final = "$sessions"

OnMerge = Callable[[TimeWindow, Sequence[TimeWindow], TimeWindow, Sequence[TimeWindow]], None]
"""Called with the new window, those that it replaces, its state window, and the state windows to merge into that."""


class MergingWindowSet:
    """The windows of a key never overlap or touch: those that would are merged."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend
        self._state: Any = backend.state(MapState(TimeWindow, TimeWindow, name=SESSIONS))
        self._live: dict[Any, dict[TimeWindow, TimeWindow]] = {}
        self._stored: dict[Any, dict[TimeWindow, TimeWindow]] = {}

    def add(self, new: TimeWindow, on_merge: OnMerge) -> TimeWindow:
        """Add a window; returns the one that it is now part of."""
        windows = self._of_key()
        if new in windows:
            return new
        touching = sorted(w for w in windows if w.intersects(new))  # the earliest keeps its place
        if not touching:
            windows[new] = new
            return new
        merged = reduce(TimeWindow.cover, touching, new)
        if merged in windows:  # it touches no other: those would be part of it already
            return merged
        state_window, *others = [windows.pop(w) for w in touching]
        windows[merged] = state_window
        on_merge(merged, touching, state_window, others)
        return merged

    def state_window(self, window: TimeWindow) -> TimeWindow | None:
        """Where the contents of a window are; None if there is no such window."""
        return self._of_key().get(window)

    def retire(self, window: TimeWindow) -> None:
        self._of_key().pop(window, None)

    def windows(self) -> list[TimeWindow]:
        return list(self._of_key())

    def flush(self) -> None:
        """Write what has changed to the state. Changes the current key."""
        backend, state = self._backend, self._state
        for backend.current_key, windows in self._live.items():
            stored = self._stored[backend.current_key]
            for window in stored:
                if window not in windows:
                    state.remove(window)
            for window, state_window in windows.items():
                if stored.get(window) != state_window:
                    state.put(window, state_window)
        self._live.clear()
        self._stored.clear()

    def _of_key(self) -> dict[TimeWindow, TimeWindow]:
        key = self._backend.current_key
        found = self._live.get(key)
        if found is None:
            stored = {TimeWindow(*w): TimeWindow(*s) for w, s in self._state.items()}
            self._stored[key] = stored
            # By start, for the same order on every backend.
            found = self._live[key] = dict(sorted(stored.items()))
        return found
