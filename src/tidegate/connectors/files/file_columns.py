"""The columns of one file: those stored in it, those named by its directories, and those that are null.

A directory `dt=2024-01-01` is a column of all files below it, as Hive and Spark write them, if it is below the path
that the user gave (or below `base_path`): moving the whole tree changes nothing. It replaces a column of that name in
the file. A nullable column that neither the path nor the file has is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.formats import CsvFormat
from tidegate.formats.lines import LinesRefused, LineTable
from tidegate.records.value_codecs import Canonical

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""The directory name that Hive and Spark give to records without a value."""
_CODES: Final = pa.int16()
_MOST_TEXTS: Final = 4_096
_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def path_values(path: str) -> dict[str, str | None]:
    """The columns named by the directories of a path, outermost first; None is null.

    >>> path_values("/data/dt=2024-01-31/place=S%C3%A3o%20Paulo/part-0-0.json")
    {'dt': '2024-01-31', 'place': 'São Paulo'}
    """
    found: dict[str, str | None] = {}
    for directory in path.split("/")[:-1]:
        name, equals, value = directory.partition("=")
        if not name or not equals:
            continue
        found[unquote(name)] = None if value == NULL else unquote(value)
    return found


def infer_path_fields(paths: Iterable[str]) -> list[pa.Field]:
    """The fields named by the directories of some files: integers, dates, or else strings; all nullable."""
    values: dict[str, list[str]] = {}
    for path in paths:
        for name, value in path_values(path).items():
            values.setdefault(name, []).extend([] if value is None else [value])
    fields = []
    for name, texts in values.items():
        kind = pa.string()
        if texts and all(map(_WHOLE.fullmatch, texts)):
            kind = pa.int64()
        elif texts and all(_DATE.fullmatch(t) and _is(pa.date32(), t) for t in texts):
            kind = pa.date32()
        fields.append(pa.field(name, kind))
    return fields


def _is(kind: pa.DataType, text: str) -> bool:
    try:
        return _converted(text, pa.field("value", kind)) is not None
    except SchemaError:
        return False


class ColumnTexts:
    """The values that one reader has seen in paths, by column; all its batches share one growing dictionary."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def repeat(self, name: str, text: str, rows: int) -> pa.Array:
        """A dictionary column that repeats one text."""
        texts = self._texts.setdefault(name, [])
        if text not in texts:
            if len(texts) == _MOST_TEXTS:
                texts.clear()
            texts.append(text)
        codes = pa.repeat(pa.scalar(texts.index(text), _CODES), rows)
        return pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string()))


class FileColumns:
    """The columns of one file: those to read from it, and those that are constant in it."""

    def __init__(self, schema: pa.Schema, same: Mapping[str, pa.Scalar], texts: ColumnTexts) -> None:
        self.schema = schema
        self.stored = pa.schema([field for field in schema if field.name not in same])
        """The part of the schema that is read from the file."""
        self._same = same
        self._texts = texts

    def complete(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Add the constant columns to those that were read, in the order of the schema."""
        if not self._same:
            return columns
        arrays, fields = [], []
        for field in self.schema:
            if field.name in self._same:
                array = self._repeated(field, columns.num_rows)
            else:
                array = columns.column(field.name)
            arrays.append(array)
            fields.append(pa.field(field.name, array.type, field.nullable))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _repeated(self, field: pa.Field, rows: int) -> pa.Array:
        value = self._same[field.name]
        if not value.is_valid:
            return pa.nulls(rows, field.type)
        if pa.types.is_string(field.type):
            return self._texts.repeat(field.name, value.as_py(), rows)
        return pa.repeat(value, rows)


def file_columns(
    schema: pa.Schema,
    canonical: Mapping[str, Canonical],
    declared: Sequence[str],
    in_path: Mapping[str, str | None],
    in_file: Sequence[str],
    texts: ColumnTexts,
) -> FileColumns:
    """Divide the columns to read between path and file; raises `SchemaError` if a required column is in neither.

    `declared`: all columns of the records; the schema may have only some of them. `canonical`: the canonical forms, by
    column.
    """
    expected = [name for name in declared if name not in in_path]
    if expected and not any(name in in_file for name in expected):
        raise SchemaError(
            f"it has none of the columns {', '.join(expected)}; its columns are {', '.join(in_file)}"
        )
    same: dict[str, pa.Scalar] = {}
    for field in schema:
        if field.name in in_path:
            same[field.name] = _path_value(in_path[field.name], field, canonical.get(field.name))
        elif field.name not in in_file:
            if not field.nullable:
                raise SchemaError(
                    f"there is no column {field.name!r}; the columns are {', '.join(in_file)}. "
                    f"Declare it Optional if files may be without it. If a directory of the path that was given names "
                    f"it, set base_path."
                )
            same[field.name] = pa.scalar(None, field.type)
    return FileColumns(schema, same, texts)


def _path_value(text: str | None, field: pa.Field, form: Canonical | None) -> pa.Scalar:
    if text is None:
        if not field.nullable:
            raise SchemaError(
                f"the path says that column {field.name!r} is null, but it is declared without None. "
                f"Declare it Optional."
            )
        return pa.scalar(None, field.type)
    value = _converted(text, field)
    if form is None:
        return value
    try:
        return pa.scalar(form.of_value(value.as_py()), field.type)
    except SchemaError as e:
        raise SchemaError(f"the path says that column {field.name!r} is {text!r}: {e}") from None


def _converted(text: str, field: pa.Field) -> pa.Scalar:
    """The value in a directory's name as a scalar of the declared type, parsed like a CSV value."""
    if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
        return pa.scalar(text, field.type)
    wanted = pa.schema([pa.field(field.name, field.type, nullable=False)])
    csv: Any = CsvFormat(header=False)
    try:
        csv.check_schema(wanted)
        line = f"{text}\n".encode()
        return csv.decoder(wanted, wanted.names).decode(line, LineTable(line)).column(0)[0]
    except (LinesRefused, SchemaError) as e:
        raise SchemaError(
            f"the path says that column {field.name!r} is {text!r}, but it is declared as {field.type}: {e}"
        ) from None
