"""The aggregates of a window side by side, and `Part`: their partial results for some keys, which can be merged.

A part is either sparse (`ids` in order, one row each) or dense: row i is key i, and keys without records have 0 of
them. Dense parts merge at the speed of memory, but only numbers can be dense, and only if most keys occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.aggregates.aggregate import Column, Kernel
from tidegate.aggregates.groups import Groups, grouped
from tidegate.aggregates.numbers import merge_numbers, reduce_numbers
from tidegate.records.decimals import decimals, unscaled

Longs = npt.NDArray[np.int64]
Columns = list[Column]
Inputs = Sequence[Sequence[pa.Array]]
"""What each aggregate reads of a batch."""


class WindowAggregates:
    """The kernels of one operator. The first column of every partial result is the number of records."""

    def __init__(self, kernels: Sequence[Kernel], windows: str = "windows") -> None:
        """`windows` is their identity: it is in checkpoints, so that slices of other windows are not restored here."""
        self.kernels = list(kernels)
        fields = [pa.field(f"records in {windows}", pa.int64(), False)]
        for i, k in enumerate(self.kernels):
            fields += [f.with_name(f"{i} {f.name}") for f in k.partial]
        self.schema = pa.schema(fields)
        self._widths = [len(k.partial) for k in self.kernels]
        self.can_be_dense = all(k.merging is not None for k in self.kernels)
        self.merging: list[np.ufunc] = [np.add]
        self.initial: list[Any] = [np.int64(0)]
        self._may_overflow = [False]
        if self.can_be_dense:
            for k in self.kernels:
                self.merging += k.merging or []
                self.initial += k.initial
                self._may_overflow += [k.may_overflow and i == 0 for i in range(len(k.partial))]
        self.dtypes = [np.dtype(f.type.to_pandas_dtype()) for f in self.schema] if self.can_be_dense else []

    def partial(self, groups: Groups, inputs: Inputs, timestamps: Longs) -> Columns:
        """The partial results of the present groups of records."""
        columns: Columns = [groups.sizes]
        for kernel, own in zip(self.kernels, inputs, strict=True):
            columns += kernel.reduce(groups, own, timestamps)
        return columns

    def merge(self, groups: Groups, columns: Columns) -> Columns:
        """Merge partial results by group, in order of arrival."""
        merged: Columns = [reduce_numbers(groups, columns[0], np.add, np.int64(0))]
        for kernel, own in zip(self.kernels, self._split(columns), strict=True):
            merged += kernel.combine(groups, own)
        return merged

    def results(self, columns: Columns) -> list[pa.Array]:
        """The results to emit, aggregate by aggregate."""
        records = columns[0]
        return [k.finish(own, records) for k, own in zip(self.kernels, self._split(columns), strict=True)]

    def to_arrow(self, columns: Columns) -> list[pa.Array]:
        """Partial results as checkpoints and exchanges have them."""
        return [_arrow(c, f.type) for c, f in zip(columns, self.schema, strict=True)]

    def from_arrow(self, arrays: Sequence[pa.Array]) -> Columns:
        """The inverse of `to_arrow`."""
        columns: Columns = [_numpy(arrays[0])]
        at = 1
        for kernel in self.kernels:
            for i in range(len(kernel.partial)):
                columns.append(_numpy(arrays[at]) if i < kernel.numbers else arrays[at])
                at += 1
        return columns

    def _split(self, columns: Columns) -> list[Columns]:
        parts, at = [], 1
        for width in self._widths:
            parts.append(columns[at : at + width])
            at += width
        return parts

    # ---- parts ----

    def part_of(self, ids: Longs, columns: Columns) -> Part:
        """A part of rows in any order of ids, each once."""
        if len(ids) > 1 and bool((ids[1:] < ids[:-1]).any()):
            order = np.argsort(ids, kind="stable")
            return Part(ids[order], take(columns, order))
        return Part(ids, columns)

    def merged(self, parts: Sequence[Part], keys: int) -> Part:
        """Merge several parts, earlier first; ids are below `keys`."""
        if len(parts) == 1:
            return parts[0]
        if all(p.ids is None for p in parts):
            longest = max(parts, key=lambda p: len(p.columns[0]))
            into = Part(None, [c.copy() for c in parts[0].columns])
            if longest is not parts[0]:
                into.columns = self.widened(into.columns, len(longest.columns[0]))
            for part in parts[1:]:
                self.add_dense(into, part)
            return into
        rows = [p.rows() for p in parts]
        ids = np.concatenate([r[0] for r in rows])
        columns = [concat([r[1][i] for r in rows]) for i in range(len(self.schema))]
        return self.grouped(ids, columns, keys)

    def grouped(self, ids: Longs, columns: Columns, keys: int) -> Part:
        """A part of rows in order of arrival, in which ids may repeat."""
        groups, found = grouped(ids, keys)
        return self.part_of(found, self.merge(groups, columns))

    def add_dense(self, into: Part, other: Part) -> None:
        """Merge a dense part into a dense one that is at least as long."""
        rows = zip(self.merging, self._may_overflow, into.columns, other.columns, strict=True)
        for ufunc, may_overflow, whole, column in rows:
            n = len(column)
            whole[:n] = merge_numbers(ufunc, whole[:n], column, may_overflow=may_overflow)

    def scatter(self, into: Part, ids: Longs, columns: Columns) -> None:
        """Merge rows (each id once) into a dense part that is long enough."""
        rows = zip(self.merging, self._may_overflow, into.columns, columns, strict=True)
        for ufunc, may_overflow, whole, column in rows:
            whole[ids] = merge_numbers(ufunc, whole[ids], column, may_overflow=may_overflow)

    def empty_dense(self, keys: int) -> Part:
        return Part(None, [np.full(keys, x, d) for x, d in zip(self.initial, self.dtypes, strict=True)])

    def widened(self, columns: Columns, keys: int) -> Columns:
        """Dense columns for more keys."""
        wide = self.empty_dense(keys).columns
        for new, old in zip(wide, columns, strict=True):
            new[: len(old)] = old
        return wide


class Part:
    """Partial results of keys; `ids` are in order, or None for a dense part. Shared ones are never changed."""

    __slots__ = ("columns", "ids")

    def __init__(self, ids: Longs | None, columns: Columns) -> None:
        self.ids = ids
        self.columns = columns

    def rows(self) -> tuple[Longs, Columns]:
        """Ids in order, and their rows, which do not change later."""
        if self.ids is not None:
            return self.ids, self.columns
        ids = np.flatnonzero(self.columns[0])
        return ids, [c[ids] for c in self.columns]

    def only(self, ids: Longs) -> Part:
        """The rows of these ids (in order), as far as they exist."""
        if self.ids is None:
            some = ids[ids < len(self.columns[0])]
            some = some[self.columns[0][some] > 0]
            return Part(some, [c[some] for c in self.columns])
        at = np.searchsorted(self.ids, ids)
        at[at == len(self.ids)] = 0
        if not len(self.ids):
            return self
        found = at[self.ids[at] == ids]
        return Part(self.ids[found], take(self.columns, found))


def take(columns: Columns, rows: Longs) -> Columns:
    return [c.take(pa.array(rows)) if isinstance(c, pa.Array) else c[rows] for c in columns]


def concat(columns: Sequence[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], pa.Array):
        return pa.concat_arrays(columns)
    return np.concatenate(columns)


def _arrow(column: Column, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return decimals(column, kind) if pa.types.is_decimal(kind) else pa.array(column)


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_decimal(array.type):
        return unscaled(array).astype(object)
    numbers: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers
