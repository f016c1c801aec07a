"""Parquet: columns in row groups, read and written with pyarrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.core.errors import ProgramError, SchemaError
from tidegate.formats.format import FormatWriter, refuse_column

BATCH_BYTES = 16 << 20
"""A batch that is read from a file is not made larger than about this."""
_DICTIONARY_ENCODINGS = ("RLE_DICTIONARY", "PLAIN_DICTIONARY")


class ParquetFormat:
    """Parquet files; a row group is what one reader reads at a time.

    >>> ParquetFormat(compression="zstd").describe()
    'parquet (zstd)'
    """

    name = "parquet"
    extension = "parquet"

    def __init__(self, *, compression: str = "snappy", row_group_rows: int = 262_144) -> None:
        if row_group_rows < 1:
            raise ProgramError(f"row_group_rows must be at least 1, got {row_group_rows}")
        if compression != "none" and not pa.Codec.is_available(compression):
            raise ProgramError(
                f"there is no compression {compression!r}. Use snappy, zstd, gzip, lz4 or none."
            )
        self.compression = compression
        self.row_group_rows = row_group_rows

    def describe(self) -> str:
        """The format and its compression."""
        return f"{self.name} ({self.compression})"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse the few types that Parquet does not have."""
        for field in schema:
            if pa.types.is_union(field.type) or pa.types.is_float16(field.type):
                raise refuse_column("Parquet", field, "has no such type. Convert the column first.")
        if len(schema) == 0:
            raise SchemaError("Parquet cannot hold records without any column")

    def open_writer(self, stream: Any, schema: pa.Schema) -> FormatWriter:
        """Start a file in an open binary stream."""
        return _ParquetWriter(self, stream, schema)


class _ParquetWriter(FormatWriter):
    """Collects batches to whole row groups; nothing of a row group is in the stream before it is full."""

    ROW_GROUP_BYTES = 64 << 20

    def __init__(self, parquet: ParquetFormat, stream: Any, schema: pa.Schema) -> None:
        self._rows_limit = parquet.row_group_rows
        self._stream = stream
        self._schema = schema
        self._writer = pq.ParquetWriter(stream, schema, compression=parquet.compression)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def write(self, columns: pa.RecordBatch) -> None:
        self._pending.append(columns)
        self._pending_rows += columns.num_rows
        self._pending_bytes += columns.nbytes
        while self._pending_rows >= self._rows_limit or self._pending_bytes >= self.ROW_GROUP_BYTES:
            self._write_group()

    def size_bytes(self) -> int:
        return int(self._stream.tell()) + self._pending_bytes

    def finish(self) -> None:
        while self._pending_rows:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._pending, self._schema)
        rows = min(self._rows_limit, table.num_rows)
        self._writer.write_table(table.slice(0, rows), row_group_size=rows)
        rest = table.slice(rows)
        self._pending = rest.to_batches()
        self._pending_rows = rest.num_rows
        self._pending_bytes = rest.nbytes if rest.num_rows else 0


def dictionary_columns(metadata: pq.FileMetaData, row_group: int, candidates: list[str]) -> list[str]:
    """The columns that this row group stores as a dictionary that pays: few distinct values, so small indices."""
    group = metadata.row_group(row_group)
    found = []
    for i in range(group.num_columns):
        column = group.column(i)
        if column.path_in_schema not in candidates:
            continue
        if not any(e in _DICTIONARY_ENCODINGS for e in column.encodings):
            continue
        # A column that outgrew its dictionary goes on in plain text; that shows in its size.
        if column.total_uncompressed_size <= 4 * column.num_values + 1024:
            found.append(column.path_in_schema)
    return found


def rows_at_once(metadata: pq.FileMetaData, row_group: int, schema: pa.Schema, most: int) -> int:
    """How many rows of a row group to read at a time: at most that many, fewer where rows are wide."""
    group = metadata.row_group(row_group)
    stored = dict.fromkeys(schema.names, 0)
    for i in range(group.num_columns):
        column = group.column(i)
        name = column.path_in_schema.partition(".")[0]
        if name in stored:
            stored[name] += column.total_uncompressed_size
    # Numbers may be stored in less than they take in memory.
    size = sum(max(stored[field.name], _width(field.type) * group.num_rows) for field in schema)
    if not size or not group.num_rows:
        return most
    return max(1, min(most, BATCH_BYTES * group.num_rows // size))


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # of no fixed width
        return 0


def reader_schema(file_schema: pa.Schema) -> pa.Schema:
    """The schema of the records of a Parquet file: dictionaries are how it is stored, not what it is."""
    fields = []
    for field in file_schema:
        data_type = field.type
        if pa.types.is_dictionary(data_type):
            data_type = data_type.value_type
        fields.append(pa.field(field.name, data_type, field.nullable))
    return pa.schema(fields)
