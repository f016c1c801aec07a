"""Parquet: columns in row groups, read and written with pyarrow."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.core.errors import ProgramError, SchemaError
from tidegate.formats.format import FormatWriter, refuse_column

BATCH_BYTES = 16 << 20
"""The approximate upper bound for a batch that is read from a file."""
_UNSURE_ROWS = 65_536
_DICTIONARY_ENCODINGS = ("RLE_DICTIONARY", "PLAIN_DICTIONARY")


class ParquetFormat:
    """Parquet files; one reader reads a row group at a time.

    >>> ParquetFormat(compression="zstd").describe()
    'parquet (zstd)'
    """

    name = "parquet"
    extension = "parquet"
    other_extensions = ("pq",)

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
        return f"{self.name} ({self.compression})"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse the few types that Parquet does not have, with the writer's reason."""
        for field in schema:
            try:
                pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
            except (pa.ArrowException, OSError) as e:
                raise refuse_column(
                    "Parquet", field, f"cannot hold it: {e}. Convert the column first."
                ) from None
        if len(schema) == 0:
            raise SchemaError("Parquet cannot hold records without any column")

    def check_read_schema(self, schema: pa.Schema) -> None:
        """Accept any schema: the reader compares it with each file."""

    def open_writer(self, stream: Any, schema: pa.Schema) -> FormatWriter:
        """Start a file in an open binary stream."""
        return _ParquetWriter(self, stream, schema)


class _ParquetWriter(FormatWriter):
    """Collects batches into whole row groups, and writes a row group when it is full."""

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
    """The columns that this row group stores as a small dictionary, so that reading them as one pays."""
    group = metadata.row_group(row_group)
    found = []
    for i in range(group.num_columns):
        column = group.column(i)
        if column.path_in_schema not in candidates:
            continue
        if not _has_dictionary(column):
            continue
        # A column that outgrew its dictionary continues in plain text; its size shows that.
        if column.total_uncompressed_size <= 4 * column.num_values + 1024:
            found.append(column.path_in_schema)
    return found


class GroupSize(NamedTuple):
    """The size in memory of the columns read from one row group, or from several adjacent ones."""

    numbers: tuple[int, ...]
    rows: int
    size: int
    """Approximate bytes."""
    sure: bool
    """False if memory holds values many times that the file stores once; `size` does not count those."""

    def and_next(self, other: GroupSize) -> GroupSize:
        """These row groups and the following ones together."""
        return GroupSize(
            self.numbers + other.numbers,
            self.rows + other.rows,
            self.size + other.size,
            self.sure and other.sure,
        )

    def rows_at_once(self, most: int) -> int:
        """How many rows to read at a time: at most `most`, fewer if rows are wide or may be."""
        if not self.sure:
            most = min(most, _UNSURE_ROWS)
        return max(1, min(most, BATCH_BYTES * self.rows // max(self.size, 1)))

    def is_one_batch(self, most: int) -> bool:
        """Whether all rows fit into one read."""
        return self.rows <= self.rows_at_once(most)


def group_size(metadata: pq.FileMetaData, row_group: int, schema: pa.Schema, encoded: list[str]) -> GroupSize:
    """The size of a row group whose columns `encoded` are read as dictionaries."""
    group = metadata.row_group(row_group)
    stored = dict.fromkeys(schema.names, 0)
    widths = {field.name: _width(field.type) for field in schema}
    sure = True
    for i in range(group.num_columns):
        column = group.column(i)
        name = column.path_in_schema
        if name not in stored:
            name = name.partition(".")[0]
        if name not in stored:
            continue
        stored[name] += column.total_uncompressed_size
        if not widths[name] and name not in encoded and _has_dictionary(column):
            sure = False
    # Numbers may take less space in the file than in memory.
    size = sum(max(stored[name], widths[name] * group.num_rows) for name in stored)
    return GroupSize((row_group,), group.num_rows, size, sure)


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # of no fixed width
        return 0


def _has_dictionary(column: pq.ColumnChunkMetaData) -> bool:
    return any(e in _DICTIONARY_ENCODINGS for e in column.encodings)
