"""The contract of aggregates: a program declares an `Aggregate`; a `Kernel` computes it for columns of known types.

A kernel works in two ways, which agree. By columns: `reduce` makes a partial result for each group of rows, `combine`
merges partial results, `finish` makes the results. By rows: `start`, `add`, `merge` and `result` do the same for one
group, record by record. Windows use columns if their cut allows it. Two-stage plans send partial results through an
exchange. Running aggregates use `totals` if there are any, else rows.

A record whose first input is None is left out. `where=` is built on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from tidegate.aggregates.groups import Groups
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity, expression_identity
from tidegate.core.words import kind_of
from tidegate.records.columns import build_column, column_values
from tidegate.records.object_copies import copy_object
from tidegate.records.type_hints import identity_codec

if TYPE_CHECKING:
    from tidegate.aggregates.totals import Totals

Input = str | pl.Expr
"""A column by name, or an expression of one record's columns."""
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Column = Any
"""A numpy array, or an Arrow array."""


class AggregateError(ValueError):
    """The user's aggregate, or an expression that it reads, failed; the cause is the original exception."""


class Aggregate:
    """An aggregate as a program declares it: the base of the built-in ones, and of your own.

    Your own defines its durable `kind`, what it reads (`column`, or `inputs`), the types of its result and of what is
    kept, and how a value is added. `tests/contract/test_aggregates.py` is the suite that every aggregate passes. If
    Python per record is too slow, override `bind` and return a `Kernel` that also works by columns.
    """

    kind: ClassVar[str] = ""
    """The name in plans and default column names; durable, since it is part of the identity of state."""
    runs_user_code: ClassVar[bool] = True
    """Whether it runs the user's code, whose speed is unknown; the built-in ones do not."""
    where: pl.Expr | None = None
    """Only records for which this is true are aggregated."""

    def inputs(self, names: Sequence[str]) -> tuple[Input, ...]:
        """What it reads of records with these columns; by default the attribute `column`, if there is one."""
        column = getattr(self, "column", None)
        return () if column is None else (column,)

    def columns(self) -> tuple[str, ...] | None:
        """The columns that it reads; None: all of them, also if an overridden `inputs` may read any."""
        if type(self).inputs is not Aggregate.inputs:
            return None
        return self.columns_of(self.inputs(()))

    def columns_of(self, inputs: Sequence[Input]) -> tuple[str, ...] | None:
        """The columns that these inputs and the condition read; None: all of them."""
        found: dict[str, None] = {}
        for each in (*inputs, *(() if self.where is None else (self.where,))):
            if isinstance(each, pl.Expr) and each.meta.has_multiple_outputs():
                return None
            found.update(dict.fromkeys((each,) if isinstance(each, str) else each.meta.root_names()))
        return tuple(found)

    def default_output(self) -> str:
        """The name of the result if the user gives none."""
        return "_".join((self.kind, *map(input_name, self.inputs(()))))

    def describe(self) -> str:
        """A few words for the plan."""
        return f"{self.kind}({self.words(', '.join(map(str, self.inputs(()))))})"

    def identity(self) -> Identity:
        """What it computes; durable, since it is part of operator ids. Rewording `describe` does not change it."""
        where = () if self.where is None else (("where", input_identity(self.where)),)
        return self.kind, *map(input_identity, self.inputs(())), *where

    def words(self, inputs: str) -> str:
        """The inputs in words, with the condition."""
        return inputs if self.where is None else f"{inputs} where {self.where}".strip()

    def label(self) -> str:
        """Its name in errors."""
        first = next(iter(self.inputs(())), "")
        return f"{self.kind}({first!r})" if isinstance(first, str) else f"{self.kind}({first})"

    def bind(self, *inputs: pa.Field) -> Kernel:
        """Make the kernel for inputs of these types; raises `ProgramError` for types that it cannot take.

        A count of records has no input. With `where=` there is always one.
        """
        missing = [m for m in ("result_type", "partial", "add", "merge") if not _is_own(self, m)]
        if not self.kind or missing:
            what = "kind = ..." if not self.kind else ", ".join(f"{m}(...)" for m in missing)
            raise ProgramError(f"the aggregate {type(self).__name__} does not define {what}")
        return PythonKernel(self, inputs)

    # ---- an aggregate of the user's own, record by record ----

    def result_type(self, *inputs: pa.DataType) -> pa.DataType:
        """The Arrow type of the result for inputs of these types."""
        raise NotImplementedError

    def partial(self, *inputs: pa.DataType) -> dict[str, pa.DataType]:
        """Names and types of what is kept of a group. Checkpoints and exchanges contain it, so names are durable."""
        raise NotImplementedError

    def start(self) -> Any:
        """Return what is kept of no records: one value for each field of `partial`, a tuple if there are several."""
        return None

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        """Return `kept` with one more record. `value` is the input, or a tuple of inputs; the first is not None."""
        raise NotImplementedError

    def merge(self, left: Any, right: Any) -> Any:
        """Return two as one; `left` came first. Merging with `start()` changes nothing."""
        raise NotImplementedError

    def result(self, kept: Any) -> Any:
        """Return the result of what is kept."""
        return kept


