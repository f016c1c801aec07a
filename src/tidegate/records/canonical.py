"""Columns that others wrote, in the form in which we write them: a UUID in capitals and in small letters is one key.

Where a record has a type that is another thing in a column (an enum, a UUID), what a file holds may not be a value of
that type at all, or be the same value in another spelling. Both are found where columns come in, once, so that nothing
after it need ask.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import SchemaError
from tidegate.records.value_codecs import Canonical


def in_canonical_form(columns: pa.RecordBatch, canonical: Mapping[str, Canonical]) -> pa.RecordBatch:
    """The same columns, with the values of those that have such a form in it; `SchemaError` names column and value."""
    for name, form in canonical.items():
        place = columns.schema.get_field_index(name)
        if place < 0:
            continue
        column = columns.column(place)
        try:
            changed = _changed(column, form)
        except SchemaError as e:
            raise SchemaError(f"field {name!r}: {e}") from None
        if changed is not None:
            field = columns.schema.field(place).with_type(changed.type)
            columns = columns.set_column(place, field, changed)
    return columns


def _changed(column: pa.Array, form: Canonical) -> pa.Array | None:
    """The column in that form; None if it has it already."""
    if pa.types.is_nested(column.type):
        values = column.to_pylist()
        found = [None if value is None else form.of_value(value) for value in values]
        return None if found == values else pa.array(found, column.type)
    # Only the values that rows have: a dictionary may hold others.
    distinct = column.unique()
    if pa.types.is_dictionary(distinct.type):
        distinct = distinct.dictionary_decode()
    rest = distinct
    if form.is_quick is not None:
        rest = distinct.filter(pc.invert(form.is_quick(distinct)))
    others = {value: form.of_value(value) for value in rest.to_pylist() if value is not None}
    if all(value == other for value, other in others.items()):
        return None
    return pa.array([others.get(value, value) for value in column.to_pylist()], distinct.type)
