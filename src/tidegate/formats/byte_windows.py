"""Short pieces of a text as words, many at once: what stands at, or before, given places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD = 8
_ALL = (1 << 64) - 1

FIRST_BYTES: Words = np.array([_ALL >> 8 * (WORD - i) if i else 0 for i in range(WORD + 1)], np.uint64)
"""For 0 to 8: a mask of so many bytes at the start of a word (its low end, as words are little-endian)."""
LAST_BYTES: Words = np.array([_ALL << 8 * (WORD - i) & _ALL for i in range(WORD + 1)], np.uint64)
"""For 0 to 8: a mask of so many bytes at the end of a word."""


def words_at(text: bytes, starts: Positions, count: int) -> Words:
    """The `count` words from each start on, one row for each; `starts` ascend. Beyond the text there are zeros."""
    width = count * WORD
    fitting = len(starts)
    if fitting and starts[-1] > len(text) - width:
        fitting = int(np.searchsorted(starts, len(text) - width, "right"))
    if fitting == len(starts) > 0:
        return _windows(text, width)[starts].view("<u8").reshape(-1, count)
    words = np.empty((len(starts), count), "<u8")
    if fitting:
        words[:fitting] = _windows(text, width)[starts[:fitting]].view("<u8").reshape(-1, count)
    for row in range(fitting, len(starts)):
        piece = text[starts[row] : starts[row] + width].ljust(width, b"\0")
        words[row] = np.frombuffer(piece, "<u8")
    return words


def words_before(text: bytes, ends: Positions, count: int) -> Words:
    """The `count` words before each end, one row for each; `ends` ascend. Before the text there are zeros."""
    width = count * WORD
    short = int(np.searchsorted(ends, width, "left"))
    if short == 0 < len(ends):
        return _windows(text, width)[ends - width].view("<u8").reshape(-1, count)
    words = np.empty((len(ends), count), "<u8")
    for row in range(short):
        words[row] = np.frombuffer(text[: ends[row]].rjust(width, b"\0"), "<u8")
    if short < len(ends):
        words[short:] = _windows(text, width)[ends[short:] - width].view("<u8").reshape(-1, count)
    return words


def _windows(text: bytes, width: int) -> npt.NDArray[np.void]:
    """All pieces of the text of this width, each beginning one byte after the other."""
    return np.ndarray((len(text) - width + 1,), f"V{width}", text, strides=(1,))
