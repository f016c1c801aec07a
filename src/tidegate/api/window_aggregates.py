"""The built-in aggregates of windows: what they are called, what they read, and the type of their results.

    windowed.aggregate(total=Sum("amount"), orders=Count(), top=TopN(3, by="amount"))

They are declarations; `operators/window/` performs them, by columns where it can. None values of the column are left
out by all of them; without any other, the result is None (0 for the counts, an empty list for `TopN`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from tidegate.api.identity import Identity
from tidegate.api.keys import _aggregate_value_type
from tidegate.api.windows import check_count
from tidegate.core.errors import ProgramError
from tidegate.records.decimals import average_type
from tidegate.records.types import RecordType

WindowAggregateKind = Literal["count", "sum", "min", "max", "avg", "first", "last", "count_distinct", "top_n"]


@dataclass(frozen=True)
class WindowAggregate(ABC):
    """Base of the built-in aggregates."""

    kind: ClassVar[WindowAggregateKind]

    def columns(self) -> tuple[str, ...] | None:
        """The columns that it reads; None: all of them."""
        column = getattr(self, "column", None)
        return () if column is None else (column,)

    def default_output(self) -> str:
        """The name of the result where the user gives none."""
        return "_".join((self.kind, *(self.columns() or ())))

    @abstractmethod
    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """The result's column; raises `ProgramError` for a column that it cannot take."""

    def describe(self) -> str:
        """A few words for the plan."""
        return f"{self.kind}({', '.join(self.columns() or ())})"

    def identity(self) -> Identity:
        """What it computes, durable: part of ids and fingerprints."""
        return self.kind, *(self.columns() or ())

    def _field(self, column: str, record_type: RecordType) -> pa.Field:
        if not isinstance(column, str):
            raise ProgramError(f"{self.kind} takes the name of a column, got {column!r}")
        if record_type.is_object:
            raise ProgramError(
                f"{self.kind}({column!r}) needs columns, but the records are Python objects without a schema. Give the "
                f"function that makes them a return type hint"
            )
        return record_type.schema.field(record_type.field_index(column, self.kind))


@dataclass(frozen=True)
class Count(WindowAggregate):
    """How many records; with a column, how many of its values are not None. An int64."""

    kind = "count"
    column: str | None = None

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """An int64, never None."""
        if self.column is not None:
            self._field(self.column, record_type)
        return pa.field(output, pa.int64(), False)


@dataclass(frozen=True)
class _OfColumn(WindowAggregate):
    column: str


@dataclass(frozen=True)
class Sum(_OfColumn):
    """The sum of a column: an int64, a float64, or of decimals a decimal of 38 digits, exactly.

    An int64 or a decimal that overflows is an error.
    """

    kind = "sum"

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """An int64, a float64 or a decimal128(38, s)."""
        return pa.field(output, _aggregate_value_type("sum", self._field(self.column, record_type)), True)


@dataclass(frozen=True)
class Min(_OfColumn):
    """The smallest value of a column of numbers or times, in the column's type; NaN is the largest number."""

    kind = "min"

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """The column's type."""
        return pa.field(output, _aggregate_value_type("min", self._field(self.column, record_type)), True)


@dataclass(frozen=True)
class Max(_OfColumn):
    """The largest value of a column of numbers or times, in the column's type; NaN is the largest number."""

    kind = "max"

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """The column's type."""
        return pa.field(output, _aggregate_value_type("max", self._field(self.column, record_type)), True)


@dataclass(frozen=True)
class Avg(_OfColumn):
    """The mean of a column of numbers, a float64.

    Of a decimal(p, s) it is a decimal(p + 4, s + 4), or as much more as 38 digits allow, made from the exact sum; a
    half is rounded away from zero.
    """

    kind = "avg"

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """A float64, or a decimal."""
        field = self._field(self.column, record_type)
        if pa.types.is_decimal128(field.type):
            return pa.field(output, average_type(field.type), True)
        if pa.types.is_boolean(field.type) or not (
            pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        ):
            raise ProgramError(
                f"avg({self.column!r}): the column is {field.type}, but must be an integer, a float or a decimal128"
            )
        return pa.field(output, pa.float64(), True)


@dataclass(frozen=True)
class First(_OfColumn):
    """The value of the record with the earliest timestamp; of several, of the one that came first.

    In windows that are not in event time, the record that came first.
    """

    kind = "first"

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """The column's type."""
        return pa.field(output, self._field(self.column, record_type).type, True)


@dataclass(frozen=True)
class Last(_OfColumn):
    """The value of the record with the latest timestamp; of several, of the one that came last.

    In windows that are not in event time, the record that came last.
    """

    kind = "last"

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """The column's type."""
        return pa.field(output, self._field(self.column, record_type).type, True)


@dataclass(frozen=True)
class CountDistinct(_OfColumn):
    """How many different values a column has, exactly; the state grows with them. All NaN are one value."""

    kind = "count_distinct"

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """An int64, never None."""
        field = self._field(self.column, record_type)
        t = pa.types
        if t.is_nested(field.type) or t.is_interval(field.type) or t.is_null(field.type):
            raise ProgramError(
                f"count_distinct({self.column!r}): the column is {field.type}, but must be a scalar"
            )
        return pa.field(output, pa.int64(), False)


@dataclass(frozen=True)
class TopN(WindowAggregate):
    """The `n` records with the largest `by` (or, `largest=False`, the smallest), best first.

    Of equal ones the record with the earlier timestamp is better, then the one that came first. The result is a list of
    structs with `select`ed columns (default: all). Records whose `by` is None are left out; NaN is the largest number.
    """

    kind = "top_n"
    n: int
    by: str
    select: tuple[str, ...] | None = None
    largest: bool = True

    def __init__(
        self, n: int, by: str, select: Sequence[str] | str | None = None, largest: bool = True
    ) -> None:
        check_count("TopN", n)
        chosen = (select,) if isinstance(select, str) else None if select is None else tuple(select)
        if chosen == ():
            raise ProgramError("TopN(select=...) needs at least one column, or leave it out for all")
        for name, value in (("n", n), ("by", by), ("select", chosen), ("largest", largest)):
            object.__setattr__(self, name, value)  # the dataclass is frozen

    def columns(self) -> tuple[str, ...] | None:
        """Those that are chosen, and `by`."""
        return None if self.select is None else tuple(dict.fromkeys((self.by, *self.select)))

    def default_output(self) -> str:
        """The name of the result where the user gives none."""
        return f"top_{self.n}_{self.by}"

    def selected(self, record_type: RecordType) -> tuple[str, ...]:
        """The columns of the structs."""
        return tuple(record_type.names) if self.select is None else self.select

    def result_field(self, output: str, record_type: RecordType) -> pa.Field:
        """A list of structs, never None."""
        _aggregate_value_type("top_n", self._field(self.by, record_type))
        fields = [self._field(name, record_type) for name in self.selected(record_type)]
        return pa.field(output, pa.list_(pa.field("item", pa.struct(fields), False)), False)

    def describe(self) -> str:
        """A few words for the plan."""
        return f"top_n({self.n} by {self.by}{'' if self.largest else ', smallest'})"

    def identity(self) -> Identity:
        """How many, by what, and what is kept of each."""
        return self.kind, self.n, self.by, self.select, self.largest
