"""`FileSink`: writes records to part files, hidden until they are complete."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.connectors.files.format_names import format_of
from tidegate.connectors.files.paths import Location, absolute, locate, path_name
from tidegate.core.durations import parse_size_bytes
from tidegate.core.errors import ProgramError, SchemaError, TidegateError
from tidegate.formats import FormatWriter, ParquetFormat, TextFormat
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType

_PART = re.compile(r"\.?part-(\d+)-(\d+)\.\w+(\.inprogress)?")


class OutputDirectoryError(TidegateError):
    """The directory to write to cannot be used: it has files already, or cannot be created."""


class FileSink(Sink):
    """Files `part-<subtask>-<number>.<format>` in a directory.

    A file is written under a hidden name (`.part-0-0.json.inprogress`) and renamed when it is complete: when it has
    reached `roll_size`, and at the end of the input. What is visible is complete; a subtask without records makes none.

    Args:
        directory: a local path or a URI of any filesystem of `pyarrow.fs`. Created if missing.
        format: `"json"`, `"csv"`, `"parquet"`, `"text"`, or a format object such as
            `ParquetFormat(compression="zstd")`.
        roll_size: about how large a file gets before the next one is begun.
        overwrite: remove the part files that are there; other files are refused all the same.
        append: keep what is there and add files with new numbers.
        filesystem: a `pyarrow.fs.FileSystem`, if not told by the directory.

    A directory that is not empty is refused, unless `overwrite` or `append` says what to do.

    >>> FileSink("out", "parquet", roll_size="64 MiB").describe().startswith("parquet files in ")
    True
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        format: str | TextFormat | ParquetFormat = "json",
        *,
        roll_size: str | int = "128 MiB",
        overwrite: bool = False,
        append: bool = False,
        filesystem: Any = None,
    ) -> None:
        name = os.fspath(directory)
        self.directory = name if filesystem is not None else absolute(name)
        self.format = format_of(format, ())
        if overwrite and append:
            raise ProgramError("FileSink can overwrite or append, not both")
        self.overwrite = overwrite
        self.append = append
        try:
            self.roll_size_bytes = parse_size_bytes(roll_size)
        except ValueError as e:
            raise ProgramError(f"FileSink(roll_size={roll_size!r}): {e}") from None
        self._filesystem = filesystem

    def check_type(self, record_type: RecordType) -> None:
        """Refuse records without columns, and columns that the format has no form for."""
        if record_type.is_object:
            raise SchemaError(
                f"FileSink cannot write records of type {record_type.describe()}: they have no columns. Give the "
                f"function before it a return type: a dataclass, NamedTuple, tuple or scalar."
            )
        self.format.check_schema(record_type.schema)

    def prepare(self, parallelism: int) -> None:
        """Create the directory or check that it is empty; runs in the driver, once."""
        location = self._locate()
        directory = location.patterns[0]
        filesystem = location.filesystem
        try:
            info = filesystem.get_file_info(directory)
            if info.type == pa_fs.FileType.File:
                raise OutputDirectoryError(
                    f"{location.show(directory)} is a file. Name a directory to write to."
                )
            if info.type == pa_fs.FileType.NotFound:
                filesystem.create_dir(directory, recursive=True)
                return
            parts, others = [], []
            for found in filesystem.get_file_info(pa_fs.FileSelector(directory)):
                match = _PART.fullmatch(found.base_name)
                if match and match[3]:
                    filesystem.delete_file(found.path)  # left by a job that died
                elif match and found.is_file:
                    parts.append(found.path)
                else:
                    others.append(found.path)
            if self.append or not (parts or others):
                return
            if others or not self.overwrite:
                name = location.show((others or parts)[0])
                advice = (
                    "overwrite=True removes part files only: empty the directory yourself, or name another."
                    if self.overwrite
                    else "Empty it, name another, or set overwrite=True or append=True."
                )
                raise OutputDirectoryError(
                    f"{location.show(directory)} is not empty (it has {name}). {advice}"
                )
            for path in parts:
                filesystem.delete_file(path)
        except (pa.ArrowException, OSError) as e:
            raise OutputDirectoryError(f"cannot write to {location.show(directory)}: {e}") from e

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Make the writer of one subtask."""
        return _FileWriter(self, self._locate(), context)

    def target(self) -> str | None:
        """The directory: part files of two sinks would have the same names."""
        return f"directory {self.directory}"

    def describe(self) -> str:
        """The format and the directory."""
        return f"{self.format.name} files in {path_name(self.directory)}"

    def _locate(self) -> Location:
        return locate([self.directory], self._filesystem)


class _FileWriter(SinkWriter):
    """Writes one file at a time."""

    def __init__(self, sink: FileSink, location: Location, context: WriterContext) -> None:
        self._format = sink.format
        self._roll_size_bytes = sink.roll_size_bytes
        self._location = location
        self._filesystem = location.filesystem
        self._directory = location.patterns[0].rstrip("/")
        self._subtask = context.subtask_index
        self._operator = context.operator_name
        self._schema = context.record_type.schema
        self._number: int | None = None
        self._hidden = self._final = ""
        self._stream: Any = None
        self._writer: FormatWriter | None = None

    def write(self, batch: Batch) -> None:
        if not batch.num_rows:
            return
        with self._named_errors():
            if self._writer is None:
                self._writer = self._begin()
            self._writer.write(batch.plain_columns)
            if self._writer.size_bytes() >= self._roll_size_bytes:
                self._finish()

    def flush(self, end_of_input: bool) -> None:
        with self._named_errors():
            if end_of_input:
                self._finish()
            elif self._writer is not None:
                self._writer.flush()

    def close(self) -> None:
        if self._stream is None:
            return
        # Unfinished: nobody may take it for output.
        stream, self._stream, self._writer = self._stream, None, None
        try:
            stream.close()
        finally:
            self._filesystem.delete_file(self._hidden)

    def _begin(self) -> FormatWriter:
        if self._number is None:
            self._number = self._first_number()
        name = f"part-{self._subtask}-{self._number}.{self._format.extension}"
        self._number += 1
        self._final = f"{self._directory}/{name}"
        self._hidden = f"{self._directory}/.{name}.inprogress"
        self._stream = self._filesystem.open_output_stream(self._hidden)
        return self._format.open_writer(self._stream, self._schema)

    def _first_number(self) -> int:
        """One more than this subtask has in the directory, from before or from an earlier attempt."""
        numbers = [-1]
        for found in self._filesystem.get_file_info(pa_fs.FileSelector(self._directory)):
            match = _PART.fullmatch(found.base_name)
            if match and int(match[1]) == self._subtask and not match[3]:
                numbers.append(int(match[2]))
        return max(numbers) + 1

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.finish()
        self._stream.close()
        if self._location.is_local:
            _sync(self._hidden)
        self._filesystem.move(self._hidden, self._final)
        self._stream = self._writer = None

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except SchemaError as e:
            raise SchemaError(f"operator {self._operator!r} cannot write: {e}") from e
        except (pa.ArrowException, OSError) as e:
            target = self._location.show(self._final or self._directory)
            raise OutputDirectoryError(f"operator {self._operator!r} cannot write {target}: {e}") from e


def _sync(path: str) -> None:
    """Make a local file's contents durable before its name says that it is complete."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
