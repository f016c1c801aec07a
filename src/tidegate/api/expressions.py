"""Column expressions: polars' own, with the type of their result found at plan time on an empty frame."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

from tidegate.api.elementwise import refuse_batch_dependent
from tidegate.core.errors import ProgramError
from tidegate.records.tables import canonical_type
from tidegate.records.types import RecordType, RowType


def expression_result_type(record_type: RecordType, form: str, expressions: tuple[Any, ...]) -> RecordType:
    """The type after `select`, `with_columns` or `filter`; a wrong expression is refused with polars' reason."""
    frame = pl.DataFrame(record_type.schema.empty_table())
    refuse_batch_dependent(form, expressions, frame)
    try:
        result = apply_expressions(frame, form, expressions)
    except Exception as e:
        raise ProgramError(
            f"{form}({', '.join(map(str, expressions))}) does not fit {record_type.describe()}: {e}"
        ) from e
    if form == "filter":
        return record_type
    if form == "select" and not any(
        e.meta.root_names() or e.meta.has_multiple_outputs() for e in expressions
    ):
        raise ProgramError(
            f"select({', '.join(map(str, expressions))}) reads no column: it gives one value per batch, not one per "
            f"record. Select a column beside it, or use with_columns(...)"
        )
    return RowType(canonical_schema(result.to_arrow().schema))


def apply_expressions(frame: pl.DataFrame, form: str, expressions: tuple[Any, ...]) -> pl.DataFrame:
    """Run the expressions on a frame."""
    if form == "filter":
        return frame.filter(*expressions)
    return frame.select(*expressions) if form == "select" else frame.with_columns(*expressions)


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The same schema with the Arrow types that tidegate declares: `string` and `binary`, not their variants."""
    return pa.schema([pa.field(f.name, canonical_type(f.type), True) for f in schema])
