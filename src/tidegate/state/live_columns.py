"""The live part of a column table on every backend: dense key ids, one array per value, and a mask of changed ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.keys.key_index import KeyIndex
from tidegate.state.backend import ColumnArray, ColumnTable, Ids

_LEAST_CAPACITY: Final = 1024


class LiveColumns(ColumnTable):
    """The arrays of the keys in memory. Backends decide where changes go, and what is below the arrays."""

    def __init__(self, arrays: Sequence[ColumnArray]) -> None:
        self._declared = list(arrays)
        self._forget()

    def _forget(self) -> None:
        """Start without any key."""
        self._index = KeyIndex()
        self._arrays: list[npt.NDArray[Any]] = [np.empty(0, a.dtype) for a in self._declared]
        self._changed = np.zeros(0, np.bool_)
        self._capacity = 0
        self._batch: Ids = np.empty(0, np.int64)

    def begin(self, keys: Sequence[pa.Array]) -> tuple[Ids, int, list[npt.NDArray[Any]]]:
        ids = self._batch = self._index.ids(keys)
        count = len(self._index)
        if count > self._capacity:
            self._grow(count)
        return ids, count, [values[:count] for values in self._arrays]

    def commit(self, touched: Ids | None = None) -> None:
        self._changed[self._batch if touched is None else touched] = True

    def _grow(self, count: int) -> None:
        before = self._capacity
        capacity = self._capacity = max(count, 2 * before, _LEAST_CAPACITY)
        for i, array in enumerate(self._declared):
            larger = np.full(capacity, array.initial, array.dtype)
            larger[:before] = self._arrays[i]
            self._arrays[i] = larger
        changed = np.zeros(capacity, np.bool_)
        changed[:before] = self._changed
        self._changed = changed
