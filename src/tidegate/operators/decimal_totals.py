"""Running aggregates of decimals: exact, in the same tables as those of numbers, as Arrow's 128 bits per key.

A batch is brought forward on the totals of its own keys: as int64 where the values, the totals and their sums fit.
Where they may not, sums are made limb by limb, and extremes of Python's integers.
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
    DecimalOverflow,
    array_of_pairs,
    fits,
    limbs_of,
    narrow,
    numbers_of_pairs,
    pairs_of,
    pairs_of_limbs,
    pairs_of_numbers,
)
from tidegate.records.rolling import (
    Ids,
    Mask,
    RowGroups,
    SumOverflow,
    empty_totals,
    running_seen,
    running_sums,
)
from tidegate.state.backend import ColumnArray

Pairs = npt.NDArray[Any]

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
        pairs, valid = _pairs(values)
        groups = RowGroups(ids, keys)
        touched = groups.ids
        own = copy(groups)
        own.ids = np.arange(len(touched))
        seen = arrays[1][touched]
        before = np.where(seen, arrays[0][touched], _ZERO)
        numbers, totals = self._narrow(pairs, before, seen)
        if self._kind == "sum" and totals is None:
            sums = [(limb, total) for limb, total in zip(limbs_of(pairs), limbs_of(before), strict=True)]
            results = [running_sums(own, limb, total, valid) for limb, total in sums]
            made = self._checked(results, ids)
            after = pairs_of_limbs([total for _, total in sums], self._type)
        else:
            if totals is None:
                numbers, totals = self._wide(pairs, before, seen)
            made = _as_pairs(self._run(own, numbers, totals, valid), self._type)
            after = _as_pairs(totals, self._type)
        seen_at = running_seen(own, valid, seen)
        self._store(arrays, touched, after, seen)
        return array_of_pairs(made, self._type, None if seen_at.all() else ~seen_at), touched

    def latest(self, ids: Ids, arrays: Arrays, values: pa.Array | None, touched: Ids) -> pa.Array:
        """Add a batch; return the totals of the ids `touched`, which are those that occur in it, each once."""
        assert values is not None
        pairs, valid = _pairs(values)
        seen = arrays[1][touched]
        before = np.where(seen, arrays[0][touched], _ZERO)
        place = np.empty(len(arrays[0]), np.int64)  # of each id among those that occur; of the others nothing
        place[touched] = np.arange(len(touched))
        own = place[ids]
        chosen = own if valid is None else own[valid]
        numbers, totals = self._narrow(pairs, before, seen)
        if self._kind == "sum" and totals is None:
            sums = limbs_of(before)
            for limb, total in zip(limbs_of(pairs), sums, strict=True):
                np.add.at(total, chosen, limb if valid is None else limb[valid])
            after = self._checked(sums, touched)
        else:
            if totals is None:
                numbers, totals = self._wide(pairs, before, seen)
            self._add(own, numbers, totals, valid, np.arange(len(touched)))
            after = _as_pairs(totals, self._type)
        seen[chosen] = True
        self._store(arrays, touched, after, seen)
        return array_of_pairs(after, self._type, None if seen.all() else ~seen)

    def _narrow(self, pairs: Pairs, before: Pairs, seen: Mask) -> tuple[Any, npt.NDArray[Any] | None]:
        """Values and totals as int64, where nothing can leave it; else None."""
        numbers, totals = narrow(pairs), narrow(before)
        if numbers is None or totals is None:
            return None, None
        if self._kind != "sum":
            return numbers, np.where(seen, totals, empty_totals(self._kind, np.int64, 1)[0])
        largest = max(abs(int(totals.max())), abs(int(totals.min()))) if len(totals) else 0
        limit = min(10**self._type.precision, 1 << 63)
        return (numbers, totals.copy()) if fits(numbers, largest, limit) else (None, None)

    def _wide(self, pairs: Pairs, before: Pairs, seen: Mask) -> tuple[Any, npt.NDArray[Any]]:
        """Values and totals as Python's integers."""
        totals = empty_totals(self._kind, object, len(before))
        totals[seen] = numbers_of_pairs(before).astype(object)[seen]
        return numbers_of_pairs(pairs).astype(object), totals

    def _checked(self, limbs: list[npt.NDArray[np.int64]], ids: Ids) -> Pairs:
        """The sums; says of which id one has too many digits, before anything is changed."""
        try:
            return pairs_of_limbs(limbs, self._type)
        except DecimalOverflow as e:
            raise SumOverflow(str(e), int(ids[e.at or 0])) from None

    def _store(self, arrays: Arrays, touched: Ids, after: Pairs, seen: Mask) -> None:
        arrays[0][touched[seen]] = after[seen]
        arrays[1][touched] = seen


def _as_pairs(numbers: npt.NDArray[Any], kind: pa.Decimal128Type) -> Pairs:
    """Without a look at those of keys that have seen nothing, which may be out of range."""
    pairs = np.empty(len(numbers), PAIR)
    if numbers.dtype == np.object_:
        limit = 10**kind.precision
        return pairs_of_numbers(np.where((numbers < limit) & (numbers > -limit), numbers, 0), kind)
    pairs["low"] = numbers.view(np.uint64)
    pairs["high"] = numbers >> 63
    return pairs


def _pairs(values: pa.Array) -> tuple[Pairs, Mask | None]:
    if not values.null_count:
        return pairs_of(values), None
    return pairs_of(values.fill_null(pa.scalar(0, values.type))), ~null_mask(values)
