"""Column tables of the heap backend: numpy arrays by dense id, a `KeyIndex` for the keys, a mask of what changed.

A snapshot copies the values of the ids that changed since the last completed checkpoint (on the mailbox thread: tens of
milliseconds for millions of keys) and takes a frozen view of the keys. The thread of the asynchronous part makes
columns of both. Keys are never removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.keys.key_index import KeyIndex
from tidegate.snapshot.handles import StateSchema
from tidegate.state.backend import ColumnArray, Ids
from tidegate.state.heap.files import Encoded, StoredRows, encode, one_array
from tidegate.state.live_columns import LiveColumns
from tidegate.state.serializers import KeySerializer

Mask = npt.NDArray[np.bool_]

_PORTION: Final = 1 << 18
_RESTORED_ROWS: Final = 1 << 16  # a batch whose ids are probed within the CPU cache


class ColumnStore(LiveColumns):
    """The arrays of all keys of one subtask."""

    def __init__(
        self, schema: StateSchema, arrays: Sequence[ColumnArray], keys: KeySerializer, max_parallelism: int
    ) -> None:
        super().__init__(arrays)
        self.schema = schema
        self._keys = keys
        self._max_parallelism = max_parallelism
        self._open: list[tuple[int, Mask]] = []  # what the newest checkpoint has, until one is complete

    def __len__(self) -> int:
        return len(self._index)

    # ---- snapshots ----

    def freeze(self, checkpoint_id: int, full: bool) -> Callable[[], list[Encoded]]:
        """Copy what changed (all, if `full`); the result makes rows of a file of it."""
        count = len(self._index)
        changed = self._changed[:count]
        for _, mask in self._open:
            changed[: len(mask)] |= mask
        how_many = int(np.count_nonzero(changed))
        if not how_many and not (full and count):
            return list
        self._open = [(checkpoint_id, changed.copy())]
        ids = None if full or how_many == count else np.flatnonzero(changed)
        values = [v[:count].copy() if ids is None else v.take(ids) for v in self._arrays]
        changed[:] = False
        index = self._index.freeze()

        def write() -> list[Encoded]:
            found = encode(self.schema, self._rows(index, ids, values), "base" if full else "increment")
            return [] if found is None else [found]

        return write

    def release(self, checkpoint_id: int) -> None:
        """Does nothing: snapshots have copies."""

    def complete(self, checkpoint_id: int) -> None:
        self._open = [(c, mask) for c, mask in self._open if c > checkpoint_id]

    def _rows(
        self, index: KeyIndex, ids: Ids | None, values: list[npt.NDArray[Any]]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these ids (None: of all); the values are in the same order."""
        names = [a.name for a in self._declared]
        count = len(index) if ids is None else len(ids)
        for start in range(0, count, _PORTION):
            end = min(start + _PORTION, count)
            key = self._keys.join(index.keys(np.arange(start, end) if ids is None else ids[start:end]))
            groups = self._keys.key_groups(key, self._max_parallelism).astype(np.int32)
            value = pa.StructArray.from_arrays(
                [a.to_arrow(v[start:end]) for a, v in zip(self._declared, values, strict=True)], names=names
            )
            deleted = pa.array(np.zeros(len(key), np.bool_))
            yield pa.record_batch({"key_group": groups, "key": key, "value": value, "deleted": deleted})

    # ---- restore ----

    def restore(self, files: Sequence[StoredRows]) -> None:
        """Take the files of one handle, in order."""
        for stored in files:
            for batch in stored.table.to_batches(max_chunksize=_RESTORED_ROWS):
                rows = pa.Table.from_batches([batch])
                ids, _, arrays = self.begin(self._keys.split(one_array(rows.column("key"))))
                columns = one_array(rows.column("value")).flatten()
                for declared, array, column in zip(self._declared, arrays, columns, strict=True):
                    array[ids] = declared.to_numpy(column)
