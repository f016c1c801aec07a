"""Arrow types as JSON: the Python type that msgspec checks a field against, and how its values become a column."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Optional

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.formats.format import refuse_column


class BuildError(Exception):
    """A valid JSON value does not fit its column (an integer beyond 64 bits, an impossible date)."""


class JsonColumn(NamedTuple):
    """How to read a column: the type hint for msgspec, and the function that builds the Arrow array."""

    hint: Any
    build: Callable[[list[Any]], pa.Array]


def json_column(field: pa.Field) -> JsonColumn:
    """How to read a field; raises `SchemaError` if its type has no JSON form."""
    column = _column(field.type, field)
    return column._replace(hint=hint_of(field, column.hint))


def hint_of(field: pa.Field, hint: Any) -> Any:
    """The type hint of a field whose non-null values are of type `hint`."""
    return Optional[hint] if field.nullable else hint  # noqa: UP045 - made at run time


def values_of(attribute: str) -> Callable[[list[Any]], list[Any]]:
    """A function that collects an attribute of all objects."""
    # Compiled from text: an attribute named in the code is read in half the time of `attrgetter`.
    collect: Callable[[list[Any]], list[Any]] = eval(f"lambda objects: [o.{attribute} for o in objects]")
    return collect


def struct_fields(
    name: str, fields: Sequence[pa.Field], columns: Sequence[JsonColumn]
) -> type[msgspec.Struct]:
    """The class that msgspec decodes an object to: attributes `f0`, `f1`, ..., with the fields' names in JSON."""
    required, optional = [], []
    for i, (field, column) in enumerate(zip(fields, columns, strict=True)):
        if field.nullable:
            optional.append((f"f{i}", column.hint, msgspec.field(name=field.name, default=None)))
        else:
            required.append((f"f{i}", column.hint, msgspec.field(name=field.name)))
    # Cycles are impossible, so the garbage collector need not walk a million rows.
    return msgspec.defstruct(name, [*required, *optional], gc=False)


def _column(data_type: pa.DataType, field: pa.Field) -> JsonColumn:
    types = pa.types
    if (types.is_time(data_type) or types.is_duration(data_type)) and data_type.unit == "ns":
        raise refuse_column("JSON", field, "holds microseconds. Cast the column to those first.")
    for matches, hint in _SCALARS:
        if matches(data_type):
            return JsonColumn(hint, _builder(data_type))
    if types.is_float32(data_type) or types.is_float16(data_type):
        return JsonColumn(float, _narrow_floats(data_type))
    if types.is_timestamp(data_type):
        return JsonColumn(str, _timestamps(data_type))
    if types.is_list(data_type) or types.is_large_list(data_type):
        return _list_column(data_type)
    if types.is_fixed_size_list(data_type):
        return _fixed_size_list_column(data_type)
    if types.is_struct(data_type):
        return _struct_column(data_type)
    if types.is_map(data_type):
        return _map_column(data_type, field)
    raise refuse_column(
        "JSON", field, "is not written or read with that type. Use Parquet, or convert the column first."
    )


_SCALARS: list[tuple[Callable[[pa.DataType], bool], Any]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_float64, float),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_string_view, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_binary_view, bytes),
    (pa.types.is_fixed_size_binary, bytes),
    (pa.types.is_date, dt.date),
    (pa.types.is_time, dt.time),
    (pa.types.is_duration, dt.timedelta),
    (pa.types.is_decimal, decimal.Decimal),
    (pa.types.is_null, None),
]


def _builder(data_type: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    def build(values: list[Any]) -> pa.Array:
        try:
            return pa.array(values, data_type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as e:
            raise BuildError(f"does not fit in {data_type}: {e}") from None

    return build


def _narrow_floats(data_type: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    def build(values: list[Any]) -> pa.Array:
        array = pa.array(values, pa.float64()).cast(data_type, safe=False)
        # JSON has no infinity, so the number was too large.
        if pc.any(pc.is_inf(array.cast(pa.float32()))).as_py():
            raise BuildError(f"does not fit in {data_type}")
        return array

    return build


def _timestamps(data_type: pa.TimestampType) -> Callable[[list[Any]], pa.Array]:
    # Arrow refuses a fraction of zeros if the unit is coarser, so parse in a finer unit first.
    finer = data_type if data_type.unit in ("us", "ns") else pa.timestamp("us", data_type.tz)

    def build(values: list[Any]) -> pa.Array:
        try:
            return pa.array(values, pa.string()).cast(finer).cast(data_type)
        except pa.ArrowException as e:
            raise BuildError(str(e)) from None

    return build


def _list_column(data_type: Any) -> JsonColumn:
    item = json_column(data_type.value_field)
    large = pa.types.is_large_list(data_type)
    array_class = pa.LargeListArray if large else pa.ListArray
    offset_type = pa.int64() if large else pa.int32()

    def build(values: list[Any]) -> pa.Array:
        flat = list(itertools.chain.from_iterable(v for v in values if v is not None))
        return array_class.from_arrays(_offsets(values, offset_type), item.build(flat), type=data_type)

    return JsonColumn(list[item.hint], build)  # type: ignore[name-defined]


def _fixed_size_list_column(data_type: Any) -> JsonColumn:
    item = json_column(data_type.value_field)
    size = data_type.list_size

    def build(values: list[Any]) -> pa.Array:
        if any(v is not None and len(v) != size for v in values):
            raise BuildError(f"does not have {size} items")
        flat = list(itertools.chain.from_iterable([None] * size if v is None else v for v in values))
        missing = pa.array([v is None for v in values], pa.bool_())
        return pa.FixedSizeListArray.from_arrays(item.build(flat), type=data_type, mask=missing)

    return JsonColumn(list[item.hint], build)  # type: ignore[name-defined]


def _map_column(data_type: Any, field: pa.Field) -> JsonColumn:
    key_type = data_type.key_type
    if not (pa.types.is_string(key_type) or pa.types.is_integer(key_type)):
        raise refuse_column("JSON", field, "has only objects with str or int keys. Use Parquet.")
    key = json_column(data_type.key_field)
    item = json_column(data_type.item_field)

    def build(values: list[Any]) -> pa.Array:
        present = [v for v in values if v is not None]
        keys = key.build(list(itertools.chain.from_iterable(present)))
        items = item.build(list(itertools.chain.from_iterable(v.values() for v in present)))
        return pa.MapArray.from_arrays(_offsets(values, pa.int32()), keys, items, type=data_type)

    return JsonColumn(dict[key.hint, item.hint], build)  # type: ignore[name-defined]


def _struct_column(data_type: pa.StructType) -> JsonColumn:
    fields = list(data_type)
    columns = [json_column(f) for f in fields]
    cls = struct_fields("Object", fields, columns)
    getters = [attrgetter(f"f{i}") for i in range(len(fields))]
    collectors = [values_of(f"f{i}") for i in range(len(fields))]

    def build(values: list[Any]) -> pa.Array:
        missing = any(v is None for v in values)
        arrays = []
        for column, get, collect in zip(columns, getters, collectors, strict=True):
            items = [None if v is None else get(v) for v in values] if missing else collect(values)
            arrays.append(column.build(items))
        mask = pa.array([v is None for v in values]) if missing else None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    return JsonColumn(cls, build)


def _offsets(values: list[Any], offset_type: pa.DataType) -> pa.Array:
    """Offsets of a list column; null where the list is null."""
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += 0 if value is None else len(value)
    offsets.append(end)
    return pa.array(offsets, offset_type)
