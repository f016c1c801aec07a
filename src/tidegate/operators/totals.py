"""One running aggregate over dense key ids: an array of totals, updated a batch at a time."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.records.column_bits import null_mask
from tidegate.records.rolling import (
    Ids,
    Mask,
    RowGroups,
    empty_totals,
    running_counts,
    running_max,
    running_min,
    running_seen,
    running_sums,
)

AggregateKind = Literal["count", "sum", "min", "max"]
_INT64_MAX: Final = np.iinfo(np.int64).max


class Totals:
    """The totals of all keys of one subtask, by id.

    `value_type` is the Arrow type of the results. A key whose values were all null has a null total.
    """

    def __init__(self, kind: AggregateKind, value_type: pa.DataType) -> None:
        self._kind = kind
        self._type = value_type
        self._storage = _storage_type(value_type)
        self._dtype = np.dtype(self._storage.to_pandas_dtype())
        self._totals = empty_totals(kind, self._dtype, 0)
        self._seen: Mask | None = None  # exists from the first null on
        self._keys = 0

    def each(self, ids: Ids, keys: int, values: pa.Array | None) -> pa.Array:
        """Add a batch; return for each row the total of its key after it. Ids are below `keys`."""
        totals = self._grow(keys)
        if values is None:
            return pa.array(running_counts(ids, totals))
        numbers, valid = self._numbers(values)
        groups = RowGroups(ids, keys)
        results = self._run(groups, numbers, totals, valid)
        seen = self._see(groups, valid)
        return self._array(results, seen)

    def latest(self, ids: Ids, keys: int, values: pa.Array | None, touched: Ids) -> pa.Array:
        """Add a batch; return the totals of the ids `touched`, which are those that occur in it, each once."""
        totals = self._grow(keys)
        if values is None:
            _add_counts(ids, totals)
            return pa.array(totals[touched])
        numbers, valid = self._numbers(values)
        self._add(ids, numbers, totals, valid)
        if valid is None:
            if self._seen is not None:
                self._seen[touched] = True
        else:
            self._start_seeing()[ids[valid]] = True
        return self._array(totals[touched], None if self._seen is None else self._seen[touched])

    def _grow(self, keys: int) -> npt.NDArray[Any]:
        """The totals of the ids below `keys`, as a view that writes through."""
        if keys > len(self._totals):
            capacity = max(keys, 2 * len(self._totals), 1024)
            more = empty_totals(self._kind, self._dtype, capacity - len(self._totals))
            self._totals = np.concatenate([self._totals, more])
            if self._seen is not None:
                self._seen = np.concatenate([self._seen, np.zeros(capacity - len(self._seen), np.bool_)])
        self._known, self._keys = self._keys, max(keys, self._keys)
        return self._totals[:keys]

    def _start_seeing(self) -> Mask:
        """Which keys had a value; when the first null comes, all that there were before had one."""
        if self._seen is None:
            self._seen = np.arange(len(self._totals)) < self._known
        return self._seen

    def _see(self, groups: RowGroups, valid: Mask | None) -> Mask | None:
        if valid is None and self._seen is None:
            return None
        return running_seen(groups, valid, self._start_seeing())

    def _run(
        self, groups: RowGroups, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None
    ) -> npt.NDArray[Any]:
        if self._kind == "min":
            return running_min(groups, numbers, totals, valid)
        if self._kind == "max":
            return running_max(groups, numbers, totals, valid)
        return running_sums(groups, numbers, totals, valid)

    def _add(self, ids: Ids, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None) -> None:
        """Bring a batch into the totals without the values in between."""
        if valid is not None:
            ids, numbers = ids[valid], numbers[valid]
        if not len(ids):
            return
        if self._kind in ("min", "max"):
            ufunc = np.fmin if self._kind == "min" else np.maximum
            groups = RowGroups(ids, len(totals))
            totals[groups.ids] = ufunc(
                totals[groups.ids], ufunc.reduceat(numbers[groups.order], groups.starts)
            )
        elif _may_overflow(numbers, totals):
            running_sums(ids, numbers, totals)  # finds out exactly
        else:
            np.add.at(totals, ids, numbers.astype(totals.dtype, copy=False))

    def _numbers(self, values: pa.Array) -> tuple[npt.NDArray[Any], Mask | None]:
        storage = _storage_type(values.type)
        if storage != values.type:
            values = values.view(storage)
        valid: Mask | None = None
        if values.null_count:
            valid = ~null_mask(values)
            values = values.fill_null(0)
        return values.to_numpy(zero_copy_only=False), valid

    def _array(self, numbers: npt.NDArray[Any], seen: Mask | None) -> pa.Array:
        mask = None if seen is None or seen.all() else ~seen
        array = pa.array(numbers, self._storage, mask=mask)
        return array if self._storage == self._type else array.view(self._type)


def distinct(ids: Ids, keys: int) -> tuple[Ids, Ids]:
    """The ids that occur, in order, and for each of them a row where it does."""
    if keys > 4 * len(ids):
        touched, rows = np.unique(ids, return_index=True)
        return touched, rows.astype(np.int64, copy=False)
    row_of = np.full(keys, -1, np.int64)
    row_of[ids] = np.arange(len(ids))
    touched = np.flatnonzero(row_of >= 0)
    return touched, row_of[touched]


def _add_counts(ids: Ids, totals: npt.NDArray[Any]) -> None:
    if len(totals) > 4 * len(ids):
        np.add.at(totals, ids, 1)
    else:
        totals += np.bincount(ids, minlength=len(totals))


def _may_overflow(numbers: npt.NDArray[Any], totals: npt.NDArray[Any]) -> bool:
    """Whether a sum may leave int64, as far as the sizes alone tell. Floats do not mind."""
    if totals.dtype != np.int64:
        return False
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    start = max(abs(int(totals.min())), abs(int(totals.max())))
    return start + largest * len(numbers) > _INT64_MAX


def _storage_type(kind: pa.DataType) -> pa.DataType:
    """The number that Arrow stores for a time."""
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()
