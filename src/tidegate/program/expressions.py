"""Column expressions of polars. Their result types are found at plan time, on an empty frame.

A column that is only selected, renamed or passed on never reaches polars: it keeps its type and encoding, even if
polars does not have that type. polars gets only the columns that the other expressions read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from tidegate.core.errors import ProgramError
from tidegate.program.elementwise import columns_read, refuse_batch_dependent
from tidegate.records.plain_types import canonical_type, holds
from tidegate.records.types import RecordType, RowType

Columns = str | pl.Expr | list[str | pl.Expr] | tuple[str | pl.Expr, ...]
"""Column names and polars expressions, one or several."""


class Division(NamedTuple):
    """How `select` or `with_columns` splits: columns passed on, and columns that polars computes."""

    passed: dict[str, str]
    """Columns of the result that are columns of the input: name in the result to name in the input."""
    computed: tuple[pl.Expr, ...]
    names: list[str]
    """The columns of the result, in order."""


def expression_result_type(record_type: RecordType, form: str, expressions: tuple[Any, ...]) -> RecordType:
    """The type after `select`, `with_columns` or `filter`. A wrong expression is refused with polars' reason."""
    schema = record_type.schema
    refuse_batch_dependent(form, expressions, empty_frame(schema))
    _refuse_foreign(form, expressions, schema)
    try:
        if form == "filter":
            empty_frame(schema).filter(*expressions)
            return record_type
        passed, computed, names = divided(schema, form, expressions)
        result = empty_frame(schema).select(*computed)
    except Exception as e:
        raise ProgramError(
            f"{form}({', '.join(map(str, expressions))}) does not fit {record_type.describe()}: {e}"
        ) from e
    reads = any(e.meta.root_names() or e.meta.has_multiple_outputs() for e in expressions)
    if form == "select" and names and not reads:
        raise ProgramError(
            f"select({', '.join(map(str, expressions))}) reads no column: it gives one value per batch, not one per "
            f"record. Select a column beside it, or use with_columns(...)"
        )
    types = {series.name: _arrow_type(series, form) for series in result.get_columns()}
    types |= {name: schema.field(root).type for name, root in passed.items()}
    return RowType(pa.schema([pa.field(name, types[name], True) for name in names]))


def resolved_columns(
    record_type: RecordType, form: str, given: Sequence[Columns], named: Mapping[str, pl.Expr]
) -> tuple[tuple[pl.Expr, ...], RecordType]:
    """The expressions of a `select` or `with_columns` call, by position and by name, and the type of the result."""
    listed = [e for item in given for e in (item if isinstance(item, (list, tuple)) else (item,))]
    if not listed and not named:
        raise ProgramError(f"{form} needs at least one column name or polars expression")
    resolved = tuple(pl.col(e) if isinstance(e, str) else e for e in listed)
    for e in resolved:
        if not isinstance(e, pl.Expr):
            raise ProgramError(f"{form} takes column names and polars expressions, got {e!r}")
    resolved += tuple(expression.alias(name) for name, expression in named.items())
    written = ", ".join(map(str, resolved))
    resolved = expanded(record_type.schema, resolved)
    out = expression_result_type(record_type, form, resolved)
    if form == "select" and not out.names:
        raise ProgramError(f"select({written}) chooses none of the columns {', '.join(record_type.names)}")
    return resolved, out


def expanded(schema: pa.Schema, expressions: Sequence[pl.Expr]) -> tuple[pl.Expr, ...]:
    """Replace expressions that only select columns by a pattern or a type with those columns."""
    frame = _frame_of_all(schema)
    found: list[pl.Expr] = []
    for e in expressions:
        if e.meta.has_multiple_outputs() and e.meta.is_column_selection():
            try:
                found += [pl.col(name) for name in frame.select(e).columns]
                continue
            except pl.exceptions.PolarsError:  # `expression_result_type` refuses it later, with the reason
                pass
        found.append(e)
    return tuple(found)


