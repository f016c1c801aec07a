"""Serializers: the Python values of a state as Arrow columns (heap files) and as bytes (RocksDB), and their copies.

`value_serializer` chooses by the declared type. A type that has an Arrow type (see `records.types`) needs nothing else.
Any other type needs an explicit `serializer=`; every backend then keeps its bytes. So a value comes back the same on
every backend, before and after a restore:

- `adopt` is called for each value that is stored. It refuses what does not fit, also inside, copies what is mutable,
  and turns similar values (a numpy int, a tuple for a list) into exactly what the columns would return.
- `release` is called for each value that is returned to the user.

Any thread; immutable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import pyarrow as pa

from tidegate.api.state import StateSerializer
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.words import kind_of
from tidegate.keys.hashing import hash_columns
from tidegate.keys.key_group_columns import KeyGroups, key_groups
from tidegate.records import type_hints
from tidegate.records.codecs import bytes_codec, codec_of, struct_bytes_codec
from tidegate.records.columns import brief
from tidegate.records.types import RecordType, RowType, ScalarType, StructType, TupleType, record_type_of
from tidegate.state.copies import Copier, copier_for, itself
from tidegate.state.value_checks import Fits, fits_for


def _look_closer(value: Any) -> bool:
    """The `fits` of types without a quick check: always asks for a closer look."""
    return False


class ValueSerializer(ABC):
    """Converts between the values of one state and what is kept of them."""

    name: str
    """`arrow`, or the name of the opt-in serializer; part of the fingerprint."""
    arrow_type: pa.DataType
    """The type of the one column that holds the values."""
    exact_class: type | None
    """Values of exactly this class that pass `fits` need no `adopt`: they are kept as they are, or copied. None: all
    values need `adopt`."""
    fits: Fits
    """A quick check of a value of the exact class, also inside; a value that fails it may still fit."""
    copier: Copier | None
    """Copies a kept value; None if values are immutable."""

    @abstractmethod
    def describe(self) -> str:
        """The type in words."""

    @abstractmethod
    def adopt(self, value: Any) -> Any:
        """Return what is kept of a value (never None); `SchemaError` if it has the wrong type."""

    @abstractmethod
    def release(self, kept: Any) -> Any:
        """Return a value for the caller."""

    @abstractmethod
    def to_column(self, kept: Sequence[Any]) -> pa.Array:
        """Return a column of `arrow_type`; `SchemaError` if a value does not fit."""

    @abstractmethod
    def from_column(self, column: pa.Array) -> list[Any]:
        """Return the kept values of a column without nulls."""

    to_bytes: Callable[[Any], bytes]
    """Returns the bytes of a kept value; `SchemaError` if it does not fit."""
    from_bytes: Callable[[bytes], Any]
    """Returns the kept value of these bytes."""


class TypedSerializer(ValueSerializer):
    """Values whose type hint has an Arrow type."""

    name = "arrow"

    def __init__(
        self,
        record_type: RecordType,
        copier: Copier | None,
        fits: Fits | None,
        for_keys: bool = False,
    ) -> None:
        self.record_type = record_type
        self.copier = copier
        self.fits = fits or _look_closer
        fields = list(record_type.schema)
        self._single = isinstance(record_type, ScalarType) or (
            for_keys and isinstance(record_type, RowType) and len(fields) == 1
        )
        self._wraps_row = self._single and not isinstance(record_type, ScalarType)
        self.nullable = self._single and fields[0].nullable
        self.arrow_type = fields[0].type if self._single else pa.struct(fields)
        self.exact_class = _exact_class(record_type)
        self.to_bytes, self.from_bytes = self._bytes_codec(for_keys)

    def describe(self) -> str:
        return self.record_type.describe()

    def adopt(self, value: Any) -> Any:
        """Return a copy, converted through a column if the class is not the exact one."""
        if value.__class__ is self.exact_class:
            if not self.fits(value):
                self.check(value)
            return value if self.copier is None else self.copier(value)
        if value is None and self.nullable:
            return None
        return self.from_column(self.to_column([value]))[0]

    def check(self, value: Any) -> None:
        """Raise `SchemaError` if a value of the exact class does not fit inside."""
        try:
            self.to_bytes(value)
        except Exception:  # noqa: BLE001 - the column then says what is wrong, or accepts it
            self.to_column([value])

    def release(self, kept: Any) -> Any:
        return kept if self.copier is None or kept is None else self.copier(kept)

    def to_column(self, kept: Sequence[Any]) -> pa.Array:
        if self._wraps_row:
            kept = [(v,) for v in kept]
        columns = self.record_type.to_columns(kept)
        if self._single:
            return columns.column(0)
        return pa.StructArray.from_arrays(columns.columns, fields=list(columns.schema))

    def from_column(self, column: pa.Array) -> list[Any]:
        if self._single:
            if column.type == pa.int64() and not column.null_count:
                return column.to_numpy().tolist()
            arrays = [column]
        else:
            arrays = column.flatten()
        rows = self.record_type.to_rows(pa.RecordBatch.from_arrays(arrays, schema=self.record_type.schema))
        return [row[0] for row in rows] if self._wraps_row else rows

    def _bytes_codec(self, for_keys: bool) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        schema, record_type = self.record_type.schema, self.record_type
        if self._single:
            to_bytes, from_bytes = bytes_codec(schema.field(0).type, schema.field(0).nullable, for_keys)
            if isinstance(record_type, ScalarType):
                return _with_field_codec(record_type._codec, to_bytes, from_bytes)
            return to_bytes, from_bytes
        to_struct, from_struct = struct_bytes_codec([(f.type, f.nullable) for f in schema], for_keys)
        if isinstance(record_type, StructType):
            return _class_codec(record_type, to_struct, from_struct)
        if isinstance(record_type, TupleType):
            return _tuple_codec(record_type, to_struct, from_struct)
        return _row_codec(record_type, to_struct, from_struct)


class OptInSerializer(ValueSerializer):
    """Values that only the user's serializer knows; every backend keeps its bytes."""

    arrow_type = pa.binary()
    exact_class = None
    copier = None
    fits = staticmethod(_look_closer)

    def __init__(self, serializer: StateSerializer[Any], hint: Any) -> None:
        self._serializer = serializer
        self._hint = hint
        self.name = serializer.name
        self.to_bytes = self.from_bytes = itself

    def describe(self) -> str:
        return f"{getattr(self._hint, '__name__', self._hint)} ({self.name})"

    def adopt(self, value: Any) -> bytes:
        try:
            data = self._serializer.serialize(value)
        except Exception as e:
            raise SchemaError(
                f"the serializer {self.name!r} cannot take {kind_of(value)}: {e}: {brief(value)}"
            ) from e
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise SchemaError(f"the serializer {self.name!r} made {kind_of(data)}, but must make bytes")
        return bytes(data)

    def release(self, kept: bytes) -> Any:
        return self._serializer.deserialize(kept)

    def to_column(self, kept: Sequence[Any]) -> pa.Array:
        return pa.array(kept, pa.binary())

    def from_column(self, column: pa.Array) -> list[Any]:
        return column.to_pylist()


