"""The generations of a map state: per key and generation only the entries that changed.

`changed[key]` is a dict of the entries put (or `REMOVED`) since the last snapshot; with the key `CLEARED` in it, older
entries do not count. `settled[key]` is the whole map. So one entry put into a large map costs one entry in the next
increment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.state.heap.table import CLEARED, REMOVED, Entries, HeapTable

_NOTHING: Entries = {}


class MapTable(HeapTable):
    """A map per key."""

    settles_whole = False

    def load_entry(self, key: Any, map_key: Any) -> Any:
        """One entry of a key, or `REMOVED`."""
        for changes in self._layers(key):
            if map_key in changes:
                return changes[map_key]
            if CLEARED in changes:
                return REMOVED
        return REMOVED

    def load_map(self, key: Any) -> Entries:
        """All entries of a key, in a dict of the caller's own."""
        layers = []
        for changes in self._layers(key):
            layers.append(changes)
            if CLEARED in changes:
                break
        found: Entries = {}
        for changes in reversed(layers):
            found.update(changes)
        return {k: v for k, v in found.items() if v is not REMOVED and k is not CLEARED}

    def changes(self, key: Any) -> Entries:
        """The changes of a key since the last snapshot, to be added to."""
        found = self.changed.get(key)
        if found is None:
            found = self.changed[key] = {}
        return found

    def remove_entry(self, key: Any, map_key: Any) -> None:
        """Forget one entry."""
        self.changes(key)[map_key] = REMOVED
        self.has_removals = True

    def remove(self, key: Any) -> None:
        """Forget all entries of a key."""
        self.changed[key] = {CLEARED: CLEARED}
        self.has_removals = True

    def compose(self, entries: Entries, newer: Iterable[tuple[Any, Any]]) -> None:
        """Bring newer changes into changes."""
        for key, changes in newer:
            older = entries.get(key)
            entries[key] = changes if older is None or CLEARED in changes else {**older, **changes}

    def settle(self, changes: Iterable[tuple[Any, Any]]) -> None:
        """Bring changes into the whole maps."""
        settled = self.settled
        for key, entries in changes:
            whole = settled.get(key)
            if whole is None or CLEARED in entries:
                whole = settled[key] = {}
            for map_key, value in entries.items():
                if value is REMOVED:
                    whole.pop(map_key, None)
                elif map_key is not CLEARED:
                    whole[map_key] = value
            if not whole:
                del settled[key]

    def _settle_values(self, changes: Iterable[tuple[Any, Any]]) -> None:
        self.settle(changes)

    def _layers(self, key: Any) -> list[Entries]:
        """What there is of a key, newest first."""
        layers = [self.changed.get(key, _NOTHING)]
        layers += [g.entries[key] for g in reversed(self.frozen) if key in g.entries]
        layers.append(self.settled.get(key, _NOTHING))
        return layers
