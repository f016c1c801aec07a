"""The Arrow types of records: they say what values are, not how a producer laid them out.

A dictionary, a run-end encoding or a view is a layout, and Arrow supports some of them poorly (it has no `take` for
views). So records have the plain type; sources and functions may still pass other layouts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import SchemaError


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with plain types; raises `SchemaError` for a column that records cannot have."""
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, plain_type(field.type), field.nullable))
        except SchemaError as e:
            raise SchemaError(f"column {field.name!r}: {e}") from None
    return pa.schema(fields)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with the same values, without a special layout."""
    return rebuilt(kind, _plain)


def _plain(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if t.is_string_view(kind):
        return pa.string()
    if t.is_binary_view(kind):
        return pa.binary()
    if t.is_list_view(kind):
        return plain_type(pa.list_(kind.value_field))
    if t.is_large_list_view(kind):
        return plain_type(pa.large_list(kind.value_field))
    if t.is_union(kind):
        raise SchemaError(
            f"records cannot hold a union ({kind}). Use a struct with a field for each kind of value"
        )
    return kind


def canonical_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that tidegate declares for a variant: `string`, `binary`, lists with nullable items."""
    t = pa.types
    if t.is_large_list(kind) or t.is_list(kind):
        return pa.list_(canonical_type(kind.value_type))
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, canonical_type(f.type), True) for f in kind])
    return rebuilt(kind, _canonical)


def _canonical(kind: pa.DataType) -> pa.DataType:
    plain = _plain(kind)
    if plain != kind:
        return canonical_type(plain)
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Apply `change` to the type, or to the inner types of a list, a map or a struct."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(rebuilt(field.type, change))

    t = pa.types
    if t.is_list(kind):
        return pa.list_(inner(kind.value_field))
    if t.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    if t.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    if t.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field), kind.keys_sorted)
    if t.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    return change(kind)


def holds(kind: pa.DataType, is_it: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type, or one of its inner types, is such a type."""
    found = False

    def look(part: pa.DataType) -> pa.DataType:
        nonlocal found
        found |= is_it(part)
        return part

    rebuilt(kind, look)
    return found


def laid_out(array: pa.Array) -> pa.Array:
    """The same values without run-end encoding, list views and dictionaries of views.

    Arrow has no cast for the first and the last (polars makes such dictionaries of categories), and a wrong one for
    list views.
    """
    if pa.types.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        values = plain_type(array.type.value_type)
        if values == array.type.value_type:
            return array
        return pa.DictionaryArray.from_arrays(
            array.indices, array.dictionary.cast(values), ordered=array.type.ordered
        )
    is_large = pa.types.is_large_list_view(array.type)
    if not is_large and not pa.types.is_list_view(array.type):
        return array
    ends = np.cumsum(
        pc.list_value_length(array).fill_null(0).to_numpy(), dtype=np.int64 if is_large else np.int32
    )
    offsets = pa.array(np.concatenate([np.zeros(1, ends.dtype), ends]))
    mask = array.is_null() if array.null_count else None
    made = pa.LargeListArray if is_large else pa.ListArray
    return made.from_arrays(offsets, array.flatten(), mask=mask)
