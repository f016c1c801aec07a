"""Dense ids for byte strings: an `IdTable` over their hashes, plus the bytes themselves for exactness.

The distinct values are stored one after the other in one growing buffer. A value found by its hash is compared with the
stored bytes, word by word for a whole batch. If it differs (two values with the same 64-bit hash), it is looked up
again under the hash of its hash. So ids are exact, and no value is a Python object: a key costs its bytes and about 25
more.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.keys.hashing import Hashes, hash_column, mix_in_place
from tidegate.keys.id_table import Ids, IdTable
from tidegate.records.column_bits import TAIL_MASKS, bytes_of, words_of

_BLOCK_ROWS: Final = 16384


class BytesTable:
    """Ids 0, 1, 2, ... for the distinct values, in the order of their first appearance."""

    __slots__ = ("_data", "_offsets", "_table")

    def __init__(self) -> None:
        self._table = IdTable()
        self._data = np.zeros(4096, np.uint8)  # always 8 bytes longer than its content, for `words_of`
        self._offsets = np.zeros(1024, np.int64)  # by id; one more for the end of the last value

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """The memory in use, for metrics."""
        return self._table.nbytes + self._data.nbytes + self._offsets.nbytes

    def ids(self, array: pa.Array) -> Ids:
        """The id of each value of a text or binary array without nulls; a new value gets the next one."""
        return self._in_blocks(array, self._table.ids)

    def find(self, array: pa.Array) -> Ids:
        """The id of each value, or -1 if it is new."""
        return self._in_blocks(array, self._table.find)

    def array(self) -> pa.Array:
        """All values in the order of their ids, as large binary over the memory of this table."""
        size = len(self)
        buffers = [None, pa.py_buffer(self._offsets[: size + 1]), pa.py_buffer(self._data)]
        return pa.Array.from_buffers(pa.large_binary(), size, buffers)

    def freeze(self) -> BytesTable:
        """The current values, without a copy. Another thread may read their `array` while this table grows."""
        frozen = copy(self)
        frozen._table = copy(self._table)
        return frozen

    def _in_blocks(self, array: pa.Array, look_up: Callable[[Hashes], Ids]) -> Ids:
        ids = np.empty(len(array), np.int64)
        for start in range(0, len(array), _BLOCK_ROWS):
            block = array.slice(start, _BLOCK_ROWS)
            ids[start : start + len(block)] = self._look_up(block, hash_column(block), look_up)
        return ids

    def _look_up(self, array: pa.Array, hashes: Hashes, look_up: Callable[[Hashes], Ids]) -> Ids:
        data, starts, lengths = bytes_of(array)
        ids = np.empty(len(array), np.int64)
        pending = np.arange(len(array))
        while True:
            known = len(self._table)
            found = look_up(hashes)
            if len(self._table) > known:
                fresh = np.flatnonzero(found >= known)
                _, first = np.unique(found[fresh], return_index=True)
                new = fresh[first]  # for each new id, in order, the first row that has it
                self._append(data, starts[new], lengths[new])
            ids[pending] = found
            other = np.flatnonzero(~self._equal(words_of(data), starts, lengths, found))
            if not len(other):
                return ids
            pending, starts, lengths = pending[other], starts[other], lengths[other]
            hashes = mix_in_place(hashes[other])

    def _append(self, data: npt.NDArray[np.uint8], starts: Ids, lengths: Ids) -> None:
        """Store values after the last one. Readers of the existing memory are not disturbed."""
        size = len(self._table)
        first = size - len(starts)
        if size + 1 > len(self._offsets):
            self._offsets = _grown(self._offsets, size + 1, first + 1)
        begin = int(self._offsets[first])
        ends = np.cumsum(lengths)
        end = begin + int(ends[-1])
        if end + 8 > len(self._data):
            self._data = _grown(self._data, end + 8, begin)
        self._offsets[first + 1 : size + 1] = begin + ends
        # Byte i of the new content is byte i + shift of the batch; each value has its own shift.
        source = np.arange(end - begin)
        source += np.repeat(starts - (ends - lengths), lengths)
        self._data[begin:end] = data[source]

    def _equal(self, words: Hashes, starts: Ids, lengths: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
        """Whether each value has the bytes that are stored under its id; true if it has no id."""
        stored = self._offsets.take(ids, mode="clip")
        equal: npt.NDArray[np.bool_] = (self._offsets.take(ids + 1) - stored) == lengths
        equal |= ids < 0
        stored_words = words_of(self._data)
        rows = np.flatnonzero(equal & (ids >= 0))
        position = 0
        while True:
            rows = rows[lengths[rows] > position]
            if not len(rows):
                return equal
            differ = words[starts[rows] + position] ^ stored_words[stored[rows] + position]
            differ &= TAIL_MASKS.take(lengths[rows] - position, mode="clip")
            equal[rows[differ != 0]] = False
            position += 8


def _grown(array: npt.NDArray[Any], size: int, used: int) -> npt.NDArray[Any]:
    larger = np.zeros(1 << (size - 1).bit_length(), array.dtype)
    larger[:used] = array[:used]
    return larger
