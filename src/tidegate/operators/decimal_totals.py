"""Running aggregates of decimals: exact, in the same tables as those of numbers, as Arrow's 128 bits per key.

A batch is brought forward on the totals of its own keys: as int64 where the values, the totals and their sums fit, as
Python's integers where they may not.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.totals import AggregateKind, Arrays, Totals
from tidegate.records.column_bits import null_mask
from tidegate.records.decimals import (
    PAIR,
    check_digits,
    decimals,
    may_leave_int64,
    numbers_of_pairs,
    pairs_of_numbers,
    unscaled,
)
from tidegate.records.rolling import Ids, Mask, RowGroups, SumOverflow, empty_totals, running_seen
from tidegate.state.backend import ColumnArray

_ZERO: Final = np.zeros(1, PAIR)[0]


def totals_of(aggregate: AggregateKind, value_type: pa.DataType, *, merges: bool = False) -> Totals:
    """What keeps a running aggregate with results of this type; see `Totals`."""
    kind = DecimalTotals if pa.types.is_decimal128(value_type) else Totals
    return kind(aggregate, value_type, merges=merges)


class DecimalTotals(Totals):
    """A sum, or the smallest or largest decimal."""

    def __init__(
        self, aggregate: AggregateKind, value_type: pa.Decimal128Type, *, merges: bool = False
    ) -> None:
        """A merge of partial results is the same as one of values."""
        self._kind = aggregate
        self._type = value_type
        self.columns = [
            ColumnArray(aggregate, PAIR, _ZERO, value_type),
            ColumnArray("seen", np.dtype(np.bool_), False),
        ]

    def each(self, ids: Ids, keys: int, arrays: Arrays, values: pa.Array | None) -> tuple[pa.Array, Ids]:
        """Add a batch; for each row the total of its key after it, and the ids that occur."""
        assert values is not None
        numbers, valid = _numbers(values)
        groups = RowGroups(ids, keys)
        touched = groups.ids
        own = copy(groups)
        own.ids = np.arange(len(touched))
        totals = self._before(arrays, touched, numbers)
        results = self._run(own, numbers, totals, valid)
        self._check(results, ids)
        seen = arrays[1][touched]
        seen_at = running_seen(own, valid, seen)
        self._store(arrays, touched, totals, seen)
        return decimals(results, self._type, None if seen_at.all() else ~seen_at), touched

    def latest(self, ids: Ids, arrays: Arrays, values: pa.Array | None, touched: Ids) -> pa.Array:
        """Add a batch; return the totals of the ids `touched`, which are those that occur in it, each once."""
        assert values is not None
        numbers, valid = _numbers(values)
        totals = self._before(arrays, touched, numbers)
        own = np.searchsorted(touched, ids)
        self._add(own, numbers, totals, valid, np.arange(len(touched)))
        self._check(totals, touched)
        seen = arrays[1][touched]
        seen[own if valid is None else own[valid]] = True
        self._store(arrays, touched, totals, seen)
        return decimals(totals, self._type, None if seen.all() else ~seen)

    def _before(self, arrays: Arrays, touched: Ids, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The totals of these ids before the batch, in a type in which it can be added."""
        seen = arrays[1][touched]
        before = numbers_of_pairs(np.where(seen, arrays[0][touched], _ZERO))
        if self._kind == "sum":
            largest = max(abs(int(before.max())), abs(int(before.min()))) if len(before) else 0
            is_wide = before.dtype == object or may_leave_int64(numbers, largest)
            return before.astype(object) if is_wide else before
        is_wide = object in (before.dtype, numbers.dtype)
        totals = empty_totals(self._kind, object if is_wide else np.int64, len(touched))
        totals[seen] = before[seen]
        return totals

    def _check(self, totals: npt.NDArray[Any], ids: Ids) -> None:
        """Say of which id the total has too many digits, before anything is changed."""
        if self._kind != "sum":
            return
        try:
            check_digits(totals, self._type.precision)
        except OverflowError:
            limit = 10**self._type.precision
            first = int(np.flatnonzero((totals >= limit) | (totals <= -limit))[0])
            raise SumOverflow(
                f"{totals[first]} e{-self._type.scale} does not fit a {self._type}", int(ids[first])
            ) from None

    def _store(self, arrays: Arrays, touched: Ids, totals: npt.NDArray[Any], seen: Mask) -> None:
        arrays[0][touched[seen]] = pairs_of_numbers(totals[seen], self._type)
        arrays[1][touched] = seen


def _numbers(values: pa.Array) -> tuple[npt.NDArray[Any], Mask | None]:
    return unscaled(values), ~null_mask(values) if values.null_count else None
