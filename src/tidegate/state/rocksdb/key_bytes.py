"""The keys of entries in RocksDB: key group, state, key, and what follows the key (the key inside a map).

    2 bytes  key group, big-endian        so a range of key groups is a range of the database
    1 byte   state, from 1
    n bytes  the key, self-delimiting     so that what follows cannot be taken for a part of it

The key has the form that the stable hash uses: a tag and a fixed number of bytes, or a tag, a length and the bytes.
Equal keys have equal bytes, no matter how wide their column is, and `EntryKeys.of_columns` writes the same ones for a
whole batch as `of_key` does for one. Like the hash this is a durable format.

| tag | key                         | bytes                                                            |
|-----|-----------------------------|------------------------------------------------------------------|
| 0   | null                        |                                                                  |
| 1   | integer, bool               | 8, plus 2**63: sorted                                            |
| 2   | integer from 2**63          | 8                                                                |
| 3   | float                       | the 8 of the double, with one zero and one NaN                   |
| 4   | text                        | length (4), UTF-8                                                |
| 5   | binary                      | length (4), bytes                                                |
| 6   | date                        | 8, days plus 2**63                                               |
| 7   | timestamp                   | 8, microseconds plus 2**63; 2, nanoseconds beyond them           |
| 8   | duration                    | the same                                                         |
| 9   | time of day                 | the same                                                         |
| 10  | decimal                     | length (4), `<unscaled>e<exponent>` without trailing zeros       |
| 11  | several columns             | their number (1), each of them                                   |
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.core.errors import KeyTypeError
from tidegate.core.key_groups import key_group_for_hash
from tidegate.core.words import kind_of
from tidegate.keys.hashing import decimal_text, hash_columns, hash_value, hash_values
from tidegate.keys.key_group_columns import key_groups
from tidegate.records.codecs import (
    BINARY,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT,
    INTEGER,
    LARGE_INTEGER,
    TEXT,
    TIME,
    TIMESTAMP,
    TUPLE,
    key_form,
)
from tidegate.records.column_bits import fixed_width_bits, is_bytes_like, is_fixed_width, null_mask

_BIAS: Final = 1 << 63
_PREFIX: Final = struct.Struct(">HB")
_NUMBER: Final = struct.Struct(">BQ")
_MOMENT: Final = struct.Struct(">BQH")
_BYTES: Final = struct.Struct(">BL")
_NAN: Final = _NUMBER.pack(FLOAT, 0x7FF8000000000000)
_DOUBLE: Final = struct.Struct(">Bd")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_PREFIX_TYPE: Final = np.dtype([("group", ">u2"), ("state", "u1")])
_NUMBER_TYPE: Final = np.dtype([("tag", "u1"), ("value", ">u8")])
_MOMENT_TYPE: Final = np.dtype([("tag", "u1"), ("value", ">u8"), ("nanos", ">u2")])
_BYTES_TYPE: Final = np.dtype([("tag", "u1"), ("length", ">u4")])
_DAY_MS: Final = 86_400_000
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


class EntryKeys:
    """The keys of the entries of one state in the database."""

    def __init__(self, state_id: int, max_parallelism: int) -> None:
        self.state_id = state_id
        self._max_parallelism = max_parallelism

    def of_key(self, key: Any) -> bytes:
        group = key_group_for_hash(hash_value(key), self._max_parallelism)
        return _PREFIX.pack(group, self.state_id) + key_bytes(key)

    def of_keys(self, keys: Sequence[Any]) -> list[bytes]:
        prefixes = self._prefixes(hash_values(keys))
        return [p + k for p, k in zip(prefixes, map(key_bytes, keys), strict=True)]

    def of_columns(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """The entries of keys in columns (plain ones, not dictionary-encoded)."""
        hashes = hash_columns(columns)
        if len(columns) == 1 and _is_plain_number(columns[0]):
            # By far the most frequent case: one array of structs, from which Python makes the bytes.
            number = _numbers(columns[0])
            entries = np.empty(len(hashes), [*_PREFIX_TYPE.descr, *number.dtype.descr])
            self._fill(entries, hashes)
            for name in number.dtype.names or ():
                entries[name] = number[name]
            return _rows(entries)
        parts = [_column_bytes(column) for column in columns]
        prefixes = self._prefixes(hashes)
        if len(parts) == 1:
            return [p + k for p, k in zip(prefixes, parts[0], strict=True)]
        head = bytes([TUPLE, len(parts)])
        return [b"".join((p, head, *k)) for p, *k in zip(prefixes, *parts, strict=True)]

    def order_of_columns(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """The order that sorts the entries by key group, and by the key if it is one number."""
        groups = key_groups(hash_columns(columns), self._max_parallelism)
        if len(columns) == 1 and _is_plain_number(columns[0]):
            number = _numbers(columns[0])
            return np.lexsort((number["value"].astype(np.uint64), groups))
        return np.argsort(groups, kind="stable")

    def range_of_group(self, key_group: int) -> tuple[bytes, bytes]:
        """The start and the end of the entries of a key group."""
        return _PREFIX.pack(key_group, self.state_id), _PREFIX.pack(key_group, self.state_id + 1)

    def _prefixes(self, hashes: npt.NDArray[np.uint64]) -> list[bytes]:
        entries = np.empty(len(hashes), _PREFIX_TYPE)
        self._fill(entries, hashes)
        return _rows(entries)

    def _fill(self, entries: npt.NDArray[Any], hashes: npt.NDArray[np.uint64]) -> None:
        entries["group"] = hashes % np.uint64(self._max_parallelism)
        entries["state"] = self.state_id


def group_start(key_group: int) -> bytes:
    """The start of the entries of a key group, over all states. One past the last group gives the end of the last."""
    return struct.pack(">H", key_group)


def state_of_entry(entry: bytes) -> int:
    """The id of the state that an entry belongs to."""
    return entry[2]


def with_state(entry: bytes, state_id: int) -> bytes:
    """The same entry in another state."""
    return b"%b%c%b" % (entry[:2], state_id, entry[3:])


def end_of_prefix(prefix: bytes) -> bytes:
    """The first key after all with this prefix. One exists, because the prefix begins with a key group."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def key_bytes(key: Any) -> bytes:
    """The bytes of one key, self-delimiting."""
    kind = type(key)
    if kind is int:
        return _integer(key)
    if kind is str:
        data = key.encode()
        return _BYTES.pack(TEXT, len(data)) + data
    if key is None:
        return b"\x00"
    if isinstance(key, tuple):
        if len(key) == 1:
            return key_bytes(key[0])
        return bytes([TUPLE, len(key)]) + b"".join(map(key_bytes, key))
    return _rarer(key)


