"""What the per-record states have in common: values as they are kept, and three generations of them in memory.

    changed   written since the last snapshot or spill; the database does not have it
    frozen    on its way to the database
    clean     as in the database: what was written or read lately

A key is looked for in this order, then in the database - unless the three hold everything that was ever written (a
state that began empty and fits into memory): then it is nowhere. When the clean ones become too many they are
dropped.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NoReturn

from tidegate.core.errors import SchemaError
from tidegate.state.backend import NO_KEY, KeyedStateBackend
from tidegate.state.fitting import INT64_MAX, INT64_MIN
from tidegate.state.refusals import cannot_store, without_key
from tidegate.state.rocksdb.database import Database, Entry
from tidegate.state.rocksdb.key_bytes import EntryKeys
from tidegate.state.rocksdb.write_back import Store, WriteBack
from tidegate.state.serializers import OptInSerializer, ValueSerializer
from tidegate.state.ttl import TtlClock

_MOST_CHANGED: Final = 50_000
_FEWEST: Final = 16
_ENTRY_BYTES: Final = 250
"""About what an entry takes in a dict: the key, a small value and the slots."""
_SAMPLES: Final = 16


@dataclass(frozen=True)
class StateContext:
    """What a live state needs."""

    backend: KeyedStateBackend
    database: Database
    write_back: WriteBack
    entry_keys: EntryKeys
    state_name: str
    expiry: TtlClock | None
    memory_bytes: Callable[[], int]
    is_empty: bool
    """Whether the database has nothing of this state yet."""


class KeptValues:
    """How values of one type are kept in memory: numbers, text and binary as they are, all else as bytes.

    Bytes cannot be changed by the user, and whatever does not fit its type is found where it is written.
    """

    def __init__(self, serializer: ValueSerializer, always_bytes: bool = False) -> None:
        self._serializer = serializer
        exact = serializer.exact_class
        plain = serializer.copier is None and not always_bytes and exact in (int, float, bool, str, bytes)
        self.as_is = exact if plain and exact not in (int, str) else None
        """Values of exactly this class may be kept without `keep`."""
        self.as_is_in_64_bits = int if plain and exact is int else None
        """Values of exactly this class may be kept without `keep` if they are from `INT64_MIN` to `INT64_MAX`."""
        self.is_sized = exact in (int, float, bool) and plain
        self.keep: Callable[[Any], Any]
        """What is kept of a value; `SchemaError` if it does not fit."""
        self.give: Callable[[Any], Any] | None
        """The caller's own value of a kept one; None: it is the kept one."""
        if plain:
            checks = {int: self._keep_int, str: self._keep_text}
            self.keep = self._keep_checked if exact is None else checks.get(exact, self._keep_checked)
            self.give = None
            self.to_bytes, self.from_bytes = serializer.to_bytes, serializer.from_bytes
        else:
            self.keep = self._keep_bytes
            self.give = (
                serializer.release if isinstance(serializer, OptInSerializer) else serializer.from_bytes
            )
            self.to_bytes = self.from_bytes = _itself

    def _keep_int(self, value: Any) -> Any:
        if type(value) is int and INT64_MIN <= value <= INT64_MAX:
            return value
        return self._keep_checked(value)

    def _keep_text(self, value: Any) -> Any:
        if type(value) is str and value.isascii():
            return value
        return self._keep_checked(value)

    def _keep_checked(self, value: Any) -> Any:
        kept = self._serializer.adopt(value)
        self._serializer.to_bytes(kept)
        return kept

    def _keep_bytes(self, value: Any) -> bytes:
        if type(value) is not self._serializer.exact_class:
            value = self._serializer.adopt(value)
        try:
            return self._serializer.to_bytes(value)
        except SchemaError:
            raise
        except Exception:
            self._serializer.to_column([value])  # says what is wrong
            raise


def _itself(data: Any) -> Any:
    return data


