"""`FileSource`: reads JSON lines, CSV and Parquet files, once or as they arrive."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

import pyarrow as pa
import pyarrow.fs as pafs
from typing_extensions import TypeForm

from tidegate.api.functions import OutputTag
from tidegate.api.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    Source,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from tidegate.connectors.files.bad_records import BAD_RECORD_TYPE, FAIL, parse_policy, side_output_tag
from tidegate.connectors.files.enumerator import FileEnumerator
from tidegate.connectors.files.file_columns import infer_path_fields
from tidegate.connectors.files.format_names import format_of
from tidegate.connectors.files.parquet_reader import OpenParquetSplit, ParquetReading
from tidegate.connectors.files.paths import (
    FoundFile,
    InputFileError,
    Location,
    absolute,
    list_files,
    locate,
    path_name,
)
from tidegate.connectors.files.reader import FileReader
from tidegate.connectors.files.splits import (
    ParquetSplit,
    TextSplit,
    parquet_splits,
    read_footer,
    text_splits,
)
from tidegate.connectors.files.text_files import BOM, TextFile
from tidegate.connectors.files.text_reader import LineCounts, OpenTextSplit, TextReading
from tidegate.core.durations import Duration, format_duration_ms, parse_duration_ms, parse_size_bytes
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.identity import Identity
from tidegate.formats import ParquetFormat, TextFormat
from tidegate.records.plain_types import plain_schema
from tidegate.records.rows import Row
from tidegate.records.type_variables import AnyRecordOut, T
from tidegate.records.types import RecordType, RowType, record_type_of

_SAMPLE_LINES = 1_000
_SAMPLE_BYTES = 1 << 20
# A chunk and what is decoded from it fit into a core's cache: an eighth faster than 1 MiB.
_CHUNK_BYTES = 2 << 20
_SMALLEST_CHUNK_BYTES = 64 << 10


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Format = str | TextFormat | ParquetFormat


class Reading(TypedDict, total=False):
    """The keyword arguments of a `FileSource`, beside its schema."""

    on_bad_record: str | OutputTag[Any]
    watch: Duration | None
    split_size: str | int
    dictionary_columns: Sequence[str]
    max_line_size: str | int
    base_path: str | os.PathLike[str] | None
    filesystem: pafs.FileSystem | None


class FileSource(Source[AnyRecordOut]):
    """Files of records, read in parallel by ranges of bytes (JSON lines, CSV) or row groups (Parquet).

    Args:
        path: a file, a directory (all files below it), a glob (`*`, `?`, `[ab]`, `**`), or a list of them; local, or a
            URI of any filesystem of `pyarrow.fs` (`s3://`, `gs://`, `hdfs://`).
        format: `"json"`, `"csv"`, `"parquet"`, `"text"`, or a format object such as `CsvFormat(delimiter=";")`. Not
            given: from the file's extension.
        schema: a dataclass, a NamedTuple or a `pyarrow.Schema`. Not given: from the footer of the first Parquet
            file, or inferred from the first lines; for text, `str`.
        on_bad_record: what to do with a line that does not fit the schema: `"fail"` the job with the file, the line
            and the reason, `"skip"` the line and count it in the metric `bad_records`, or send it as a `BadRecord` to
            an `OutputTag` (or `"side:<tag>"`).
        watch: how often to look for new files (`"1 s"`); the source then never ends. A file must be complete when it
            appears: write it under a name that starts with `.` or `_`, then rename it.
        split_size: about how much of a file one reader takes at a time.
        dictionary_columns: string columns with few distinct values, to be dictionary-encoded when read from text.
        max_line_size: the source rejects a file with a longer line as not being text.
        base_path: the directory below which `dt=2024-01-31` is a column; not given: the path itself, up to its first
            wildcard.
        filesystem: a `pyarrow.fs.FileSystem`, if the path does not name one.

    Text files may be compressed (`.gz`, `.zst`, `.bz2`, `.lz4`); one reader reads such a file. A directory
    `dt=2024-01-31` below the path is a column of the files in it. A nullable column that a file lacks is null.

    >>> import pathlib, tempfile
    >>> from typing import NamedTuple
    >>> class Click(NamedTuple):
    ...     app: str
    ...     count: int
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = pathlib.Path(folder.name, "clicks.json").write_text('{"app":"mail","count":3}\\n')
    >>> source = FileSource(folder.name, "json", Click)
    >>> source.record_type
    <Click(app: string, count: int64)>
    >>> FileSource(f"{folder.name}/*.json").record_type
    <Row(app: string?, count: int64?)>
    >>> folder.cleanup()
    """

    @overload
    def __init__(
        self: FileSource[str], path: Paths, format: Literal["text"], **reading: Unpack[Reading]
    ) -> None: ...

    @overload
    def __init__(
        self: FileSource[Row], path: Paths, format: Format | None = None, **reading: Unpack[Reading]
    ) -> None: ...

    @overload
    def __init__(
        self: FileSource[T],
        path: Paths,
        format: Format | None = None,
        schema: TypeForm[T] = ...,
        **reading: Unpack[Reading],
    ) -> None: ...

    def __init__(
        self,
        path: Paths,
        format: Format | None = None,
        schema: object = None,
        *,
        on_bad_record: str | OutputTag[Any] = FAIL,
        watch: Duration | None = None,
        split_size: str | int = "16 MiB",
        dictionary_columns: Sequence[str] = (),
        max_line_size: str | int = "64 MiB",
        base_path: str | os.PathLike[str] | None = None,
        filesystem: pafs.FileSystem | None = None,
    ) -> None:
        given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        if not given:
            raise ProgramError("FileSource needs a path: name a file, a directory or a glob")
        names = [os.fspath(p) for p in given]
        self.paths = tuple(names if filesystem is not None else map(absolute, names))
        self.format = format_of(format, self.paths)
        self.on_bad_record = parse_policy(on_bad_record)
        if isinstance(self.format, ParquetFormat) and self.on_bad_record != FAIL:
            raise ProgramError(
                "on_bad_record is for lines of text: a Parquet file has no bad records to pass over"
            )
        self._watch_ms = None if watch is None else _parsed("watch", parse_duration_ms, watch)
        self._split_size = _parsed("split_size", parse_size_bytes, split_size)
        self._max_line_size = _parsed("max_line_size", parse_size_bytes, max_line_size)
        self._dictionary_columns = tuple(dictionary_columns)
        self._filesystem = filesystem
        self._base_path: str | None = None
        if base_path is not None:
            name = os.fspath(base_path)
            self._base_path = name if filesystem is not None else absolute(name)
        self._declared: RecordType | None = None
        self._record_type: RecordType | None = None
        self._cached_location: Location | None = None
        if schema is None and isinstance(self.format, TextFormat):
            schema = self.format.default_type
        if schema is not None:
            self._declare(record_type_of(schema))

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._watch_ms is None else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def record_type(self) -> RecordType:
        if self._record_type is None:
            self._declare(RowType(self._infer()))
        assert self._record_type is not None
        return self._record_type

    @property
    def split_type(self) -> type[SourceSplit]:
        return ParquetSplit if isinstance(self.format, ParquetFormat) else TextSplit

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        return self.restore_enumerator(context, None)

    def restore_enumerator(self, context: EnumeratorContext, state: Any) -> SplitEnumerator:
        return FileEnumerator(context, self._location, self._splits, self._watch_ms, self.split_type, state)

    def create_reader(self, context: ReaderContext) -> SourceReader[AnyRecordOut]:
        location, record_type = self._location, self.record_type
        assert self._declared is not None
        if isinstance(self.format, ParquetFormat):
            parquet = ParquetReading(location, record_type, self._declared)
            return FileReader(context, partial(OpenParquetSplit, parquet, context.most_batch_rows))
        self.format.prepare()
        reading = TextReading(
            location=location,
            text_format=self.format,
            record_type=record_type,
            declared=self._declared,
            dictionary_columns=tuple(n for n in self._dictionary_columns if n in record_type.names),
            on_bad_record=self.on_bad_record,
            chunk_size=min(_CHUNK_BYTES, max(self._max_line_size, _SMALLEST_CHUNK_BYTES)),
            max_line_size=self._max_line_size,
        )
        return FileReader(context, partial(OpenTextSplit, reading, context, LineCounts(location)))

    def side_outputs(self) -> dict[str, RecordType]:
        """Bad lines as `BadRecord`s, if `on_bad_record` names a side output."""
        tag = side_output_tag(self.on_bad_record)
        return {} if tag is None else {tag: BAD_RECORD_TYPE}

    def with_columns(self, names: Sequence[str]) -> FileSource[Row]:
        """A source that reads these columns only, as `Row` records; the other columns are not checked."""
        whole = self.record_type
        fields = [whole.schema.field(whole.field_index(n, "FileSource.with_columns")) for n in names]
        narrow: FileSource[Row] = FileSource.__new__(FileSource)
        narrow.__dict__.update(self.__dict__)
        narrow._record_type = RowType(pa.schema(fields))
        return narrow

    def describe(self) -> str:
        shown = ", ".join(map(path_name, self.paths[:3])) + (", ..." if len(self.paths) > 3 else "")
        watching = "" if self._watch_ms is None else f", new files every {format_duration_ms(self._watch_ms)}"
        return f"{self.format.name} files {shown}{watching}"

    def identity(self) -> Identity:
        """The format and the paths, without credentials."""
        return "files", self.format.name, tuple(map(path_name, self.paths))

    def __getstate__(self) -> dict[str, Any]:
        # Infer once, in the driver: every reader must have the same schema.
        self.record_type  # noqa: B018
        return {**self.__dict__, "_cached_location": None}

    @property
    def _location(self) -> Location:
        if self._cached_location is None:
            location = locate(self.paths, self._filesystem)
            if self._base_path is not None:
                (base,) = locate([self._base_path], self._filesystem).patterns
                location = location.with_base(base.rstrip("/"))
            self._cached_location = location
        return self._cached_location

    def _splits(self, file: FoundFile) -> Iterable[SourceSplit]:
        if isinstance(self.format, ParquetFormat):
            return parquet_splits(self._location, file, self._split_size)
        return text_splits(file, self._split_size)

    def _declare(self, record_type: RecordType) -> None:
        if record_type.is_object:
            raise SchemaError(
                "FileSource needs a schema with columns: a dataclass or NamedTuple of known types, or a pyarrow.Schema"
            )
        self.format.check_read_schema(record_type.schema)
        for name in self._dictionary_columns:
            index = record_type.field_index(name, "FileSource(dictionary_columns=...)")
            if not pa.types.is_string(record_type.schema.field(index).type):
                raise SchemaError(
                    f"dictionary_columns names {name!r}, which is {record_type.schema.field(index).type}, not a string"
                )
        self._record_type = record_type
        self._declared = record_type

    def _infer(self) -> pa.Schema:
        location = self._location
        files = [f for f in list_files(location, may_be_empty=self._watch_ms is not None) if f.size]
        if not files:
            raise InputFileError(
                f"no schema can be inferred: there is nothing in {', '.join(map(path_name, self.paths))} yet. "
                f"Give FileSource a schema."
            )
        in_path = {
            field.name: field for field in infer_path_fields(location.below(file.path) for file in files)
        }
        in_file = [field for field in self._infer_file(location, files[0]) if field.name not in in_path]
        return pa.schema([*in_file, *in_path.values()])

    def _infer_file(self, location: Location, first: FoundFile) -> pa.Schema:
        if isinstance(self.format, ParquetFormat):
            return plain_schema(read_footer(location, first.path).schema_arrow)
        try:
            return self.format.infer_schema(_sample(location, first))
        except SchemaError as e:
            raise SchemaError(f"{location.show(first.path)}: {e}. Give FileSource a schema.") from e


def _sample(location: Location, file: FoundFile) -> bytes:
    """The first lines of a file, all whole."""
    text = TextFile(location, file.path, file.size)
    try:
        data = text.read(0, _SAMPLE_BYTES)
        if len(data) == _SAMPLE_BYTES:
            data = data[: data.rfind(b"\n") + 1] or data
    finally:
        text.close()
    if data.startswith(BOM):
        data = data[len(BOM) :]
    lines = data.split(b"\n", _SAMPLE_LINES)
    return b"\n".join(lines[:_SAMPLE_LINES]) + b"\n"


def _parsed(name: str, parse: Any, value: object) -> int:
    try:
        result = int(parse(value))
    except ValueError as e:
        raise ProgramError(f"FileSource({name}={value!r}): {e}") from None
    if result < 1:
        raise ProgramError(f"FileSource({name}={value!r}) must be more than zero")
    return result
