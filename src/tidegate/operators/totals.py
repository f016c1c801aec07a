"""One running aggregate over dense key ids: arrays of totals, brought forward a batch at a time."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.records.column_bits import null_mask
from tidegate.records.rolling import (
    FEW_ROWS,
    Ids,
    Mask,
    RowGroups,
    empty_totals,
    few_running,
    running_counts,
    running_max,
    running_min,
    running_seen,
    running_sums,
)
from tidegate.state.backend import ColumnArray

AggregateKind = Literal["count", "sum", "min", "max"]
Arrays = list[npt.NDArray[Any]]
_INT64_MAX: Final = np.iinfo(np.int64).max


class Totals:
    """How one running aggregate is kept per key, and brought forward by a batch. Holds no totals itself.

    They are arrays by key id, as `columns` describes them: those of a `ColumnTable`, or `fresh` ones. `aggregate` is
    what they mean, `value_type` the Arrow type of the results; a key whose values were all null has a null total.
    Arrays are changed in place, or not at all when an error is raised.
    """

    def __init__(self, aggregate: AggregateKind, value_type: pa.DataType, *, merges: bool = False) -> None:
        """With `merges` the values are totals themselves: partial counts are summed up."""
        self._kind: AggregateKind = "sum" if merges and aggregate == "count" else aggregate
        self._type = value_type
        self._storage = _storage_type(value_type)
        dtype = np.dtype(self._storage.to_pandas_dtype())
        # Names and types are part of checkpoints. They must differ where the same bits mean something else.
        name = aggregate if self._storage == value_type else f"{aggregate} {value_type}"
        self.columns = [ColumnArray(name, dtype, empty_totals(self._kind, dtype, 1)[0])]
        if aggregate != "count":  # which is never null
            self.columns.append(ColumnArray("seen", np.dtype(np.bool_), False))

    def fresh(self, keys: int) -> Arrays:
        """The arrays of keys that have seen nothing."""
        return [np.full(keys, column.initial, column.dtype) for column in self.columns]

    def each(self, ids: Ids, keys: int, arrays: Arrays, values: pa.Array | None) -> tuple[pa.Array, Ids]:
        """Add a batch; for each row the total of its key after it, and the ids that occur. Ids are below `keys`."""
        numbers, valid = (None, None) if values is None else self._numbers(values)
        if len(ids) <= FEW_ROWS and valid is None and _are_whole(numbers, arrays[0]):
            few, touched = few_running(self._kind, ids, numbers, arrays[0])
            if len(arrays) > 1:
                arrays[1][touched] = True
            return self._array(few, None), touched
        groups = RowGroups(ids, keys)
        if numbers is None:
            return pa.array(running_counts(groups, arrays[0])), groups.ids
        results = self._run(groups, numbers, arrays[0], valid)
        seen: Mask | None = None
        if valid is not None:
            seen = running_seen(groups, valid, arrays[1])
        elif len(arrays) > 1:
            arrays[1][groups.ids] = True
        return self._array(results, seen), groups.ids

    def latest(self, ids: Ids, arrays: Arrays, values: pa.Array | None, touched: Ids) -> pa.Array:
        """Add a batch; return the totals of the ids `touched`, which are those that occur in it, each once."""
        totals = arrays[0]
        if values is None:
            _add_counts(ids, totals)
            return pa.array(totals[touched])
        numbers, valid = self._numbers(values)
        self._add(ids, numbers, totals, valid, touched)
        seen: Mask | None = None
        if valid is not None:
            arrays[1][ids[valid]] = True
            seen = arrays[1][touched]
        elif len(arrays) > 1:
            arrays[1][touched] = True
        return self._array(totals[touched], seen)

    def _run(
        self, groups: RowGroups, numbers: npt.NDArray[Any], totals: npt.NDArray[Any], valid: Mask | None
    ) -> npt.NDArray[Any]:
        if self._kind == "min":
            return running_min(groups, numbers, totals, valid)
        if self._kind == "max":
            return running_max(groups, numbers, totals, valid)
        return running_sums(groups, numbers, totals, valid)

    def _add(
        self,
        ids: Ids,
        numbers: npt.NDArray[Any],
        totals: npt.NDArray[Any],
        valid: Mask | None,
        touched: Ids,
    ) -> None:
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
        elif _may_overflow(numbers, totals[touched]):
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


def _are_whole(numbers: npt.NDArray[Any] | None, totals: npt.NDArray[Any]) -> bool:
    return totals.dtype.kind == "i" and (numbers is None or numbers.dtype.kind == "i")


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
