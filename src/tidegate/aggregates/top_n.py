"""`TopN`: the best records by one or more columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tidegate.aggregates.aggregate import (
    Aggregate,
    Column,
    Input,
    Kernel,
    Longs,
    input_identity,
    input_name,
)
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.values import (
    LARGEST,
    check_ordered,
    list_lengths,
    lists_of,
    plain,
    rank_of,
    ranks_of,
    valid_rows,
)
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity

Direction = Literal["asc", "desc"]
Order = Input | tuple[Input, Direction]
Ties = Literal["first", "all"]

_FEW: Final = 8


@dataclass(frozen=True)
class TopN(Aggregate):
    """The `n` records with the largest `by` (or with `largest=False` the smallest), best first.

    `by` is a column or an expression, or several in order of priority, each with its own direction: `by=[("price",
    "desc"), ("name", "asc")]`. Of records that are equal in all of them, the one with the earliest timestamp is better,
    then the one that arrived first. With `ties="all"` the result also has the records that are equal to the last one.
    The result is a list of structs with the `select`ed columns (default: all). Records with a `by` that is None are
    left out; NaN is the largest number.
    """

    kind = "top_n"
    runs_user_code = False
    n: int
    orders: tuple[tuple[Input, Direction], ...]
    select: tuple[str, ...] | None = None
    ties: Ties = "first"
    where: pl.Expr | None = field(default=None, kw_only=True)

    def __init__(
        self,
        n: int,
        by: Order | Sequence[Order],
        select: Sequence[str] | str | None = None,
        largest: bool = True,
        *,
        ties: Ties = "first",
        where: pl.Expr | None = None,
    ) -> None:
        if type(n) is not int or n < 1:
            raise ProgramError(f"TopN needs a number of records from 1 on, got {n!r}")
        if ties not in ("first", "all"):
            raise ProgramError(f'TopN(ties=...) is "first" or "all", got {ties!r}')
        values = {
            "n": n,
            "orders": _orders(by, "desc" if largest else "asc"),
            "select": selected_names("TopN", select),
            "ties": ties,
            "where": where,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    def inputs(self, names: Sequence[str]) -> tuple[Input, ...]:
        return (*(by for by, _ in self.orders), *(names if self.select is None else self.select))

    def columns(self) -> tuple[str, ...] | None:
        return None if self.select is None else self.columns_of(self.inputs(()))

    def default_output(self) -> str:
        return "_".join((f"top_{self.n}", *(input_name(by) for by, _ in self.orders)))

    def describe(self) -> str:
        if [direction for _, direction in self.orders] == ["asc"]:
            by = f"{self.orders[0][0]}, smallest"
        else:
            by = ", ".join(f"{by} asc" if direction == "asc" else str(by) for by, direction in self.orders)
        ties = ", ties" if self.ties == "all" else ""
        return f"top_n({self.words(f'{self.n} by {by}{ties}')})"

    def identity(self) -> Identity:
        orders = tuple((input_identity(by), direction) for by, direction in self.orders)
        where = () if self.where is None else (("where", input_identity(self.where)),)
        return self.kind, self.n, orders, self.select, self.ties, *where

    def label(self) -> str:
        return f"top_n({self.n})"

    def bind(self, *inputs: pa.Field) -> Kernel:
        count = len(self.orders)
        by = [check_ordered(self.kind, column) for column in inputs[:count]]
        descending = [direction == "desc" for _, direction in self.orders]
        return BestRecords(self.n, by, list(inputs[count:]), descending, with_ties=self.ties == "all")


def selected_names(what: str, select: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """The selected columns; None: all."""
    chosen = (select,) if isinstance(select, str) else None if select is None else tuple(select)
    if chosen == ():
        raise ProgramError(f"{what}(select=...) needs at least one column, or leave it out for all")
    return chosen


def _orders(by: Order | Sequence[Order], default: Direction) -> tuple[tuple[Input, Direction], ...]:
    if isinstance(by, tuple) and len(by) == 2 and isinstance(by[1], str) and by[1] in ("asc", "desc"):
        given: Sequence[Any] = (by,)
    else:
        given = (by,) if isinstance(by, (str, pl.Expr)) else by
    found: list[tuple[Input, Direction]] = []
    for each in given:
        column, direction = each if isinstance(each, tuple) and len(each) == 2 else (each, default)
        if direction not in ("asc", "desc"):
            raise ProgramError(f'TopN(by=...) has "asc" or "desc" beside a column, got {direction!r}')
        found.append((column, direction))
    if not found:
        raise ProgramError("TopN(by=...) needs at least one column")
    return tuple(found)


class _Ranked(NamedTuple):
    ranks: tuple[tuple[bool, Any], ...]
    timestamp_ms: int
    record: tuple[Any, ...]


class BestRecords(Kernel):
    """Keeps a list of records with their timestamps, best first; by rows a list of `_Ranked`."""

    nullable = False

    def __init__(
        self,
        n: int,
        by: list[pa.DataType],
        selected: list[pa.Field],
        descending: list[bool],
        *,
        with_ties: bool = False,
    ) -> None:
        self._n = n
        self._by = by
        self._descending = descending
        self._with_ties = with_ties
        self._selected = selected
        fields = [pa.field("$by" if i == 0 else f"$by{i}", kind, False) for i, kind in enumerate(by)]
        fields.append(pa.field("$time", pa.int64(), False))
        fields += [pa.field(f"${i}", f.type, True) for i, f in enumerate(selected)]
        self._item = pa.struct(fields)
        self.partial = [pa.field("best", pa.list_(pa.field("item", self._item, False)), False)]
        self.result_type = pa.list_(pa.field("item", pa.struct(selected), False))

    # ---- by columns ----

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        by, selected = inputs[: len(self._by)], inputs[len(self._by) :]
        rows: Longs | None = None
        for column in by:
            valid = valid_rows(column)
            if valid is not None:
                rows = valid if rows is None else np.intersect1d(rows, valid, assume_unique=True)
        codes, times = groups.codes, timestamps
        ranks = [ranks_of(column) for column in by]
        if rows is not None:
            codes, times, ranks = codes[rows], times[rows], [r[rows] for r in ranks]
        best, counts = self._best(groups, codes, ranks, times)
        chosen = pa.array(best if rows is None else rows[best])
        columns = [*by, pa.array(timestamps), *selected]
        arrays = [plain(c.take(chosen), f.type) for c, f in zip(columns, self._item, strict=True)]
        items = pa.StructArray.from_arrays(arrays, fields=list(self._item))
        return [lists_of(items, counts, self.partial[0].type)]

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        (lists,) = columns
        items = lists.flatten()
        parts = items.flatten()
        codes = np.repeat(groups.codes, list_lengths(lists))
        ranks = [ranks_of(by) for by in parts[: len(self._by)]]
        best, counts = self._best(groups, codes, ranks, parts[len(self._by)].to_numpy())
        return [lists_of(items.take(pa.array(best)), counts, self.partial[0].type)]

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        (lists,) = columns
        selected = lists.flatten().flatten()[len(self._by) + 1 :]
        items = pa.StructArray.from_arrays(selected, fields=self._selected)
        return lists_of(items, list_lengths(lists), self.result_type)

    def _best(self, groups: Groups, codes: Longs, ranks: list[Longs], times: Longs) -> tuple[Longs, Longs]:
        """The best rows of each group, group by group, and their number for each present group."""
        own = [~r if down else r for r, down in zip(ranks, self._descending, strict=True)]
        rank = own[0] if len(own) == 1 else _joint(own)
        rows = None
        if self._n <= _FEW and len(codes) > 4 * self._n * groups.space:
            rows = self._promising(codes, rank, groups.space)
            codes, rank, times = codes[rows], rank[rows], times[rows]
        order = np.lexsort((times, rank, codes))
        sizes = np.bincount(codes, minlength=groups.space)
        starts = np.cumsum(sizes) - sizes
        place = np.arange(len(order)) - starts[codes[order]]
        if self._with_ties and len(order):
            place = _places_of_equals(place, codes[order], rank[order])
            kept = place < self._n
            counts = np.bincount(codes[order[kept]], minlength=groups.space)[groups.present]
        else:
            kept = place < self._n
            counts = np.minimum(sizes[groups.present], self._n)
        best = order[kept]
        return best if rows is None else rows[best], counts

    def _promising(self, codes: Longs, ranks: Longs, space: int) -> Longs:
        """The rows with one of the n best values of their group, so that far fewer rows need sorting."""
        left = np.arange(len(codes))
        for _ in range(self._n):
            worst = np.full(space, LARGEST)
            np.minimum.at(worst, codes[left], ranks[left])
            left = left[ranks[left] > worst[codes[left]]]
        after = np.zeros(len(codes), np.bool_)
        after[left] = True
        return np.flatnonzero(~after)

    # ---- by rows ----

    @property
    def stored(self) -> list[pa.Field]:
        record = pa.struct([f.with_nullable(True) for f in self._selected])
        by = [pa.field("by" if i == 0 else f"by{i}", pa.list_(kind)) for i, kind in enumerate(self._by)]
        return [*by, pa.field("times", pa.list_(pa.int64())), pa.field("records", pa.list_(record))]

    def start(self) -> Any:
        return []

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        by = value[: len(self._by)]
        if None in by:
            return kept
        return self._insert(kept, _Ranked(tuple(map(rank_of, by)), timestamp_ms, value[len(self._by) :]))

    def merge(self, left: Any, right: Any) -> Any:
        for ranked in right:
            self._insert(left, ranked)
        return left

    def result(self, kept: Any) -> Any:
        names = [f.name for f in self._selected]
        return [dict(zip(names, r.record, strict=True)) for r in kept]

    def dump(self, kept: Any) -> tuple[Any, ...]:
        by = [[r.ranks[i][1] for r in kept] for i in range(len(self._by))]
        return *by, [r.timestamp_ms for r in kept], self.result(kept)

    def load(self, stored: tuple[Any, ...]) -> Any:
        *by, times, records = stored
        names = [f.name for f in self._selected]
        return [
            _Ranked(tuple(map(rank_of, ranks)), time, tuple(record[name] for name in names))
            for time, record, *ranks in zip(times, records, *by, strict=True)
        ]

    def _insert(self, kept: list[_Ranked], new: _Ranked) -> list[_Ranked]:
        full = len(kept) >= self._n
        if full and not self._is_better(new, kept[-1]) and not self._is_tie(new, kept):
            return kept
        place = len(kept)
        while place and self._is_better(new, kept[place - 1]):
            place -= 1
        kept.insert(place, new)
        end = self._n
        while self._with_ties and end < len(kept) and kept[end].ranks == kept[self._n - 1].ranks:
            end += 1
        del kept[end:]
        return kept

    def _is_tie(self, new: _Ranked, kept: list[_Ranked]) -> bool:
        return self._with_ties and new.ranks == kept[-1].ranks

    def _is_better(self, one: _Ranked, other: _Ranked) -> bool:
        for mine, its, down in zip(one.ranks, other.ranks, self._descending, strict=True):
            if mine != its:
                return mine > its if down else mine < its
        return one.timestamp_ms < other.timestamp_ms


def _joint(ranks: list[Longs]) -> Longs:
    """One rank per row for several ranks in order of priority."""
    order = np.lexsort(ranks[::-1])
    changes = np.zeros(len(order), np.int64)
    for rank in ranks:
        own = rank[order]
        changes[1:] |= own[1:] != own[:-1]
    joint = np.empty(len(order), np.int64)
    joint[order] = np.cumsum(changes)
    return joint


def _places_of_equals(places: Longs, codes: Longs, ranks: Longs) -> Longs:
    """For rows sorted by group and rank: the place of the first row that is equal to each row."""
    first = np.ones(len(places), np.bool_)
    first[1:] = (codes[1:] != codes[:-1]) | (ranks[1:] != ranks[:-1])
    return places[np.maximum.accumulate(np.where(first, np.arange(len(places)), 0))]