def divided(schema: pa.Schema, form: str, expressions: Sequence[pl.Expr]) -> Division:
    """Split expressions into columns passed on and columns computed; raises what polars raises."""
    frame = empty_frame(schema)
    passed = {} if form == "select" else {name: name for name in schema.names}
    names = list(passed)
    made: list[str] = []
    computed: list[pl.Expr] = []
    for e in expressions:
        if is_plain_column(e) and e.meta.root_names()[0] in schema.names:
            own = [e.meta.output_name()]
            passed[own[0]] = e.meta.root_names()[0]
        else:
            own = frame.select(e).columns
            passed = {name: root for name, root in passed.items() if name not in own}
            computed.append(e)
        made += own
    for name in made:
        if made.count(name) > 1:
            raise ProgramError(
                f"the result would have two columns named {name!r}. Name one of them with .alias(...)"
            )
    return Division(passed, tuple(computed), names + [name for name in made if name not in names])


def fits_in_query(declared: pa.Schema, form: str, expressions: Sequence[pl.Expr], output: pa.Schema) -> bool:
    """Whether `select` or `with_columns` gives the same inside a longer polars query as alone.

    After it alone, the next expression sees the types that `output` declares, so polars must have exactly these. A
    selector would choose among the columns of the query.
    """
    if any(e.meta.has_multiple_outputs() for e in expressions):
        return False
    computed = [e for e in expressions if form != "select" or not is_plain_column(e)]
    try:
        made = empty_frame(declared).select(computed).schema
        names = [e.meta.output_name() for e in computed]
    except pl.exceptions.PolarsError:  # a type that polars does not have, a name that only the data decides
        return False
    types = empty_frame(output).schema
    return made.names() == names and all(types[name] == kind for name, kind in made.items())


def is_plain_column(expression: pl.Expr) -> bool:
    """Whether the expression is one column, possibly renamed."""
    roots = expression.meta.root_names()
    if len(roots) != 1 or expression.meta.has_multiple_outputs():
        return False
    if expression.meta.output_name(raise_if_undetermined=False) is None:  # only polars knows the name
        return False
    return bool(expression.meta.undo_aliases().meta.eq(pl.col(roots[0])))


# ---- types ----


def polars_has(kind: pa.DataType) -> bool:
    """Whether polars can hold such a column. For some types that it cannot hold, polars panics."""
    return not holds(kind, lambda t: pa.types.is_decimal256(t) or pa.types.is_interval(t))


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    """A frame without rows that has the columns that polars can hold."""
    held = [field for field in schema if polars_has(field.type)]
    return pl.DataFrame(pa.schema(held).empty_table())


def _frame_of_all(schema: pa.Schema) -> pl.DataFrame:
    """A frame without rows that has all columns; those that polars cannot hold get the null type."""
    fields = [f if polars_has(f.type) else f.with_type(pa.null()) for f in schema]
    return pl.DataFrame(pa.schema(fields).empty_table())


def _arrow_type(series: pl.Series, form: str) -> pa.DataType:
    try:
        return canonical_type(series.to_arrow().type)
    except (pa.ArrowException, TypeError, ValueError, pl.exceptions.PolarsError):
        raise ProgramError(
            f"{form}: column {series.name!r} would be {series.dtype}, a type that Arrow does not have. Cast the "
            f"expression to another, such as pl.Decimal(38, 0) or pl.Int64"
        ) from None


def _refuse_foreign(form: str, expressions: Sequence[pl.Expr], schema: pa.Schema) -> None:
    foreign = {f.name: f.type for f in schema if not polars_has(f.type)}
    if not foreign:
        return
    for e in expressions:
        if form != "filter" and is_plain_column(e):
            continue
        for name in columns_read(e, _frame_of_all(schema)):
            if name in foreign:
                raise ProgramError(
                    f"{form}: {e} reads column {name!r}, which is {foreign[name]}; polars has no such type. Choose and "
                    f"pass the column on as it is, or convert it before, with map(...) or map_batches(...)"
                )
