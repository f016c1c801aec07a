"""One value as compact bytes and back, by its Arrow type: what a key-value store keeps.

int64 and float64 are their 8 bytes (little-endian), text is UTF-8, binary itself; everything else, and whatever may be
None, is msgpack of a plain form: dates, times and durations as the integer that Arrow stores, decimals as Arrow's
bytes, structs as arrays in field order, maps as arrays of pairs. Anything rarer is a one-row Arrow batch. Strict like
`records.columns`: what would come back as another value is refused with a `SchemaError`.
"""

from __future__ import annotations

import datetime as dt
import numbers
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.core.words import kind_of
from tidegate.records.columns import brief, check_values

Convert = Callable[[Any], Any]
ToBytes = Callable[[Any], bytes]
FromBytes = Callable[[bytes], Any]

_INT64: Final = struct.Struct("<q")
_FLOAT64: Final = struct.Struct("<d")
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - timestamps without a zone count from here
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode


class PlainForm(NamedTuple):
    """A type's values as something that msgpack knows, and back; None where they are that already."""

    encode: Convert
    decode: Convert | None


def bytes_codec(data_type: pa.DataType, nullable: bool, for_keys: bool) -> tuple[ToBytes, FromBytes]:
    """The conversions of one column's values. `for_keys`: equal keys have equal bytes (one zero, one NaN)."""
    if not nullable:
        if data_type == pa.int64():
            return _int64_bytes, lambda data: _INT64.unpack(data)[0]
        if data_type == pa.float64():
            return (_float_key_bytes if for_keys else _float64_bytes), lambda data: _FLOAT64.unpack(data)[0]
        if data_type == pa.string():
            return _text_bytes, lambda data: data.decode()
        if data_type == pa.binary():
            return _binary_bytes, _binary
    form = plain_form(data_type, nullable, for_keys)
    encode, decode = form.encode, form.decode
    if decode is None:
        return lambda value: _pack(encode(value)), _unpack
    return lambda value: _pack(encode(value)), lambda data: decode(_unpack(data))


def struct_bytes_codec(
    fields: list[tuple[pa.DataType, bool]], for_keys: bool
) -> tuple[Callable[[tuple[Any, ...]], bytes], Callable[[bytes], list[Any]]]:
    """The same for a row of several columns, as the sequence of its values."""
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
    form = _form(data_type, for_keys)
    encode, decode = form.encode, form.decode
    if nullable:
        return PlainForm(
            lambda v: None if v is None else encode(v),
            None if decode is None else lambda v: None if v is None else decode(v),
        )
    return PlainForm(lambda v: _refuse_none(data_type) if v is None else encode(v), decode)


def _form(t: pa.DataType, for_keys: bool) -> PlainForm:
    if pa.types.is_boolean(t):
        return PlainForm(_bool, None)
    if pa.types.is_integer(t):
        return PlainForm(_int64 if t == pa.int64() else _narrow_int(t), None)
    if t == pa.float64():
        return PlainForm(_float_key if for_keys else _float64, None)
    if t in (pa.string(), pa.large_string()):
        return PlainForm(_text, None)
    if t in (pa.binary(), pa.large_binary()):
        return PlainForm(_binary, None)
    if t == pa.date32():
        return PlainForm(_days, lambda v: dt.date.fromordinal(v + _EPOCH_DAY))
    if t == pa.timestamp("us"):
        return PlainForm(_micros, lambda v: _EPOCH + v * _MICROSECOND)
    if pa.types.is_timestamp(t) and t.unit == "us":
        return _zoned_form(t)
    if t == pa.duration("us"):
        return PlainForm(_duration, lambda v: v * _MICROSECOND)
    if pa.types.is_list(t):
        return _list_form(t, for_keys)
    if pa.types.is_map(t):
        return _map_form(t, for_keys)
    if pa.types.is_struct(t):
        return _struct_form(t, for_keys)
    return _arrow_form(t, for_keys)


def _zoned_form(t: pa.DataType) -> PlainForm:
    zone = pa.lib.string_to_tzinfo(t.tz)

    def encode(value: Any) -> int:
        if not isinstance(value, dt.datetime) or value.tzinfo is None:
            _refuse(t, value)
        return (value - _EPOCH_UTC) // _MICROSECOND

    return PlainForm(encode, lambda v: (_EPOCH_UTC + v * _MICROSECOND).astimezone(zone))


