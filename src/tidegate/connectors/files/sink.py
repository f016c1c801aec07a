"""`FileSink`: writes records to part files, hidden until they are complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pyarrow.fs as pafs

from tidegate.api.sink import Committer, Sink, SinkJob, SinkWriter, WriterContext
from tidegate.connectors.files.format_names import format_of
from tidegate.connectors.files.output_directory import FAILED, OutputDirectory, OutputDirectoryError
from tidegate.connectors.files.output_names import OwnerName, PartName, parse_hidden
from tidegate.connectors.files.output_owner import check, leave, owner_of, take
from tidegate.connectors.files.paths import absolute, locate, path_name
from tidegate.connectors.files.publication import FileCommitter, PendingFile, check_owner
from tidegate.core.durations import parse_size_bytes
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.identity import Identity
from tidegate.formats import FormatWriter, ParquetFormat, TextFormat
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType


class FileSink(Sink[object]):
    """Files `part-<job id>-<subtask>-<attempt>-<number>.<format>` in a directory.

    The sink writes a file under a hidden name that ends in `.inprogress`, renames the finished file to `.pending`, and
    gives it its visible name when the checkpoint that covers it is complete. It begins a new file with every checkpoint
    and when a file has reached `roll_size`. So the visible files are the output of completed checkpoints, each record
    once. Without checkpoints a file becomes visible when it is full and at the end of the input. A subtask without
    records makes no file.

    The sink never replaces or touches a visible file: consumers may move or delete it. Hidden files belong to the sink.
    One of them is the mark of the job that uses the directory, from the job's start to its end. While the directory has
    a mark or hidden files of another job, a new job is refused, unless it appends or overwrites.

    Args:
        directory: a local path or a URI of any filesystem of `pyarrow.fs`. Created if missing.
        format: `"json"`, `"csv"`, `"parquet"`, `"text"`, or a format object such as
            `ParquetFormat(compression="zstd")`.
        roll_size: the approximate size at which the sink begins the next file.
        overwrite: delete the existing part files, hidden ones too, and take the directory from a job that has its mark
            there: if that job still runs, it fails at its next commit. A directory with other files is still refused.
        append: keep the existing files and add more. Several jobs may append, also at the same time.
        filesystem: a `pyarrow.fs.FileSystem`, if the directory does not name one.

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
        filesystem: pafs.FileSystem | None = None,
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
        """Refuse records without columns, and columns that the format cannot write."""
        if record_type.is_object:
            raise SchemaError(
                f"FileSink cannot write records of type {record_type.describe()}: they have no columns. Give the "
                f"function before it a return type: a dataclass, NamedTuple, tuple or scalar."
            )
        self.format.check_schema(record_type.schema)

    committable_type = PendingFile

    def check_target(self, job: SinkJob) -> None:
        """Refuse a directory that may not be used; runs in the driver."""
        check(self._directory(), job, overwrite=self.overwrite, append=self.append)

    def prepare(self, job: SinkJob) -> None:
        """Create the directory if it is missing, and take ownership; runs in the driver, once."""
        take(self._directory(), job, overwrite=self.overwrite, append=self.append)

    def release(self, job: SinkJob, *, resumable: bool) -> None:
        """Release the directory; runs in the driver, at the job's end."""
        leave(self._directory(), job, append=self.append, resumable=resumable)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _FileWriter(self, self._directory(), context, self._owner(context))

    def create_committer(self, context: WriterContext) -> Committer:
        return FileCommitter(self._directory(), context, self._owner(context))

    def target(self) -> str | None:
        """The directory; two sinks of a job must not share it, their files would have the same names."""
        return f"directory {self.directory}"

    def describe(self) -> str:
        return f"{self.format.name} files in {path_name(self.directory)}"

    def identity(self) -> Identity:
        """The format and the directory, without credentials."""
        return "files", self.format.name, path_name(self.directory)

    def _directory(self) -> OutputDirectory:
        return OutputDirectory(locate([self.directory], self._filesystem))

    def _owner(self, context: WriterContext) -> OwnerName:
        return owner_of(context.job_id, context.attempt, self.append)


