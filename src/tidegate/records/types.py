"""Record types: what a record is in Python, what it is in Arrow, and the way between the two.

| written by the user                      | rows are                    | columns are                         |
|------------------------------------------|-----------------------------|-------------------------------------|
| `int`, `str`, `float`, `datetime`, ...   | bare values                 | one column `value`                  |
| a dataclass or `NamedTuple`              | its instances               | one per field                       |
| `tuple[int, str]`                        | tuples                      | `f0`, `f1`, ...                     |
| a `pyarrow.Schema` (or a source's own)   | `Row` tuples, by name too   | the schema's                        |
| nothing, or a type Arrow does not know   | any Python object           | one column `object` of pickles (slow) |

`record_type_of` chooses. Pickles exist only in the last form and only between the processes of one job.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.records.rows import row_class
from tidegate.records.type_hints import ColumnCodec, codec_for_hint, fields_of_class, identity_codec

VALUE = "value"
OBJECT = "object"


class RecordType(ABC):
    """The type of the records of a stream; immutable, picklable, compared by `schema` and Python type."""

    schema: pa.Schema
    is_object: bool = False
    """True where records travel as pickles because they have no Arrow type."""

    @abstractmethod
    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        """Convert columns (strings possibly dictionary-encoded) to Python objects."""

    @abstractmethod
    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Convert Python objects to columns of exactly `schema`; raise `SchemaError` naming column and value."""

    @abstractmethod
    def check_rows(self, rows: Sequence[Any]) -> None:
        """Raise `SchemaError` if a row is not an instance of the Python type (cheap; fields are not checked)."""

    @abstractmethod
    def describe(self) -> str:
        """The type in a few words, for the plan and for errors."""

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return list(self.schema.names)

    @property
    def estimated_row_bytes(self) -> int:
        """A guess at the bytes of one row, for buffers; exact only for fixed-width columns."""
        return sum(_width(f.type) for f in self.schema)

    def plain(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Give `columns` exactly the declared types (dictionaries decoded, string widths unified)."""
        if columns.schema.types == self.schema.types:
            return columns
        arrays = [
            c if c.type == f.type else c.cast(f.type)
            for c, f in zip(columns.columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def field_index(self, name: str, role: str) -> int:
        """Position of a column; an unknown name is refused with the columns that there are."""
        index = int(self.schema.get_field_index(name))
        if index < 0:
            raise SchemaError(f"{role} names column {name!r}, but the records have {', '.join(self.names)}")
        return index

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RecordType)
            and self.describe() == other.describe()
            and bool(self.schema.equals(other.schema))
        )

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.schema.names)))

    def __repr__(self) -> str:
        return f"<{self.describe()}>"


class ScalarType(RecordType):
    """Bare values in one column named `value`."""

    def __init__(self, python_type: type, codec: ColumnCodec, nullable: bool = False) -> None:
        self.python_type = python_type
        self._codec = codec
        self.schema = pa.schema([pa.field(VALUE, codec.arrow_type, nullable)])

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        """The values of the only column."""
        return column_values(columns.column(0), self._codec.decode)

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """One column of the values."""
        array = build_column(self.schema.field(0), rows, self._codec.encode)
        return pa.RecordBatch.from_arrays([array], schema=self.schema)

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Every value must be of the declared type (an int where a float is declared passes)."""
        extra: tuple[type, ...] = (int,) if self.python_type is float else ()
        if self.schema.field(0).nullable:
            extra += (type(None),)
        _check_classes(rows, (self.python_type, *extra), self.describe())

    def describe(self) -> str:
        """The Python type's name."""
        return getattr(self.python_type, "__name__", str(self.python_type))


class StructType(RecordType):
    """Instances of a dataclass or a NamedTuple; one column per field."""

    def __init__(self, python_class: type) -> None:
        self.python_class = python_class
        self._fields = fields_of_class(python_class)
        self._is_tuple = issubclass(python_class, tuple)
        self.schema = pa.schema([pa.field(f.name, f.codec.arrow_type, f.nullable) for f in self._fields])

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        """Instances of the class, made by calling it with the fields in order."""
        lists = [
            column_values(c, f.codec.decode) for c, f in zip(columns.columns, self._fields, strict=True)
        ]
        if self._is_tuple:
            make = self.python_class._make  # type: ignore[attr-defined]
            return list(map(make, zip(*lists, strict=True)))
        return list(map(self.python_class, *lists))

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """One column per field."""
        if self._is_tuple:
            columns: Iterable[Any] = zip(*rows, strict=True) if rows else ([] for _ in self._fields)
        else:
            columns = (list(map(attrgetter(f.name), rows)) for f in self._fields)
        arrays = [
            build_column(self.schema.field(i), values, self._fields[i].codec.encode)
            for i, values in enumerate(columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Every row must be an instance of the class."""
        _check_classes(rows, (self.python_class,), self.describe())

    def describe(self) -> str:
        """The class's name and fields."""
        return f"{self.python_class.__name__}({_describe_schema(self.schema)})"


class TupleType(RecordType):
    """Plain tuples of a fixed length; columns `f0`, `f1`, ..."""

    def __init__(self, codecs: Sequence[tuple[ColumnCodec, bool]]) -> None:
        self._codecs = [c for c, _ in codecs]
        self.schema = pa.schema(
            [pa.field(f"f{i}", c.arrow_type, nullable) for i, (c, nullable) in enumerate(codecs)]
        )

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        """Tuples of the column values."""
        lists = [column_values(c, k.decode) for c, k in zip(columns.columns, self._codecs, strict=True)]
        return list(zip(*lists, strict=True))

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """One column per tuple position."""
        self.check_rows(rows)
        columns: Iterable[Any] = zip(*rows, strict=True) if rows else ([] for _ in self._codecs)
        arrays = [
            build_column(self.schema.field(i), values, self._codecs[i].encode)
            for i, values in enumerate(columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Every row must be a tuple of the right length."""
        for row in rows:
            if not isinstance(row, tuple):
                _check_classes(rows, (tuple,), self.describe())
        if rows and set(map(len, rows)) != {len(self._codecs)}:
            bad = next(r for r in rows if len(r) != len(self._codecs))
            raise SchemaError(
                f"expected a {self.describe()} but got a tuple of length {len(bad)}: {brief(bad)}"
            )

    def describe(self) -> str:
        """The field types."""
        return f"tuple({', '.join(str(t) for t in self.schema.types)})"


class RowType(RecordType):
    """Rows of an Arrow schema: `Row` tuples whose fields are read by attribute, by name or by position."""

    def __init__(self, schema: pa.Schema) -> None:
        if len(set(schema.names)) != len(schema.names):
            raise SchemaError(f"column names must differ, got {', '.join(schema.names)}")
        self.schema = schema.remove_metadata()
        self._row = row_class(tuple(schema.names))

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        """`Row` tuples."""
        lists = [column_values(c, None) for c in columns.columns]
        if not lists:
            return [self._row._make(()) for _ in range(columns.num_rows)]
        return list(map(self._row._make, zip(*lists, strict=True)))

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """One column per field; rows may be tuples in the schema's order or dicts by name."""
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
        if not rows:
            return
        kind = dict if isinstance(rows[0], dict) else tuple
        width = len(self.schema)
        names = set(self.schema.names)
        for row in rows:
            if not isinstance(row, kind):
                raise SchemaError(
                    f"expected {self.describe()} but got a {type(row).__name__}: {brief(row)}"
                )
            if kind is tuple and len(row) != width:
                raise SchemaError(f"expected {self.describe()} but got {len(row)} fields: {brief(row)}")
            if kind is dict and not names.issuperset(row):
                raise SchemaError(
                    f"expected {self.describe()} but got unknown fields "
                    f"{', '.join(sorted(map(str, set(row) - names)))}: {brief(row)}"
                )

    def describe(self) -> str:
        """The columns with their types."""
        return f"Row({_describe_schema(self.schema)})"


class ObjectType(RecordType):
    """Any Python object, as a column of pickles when it leaves its process: slow, and `explain()` says so."""

    is_object = True
    schema = pa.schema([pa.field(OBJECT, pa.binary(), False)])

    def to_rows(self, columns: pa.RecordBatch) -> list[Any]:
        """Unpickle; the bytes come from an authenticated peer of the same job."""
        return list(map(pickle.loads, columns.column(0).to_pylist()))

    def to_columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Pickle each record; one that cannot be pickled is named."""
        try:
            values = [pickle.dumps(r, protocol=5) for r in rows]
        except Exception:
            for row in rows:
                try:
                    pickle.dumps(row, protocol=5)
                except Exception as e:
                    raise SchemaError(
                        f"a {type(row).__name__} cannot leave its process: {e}. Give the function a return "
                        f"type (a dataclass, NamedTuple, tuple or scalar) or return a picklable object: {brief(row)}"
                    ) from e
            raise
        return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=self.schema)

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Every object is welcome."""

    def describe(self) -> str:
        """How such records travel."""
        return "object (pickled)"


def record_type_of(hint: Any) -> RecordType:
    """Choose the record type for a type hint, a class, an Arrow schema or a RecordType; unknown: `ObjectType`."""
    if isinstance(hint, RecordType):
        return hint
    if isinstance(hint, pa.Schema):
        return RowType(hint)
    if isinstance(hint, pa.DataType):
        return ScalarType(object, identity_codec(hint), nullable=True)
    from tidegate.records import type_hints

    inner, nullable = type_hints.strip_optional(hint)
    if type_hints.is_struct_class(inner) and not nullable:
        return StructType(inner)
    args = type_hints.fixed_tuple_args(inner)
    if args is not None and not nullable:
        parts = [type_hints.strip_optional(a) for a in args]
        codecs = [codec_for_hint(a) for a, _ in parts]
        if all(c is not None for c in codecs):
            return TupleType([(c, n) for c, (_, n) in zip(codecs, parts, strict=True) if c is not None])
        return ObjectType()
    codec = codec_for_hint(inner)
    if codec is None:
        return ObjectType()
    return ScalarType(type_hints.runtime_class(inner), codec, nullable)


def infer_record_type(values: Sequence[Any]) -> RecordType:
    """Choose a record type from example values: all of one known class, or `ObjectType`."""
    classes = set(map(type, values))
    if not values or len(classes) != 1:
        return ObjectType()
    cls = classes.pop()
    if cls is dict and all(isinstance(k, str) for v in values for k in v):
        try:
            return RowType(pa.Table.from_pylist(list(values)).schema)
        except (pa.ArrowException, TypeError):
            return ObjectType()
    if cls is tuple:
        try:
            arrays = [pa.array(column) for column in zip(*values, strict=True)]
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return ObjectType()
        if any(pa.types.is_null(a.type) for a in arrays):
            return ObjectType()
        return TupleType([(identity_codec(a.type), a.null_count > 0) for a in arrays])
    return record_type_of(cls)


def column_values(column: pa.Array, decode: Callable[[Any], Any] | None) -> list[Any]:
    """The Python values of a column; dictionary-encoded ones share their objects."""
    if pa.types.is_dictionary(column.type) and column.null_count == 0:
        table = column.dictionary.to_pylist()
        values = [table[i] for i in column.indices.to_pylist()]
    else:
        values = column.to_pylist()
    return values if decode is None else [None if v is None else decode(v) for v in values]


def build_column(field: pa.Field, values: Sequence[Any], encode: Callable[[Any], Any] | None) -> pa.Array:
    """Make one column, or raise `SchemaError` naming the column and the first value that does not fit."""
    if encode is not None:
        values = [None if v is None else encode(v) for v in values]
    try:
        array = pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        for value in values:
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise SchemaError(
                    f"column {field.name!r} is {field.type} but got a {type(value).__name__}: {brief(value)}"
                ) from None
        raise SchemaError(f"column {field.name!r} ({field.type}): {e}") from e
    if array.null_count and not field.nullable:
        raise SchemaError(
            f"column {field.name!r} is {field.type} without None, but got None. "
            f"Declare it Optional if None is meant"
        )
    return array


def brief(value: Any, limit: int = 120) -> str:
    """A value's repr, cut to a line."""
    try:
        text = repr(value)
    except Exception as e:
        text = f"<{type(value).__name__} whose repr raises {type(e).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _check_classes(rows: Sequence[Any], classes: tuple[type, ...], wanted: str) -> None:
    if object in classes:
        return
    for found in set(map(type, rows)):
        if not issubclass(found, classes) or (found is bool and bool not in classes):
            bad = next(r for r in rows if type(r) is found)
            raise SchemaError(f"expected {wanted} but got a {found.__name__}: {brief(bad)}")


def _describe_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name}: {f.type}{'?' if f.nullable else ''}" for f in schema)


def _width(data_type: pa.DataType) -> int:
    try:
        return max(1, data_type.bit_width // 8)
    except ValueError:
        return 32
