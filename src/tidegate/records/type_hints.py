"""Type hints to Arrow types: which column a Python type becomes, and how its values are converted."""

from __future__ import annotations

import contextvars
import dataclasses
import datetime as dt
import decimal
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Union

import pyarrow as pa


class ColumnCodec(NamedTuple):
    """An Arrow type with the conversions of its values; None where Arrow's own conversion does."""

    arrow_type: pa.DataType
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


class FieldCodec(NamedTuple):
    """A named field of a class."""

    name: str
    codec: ColumnCodec
    nullable: bool


_SCALARS: dict[Any, pa.DataType] = {
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
    """A codec that leaves the conversion to Arrow."""
    return ColumnCodec(arrow_type)


def strip_optional(hint: Any) -> tuple[Any, bool]:
    """`T | None` gives (T, True); anything else itself and False."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(rest) == 1 and len(typing.get_args(hint)) == 2:
            return rest[0], True
    return hint, False


def resolve_alias(hint: Any) -> Any:
    """The type behind a `NewType`; anything else itself."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    return hint


def is_struct_class(hint: Any) -> bool:
    """Whether the hint is a dataclass or a NamedTuple class all of whose fields have Arrow types.

    A class that contains itself has no Arrow type, nor has one that cannot be made from its fields alone.
    """
    if not isinstance(hint, type) or hint in _being_looked_at.get():
        return False
    if dataclasses.is_dataclass(hint):
        if not hint.__dataclass_params__.init or _has_init_vars(hint):  # type: ignore[attr-defined]
            return False
    elif not (issubclass(hint, tuple) and hasattr(hint, "_fields")):
        return False
    token = _being_looked_at.set(_being_looked_at.get() | {hint})
    try:
        hints = class_hints(hint)
        return bool(hints) and all(codec_for_hint(strip_optional(h)[0]) is not None for h in hints.values())
    finally:
        _being_looked_at.reset(token)


_being_looked_at: contextvars.ContextVar[frozenset[type]] = contextvars.ContextVar(
    "classes on the way from the outermost one", default=frozenset()
)


def _has_init_vars(cls: type) -> bool:
    fields = cls.__dataclass_fields__.values()  # type: ignore[attr-defined]
    return any(f._field_type is dataclasses._FIELD_INITVAR for f in fields)  # type: ignore[attr-defined]


def maker_of_class(cls: type) -> Callable[..., Any]:
    """A callable that makes an instance from the field values in order; keyword-only fields are passed by name."""
    if not dataclasses.is_dataclass(cls):
        return cls
    fields = [f for f in dataclasses.fields(cls) if f.init]
    if not any(f.kw_only for f in fields):
        return cls
    names = [f.name for f in fields]
    return lambda *values: cls(**dict(zip(names, values, strict=True)))


def class_hints(cls: type) -> dict[str, Any]:
    """Field names and resolved hints of a dataclass (init fields) or NamedTuple; empty if one is missing."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):
        return {}
    if dataclasses.is_dataclass(cls):
        names = [f.name for f in dataclasses.fields(cls) if f.init]
    else:
        names = list(cls._fields)  # type: ignore[attr-defined]
    return {n: hints[n] for n in names} if all(n in hints for n in names) else {}


def fields_of_class(cls: type) -> list[FieldCodec]:
    """The field codecs of a class for which `is_struct_class` holds."""
    result = []
    for name, hint in class_hints(cls).items():
        inner, nullable = strip_optional(hint)
        codec = codec_for_hint(inner)
        assert codec is not None
        result.append(FieldCodec(name, codec, nullable))
    return result


def fixed_tuple_args(hint: Any) -> tuple[Any, ...] | None:
    """The element hints of `tuple[A, B]`; None for anything else, `tuple[A, ...]` too."""
    if typing.get_origin(hint) is not tuple:
        return None
    args = typing.get_args(hint)
    return None if not args or Ellipsis in args else args


def runtime_class(hint: Any) -> type:
    """The class that `isinstance` knows for a hint."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    origin = typing.get_origin(hint) or hint
    return origin if isinstance(origin, type) else object


def codec_for_hint(hint: Any) -> ColumnCodec | None:
    """The Arrow column for a type hint, or None if there is none. `Annotated[T, pa.type()]` sets it by hand."""
    hint = resolve_alias(hint)
    if typing.get_origin(hint) is Annotated:
        for extra in typing.get_args(hint)[1:]:
            if isinstance(extra, pa.DataType):
                return ColumnCodec(extra)
        return codec_for_hint(typing.get_args(hint)[0])
    if isinstance(hint, pa.DataType):
        return ColumnCodec(hint)
    if isinstance(hint, type) and hint in _SCALARS:
        return ColumnCodec(_SCALARS[hint])
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


def _list_codec(item_hint: Any) -> ColumnCodec | None:
    inner, nullable = strip_optional(item_hint)
    item = codec_for_hint(inner)
    if item is None:
        return None
    arrow_type = pa.list_(pa.field("item", item.arrow_type, nullable))
    return ColumnCodec(arrow_type, _each(item.encode), _each(item.decode))


def _map_codec(key_hint: Any, value_hint: Any) -> ColumnCodec | None:
    inner, nullable = strip_optional(value_hint)
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

    return ColumnCodec(arrow_type, encode, decode)


def _tuple_codec(item_hints: tuple[Any, ...]) -> ColumnCodec | None:
    """A tuple inside a value: a struct whose fields are named as the columns of a stream of tuples are."""
    parts = [strip_optional(hint) for hint in item_hints]
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

    return ColumnCodec(arrow_type, encode, decode)


def _struct_codec(cls: type) -> ColumnCodec:
    fields = fields_of_class(cls)
    arrow_type = pa.struct([pa.field(f.name, f.codec.arrow_type, f.nullable) for f in fields])
    make = maker_of_class(cls)

    def encode(value: Any) -> dict[str, Any]:
        if type(value) is not cls:
            raise TypeError
        out = {}
        for name, codec, _ in fields:
            item = getattr(value, name)
            out[name] = item if codec.encode is None or item is None else codec.encode(item)
        return out

    def decode(value: dict[str, Any]) -> Any:
        return make(
            *(
                value[name] if codec.decode is None or value[name] is None else codec.decode(value[name])
                for name, codec, _ in fields
            )
        )

    return ColumnCodec(arrow_type, encode, decode)


def _each(function: Callable[[Any], Any] | None) -> Callable[[list[Any]], list[Any]] | None:
    if function is None:
        return None
    return lambda values: [None if v is None else function(v) for v in values]


def _same(value: Any) -> Any:
    return value
