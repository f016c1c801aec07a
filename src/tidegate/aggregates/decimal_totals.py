"""Running totals of decimals: exact, in the same tables as those of numbers, 128 bits per key as in Arrow.

A batch updates the totals of its own keys: as int64 if the values, the totals and their sums fit. Else it computes
sums limb by limb, and extremes with Python's integers.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.aggregates.segmented_scans import (
    Ids,
    Mask,
    RowGroups,
    SumOverflow,
    empty_totals,
    running_seen,
    running_sums,
)
from tidegate.aggregates.totals import (
    Arrays,
    ExtremeTotals,
    NumberTotals,
    RunningRows,
    SumTotals,
    TotalColumn,
)
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

Pairs = npt.NDArray[Any]

_ZERO: Final = np.zeros(1, PAIR)[0]


class _DecimalTotals(NumberTotals):
    """The common part of sums and extremes."""

    def __init__(self, value_type: pa.Decimal128Type) -> None:
        self.type = value_type
        self.columns = [
            TotalColumn(self.fold, PAIR, _ZERO, value_type),
            TotalColumn("seen", np.dtype(np.bool_), False),
        ]

    def each(self, rows: RunningRows, arrays: Arrays, values: pa.Array | None) -> tuple[pa.Array, Ids]:
        """Fold."""
        assert values is not None
        pairs, valid = _pairs(values)
        own = copy(rows.groups())
        touched = own.ids
        own.ids = np.arange(len(touched))
        seen = arrays[1][touched]
        before = np.where(seen, arrays[0][touched], _ZERO)
        numbers, totals = self._narrow(pairs, before, seen)
        if totals is None:
            made, after = self._run_wide(own, pairs, before, seen, valid, rows.ids)
        else:
            made = _as_pairs(self._run(own, numbers, totals, valid), self.type)
            after = _as_pairs(totals, self.type)
        seen_at = running_seen(own, valid, seen)
        _store(arrays, touched, after, seen)
        return array_of_pairs(made, self.type, None if seen_at.all() else ~seen_at), touched

    def latest(self, ids: Ids, arrays: Arrays, values: pa.Array | None, touched: Ids) -> pa.Array:
        """Fold."""
        assert values is not None
        pairs, valid = _pairs(values)
        seen = arrays[1][touched]
        before = np.where(seen, arrays[0][touched], _ZERO)
        place = np.empty(len(arrays[0]), np.int64)  # of each id in `touched`; undefined for the others
        place[touched] = np.arange(len(touched))
        own = place[ids]
        numbers, totals = self._narrow(pairs, before, seen)
        if totals is None:
            after = self._add_wide(own, pairs, before, seen, valid, touched)
        else:
            self._add(own, numbers, totals, valid, np.arange(len(touched)))
            after = _as_pairs(totals, self.type)
        seen[own if valid is None else own[valid]] = True
        _store(arrays, touched, after, seen)
        return array_of_pairs(after, self.type, None if seen.all() else ~seen)

    def _narrow(self, pairs: Pairs, before: Pairs, seen: Mask) -> tuple[Any, npt.NDArray[Any] | None]:
        """Values and totals as int64 if nothing can overflow; else None."""
        numbers, totals = narrow(pairs), narrow(before)
        if numbers is None or totals is None:
            return None, None
        return self._start(numbers, totals, seen)

    @abstractmethod
    def _start(self, numbers: Any, totals: Any, seen: Mask) -> tuple[Any, npt.NDArray[Any] | None]:
        """Values, and totals to fold them into; None: they could leave int64."""

    @abstractmethod
    def _run_wide(
        self, groups: RowGroups, pairs: Pairs, before: Pairs, seen: Mask, valid: Mask | None, ids: Ids
    ) -> tuple[Pairs, Pairs]:
        """The total after each row, and of each key."""

    @abstractmethod
    def _add_wide(
        self, own: Ids, pairs: Pairs, before: Pairs, seen: Mask, valid: Mask | None, touched: Ids
    ) -> Pairs:
        """The total of each key."""


class DecimalSumTotals(_DecimalTotals, SumTotals):
    """A sum."""

    def _start(self, numbers: Any, totals: Any, seen: Mask) -> tuple[Any, npt.NDArray[Any] | None]:
        largest = max(abs(int(totals.max())), abs(int(totals.min()))) if len(totals) else 0
        limit = min(10**self.type.precision, 1 << 63)
        return (numbers, totals.copy()) if fits(numbers, largest, limit) else (None, None)

    def _run_wide(
        self, groups: RowGroups, pairs: Pairs, before: Pairs, seen: Mask, valid: Mask | None, ids: Ids
    ) -> tuple[Pairs, Pairs]:
        sums = list(zip(limbs_of(pairs), limbs_of(before), strict=True))
        results = [running_sums(groups, limb, total, valid) for limb, total in sums]
        return self._checked(results, ids), pairs_of_limbs([total for _, total in sums], self.type)

    def _add_wide(
        self, own: Ids, pairs: Pairs, before: Pairs, seen: Mask, valid: Mask | None, touched: Ids
    ) -> Pairs:
        sums = limbs_of(before)
        chosen = own if valid is None else own[valid]
        for limb, total in zip(limbs_of(pairs), sums, strict=True):
            np.add.at(total, chosen, limb if valid is None else limb[valid])
        return self._checked(sums, touched)

    def _checked(self, limbs: list[npt.NDArray[np.int64]], ids: Ids) -> Pairs:
        """The sums. Raises an error with the id of a sum that has too many digits, before anything is changed."""
        try:
            return pairs_of_limbs(limbs, self.type)
        except DecimalOverflow as e:
            raise SumOverflow(str(e), int(ids[e.at or 0])) from None


class DecimalExtremeTotals(_DecimalTotals, ExtremeTotals):
    """The smallest or largest decimal."""

    def __init__(self, fold: Literal["min", "max"], value_type: pa.Decimal128Type) -> None:
        self.fold = fold
        _DecimalTotals.__init__(self, value_type)

    def _start(self, numbers: Any, totals: Any, seen: Mask) -> tuple[Any, npt.NDArray[Any] | None]:
        return numbers, np.where(seen, totals, empty_totals(self.fold, np.int64, 1)[0])

    def _run_wide(
        self, groups: RowGroups, pairs: Pairs, before: Pairs, seen: Mask, valid: Mask | None, ids: Ids
    ) -> tuple[Pairs, Pairs]:
        numbers, totals = self._wide(pairs, before, seen)
        return _as_pairs(self._run(groups, numbers, totals, valid), self.type), _as_pairs(totals, self.type)

    def _add_wide(
        self, own: Ids, pairs: Pairs, before: Pairs, seen: Mask, valid: Mask | None, touched: Ids
    ) -> Pairs:
        numbers, totals = self._wide(pairs, before, seen)
        self._add(own, numbers, totals, valid, np.arange(len(touched)))
        return _as_pairs(totals, self.type)

    def _wide(self, pairs: Pairs, before: Pairs, seen: Mask) -> tuple[Any, npt.NDArray[Any]]:
        """Values and totals as integers of Python."""
        totals = empty_totals(self.fold, object, len(before))
        totals[seen] = numbers_of_pairs(before).astype(object)[seen]
        return numbers_of_pairs(pairs).astype(object), totals


def _store(arrays: Arrays, touched: Ids, after: Pairs, seen: Mask) -> None:
    arrays[0][touched[seen]] = after[seen]
    arrays[1][touched] = seen


def _as_pairs(numbers: npt.NDArray[Any], kind: pa.Decimal128Type) -> Pairs:
    """Ignores the totals of keys without values, which may be out of range."""
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
