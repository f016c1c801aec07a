"""Single values in a plainer form and back: what msgpack knows, or bytes that are shorter than msgpack's.

int64 and float64 are 8 bytes (little-endian), text is UTF-8, binary is itself. Dates, times and durations are the
integer that Arrow stores. A value that would come back different is refused with a `SchemaError`.
"""

from __future__ import annotations

import datetime as dt
import numbers
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.core.words import brief, kind_of

_INT64: Final = struct.Struct("<q")
_FLOAT64: Final = struct.Struct("<d")
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - timestamps without a zone count from here
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)


class PlainForm(NamedTuple):
    """How a type's values become plainer, and back; `decode` is None if they need no decoding."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any] | None = None


def _bool(value: Any) -> bool:
    if value.__class__ is not bool and not isinstance(value, np.bool_):
        refuse_value(pa.bool_(), value)
    return bool(value)


def _int64(value: Any) -> int:
    if value.__class__ is not int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            refuse_value(pa.int64(), value)
        value = int(value)
    if not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        refuse_value(pa.int64(), value)
    return value


def narrow_int(t: pa.DataType, least: int, most: int) -> PlainForm:
    """Integers of fewer than 64 bits."""

    def encode(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            refuse_value(t, value)
        number = int(value)
        if not least <= number <= most:
            refuse_value(t, value)
        return number

    return PlainForm(encode)


def _int64_bytes(value: Any) -> bytes:
    if value.__class__ is int:
        try:
            return _INT64.pack(value)
        except struct.error:
            refuse_value(pa.int64(), value)
    return _INT64.pack(_int64(value))


def _float64(value: Any) -> float:
    if value.__class__ is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, np.floating)):
        refuse_value(pa.float64(), value)
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
        refuse_value(pa.string(), value)
    return value


def _text_bytes(value: Any) -> bytes:
    try:
        return _text(value).encode()
    except UnicodeEncodeError as e:
        raise SchemaError(f"the text {brief(value)} is not valid Unicode: {e}") from e


def _binary(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        refuse_value(pa.binary(), value)
    return bytes(value)


def _days(value: Any) -> int:
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        refuse_value(pa.date32(), value)
    return value.toordinal() - _EPOCH_DAY


def _micros(value: Any) -> int:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        refuse_value(pa.timestamp("us"), value)
    return (value - _EPOCH) // _MICROSECOND


def _duration(value: Any) -> int:
    if not isinstance(value, dt.timedelta):
        refuse_value(pa.duration("us"), value)
    return value // _MICROSECOND


def zoned_micros(t: pa.DataType) -> PlainForm:
    """Timestamps with a time zone."""
    zone = pa.lib.string_to_tzinfo(t.tz)

    def encode(value: Any) -> int:
        if not isinstance(value, dt.datetime) or value.tzinfo is None:
            refuse_value(t, value)
        return (value - _EPOCH_UTC) // _MICROSECOND

    return PlainForm(encode, lambda v: (_EPOCH_UTC + v * _MICROSECOND).astimezone(zone))


def refuse_value(data_type: pa.DataType, value: Any) -> NoReturn:
    raise SchemaError(f"a {data_type} is needed but got {kind_of(value)}: {brief(value)}") from None


def refuse_no_value(data_type: pa.DataType) -> NoReturn:
    raise SchemaError(f"a {data_type} is needed but got None. Declare it Optional if None is meant")


BOOL: Final = PlainForm(_bool)
INT64: Final = PlainForm(_int64)
FLOAT64: Final = PlainForm(_float64)
FLOAT64_KEY: Final = PlainForm(_float_key)
"""With one zero and one NaN."""
TEXT: Final = PlainForm(_text)
BINARY: Final = PlainForm(_binary)
DATE32: Final = PlainForm(_days, lambda v: dt.date.fromordinal(v + _EPOCH_DAY))
TIMESTAMP: Final = PlainForm(_micros, lambda v: _EPOCH + v * _MICROSECOND)
DURATION: Final = PlainForm(_duration, lambda v: v * _MICROSECOND)

INT64_BYTES: Final = PlainForm(_int64_bytes, lambda data: _INT64.unpack(data)[0])
FLOAT64_BYTES: Final = PlainForm(_float64_bytes, lambda data: _FLOAT64.unpack(data)[0])
FLOAT64_KEY_BYTES: Final = PlainForm(_float_key_bytes, FLOAT64_BYTES.decode)
TEXT_BYTES: Final = PlainForm(_text_bytes, lambda data: data.decode())
BINARY_BYTES: Final = PlainForm(_binary, _binary)
