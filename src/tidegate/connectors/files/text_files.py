"""Text files, plain or compressed, as chunks of whole lines from any byte on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.connectors.files.paths import FileChangedError, InputFileError, Location
from tidegate.connectors.files.splits import compression_of

BOM = b"\xef\xbb\xbf"
_STEP = 64 << 10
_REMOTE_READ = 8 << 20


class TextFile:
    """Reads bytes at an offset. In a compressed file the offset counts uncompressed bytes; going back is costly."""

    def __init__(self, location: Location, path: str, size: int) -> None:
        self._location = location
        self._path = path
        self._size = size
        self.name = location.show(path)
        self.compression = compression_of(path)
        self._file: Any = None
        self._offset = 0
        self._ahead = b""
        self._ahead_start = 0

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer only at the end of the file."""
        try:
            if self.compression is not None:
                return self._read_compressed(offset, count)
            return self._read_plain(offset, min(count, self._size - offset))
        except (pa.ArrowException, OSError) as e:
            raise InputFileError(f"{self.name} cannot be read at byte {offset}: {e}") from e

    def _read_plain(self, offset: int, count: int) -> bytes:
        if count <= 0:
            return b""
        if self._file is None:
            self._file = self._location.filesystem.open_input_file(self._path)
        if self._location.is_local:
            data: bytes = self._file.read_at(count, offset)
        else:
            # Each request to a remote store is expensive: read ahead.
            if not self._ahead_start <= offset <= offset + count <= self._ahead_start + len(self._ahead):
                size = min(max(count, _REMOTE_READ), self._size - offset)
                self._ahead, self._ahead_start = self._file.read_at(size, offset), offset
            data = self._ahead[offset - self._ahead_start :][:count]
        if len(data) < count:
            raise FileChangedError(
                f"{self.name} ends at byte {offset + len(data)} but had {self._size} bytes when it was listed: "
                f"it was truncated while it was read. Files must not change once they are there."
            )
        return data

    def _read_compressed(self, offset: int, count: int) -> bytes:
        if self._ahead_start <= offset < self._ahead_start + len(self._ahead):
            kept = self._ahead[offset - self._ahead_start :][:count]
        else:
            kept = b""
        if self._file is None or offset + len(kept) < self._offset:
            self.close()
            self._file = self._location.filesystem.open_input_stream(self._path, compression=self.compression)
            self._offset, kept = 0, b""
        while self._offset < offset:
            skipped = len(self._file.read(min(1 << 20, offset - self._offset)))
            if not skipped:
                return b""
            self._offset += skipped
        parts, missing = [kept], count - len(kept)
        while missing > 0:
            part = self._file.read(missing)
            if not part:
                break
            parts.append(part)
            self._offset += len(part)
            missing -= len(part)
        data = b"".join(parts)
        # The next chunk asks again for the unfinished line at the end of this one.
        self._ahead, self._ahead_start = data, offset
        return data

    def first_line(self) -> tuple[bytes, int]:
        """The first line without byte order mark and line end, and the offset of the second line."""
        text, end = self.line_end(0)
        line = text[:end]
        return (line[len(BOM) :] if line.startswith(BOM) else line).rstrip(b"\r\n"), end

    def first_line_start(self, has_header: bool) -> int:
        """The offset of the first record: after the header, or after the byte order mark."""
        if has_header:
            return self.first_line()[1]
        return len(BOM) if self.read(0, len(BOM)) == BOM else 0

    def line_end(self, offset: int) -> tuple[bytes, int]:
        """The bytes from `offset` on, and the offset after the first newline in them (or the file's end)."""
        parts, at = [], offset
        while True:
            data = self.read(at, _STEP)
            parts.append(data)
            newline = data.find(b"\n")
            if newline >= 0 or len(data) < _STEP:
                end = at + newline + 1 if newline >= 0 else at + len(data)
                return b"".join(parts), end
            at += len(data)

    def count_lines(self, start: int, end: int) -> int:
        """How many lines end in a range of the file."""
        count = 0
        while start < end:
            data = self.read(start, min(4 << 20, end - start))
            if not data:
                break
            count += data.count(b"\n")
            start += len(data)
        return count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._ahead = b""


class LineChunks:
    """The lines that start in a range of a file, as chunks of whole lines.

    `position` is where the next chunk starts, always at the start of a line.
    """

    def __init__(
        self,
        file: TextFile,
        start: int,
        end: int | None,
        position: int | None,
        *,
        chunk_size: int,
        max_line_size: int,
        has_header: bool,
    ) -> None:
        self._file = file
        self._end = end
        self._chunk_size = chunk_size
        self._max_line_size = max_line_size
        self.finished = False
        self.position = self._first(start, has_header) if position is None else position
        if end is not None and self.position >= end:
            self.finished = True

    def _first(self, start: int, has_header: bool) -> int:
        """The offset of the first line that belongs to the range."""
        # A byte order mark belongs to no line: the first line is in the range that has the byte after the mark.
        first = self._file.first_line_start(has_header) if start <= len(BOM) else 0
        return first if start <= first else self._file.line_end(start - 1)[1]

    def next_chunk(self) -> bytes:
        """The next lines, about a chunk in size; empty at the end of the range. Moves `position`."""
        size = self._chunk_size
        if self._end is not None:
            size = min(size, self._end - self.position)
        if size <= 0:
            self.finished = True
            return b""
        data = self._file.read(self.position, size)
        at_end = len(data) < size
        if self._end is not None and self.position + len(data) >= self._end:
            # The last line of the range may end after the range.
            data = self._complete_line(data)
            self.finished = True
        elif not at_end:
            cut = data.rfind(b"\n") + 1
            data = data[:cut] if cut else self._complete_line(data)
        else:
            self.finished = True
        self.position += len(data)
        return data

    def _complete_line(self, data: bytes) -> bytes:
        parts, length = [data], len(data)
        while not parts[-1].endswith(b"\n"):
            more = self._file.read(self.position + length, _STEP)
            if not more:
                break
            cut = more.find(b"\n") + 1
            parts.append(more[:cut] if cut else more)
            length += len(parts[-1])
            if length - len(data) > self._max_line_size:
                raise InputFileError(
                    f"{self._file.name} has a line of more than {self._max_line_size} bytes near byte "
                    f"{self.position}. Is it a text file of one record per line?"
                )
        return b"".join(parts)
