"""One entry per Arrow type: what tidegate does with the values of a column of that type.

| an entry states | |
|---|---|
| `classes`, `check` | which Python values a column accepts; Arrow alone would round 1.5 to 1 |
| `look` | the same for one value, as a quick expression |
| `plain` | a value in a form that msgpack knows, and back: what a key-value store keeps |
| `short` | the bytes of a value that is never None, if they are shorter than msgpack's |
| `text` | the type in fingerprints |

`key_form` says what the hash and the bytes of a key use of a type.

Input is strict: a value that would come back different is refused with a `SchemaError`. Any thread; immutable.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import lib

from tidegate.core.errors import SchemaError
from tidegate.core.words import brief, kind_of
from tidegate.records import plain_values as pv
from tidegate.records.plain_values import PlainForm, refuse_no_value, refuse_value

ToBytes = Callable[[Any], bytes]
FromBytes = Callable[[bytes], Any]

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode


NULL, INTEGER, LARGE_INTEGER, FLOAT, TEXT, BINARY, DATE, TIMESTAMP, DURATION, TIME, DECIMAL, TUPLE = range(12)
"""The kinds of keys. They are tags in the bytes of keys, so they never change."""


class KeyForm(NamedTuple):
    """What the hash and the bytes of a key use of its type."""

    tag: int
    dtype: np.dtype[Any] | None = None
    """The numpy type of the Arrow buffer, for numbers of at most 64 bits; None for text and binary."""


@dataclass(frozen=True)
class Codec:
    """The entry of one Arrow type."""

    type: pa.DataType
    plain: PlainForm
    plain_key: PlainForm | None = None
    """The plain form of keys, for which equal values (zeros, NaNs) must have equal bytes; None: the same."""
    classes: tuple[type, ...] = (object,)
    but_not: tuple[type, ...] = ()
    check: Callable[[str, Sequence[Any]], None] | None = None
    """Raises `SchemaError` if the class alone is not enough; takes the column's name and its values without None."""
    look: str | None = None
    """An expression with `{v}`. True: the value fits. False: it may still fit. None: there is no quick way."""
    is_exact: bool = False
    """Whether every value of the Python class comes back as it was, or is refused."""
    short: PlainForm | None = None
    short_key: PlainForm | None = None
    own_text: str | None = None

    @property
    def text(self) -> str:
        """The type as text that no version of Arrow changes; it includes the nullability of inner fields."""
        return str(self.type) if self.own_text is None else self.own_text

    def takes(self, found: type) -> bool:
        """Whether a column accepts values of this class."""
        return issubclass(found, self.classes) and not issubclass(found, self.but_not)

    def form(self, for_keys: bool) -> PlainForm:
        """The plain form of values that are never None."""
        return self.plain_key if for_keys and self.plain_key is not None else self.plain


@functools.cache
def codec_of(t: pa.DataType) -> Codec:
    """The entry of a type. Do not call it for each batch: the look-up costs a microsecond."""
    make, _ = _BY_ID.get(t.id, (_other_codec, None))
    return make(t)


def key_form(t: pa.DataType) -> KeyForm | None:
    """The key form of a type; None: keys of this type are converted value by value, if they can be keys at all."""
    return _KEY_FORMS.get(t.id)


# ---- what columns accept ----


def check_values(name: str, data_type: pa.DataType, nullable: bool, values: Sequence[Any]) -> None:
    """Raise `SchemaError` for the first value whose class does not fit the Arrow type, also inside lists and maps."""
    codec = codec_of(data_type)
    classes = set(map(type, values))
    if type(None) in classes:
        if not nullable:
            refuse_none(name, data_type)
        classes.discard(type(None))
        values = [v for v in values if v is not None]
    for found in classes:
        if not codec.takes(found):
            refuse(name, data_type, next(v for v in values if type(v) is found))
    if codec.check is not None:
        codec.check(name, values)


def refuse(name: str, data_type: pa.DataType, value: Any) -> NoReturn:
    raise SchemaError(f"column {name!r} is {data_type} but got {kind_of(value)}: {brief(value)}") from None


def refuse_none(name: str, data_type: pa.DataType) -> NoReturn:
    raise SchemaError(
        f"column {name!r} is {data_type} without None, but got None. Declare it Optional if None is meant"
    )


# ---- bytes ----


