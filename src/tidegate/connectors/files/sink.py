"""`FileSink`: writes records to part files, hidden until they are complete."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from tidegate.api.sink import Committer, Sink, SinkWriter, WriterContext
from tidegate.connectors.files.format_names import format_of
from tidegate.connectors.files.paths import Location, absolute, locate, path_name
from tidegate.core.durations import parse_size_bytes
from tidegate.core.errors import ProgramError, SchemaError, TidegateError
from tidegate.formats import FormatWriter, ParquetFormat, TextFormat
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType

_LOG = logging.getLogger(__name__)
_NAME = r"part-(?:\w+-)?(?P<subtask>\d+)-(?P<number>\d+)\.\w+"
_PART = re.compile(_NAME)
_HIDDEN = re.compile(rf"\.{_NAME}\.(?P<job>\w+)\.a(?P<attempt>\d+)\.(inprogress|pending)")


class OutputDirectoryError(TidegateError):
    """The directory to write to cannot be used: it has files already, or cannot be created."""


class PendingFile(msgspec.Struct, frozen=True):
    """A file that is complete but not visible yet: the committable of a `FileSink`. Names are relative."""

    hidden: str
    final: str


class FileSink(Sink):
    """Files `part-<subtask>-<number>.<format>` in a directory.

    A file is written under a hidden name that ends in `.inprogress`, complete it is hidden as `.pending`, and it gets
    its visible name when the checkpoint that covers it is complete. A new file is begun with every checkpoint and when
    one has reached `roll_size`. So what is visible is always the output of completed checkpoints, each record once.
    Without checkpoints a file becomes visible when it is full and at the end of the input. A subtask without records
    makes no file.

    With `append` the names are `part-<job id>-<subtask>-<number>.<format>`, so that several jobs may write into one
    directory, also at the same time. Hidden files of another job are left alone, unless `overwrite` is set: nobody can
    tell whether that job died or is at work.

    Args:
        directory: a local path or a URI of any filesystem of `pyarrow.fs`. Created if missing.
        format: `"json"`, `"csv"`, `"parquet"`, `"text"`, or a format object such as
            `ParquetFormat(compression="zstd")`.
        roll_size: about how large a file gets before the next one is begun.
        overwrite: remove the part files that are there, hidden ones too; other files are refused all the same.
        append: keep what is there and add files whose names carry the job's id.
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

    committable_type = PendingFile

    def prepare(self, parallelism: int, resuming: bool = False) -> None:
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
            if resuming:
                return
            parts, hidden, others = [], [], []
            for found in filesystem.get_file_info(pa_fs.FileSelector(directory)):
                if found.is_file and _PART.fullmatch(found.base_name):
                    parts.append(found.path)
                elif found.is_file and _HIDDEN.fullmatch(found.base_name):
                    hidden.append(found.path)
                else:
                    others.append(found.path)
            if self.append:
                return
            if others or (parts and not self.overwrite):
                name = location.show((others or parts)[0])
                advice = (
                    "overwrite=True removes part files only: empty the directory yourself, or name another."
                    if self.overwrite
                    else "Empty it, name another, or set overwrite=True or append=True."
                )
                raise OutputDirectoryError(
                    f"{location.show(directory)} is not empty (it has {name}). {advice}"
                )
            if self.overwrite:
                for path in parts + hidden:
                    filesystem.delete_file(path)
            elif hidden:
                _LOG.warning(
                    "%d hidden files of another job are in %s, such as %s. If that job is at work, name another "
                    "directory or set append=True; if it died and is not to be resumed, delete them",
                    len(hidden),
                    location.show(directory),
                    hidden[0].rpartition("/")[2],
                )
        except (pa.ArrowException, OSError) as e:
            raise OutputDirectoryError(f"cannot write to {location.show(directory)}: {e}") from e

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Make the writer of one subtask."""
        return _FileWriter(self, self._locate(), context)

    def create_committer(self, context: WriterContext) -> Committer:
        """Make the committer of one subtask."""
        return _FileCommitter(self._locate(), context.operator_name)

    def target(self) -> str | None:
        """The directory: part files of two sinks would have the same names."""
        return f"directory {self.directory}"

    def describe(self) -> str:
        """The format and the directory."""
        return f"{self.format.name} files in {path_name(self.directory)}"

    def _locate(self) -> Location:
        return locate([self.directory], self._filesystem)


class _FileWriter(SinkWriter):
    """Writes one file at a time; closed ones wait in `_pending` for the next checkpoint.

    Hidden names carry the job and the attempt, so that a zombie of an older attempt writes to files of its own. Those
    that no checkpoint covers are removed when the next attempt begins, and again with its first checkpoints and at the
    end of the input: zombies may go on for a while.
    """

    SWEEPS = 2
    """Checkpoints of a recovered attempt that look for litter."""

    def __init__(self, sink: FileSink, location: Location, context: WriterContext) -> None:
        self._format = sink.format
        self._roll_size_bytes = sink.roll_size_bytes
        self._prefix = f"part-{context.job_id}-" if sink.append else "part-"
        self._location = location
        self._filesystem = location.filesystem
        self._directory = location.patterns[0].rstrip("/")
        self._context = context
        self._subtask = context.subtask_index
        self._operator = context.operator_name
        self._schema = context.record_type.schema
        self._number: int | None = None
        self._open: _OpenFile | None = None
        self._pending: list[PendingFile] = []
        self._unfinished: list[_OpenFile] = []
        """Rolled since the last checkpoint and still to be closed, on the upload thread."""
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
            self._pending.append(file.pending)
        pending, self._pending = self._pending, []
        return pending

    def close(self) -> None:
        """What is unfinished is nobody's output; what is pending belongs to a checkpoint."""
        if self._open is not None:
            self._unfinished.append(self._open)
            self._open = None
        while self._unfinished:
            file = self._unfinished.pop()
            path, stream = file.path, file.stream
            del file  # the format's writer goes first: it may still flush
            try:
                stream.close()
            finally:
                with contextlib.suppress(FileNotFoundError):  # a newer attempt has cleaned up after this one
                    self._filesystem.delete_file(path)

    # ---- files ----

    def _begin(self) -> _OpenFile:
        if self._number is None:
            self._number = self._first_number()
        final = f"{self._prefix}{self._subtask}-{self._number}.{self._format.extension}"
        self._number += 1
        hidden = f".{final}.{self._context.job_id}.a{self._context.attempt}"
        path = f"{self._directory}/{hidden}.inprogress"
        stream = self._filesystem.open_output_stream(path)
        writer = self._format.open_writer(stream, self._schema)
        return _OpenFile(path, PendingFile(f"{hidden}.pending", final), stream, writer)

    def _first_number(self) -> int:
        """One more than this subtask has in the directory, from before or from an earlier attempt, hidden or not."""
        numbers = [-1]
        for found in self._filesystem.get_file_info(pa_fs.FileSelector(self._directory)):
            match = _PART.fullmatch(found.base_name) or _HIDDEN.fullmatch(found.base_name)
            if match and int(match["subtask"]) == self._subtask:
                numbers.append(int(match["number"]))
        return max(numbers) + 1

    def _roll(self) -> None:
        """Close the file; without checkpoints it is output now."""
        if self._open is None:
            return
        file, self._open = self._open, None
        self._unfinished.append(file)
        if not self._context.checkpointed:
            self._complete(file)
            self._unfinished.pop()
            _commit_file(self._location, self._directory, file.pending)

    def _complete(self, file: _OpenFile) -> None:
        """Finish a file and hide it as pending; on the upload thread, when it is part of a checkpoint."""
        with self._named_errors(file.pending.final):
            file.writer.finish()
            file.stream.close()
            if self._location.is_local:
                _sync(file.path)
            self._filesystem.move(file.path, f"{self._directory}/{file.pending.hidden}")
            if self._location.is_local:
                _sync(self._directory)  # the checkpoint will rely on the new name

    def _remove_litter(self) -> None:
        """Delete hidden files that older attempts of this job left and that no checkpoint covers."""
        c = self._context
        kept = {pending.hidden for pending in c.recovered}
        for found in self._filesystem.get_file_info(pa_fs.FileSelector(self._directory)):
            match = _HIDDEN.fullmatch(found.base_name)
            if match is None or match["job"] != c.job_id or found.base_name in kept:
                continue
            if int(match["attempt"]) < c.attempt and int(match["subtask"]) % c.parallelism == c.subtask_index:
                with contextlib.suppress(FileNotFoundError):
                    self._filesystem.delete_file(found.path)

    def _remove_litter_if_possible(self) -> None:
        with contextlib.suppress(pa.ArrowException, OSError):  # the next one finds it
            self._remove_litter()

    @contextmanager
    def _named_errors(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except SchemaError as e:
            raise SchemaError(f"operator {self._operator!r} cannot write: {e}") from e
        except (pa.ArrowException, OSError) as e:
            name = name or ("" if self._open is None else self._open.pending.final)
            target = self._location.show(f"{self._directory}/{name}" if name else self._directory)
            raise OutputDirectoryError(f"operator {self._operator!r} cannot write {target}: {e}") from e


class _OpenFile(NamedTuple):
    path: str
    pending: PendingFile
    stream: Any
    writer: FormatWriter


class _FileCommitter(Committer):
    """Gives pending files their visible names."""

    def __init__(self, location: Location, operator: str) -> None:
        self._location = location
        self._directory = location.patterns[0].rstrip("/")
        self._operator = operator

    def commit(self, committables: Sequence[PendingFile]) -> None:
        try:
            for pending in committables:
                _commit_file(self._location, self._directory, pending)
            if self._location.is_local:
                _sync(self._directory)
        except (pa.ArrowException, OSError) as e:
            raise OutputDirectoryError(
                f"operator {self._operator!r} cannot publish files in {self._location.show(self._directory)}: {e}"
            ) from e


def _commit_file(location: Location, directory: str, pending: PendingFile) -> None:
    """Rename; done already is done. A file that is neither pending nor visible is lost, and that is said."""
    filesystem = location.filesystem
    hidden, final = f"{directory}/{pending.hidden}", f"{directory}/{pending.final}"
    if filesystem.get_file_info(hidden).type == pa_fs.FileType.NotFound:
        if filesystem.get_file_info(final).type == pa_fs.FileType.NotFound:
            raise OutputDirectoryError(
                f"{location.show(hidden)} is gone: its records are part of a completed checkpoint and are lost. Was "
                f"the directory cleaned while the job ran? Restore the file, or start again without state"
            )
        return
    try:
        filesystem.move(hidden, final)
    except FileNotFoundError:
        # Another subtask or attempt commits the same checkpoint: whoever comes first, the result is one.
        if filesystem.get_file_info(final).type == pa_fs.FileType.NotFound:
            raise


def _sync(path: str) -> None:
    """Make a local file's contents (or a directory's names) durable before anyone relies on them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