def _list_form(t: pa.DataType, for_keys: bool) -> PlainForm:
    item = plain_form(t.value_type, t.value_field.nullable, for_keys)

    def encode(values: Any) -> list[Any]:
        if isinstance(values, (str, bytes, dict)):
            _refuse(t, values)
        return [item.encode(v) for v in values]

    decode = item.decode
    return PlainForm(encode, None if decode is None else lambda values: [decode(v) for v in values])


def _map_form(t: pa.DataType, for_keys: bool) -> PlainForm:
    key = plain_form(t.key_type, False, for_keys)
    value = plain_form(t.item_type, t.item_field.nullable, for_keys)
    decode_key, decode_value = key.decode or _same, value.decode or _same

    def encode(entries: Any) -> list[Any]:
        pairs = entries.items() if isinstance(entries, dict) else entries
        return [(key.encode(k), value.encode(v)) for k, v in pairs]

    return PlainForm(encode, lambda pairs: [(decode_key(k), decode_value(v)) for k, v in pairs])


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


def _arrow_form(t: pa.DataType, for_keys: bool) -> PlainForm:
    """Through Arrow itself: slow, and just what a column would do."""
    schema = pa.schema([pa.field("v", t)])
    raw = pa.types.is_decimal(t)

    def encode(value: Any) -> bytes:
        check_values("value", t, False, [value])
        try:
            array = pa.array([value + 0.0 if for_keys and isinstance(value, float) else value], t)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            _refuse(t, value)
        if raw:
            return bytes(array.buffers()[1])
        return bytes(pa.RecordBatch.from_arrays([array], schema=schema).serialize())

    def decode(data: bytes) -> Any:
        if raw:
            return pa.Array.from_buffers(t, 1, [None, pa.py_buffer(data)])[0].as_py()
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema).column(0)[0].as_py()

    return PlainForm(encode, decode)


# ---- scalars ----


def _bool(value: Any) -> bool:
    if value.__class__ is not bool and not isinstance(value, np.bool_):
        _refuse(pa.bool_(), value)
    return bool(value)


def _int64(value: Any) -> int:
    if value.__class__ is not int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            _refuse(pa.int64(), value)
        value = int(value)
    if not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        _refuse(pa.int64(), value)
    return value


def _narrow_int(t: pa.DataType) -> Convert:
    bits = t.bit_width
    signed = pa.types.is_signed_integer(t)
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def encode(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            _refuse(t, value)
        number = int(value)
        if not least <= number <= most:
            _refuse(t, value)
        return number

    return encode


def _int64_bytes(value: Any) -> bytes:
    if value.__class__ is int:
        try:
            return _INT64.pack(value)
        except struct.error:
            _refuse(pa.int64(), value)
    return _INT64.pack(_int64(value))


def _float64(value: Any) -> float:
    if value.__class__ is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, np.floating)):
        _refuse(pa.float64(), value)
    return float(value)


def _float_key(value: Any) -> float:
    number = _float64(value)
    return float("nan") if number != number else number + 0.0


def _float64_bytes(value: Any) -> bytes:
    return _FLOAT64.pack(_float64(value))


def _float_key_bytes(value: Any) -> bytes:
    return _FLOAT64.pack(_float_key(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        _refuse(pa.string(), value)
    return value


def _text_bytes(value: Any) -> bytes:
    try:
        return _text(value).encode()
    except UnicodeEncodeError as e:
        raise SchemaError(f"the text {brief(value)} is not valid Unicode: {e}") from e


def _binary(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        _refuse(pa.binary(), value)
    return bytes(value)


_binary_bytes = _binary


def _days(value: Any) -> int:
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        _refuse(pa.date32(), value)
    return value.toordinal() - _EPOCH_DAY


def _micros(value: Any) -> int:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        _refuse(pa.timestamp("us"), value)
    return (value - _EPOCH) // _MICROSECOND


def _duration(value: Any) -> int:
    if not isinstance(value, dt.timedelta):
        _refuse(pa.duration("us"), value)
    return value // _MICROSECOND


def _same(value: Any) -> Any:
    return value


def _refuse(data_type: pa.DataType, value: Any) -> NoReturn:
    raise SchemaError(f"a {data_type} is needed but got {kind_of(value)}: {brief(value)}") from None


def _refuse_none(data_type: pa.DataType) -> NoReturn:
    raise SchemaError(f"a {data_type} is needed but got None. Declare it Optional if None is meant")
