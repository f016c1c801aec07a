"""Values of groups of rows as Arrow columns: their order, the chosen row of each group, and lists of values."""

from __future__ import annotations

from math import nan
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.aggregates.aggregate import Longs, of_type
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.numbers import is_number, numbers_of
from tidegate.records.column_bits import NAN_BITS, dictionary_codes, is_bytes_like, null_mask

_SIGN: Final = np.uint64(1 << 63)
LARGEST: Final = np.int64((1 << 63) - 1)


def check_ordered(kind: str, column: pa.Field) -> pa.DataType:
    """The type of the column if its values have an order; else a `ProgramError`."""
    t = column.type
    if is_number(t) or pa.types.is_decimal128(t) or pa.types.is_temporal(t) or is_text(t):
        return t
    raise of_type(kind, column, "an integer, a float, a decimal128, a text or a time")


def is_text(kind: pa.DataType) -> bool:
    """Whether it is text or binary, dictionary-encoded or not."""
    return is_bytes_like(kind.value_type if pa.types.is_dictionary(kind) else kind)


def ranks_of(values: pa.Array) -> Longs:
    """64-bit integers that sort as the values do and are equal if they are; the ranks of nulls mean nothing.

    NaN is the largest number, and -0.0 equals 0.0. Text sorts by code points, as in Python.
    """
    return _text_ranks(values) if is_text(values.type) else sortable(numbers_of(values)[0])


def sortable(numbers: npt.NDArray[Any]) -> Longs:
    """Ranks of the numbers that `numbers_of` returns."""
    if numbers.dtype == np.object_:
        return np.unique(numbers, return_inverse=True)[1]
    if numbers.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # a signalling NaN counts as NaN
            doubles = numbers.astype(np.float64) + 0.0
        bits = doubles.view(np.int64).copy()
        bits[np.isnan(doubles)] = NAN_BITS
        return bits ^ ((bits >> 63) & LARGEST)
    if numbers.dtype == np.uint64:
        return (numbers ^ _SIGN).view(np.int64)
    return numbers.astype(np.int64)


def _text_ranks(values: pa.Array) -> Longs:
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    elif len(values.dictionary) > 2 * len(values) + 1024:
        values = values.dictionary_decode().dictionary_encode()
    ranks = pc.rank(values.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
    return np.append(ranks, 0)[dictionary_codes(values)]


def valid_rows(values: pa.Array) -> Longs | None:
    """The rows that are not null; None: all of them."""
    if not values.null_count and not pa.types.is_dictionary(values.type):
        return None
    return np.flatnonzero(~null_mask(values))


def best_rows(groups: Groups, rows: Longs | None, *keys: Longs, last: bool = False) -> Longs:
    """The row of each present group with the smallest keys, the first key first; of equal rows the first (or `last`).

    `keys` cover all rows; only `rows` count (None: all). -1: the group has no such row.
    """
    for key in keys:
        codes = groups.codes if rows is None else groups.codes[rows]
        own = key if rows is None else key[rows]
        best = np.full(groups.space, LARGEST)
        np.minimum.at(best, codes, own)
        found = np.flatnonzero(own == best[codes])
        rows = found if rows is None else rows[found]
    assert rows is not None
    if not last:
        rows = rows[::-1]
    row_of = np.full(groups.space, -1)
    row_of[groups.codes[rows]] = rows  # of several writes the last one stays
    return row_of[groups.present]


def taken(values: pa.Array, rows: Longs, kind: pa.DataType) -> pa.Array:
    """The values of these rows (null at -1) in their declared type."""
    none = rows < 0
    return plain(values.take(pa.array(rows, mask=none if none.any() else None)), kind)


def plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in its declared type, without dictionary encoding."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == kind else pc.cast(array, kind)


def list_lengths(lists: pa.ListArray) -> Longs:
    """The length of each list; none is null."""
    lengths: Longs = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return lengths


def lists_of(items: pa.Array, lengths: Longs, kind: pa.DataType) -> pa.ListArray:
    """Cut the items, in order, into lists of these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    if int(lengths.sum()) > np.iinfo(np.int32).max:
        raise OverflowError("the lists of one slice hold more than 2**31 - 1 values")
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind)


def rank_of(value: Any) -> tuple[bool, Any]:
    """The sort key of a Python value: NaN sorts last, as the largest number, and all NaN are equal."""
    return (False, value) if value == value else (True, nan)