def value_serializer(
    operator: str,
    state: str,
    hint: Any,
    serializer: StateSerializer[Any] | None = None,
    optional: bool = False,
) -> ValueSerializer:
    """The serializer of a state's values. `optional`: None may be among them (elements of a list)."""
    if serializer is not None:
        if not isinstance(getattr(serializer, "name", None), str) or not serializer.name:
            raise ProgramError(f"operator {operator!r}: the serializer of state {state!r} needs a name")
        return OptInSerializer(serializer, hint)
    record_type = record_type_of(hint)
    if not optional:
        record_type = record_type_of(type_hints.strip_optional(hint)[0])
    if record_type.is_object:
        raise ProgramError(
            f"operator {operator!r}: state {state!r} is of type {hint!r}, which has no Arrow type. Use a scalar, a "
            f"dataclass, a NamedTuple, a tuple, or lists and maps of these, or give the state a serializer= "
            f"(PickleSerializer() takes anything)"
        )
    return TypedSerializer(record_type, copier_for(hint), fits_for(hint))


class KeySerializer(TypedSerializer):
    """The keys of a keyed stream, and the keys inside a map state: equal keys have equal bytes.

    A key of one column is the plain value, else a tuple (or NamedTuple, dataclass) of its parts. NaN is always the
    object `math.nan`, so that a dict finds it.
    """

    def __init__(self, record_type: RecordType, fits: Fits | None = None) -> None:
        super().__init__(record_type, None, fits, for_keys=True)
        self._floats = [i for i, f in enumerate(record_type.schema) if pa.types.is_floating(f.type)]
        self.plain_class = None if self._floats else self.exact_class
        """Keys of exactly this class need no `adopt` for a look-up."""

    def adopt(self, value: Any) -> Any:
        """Return the key as it is in a dict."""
        key = super().adopt(value)
        if not self._floats:
            return key
        if self._single:
            return nan if key != key else key
        return self._with_one_nan(key)

    def from_column(self, column: pa.Array) -> list[Any]:
        """Return keys as they are in a dict."""
        keys = super().from_column(column)
        if isinstance(self.record_type, RowType) and not self._single:
            keys = list(map(tuple, keys))
        if not self._floats:
            return keys
        if self._single:
            return [nan if k != k else k for k in keys]
        return [self._with_one_nan(k) for k in keys]

    def columns(self, keys: Sequence[Any]) -> list[pa.Array]:
        """The key columns for `hash_columns` and `KeyIndex`."""
        return self.split(self.to_column(keys))

    def split(self, column: pa.Array) -> list[pa.Array]:
        """The key columns of the one column in files."""
        return [column] if self._single else column.flatten()

    def join(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The one column for files of the key columns, which are cast to the declared types."""
        schema = self.record_type.schema
        arrays = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
        return arrays[0] if self._single else pa.StructArray.from_arrays(arrays, fields=list(schema))

    def key_groups(self, column: pa.Array, max_parallelism: int) -> KeyGroups:
        return key_groups(hash_columns(self.split(column)), max_parallelism)

    def _with_one_nan(self, key: Any) -> Any:
        if isinstance(key, tuple) and any(key[i] != key[i] for i in self._floats):
            parts = (nan if isinstance(p, float) and p != p else p for p in key)
            return type(key)._make(parts) if hasattr(key, "_make") else tuple(parts)
        return key


def map_key_serializer(operator: str, state: str, hint: Any) -> KeySerializer:
    """The serializer of the keys inside a map state, which must be immutable and typed."""
    record_type = record_type_of(hint)
    nullable = isinstance(record_type, ScalarType) and record_type.schema.field(0).nullable
    if record_type.is_object or nullable or copier_for(hint) is not None:
        raise ProgramError(
            f"operator {operator!r}: map state {state!r} has keys of type {hint!r}, but they must be scalars (not "
            f"None), tuples, NamedTuples or frozen dataclasses of types that Arrow knows"
        )
    return KeySerializer(record_type, fits_for(hint))


# ---- bytes and classes ----


def _exact_class(record_type: RecordType) -> type | None:
    if isinstance(record_type, ScalarType):
        kind = record_type.schema.field(0).type
        plain = codec_of(kind).is_exact or record_type._codec.encode is not None
        nested = pa.types.is_nested(kind) and record_type.python_type is not object
        return record_type.python_type if plain or nested else None
    if isinstance(record_type, StructType):
        return record_type.exact_class
    if isinstance(record_type, TupleType):
        return tuple
    return record_type._row if isinstance(record_type, RowType) else None


def _with_field_codec(codec: Any, to_bytes: Any, from_bytes: Any) -> tuple[Any, Any]:
    encode, decode = codec.encode, codec.decode
    if encode is None and decode is None:
        return to_bytes, from_bytes

    def encoded(value: Any) -> bytes:
        return to_bytes(value if value is None or encode is None else _encode(encode, value))

    def decoded(data: bytes) -> Any:
        value = from_bytes(data)
        return value if value is None or decode is None else decode(value)

    return encoded, decoded


def _encode(encode: Callable[[Any], Any], value: Any) -> Any:
    try:
        return encode(value)
    except (TypeError, ValueError, AttributeError, KeyError) as e:
        raise SchemaError(f"got {kind_of(value)} of another shape: {brief(value)}") from e


def _class_codec(record_type: StructType, to_struct: Any, from_struct: Any) -> tuple[Any, Any]:
    of = record_type.record_class
    cls, get, make = record_type.exact_class, of.values, of.make
    codecs = [f.codec for f in record_type._fields]
    coded = bool(record_type.coded)

    def to_bytes(value: Any) -> bytes:
        if value.__class__ is not cls:
            record_type.check_rows([value])
        values = get(value)
        if coded:
            values = _encoded_parts(codecs, values)
        return to_struct(values)

    def from_bytes(data: bytes) -> Any:
        values = from_struct(data)
        return make(*(_decoded_parts(codecs, values) if coded else values))

    return to_bytes, from_bytes


def _tuple_codec(record_type: TupleType, to_struct: Any, from_struct: Any) -> tuple[Any, Any]:
    codecs = record_type._codecs

    def to_bytes(value: Any) -> bytes:
        if not isinstance(value, tuple) or len(value) != len(codecs):
            record_type.check_rows([value])
        return to_struct(_encoded_parts(codecs, value))

    return to_bytes, lambda data: tuple(_decoded_parts(codecs, from_struct(data)))


def _row_codec(record_type: RecordType, to_struct: Any, from_struct: Any) -> tuple[Any, Any]:
    make, codecs = record_type._make, record_type._codecs  # type: ignore[attr-defined]
    names = record_type.names

    def to_bytes(value: Any) -> bytes:
        record_type.check_rows([value])
        values = tuple(value.get(n) for n in names) if isinstance(value, dict) else tuple(value)
        return to_struct(values)

    if not any(c.is_coded for c in codecs):
        return to_bytes, lambda data: make(from_struct(data))
    return to_bytes, lambda data: make(_decoded_parts(codecs, from_struct(data)))


def _encoded_parts(codecs: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        v if c.encode is None or v is None else _encode(c.encode, v)
        for c, v in zip(codecs, values, strict=True)
    )


def _decoded_parts(codecs: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    return [v if c.decode is None or v is None else c.decode(v) for c, v in zip(codecs, values, strict=True)]
