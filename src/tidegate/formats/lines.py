"""Decodes whole lines to records and finds the bad lines: what all text formats share.

A `LineDecoder` decodes all lines or none: it is fast because it need not say which line is bad. `decode_lines` first
asks it for all lines. If it refuses, `decode_lines` bisects the lines until each bad one stands alone. So a line is bad
exactly if the decoder refuses it by itself, or if it starts inside a value that an earlier line opened, however the
input was cut into chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.core.errors import SchemaError
from tidegate.records.canonical import in_canonical_form
from tidegate.records.value_codecs import Canonical

_NEWLINE = 10
_CARRIAGE_RETURN = 13
_LOOK_AT_EACH = 256
_INSIDE = "inside a quoted value that an earlier line opened"


class LinesRefused(Exception):
    """At least one line is not a record of the schema; for a single line the message is the reason."""


class LineTable:
    """The lines of a chunk: their number, their first and last bytes, and (computed on demand) their places."""

    def __init__(self, chunk: bytes) -> None:
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(chunk, np.uint8)
        self._unended = len(chunk) > 0 and not chunk.endswith(b"\n")
        self._count: int | None = None

    def __len__(self) -> int:
        if self._count is None:
            self._count = int(np.count_nonzero(self._is_newline)) + self._unended
        return self._count

    def counted(self, lines: int) -> None:
        """Set the number of lines, known from a decoder that counted them itself."""
        self._count = lines

    @cached_property
    def _is_newline(self) -> npt.NDArray[np.bool_]:
        return self.bytes == _NEWLINE

    def enclosed_by(self, first: int, last: int) -> bool:
        """Whether every line starts with one byte and ends with another (before its line end)."""
        if not len(self) or self.bytes[0] != first:
            return False
        # Compare both neighbours of all newlines at once: half the cost of finding the newlines' places.
        between = self.bytes[2:] == first
        between &= self._is_newline[1:-1]
        between &= self.bytes[:-2] == last
        text = self.bytes
        ends_well = text[-1 if self._unended else -2] == last
        if ends_well and np.count_nonzero(between) == len(self) - 1:
            return True
        if self.has_blank_lines():
            return False
        return bool((text[self.starts] == first).all() and (text[self.ends - 1] == last).all())

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        starts = np.zeros(len(self), np.int64)
        starts[1:] = self._line_ends[:-1] + 1
        return starts

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """Where each line ends, without newline and carriage return."""
        ends = self._line_ends
        if not len(ends):
            return ends
        returns = (self.bytes[ends - 1] == _CARRIAGE_RETURN) & (ends > self.starts)
        return ends - returns

    @cached_property
    def _line_ends(self) -> npt.NDArray[np.int64]:
        newlines = np.flatnonzero(self._is_newline)
        return np.append(newlines, len(self.bytes)) if self._unended else newlines

    def containing(self, byte: int) -> list[int]:
        """The indices of the lines that contain this byte (not a newline)."""
        places = np.flatnonzero(self.bytes == byte)
        return np.unique(np.searchsorted(self._line_ends, places)).tolist() if len(places) else []

    def has_blank_lines(self) -> bool:
        """Whether a line is empty; a line of spaces is not."""
        return bool((self.ends == self.starts).any())


class LineDecoder(ABC):
    """Decodes lines to the columns of a schema, strictly; used by one thread."""

    blank: bytes | None
    """A line of only these bytes is not a record; None: every line is one, also an empty one."""

    @abstractmethod
    def decode(self, chunk: bytes, lines: LineTable) -> pa.RecordBatch:
        """Decode a chunk of whole lines, none of them `blank`, to one row per line.

        Raises `LinesRefused` if any line is not exactly one record, or if it cannot decide (blank lines).
        """

    def look(self, line: bytes) -> str | None:
        """The reason to refuse a single line, if it can be found more cheaply than by `decode`; None: decode it."""
        return None


class CanonicalDecoder(LineDecoder):
    """Brings another decoder's values into canonical form; refuses a line whose value has none."""

    def __init__(self, decoder: LineDecoder, canonical: Mapping[str, Canonical]) -> None:
        self._decoder = decoder
        self._canonical = canonical
        self.blank = decoder.blank

    def decode(self, chunk: bytes, lines: LineTable) -> pa.RecordBatch:
        columns = self._decoder.decode(chunk, lines)
        try:
            return in_canonical_form(columns, self._canonical)
        except SchemaError as e:
            raise LinesRefused(str(e)) from None

    def look(self, line: bytes) -> str | None:
        return self._decoder.look(line)