@dataclass(frozen=True)
class OfColumn(Aggregate):
    """A built-in aggregate of one column or expression."""

    runs_user_code = False
    column: Input
    where: pl.Expr | None = field(default=None, kw_only=True)


class Kernel:
    """One aggregate over inputs of known types. It holds no results itself.

    The first `numbers` columns of a partial result are numpy arrays, the others Arrow arrays. Columns with a `merging`
    ufunc merge element by element, so that whole slices of a window merge at memory speed.

    A kernel that does not override the column methods computes by rows: then `stored` equals `partial`.
    """

    result_type: pa.DataType
    nullable: bool = True
    """Whether a result may be None."""
    partial: list[pa.Field]
    """The columns of a partial result, as they are in checkpoints and exchanges."""
    numbers: int = 0
    merging: list[np.ufunc] | None = None
    """For each column the ufunc that merges two of its elements; None: merge by group only."""
    initial: Sequence[Any] = ()
    """For each column with a `merging` ufunc its neutral element."""
    may_overflow: bool = False
    """Whether the first column is a sum that may overflow."""

    # ---- by columns ----

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        """Make the partial result of each present group of rows."""
        kept = [self.start() for _ in range(len(groups))]
        places = groups.positions(groups.codes).tolist()
        values = input_rows(inputs, len(places))
        for at, value, timestamp_ms in zip(places, values, timestamps.tolist(), strict=True):
            if value is not None:
                kept[at] = self.add(kept[at], value, timestamp_ms)
        return self._columns(kept)

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        """Merge the rows, which are partial results in order of arrival, into one for each present group."""
        kept = [self.start() for _ in range(len(groups))]
        for at, other in zip(groups.positions(groups.codes).tolist(), self._loaded(columns), strict=True):
            kept[at] = self.merge(kept[at], other)
        return self._columns(kept)

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        """Make the results. `records` counts the records of each group, including those that were left out."""
        results = pa.field("result", self.result_type, self.nullable)
        return build_column(results, [self.result(kept) for kept in self._loaded(columns)], None)

    def _columns(self, kept: list[Any]) -> list[Column]:
        rows = [self.dump(each) for each in kept]
        return [build_column(f, [row[i] for row in rows], None) for i, f in enumerate(self.partial)]

    def _loaded(self, columns: list[Column]) -> list[Any]:
        return [self.load(row) for row in zip(*map(_values, columns), strict=True)]

    # ---- running ----

    def totals(self) -> list[Totals] | None:
        """The running numbers that its result is made from; None: it runs by rows."""
        return None

    def of_totals(self, totals: list[pa.Array]) -> pa.Array:
        """Make the results from these numbers."""
        return totals[0]

    # ---- by rows ----

    @property
    def stored(self) -> list[pa.Field]:
        """The fields of what is kept of one group, as they are in state."""
        return self.partial

    def start(self) -> Any:
        """Return what is kept of no records."""
        return None

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        """Return `kept`, which it may change, with one more value: the input (a tuple of several), never None."""
        return self.merge(kept, value)

    def merge(self, left: Any, right: Any) -> Any:
        """Return two as one; may change both."""
        raise NotImplementedError

    def result(self, kept: Any) -> Any:
        return kept

    def dump(self, kept: Any) -> tuple[Any, ...]:
        """Return one value for each field of `stored`."""
        if len(self.stored) == 1:
            return (kept,)
        return (None,) * len(self.stored) if kept is None else tuple(kept)

    def load(self, stored: tuple[Any, ...]) -> Any:
        """Return what `dump` was given."""
        if len(self.stored) == 1:
            return stored[0]
        return None if stored[0] is None else stored


