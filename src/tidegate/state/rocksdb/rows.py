"""The common part of row states in RocksDB: three generations of cells in memory, and the database below them.

    changed   written since the last snapshot or spill; not in the database
    frozen    being written to the database
    clean     as in the database: written or read recently

A key is looked up in this order, then in the database; unless the three hold everything that was ever written (a state
that started empty and fits into memory): then the key does not exist. When there are too many clean cells, they are
dropped.

Numbers, text and binary are kept in memory as they are, all else as the serializer's bytes: the user cannot change
these, and their size is known. With a time to live, a stored value comes after the time of its last write, 8 bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from tidegate.core.errors import SchemaError
from tidegate.core.key_groups import KeyGroupRange
from tidegate.state.cells import Adopter
from tidegate.state.copies import itself
from tidegate.state.generations import REMOVED, Entries, Generations
from tidegate.state.rocksdb.database import Database, Entry
from tidegate.state.rocksdb.key_bytes import EntryKeys
from tidegate.state.rocksdb.write_back import Store, WriteBack
from tidegate.state.serializers import OptInSerializer, ValueSerializer
from tidegate.state.ttl import TtlClock

STAMP_BYTES: Final = 8
_MOST_CHANGED: Final = 50_000
_FEWEST: Final = 16
_ENTRY_BYTES: Final = 250
"""Roughly the memory of a dict entry: the key, a small value and the slots."""
_SAMPLES: Final = 16


def stamp(written_ms: int) -> bytes:
    """The 8 bytes of a time before a value."""
    return written_ms.to_bytes(STAMP_BYTES, "little", signed=True)


def stamped(data: bytes, position: int = 0) -> int:
    """Read the time before a value."""
    return int.from_bytes(data[position : position + STAMP_BYTES], "little", signed=True)


@dataclass(frozen=True)
class TableContext:
    """What a table needs of its backend."""

    database: Database
    write_back: WriteBack
    entry_keys: EntryKeys
    key_groups: KeyGroupRange
    memory_bytes: Callable[[], int]
    is_empty: bool
    """Whether the database has no entry of this state yet."""

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """The entries of this state in the database, by key group."""
        for group in range(self.key_groups.start, self.key_groups.end + 1):
            yield from self.database.scan(*self.entry_keys.range_of_group(group))


class CellBytes:
    """Converts between the values of one state, what is kept of them in cells, and the bytes in the database."""

    def __init__(self, serializer: ValueSerializer, has_ttl: bool, always_bytes: bool = False) -> None:
        self._serializer = serializer
        exact = serializer.exact_class
        plain = serializer.copier is None and not always_bytes and exact in (int, float, bool, str, bytes)
        self.is_sized = plain and exact in (int, float, bool)
        """Whether all kept values are small."""
        self.adopter: Adopter = serializer if plain else self
        self.release: Callable[[Any], Any] | None = None
        to_bytes, from_bytes = serializer.to_bytes, serializer.from_bytes
        if not plain:
            self.release = serializer.release if isinstance(serializer, OptInSerializer) else from_bytes
            to_bytes = from_bytes = itself
        self.to_bytes = to_bytes
        self.encode: Callable[[Any], bytes] = to_bytes
        """Returns the database bytes of a cell."""
        self.decode: Callable[[bytes], Any] = from_bytes
        """Returns the cell of database bytes."""
        self.kept: Callable[[Any], Any] = itself
        """What is kept in a cell."""
        if has_ttl:
            self.encode = lambda cell: stamp(cell[0]) + to_bytes(cell[1])
            self.decode = lambda data: (stamped(data), from_bytes(data[STAMP_BYTES:]))
            self.kept = lambda cell: cell[1]

    def size(self, cell: Any) -> int:
        """Roughly the bytes of a cell."""
        return 0 if cell is REMOVED else len(self.to_bytes(self.kept(cell)))

    def adopt(self, value: Any) -> bytes:
        if type(value) is not self._serializer.exact_class:
            value = self._serializer.adopt(value)
        try:
            return self._serializer.to_bytes(value)
        except SchemaError:
            raise
        except Exception:
            self._serializer.to_column([value])  # raises an error that says what is wrong
            raise


class StoredTable(Generations, Store):
    """The three generations of one state. Subclasses define what a cell is, and how it becomes entries."""

    is_exact = True
    """Whether a key with entries in the database has a value, unless it has expired."""

    def __init__(self, context: TableContext, clock: TtlClock | None, is_sized: bool = False) -> None:
        super().__init__()
        self.context = context
        self.clock = clock
        self.frozen: Entries = {}
        self.clean: Entries = {}
        self.check_at = _FEWEST
        self._is_sized = is_sized
        self._is_complete = context.is_empty
        self._most_clean = _MOST_CHANGED
        context.write_back.add(self)

    # ---- generations ----

    def freeze(self) -> Callable[[], Iterable[Entry]] | None:
        """Make changes frozen ones, in constant time."""
        if not self.changed:
            return None
        frozen = self.frozen = self.changed
        self.changed = {}
        self.check_at = _FEWEST
        self.on_freeze(self.changed)
        return self._frozen_entries(frozen)

    def thaw(self) -> None:
        """Make frozen changes clean ones."""
        frozen, self.frozen = self.frozen, {}
        self._make_clean(frozen)
        if self._clean_size() > self._most_clean:
            self.clean = {}
            self._is_complete = False

    def grown(self) -> None:
        """Write the changes if there are too many."""
        share = self.context.memory_bytes() // 2
        key_bytes = _ENTRY_BYTES
        if not self._is_sized:
            sample = list(islice(reversed(self.changed.values()), _SAMPLES))
            key_bytes += sum(map(self._change_bytes, sample)) // max(1, len(sample))
        self._most_clean = max(_FEWEST, share // key_bytes)
        changes = self._change_count()
        if changes >= _MOST_CHANGED or len(self.changed) * key_bytes >= share:
            self.context.write_back.spill()
        else:
            self.check_at = min(2 * changes, _MOST_CHANGED - 1)

    def _was_never_stored(self, key: Any) -> bool:
        return self._is_complete and key not in self.frozen and key not in self.clean

    def _change_count(self) -> int:
        """The number of changes: at most one per key, unless a subclass counts more precisely."""
        return len(self.changed)

    def _remember(self, key: Any, clean: Any) -> None:
        """Keep what was read from the database."""
        if len(self.clean) >= self._most_clean:
            self.clean = {}
        self.clean[key] = clean

    def _clean_size(self) -> int:
        return len(self.clean)

    @abstractmethod
    def _frozen_entries(self, frozen: Entries) -> Callable[[], Iterable[Entry]]:
        """The entries of frozen changes, which are immutable."""

    @abstractmethod
    def _make_clean(self, frozen: Entries) -> None:
        """Move frozen changes to the clean cells."""

    @abstractmethod
    def _change_bytes(self, change: Any) -> int:
        """Roughly the bytes of one change."""

    @abstractmethod
    def expired_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        """Deletions of about `budget` expired entries; continues where the last call stopped.

        Runs in the asynchronous part; `now_ms` is the time of the barrier.
        """
