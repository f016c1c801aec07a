"""The interfaces of formats: text formats decode whole lines and encode batches; every format opens a writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.formats.lines import LineDecoder, OpenValues


class FormatWriter(ABC):
    """Writes the records of one file into an open binary stream; the stream belongs to the caller."""

    @abstractmethod
    def write(self, columns: pa.RecordBatch) -> None:
        """Add records with exactly the writer's schema; may buffer."""

    @abstractmethod
    def size_bytes(self) -> int:
        """The approximate size of the file so far, buffered records included."""

    def flush(self) -> None:
        """Write buffered records to the stream, if the format allows it."""

    @abstractmethod
    def finish(self) -> None:
        """Write buffered records and the file's end; the last call."""


class TextFormat(ABC):
    """A format of one record per line: its files are split by bytes and read from any line on."""

    name: str
    extension: str
    """The extension of the files that the sink writes."""
    other_extensions: tuple[str, ...] = ()
    """Other extensions that a source recognises."""
    has_header: bool = False
    """Whether the first line of a file names its columns."""
    default_type: type | None = None
    """The type of the records if the user gives no schema; None: inferred from the first lines."""

    @abstractmethod
    def check_schema(self, schema: pa.Schema) -> None:
        """Raise `SchemaError` naming the first column that cannot be written in this format."""

    def check_read_schema(self, schema: pa.Schema) -> None:
        """Raise `SchemaError` naming the first column that cannot be read from files of this format."""
        self.check_schema(schema)

    @abstractmethod
    def file_columns(self, first_line: bytes, declared: Sequence[str]) -> list[str]:
        """The columns of a file in their order, from its first line if that is a header, else as declared."""

    @abstractmethod
    def decoder(
        self, schema: pa.Schema, columns: Sequence[str], dictionary_columns: Sequence[str] = ()
    ) -> LineDecoder:
        """Make the decoder of a file with these columns; it returns the schema's fields, in their order.

        The string columns named in `dictionary_columns` are dictionary-encoded.
        """

    def open_values(self) -> OpenValues | None:
        """Make the tracker of values that span lines; None if no value of this format can."""
        return None

    def prepare(self) -> None:
        """Do slow work that a process does once, such as imports; a slot calls it before records flow."""

    @abstractmethod
    def infer_schema(self, sample: bytes) -> pa.Schema:
        """The schema of some whole lines from the start of a file; all columns nullable."""

    @abstractmethod
    def encode(self, columns: pa.RecordBatch) -> bytes:
        """The records as lines; the last one ends with a newline too."""

    def header(self, schema: pa.Schema) -> bytes:
        """The bytes at the start of a file."""
        return b""

    def open_writer(self, stream: Any, schema: pa.Schema) -> FormatWriter:
        """Start a file in an open binary stream."""
        return _TextWriter(self, stream, schema)


class _TextWriter(FormatWriter):
    """Collects small batches and encodes them together, because each call of the encoder is expensive."""

    ENCODE_ROWS = 16_384
    ENCODE_BYTES = 4 << 20

    def __init__(self, text_format: TextFormat, stream: Any, schema: pa.Schema) -> None:
        self._format = text_format
        self._stream = stream
        self._schema = schema
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        header = text_format.header(schema)
        self._written = len(header)
        if header:
            stream.write(header)

    def write(self, columns: pa.RecordBatch) -> None:
        self._pending.append(columns)
        self._pending_rows += columns.num_rows
        self._pending_bytes += columns.nbytes
        if self._pending_rows >= self.ENCODE_ROWS or self._pending_bytes >= self.ENCODE_BYTES:
            self._encode()

    def size_bytes(self) -> int:
        return self._written + self._pending_bytes

    def flush(self) -> None:
        self._encode()
        self._stream.flush()

    def finish(self) -> None:
        self._encode()

    def _encode(self) -> None:
        if not self._pending:
            return
        one = self._pending[0] if len(self._pending) == 1 else pa.concat_batches(self._pending)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        text = self._format.encode(one)
        self._stream.write(text)
        self._written += len(text)


def refuse_column(format_name: str, field: pa.Field, reason: str) -> SchemaError:
    """The error for a column that a format cannot hold."""
    return SchemaError(f"column {field.name!r} is {field.type}, but {format_name} {reason}")


def check_no_nulls(columns: pa.RecordBatch, schema: pa.Schema) -> str | None:
    """A message about the first non-nullable column with a null, or None if there is none."""
    for field, column in zip(schema, columns.columns, strict=True):
        if not field.nullable and column.null_count:
            return f"field {field.name!r} is empty, but its type is {field.type} without null"
    return None


def as_dictionary(column: pa.Array) -> pa.Array:
    """A string column dictionary-encoded (values plain strings, indices int32)."""
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
