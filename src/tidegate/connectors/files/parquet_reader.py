"""Reads a split of a Parquet file: its row groups, some columns of them, as batches."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.api.source import SourceSplit
from tidegate.connectors.files.paths import FoundFile, InputFileError, Location, check_unchanged
from tidegate.connectors.files.reader import OpenSplit
from tidegate.connectors.files.splits import INT96_UNIT, ParquetSplit
from tidegate.core.errors import SchemaError
from tidegate.formats.common_dictionary import CommonDictionary
from tidegate.formats.parquet import dictionary_columns, reader_schema, rows_at_once
from tidegate.records.batch import Batch, Origin
from tidegate.records.columns import rows_without_columns
from tidegate.records.types import RecordType


@dataclasses.dataclass(frozen=True)
class ParquetReading:
    """How to read: what all splits of a reader have in common."""

    location: Location
    record_type: RecordType
    dictionaries: defaultdict[str, CommonDictionary] = dataclasses.field(
        default_factory=partial(defaultdict, CommonDictionary)
    )
    """By column."""


class OpenParquetSplit(OpenSplit):
    """A Parquet split that is being read, row group by row group."""

    def __init__(self, reading: ParquetReading, max_rows: int, split: SourceSplit) -> None:
        assert isinstance(split, ParquetSplit)
        self._reading = reading
        self._split = split
        self._name = reading.location.show(split.path)
        self._listed = FoundFile(split.path, split.size, split.mtime_ns)
        check_unchanged(reading.location, self._listed)
        self._position = split.position
        self._done = False
        try:
            self._file = self._open()
        except (pa.ArrowException, OSError) as e:
            raise InputFileError(f"{self._name} cannot be read as Parquet: {e}") from e
        try:
            self._check_schema(reader_schema(self._file.schema_arrow))
        except SchemaError:
            self._file.close()
            raise
        self._batches = self._read(max_rows)

    def _open(self) -> Any:
        """Open with the string columns that are dictionaries in the file as dictionaries, about 7 times faster."""
        location, path = self._reading.location, self._split.path
        options: dict[str, Any] = {
            "filesystem": location.filesystem,
            "pre_buffer": not location.is_local,
            "coerce_int96_timestamp_unit": INT96_UNIT,
        }
        file = pq.ParquetFile(path, **options)
        strings = [
            f.name
            for f in self._reading.record_type.schema
            if pa.types.is_string(f.type) and f.name in file.schema_arrow.names
        ]
        encoded = dictionary_columns(file.metadata, self._split.first_group, strings)
        if not encoded:
            return file
        metadata = file.metadata
        file.close()
        return pq.ParquetFile(path, read_dictionary=encoded, metadata=metadata, **options)

    def _check_schema(self, found: pa.Schema) -> None:
        for field in self._reading.record_type.schema:
            index = found.get_field_index(field.name)
            if index < 0:
                raise SchemaError(
                    f"{self._name} has no column {field.name!r}; its columns are {', '.join(found.names)}"
                )
            if not _fits(found.field(index).type, field.type):
                raise SchemaError(
                    f"column {field.name!r} of {self._name} is {found.field(index).type}, "
                    f"but the source declares {field.type}. Declare the file's type and convert it in a map."
                )

    def _read(self, max_rows: int) -> Iterator[pa.RecordBatch]:
        """Batches from the position on. A large row group is several; small ones are read together."""
        metadata, groups = self._file.metadata, range(self._split.first_group, self._split.end_group)
        schema = self._reading.record_type.schema
        most = min((rows_at_once(metadata, group, schema, max_rows) for group in groups), default=max_rows)
        skip, first = self._position, self._split.first_row + self._position + 1
        for together, rows in _runs([(g, metadata.row_group(g).num_rows) for g in groups], most):
            if skip >= rows:
                skip -= rows
                continue
            for columns in self._read_groups(together, rows, most):
                if skip >= columns.num_rows:
                    skip -= columns.num_rows
                    continue
                yield self._declare(columns.slice(skip), first)
                first += columns.num_rows - skip
                skip = 0

    def _read_groups(self, groups: list[int], rows: int, most: int) -> Iterable[pa.Table | pa.RecordBatch]:
        names = self._reading.record_type.names
        if not names:
            return _without_columns(rows, most)
        if rows <= most:
            return [self._file.read_row_groups(groups, columns=names, use_threads=False)]
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            most, row_groups=groups, columns=names, use_threads=False
        )
        return batches

    @property
    def finished(self) -> bool:
        return self._done

    def current(self) -> ParquetSplit:
        return msgspec.structs.replace(self._split, position=self._position)

    def next_batch(self, max_rows: int) -> Batch | None:
        try:
            columns = next(self._batches, None)
        except (pa.ArrowException, OSError) as e:
            check_unchanged(self._reading.location, self._listed)
            raise InputFileError(
                f"{self._name} cannot be read from row {self._split.first_row + self._position + 1}: {e}"
            ) from e
        if columns is None:
            check_unchanged(self._reading.location, self._listed)
            self._done = True
            return None
        first = self._split.first_row + self._position + 1
        self._position += columns.num_rows
        return Batch.of_columns(self._reading.record_type, columns, Origin(self._name, first, "row"))

    def close(self) -> None:
        self._file.close()

    def _declare(self, columns: pa.Table | pa.RecordBatch, first: int) -> pa.RecordBatch:
        """The declared columns in the declared order and types; string dictionaries stay."""
        arrays, fields = [], []
        for field in self._reading.record_type.schema:
            array = self._one_array(columns.column(field.name), field)
            if array.type != field.type and not _is_string_dictionary(array.type, field.type):
                try:
                    array = array.cast(field.type)
                except pa.ArrowException as e:
                    raise SchemaError(
                        f"column {field.name!r} of {self._name}, in or after row {first}, "
                        f"does not fit in {field.type}: {e}"
                    ) from e
            if array.null_count and not field.nullable:
                row = first + array.is_null().index(True).as_py()
                raise SchemaError(
                    f"column {field.name!r} of {self._name} is null in row {row}, "
                    f"but is declared without None. Declare it Optional."
                )
            arrays.append(array)
            fields.append(pa.field(field.name, array.type, field.nullable))
        if not arrays:
            return columns
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _one_array(self, column: pa.ChunkedArray | pa.Array, field: pa.Field) -> pa.Array:
        """What the row groups have of a column, together; their dictionaries are made one first."""
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        if _is_string_dictionary(column.type, field.type):
            dictionary = self._reading.dictionaries[field.name]
            chunks = [dictionary.encode(chunk) for chunk in chunks]
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _runs(groups: list[tuple[int, int]], most: int) -> Iterator[tuple[list[int], int]]:
    """Adjacent row groups that have at most so many rows together, or one that has more; and how many rows."""
    run: list[int] = []
    rows = 0
    for group, in_group in groups:
        if run and rows + in_group > most:
            yield run, rows
            run, rows = [], 0
        run.append(group)
        rows += in_group
    if run:
        yield run, rows


def _without_columns(rows: int, max_rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, max_rows):
        yield rows_without_columns(min(max_rows, rows - first))


def _is_string_dictionary(found: pa.DataType, declared: pa.DataType) -> bool:
    return pa.types.is_dictionary(found) and found.value_type == declared


def _fits(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a column may be read as the declared type: the same kind, so that a checked cast loses nothing."""
    if found == declared:
        return True
    types = pa.types
    if types.is_floating(found) and types.is_floating(declared):
        return bool(found.bit_width <= declared.bit_width)  # a narrower one would be rounded in silence
    same_kind = (
        types.is_integer,
        types.is_timestamp,
        types.is_decimal,
        types.is_date,
        types.is_time,
        types.is_duration,
        lambda t: types.is_string(t) or types.is_large_string(t),
        lambda t: types.is_binary(t) or types.is_large_binary(t) or types.is_fixed_size_binary(t),
        lambda t: types.is_list(t) or types.is_large_list(t),
        types.is_struct,
        types.is_map,
    )
    return any(kind(found) and kind(declared) for kind in same_kind)
