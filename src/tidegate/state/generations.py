"""The tables under live states: cells, of which those changed since the last snapshot are in one dict.

    reads:    changed → below it: frozen generations, then the backend's own store        writes: changed
    snapshot: changed becomes a frozen generation (no copy), and a new dict takes its place

A cell is a kept value (see `KeptForm`) or, with a time to live, the pair of the time of its last write and the kept
value. Values that are not in `changed` are never changed in place: to change one, put a new object into `changed`.

A hot loop may use a table directly instead of a live state, for values that need no `adopt`:

    try:
        so_far = table.changed[key]
    except KeyError:
        so_far = table.load(key)        # REMOVED if the key has none; copy it if its type is mutable
    table.changed[key] = result         # `table.changed` is another dict after each snapshot: fetch it per batch

What is in `changed` belongs to the loop, which may let a function change it in place. What `load` returns may be in the
middle of being written to a file. Mailbox thread only.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final

Entries = dict[Any, Any]


class Removed:
    """The type of `REMOVED`."""

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = Removed()
"""In a table: the key has no value (or no longer)."""

CLEARED: Final = Removed()
"""As a key in the changes of a map: entries older than these changes are removed."""


UNBOUNDED: Final = sys.maxsize


class Generations(ABC):
    """The common part of all tables."""

    def __init__(self) -> None:
        self.changed: Entries = {}
        self.check_at: int = UNBOUNDED
        """Code that writes to `changed` directly calls `grown` when it has more keys than this."""
        self.on_freeze: Callable[[Entries], None] = lambda changed: None
        """Called with the new `changed`, for a live state that keeps a reference to it."""

    @abstractmethod
    def remove(self, key: Any) -> None: ...

    def grown(self) -> None:
        """Called when `changed` has more than `check_at` keys."""


class ValueGenerations(Generations):
    """One cell per key."""

    @abstractmethod
    def load(self, key: Any) -> Any:
        """The cell of a key that is not in `changed`, or `REMOVED`."""

    @property
    @abstractmethod
    def has_older(self) -> bool:
        """Whether there may be cells that are not in `changed`."""

    def find(self, key: Any) -> Any:
        """The cell of a key, or `REMOVED`."""
        changed = self.changed
        return changed[key] if key in changed else self.load(key)

    def put(self, key: Any, cell: Any) -> None:
        self.changed[key] = cell

    def remove(self, key: Any) -> None:
        self.put(key, REMOVED)


class MapGenerations(Generations):
    """A map per key: `changed[key]` is a dict of the entries put (or `REMOVED`) since the last snapshot.

    If it has the key `CLEARED`, older entries do not count. So one entry put into a large map costs one entry in the
    next increment.
    """

    @abstractmethod
    def older_changes(self, key: Any) -> Iterable[Entries]:
        """The changes of a key in frozen generations, newest first."""

    @abstractmethod
    def stored_entry(self, key: Any, map_key: Any) -> Any:
        """An entry below all changes, or `REMOVED`."""

    @abstractmethod
    def entries(self, key: Any) -> Iterable[tuple[Any, Any]]:
        """The entries of a key at this moment: writes during the iteration do not show."""

    @abstractmethod
    def put_entry(self, key: Any, map_key: Any, cell: Any) -> None: ...

    def load_entry(self, key: Any, map_key: Any) -> Any:
        """One entry of a key, or `REMOVED`."""
        changes = self.changed.get(key)
        if changes is not None:
            if map_key in changes:
                return changes[map_key]
            if CLEARED in changes:
                return REMOVED
        for changes in self.older_changes(key):
            if map_key in changes:
                return changes[map_key]
            if CLEARED in changes:
                return REMOVED
        return self.stored_entry(key, map_key)

    def newer_entries(self, key: Any) -> tuple[Entries, bool]:
        """All changes of a key in a new dict, and whether entries below them no longer count."""
        changes, older = self.changed.get(key), self.older_changes(key)
        newer: Entries = {} if changes is None else dict(changes)
        for changes in older:
            if CLEARED in newer:
                break
            newer = {**changes, **newer}
        return newer, newer.pop(CLEARED, None) is not None

    def remove_entry(self, key: Any, map_key: Any) -> None:
        self.put_entry(key, map_key, REMOVED)