def _integer(key: int) -> bytes:
    return _NUMBER.pack(INTEGER, key + _BIAS) if key < _BIAS else _NUMBER.pack(LARGE_INTEGER, key)


def _rarer(key: Any) -> bytes:
    if isinstance(key, int):
        return _integer(int(key))
    if isinstance(key, str):
        return key_bytes(str(key))
    if isinstance(key, float):
        return _NAN if key != key else _DOUBLE.pack(FLOAT, key + 0.0)
    if isinstance(key, (bytes, bytearray, memoryview)):
        return _BYTES.pack(BINARY, len(key)) + bytes(key)
    if isinstance(key, dt.datetime):
        since = (key if key.tzinfo is not None else key.replace(tzinfo=dt.UTC)) - _EPOCH
        return _moment(TIMESTAMP, since, getattr(key, "nanosecond", 0))
    if isinstance(key, dt.date):
        return _NUMBER.pack(DATE, key.toordinal() - _EPOCH_DAY + _BIAS)
    if isinstance(key, dt.timedelta):
        return _moment(DURATION, key, getattr(key, "nanoseconds", 0))
    if isinstance(key, dt.time):
        seconds = (key.hour * 60 + key.minute) * 60 + key.second
        return _MOMENT.pack(TIME, seconds * 1_000_000 + key.microsecond + _BIAS, 0)
    if isinstance(key, Decimal):
        data = decimal_text(key).encode()
        return _BYTES.pack(DECIMAL, len(data)) + data
    if isinstance(key, np.generic):
        return key_bytes(key.item())
    raise KeyTypeError(f"{kind_of(key)} cannot be a key of RocksDB state: it has no stable bytes.")


def _moment(tag: int, span: dt.timedelta, nanos: int) -> bytes:
    micros = (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
    return _MOMENT.pack(tag, micros + _BIAS, nanos)


def _rows(structs: npt.NDArray[Any]) -> list[bytes]:
    rows: list[bytes] = structs.view(f"V{structs.itemsize}").tolist()
    return rows


def _is_plain_number(column: pa.Array) -> bool:
    kind = column.type
    return is_fixed_width(kind) and not column.null_count and not pa.types.is_uint64(kind)


def _column_bytes(column: pa.Array) -> list[bytes]:
    kind = column.type
    if pa.types.is_null(kind):
        return [b"\x00"] * len(column)
    if is_fixed_width(kind):
        rows = _rows(_numbers(column))
    elif is_bytes_like(kind):
        rows = _texts(column)
    else:
        return list(map(key_bytes, column.to_pylist()))
    if column.null_count:
        for i in np.flatnonzero(null_mask(column)).tolist():
            rows[i] = b"\x00"
    return rows


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Structs of tag and value; undefined for null rows."""
    kind, form = column.type, key_form(column.type)
    assert form is not None
    tag, bits = form.tag, fixed_width_bits(column)
    if tag == FLOAT:
        return _structs(FLOAT, bits)
    if tag == INTEGER:
        structs = _structs(INTEGER, bits ^ np.uint64(_BIAS))
        if pa.types.is_uint64(kind):
            large = bits >= np.uint64(_BIAS)
            structs["tag"][large] = LARGE_INTEGER
            structs["value"][large] = bits[large]
        return structs
    values = bits.view(np.int64)
    if tag == DATE:
        days = values // _DAY_MS if pa.types.is_date64(kind) else values
        return _structs(DATE, days.view(np.uint64) ^ np.uint64(_BIAS))
    nanos = np.zeros(len(values), np.int64)
    if kind.unit == "ns":
        values, nanos = np.divmod(values, 1000)
    else:
        factor = _MICROS[kind.unit]
        valid = slice(None) if not column.null_count else ~null_mask(column)
        if factor > 1 and len(values) and np.abs(values[valid]).max(initial=0) > (_BIAS - 1) // factor:
            raise KeyTypeError(f"a key column of type {kind} has values beyond 290,000 years.")
        values = values * factor
    moments = np.empty(len(values), _MOMENT_TYPE)
    moments["tag"], moments["nanos"] = tag, nanos
    moments["value"] = values.view(np.uint64) ^ np.uint64(_BIAS)
    return moments


def _structs(tag: int, values: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    structs = np.empty(len(values), _NUMBER_TYPE)
    structs["tag"], structs["value"] = tag, values
    return structs


def _texts(column: pa.Array) -> list[bytes]:
    form = key_form(column.type)
    assert form is not None
    values: list[bytes] = column.cast(pa.large_binary()).fill_null(b"").to_pylist()
    heads = np.empty(len(values), _BYTES_TYPE)
    heads["tag"] = form.tag
    heads["length"] = np.fromiter(map(len, values), np.int64, len(values))
    return [h + v for h, v in zip(_rows(heads), values, strict=True)]
