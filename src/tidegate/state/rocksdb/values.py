"""Live states of one value per key: value, reducing and aggregating state.

The entry's value is the serializer's bytes, behind the time of writing where there is a time to live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from tidegate.api.state import AggregatingState, ReducingState, ValueState
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.state.backend import NoKeyError
from tidegate.state.fitting import INT64_MAX, INT64_MIN
from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.expiring import ExpiredScan
from tidegate.state.rocksdb.state_store import GenerationStore, KeptValues, StateContext
from tidegate.state.rocksdb.ttl import STAMP_BYTES, stamp, stamped
from tidegate.state.serializers import ValueSerializer

_ABSENT: Final = object()
_CHUNK: Final = 4096


class ValueStore(GenerationStore):
    """One kept value per key; None where it was removed. With a time to live: (kept value, time of writing)."""

    def _open_values(self, context: StateContext, serializer: ValueSerializer) -> None:
        self._values = KeptValues(serializer)
        self._as_is = self._values.as_is
        self._as_is_in_64_bits = self._values.as_is_in_64_bits
        self._give = self._values.give
        self._open(context, self._values.is_sized)
        self._expired = ExpiredScan(context)

    def _read(self) -> Any:
        """The current key's kept value, or None."""
        found = self._found(self._current_key())
        expiry = self.expiry
        if expiry is None or found is None:
            return found
        kept, written = found
        now = expiry.now()
        if expiry.is_expired(written, now):
            self._write(None)
            return None
        if expiry.refresh_on_read and written != now:
            self._write(kept)
        return kept

    def holds_current(self) -> bool:
        """Whether the key has a value; that does not read it."""
        expiry = self.expiry
        if expiry is None:
            return True
        found = self._found(self._current_key())
        return found is not None and not expiry.is_expired(found[1], expiry.now())

    def _found(self, key: Any) -> Any:
        found = self._changed.get(key, _ABSENT)
        return self._find(key) if found is _ABSENT else found

    def _write(self, kept: Any) -> None:
        key = self._current_key()
        if kept is None or self.expiry is None:
            self._changed[key] = kept
        else:
            self._changed[key] = (kept, self.expiry.now())
        if len(self._changed) > self._check_at:
            self._grown()

    def _find(self, key: Any) -> Any:
        """What frozen and clean values and the database have, or None."""
        found = self._frozen.get(key, _ABSENT)
        if found is _ABSENT:
            found = self._clean.get(key, _ABSENT)
            if found is _ABSENT:
                found = None if self._is_complete else self._fetch(key)
        return found

    def _fetch(self, key: Any) -> Any:
        data = self._context.database.get(self._context.entry_keys.of_key(key))
        if data is None:
            found = None
        elif self.expiry is None:
            found = self._values.from_bytes(data)
        else:
            found = self._values.from_bytes(data[STAMP_BYTES:]), stamped(data)
        self._remember(key, found)
        return found

    def expired_entries(self, budget: int, now_ms: int) -> Iterator[Entry]:
        """Values that are too old."""
        return self._expired.single_entries(budget, now_ms)

    def _frozen_entries(self, frozen: dict[Any, Any]) -> Callable[[], Iterable[Entry]]:
        return lambda: self._entries(frozen)

    def _entries(self, frozen: dict[Any, Any]) -> Iterator[Entry]:
        to_bytes = self._values.to_bytes
        of_keys = self._context.entry_keys.of_keys
        waiting = iter(frozen.items())
        while chunk := list(islice(waiting, _CHUNK)):
            keys = of_keys([key for key, _ in chunk])
            if self.expiry is None:
                data = [None if kept is None else to_bytes(kept) for _, kept in chunk]
            else:
                data = [None if c is None else stamp(c[1]) + to_bytes(c[0]) for _, c in chunk]
            yield from zip(keys, data, strict=True)

    def _make_clean(self, frozen: dict[Any, Any]) -> None:
        self._clean.update(frozen)

    def _change_bytes(self, change: Any) -> int:
        if change is None:
            return 0
        return len(self._values.to_bytes(change if self.expiry is None else change[0]))


