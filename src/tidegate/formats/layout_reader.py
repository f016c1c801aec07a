"""Reads JSON lines by their common layout if they have one, and tries less often if they do not."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidegate.formats.json_layout import Layout, LineValues, layout_of_line
from tidegate.formats.json_values import ReadColumn, column_reader
from tidegate.formats.learned_dictionary import LearnedDictionary

# The calls cost as much as parsing about fifty lines; with this many lines the reader takes half the parser's time.
_FEWEST_LINES = 512
_FIRST_PAUSE = 16
_LONGEST_PAUSE_BYTES = 128 << 20


class Attempts:
    """Decides when to try again: at once after a success, and after pauses that double with each failure.

    So a file without a common layout costs little more than parsing it, and a file with a bad line now and then is
    mostly read at the low cost.
    """

    def __init__(self) -> None:
        self._worked = False
        self._pause_bytes = 0
        self._left_bytes = 0

    @property
    def doubtful(self) -> bool:
        """Whether the last attempt failed, or there was none yet."""
        return not self._worked

    def due(self, size: int) -> bool:
        """Whether to try with the next chunk, of this size."""
        if self._left_bytes <= 0:
            return True
        self._left_bytes -= size
        return False

    def succeeded(self) -> None:
        self._worked = True
        self._pause_bytes = 0

    def failed(self, size: int) -> None:
        """Pause for some chunks of this size, twice as long as the last time; the first failure is free."""
        if self._worked:
            self._worked = False
            return
        self._pause_bytes = min(max(2 * self._pause_bytes, _FIRST_PAUSE * size), _LONGEST_PAUSE_BYTES)
        self._left_bytes = self._pause_bytes


class LayoutReader:
    """Reads chunks whose lines all have one layout: the last chunk's, or that of the first line.

    It returns what the parser would return, or None if the parser must read the chunk.
    """

    def __init__(self, fields: Sequence[pa.Field], fewest_lines: int = _FEWEST_LINES) -> None:
        self._fields = fields
        self._names = [field.name for field in fields]
        self._fewest_lines = fewest_lines
        self._readers: list[ReadColumn] = [r for f in fields if (r := column_reader(f.type)) is not None]
        # The loops rely on the first byte of a word being its lowest.
        self._possible = 0 < len(fields) == len(self._readers) and sys.byteorder == "little"
        self._layout: Layout | None = None
        self._attempts = Attempts()

    def read(self, chunk: bytes, learned: Mapping[int, LearnedDictionary]) -> list[pa.Array] | None:
        """The columns of a chunk of whole lines; those in `learned` are encoded with these dictionaries."""
        if not self._possible or len(chunk) < self._fewest_lines * (chunk.find(b"\n") + 1):
            return None
        if not all(dictionary.has_short_values for dictionary in learned.values()):
            return None
        if not self._attempts.due(len(chunk)):
            return None
        values = self._values(chunk)
        arrays = None if values is None else self._columns(values, learned)
        if arrays is None:
            self._attempts.failed(len(chunk))
        else:
            self._attempts.succeeded()
        return arrays

    def _values(self, chunk: bytes) -> LineValues | None:
        known = self._layout
        if known is not None and (not self._attempts.doubtful or known.is_likely(chunk)):
            values = known.values(chunk, self._names)
            if values is not None:
                return values
        layout = layout_of_line(chunk, 0)
        if layout is None or layout == known or not layout.is_likely(chunk):
            return None
        self._layout = layout
        return layout.values(chunk, self._names)

    def _columns(self, values: LineValues, learned: Mapping[int, LearnedDictionary]) -> list[pa.Array] | None:
        arrays = []
        for i, (field, read) in enumerate(zip(self._fields, self._readers, strict=True)):
            array = self._column(values, field, read, learned.get(i))
            if array is None:
                return None
            arrays.append(array)
        return arrays

    def _column(
        self, values: LineValues, field: pa.Field, read: ReadColumn, learned: LearnedDictionary | None
    ) -> pa.Array | None:
        if field.name not in values.places:
            return pa.nulls(values.lines, field.type) if field.nullable else None
        if learned is None:
            return read(values, field)
        array = learned.encode_tokens(values.text, *values.places[field.name])
        return None if array is not None and array.null_count and not field.nullable else array
