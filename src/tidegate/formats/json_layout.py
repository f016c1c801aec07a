"""The layout that machine-written JSON lines share, and the proof that all lines of a chunk have it.

A program that writes JSON lines writes the same keys in the same order with the same spaces, and only the values
differ. Where that is so nothing need be parsed: every line must be the pieces of the first one with other values
between them. `Layout.values` gives the values of a chunk only if each line is

1. the pieces of the first line that are not values, byte for byte, which make up a flat JSON object;
2. between each two of them one value: a string without backslashes and control characters, a number of JSON's grammar
   without exponent, or a literal;

and if all of it is UTF-8. For anything else the answer is None, also for much that is valid: an escape, a nested value,
a number with an exponent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tidegate.formats.line_loops import (
    HAS_HIGH_BYTES,
    HAS_LITERALS,
    HAS_SIGNS,
    WORD,
    Integers,
    Text,
    Words,
    padded,
    scan_lines,
)

_STRING = rb'"[^"\\\x00-\x1f]*"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
_MEMBER = re.compile(
    rb"( *(" + _STRING + rb") *: *)(?:" + _STRING + rb"|" + _NUMBER + rb"|true|false|null)( *[,}])"
)
_LINE_END = re.compile(rb"\r?\n")
_LINES_LOOKED_AT = 8
_LONGEST_CHUNK = (1 << 31) - 64


@dataclass(frozen=True)
class Layout:
    """What all lines have in common."""

    keys: tuple[str, ...]
    pieces: tuple[bytes, ...]
    """A line without its values: what comes before the first, between each two, and behind the last, with the end."""

    def is_likely(self, chunk: bytes) -> bool:
        """Whether some lines, here and there, have this layout: a look that costs little beside the proof."""
        for part in range(1, _LINES_LOOKED_AT + 1):
            end = chunk.rfind(b"\n", 0, len(chunk) * part // _LINES_LOOKED_AT)
            if end >= 0 and layout_of_line(chunk, chunk.rfind(b"\n", 0, end) + 1) != self:
                return False
        return True

    def values(self, chunk: bytes, keys: Sequence[str]) -> LineValues | None:
        """Where the values of some keys are in whole lines; None if it is not shown that all have this layout."""
        if not 0 < len(chunk) < _LONGEST_CHUNK:
            return None
        text, size = padded(chunk)
        # A value has at least one byte.
        most_lines = size // (sum(map(len, self.pieces)) + len(self.keys)) + 1
        rows = np.array([keys.index(key) if key in keys else -1 for key in self.keys], np.int64)
        starts, ends = np.empty((2, len(keys), most_lines), np.int32)
        lines, met = scan_lines(text, size, *self._loaded, rows, starts, ends)
        if lines < 0:
            return None
        if met & HAS_HIGH_BYTES:
            try:
                chunk.decode()
            except UnicodeDecodeError:
                return None
        found = ((key, row) for key, row in zip(self.keys, rows.tolist(), strict=True) if row >= 0)
        places = {key: (starts[row, :lines], ends[row, :lines]) for key, row in found}
        return LineValues(chunk, text, lines, bool(met & HAS_SIGNS), bool(met & HAS_LITERALS), places)

    @cached_property
    def _loaded(self) -> _LoadedPieces:
        """The pieces as words."""
        whole = [piece.ljust(-(-len(piece) // WORD) * WORD, b"\0") for piece in self.pieces]
        masks = [(b"\xff" * len(p)).ljust(len(w), b"\0") for p, w in zip(self.pieces, whole, strict=True)]
        return _LoadedPieces(
            np.frombuffer(b"".join(whole), np.uint64).copy(),
            np.frombuffer(b"".join(masks), np.uint64).copy(),
            np.cumsum([len(w) // WORD for w in whole], dtype=np.uint64),
            np.array([len(piece) for piece in self.pieces], np.uint64),
        )


class _LoadedPieces(NamedTuple):
    words: Words
    masks: Words
    ends: Words
    sizes: Words


class LineValues(NamedTuple):
    """The values of lines with one layout: strings with their quotes, numbers and literals, all shown to be right."""

    chunk: bytes
    text: Text
    """The chunk, padded."""
    lines: int
    has_signs: bool
    """Whether a number has a sign or a fraction, of any key."""
    has_literals: bool
    """Whether there is a `true`, `false` or `null`, of any key."""
    places: dict[str, tuple[Integers, Integers]]
    """By key, where its values start and end; of the keys that were asked for and that the layout has."""


def layout_of_line(chunk: bytes, start: int) -> Layout | None:
    """The layout of the line that starts here; None if it is not a flat object of different keys."""
    keys: list[str] = []
    pieces = [b"{"]
    at = start + 1
    while (member := _MEMBER.match(chunk, at)) is not None:
        try:
            keys.append(member[2][1:-1].decode())
        except UnicodeDecodeError:
            return None
        pieces[-1] += member[1]
        pieces.append(member[3])
        at = member.end()
        if member[3].endswith(b"}"):
            break
    end = _LINE_END.match(chunk, at)
    if not chunk.startswith(b"{", start) or not pieces[-1].endswith(b"}") or end is None:
        return None
    if len(set(keys)) < len(keys):
        return None
    pieces[-1] += end[0]
    return Layout(tuple(keys), tuple(pieces))
