"""Reads a split of a text file: decodes chunks of lines to batches, and handles bad lines by the user's policy."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from tidegate.api.source import ReaderContext, SourceSplit
from tidegate.connectors.files import bad_records
from tidegate.connectors.files.bad_records import BadRecord
from tidegate.connectors.files.file_columns import ColumnTexts, FileColumns, file_columns, path_values
from tidegate.connectors.files.paths import FoundFile, Location, check_unchanged
from tidegate.connectors.files.reader import OpenSplit
from tidegate.connectors.files.splits import TextSplit
from tidegate.connectors.files.text_files import LineChunks, TextFile
from tidegate.core.errors import BadRecordError, SchemaError
from tidegate.formats.format import TextFormat
from tidegate.formats.lines import BadLine, CanonicalDecoder, DecodedLines, LineDecoder, decode_lines
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import RecordType


@dataclass(frozen=True)
class TextReading:
    """What all splits of a reader have in common."""

    location: Location
    text_format: TextFormat
    record_type: RecordType
    declared: RecordType
    """All columns of files without a header; `record_type` may name some of them only."""
    dictionary_columns: tuple[str, ...]
    on_bad_record: str
    chunk_size: int
    max_line_size: int
    decoders: dict[tuple[tuple[str, ...], ...], LineDecoder] = field(default_factory=dict)
    """By a file's columns and those that are read. A reader keeps them for all its splits: they learn what the
    columns hold."""
    texts: ColumnTexts = field(default_factory=ColumnTexts)
    ended: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """By path, where the last split ended and `OpenValues.opened_at` there; the next split looks back no further."""

    def columns_of(self, path: str, header: bytes) -> tuple[FileColumns, LineDecoder]:
        """Which columns of a file to read, and with which decoder."""
        in_path = path_values(self.location.below(path))
        in_lines = [name for name in self.declared.names if name not in in_path]
        in_file = self.text_format.file_columns(header, in_lines)
        canonical = self.declared.canonical
        columns = file_columns(self.record_type.schema, canonical, in_lines, in_path, in_file, self.texts)
        key = (tuple(in_file), tuple(columns.stored.names))
        if key not in self.decoders:
            dictionaries = [name for name in self.dictionary_columns if name in columns.stored.names]
            decoder = self.text_format.decoder(columns.stored, in_file, dictionaries)
            self.decoders[key] = CanonicalDecoder(decoder, canonical) if canonical else decoder
        return columns, self.decoders[key]


class OpenTextSplit(OpenSplit):
    """A text split that is being read.

    A chunk is decoded as a whole and emitted in slices. A bad line is reported with the slice that it precedes or ends,
    never earlier, so at a position between two slices exactly the bad lines before the position have been reported.
    """

    def __init__(
        self, reading: TextReading, context: ReaderContext, line_counts: LineCounts, split: SourceSplit
    ) -> None:
        assert isinstance(split, TextSplit)
        self._line_counts = line_counts
        self._reading = reading
        self._context = context
        self._split = split
        self._listed = FoundFile(split.path, split.size, split.mtime_ns)
        check_unchanged(reading.location, self._listed)
        self._file = TextFile(reading.location, split.path, split.size)
        text_format = reading.text_format
        header = self._file.first_line()[0] if text_format.has_header else b""
        try:
            self._columns, self._decoder = reading.columns_of(split.path, header)
        except SchemaError as e:
            self._file.close()
            raise SchemaError(f"{self._file.name}: {e}") from e
        stored = self._columns.stored
        self._empty = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in stored], schema=stored)
        self._chunks = LineChunks(
            self._file,
            split.start,
            split.end,
            split.position,
            chunk_size=reading.chunk_size,
            max_line_size=reading.max_line_size,
            has_header=text_format.has_header,
        )
        self._open_values = None if self._chunks.finished else text_format.open_values()
        if self._open_values is not None:
            position = self._chunks.position
            first, opened_at = reading.ended.get(split.path, (position + 1, None))
            if first > position:
                first, opened_at = self._file.first_line_start(text_format.has_header), None
            self._open_values.opened_at = self._open_values.opened_before(
                position, first, self._file.read, opened_at
            )
        self._lines: DecodedLines | None = None
        self._chunk = b""
        self._chunk_start = self._chunks.position
        # Numbers of the first line of this chunk and of the next, from 1; None until they are counted.
        self._chunk_line: int | None = None
        self._next_line: int | None = None
        if split.start == 0 and split.position is None:
            self._next_line = 2 if text_format.has_header else 1
        self._row = 0
        self._bad_reported = 0
        self._done = False

    @property
    def finished(self) -> bool:
        return self._done

    def current(self) -> TextSplit:
        position = self._chunks.position
        if self._lines is not None:
            position = self._chunk_start + self._lines.start_of(self._row)
        return msgspec.structs.replace(self._split, position=position)

    def next_batch(self, max_rows: int) -> Batch | None:
        if self._lines is None:
            self._read_chunk()
        batch = self._take(max_rows) if self._lines is not None else None
        if self._lines is None and self._chunks.finished:
            # All chunks came from the listed file only if it is still unchanged now.
            check_unchanged(self._reading.location, self._listed)
            if self._open_values is not None:
                self._reading.ended.clear()  # splits come file by file
                self._reading.ended[self._split.path] = (self._chunks.position, self._open_values.opened_at)
            self._done = True
        return batch

    def close(self) -> None:
        self._file.close()

    def _read_chunk(self) -> None:
        if self._chunks.finished:
            return
        self._chunk_start = self._chunks.position
        chunk = self._chunks.next_chunk()
        if not chunk:
            return
        lines = decode_lines(self._decoder, chunk, self._empty, self._open_values, self._chunk_start)
        self._row = self._bad_reported = 0
        self._chunk = chunk
        self._chunk_line = self._next_line
        if self._next_line is not None:
            self._next_line += len(lines.lines)
        if lines.bad:
            # A file that was rewritten meanwhile shows bad lines; report the rewrite instead.
            check_unchanged(self._reading.location, self._listed)
        if lines.bad and self._reading.on_bad_record == bad_records.FAIL:
            raise BadRecordError(bad_records.describe(self._bad_records(lines, lines.bad[:1])[0]))
        if lines.columns.num_rows:
            self._lines = lines
        else:
            self._report_bad(lines, lines.bad)

    def _take(self, max_rows: int) -> Batch:
        assert self._lines is not None
        lines, first = self._lines, self._row
        total = lines.columns.num_rows
        last = min(total, first + max_rows)
        columns = lines.columns if last - first == total else lines.columns.slice(first, last - first)
        if self._chunk_line is not None and lines.every_line_is_a_row:
            origin = Origin(self._file.name, self._chunk_line + first, "line")
        else:
            origin = Origin(f"{self._file.name} from byte {self._chunk_start}", first + 1, "record")
        if lines.bad:
            due = [b for b in lines.bad[self._bad_reported :] if b.rows_before <= last]
            self._bad_reported += len(due)
            self._report_bad(lines, due)
        self._row = last
        if last == total:
            self._lines = None
        return Batch(self._reading.record_type, columns=self._columns.complete(columns), origin=origin)

    def _report_bad(self, lines: DecodedLines, bad: list[BadLine]) -> None:
        if not bad:
            return
        self._context.counter("bad_records").inc(len(bad))
        tag = bad_records.side_output_tag(self._reading.on_bad_record)
        if tag is not None:
            self._context.side_output(tag, bad_records.to_batch(self._bad_records(lines, bad)))

    def _bad_records(self, lines: DecodedLines, bad: list[BadLine]) -> list[BadRecord]:
        if self._chunk_line is None:
            self._chunk_line = self._line_counts.lines_before(self._split, self._chunk_start) + 1
            self._next_line = self._chunk_line + len(lines.lines)
        records, line, at = [], self._chunk_line, 0
        for one in bad:
            line += self._chunk.count(b"\n", at, one.offset)
            at = one.offset
            text = one.text.decode("utf-8", "backslashreplace")
            records.append(BadRecord(self._file.name, line, one.reason, text))
        return records


class LineCounts:
    """Counts the lines before an offset of a file, from the last counted offset of that file on."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._known: dict[str, tuple[int, int]] = {}

    def lines_before(self, split: TextSplit, offset: int) -> int:
        """How many lines end before the offset. Reads the file up to there, so only bad lines may ask."""
        start, lines = self._known.get(split.path, (0, 0))
        if start > offset:
            start, lines = 0, 0
        file = TextFile(self._location, split.path, split.size)
        try:
            lines += file.count_lines(start, offset)
        finally:
            file.close()
        self._known = {split.path: (offset, lines)}
        return lines