def bytes_codec(data_type: pa.DataType, nullable: bool, for_keys: bool) -> tuple[ToBytes, FromBytes]:
    """The conversions of one column's values. `for_keys`: equal keys have equal bytes (one zero, one NaN)."""
    codec = codec_of(data_type)
    if codec.short is not None and not nullable:
        encode, decode = (for_keys and codec.short_key) or codec.short
        return encode, decode or _same
    form = plain_form(data_type, nullable, for_keys)
    encode, decode = form.encode, form.decode
    if decode is None:
        return lambda value: _pack(encode(value)), _unpack
    return lambda value: _pack(encode(value)), lambda data: decode(_unpack(data))


def struct_bytes_codec(
    fields: list[tuple[pa.DataType, bool]], for_keys: bool
) -> tuple[Callable[[tuple[Any, ...]], bytes], Callable[[bytes], list[Any]]]:
    """The conversions of a row of several columns, as the sequence of its values."""
    forms = [plain_form(t, nullable, for_keys) for t, nullable in fields]
    encoders = [f.encode for f in forms]
    decoders = [f.decode for f in forms]

    def to_bytes(values: tuple[Any, ...]) -> bytes:
        if len(values) != len(encoders):
            raise SchemaError(f"expected {len(encoders)} fields but got {len(values)}: {brief(values)}")
        return _pack([encode(v) for encode, v in zip(encoders, values, strict=True)])

    def from_bytes(data: bytes) -> list[Any]:
        values: list[Any] = _unpack(data)
        return [v if d is None else d(v) for d, v in zip(decoders, values, strict=True)]

    return to_bytes, from_bytes


def plain_form(data_type: pa.DataType, nullable: bool, for_keys: bool = False) -> PlainForm:
    """The plain form of one column's values, which may be None if `nullable`."""
    encode, decode = codec_of(data_type).form(for_keys)
    if nullable:
        return PlainForm(
            lambda v: None if v is None else encode(v),
            None if decode is None else lambda v: None if v is None else decode(v),
        )
    return PlainForm(lambda v: refuse_no_value(data_type) if v is None else encode(v), decode)


# ---- numbers ----


def _bool_codec(t: pa.DataType) -> Codec:
    return Codec(t, pv.BOOL, classes=(bool, np.bool_), look="{v}.__class__ is bool", is_exact=True)


def _integer_codec(t: pa.DataType) -> Codec:
    dtype = np.dtype(t.to_pandas_dtype())
    limits = np.iinfo(dtype)
    is_int64 = t.id == lib.Type_INT64
    return Codec(
        t,
        pv.INT64 if is_int64 else pv.narrow_int(t, int(limits.min), int(limits.max)),
        classes=(numbers.Integral,),
        but_not=(bool,),
        look=f"{{v}}.__class__ is int and {limits.min} <= {{v}} <= {limits.max}",
        is_exact=is_int64,
        short=pv.INT64_BYTES if is_int64 else None,
    )


def _float_codec(t: pa.DataType) -> Codec:
    is_double = t.id == lib.Type_DOUBLE
    return Codec(
        t,
        pv.FLOAT64 if is_double else _arrow_form(t, for_keys=False),
        pv.FLOAT64_KEY if is_double else _arrow_form(t, for_keys=True),
        classes=(numbers.Real, np.floating),
        but_not=(bool,),
        look="{v}.__class__ is float" if is_double else None,
        is_exact=is_double,
        short=pv.FLOAT64_BYTES if is_double else None,
        short_key=pv.FLOAT64_KEY_BYTES if is_double else None,
    )


def _decimal_codec(t: pa.DataType) -> Codec:
    return Codec(t, _arrow_form(t), classes=(decimal.Decimal, int), but_not=(bool,))


# ---- text and binary ----


def _text_codec(t: pa.DataType) -> Codec:
    is_usual = t.id == lib.Type_STRING
    return Codec(
        t,
        pv.TEXT,
        classes=(str,),
        look="{v}.__class__ is str and ({v}.isascii() or is_text({v}))" if is_usual else None,
        is_exact=is_usual,
        short=pv.TEXT_BYTES if is_usual else None,
    )


def _binary_codec(t: pa.DataType) -> Codec:
    is_usual = t.id == lib.Type_BINARY
    return Codec(
        t,
        pv.BINARY,
        classes=(bytes, bytearray, memoryview),
        look="{v}.__class__ is bytes" if is_usual else None,
        is_exact=is_usual,
        short=pv.BINARY_BYTES if is_usual else None,
    )


# ---- times ----


def _date_codec(t: pa.DataType) -> Codec:
    is_days = t.id == lib.Type_DATE32
    return Codec(
        t,
        pv.DATE32 if is_days else _arrow_form(t),
        classes=(dt.date,),
        but_not=(dt.datetime,),
        look="{v}.__class__ is date" if is_days else None,
        is_exact=is_days,
    )


