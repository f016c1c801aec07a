"""Type hints to Arrow types: the column of a Python type, and how its values are converted."""

from __future__ import annotations

import contextvars
import datetime as dt
import decimal
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import SchemaError
from tidegate.records.columns import brief
from tidegate.records.record_classes import RecordClass, record_class_of
from tidegate.records.rows import Row
from tidegate.records.value_codecs import Canonical, conversions_of, literal_type


class ColumnCodec(NamedTuple):
    """An Arrow type with the conversions of its values; None if Arrow's own conversion is enough."""

    arrow_type: pa.DataType
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    canonical: Canonical | None = None
    """The form to which foreign values are brought before use; None: they are used as they are."""

    @property
    def is_coded(self) -> bool:
        """Whether values differ between Python and the column."""
        return self.encode is not None or self.decode is not None


class FieldCodec(NamedTuple):
    """A named field of a class."""

    name: str
    codec: ColumnCodec
    nullable: bool


SCALARS: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us"),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}


def identity_codec(arrow_type: pa.DataType) -> ColumnCodec:
    """A codec that leaves the conversion to Arrow, except for maps, which are dicts in Python."""
    return ColumnCodec(arrow_type, None, _dicts_for_maps(arrow_type))


def strip_optional(hint: Any) -> tuple[Any, bool]:
    """(T, True) for `T | None`; else (hint, False). A `Literal` becomes the type of its values."""
    inner, nullable = split_optional(hint)
    return literal_type(inner) or inner, nullable


def split_optional(hint: Any) -> tuple[Any, bool]:
    """As `strip_optional`, but a `Literal` stays one, without None."""
    values = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    if None in values and len(values) > 1:
        return Literal[tuple(value for value in values if value is not None)], True
    if typing.get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(rest) == 1 and len(typing.get_args(hint)) == 2:
            return rest[0], True
    return hint, False


def resolve_alias(hint: Any) -> Any:
    """The type of a `NewType`; any other hint itself."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    return hint


def is_struct_class(hint: Any) -> bool:
    """Whether the hint is a class with typed fields (see `record_classes`), all of which have Arrow types.

    A class that contains itself has no Arrow type. Nor has one that cannot be made from its fields alone.
    """
    if not isinstance(hint, type) or hint in _being_looked_at.get():
        return False
    found = record_class_of(hint)
    if found is None:
        return False
    token = _being_looked_at.set(_being_looked_at.get() | {hint})
    try:
        return all(codec_for_hint(split_optional(h)[0]) is not None for h in found.hints.values())
    finally:
        _being_looked_at.reset(token)


_being_looked_at: contextvars.ContextVar[frozenset[type]] = contextvars.ContextVar(
    "classes on the way from the outermost one", default=frozenset()
)


def fields_of_class(record_class: RecordClass) -> list[FieldCodec]:
    """The field codecs of a class for which `is_struct_class` holds."""
    result = []
    for name, hint in record_class.hints.items():
        inner, nullable = split_optional(hint)
        codec = codec_for_hint(inner)
        assert codec is not None
        result.append(FieldCodec(name, codec, nullable or name in record_class.absent))
    return result


def fixed_tuple_args(hint: Any) -> tuple[Any, ...] | None:
    """The element hints of `tuple[A, B]`; None for anything else, including `tuple[A, ...]`."""
    if typing.get_origin(hint) is not tuple:
        return None
    args = typing.get_args(hint)
    return None if not args or Ellipsis in args else args


def runtime_class(hint: Any) -> type:
    """The class of a hint for `isinstance`."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    hint = literal_type(hint) or hint
    origin = typing.get_origin(hint) or hint
    return origin if isinstance(origin, type) else object


