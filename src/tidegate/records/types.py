"""Record types: what a record is in Python, what it is in Arrow, and the conversions between the two.

| written by the user                      | rows are                    | columns are                         |
|------------------------------------------|-----------------------------|-------------------------------------|
| `int`, `str`, `float`, `datetime`, ...   | bare values                 | one column `value`                  |
| an `Enum`, a `UUID`, a numpy scalar      | the same                    | one column `value`, plainer         |
| a dataclass, a `NamedTuple`, a model     | its instances               | one per field                       |
| a `TypedDict`                            | dicts                       | one per field                       |
| `tuple[int, str]`                        | tuples                      | `f0`, `f1`, ...                     |
| a `pyarrow.Schema` (or a source's own)   | `Row` tuples, by name too   | the schema's                        |
| nothing, or a type Arrow does not know   | any Python object           | one column `object` of pickles (slow) |

`record_type_of` chooses. Pickles exist only in the last form and only between the processes of one job.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.core.words import a_or_an, kind_of
from tidegate.records import type_hints
from tidegate.records.columns import brief as brief
from tidegate.records.columns import build_column
from tidegate.records.columns import column_values as column_values
from tidegate.records.packed_rows import RowPacker
from tidegate.records.plain_types import plain_schema, plain_type
from tidegate.records.record_classes import record_class_of
from tidegate.records.rows import row_class
from tidegate.records.type_hints import ColumnCodec, codec_for_hint, fields_of_class, identity_codec
from tidegate.records.value_codecs import Canonical, conversions_of

VALUE = "value"
OBJECT = "object"


class RecordType(ABC):
    """The type of the records of a stream; immutable, picklable, compared by `schema` and Python type."""

    schema: pa.Schema
    is_object: bool = False
    """Whether records are sent as pickles, because they have no Arrow type."""
    is_mutable: bool = False
    """Whether a record itself can be changed in place, apart from the objects inside it."""
    coded: frozenset[str] = frozenset()
    """Columns whose values differ from those of the rows: an Enum member is its value there."""
    canonical: Mapping[str, Canonical] = MappingProxyType({})
    """The canonical forms of columns by name, for columns that others wrote: see `records/canonical.py`."""

    @abstractmethod
    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        """Convert columns (strings possibly dictionary-encoded) to Python objects."""

    @abstractmethod
    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Convert Python objects to columns of exactly `schema`; a `SchemaError` names the column and the value."""

    @abstractmethod
    def check_rows(self, rows: Sequence[Any]) -> None:
        """Raise `SchemaError` if a row is not an instance of the Python type (cheap; fields are not checked)."""

    @abstractmethod
    def describe(self) -> str:
        """The type in a few words, for the plan and for errors."""

    @property
    def can_be_shared(self) -> bool:
        """Whether two holders may share a record: neither it nor anything inside it can be changed."""
        return not self.is_mutable and not any(pa.types.is_nested(field.type) for field in self.schema)

    @property
    def in_columns(self) -> RecordType:
        """The type whose rows have the values of the columns of this type."""
        return RowType(self.schema) if self.coded else self

    def as_in_columns(self, row: Any) -> Any:
        """A record of this type as one of the type `in_columns`."""
        return row

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return list(self.schema.names)

    @cached_property
    def estimated_row_bytes(self) -> int:
        """A guess at the bytes of one row, for buffers; exact only for fixed-width columns."""
        return sum(_width(f.type) for f in self.schema)

    @cached_property
    def packer(self) -> RowPacker | None:
        """Packs rows for the wire; None if they must be sent as columns."""
        return None

    def plain(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Give `columns` exactly the declared schema (dictionaries decoded, string widths unified)."""
        if columns.schema.equals(self.schema):
            return columns
        arrays = [
            c if c.type == f.type else c.cast(f.type)
            for c, f in zip(columns.columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def field_index(self, name: str, role: str) -> int:
        """The position of a column; the error for an unknown name lists the columns."""
        if not isinstance(name, str):
            raise SchemaError(f"{role} needs the name of one column, got {kind_of(name)}: {brief(name)}")
        index = int(self.schema.get_field_index(name))
        if index < 0:
            near = get_close_matches(name, self.names, n=1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise SchemaError(
                f"{role} names column {name!r}, but the records have {', '.join(self.names)}{hint}"
            )
        return index

    @property
    def class_name(self) -> str:
        """The name of the Python class of the records, where the columns alone do not tell it.

        Not the class: one that a script defines is another object in each process that unpickles it.
        """
        return ""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RecordType)
            and type(other) is type(self)
            and self.class_name == other.class_name
            and bool(self.schema.equals(other.schema))
        )

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.schema.names)))

    def __repr__(self) -> str:
        return f"<{self.describe()}>"


def _canonical(codecs: Iterable[tuple[str, ColumnCodec]]) -> dict[str, Canonical]:
    return {name: codec.canonical for name, codec in codecs if codec.canonical is not None}


class ScalarType(RecordType):
    """Bare values in one column named `value`."""

    def __init__(self, python_type: type, codec: ColumnCodec, nullable: bool = False) -> None:
        self.python_type = python_type
        self._codec = codec
        self.schema = pa.schema([pa.field(VALUE, codec.arrow_type, nullable)])
        self.coded = frozenset((VALUE,)) if codec.is_coded else frozenset()
        self.canonical = _canonical([(VALUE, codec)])

    @property
    def in_columns(self) -> RecordType:
        field = self.schema.field(0)
        plain: type = {pa.string(): str, pa.int64(): int}.get(field.type, object)
        return ScalarType(plain, identity_codec(field.type), field.nullable) if self.coded else self

    def as_in_columns(self, row: Any) -> Any:
        encode = self._codec.encode
        return row if row is None or encode is None else encode(row)

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        return column_values(columns.column(0), self._codec.decode)

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        array = build_column(self.schema.field(0), rows, self._codec.encode)
        return pa.RecordBatch.from_arrays([array], schema=self.schema)

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Every value must be of the declared type (an int is accepted as a float)."""
        extra: tuple[type, ...] = (int,) if self.python_type is float else ()
        if self.schema.field(0).nullable:
            extra += (type(None),)
        _check_classes(rows, (self.python_type, *extra), self)

    @property
    def class_name(self) -> str:
        return self.python_type.__name__

    def describe(self) -> str:
        plain = self.python_type in (object, list, dict)
        name = str(self.schema.field(0).type) if plain else self.python_type.__name__
        return f"{name} | None" if self.schema.field(0).nullable else name


class StructType(RecordType):
    """Records of a class with typed fields (see `record_classes`); one column per field."""

    def __init__(self, python_class: type) -> None:
        record_class = record_class_of(python_class)
        assert record_class is not None
        self.python_class = python_class
        self.record_class = record_class
        self._fields = fields_of_class(record_class)
        self.is_mutable = not record_class.is_frozen
        self.coded = frozenset(f.name for f in self._fields if f.codec.is_coded)
        self.canonical = _canonical((f.name, f.codec) for f in self._fields)
        self.schema = pa.schema([pa.field(f.name, f.codec.arrow_type, f.nullable) for f in self._fields])

    def __reduce__(self) -> Any:
        return StructType, (self.python_class,)

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        lists = [
            column_values(c, f.codec.decode, f.name)
            for c, f in zip(columns.columns, self._fields, strict=True)
        ]
        return list(map(self.record_class.make, *lists))

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        self.check_rows(rows)
        arrays = [
            build_column(self.schema.field(i), values, self._fields[i].codec.encode)
            for i, values in enumerate(self.record_class.columns(rows))
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Every row must be of exactly this class: an exchange would turn a subclass into it."""
        of = self.record_class
        if not _all_of(of.row_class, rows):
            bad = next(r for r in rows if type(r) is not of.row_class)
            raise SchemaError(f"expected {self.describe()} but got {kind_of(bad)}: {brief(bad)}")
        if of.says_all:
            return
        for row in rows:
            if reason := of.refusal(row):
                raise SchemaError(f"expected {self.describe()} but got a record {reason}: {brief(row)}")

    def as_in_columns(self, row: Any) -> Any:
        return _in_columns([f.codec for f in self._fields], self.record_class.values(row))

    @property
    def exact_class(self) -> type | None:
        """The class all of whose instances are valid records; None if the class alone does not tell."""
        return self.record_class.row_class if self.record_class.says_all else None

    @property
    def class_name(self) -> str:
        return self.python_class.__name__

    def describe(self) -> str:
        return f"{self.python_class.__name__}({_describe_schema(self.schema)})"


class TupleType(RecordType):
    """Plain tuples of a fixed length; columns `f0`, `f1`, ..."""

    def __init__(self, codecs: Sequence[tuple[ColumnCodec, bool]]) -> None:
        self._codecs = [c for c, _ in codecs]
        self.schema = pa.schema(
            [pa.field(f"f{i}", c.arrow_type, nullable) for i, (c, nullable) in enumerate(codecs)]
        )
        self.coded = frozenset(f"f{i}" for i, (c, _) in enumerate(codecs) if c.is_coded)
        self.canonical = _canonical((f"f{i}", c) for i, (c, _) in enumerate(codecs))

    @cached_property
    def packer(self) -> RowPacker | None:
        return None if self.coded else RowPacker.of(self.schema)

    def as_in_columns(self, row: Any) -> Any:
        return _in_columns(self._codecs, row)

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        lists = [column_values(c, k.decode) for c, k in zip(columns.columns, self._codecs, strict=True)]
        return list(zip(*lists, strict=True))

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        columns = self._transposed(rows)
        arrays = [
            build_column(self.schema.field(i), values, self._codecs[i].encode)
            for i, values in enumerate(columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _transposed(self, rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
        # Checks what check_rows does, without an extra pass: a strict zip finds rows of another length.
        if rows and _all_of(tuple, rows):
            try:
                columns = list(zip(*rows, strict=True))
            except ValueError:
                columns = []
            if len(columns) == len(self._codecs):
                return columns
        self.check_rows(rows)
        return list(zip(*rows, strict=True)) if rows else [()] * len(self._codecs)

    def check_rows(self, rows: Sequence[Any]) -> None:
        length = len(self._codecs)
        for row in rows:  # one loop is faster than two passes of C code, which fetch every row twice
            if type(row) is not tuple or len(row) != length:
                break
        else:
            return
        _check_classes(rows, (tuple,), self)
        if list(map(len, rows)).count(len(self._codecs)) != len(rows):
            bad = next(r for r in rows if len(r) != len(self._codecs))
            raise SchemaError(
                f"expected {a_or_an(self.describe())} but got a tuple of length {len(bad)}: {brief(bad)}"
            )

    def describe(self) -> str:
        return f"tuple({', '.join(f'{f.type}{_mark(f)}' for f in self.schema)})"


class RowType(RecordType):
    """Rows of an Arrow schema: `Row` tuples whose fields are read by attribute, by name or by position."""

    def __init__(self, schema: pa.Schema) -> None:
        if len(set(schema.names)) != len(schema.names):
            raise SchemaError(f"column names must differ, got {', '.join(schema.names)}")
        self.schema = plain_schema(schema)
        self._row = row_class(tuple(schema.names))
        self._make = partial(tuple.__new__, self._row)
        self._codecs = [identity_codec(field.type) for field in self.schema]

    def __reduce__(self) -> Any:
        return RowType, (self.schema,)

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        lists = [
            column_values(c, codec.decode, name)
            for c, codec, name in zip(columns.columns, self._codecs, columns.schema.names, strict=True)
        ]
        if not lists:
            return [self._make(()) for _ in range(columns.num_rows)]
        return list(map(self._make, zip(*lists, strict=True)))

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Rows may be tuples in the order of the schema, or dicts by name."""
        self.check_rows(rows)
        names = self.schema.names
        if rows and isinstance(rows[0], dict):
            columns: Iterable[Any] = ([row.get(n) for row in rows] for n in names)
        else:
            columns = zip(*rows, strict=True) if rows else ([] for _ in names)
        arrays = [build_column(self.schema.field(i), values, None) for i, values in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Every row must be a tuple with as many fields as the schema, or every row a dict with its names."""
        if not rows or _all_of(self._row, rows):
            return
        kind = dict if isinstance(rows[0], dict) else tuple
        width = len(self.schema)
        names = set(self.schema.names)
        for row in rows:
            if not isinstance(row, kind):
                raise SchemaError(f"expected {self.describe()} but got {kind_of(row)}: {brief(row)}")
            if kind is tuple and len(row) != width:
                raise SchemaError(f"expected {self.describe()} but got {len(row)} fields: {brief(row)}")
            if kind is dict and not names.issuperset(row):
                raise SchemaError(
                    f"expected {self.describe()} but got unknown fields "
                    f"{', '.join(sorted(map(str, set(row) - names)))}: {brief(row)}"
                )

    def describe(self) -> str:
        return f"Row({_describe_schema(self.schema)})"


def projected(record_type: RecordType, names: Sequence[str]) -> RowType:
    """Some columns of a type, as `Row` records."""
    return RowType(pa.schema([record_type.schema.field(name) for name in names]))


class ObjectType(RecordType):
    """Any Python object, pickled when it leaves its process: slow, and `explain()` says so."""

    is_object = True
    is_mutable = True
    schema = pa.schema([pa.field(OBJECT, pa.binary(), False)])

    def __init__(self, because: str = "") -> None:
        self.because = because
        """Why the declared or inferred type has no columns; empty if there was none."""

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        """Unpickle; the bytes come from an authenticated peer of the same job."""
        return list(map(pickle.loads, columns.column(0).to_pylist()))

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Pickle each record; the error names one that cannot be pickled."""
        try:
            values = [pickle.dumps(r, protocol=5) for r in rows]
        except Exception:  # noqa: BLE001 - a user's class may raise anything while it is pickled
            values = list(map(_pickled, rows))
        return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=self.schema)

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Accepts every object."""

    def describe(self) -> str:
        return "object (pickled)"


def _pickled(row: Any) -> bytes:
    # Plain pickle cannot import a class of the user's script; cloudpickle pickles it by value.
    try:
        return bytes(cloudpickle.dumps(row, protocol=5))
    except Exception as e:
        raise SchemaError(
            f"{kind_of(row)} cannot leave its process: {e}. Give the function a return "
            f"type (a dataclass, NamedTuple, tuple or scalar) or return a picklable object: {brief(row)}"
        ) from e


def record_type_of(hint: object) -> RecordType:
    """Choose the record type for a type hint, a class, an Arrow schema or a RecordType; unknown: `ObjectType`."""
    if isinstance(hint, RecordType):
        return hint
    if isinstance(hint, pa.Schema):
        return RowType(hint)
    if isinstance(hint, pa.DataType):
        return ScalarType(object, identity_codec(plain_type(hint)), nullable=True)
    inner, nullable = type_hints.split_optional(type_hints.resolve_alias(hint))
    inner = type_hints.resolve_alias(inner)
    if type_hints.is_struct_class(inner) and not nullable:
        return StructType(inner)
    args = type_hints.fixed_tuple_args(inner)
    if args is not None and not nullable:
        parts = [type_hints.split_optional(a) for a in args]
        codecs = [codec_for_hint(a) for a, _ in parts]
        if all(c is not None for c in codecs):
            return TupleType([(c, n) for c, (_, n) in zip(codecs, parts, strict=True) if c is not None])
        return ObjectType(type_hints.why_no_column(inner))
    codec = codec_for_hint(inner)
    if codec is None:
        return ObjectType(type_hints.why_no_column(inner))
    return ScalarType(type_hints.runtime_class(inner), codec, nullable)


def infer_record_type(values: Sequence[Any]) -> RecordType:
    """Choose a record type from example values: all of one known class, or `ObjectType`.

    Dicts become rows, and tuples of one length become tuples, if every value comes back from Arrow as it was. Plain
    values may include None, and integers (up to 2**53) among floats become floats.

    >>> infer_record_type([1, 2.5, None]).describe()
    'float | None'
    >>> infer_record_type([1, "a"]).describe()
    'object (pickled)'
    """
    classes = set(map(type, values))
    if not classes:
        return ObjectType()
    if len(classes) != 1:
        return _mixed_type(values, classes)
    cls = classes.pop()
    if cls is dict:
        names = list(dict.fromkeys(name for v in values for name in v))
        if not names or not all(isinstance(name, str) for name in names):
            return ObjectType("the keys of its dicts are not all text")
        fields = []
        for name in names:
            column = [v.get(name) for v in values]
            found = _inferred_type(column)
            if found is None:
                return ObjectType(
                    f"the values of {name!r} ({_classes_of(column)}) have no Arrow type in a dict"
                )
            fields.append(pa.field(name, found))
        return RowType(pa.schema(fields))
    if cls is tuple:
        if len(set(map(len, values))) != 1 or not values[0]:
            return ObjectType("its tuples have different lengths")
        codecs = [_inferred_codec(column) for column in zip(*values, strict=True)]
        for i, codec in enumerate(codecs):
            if codec is None:
                return ObjectType(
                    f"the values at position {i} ({_classes_of([v[i] for v in values])}) have no Arrow type"
                )
        return TupleType([codec for codec in codecs if codec is not None])
    return record_type_of(cls)


def _mixed_type(values: Sequence[Any], classes: set[type]) -> RecordType:
    """The type of plain values with None, or of integers among floats."""
    mixture = ObjectType(f"its values are of several classes: {_classes_of(values)}")
    rest = classes - {type(None)}
    if rest == {int, float}:
        if _inferred_type(values) is None:  # integers that a float cannot hold
            return mixture
        rest = {float}
    if len(rest) != 1:
        return mixture
    cls = rest.pop()
    record_type = record_type_of(cls | None if type(None) in classes else cls)
    if record_type.is_object or pa.types.is_nested(record_type.schema.field(0).type):
        return mixture
    try:
        record_type.to_columns(values)
    except SchemaError:  # times with a time zone
        return mixture
    return record_type


def _inferred_codec(values: Sequence[Any]) -> tuple[ColumnCodec, bool] | None:
    """The column of these values, and whether None is among them."""
    found = _inferred_type(values)
    if found is not None and not any(isinstance(v, np.generic) for v in values):
        return identity_codec(found), None in values
    classes = set(map(type, values)) - {type(None)}
    converted = conversions_of(classes.pop()) if len(classes) == 1 else None
    return None if converted is None else (ColumnCodec(*converted), None in values)


def _classes_of(values: Sequence[Any]) -> str:
    return ", ".join(sorted({type(v).__name__ for v in values})[:5])


def _inferred_type(values: Sequence[Any]) -> pa.DataType | None:
    """The type that Arrow infers for these values, or None if they would not come back equal.

    A numpy number comes back as a Python number.
    """
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if pa.types.is_null(array.type) or isinstance(array.type, pa.BaseExtensionType):
        return None
    made = identity_codec(array.type).decode
    for before, after in zip(values, column_values(array, made), strict=True):
        plain = before.item() if isinstance(before, np.generic) else before
        same = type(plain) is type(after) or (type(plain) is int and type(after) is float)
        if not same or not (plain == after or plain != plain):
            return None
    return array.type


def _in_columns(codecs: Sequence[ColumnCodec], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        v if v is None or c.encode is None else c.encode(v) for c, v in zip(codecs, values, strict=True)
    )


def _check_classes(rows: Sequence[Any], classes: tuple[type, ...], wanted: RecordType) -> None:
    if object in classes or _all_of(classes[0], rows):
        return
    for found in set(map(type, rows)):
        if not issubclass(found, classes) or (found is bool and bool not in classes):
            bad = next(r for r in rows if type(r) is found)
            raise SchemaError(f"expected {wanted.describe()} but got {a_or_an(found.__name__)}: {brief(bad)}")


def _all_of(cls: type, rows: Sequence[Any]) -> bool:
    # Counting in a list is twice as fast as building a set.
    return list(map(type, rows)).count(cls) == len(rows)


def _describe_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name}: {f.type}{_mark(f)}" for f in schema)


def _mark(field: pa.Field) -> str:
    return "?" if field.nullable else ""


def _width(data_type: pa.DataType) -> int:
    try:
        return max(1, data_type.bit_width // 8)
    except ValueError:
        return 32
