"""Quoted values that span lines: finds the lines inside one, which are therefore not records.

In files of one record per line such a value is a mistake, but its lines may look like records and must not become any.
A quote opens a value at the start of a line or after a delimiter. Inside a value two quotes stand for one, and a single
quote closes the value (as in Python's `csv`). If a value is still open `LONGEST_VALUE` bytes after the start of its
first line, a stray quote opened it: later lines count as lines again. So whether a line is inside depends only on the
text before it, and `opened_before` finds it for any line, mostly from a short piece of that text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tidegate.formats.lines import LineTable

LONGEST_VALUE: Final = 1 << 20
"""How far a value that spans lines can reach, in bytes from the start of its first line."""
_NEAR: Final = 16 << 10
"""In a file with quoted values, so many bytes before a place mostly show whether a value is open there."""
_QUOTE: Final = b'"'
_LINE_ENDS: Final = b"\n\r"


class QuotedValues:
    """Follows the lines of a file in order. Used by one thread."""

    def __init__(self, delimiter: str) -> None:
        self._opening = delimiter.encode() + _QUOTE
        self.opened_at: int | None = None
        """Where in the file the line starts that opened the open value; None: no value is open."""

    def follow(self, chunk: bytes, lines: LineTable, offset: int) -> list[int]:
        inside: list[int] = []
        first = 0
        for line in lines.containing(_QUOTE[0]):
            inside += self._reach(lines, offset, first, line + 1)
            start, end = int(lines.starts[line]), int(lines.ends[line])
            opens, still_open = _ends_open(chunk[start:end], self._opening, self.opened_at is not None)
            if opens:
                self.opened_at = offset + start
            elif not still_open:
                self.opened_at = None
            first = line + 1
        inside += self._reach(lines, offset, first, len(lines))
        return inside

    def opened_before(
        self, offset: int, first: int, read: Callable[[int, int], bytes], opened_at: int | None = None
    ) -> int | None:
        """The value of `opened_at` before the line at `offset`, from the text before it.

        `first`: a line before which the value is known (the file's first, or one that a reader has reached), and
        `opened_at` is that value. `read(offset, count)` returns bytes of the file. Searches backwards for a line after
        which the value is certain whatever was open before, or for `LONGEST_VALUE` bytes without a quote that matters.
        It goes back to `first` only if every line on the way opens or closes a value.
        """
        at_first, opened_at = opened_at, None
        changes: list[tuple[int, bool]] = []
        """Lines after the certain one, last first: where each starts, and whether it toggles open and closed."""
        later = offset
        for at, line in _quoted_lines_before(offset, first, read):
            if later > at + LONGEST_VALUE:
                break
            if line is None:
                continue
            from_closed, _ = _ends_open(line, self._opening, is_open=False)
            opens, still_open = _ends_open(line, self._opening, is_open=True)
            if from_closed == (opens or still_open):
                opened_at = at if opens else None
                break
            if from_closed or opens:
                changes.append((at, from_closed))
                later = at
        else:
            if at_first is not None and later <= at_first + LONGEST_VALUE:
                opened_at = at_first
        for at, turns in reversed(changes):
            if turns:
                opened_at = at if opened_at is None else None
            elif opened_at is not None:
                opened_at = at  # the line closes the value and opens another
        return opened_at

    def _reach(self, lines: LineTable, offset: int, first: int, end: int) -> range:
        """Which of the lines `first` to `end` the open value reaches; it is dropped if it does not reach all."""
        if self.opened_at is None:
            return range(0)
        reached = int(np.searchsorted(lines.starts, self.opened_at + LONGEST_VALUE - offset, "right"))
        if reached < end:
            self.opened_at = None
        return range(first, min(end, reached))


class QuoteRules:
    """The rules for quotes in a line: those of Python's `csv` in strict mode.

    A value that starts with a quote ends with one, at the end of the line or before a delimiter, and doubles each quote
    inside. In a value that does not start with a quote, quotes are ordinary characters.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter.encode()
        separator = re.escape(self._delimiter)
        value = rb'(?:"[^"]*+(?:""[^"]*+)*+"|[^"%b][^%b]*+|)' % (separator, separator)
        self._line = re.compile(value + b"(?:" + separator + value + rb")*+")
        self._fit = np.zeros(256, np.bool_)
        self._fit[list(self._delimiter + _QUOTE + _LINE_ENDS)] = True

    def check(self, chunk: bytes, lines: LineTable) -> str | None:
        """Why a line of the chunk breaks the rules; None if all lines keep them."""
        if _QUOTE not in chunk or self._all_quoted(lines):
            return None
        for line in lines.containing(_QUOTE[0]):
            text = chunk[lines.starts[line] : lines.ends[line]]
            if self._line.fullmatch(text) is None:
                if any(_ends_open(text, self._delimiter + _QUOTE, is_open=False)):
                    return "a quoted value does not end on its line"
                return "a quoted value has text after its closing quote"
        return None

    def _all_quoted(self, lines: LineTable) -> bool:
        """Whether all quotes alternately open and close values; a doubled quote closes the value and opens it again."""
        quotes = np.flatnonzero(lines.bytes == _QUOTE[0])
        if (np.searchsorted(quotes, lines.ends) & 1).any():
            return False
        opening, closing = quotes[0::2], quotes[1::2]
        starts_well = self._fit.take(lines.bytes.take(opening - 1, mode="wrap"))
        starts_well |= opening == 0
        ends_well = self._fit.take(lines.bytes.take(closing + 1, mode="clip"))
        return bool(starts_well.all() and ends_well.all())


def _quoted_lines_before(
    offset: int, first: int, read: Callable[[int, int], bytes]
) -> Iterator[tuple[int, bytes | None]]:
    """The lines with a quote before `offset`, last first, each with its start; None: no more from this place on."""
    end, size = offset, _NEAR
    while end > first:
        start = max(first, end - size)
        text = read(start, end - start)
        if start > first:
            text = text[text.find(b"\n") + 1 :]
        if not text:  # no line starts in this piece
            size *= 2
            continue
        start, size = end - len(text), max(size, LONGEST_VALUE + _NEAR)
        if _QUOTE in text:
            lines = LineTable(text)
            quoted = lines.containing(_QUOTE[0])[::-1]
            for at, to in zip(lines.starts[quoted].tolist(), lines.ends[quoted].tolist(), strict=True):
                yield start + at, text[at:to]
        yield start, None
        end = start


def _ends_open(line: bytes, opening: bytes, is_open: bool) -> tuple[bool, bool]:
    """Whether a value that the line opens is open at its end; whether the value open before the line still is."""
    at, opens = 0, False
    if not is_open and line.startswith(_QUOTE):
        at, is_open, opens = 1, True, True
    while True:
        if is_open:
            while (at := line.find(_QUOTE, at) + 1) and line.startswith(_QUOTE, at):
                at += 1
            if not at:
                return opens, not opens
        at = line.find(opening, at) + len(opening)
        if at < len(opening):
            return False, False
        is_open = opens = True
