"""From entries back to keys: which keys have something in a state, for functions that are applied to all keys.

`key_bytes` writes a key in the form of its hash, which does not say whether an integer was a bool, or the unit of a
timestamp; the key type of the stream does. So each part is read by the type of its column, and keys are made as in a
restore.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.records import codecs
from tidegate.records.types import RecordType
from tidegate.state.serializers import KeySerializer

_BIAS: Final = 1 << 63
_HEAD: Final = 3
"""Bytes before the key: key group and state."""
_CHUNK: Final = 4096
_UNSIGNED: Final = struct.Struct(">Q")
_DOUBLE: Final = struct.Struct(">d")
_MOMENT: Final = struct.Struct(">QH")
_LENGTH: Final = struct.Struct(">L")
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


class StoredKeys:
    """Reads keys of the key type of one stream."""

    def __init__(self, key_type: RecordType) -> None:
        self._serializer = KeySerializer(key_type)
        self._types: list[pa.DataType] = list(key_type.schema.types)

    def of_entries(self, entries: Iterable[bytes]) -> Iterator[Any]:
        """The keys of entries in the order of the database, each once."""
        waiting = self._parts(entries)
        while chunk := list(islice(waiting, _CHUNK)):
            columns = [pa.array(c, t) for c, t in zip(zip(*chunk, strict=True), self._types, strict=True)]
            yield from self._serializer.from_column(self._serializer.join(columns))

    def columns_of(self, entries: list[bytes], tail: int) -> list[pa.Array]:
        """The key columns of entries, one row each; `tail` bytes follow the key in each entry."""
        types = self._types
        if len(types) == 1 and pa.types.is_string(types[0]) and all(e[_HEAD] == codecs.TEXT for e in entries):
            start = _HEAD + 1 + _LENGTH.size
            return [pa.array([e[start:-tail] for e in entries], pa.binary()).cast(types[0])]
        if len(types) == 1 and types[0] == pa.int64() and all(e[_HEAD] == codecs.INTEGER for e in entries):
            numbers = np.frombuffer(b"".join([e[_HEAD + 1 : -tail] for e in entries]), ">u8")
            return [pa.array((numbers.astype(np.uint64) ^ np.uint64(_BIAS)).view(np.int64))]
        rows = [self._read_key(entry)[0] for entry in entries]
        return [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]

    def _parts(self, entries: Iterable[bytes]) -> Iterator[list[Any]]:
        previous = b""
        for entry in entries:
            if previous and entry.startswith(previous):  # keys are self-delimiting, so it is the same key
                continue
            parts, end = self._read_key(entry)
            previous = entry[:end]
            yield parts

    def _read_key(self, entry: bytes) -> tuple[list[Any], int]:
        types = self._types
        if len(types) == 1:
            value, end = _read(entry, _HEAD, types[0])
            return [value], end
        return _read_parts(entry, _HEAD + 2, types)


def _read_parts(data: bytes, position: int, types: Iterable[pa.DataType]) -> tuple[list[Any], int]:
    parts = []
    for kind in types:
        value, position = _read(data, position, kind)
        parts.append(value)
    return parts, position


def _read(data: bytes, position: int, kind: pa.DataType) -> tuple[Any, int]:
    """One part, as `pyarrow.array` accepts it for its type, and the position of the next one."""
    tag = data[position]
    position += 1
    if tag == codecs.NULL:
        return None, position
    if tag == codecs.TUPLE:
        fields = [kind.field(i) for i in range(kind.num_fields)]
        parts, end = _read_parts(data, position + 1, [f.type for f in fields])
        return {f.name: part for f, part in zip(fields, parts, strict=True)}, end
    if tag in (codecs.TEXT, codecs.BINARY, codecs.DECIMAL):
        (length,) = _LENGTH.unpack_from(data, position)
        end = position + _LENGTH.size + length
        content = data[position + _LENGTH.size : end]
        if tag == codecs.DECIMAL:
            return Decimal(content.decode()), end
        return content.decode() if tag == codecs.TEXT else content, end
    if tag in (codecs.TIMESTAMP, codecs.DURATION, codecs.TIME):
        micros, nanos = _MOMENT.unpack_from(data, position)
        return _in_unit(micros - _BIAS, nanos, kind.unit), position + _MOMENT.size
    end = position + 8
    if tag == codecs.FLOAT:
        return _DOUBLE.unpack_from(data, position)[0], end
    (number,) = _UNSIGNED.unpack_from(data, position)
    if tag == codecs.LARGE_INTEGER:
        return number, end
    number -= _BIAS
    if tag == codecs.DATE:
        return number * (86_400_000 if pa.types.is_date64(kind) else 1), end
    return bool(number) if pa.types.is_boolean(kind) else number, end


def _in_unit(micros: int, nanos: int, unit: str) -> int:
    return micros * 1000 + nanos if unit == "ns" else micros // _MICROS[unit]