class RocksDBValueState(ValueState[Any], ValueStore):
    """Live `ValueState`."""

    def __init__(
        self, declaration: ValueState[Any], context: StateContext, serializer: ValueSerializer
    ) -> None:
        self.name, self.owner = declaration.name, declaration.owner
        self.type, self.default, self.ttl = declaration.type, declaration.default, declaration.ttl
        self.serializer = declaration.serializer
        self._open_values(context, serializer)
        self._kept_default = None if self.default is None else self._keep_default()

    def _keep_default(self) -> Any:
        """The default as a value is kept, so that nobody can change it for the next key."""
        try:
            return self._values.keep(self.default)
        except SchemaError as e:
            raise ProgramError(
                f"operator {self._operator!r}: the default of state {self.name!r} is of another type: {e}"
            ) from e

    def value(self) -> Any:
        """The key's value, or the default."""
        kept = self._read()
        if kept is None:
            kept = self._kept_default
            if kept is None:
                return None
        give = self._give
        return kept if give is None else give(kept)

    def update(self, value: Any) -> None:
        """Set the key's value; None is the same as `clear`."""
        kept = value if value.__class__ is self._as_is or value is None else self._keep(self._values, value)
        self._write(kept)

    def clear(self) -> None:
        """Forget the key's value."""
        self._write(None)


class RocksDBPlainValueState(RocksDBValueState):
    """Live `ValueState` of numbers, text or binary without a time to live: kept as they are, so no call is needed."""

    def value(self) -> Any:
        """The key's value, or the default."""
        try:
            kept = self._changed[self._backend.current_key]
        except (KeyError, NoKeyError):
            kept = self._find(self._current_key())
        return self.default if kept is None else kept

    def update(self, value: Any) -> None:
        """Set the key's value; None is the same as `clear`."""
        cls = type(value)
        if cls is not self._as_is and not (cls is self._as_is_in_64_bits and INT64_MIN <= value <= INT64_MAX):
            value = None if value is None else self._keep(self._values, value)
        changed = self._changed
        try:
            changed[self._backend.current_key] = value
        except NoKeyError:
            self._refuse_without_key()
        if len(changed) > self._check_at:
            self._grown()


def live_value_state(
    declaration: ValueState[Any], context: StateContext, serializer: ValueSerializer
) -> RocksDBValueState:
    """The live state of a declaration; the faster one where it can do it."""
    plain = context.expiry is None and KeptValues(serializer).give is None
    return (RocksDBPlainValueState if plain else RocksDBValueState)(declaration, context, serializer)


class RocksDBReducingState(ReducingState[Any], ValueStore):
    """Live `ReducingState`."""

    def __init__(
        self, declaration: ReducingState[Any], context: StateContext, serializer: ValueSerializer
    ) -> None:
        self.name, self.owner = declaration.name, declaration.owner
        self.type, self.function, self.ttl = declaration.type, declaration.function, declaration.ttl
        self.serializer = declaration.serializer
        self._open_values(context, serializer)

    def get(self) -> Any:
        """What was reduced so far, or None."""
        kept = self._read()
        return kept if kept is None or self._give is None else self._give(kept)

    def add(self, value: Any) -> None:
        """Reduce a value into it."""
        kept = self._read()
        if kept is not None:
            value = self.function(kept if self._give is None else self._give(kept), value)
        self._write(self._keep(self._values, value))

    def clear(self) -> None:
        """Forget the key's value."""
        self._write(None)


class RocksDBAggregatingState(AggregatingState[Any, Any], ValueStore):
    """Live `AggregatingState`."""

    def __init__(
        self, declaration: AggregatingState[Any, Any], context: StateContext, serializer: ValueSerializer
    ) -> None:
        self.name, self.owner = declaration.name, declaration.owner
        self.type, self.function, self.ttl = declaration.type, declaration.function, declaration.ttl
        self.serializer = declaration.serializer
        self._open_values(context, serializer)

    def get(self) -> Any:
        """The result of what was added so far, or None."""
        kept = self._read()
        if kept is None:
            return None
        return self.function.get_result(kept if self._give is None else self._give(kept))

    def add(self, value: Any) -> None:
        """Add a value."""
        kept = self._read()
        if kept is None:
            accumulator = self.function.create_accumulator()
        else:
            accumulator = kept if self._give is None else self._give(kept)
        self._write(self._keep(self._values, self.function.add(value, accumulator)))

    def clear(self) -> None:
        """Forget the key's accumulator."""
        self._write(None)