def _timestamp_codec(t: pa.DataType) -> Codec:
    is_micros, is_zoned = t.unit == "us", t.tz is not None
    if is_micros and is_zoned:
        form = pv.zoned_micros(t)
    else:
        form = pv.TIMESTAMP if is_micros else _arrow_form(t)
    look = "{v}.__class__ is datetime and {v}.tzinfo is " + ("not None" if is_zoned else "None")
    if is_zoned and t.unit == "ms":
        look += " and not {v}.microsecond % 1000"
    return Codec(
        t,
        form,
        classes=(dt.datetime, np.datetime64),
        check=functools.partial(_check_zones, t, is_zoned),
        look=look if is_micros or (is_zoned and t.unit == "ms") else None,
        is_exact=is_micros and not is_zoned,
    )


def _time_codec(t: pa.DataType) -> Codec:
    return Codec(t, _arrow_form(t), classes=(dt.time,), check=functools.partial(_check_zones, t, False))


def _duration_codec(t: pa.DataType) -> Codec:
    is_micros = t.unit == "us"
    return Codec(
        t,
        pv.DURATION if is_micros else _arrow_form(t),
        classes=(dt.timedelta, np.timedelta64),
        is_exact=is_micros,
    )


def _check_zones(t: pa.DataType, is_zoned: bool, name: str, values: Sequence[Any]) -> None:
    for value in values:
        if (getattr(value, "tzinfo", None) is not None) != is_zoned and not isinstance(value, np.datetime64):
            raise SchemaError(
                f"column {name!r} is {t}, {'with' if is_zoned else 'without'} a time zone, but got "
                f"{brief(value)}. Declare Annotated[datetime, pyarrow.timestamp('us', 'UTC')] for times with a zone"
            )


# ---- nested types ----


def _list_codec(t: pa.DataType) -> Codec:
    field = t.value_field

    def check(name: str, values: Sequence[Any]) -> None:
        check_values(f"{name} item", field.type, field.nullable, [i for v in values for i in v])

    is_usual = t.id == lib.Type_LIST
    text = f"list<{codec_of(field.type).text}{_mark(field)}>" if is_usual else None
    return Codec(
        t,
        _list_form(t, for_keys=False) if is_usual else _arrow_form(t),
        _list_form(t, for_keys=True) if is_usual else None,
        classes=(Iterable,),
        but_not=(str, bytes, dict),
        check=check,
        own_text=text,
    )


def _list_form(t: pa.DataType, for_keys: bool) -> PlainForm:
    item = plain_form(t.value_type, t.value_field.nullable, for_keys)

    def encode(values: Any) -> list[Any]:
        if isinstance(values, (str, bytes, dict)):
            refuse_value(t, values)
        return [item.encode(v) for v in values]

    decode = item.decode
    return PlainForm(encode, None if decode is None else lambda values: [decode(v) for v in values])


def _map_codec(t: pa.DataType) -> Codec:
    def check(name: str, values: Sequence[Any]) -> None:
        pairs = [pair for v in values for pair in (v.items() if isinstance(v, dict) else v)]
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            check_values(f"{name} key", t.key_type, False, [k for k, _ in pairs])
            check_values(f"{name} value", t.item_type, t.item_field.nullable, [v for _, v in pairs])

    text = f"map<{codec_of(t.key_type).text},{codec_of(t.item_type).text}{_mark(t.item_field)}>"
    return Codec(t, _map_form(t, for_keys=False), _map_form(t, for_keys=True), check=check, own_text=text)


def _map_form(t: pa.DataType, for_keys: bool) -> PlainForm:
    key = plain_form(t.key_type, False, for_keys)
    value = plain_form(t.item_type, t.item_field.nullable, for_keys)
    decode_key, decode_value = key.decode or _same, value.decode or _same

    def encode(entries: Any) -> list[Any]:
        pairs = entries.items() if isinstance(entries, dict) else entries
        return [(key.encode(k), value.encode(v)) for k, v in pairs]

    return PlainForm(encode, lambda pairs: [(decode_key(k), decode_value(v)) for k, v in pairs])


def _struct_codec(t: pa.DataType) -> Codec:
    def check(name: str, values: Sequence[Any]) -> None:
        if all(isinstance(v, dict) for v in values):
            for field in t:
                inside = [v.get(field.name) for v in values]
                check_values(f"{name}.{field.name}", field.type, field.nullable, inside)

    text = f"struct<{','.join(f'{f.name}:{codec_of(f.type).text}{_mark(f)}' for f in t)}>"
    return Codec(
        t, _struct_form(t, for_keys=False), _struct_form(t, for_keys=True), check=check, own_text=text
    )