class OpenValues(Protocol):
    """Tracks values that span several lines of a file, in a format where they can."""

    opened_at: int | None
    """Where the open value's first line starts; None: no value is open, so the next line starts a record."""

    def follow(self, chunk: bytes, lines: LineTable, offset: int) -> list[int]:
        """Advance by a chunk of whole lines at `offset` in the file; returns the lines that start inside a value."""

    def opened_before(
        self, offset: int, first: int, read: Callable[[int, int], bytes], opened_at: int | None = None
    ) -> int | None:
        """The value of `opened_at` before the line at `offset`, given its value before the line at `first`."""


class BadLine(NamedTuple):
    """A line that is not a record."""

    offset: int
    """Where the line starts in the chunk."""
    rows_before: int
    """How many rows of the chunk come before the line."""
    reason: str
    text: bytes


@dataclass(frozen=True)
class DecodedLines:
    """The records of a chunk, and its bad lines."""

    columns: pa.RecordBatch
    bad: list[BadLine]
    lines: LineTable
    """All lines, bad and blank ones included."""
    row_starts: npt.NDArray[np.int64] | None = None
    """Where the line of each row starts in the chunk; None if every line is a row."""

    @property
    def every_line_is_a_row(self) -> bool:
        """Whether there is neither a bad nor a blank line."""
        return self.columns.num_rows == len(self.lines)

    def start_of(self, row: int) -> int:
        """Where the line of a row starts in the chunk."""
        starts = self.lines.starts if self.row_starts is None else self.row_starts
        return int(starts[row])


def decode_lines(
    decoder: LineDecoder,
    chunk: bytes,
    empty: pa.RecordBatch,
    values: OpenValues | None = None,
    offset: int = 0,
) -> DecodedLines:
    """Decode a chunk of whole lines; blank lines are neither records nor bad.

    `empty`: the columns without rows. `values` knows whether a value is open before the chunk, which is at `offset` in
    its file, and advances to the end of the chunk.
    """
    table = LineTable(chunk)
    if values is None or values.opened_at is None:
        try:
            return DecodedLines(decoder.decode(chunk, table), [], table)
        except LinesRefused:
            pass
    inside = set(values.follow(chunk, table, offset)) if values is not None else set()
    starts: list[int] = []
    lines: list[bytes] = []
    refused: dict[int, str] = {}
    for number, (start, end) in enumerate(zip(table.starts.tolist(), table.ends.tolist(), strict=True)):
        line = chunk[start:end]
        line = line.rstrip(b"\r") if decoder.blank is None else line.strip(decoder.blank)
        if line or decoder.blank is None:
            if number in inside:
                refused[len(lines)] = _INSIDE
            starts.append(start)
            lines.append(line)
    good: list[pa.RecordBatch] = []
    if len(lines) > len(refused):
        _halve(decoder, lines, [i for i in range(len(lines)) if i not in refused], good, refused)
    bad = []
    for rank, index in enumerate(sorted(refused)):
        bad.append(BadLine(starts[index], index - rank, refused[index], lines[index]))
    kept = [s for i, s in enumerate(starts) if i not in refused] if refused else starts
    return DecodedLines(concat(good, empty), bad, table, np.array(kept, np.int64))


def _halve(
    decoder: LineDecoder,
    lines: list[bytes],
    chosen: Sequence[int],
    good: list[pa.RecordBatch],
    refused: dict[int, str],
) -> None:
    """Decode the chosen lines into `good`, in order; find the refused ones by bisection."""
    chunk = b"\n".join([lines[i] for i in chosen]) + b"\n"
    try:
        good.append(decoder.decode(chunk, LineTable(chunk)))
        return
    except LinesRefused as e:
        reason = str(e)
    if len(chosen) <= _LOOK_AT_EACH:
        found = {i: why for i in chosen if (why := decoder.look(lines[i])) is not None}
        refused.update(found)
        rest = [i for i in chosen if i not in found]
        if found:
            if rest:
                _halve(decoder, lines, rest, good, refused)
            return
    if len(chosen) == 1:
        refused[chosen[0]] = reason
        return
    middle = len(chosen) // 2
    _halve(decoder, lines, chosen[:middle], good, refused)
    _halve(decoder, lines, chosen[middle:], good, refused)


def concat(batches: list[pa.RecordBatch], empty: pa.RecordBatch) -> pa.RecordBatch:
    """Concatenate batches whose schemas differ at most in dictionary encoding; dictionaries are unified."""
    if not batches:
        return empty
    if len(batches) == 1:
        return batches[0]
    if any(not b.schema.equals(batches[0].schema) for b in batches):
        # A column is dictionary-encoded in some batches only.
        batches = [_without_dictionaries(b) for b in batches]
    if any(pa.types.is_dictionary(t) for t in batches[0].schema.types):
        table: Any = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
        return table.to_batches()[0]
    return pa.concat_batches(batches)


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    fields = [pa.field(f.name, a.type, f.nullable) for f, a in zip(batch.schema, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
