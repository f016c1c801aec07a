"""Aggregates whose partial results hold values: first and last, distinct values, the best n records.

They merge by group, with one sort or one table of values for all rows of a merge; see `accumulators` for the contract.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.window_partials import best_record_type
from tidegate.operators.window.accumulators import Accumulator, Column, numbers_of
from tidegate.operators.window.groups import Groups
from tidegate.records.column_bits import NAN_BITS, null_mask
from tidegate.records.key_index import KeyIndex

Longs = npt.NDArray[np.int64]

_FEW: Final = 8
_SIGN: Final = np.uint64(1 << 63)
_LOW_63: Final = np.int64((1 << 63) - 1)


class EdgeValue(Accumulator):
    """The value with the earliest (or latest) timestamp; of several the one that came first (or last)."""

    numbers = 1

    def __init__(self, value_type: pa.DataType, *, latest: bool) -> None:
        self._type = value_type
        self._latest = latest
        self.fields = [
            pa.field("time", pa.int64(), False),
            pa.field("last" if latest else "first", value_type, True),
        ]

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """Choose rows."""
        assert values is not None
        return self._choose(groups, timestamps, values)

    def merge(self, groups: Groups, columns: list[Column]) -> list[Column]:
        """Choose rows of partial results."""
        return self._choose(groups, columns[0], columns[1])

    def _choose(self, groups: Groups, times: Longs, values: pa.Array) -> list[Column]:
        rows = np.arange(len(times))
        codes = groups.codes
        if values.null_count or pa.types.is_dictionary(values.type):
            rows = np.flatnonzero(~null_mask(values))
            times, codes = times[rows], codes[rows]
        limits = np.iinfo(np.int64)
        best = np.full(groups.space, limits.min if self._latest else limits.max)
        (np.maximum if self._latest else np.minimum).at(best, codes, times)
        edge = np.flatnonzero(times == best[codes])
        if not self._latest:
            edge = edge[::-1]
        row_of = np.full(groups.space, -1)
        row_of[codes[edge]] = rows[edge]  # of several writers the last one stays
        chosen = row_of[groups.present]
        none = chosen < 0
        taken = values.take(pa.array(chosen, mask=none if none.any() else None))
        return [np.where(none, 0, best[groups.present]), plain(taken, self._type)]

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """The value."""
        return columns[1]


class DistinctValues(Accumulator):
    """How many different values there are: the partial result is the list of them."""

    def __init__(self, value_type: pa.DataType) -> None:
        self._type = value_type
        self.fields = [pa.field("values", pa.list_(pa.field("item", value_type, False)), False)]

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """The different values of each group."""
        assert values is not None
        codes = groups.codes
        if values.null_count or pa.types.is_dictionary(values.type):
            rows = np.flatnonzero(~null_mask(values))
            values, codes = values.take(pa.array(rows)), codes[rows]
        return self._distinct(groups, codes, values)

    def merge(self, groups: Groups, columns: list[Column]) -> list[Column]:
        """The different values of the lists of each group."""
        lists = columns[0]
        return self._distinct(groups, np.repeat(groups.codes, list_lengths(lists)), lists.flatten())

    def _distinct(self, groups: Groups, codes: Longs, values: pa.Array) -> list[Column]:
        index = KeyIndex()
        ids = index.ids([values]) if len(values) else np.empty(0, np.int64)
        pairs = codes * len(index) + ids
        if len(pairs) and groups.space * len(index) <= 16 * len(pairs):
            seen = np.zeros(groups.space * len(index), np.bool_)
            seen[pairs] = True
            found = np.flatnonzero(seen)
        else:
            found = np.unique(pairs)
        owners, value_ids = np.divmod(found, max(1, len(index)))
        items = index.keys(value_ids)[0] if len(found) else pa.array([], self._type)
        counts = np.bincount(owners, minlength=groups.space)[groups.present]
        return [lists_of(plain(items, self._type), counts, self.fields[0].type)]

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """How many there are."""
        return pa.array(list_lengths(columns[0]))


class BestRecords(Accumulator):
    """The n records with the largest (or smallest) `by`, then the earliest timestamp, then the first that came.

    Values are structs whose first field is `by`; the partial result is a list of them with their timestamps.
    """

    def __init__(self, n: int, by: pa.DataType, selected: list[pa.Field], *, largest: bool) -> None:
        self._n = n
        self._largest = largest
        self._selected = selected
        self._item = best_record_type(by, selected)
        self.fields = [pa.field("best", pa.list_(pa.field("item", self._item, False)), False)]

    def partial(self, groups: Groups, values: pa.Array | None, timestamps: Longs) -> list[Column]:
        """The best rows of each group."""
        assert values is not None
        by, *selected = values.flatten()
        rows = np.arange(len(values)) if not by.null_count else np.flatnonzero(~null_mask(by))
        numbers, _ = numbers_of(by)
        order, counts = self._best(groups, groups.codes[rows], numbers[rows], timestamps[rows])
        chosen = pa.array(rows[order])
        kinds = [self._item.field(i + 2).type for i in range(len(selected))]
        columns = [by.take(chosen), pa.array(timestamps).take(chosen)]
        columns += [plain(c.take(chosen), kind) for c, kind in zip(selected, kinds, strict=True)]
        items = pa.StructArray.from_arrays(columns, fields=list(self._item))
        return [lists_of(items, counts, self.fields[0].type)]

    def merge(self, groups: Groups, columns: list[Column]) -> list[Column]:
        """The best of the lists of each group."""
        lists = columns[0]
        items = lists.flatten()
        by, times, *_ = items.flatten()
        codes = np.repeat(groups.codes, list_lengths(lists))
        order, counts = self._best(groups, codes, numbers_of(by)[0], times.to_numpy())
        return [lists_of(items.take(pa.array(order)), counts, self.fields[0].type)]

    def _best(self, groups: Groups, codes: Longs, by: npt.NDArray[Any], times: Longs) -> tuple[Longs, Longs]:
        """The rows of the best of each group, group by group, and how many each present group has."""
        ranks = sortable(by)
        if self._largest:
            ranks = ~ranks
        rows = None
        if self._n <= _FEW and len(codes) > 4 * self._n * groups.space:
            rows = self._promising(codes, ranks, groups.space)
            codes, ranks, times = codes[rows], ranks[rows], times[rows]
        order = np.lexsort((times, ranks, codes))
        sizes = np.bincount(codes, minlength=groups.space)
        starts = np.cumsum(sizes) - sizes
        place = np.arange(len(order)) - starts[codes[order]]
        best = order[place < self._n]
        return best if rows is None else rows[best], np.minimum(sizes[groups.present], self._n)

    def _promising(self, codes: Longs, ranks: Longs, space: int) -> Longs:
        """The rows with one of the n best values of their group: far fewer are then sorted."""
        worst = np.full(space, _LOW_63)
        left = np.arange(len(codes))
        for _ in range(self._n):
            worst = np.full(space, _LOW_63)
            np.minimum.at(worst, codes[left], ranks[left])
            left = left[ranks[left] > worst[codes[left]]]
        behind = np.zeros(len(codes), np.bool_)
        behind[left] = True
        return np.flatnonzero(~behind)

    def result(self, columns: list[Column], records: Longs) -> pa.Array:
        """The selected columns of the best records."""
        lists = columns[0]
        _, _, *selected = lists.flatten().flatten()
        items = pa.StructArray.from_arrays(selected, fields=self._selected)
        kind = pa.list_(pa.field("item", items.type, False))
        return lists_of(items, list_lengths(lists), kind)


def plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in its declared type, decoded."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == kind else pc.cast(array, kind)


def list_lengths(lists: pa.ListArray) -> Longs:
    """How long each list is; none is null."""
    lengths: Longs = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return lengths


def lists_of(items: pa.Array, lengths: Longs, kind: pa.DataType) -> pa.ListArray:
    """Lists of these lengths, cut from the items in order."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    if int(lengths.sum()) > np.iinfo(np.int32).max:
        raise OverflowError("the lists of one slice hold more than 2**31 - 1 values")
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind)


def sortable(numbers: npt.NDArray[Any]) -> Longs:
    """64-bit integers in the order of the numbers, and equal where these are; NaN is the largest, and -0.0 is 0.0."""
    if numbers.dtype == np.object_:
        return np.unique(numbers, return_inverse=True)[1]
    if numbers.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # a signalling NaN is one too
            doubles = numbers.astype(np.float64) + 0.0
        bits = doubles.view(np.int64).copy()
        bits[np.isnan(doubles)] = NAN_BITS
        return bits ^ ((bits >> 63) & _LOW_63)
    if numbers.dtype == np.uint64:
        return (numbers ^ _SIGN).view(np.int64)
    return numbers.astype(np.int64)
