"""The layout that machine-written JSON lines share, and the proof that all lines of a chunk have it.

A program that writes JSON lines writes the same keys in the same order with the same spaces; only the values differ.
Such lines need no parser: every line consists of the pieces of the first one with other values between them.
`Layout.values` returns the values of a chunk only if each line is

1. the pieces of the first line that are not values, byte for byte, which make up a flat JSON object;
2. one value between each two pieces: a string without backslashes and control characters, a number of JSON's grammar
   without exponent, or a literal;

and if the chunk is UTF-8. For anything else it returns None, also for much valid JSON: an escape, a nested value, a
number with an exponent.
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
    """A line without its values: the text before the first, between each two, and after the last, line end included."""

    def is_likely(self, chunk: bytes) -> bool:
        """Whether a few sampled lines have this layout: a check that is cheap compared with the proof."""
        for part in range(1, _LINES_LOOKED_AT + 1):
            end = chunk.rfind(b"\n", 0, len(chunk) * part // _LINES_LOOKED_AT)
            if end >= 0 and layout_of_line(chunk, chunk.rfind(b"\n", 0, end) + 1) != self:
                return False
        return True

    def values(self, chunk: bytes, keys: Sequence[str]) -> LineValues | None:
        """The places of the values of some keys in whole lines; None unless all lines provably have this layout."""
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
        """The pieces as words and masks, as `scan_lines` takes them."""
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
    """The values of lines with one layout, proved to be valid JSON: strings with quotes, numbers and literals."""

    chunk: bytes
    text: Text
    """The chunk, padded."""
    lines: int
    has_signs: bool
    """Whether a number of any key has a sign or a fraction."""
    has_literals: bool
    """Whether any key has a `true`, `false` or `null`."""
    places: dict[str, tuple[Integers, Integers]]
    """Where the values start and end, by key; only requested keys that the layout has."""


def layout_of_line(chunk: bytes, start: int) -> Layout | None:
    """The layout of the line at `start`; None if it is not a flat object with distinct keys."""
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
