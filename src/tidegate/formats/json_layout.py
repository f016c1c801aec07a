"""The layout that machine-written JSON lines share, and the proof that all lines of a chunk have it.

A program that writes JSON lines writes the same keys in the same order with the same spaces, and only the values
differ. Where that is so nothing need be parsed: the skeleton of the first line, its text without the values, must be
that of every line. The proof is strict. `Layout.values` gives the values of a chunk only if

1. it is UTF-8 without backslashes, so that quotes are exactly what begins and ends a string; their number is even;
2. no string has a control character;
3. behind each colon outside of strings (and the layout's spaces) there is one value, and nowhere else: a whole string,
   or a run of the characters of numbers and literals; these runs are numbers of JSON's grammar, or literals;
4. what is left without the values is the skeleton, as many times as there are lines.

Then each line is the first line with other values, and that one was a flat JSON object. For anything else the
answer is None, also for much that is valid: an escape, a nested value, a number with an exponent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.formats.byte_marks import MarkedText, Marks, moved_down, moved_up, quoted, runs_from
from tidegate.formats.byte_windows import Positions, words_at

_STRING = rb'"[^"\\\x00-\x1f]*"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
_MEMBER = re.compile(
    rb"( *(" + _STRING + rb") *:( *))(?:" + _STRING + rb"|" + _NUMBER + rb"|true|false|null)( *)([,}])"
)
_LINE_END = re.compile(rb"\r?\n")
# Far beyond what programs write.
_MOST_SPACES = 8
_LINES_LOOKED_AT = 8

_TRUE, _NULL, _FALSE = (np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"null", b"false"))
_FOUR_BYTES, _FIVE_BYTES = np.uint64((1 << 32) - 1), np.uint64((1 << 40) - 1)


@dataclass(frozen=True)
class Layout:
    """What all lines have in common."""

    keys: tuple[str, ...]
    skeleton: bytes
    """A line without its values, with its end."""
    spaces: int
    """How many spaces there are between a colon and the value."""
    signs: bool
    """Whether numbers may have a sign or a fraction; if not, they are shown to have none."""
    literals: bool
    """Whether there may be `true`, `false` and `null`; if not, there is none."""
    _repeated: list[pa.Buffer] = field(default_factory=list, compare=False, repr=False)

    def is_likely(self, chunk: bytes) -> bool:
        """Whether some lines, here and there, have this layout: a look that costs little beside the proof."""
        for part in range(1, _LINES_LOOKED_AT + 1):
            end = chunk.rfind(b"\n", 0, len(chunk) * part // _LINES_LOOKED_AT)
            line = _look_at_line(chunk, chunk.rfind(b"\n", 0, max(end, 0)) + 1)
            if end >= 0 and (line is None or line.skeleton != self.skeleton):
                return False
        return True

    def values(self, text: PlainText) -> LineValues | None:
        """The values of whole lines; None if it is not shown that all of them have this layout."""
        inside = text.inside
        if inside is None:
            return None
        outside = ~inside
        places = moved_up(text.where(":") & outside, 1 + self.spaces)
        scalars = self._scalars(text, outside, places)
        if scalars is None:
            return None
        openings = places & text.quotes
        openings &= inside
        starts = scalars & ~moved_up(scalars, 1)
        starts |= openings
        if not np.array_equal(starts, places):
            return None
        values = runs_from(inside, openings)
        values |= scalars
        rest = text.unmarked(values)
        lines = -(-rest.size // len(self.skeleton))
        missing_end = 0 if text.text.endswith(b"\n") else 1
        if not rest.equals(self._skeletons(lines).slice(0, lines * len(self.skeleton) - missing_end)):
            return None
        # As many control characters as line ends in the skeletons: there is none in a string.
        if text.count_controls() != lines - missing_end and (text.where_control() & inside).any():
            return None
        bounds = moved_up(values, 1)
        bounds &= ~values
        bounds |= places
        return LineValues(self, text, lines, bounds)

    def _scalars(self, text: PlainText, outside: Marks, places: Marks) -> Marks | None:
        """The numbers and literals, if all of them that start at `places` are right; None if one is not."""
        digits = text.where_digit() & outside
        if not self.signs and not self.literals:
            return None if _has_leading_zero(text, digits, places) else digits
        none: Marks = np.zeros_like(digits)
        minus = text.where("-") & outside if self.signs else none
        dots = text.where(".") & outside if self.signs else none
        if self.signs:
            behind_minus = moved_up(minus, 1)
            if (minus & ~places).any() or (behind_minus & ~digits).any():
                return None
            if (dots & ~(moved_up(digits, 1) & moved_down(digits))).any():
                return None
            # A fraction goes on to its last digit, and behind that there is no other dot.
            if (runs_from(digits, moved_up(dots, 1)) & dots).any():
                return None
            if _has_leading_zero(text, digits, places | behind_minus):
                return None
        elif _has_leading_zero(text, digits, places):
            return None
        scalars: Marks = digits | minus | dots
        if not self.literals:
            return scalars
        letters = text.where_letter() & outside
        behind_letter = moved_up(letters, 1)
        if (letters & ~(places | behind_letter)).any() or (behind_letter & scalars).any():
            return None
        return scalars | letters if _are_literals(text, letters, places) else None

    def _skeletons(self, lines: int) -> pa.Buffer:
        if not self._repeated or self._repeated[0].size < lines * len(self.skeleton):
            self._repeated[:] = [pa.py_buffer(self.skeleton * (lines + lines // 8))]
        return self._repeated[0]


class LineValues:
    """The values of all lines of a chunk: strings with their quotes, numbers and literals, all shown to be right."""

    def __init__(self, layout: Layout, text: PlainText, lines: int, bounds: Marks) -> None:
        self.layout = layout
        self.chunk = text.text
        self.bytes = text.bytes
        self.lines = lines
        self._text = text
        self._bounds = bounds

    def of(self, key: str) -> tuple[Positions, Positions]:
        """Where the values of a key start and end."""
        column = 2 * self.layout.keys.index(key)
        last_line = self.chunk.rfind(b"\n", 0, len(self.chunk) - 1) + 1
        starts, ends = self._table[:, column], self._table[:, column + 1]
        if len(self.chunk) - last_line < self._limit:
            steps = np.empty_like(starts)
            steps[0] = starts[0]
            np.subtract(starts[1:], starts[:-1], out=steps[1:])
            whole = np.cumsum(steps, dtype=np.int64)
            # A step of the limit or more would be missing in the sum, which then does not arrive at the last line.
            if whole[-1] >= last_line:
                return whole, whole + (ends - starts)
        table = self._text.positions(self._bounds, np.uint32).reshape(self.lines, -1)
        return table[:, column].astype(np.int64), table[:, column + 1].astype(np.int64)

    @cached_property
    def _table(self) -> npt.NDArray[np.unsignedinteger]:
        """The lower bits of the bounds of all values: the fewer bits, the faster they are found."""
        dtype = np.uint8 if len(self.chunk) < 128 * self.lines else np.uint16
        return self._text.positions(self._bounds, dtype).reshape(self.lines, -1)

    @property
    def _limit(self) -> int:
        return int(np.iinfo(self._table.dtype).max)


class PlainText(MarkedText):
    """UTF-8 without backslashes: in JSON of it, quotes are exactly what begins and ends a string."""

    @classmethod
    def of(cls, chunk: bytes) -> PlainText | None:
        """The text of a chunk; None if it is not plain, or so long that a position would not fit in 31 bits."""
        if not 0 < len(chunk) < 1 << 31 or b"\\" in chunk:
            return None
        text = cls(chunk)
        if text.bytes.max() >= 128:
            try:
                chunk.decode()
            except UnicodeDecodeError:
                return None
        return text

    @cached_property
    def quotes(self) -> Marks:
        """All quotes."""
        return self.where('"')

    @cached_property
    def inside(self) -> Marks | None:
        """The strings, without their closing quotes; None if the last is not closed."""
        return quoted(self.quotes)


def learn_layout(text: PlainText) -> Layout | None:
    """The layout of the first line, with what kinds of values the text has; None if it is not a simple one."""
    line = _look_at_line(text.text, 0)
    if line is None or text.inside is None:
        return None
    outside = ~text.inside
    signs = bool(((text.where("-") | text.where(".")) & outside).any())
    literals = bool((text.where_letter() & outside).any())
    return Layout(line.keys, line.skeleton, line.spaces, signs, literals)


class _Line(NamedTuple):
    keys: tuple[str, ...]
    skeleton: bytes
    spaces: int


def _look_at_line(chunk: bytes, start: int) -> _Line | None:
    """The line that starts here, if it is a flat object of different keys, with as many spaces behind each colon."""
    keys: list[str] = []
    skeleton = [b"{"]
    spaces = set()
    at = start + 1
    while (member := _MEMBER.match(chunk, at)) is not None:
        keys.append(member[2][1:-1].decode())
        skeleton += [member[1], member[4], member[5]]
        spaces.add(len(member[3]))
        at = member.end()
        if member[5] == b"}":
            break
    end = _LINE_END.match(chunk, at)
    if not chunk.startswith(b"{", start) or skeleton[-1] != b"}" or end is None:
        return None
    if len(set(keys)) < len(keys) or len(spaces) > 1 or max(spaces) > _MOST_SPACES:
        return None
    return _Line(tuple(keys), b"".join([*skeleton, end[0]]), spaces.pop())


def _has_leading_zero(text: PlainText, digits: Marks, starts: Marks) -> bool:
    return bool((text.where("0") & starts & moved_down(digits)).any())


def _are_literals(text: PlainText, letters: Marks, places: Marks) -> bool:
    """Whether runs of letters, each of which starts at a place, are all `true`, `false` or `null`."""
    starts = text.positions(letters & places, np.uint32).astype(np.int64)
    words = words_at(text.text, starts, 1)[:, 0]
    four = words & _FOUR_BYTES
    fours = np.count_nonzero((four == _TRUE) | (four == _NULL))
    fives = np.count_nonzero((words & _FIVE_BYTES) == _FALSE)
    # All runs begin as a literal does; with no more letters than that, none goes on.
    return fours + fives == len(starts) and 4 * fours + 5 * fives == text.count(letters)