class PythonKernel(Kernel):
    """Calls the user's own aggregate."""

    def __init__(self, aggregate: Aggregate, inputs: Sequence[pa.Field]) -> None:
        types = [f.type for f in inputs]
        self.result_type = aggregate.result_type(*types)
        self.partial = [pa.field(name, kind) for name, kind in aggregate.partial(*types).items()]
        self._aggregate = aggregate
        self._starts_with_none = aggregate.start() is None
        self._forms = [
            (i, f, form) for i, f in enumerate(self.partial) if (form := _form(f.type)) is not None
        ]

    def reduce(self, groups: Groups, inputs: Sequence[pa.Array], timestamps: Longs) -> list[Column]:
        with self._blamed():
            return super().reduce(groups, inputs, timestamps)

    def combine(self, groups: Groups, columns: list[Column]) -> list[Column]:
        with self._blamed():
            return super().combine(groups, columns)

    def finish(self, columns: list[Column], records: Longs) -> pa.Array:
        with self._blamed():
            return super().finish(columns, records)

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            raise AggregateError(f"the aggregate {type(self._aggregate).__name__} failed: {e!r}") from e

    def start(self) -> Any:
        return self._aggregate.start()

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        return self._aggregate.add(kept, value, timestamp_ms)

    def merge(self, left: Any, right: Any) -> Any:
        return self._aggregate.merge(left, right)

    def result(self, kept: Any) -> Any:
        """A copy, because the user's result may be, or contain, what goes on changing."""
        return copy_object(self._aggregate.result(kept))

    def dump(self, kept: Any) -> tuple[Any, ...]:
        """Refuse values of another class than the one that a checkpoint would return."""
        row = super().dump(kept)
        for i, field_, form in self._forms:
            if row[i] is not None and type(row[i]) is not form:
                raise TypeError(
                    f"the aggregate {type(self._aggregate).__name__} keeps {field_.name!r} as {field_.type}, which "
                    f"is a {form.__name__} in Python, but made {kind_of(row[i])}"
                )
        return row

    def load(self, stored: tuple[Any, ...]) -> Any:
        """None only if that is what the user's `start` returns."""
        if len(self.partial) == 1:
            return stored[0]
        return None if self._starts_with_none and all(v is None for v in stored) else stored


def columns_read(aggregates: Iterable[Aggregate]) -> frozenset[str] | None:
    """The columns that these aggregates read; None: all."""
    found: set[str] = set()
    for aggregate in aggregates:
        columns = aggregate.columns()
        if columns is None:
            return None
        found.update(columns)
    return frozenset(found)


def aggregate_words(aggregates: Iterable[tuple[str, Aggregate]]) -> str:
    """Aggregates by result name, for the plan; default names are left out."""
    return ", ".join(
        a.describe() if name == a.default_output() else f"{name}={a.describe()}" for name, a in aggregates
    )


def input_name(each: Input) -> str:
    """The name of an input in default column names."""
    name = each.meta.output_name(raise_if_undetermined=False) if isinstance(each, pl.Expr) else each
    return name if isinstance(name, str) else "value"


def input_identity(each: Input) -> str:
    """An input in identities: expressions as polars prints them, without memory addresses."""
    return each if isinstance(each, str) else expression_identity(each)


def input_rows(inputs: Sequence[pa.Array], count: int) -> list[Any]:
    """The value of each record for `Kernel.add`: None if it is left out, a tuple if there are several inputs."""
    if not inputs:
        return [True] * count
    columns = [_values(column) for column in inputs]
    if len(columns) == 1:
        return columns[0]
    return [None if values[0] is None else values for values in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    """Values as rows have them: a map is a dict."""
    return column_values(column, identity_codec(column.type).decode)


def _form(kind: pa.DataType) -> type | None:
    """The Python class of nested values; None for scalars."""
    if pa.types.is_map(kind) or pa.types.is_struct(kind):
        return dict
    return list if pa.types.is_nested(kind) else None


def of_type(kind: str, column: pa.Field, needed: str) -> ProgramError:
    """The error for a column of the wrong type."""
    return ProgramError(f"{kind}({column.name!r}): the column is {column.type}, but must be {needed}")


def _is_own(aggregate: Aggregate, method: str) -> bool:
    return getattr(type(aggregate), method) is not getattr(Aggregate, method)
