"""What live states stand on: a table of cells, of which those that changed since the last snapshot lie in one dict.

    reads:   changed → what is below it: frozen generations, then the backend's own store        writes: changed
    snapshot: changed becomes a frozen generation (no copy), a new dict takes its place

A cell is a kept value (see `KeptForm`), with a time to live the pair of the time of its last write and the kept value.
What is not in `changed` is never changed in place: whoever wants another value puts a new object there.

A hot loop may use a table itself instead of a live state, for values that need no `adopt`:

    try:
        so_far = table.changed[key]
    except KeyError:
        so_far = table.load(key)        # REMOVED if the key has none; copy it if its type can change
    table.changed[key] = result         # `table.changed` is another dict after each snapshot: fetch it per batch

What lies in `changed` belongs to the loop, which may let a function change it in place; what `load` returns may just be
on its way into a file. Mailbox thread only.
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
"""In a table: the key has no value (any more)."""

CLEARED: Final = Removed()
"""As a key of a map's changes: entries that are older than these changes are gone."""


UNBOUNDED: Final = sys.maxsize


class Generations(ABC):
    """What all tables have."""

    def __init__(self) -> None:
        self.changed: Entries = {}
        self.check_at: int = UNBOUNDED
        """Whoever writes to `changed` itself calls `grown` when it has more keys than that."""
        self.on_freeze: Callable[[Entries], None] = lambda changed: None
        """Called with the new `changed`, for a live state that keeps a reference to it."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Forget a key."""

    def grown(self) -> None:
        """There are more changes than at the last look."""


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
        """Change the cell of a key."""
        self.changed[key] = cell

    def remove(self, key: Any) -> None:
        """Forget a key."""
        self.put(key, REMOVED)


class MapGenerations(Generations):
    """A map per key: `changed[key]` is a dict of the entries put (or `REMOVED`) since the last snapshot.

    With the key `CLEARED` in it, older entries do not count. So one entry put into a large map costs one entry in the
    next increment.
    """

    @abstractmethod
    def older_changes(self, key: Any) -> Iterable[Entries]:
        """The changes of a key in frozen generations, newest first."""

    @abstractmethod
    def stored_entry(self, key: Any, map_key: Any) -> Any:
        """One entry below all changes, or `REMOVED`."""

    @abstractmethod
    def entries(self, key: Any) -> Iterable[tuple[Any, Any]]:
        """The entries of a key as they are now: what is written while they are iterated does not show."""

    @abstractmethod
    def put_entry(self, key: Any, map_key: Any, cell: Any) -> None:
        """Change one entry."""

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
        """All changes of a key in a dict of the caller's own, and whether nothing below them counts."""
        changes, older = self.changed.get(key), self.older_changes(key)
        newer: Entries = {} if changes is None else dict(changes)
        for changes in older:
            if CLEARED in newer:
                break
            newer = {**changes, **newer}
        return newer, newer.pop(CLEARED, None) is not None

    def remove_entry(self, key: Any, map_key: Any) -> None:
        """Forget one entry."""
        self.put_entry(key, map_key, REMOVED)
