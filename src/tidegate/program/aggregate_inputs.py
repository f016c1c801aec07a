"""The inputs of aggregates (column names, expressions, conditions), checked against a record type."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from tidegate.aggregates.aggregate import Aggregate, Input, Kernel, input_name
from tidegate.core.errors import ProgramError
from tidegate.program.expressions import expression_result_type, is_plain_column
from tidegate.records.types import RecordType


class AggregateInput(NamedTuple):
    """One input: a column of the record by position, or an expression."""

    field: pa.Field
    position: int | None
    expression: pl.Expr | None


def inputs_of(aggregate: Aggregate, record_type: RecordType) -> list[AggregateInput]:
    """The inputs of an aggregate. The condition is the only input of a count with `where=`.

    Raises `ProgramError` for a column that does not exist, and for an expression that needs more than one record.
    """
    found = [
        _input(aggregate, each, record_type)
        for each in aggregate.inputs(() if record_type.is_object else record_type.names)
    ]
    if aggregate.where is not None:
        _check_where(aggregate, record_type)
        if not found:
            found = [AggregateInput(pa.field("where", pa.bool_()), None, aggregate.where)]
    return found


def named_aggregates(first: Any, outputs: dict[str, Any]) -> tuple[dict[str, Aggregate], dict[str, Any]]:
    """Split keyword arguments into aggregates by result name, and the rest."""
    found = {name: value for name, value in outputs.items() if isinstance(value, Aggregate)}
    others = {name: value for name, value in outputs.items() if name not in found}
    for name, value in others.items():
        if isinstance(value, type) and issubclass(value, Aggregate):
            raise ProgramError(f"aggregate({name}={value.__name__}) got the class; give it an instance")
    if isinstance(first, Aggregate):
        if first.default_output() in found:
            raise ProgramError(
                f"aggregate has two results named {first.default_output()!r}. Give the first one a name too"
            )
        found = {first.default_output(): first, **found}
    return found, others


def kernel_of(aggregate: Aggregate, record_type: RecordType) -> Kernel:
    """The kernel that computes an aggregate over records of this type."""
    return aggregate.bind(*(i.field for i in inputs_of(aggregate, record_type)))


def result_field(output: str, aggregate: Aggregate, record_type: RecordType) -> pa.Field:
    """The column of the result; raises `ProgramError` for a column type that the aggregate cannot take."""
    kernel = kernel_of(aggregate, record_type)
    return pa.field(output, kernel.result_type, kernel.nullable)


def _input(aggregate: Aggregate, each: Input, record_type: RecordType) -> AggregateInput:
    shown = f"{aggregate.kind}({each})" if isinstance(each, pl.Expr) else f"{aggregate.kind}({each!r})"
    if record_type.is_object:
        raise ProgramError(
            f"{shown} needs columns, but the records are Python objects without a schema. Give the function that makes "
            f"them a return type hint"
        )
    if isinstance(each, pl.Expr) and is_plain_column(each) and each.meta.root_names()[0] in record_type.names:
        each = each.meta.root_names()[0]
    if not isinstance(each, pl.Expr):
        position = record_type.field_index(each, aggregate.kind)
        return AggregateInput(record_type.schema.field(position), position, None)
    try:
        if each.meta.has_multiple_outputs():
            raise ProgramError("it may stand for several columns; an aggregate takes one")
        made = expression_result_type(record_type, "select", (each,)).schema.field(0)
    except ProgramError as e:
        raise ProgramError(f"{shown}: {e}") from None
    return AggregateInput(pa.field(input_name(each), made.type), None, each)


def _check_where(aggregate: Aggregate, record_type: RecordType) -> None:
    where = aggregate.where
    if not isinstance(where, pl.Expr):
        raise ProgramError(
            f"{aggregate.kind}(where=...) takes a polars expression, such as pl.col('price') > 10, got {where!r}"
        )
    if record_type.is_object:
        raise ProgramError(
            f"{aggregate.kind}(where={where}) needs columns, but the records are Python objects without a schema. Give "
            f"the function that makes them a return type hint"
        )
    try:
        expression_result_type(record_type, "filter", (where,))
    except ProgramError as e:
        raise ProgramError(f"{aggregate.kind}(where=...): {e}") from None