class _FileWriter(SinkWriter):
    """Writes one file at a time; closed ones wait in `_pending` for the next checkpoint.

    Names carry the job and the attempt, so a zombie of an older attempt writes to files of its own. The next attempt
    deletes those that no checkpoint covers when it begins, with its first checkpoints and at the end of the input:
    a zombie may write for a while.
    """

    SWEEPS = 2
    """How many checkpoints of a recovered attempt look for litter."""

    def __init__(
        self, sink: FileSink, directory: OutputDirectory, context: WriterContext, owner: OwnerName
    ) -> None:
        self._format = sink.format
        self._roll_size_bytes = sink.roll_size_bytes
        self._directory = directory
        self._context = context
        self._owner = owner
        self._schema = context.record_type.schema
        self._number = 0
        self._open: _OpenFile | None = None
        self._pending: list[PendingFile] = []
        self._unfinished: list[_OpenFile] = []
        """Files rolled since the last checkpoint, which the upload thread will close."""
        self._sweeps = 0
        if context.attempt or context.recovered:
            self._sweeps = self.SWEEPS
            with self._named_errors():
                self._remove_litter()

    def write(self, batch: Batch) -> None:
        if not batch.num_rows:
            return
        with self._named_errors():
            if self._open is None:
                self._open = self._begin()
            self._open.writer.write(batch.plain_columns)
            if self._open.writer.size_bytes() >= self._roll_size_bytes:
                self._roll()

    def flush(self, end_of_input: bool) -> None:
        with self._named_errors():
            if end_of_input:
                self._roll()
                self._sweeps = max(self._sweeps, min(1, self._context.attempt))
            elif self._open is not None:
                self._open.writer.flush()

    def prepare_commit(self, defer: Callable[[Callable[[], None]], None]) -> list[PendingFile]:
        if self._open is not None:
            self._unfinished.append(self._open)
            self._open = None
        if self._sweeps:
            self._sweeps -= 1
            defer(self._remove_litter_if_possible)
        files, self._unfinished = self._unfinished, []
        for file in files:
            defer(partial(self._complete, file))
            self._pending.append(PendingFile(str(file.part)))
        pending, self._pending = self._pending, []
        return pending

    def close(self) -> None:
        """Delete unfinished files; pending ones stay, because they belong to a checkpoint."""
        if self._open is not None:
            self._unfinished.append(self._open)
            self._open = None
        while self._unfinished:
            file = self._unfinished.pop()
            name, stream = file.part.hidden("inprogress"), file.stream
            del file  # the format's writer goes first: it may still flush
            try:
                stream.close()
            finally:
                self._directory.delete(name)  # a newer attempt may have deleted it already

    # ---- files ----

    def _begin(self) -> _OpenFile:
        part = self._next_name()
        stream = self._directory.open_new(part.hidden("inprogress"))
        return _OpenFile(part, stream, self._format.open_writer(stream, self._schema))

    def _next_name(self) -> PartName:
        c = self._context
        self._number += 1
        return PartName(c.job_id, c.subtask_index, c.attempt, self._number - 1, self._format.extension)

    def _roll(self) -> None:
        """Close the file; without checkpoints, publish it at once."""
        if self._open is None:
            return
        file, self._open = self._open, None
        self._unfinished.append(file)
        if not self._context.checkpointed:
            self._complete(file)
            self._unfinished.pop()
            self._publish(file.part)

    def _complete(self, file: _OpenFile) -> None:
        """Finish a file and rename it to pending; runs on the upload thread if a checkpoint covers the file."""
        with self._named_errors(file.part):
            file.writer.finish()
            file.stream.close()
            hidden = file.part.hidden("inprogress")
            self._directory.sync(hidden)
            self._directory.move_new(hidden, file.part.hidden("pending"))
            self._directory.sync()  # the checkpoint will rely on the new name

    def _publish(self, part: PartName) -> None:
        """Make a file visible without a checkpoint.

        The name is already in use only if a job without checkpoints was resumed twice from the same checkpoint: then
        the attempts of both runs have the same numbers.
        """
        check_owner(self._directory, self._owner)
        visible = part
        while True:
            try:
                return self._directory.move_new(part.hidden("pending"), str(visible))
            except FileExistsError:
                visible = self._next_name()

    def _remove_litter(self) -> None:
        """Delete hidden files that older attempts of this job left and that no checkpoint covers."""
        c = self._context
        kept = {pending.name for pending in c.recovered}
        for name in self._directory.names():
            found = parse_hidden(name)
            if found is None or found.part.job != c.job_id or str(found.part) in kept:
                continue
            if found.part.attempt < c.attempt and found.part.subtask % c.parallelism == c.subtask_index:
                self._directory.delete(name)

    def _remove_litter_if_possible(self) -> None:
        with contextlib.suppress(*FAILED):  # the next sweep tries again
            self._remove_litter()

    @contextmanager
    def _named_errors(self, part: PartName | None = None) -> Iterator[None]:
        operator = self._context.operator_name
        try:
            yield
        except SchemaError as e:
            raise SchemaError(f"operator {operator!r} cannot write: {e}") from e
        except FAILED as e:
            part = part or (None if self._open is None else self._open.part)
            target = self._directory.show("" if part is None else str(part))
            raise OutputDirectoryError(f"operator {operator!r} cannot write {target}: {e}") from e


class _OpenFile(NamedTuple):
    part: PartName
    stream: Any
    writer: FormatWriter
