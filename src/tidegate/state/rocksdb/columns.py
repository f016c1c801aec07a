"""Column tables in RocksDB: arrays in memory for as many keys as the memory bound allows, the rest in the database.

The keys of recent batches have dense ids and arrays of values, as on the heap. A key that is not in memory is looked up
in the database, together with all such keys of its batch; unless everything ever stored is still in memory: then the
key is new. When the memory is full, changes are written and the arrays start again, empty.

The value of an entry is the elements of the arrays for that key, one after the other, little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.records.column_bits import is_bytes_like
from tidegate.state.backend import ColumnArray, Ids
from tidegate.state.live_columns import LiveColumns
from tidegate.state.rocksdb.database import Entry
from tidegate.state.rocksdb.rows import TableContext
from tidegate.state.rocksdb.write_back import FrozenEntries, Store

_MOST_CHANGED: Final = 250_000
_MOST_CHANGED_TEXTS: Final = 80_000
"""The most keys that a snapshot may copy in its synchronous part: about 10 ms, for numbers and others."""
_ID_BYTES: Final = 30
"""The memory of a number in a `KeyIndex` and its change mark: 17 to 34 bytes, depending on the fill of its tables."""
_CHUNK: Final = 65536


class RocksDBColumnTable(LiveColumns, Store):
    """The live column table of one name."""

    def __init__(self, context: TableContext, arrays: Sequence[ColumnArray]) -> None:
        super().__init__(arrays)
        self._context = context
        names = [f"v{i}" for i in range(len(self._declared))]
        dtypes = [a.dtype.newbyteorder("<") for a in self._declared]
        self._value_type = np.dtype(list(zip(names, dtypes, strict=True)))
        self._memory_bytes, self._is_complete = context.memory_bytes, context.is_empty
        self._change_count = 0
        self._key_bytes = 0.0
        context.write_back.add(self)

    def begin(self, keys: Sequence[pa.Array]) -> tuple[Ids, int, list[npt.NDArray[Any]]]:
        """The ids and values of the batch's keys; reads from the database what is not in memory."""
        known = len(self._index)
        if known and known * self._bytes_per_key() > self._memory_bytes():
            self._context.write_back.spill()
            self._forget()
            self._is_complete = False
            known = 0
        elif self._change_count > (_MOST_CHANGED_TEXTS if self._key_bytes else _MOST_CHANGED):
            self._context.write_back.spill()
        ids, size, arrays = LiveColumns.begin(self, keys)
        if size > known:
            if known == 0:
                self._key_bytes = _average_key_bytes(keys)
            if not self._is_complete:
                self._load(known, size)
        return ids, size, arrays

    def commit(self, touched: Ids | None = None) -> None:
        ids = self._batch if touched is None else touched
        self._changed[ids] = True
        # Keys repeat from batch to batch, so this is an upper bound: good enough to decide when to write.
        self._change_count = min(self._change_count + len(ids), len(self._index))

    def freeze(self) -> FrozenEntries | None:
        """Copy what has changed; the arrays stay in use."""
        if not self._change_count:
            return None
        ids = np.flatnonzero(self._changed)
        self._changed[ids] = False
        self._change_count = 0
        keys = self._index.keys(ids)
        values = np.empty(len(ids), self._value_type)
        for name, array in zip(self._value_type.names or (), self._arrays, strict=True):
            values[name] = array[ids]
        return lambda: self._entries(keys, values)

    def thaw(self) -> None:
        """Does nothing: the arrays have the values, frozen or not."""

    def _entries(self, keys: list[pa.Array], values: npt.NDArray[Any]) -> Iterable[Entry]:
        order = self._context.entry_keys.order_of_columns(keys)
        keys = [k.take(pa.array(order)) for k in keys]
        rows = values[order].view(f"V{values.itemsize}")
        for start in range(0, len(values), _CHUNK):
            entries = self._context.entry_keys.of_columns([k.slice(start, _CHUNK) for k in keys])
            yield from zip(entries, rows[start : start + _CHUNK].tolist(), strict=True)

    def _load(self, known: int, size: int) -> None:
        """Read the values of new ids; ids that the database does not have keep the initial values."""
        ids = np.arange(known, size, dtype=np.int64)
        entries = self._context.entry_keys.of_columns(self._index.keys(ids))
        order = sorted(range(len(entries)), key=entries.__getitem__)
        found = self._context.database.get_many([entries[i] for i in order])
        stored = [(i, value) for i, value in zip(order, found, strict=True) if value is not None]
        if not stored:
            return
        values = np.frombuffer(b"".join([value for _, value in stored]), self._value_type)
        at = known + np.fromiter((i for i, _ in stored), np.int64, len(stored))
        for name, array in zip(self._value_type.names or (), self._arrays, strict=True):
            array[at] = values[name]

    def _bytes_per_key(self) -> float:
        return _ID_BYTES + self._key_bytes + 1.5 * self._value_type.itemsize


def _average_key_bytes(keys: Sequence[pa.Array]) -> float:
    """The memory of a key beyond the id of its first column, estimated from the first batch."""
    total = 0.0
    for column in keys:
        kind = column.type
        if pa.types.is_dictionary(kind):
            column, kind = column.dictionary, kind.value_type
        if is_bytes_like(kind) or pa.types.is_decimal(kind):
            total += column.nbytes / max(1, len(column))
    return total + _ID_BYTES * (len(keys) - 1)
