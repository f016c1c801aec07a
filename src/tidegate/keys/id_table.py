"""A hash table from 64-bit keys to dense ids, probed for a whole batch at a time.

Open addressing with linear probing in numpy arrays: one pass of a few vector operations finds nearly all keys of a
batch; the few that collided are probed again, together. It needs 12 to 16 bytes per key, a Python dict about 100.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bits = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int64]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
_MOST_IDS: Final = (1 << 31) - 1


class IdTable:
    """Ids 0, 1, 2, ... for the distinct keys, in the order of their first appearance."""

    __slots__ = ("_bits", "_keys", "_size", "_slots")

    def __init__(self) -> None:
        self._bits = 12
        self._slots = np.full(1 << self._bits, -1, np.int32)  # the id of the key in this slot, or -1
        self._keys: Bits = np.zeros(1 << (self._bits - 1), np.uint64)  # by id
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """The memory in use, for metrics."""
        return self._slots.nbytes + self._keys.nbytes

    def keys(self, ids: Ids) -> Bits:
        """The keys of these ids."""
        return self._keys[: self._size].take(ids)

    def ids(self, keys: Bits) -> Ids:
        """The id of each key; a new key gets the next one."""
        found = self.find(keys)
        absent = np.flatnonzero(found < 0)
        if len(absent):
            distinct = pa.array(keys.take(absent)).dictionary_encode()
            new = distinct.dictionary.to_numpy()
            found[absent] = distinct.indices.to_numpy() + self._size
            self._insert(new)
        return found

    def find(self, keys: Bits) -> Ids:
        """The id of each key, or -1 if it is new."""
        place = self._home(keys)
        found = self._slots.take(place)
        # An empty slot (-1) is compared with the last key; either way its id stays -1.
        pending = np.flatnonzero((self._keys.take(found, mode="wrap") != keys) & (found >= 0))
        mask = len(self._slots) - 1
        place, wanted = place.take(pending), keys.take(pending)
        while len(pending):
            place = (place + 1) & mask
            candidate = self._slots.take(place)
            found[pending] = candidate
            again = np.flatnonzero((self._keys.take(candidate, mode="wrap") != wanted) & (candidate >= 0))
            pending, place, wanted = pending.take(again), place.take(again), wanted.take(again)
        return found.astype(np.int64)

    def _insert(self, new: Bits) -> None:
        """Give the next ids to distinct keys that are not in the table."""
        size = self._size + len(new)
        if size > _MOST_IDS:
            raise OverflowError(f"more than {_MOST_IDS} distinct keys in one subtask")
        if size > len(self._keys):
            keys = np.zeros(1 << (size - 1).bit_length(), np.uint64)
            keys[: self._size] = self._keys[: self._size]
            self._keys = keys
        self._keys[self._size : size] = new
        start, self._size = self._size, size
        if 2 * size > len(self._slots):  # at most half full: probes stay short
            self._bits = (2 * size - 1).bit_length()
            self._slots = np.full(1 << self._bits, -1, np.int32)
            start = 0
        self._place(start)

    def _place(self, start: int) -> None:
        """Put the ids from ``start`` on into slots. If several want the same slot, the last write wins."""
        ids = np.arange(start, self._size, dtype=np.int32)
        place = self._home(self._keys[start : self._size])
        mask = len(self._slots) - 1
        while len(ids):
            free = self._slots.take(place) < 0
            self._slots[place[free]] = ids[free]
            homeless = np.flatnonzero(self._slots.take(place) != ids)
            ids, place = ids.take(homeless), (place.take(homeless) + 1) & mask

    def _home(self, keys: Bits) -> Ids:
        """The first slot to probe: the high bits of a product (Fibonacci hashing), after folding the halves."""
        place = keys >> _HALF
        place ^= keys
        place *= _GAMMA
        place >>= np.uint64(64 - self._bits)
        return place.view(np.int64)