def _struct_form(t: pa.DataType, for_keys: bool) -> PlainForm:
    parts = [(f.name, plain_form(f.type, f.nullable, for_keys)) for f in t]

    def encode(value: dict[str, Any]) -> list[Any]:
        return [form.encode(value[name]) for name, form in parts]

    def decode(values: list[Any]) -> dict[str, Any]:
        return {
            name: v if form.decode is None else form.decode(v)
            for (name, form), v in zip(parts, values, strict=True)
        }

    return PlainForm(encode, decode)


def _other_codec(t: pa.DataType) -> Codec:
    return Codec(t, _arrow_form(t))


def _arrow_form(t: pa.DataType, for_keys: bool = False) -> PlainForm:
    """Converts through Arrow: slow, but exactly as a column. Decimals as their bytes, else a batch of one row."""
    schema = pa.schema([pa.field("v", t)])
    raw = pa.types.is_decimal(t)

    def encode(value: Any) -> bytes:
        check_values("value", t, False, [value])
        try:
            array = pa.array([value + 0.0 if for_keys and isinstance(value, float) else value], t)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            refuse_value(t, value)
        if raw:
            return bytes(array.buffers()[1])
        return bytes(pa.RecordBatch.from_arrays([array], schema=schema).serialize())

    def decode(data: bytes) -> Any:
        if raw:
            return pa.Array.from_buffers(t, 1, [None, pa.py_buffer(data)])[0].as_py()
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema).column(0)[0].as_py()

    return PlainForm(encode, decode)


def _same(value: Any) -> Any:
    return value


def _mark(field: pa.Field) -> str:
    return "?" if field.nullable else ""


# ---- the table ----

_TABLE: Final[dict[str, tuple[Callable[[pa.DataType], Codec], KeyForm | None]]] = {
    "BOOL": (_bool_codec, KeyForm(INTEGER, np.dtype(np.bool_))),
    **{
        f"{sign}INT{bits}": (
            _integer_codec,
            KeyForm(INTEGER, np.dtype(f"{sign or 'i'}{bits // 8}".lower())),
        )
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
    "HALF_FLOAT": (_float_codec, KeyForm(FLOAT, np.dtype("f2"))),
    "FLOAT": (_float_codec, KeyForm(FLOAT, np.dtype("f4"))),
    "DOUBLE": (_float_codec, KeyForm(FLOAT, np.dtype("f8"))),
    "DATE32": (_date_codec, KeyForm(DATE, np.dtype("i4"))),
    "DATE64": (_date_codec, KeyForm(DATE, np.dtype("i8"))),
    "TIMESTAMP": (_timestamp_codec, KeyForm(TIMESTAMP, np.dtype("i8"))),
    "DURATION": (_duration_codec, KeyForm(DURATION, np.dtype("i8"))),
    "TIME32": (_time_codec, KeyForm(TIME, np.dtype("i4"))),
    "TIME64": (_time_codec, KeyForm(TIME, np.dtype("i8"))),
    "STRING": (_text_codec, KeyForm(TEXT)),
    "LARGE_STRING": (_text_codec, KeyForm(TEXT)),
    "STRING_VIEW": (_other_codec, KeyForm(TEXT)),
    "BINARY": (_binary_codec, KeyForm(BINARY)),
    "LARGE_BINARY": (_binary_codec, KeyForm(BINARY)),
    "BINARY_VIEW": (_other_codec, KeyForm(BINARY)),
    "FIXED_SIZE_BINARY": (_other_codec, KeyForm(BINARY)),
    "DECIMAL32": (_decimal_codec, None),
    "DECIMAL64": (_decimal_codec, None),
    "DECIMAL128": (_decimal_codec, None),
    "DECIMAL256": (_decimal_codec, None),
    "LIST": (_list_codec, None),
    "LARGE_LIST": (_list_codec, None),
    "MAP": (_map_codec, None),
    "STRUCT": (_struct_codec, None),
}
"""By Arrow's names. Values of other types are converted by Arrow, and cannot be keys."""

_BY_ID: Final = {getattr(lib, f"Type_{n}"): entry for n, entry in _TABLE.items() if hasattr(lib, f"Type_{n}")}
_KEY_FORMS: Final = {type_id: key for type_id, (_, key) in _BY_ID.items() if key is not None}
