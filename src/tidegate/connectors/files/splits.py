"""Splits of files: a range of bytes of a text file, or some row groups of a Parquet file, with a position."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.api.source import SourceSplit
from tidegate.connectors.files.paths import FoundFile, InputFileError, Location

COMPRESSIONS = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd", "bz2": "bz2", "lz4": "lz4"}


INT96_UNIT = "us"
"""The unit for INT96 timestamps, which Spark writes: nanoseconds could not hold the year 1600."""


class TextSplit(SourceSplit, frozen=True, kw_only=True):
    """The lines of a file that start in a range of its bytes (of the uncompressed bytes, if it is compressed)."""

    path: str
    size: int
    mtime_ns: int
    start: int
    end: int | None
    """First byte after the range; None: the range goes to the end of a compressed file."""
    position: int | None = None
    """Where the next line starts; None before the first read."""


class ParquetSplit(SourceSplit, frozen=True, kw_only=True):
    """Some adjacent row groups of a Parquet file."""

    path: str
    size: int
    mtime_ns: int
    first_group: int
    end_group: int
    first_row: int
    """The row number in the file at which the first row group starts."""
    position: int = 0
    """How many rows of the split were read."""


def compression_of(path: str) -> str | None:
    """The compression that a file's extension names."""
    return COMPRESSIONS.get(path.rpartition(".")[2].lower())


def text_splits(file: FoundFile, split_size: int) -> Iterator[TextSplit]:
    """The splits of a text file; a compressed one cannot be divided."""
    if file.size == 0:
        return
    if compression_of(file.path) is not None:
        yield TextSplit(
            id=file.path, path=file.path, size=file.size, mtime_ns=file.mtime_ns, start=0, end=None
        )
        return
    # Equal parts: a last split of a few bytes would cost as much to assign as a large one.
    count = max(1, round(file.size / split_size))
    for i in range(count):
        start, end = file.size * i // count, file.size * (i + 1) // count
        if start == end:
            continue
        yield TextSplit(
            id=f"{file.path}@{start}",
            path=file.path,
            size=file.size,
            mtime_ns=file.mtime_ns,
            start=start,
            end=end,
        )


def parquet_splits(location: Location, file: FoundFile, split_size: int) -> Iterator[ParquetSplit]:
    """The splits of a Parquet file: runs of adjacent row groups that stay within the split size."""
    if file.size == 0:
        return
    metadata = read_footer(location, file.path).metadata
    first, first_row, size, rows = 0, 0, 0, 0

    def split(end: int) -> ParquetSplit:
        return ParquetSplit(
            id=f"{file.path}#{first}",
            path=file.path,
            size=file.size,
            mtime_ns=file.mtime_ns,
            first_group=first,
            end_group=end,
            first_row=first_row,
        )

    for group in range(metadata.num_row_groups):
        group_size = metadata.row_group(group).total_byte_size
        if rows and size + group_size > split_size:
            yield split(group)
            first, first_row, size, rows = group, first_row + rows, 0, 0
        size += group_size
        rows += metadata.row_group(group).num_rows
    if rows:
        yield split(metadata.num_row_groups)


def read_footer(location: Location, path: str) -> pq.ParquetFile:
    """Open a Parquet file for its metadata alone."""
    try:
        with pq.ParquetFile(
            path, filesystem=location.filesystem, coerce_int96_timestamp_unit=INT96_UNIT
        ) as file:
            return file
    except (pa.ArrowException, OSError) as e:
        raise InputFileError(f"{location.show(path)} cannot be read as Parquet: {e}") from e
