"""Plain text: every line is a record, a bare string."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.formats.format import TextFormat, as_dictionary
from tidegate.formats.lines import LineDecoder, LinesRefused, LineTable
from tidegate.records.columns import rows_without_columns

_SCHEMA = pa.schema([pa.field("value", pa.string(), nullable=False)])


class TextLinesFormat(TextFormat):
    """Lines of UTF-8 text without their line ends, empty lines included; the records are `str`.

    >>> TextLinesFormat().encode(pa.record_batch({"value": ["a tide", ""]}))
    b'a tide\\n\\n'
    """

    name = "text"
    extension = "txt"
    default_type = str

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse anything but one string column."""
        if len(schema) != 1 or not _is_string(schema.field(0).type):
            columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
            raise SchemaError(
                f"a line of text is one string, but the records have {columns or 'no columns'}. "
                f"Use JSON, CSV or Parquet, or map them to str."
            )

    def check_read_schema(self, schema: pa.Schema) -> None:
        """Refuse a first column that is not a string; the other columns come from the path of the file."""
        self.check_schema(pa.schema(list(schema)[:1]))

    def file_columns(self, first_line: bytes, declared: Sequence[str]) -> list[str]:
        return list(declared)[:1]

    def decoder(
        self, schema: pa.Schema, columns: Sequence[str], dictionary_columns: Sequence[str] = ()
    ) -> LineDecoder:
        return _TextLinesDecoder(schema, dictionary=bool(dictionary_columns))

    def infer_schema(self, sample: bytes) -> pa.Schema:
        return _SCHEMA

    def encode(self, columns: pa.RecordBatch) -> bytes:
        """One line per string; refuses a string that could not be read back."""
        values = columns.column(0).to_pylist()
        for value in values:
            if value is None:
                raise SchemaError("a line of text cannot be None. Filter such records out first.")
            if "\n" in value or value.endswith("\r"):
                raise SchemaError(f"a line of text cannot hold a line break: {value[:80]!r}. Write JSON.")
        return "".join([f"{value}\n" for value in values]).encode()


class _TextLinesDecoder(LineDecoder):
    blank = None

    def __init__(self, schema: pa.Schema, *, dictionary: bool) -> None:
        self._schema = schema
        self._dictionary = dictionary

    def decode(self, chunk: bytes, lines: LineTable) -> pa.RecordBatch:
        try:
            text = chunk.decode("utf-8")
        except UnicodeDecodeError as e:
            raise LinesRefused(f"not UTF-8: {e.reason}") from None
        if not len(self._schema):
            return rows_without_columns(len(lines))
        values = text.split("\n")
        if not values[-1]:
            values.pop()
        if "\r" in text:
            values = [value.rstrip("\r") for value in values]
        column = pa.array(values, self._schema.field(0).type)
        if self._dictionary:
            return pa.RecordBatch.from_arrays([as_dictionary(column)], names=self._schema.names)
        return pa.RecordBatch.from_arrays([column], schema=self._schema)


def _is_string(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))