def codec_for_hint(hint: Any) -> ColumnCodec | None:
    """The Arrow column of a type hint, or None. `Annotated[T, pa.type()]` sets the Arrow type explicitly."""
    hint = resolve_alias(hint)
    if typing.get_origin(hint) is Annotated:
        for extra in typing.get_args(hint)[1:]:
            if isinstance(extra, pa.DataType):
                return identity_codec(extra)
        return codec_for_hint(typing.get_args(hint)[0])
    if isinstance(hint, pa.DataType):
        return identity_codec(hint)
    literal = literal_type(hint)
    if literal is not None:
        of_class = codec_for_hint(literal)
        return None if of_class is None else of_class._replace(canonical=_literal_form(hint, of_class))
    if isinstance(hint, type) and hint in SCALARS:
        return ColumnCodec(SCALARS[hint])
    converted = conversions_of(hint)
    if converted is not None:
        return ColumnCodec(*converted)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and len(args) == 1:
        return _list_codec(args[0])
    if origin is dict and len(args) == 2:
        return _map_codec(args[0], args[1])
    items = fixed_tuple_args(hint)
    if items is not None:
        return _tuple_codec(items)
    if is_struct_class(hint):
        return _struct_codec(hint)
    return None


def why_no_column(hint: Any) -> str:
    """Why a hint has no Arrow type, as a message to the user; empty if no type is wanted (`object`, `Any`, None)."""
    hint, _ = split_optional(resolve_alias(hint))
    if hint in (object, Any, None, type(None)):
        return ""
    if hint is Row:
        return "Row does not say which columns it has; pass returns=pyarrow.schema([...])"
    found = record_class_of(hint)
    for name, field in () if found is None else found.hints.items():
        if codec_for_hint(split_optional(field)[0]) is None:
            inner = split_optional(field)[0]
            contains = "contains itself" if inner is hint else f"is {_shown(field)}, which has no Arrow type"
            return f"field {name!r} of {hint.__name__} {contains}"
    return f"{_shown(hint)} has no Arrow type"


def _shown(hint: Any) -> str:
    plain = isinstance(hint, type) and not typing.get_args(hint)
    return hint.__name__ if plain else str(hint).replace("typing.", "")


def _literal_form(hint: Any, codec: ColumnCodec) -> Canonical:
    """The canonical form of a `Literal`: its values, as they are in a column."""
    values = typing.get_args(hint)
    stored = [value if codec.encode is None else codec.encode(value) for value in values]
    of_class, allowed, quick = _of_value(codec), frozenset(stored), pa.array(stored, codec.arrow_type)

    def of_value(value: Any) -> Any:
        found = of_class(value)
        if found not in allowed:
            raise SchemaError(f"{value!r} is none of {', '.join(map(repr, values[:10]))}")
        return found

    return Canonical(of_value, lambda array: pc.is_in(array, quick))


def _list_codec(item_hint: Any) -> ColumnCodec | None:
    inner, nullable = split_optional(item_hint)
    item = codec_for_hint(inner)
    if item is None:
        return None
    arrow_type = pa.list_(pa.field("item", item.arrow_type, nullable))
    inside = None if item.canonical is None else _each(item.canonical.of_value)
    return ColumnCodec(
        arrow_type, _each(item.encode), _each(item.decode), None if inside is None else Canonical(inside)
    )


