"""Marks on the bytes of a text: one bit for each byte, so that a question about all bytes costs an eighth of a pass.

This is how simdjson looks at a text, with numpy and polars for the vector instructions: polars compares bytes straight
to packed bits and picks the marked ones, numpy works on the bits as words. Bit i of the marks is byte i. Bits beyond
the text are 0 in what `MarkedText` gives, and are passed over in what it takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Marks = npt.NDArray[np.uint64]

_ONE = np.uint64(1)
_ZERO_DIGIT = np.uint8(ord("0"))


class MarkedText:
    """A text whose bytes are marked; used by one thread, for as long as the text is looked at."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(text, np.uint8)
        self._series = pl.Series(self.bytes)
        self._words = -(-len(text) // 64)

    def where(self, byte: str) -> Marks:
        """The bytes that are this (ASCII) character."""
        return self._marks(self._series == ord(byte))

    def where_digit(self) -> Marks:
        """The bytes that are decimal digits."""
        return self._marks(pl.Series(self.bytes - _ZERO_DIGIT) < 10)

    def where_letter(self) -> Marks:
        """The bytes that are ASCII letters."""
        return self._marks(pl.Series((self.bytes | np.uint8(0x20)) - np.uint8(ord("a"))) < 26)

    def count_controls(self) -> int:
        """How many bytes are control characters below the space."""
        return int((self._series < 32).sum())

    def where_control(self) -> Marks:
        """The bytes that are control characters below the space."""
        return self._marks(self._series < 32)

    def count(self, marks: Marks) -> int:
        """How many bytes are marked."""
        return int(self._mask(marks).sum())

    def unmarked(self, marks: Marks) -> pa.Buffer:
        """The bytes that are not marked, together."""
        kept: Any = self._series.filter(self._mask(~marks)).to_arrow()
        return kept.buffers()[1].slice(kept.offset, len(kept))

    def positions(self, marks: Marks, dtype: type[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
        """Where the marked bytes are, in order, as far as the type holds it: the lower bits of the positions."""
        # Picking from all positions is many times as fast as looking for the bits one by one.
        return _numbers(len(self.text), dtype).filter(self._mask(marks)).to_numpy()

    def _marks(self, mask: pl.Series) -> Marks:
        packed: Any = mask.to_arrow()
        assert packed.offset == 0
        size = len(self.text)
        marks = np.empty(self._words, np.uint64)
        used = -(-size // 8)
        marks[-1:] = 0
        marks.view(np.uint8)[:used] = np.frombuffer(packed.buffers()[1], np.uint8, used)
        if size % 64:
            # What follows the last bit in its byte is not defined.
            marks[-1] &= np.uint64((1 << size % 64) - 1)
        return marks

    def _mask(self, marks: Marks) -> pl.Series:
        return pl.Series(pa.Array.from_buffers(pa.bool_(), len(self.text), [None, pa.py_buffer(marks)]))


def moved_up(marks: Marks, count: int) -> Marks:
    """The bytes that are `count` (1 to 63) behind a marked one."""
    moved = marks << np.uint64(count)
    moved[1:] |= marks[:-1] >> np.uint64(64 - count)
    return moved


def moved_down(marks: Marks) -> Marks:
    """The bytes before the marked ones."""
    moved = marks >> _ONE
    moved[:-1] |= marks[1:] << np.uint64(63)
    return moved


def quoted(quotes: Marks) -> Marks | None:
    """What is inside of quotes, with the opening and without the closing one; None if the last is not closed."""
    inside = quotes.copy()
    moved = np.empty_like(inside)
    for distance in (1, 2, 4, 8, 16, 32):
        np.left_shift(inside, np.uint64(distance), out=moved)
        inside ^= moved
    # The last bit of a word now says if it has an odd number of quotes: then all that follows is the other way round.
    odd = np.bitwise_xor.accumulate(inside.view(np.int64) >> np.int64(63))
    if len(odd) and odd[-1]:
        return None
    inside[1:] ^= odd[:-1].view(np.uint64)
    return inside


def runs_from(runs: Marks, starts: Marks) -> Marks:
    """The runs of marks that begin at `starts` (each the first byte of a run), each with the byte behind it."""
    # Adding 1 at the start of a run of ones makes them zeros, and a one behind it.
    total = runs + starts
    carried = np.flatnonzero(total[:-1] < runs[:-1]) + 1
    while len(carried):
        total[carried] += _ONE
        carried = carried[total[carried] == 0] + 1
        carried = carried[carried < len(total)]
    total ^= runs
    return total


# By type, the most that were asked for: for chunks of 2 MB 2, 4 or 9 MB. Threads share them: each writes right ones.
_kept_numbers: dict[type, pl.Series] = {}


def _numbers(count: int, dtype: type[np.unsignedinteger]) -> pl.Series:
    """The lower bits of the numbers from 0 to `count`."""
    numbers = _kept_numbers.get(dtype)
    if numbers is None or len(numbers) < count:
        numbers = pl.Series(np.arange(count + count // 8, dtype=np.uint32).astype(dtype))
        _kept_numbers[dtype] = numbers
    return numbers.slice(0, count)
