"""Brings columns that others wrote to the form that we write: a UUID in upper or lower case is one key.

If a record has a type with another form in columns (an enum, a UUID), a file may hold values that are not of that type,
or the same value in another spelling. Both are handled once, where columns come in, so that later code need not check.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import SchemaError
from tidegate.records.value_codecs import Canonical


def in_canonical_form(columns: pa.RecordBatch, canonical: Mapping[str, Canonical]) -> pa.RecordBatch:
    """Bring values that have a canonical form to it; a `SchemaError` names the column and the value."""
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
    """The column in canonical form; None if it is already."""
    if pa.types.is_nested(column.type):
        values = column.to_pylist()
        found = [None if value is None else form.of_value(value) for value in values]
        return None if found == values else pa.array(found, column.type)
    # Only values that rows use: a dictionary may have others.
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
