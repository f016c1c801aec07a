"""The generations of a map state on the heap: `settled[key]` is the whole map, the others have only changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.state.generations import CLEARED, REMOVED, Entries, MapGenerations
from tidegate.state.heap.values import ExpiringTable, HeapTable

_NOTHING: Entries = {}


class MapTable(MapGenerations, HeapTable):
    """A map per key."""

    settles_whole = False

    def older_changes(self, key: Any) -> Iterable[Entries]:
        frozen = self.frozen
        return [g.entries[key] for g in reversed(frozen) if key in g.entries] if frozen else ()

    def stored_entry(self, key: Any, map_key: Any) -> Any:
        return self.settled.get(key, _NOTHING).get(map_key, REMOVED)

    def entries(self, key: Any) -> Iterable[tuple[Any, Any]]:
        return self.load_map(key).items()

    def load_map(self, key: Any) -> Entries:
        """All entries of a key, in a new dict."""
        newer, is_all = self.newer_entries(key)
        found = newer if is_all else {**self.settled.get(key, _NOTHING), **newer}
        return {k: v for k, v in found.items() if v is not REMOVED}

    def put_entry(self, key: Any, map_key: Any, cell: Any) -> None:
        changes = self.changed.get(key)
        if changes is None:
            self.changed[key] = {map_key: cell}
        else:
            changes[map_key] = cell

    def remove_entry(self, key: Any, map_key: Any) -> None:
        MapTable.put_entry(self, key, map_key, REMOVED)  # a removal does not expire
        self.has_removals = True

    def remove(self, key: Any) -> None:
        self.changed[key] = {CLEARED: CLEARED}
        self.has_removals = True

    def compose(self, entries: Entries, newer: Iterable[tuple[Any, Any]]) -> None:
        for key, changes in newer:
            older = entries.get(key)
            entries[key] = changes if older is None or CLEARED in changes else {**older, **changes}

    def settle(self, changes: Iterable[tuple[Any, Any]]) -> None:
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


class ExpiringMapTable(MapTable, ExpiringTable):
    """A map per key whose entries expire one by one."""

    def put_entry(self, key: Any, map_key: Any, cell: Any) -> None:
        changes = self.changed.get(key)
        if changes is None:
            self.changed[key] = {map_key: cell}
        else:
            changes[map_key] = cell
        self._wrote((key, map_key), cell[0])

    def _drop_if_expired(self, item: Any, now: int) -> None:
        cell = self.load_entry(*item)
        if cell is not REMOVED and self.clock.is_expired(cell[0], now):
            self.remove_entry(*item)
