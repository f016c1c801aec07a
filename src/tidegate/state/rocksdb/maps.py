"""Live map state: an entry of the database for each entry of a map, so that large maps are never read as a whole.

The database's key is the stream's key followed by the serializer's bytes of the map's key; its value is that of the
map, behind the time of writing where there is a time to live. Iteration is in the order of the map keys' bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any, Final

from tidegate.api.state import MapState
from tidegate.core.errors import SchemaError
from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.expiring import ExpiredScan
from tidegate.state.rocksdb.key_bytes import end_of_prefix
from tidegate.state.rocksdb.state_store import GenerationStore, KeptValues, StateContext
from tidegate.state.rocksdb.ttl import STAMP_BYTES, stamp, stamped
from tidegate.state.serializers import KeySerializer, ValueSerializer

_ABSENT: Final = object()
_REMOVED: Final = object()


class _Changes:
    """What was changed in one key's map, by the bytes of the map's keys. `replaces`: the rest of the map is gone."""

    __slots__ = ("entries", "replaces")

    def __init__(self, replaces: bool = False) -> None:
        self.replaces = replaces
        self.entries: dict[bytes, Any] = {}


class RocksDBMapState(MapState[Any, Any], GenerationStore):
    """Live `MapState`. Values are kept as in the value store; clean are those entries that were used lately."""

    def __init__(
        self,
        declaration: MapState[Any, Any],
        context: StateContext,
        key_serializer: KeySerializer,
        value_serializer: ValueSerializer,
    ) -> None:
        self.name, self.owner = declaration.name, declaration.owner
        self.key_type, self.value_type = declaration.key_type, declaration.value_type
        self.ttl, self.serializer = declaration.ttl, declaration.serializer
        self._keys = key_serializer
        self._values = KeptValues(value_serializer, always_bytes=True)
        self._added = 0
        self._clean_entries = 0
        self._open(context)
        self._expired = ExpiredScan(context)

    def get(self, key: Any, default: Any = None) -> Any:
        """The entry's value, or `default`."""
        found = self._read(self._map_key(key))
        return default if found is _REMOVED else self._given(found)

    def put(self, key: Any, value: Any) -> None:
        """Set an entry."""
        map_key = self._map_key(key)
        self._write(map_key, self._keep(self._values, value))

    def remove(self, key: Any) -> None:
        """Remove an entry."""
        self._write(self._map_key(key), _REMOVED)

    def contains(self, key: Any) -> bool:
        """Whether there is an entry."""
        return self._read(self._map_key(key)) is not _REMOVED

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries of this moment, by the bytes of their keys."""
        found: Iterable[tuple[bytes, bytes]] = self._live(self._current_key())
        if self.expiry is not None and self.expiry.refresh_on_read:
            found = list(found)  # refreshed now, under this key, whenever somebody iterates
            for map_key, kept in found:
                self._write(map_key, kept)
        return ((self._keys.from_bytes(k), self._given(v)) for k, v in found)

    def is_empty(self) -> bool:
        """Whether there is no entry; that reads none of them."""
        return next(self._live(self._current_key()), None) is None

    def clear(self) -> None:
        """Remove all entries."""
        key = self._current_key()
        if self._is_complete and key not in self._frozen and key not in self._clean:
            self._changed.pop(key, None)  # it was never in the database
            return
        self._changed[key] = _Changes(replaces=True)
        self._count_change()

    def holds_current(self) -> bool:
        """Whether the key has entries."""
        return self.expiry is None or not self.is_empty()

    # ---- one entry ----

    def _map_key(self, key: Any) -> bytes:
        self._current_key()
        try:
            if key.__class__ is not self._keys.exact_class:
                key = self._keys.adopt(key)
            return self._keys.to_bytes(key)
        except SchemaError as e:
            self._refuse_value(key, e)

    def _given(self, kept: bytes) -> Any:
        give = self._values.give
        assert give is not None
        return give(kept)

    def _read(self, map_key: bytes) -> Any:
        """The kept value, or _REMOVED where there is none."""
        found = self._find(self._backend.current_key, map_key)
        expiry = self.expiry
        if expiry is None or found is _REMOVED:
            return found
        kept, written = found
        now = expiry.now()
        if expiry.is_expired(written, now):
            self._write(map_key, _REMOVED)
            return _REMOVED
        if expiry.refresh_on_read and written != now:
            self._write(map_key, kept)
        return kept

    def _write(self, map_key: bytes, kept: Any) -> None:
        key = self._backend.current_key
        changes = self._changed.get(key)
        if changes is None:
            changes = self._changed[key] = _Changes()
        if self.expiry is not None and kept is not _REMOVED:
            kept = (kept, self.expiry.now())
        changes.entries[map_key] = kept
        self._count_change()

    def _find(self, key: Any, map_key: bytes) -> Any:
        for generation in (self._changed, self._frozen):
            changes = generation.get(key)
            if changes is not None:
                found = changes.entries.get(map_key, _ABSENT)
                if found is not _ABSENT:
                    return found
                if changes.replaces:
                    return _REMOVED
        clean = self._clean.get(key)
        found = _ABSENT if clean is None else clean.get(map_key, _ABSENT)
        if found is _ABSENT:
            if self._is_complete:
                return _REMOVED
            data = self._context.database.get(self._context.entry_keys.of_key(key) + map_key)
            found = _REMOVED if data is None else self._decoded(data)
            if self._clean_entries >= self._most_clean:
                self._clean, self._clean_entries = {}, 0
            self._clean.setdefault(key, {})[map_key] = found
            self._clean_entries += 1
        return found

    def _count_change(self) -> None:
        # Few keys may have large maps: changes are counted, not keys.
        self._added += 1
        if self._added > self._check_at:
            self._grown()

    def _change_count(self) -> int:
        return self._added

    # ---- whole maps ----

    def _live(self, key: Any) -> Iterator[tuple[bytes, bytes]]:
        """Entries as they are now: what is written while they are iterated does not show."""
        newer: dict[bytes, Any] = {}
        replaced = False
        for generation in (self._changed, self._frozen):
            changes = generation.get(key)
            if changes is not None and not replaced:
                newer = {**changes.entries, **newer}
                replaced = changes.replaces
        stored: Iterable[tuple[bytes, Any]] = ()
        if not replaced and self._is_complete:
            newer = {**self._clean.get(key, {}), **newer}
        elif not replaced:
            prefix = self._context.entry_keys.of_key(key)
            rows = self._context.database.scan(prefix, end_of_prefix(prefix))
            stored = (
                (k[len(prefix) :], self._decoded(data)) for k, data in rows if k[len(prefix) :] not in newer
            )
        entries = merge(stored, sorted(newer.items(), key=_map_key_of), key=_map_key_of)
        present = ((map_key, found) for map_key, found in entries if found is not _REMOVED)
        expiry = self.expiry
        if expiry is None:
            return present
        now = expiry.now()
        return ((map_key, found[0]) for map_key, found in present if not expiry.is_expired(found[1], now))

    # ---- entries ----

    def _frozen_entries(self, frozen: dict[Any, _Changes]) -> Callable[[], Iterable[Entry]]:
        self._added = 0
        return lambda: self._entries(frozen)

    def _entries(self, frozen: dict[Any, _Changes]) -> Iterator[Entry]:
        prefixes = self._context.entry_keys.of_keys(list(frozen))
        for prefix, changes in zip(prefixes, frozen.values(), strict=True):
            if changes.replaces:
                for old, _ in self._context.database.scan(prefix, end_of_prefix(prefix)):
                    yield old, None
            for map_key, kept in changes.entries.items():
                yield prefix + map_key, None if kept is _REMOVED else self._encoded(kept)

    def _encoded(self, kept: Any) -> bytes:
        data: bytes = kept if self.expiry is None else stamp(kept[1]) + kept[0]
        return data

    def _decoded(self, data: bytes) -> Any:
        return data if self.expiry is None else (data[STAMP_BYTES:], stamped(data))

    # ---- generations ----

    def _make_clean(self, frozen: dict[Any, _Changes]) -> None:
        for key, changes in frozen.items():
            clean = self._clean.get(key)
            if clean is None or changes.replaces:
                self._clean[key] = changes.entries
            else:
                clean.update(changes.entries)
            self._clean_entries += len(changes.entries)

    def _clean_size(self) -> int:
        if not self._clean:
            self._clean_entries = 0
        return self._clean_entries

    def _change_bytes(self, change: _Changes) -> int:
        pairs = list(change.entries.items())[:16]
        if not pairs:
            return 0
        kept = [v if self.expiry is None else v[0] for _, v in pairs if v is not _REMOVED]
        sampled = sum(len(k) for k, _ in pairs) + sum(map(len, kept))
        return sampled * len(change.entries) // len(pairs)

    def expired_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        """Entries that are too old."""
        return self._expired.single_entries(budget, now_ms)


def _map_key_of(entry: tuple[bytes, Any]) -> bytes:
    return entry[0]