def _map_codec(key_hint: Any, value_hint: Any) -> ColumnCodec | None:
    inner, nullable = split_optional(value_hint)
    key, value = codec_for_hint(key_hint), codec_for_hint(inner)
    if key is None or value is None:
        return None
    arrow_type = pa.map_(key.arrow_type, pa.field("value", value.arrow_type, nullable))
    encode_key, decode_key = key.encode or _same, key.decode or _same
    encode_value, decode_value = value.encode or _same, value.decode or _same

    def encode(items: dict[Any, Any]) -> list[tuple[Any, Any]]:
        return [(encode_key(k), None if v is None else encode_value(v)) for k, v in items.items()]

    def decode(items: list[tuple[Any, Any]]) -> dict[Any, Any]:
        return {decode_key(k): None if v is None else decode_value(v) for k, v in items}

    of_key, of_value = _of_value(key), _of_value(value)

    def canonical(items: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return [(of_key(k), None if v is None else of_value(v)) for k, v in items]

    is_as_it_is = key.canonical is None and value.canonical is None
    return ColumnCodec(arrow_type, encode, decode, None if is_as_it_is else Canonical(canonical))


def _tuple_codec(item_hints: tuple[Any, ...]) -> ColumnCodec | None:
    """A tuple inside a value: a struct with the field names of a stream of tuples (`f0`, `f1`, ...)."""
    parts = [split_optional(hint) for hint in item_hints]
    codecs = [codec for hint, _ in parts if (codec := codec_for_hint(hint)) is not None]
    if len(codecs) < len(parts):
        return None
    names = [f"f{i}" for i in range(len(parts))]
    arrow_type = pa.struct(
        [
            pa.field(name, codec.arrow_type, nullable)
            for name, codec, (_, nullable) in zip(names, codecs, parts, strict=True)
        ]
    )
    encoders, decoders = (
        [codec.encode or _same for codec in codecs],
        [codec.decode or _same for codec in codecs],
    )

    def encode(value: Any) -> dict[str, Any]:
        if type(value) is not tuple or len(value) != len(names):
            raise TypeError
        return {n: None if v is None else f(v) for n, f, v in zip(names, encoders, value, strict=True)}

    def decode(value: dict[str, Any]) -> tuple[Any, ...]:
        items = (value[name] for name in names)
        return tuple(None if v is None else f(v) for f, v in zip(decoders, items, strict=True))

    return ColumnCodec(arrow_type, encode, decode, _canonical_struct(names, codecs))


def _struct_codec(cls: type) -> ColumnCodec:
    record_class = record_class_of(cls)
    assert record_class is not None
    fields = fields_of_class(record_class)
    arrow_type = pa.struct([pa.field(f.name, f.codec.arrow_type, f.nullable) for f in fields])
    row_class, values, make = record_class.row_class, record_class.values, record_class.make

    def encode(value: Any) -> dict[str, Any]:
        if type(value) is not row_class or (not record_class.says_all and record_class.refusal(value)):
            raise TypeError
        out = {}
        for (name, codec, _), item in zip(fields, values(value), strict=True):
            out[name] = item if codec.encode is None or item is None else codec.encode(item)
        return out

    def decode(value: dict[str, Any]) -> Any:
        return make(
            *(
                value[name] if codec.decode is None or value[name] is None else codec.decode(value[name])
                for name, codec, _ in fields
            )
        )

    return ColumnCodec(
        arrow_type, encode, decode, _canonical_struct([f.name for f in fields], [f.codec for f in fields])
    )


def _canonical_struct(names: Sequence[str], codecs: Sequence[ColumnCodec]) -> Canonical | None:
    inside = {name: _of_value(codec) for name, codec in zip(names, codecs, strict=True) if codec.canonical}
    if not inside:
        return None

    def canonical(value: dict[str, Any]) -> dict[str, Any]:
        return value | {n: f(value[n]) for n, f in inside.items() if value[n] is not None}

    return Canonical(canonical)


def _of_value(codec: ColumnCodec) -> Callable[[Any], Any]:
    return _same if codec.canonical is None else codec.canonical.of_value


def _dicts_for_maps(t: pa.DataType) -> Callable[[Any], Any] | None:
    """A function that turns the maps inside a value from Arrow into dicts; None if there are none.

    Maps with nested keys stay pairs: what Arrow makes of such a key cannot be a dict key.
    """
    if pa.types.is_map(t):
        if pa.types.is_nested(t.key_type):
            return None
        value = _dicts_for_maps(t.item_type) or _same
        return lambda pairs: _dict_of(pairs, value)
    if pa.types.is_struct(t):
        inner = {f.name: made for f in t if (made := _dicts_for_maps(f.type)) is not None}
        if not inner:
            return None
        return lambda fields: {
            n: inner[n](v) if n in inner and v is not None else v for n, v in fields.items()
        }
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        return _each(_dicts_for_maps(t.value_type))
    return None


def _dict_of(pairs: Any, value: Callable[[Any], Any]) -> dict[Any, Any]:
    found = {k: None if v is None else value(v) for k, v in pairs}
    if len(found) < len(pairs):
        raise SchemaError(
            f"a map has a key twice, which no dict can: {brief(pairs)}. Repair where it comes from, or cast the column "
            f"to a list of structs"
        )
    return found


def _each(function: Callable[[Any], Any] | None) -> Callable[[list[Any]], list[Any]] | None:
    if function is None:
        return None
    return lambda values: [None if v is None else function(v) for v in values]


def _same(value: Any) -> Any:
    return value