class GenerationStore(Store):
    """The three generations of one state. Subclasses say what a change is, and how it becomes entries."""

    _changed: dict[Any, Any]
    _frozen: dict[Any, Any]
    _clean: dict[Any, Any]

    def _open(self, context: StateContext, is_sized: bool = False) -> None:
        """Begin; not `__init__`, which belongs to the declaration that live states also are."""
        self._context = context
        self._backend = context.backend
        self.expiry = context.expiry
        self._is_sized = is_sized
        self._is_complete = context.is_empty
        self._changed, self._frozen, self._clean = {}, {}, {}
        self._check_at = _FEWEST
        self._most_clean = _MOST_CHANGED
        context.write_back.add(self)

    # ---- for live states ----

    def _refuse_without_key(self) -> NoReturn:
        raise without_key(self._operator, self._context.state_name)

    def _current_key(self) -> Any:
        key = self._backend.current_key
        if key is NO_KEY:
            self._refuse_without_key()
        return key

    def _refuse_value(self, value: Any, error: SchemaError) -> NoReturn:
        key = self._backend.current_key
        raise cannot_store(self._operator, self._context.state_name, key, value, error) from error

    def _keep(self, values: KeptValues, value: Any) -> Any:
        try:
            return values.keep(value)
        except SchemaError as e:
            self._refuse_value(value, e)

    @property
    def _operator(self) -> str:
        return self._backend.context.operator_name

    # ---- all keys ----

    def stored_entries(self) -> Iterator[bytes]:
        """The database's entries of this state, by key group."""
        groups = self._backend.context.key_groups
        for group in range(groups.start, groups.end + 1):
            for entry, _ in self._context.database.scan(*self._context.entry_keys.range_of_group(group)):
                yield entry

    @abstractmethod
    def holds_current(self) -> bool:
        """Whether the current key, which has entries in the database, has something that has not expired."""

    # ---- generations ----

    def freeze(self) -> Callable[[], Iterable[Entry]] | None:
        """Changes become frozen ones, in no time."""
        if not self._changed:
            return None
        frozen = self._frozen = self._changed
        self._changed = {}
        self._check_at = _FEWEST
        return self._frozen_entries(frozen)

    def thaw(self) -> None:
        """Frozen changes become clean ones."""
        frozen, self._frozen = self._frozen, {}
        self._make_clean(frozen)
        if self._clean_size() > self._most_clean:
            self._clean = {}
            self._is_complete = False

    def _grown(self) -> None:
        """There are more changes than at the last look: write them if they are too many."""
        share = self._context.memory_bytes() // 2
        key_bytes = _ENTRY_BYTES
        if not self._is_sized:
            sample = list(islice(reversed(self._changed.values()), _SAMPLES))
            key_bytes += sum(map(self._change_bytes, sample)) // len(sample)
        self._most_clean = max(_FEWEST, share // key_bytes)
        changes = self._change_count()
        if changes >= _MOST_CHANGED or len(self._changed) * key_bytes >= share:
            self._context.write_back.spill()
        else:
            self._check_at = min(2 * changes, _MOST_CHANGED - 1)

    def _change_count(self) -> int:
        """How many changes there are: at most one per key, unless a subclass counts better."""
        return len(self._changed)

    def _remember(self, key: Any, clean: Any) -> None:
        """Keep what was read from the database."""
        if len(self._clean) >= self._most_clean:
            self._clean = {}
        self._clean[key] = clean

    def _clean_size(self) -> int:
        return len(self._clean)

    def expired_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        """Deletions of what has expired by then, of about so many entries; goes on where it stopped.

        Runs in the asynchronous part; `now_ms` is the time of the barrier.
        """
        yield from ()

    @abstractmethod
    def _frozen_entries(self, frozen: dict[Any, Any]) -> Callable[[], Iterable[Entry]]:
        """The entries of frozen changes, which do not change any more."""

    @abstractmethod
    def _make_clean(self, frozen: dict[Any, Any]) -> None:
        """Bring what was frozen into what is clean."""

    @abstractmethod
    def _change_bytes(self, change: Any) -> int:
        """About the bytes of one change."""
