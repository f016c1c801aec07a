"""Codes of known tokens, looked up by their bytes for a whole chunk at once."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from tidegate.formats.byte_windows import FIRST_BYTES, WORD, Positions, Words, words_at

LONGEST = 64
"""Longer tokens are not looked up: comparing so many bytes costs more than it saves."""
_SLOT_BITS = 18
_TRIES = 8


class TokenCodes:
    """A hash table from the bytes of a token to its code, for texts in which no token is the beginning of another.

    A token has no zero bytes, so that words filled up with zeros are equal exactly if the tokens are. No collision is
    resolved: of tokens with the same hash all but one are not found, which a multiplier without any makes rare.
    """

    def __init__(self, codes: Mapping[bytes, int]) -> None:
        tokens = list(codes)
        self._count = max(-(-len(token) // WORD) for token in tokens)
        padded = b"".join(token.ljust(self._count * WORD, b"\0") for token in tokens)
        words = np.frombuffer(padded, "<u8").reshape(-1, self._count)
        self._codes = np.array(list(codes.values()), np.int32)
        self._tokens = [np.ascontiguousarray(words[:, i]) for i in range(self._count)]
        self._factors, slots = _spreading(self._tokens)
        self._table = np.zeros(1 << _SLOT_BITS, np.intp)
        self._table[slots] = np.arange(len(tokens))

    def find(
        self, text: bytes, starts: Positions, ends: Positions
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The code of each token (they are in ascending order), and which ones were not found; their code is any."""
        rows = words_at(text, starts, self._count)
        words = [rows[:, i] for i in range(self._count)]
        sizes = ends - starts
        shortest, longest = int(sizes.min()), int(sizes.max())
        for i in range(self._count):
            # What follows the token in the text is not part of it. Its end differs from what continues a longer one.
            first = i * WORD
            if longest <= first:
                words[i] = np.zeros_like(words[i])
            elif shortest == longest:
                words[i] = words[i] & FIRST_BYTES[min(longest - first, WORD)]
            elif shortest < first + WORD:
                words[i] = words[i] & FIRST_BYTES[np.clip(sizes - first, 0, WORD)]
        # With "clip" the places, which are all right, are not looked at first.
        found = self._table.take(_slots(words, self._factors), mode="clip")
        wrong = self._tokens[0].take(found, mode="clip") != words[0]
        for known, word in zip(self._tokens[1:], words[1:], strict=True):
            wrong |= known.take(found, mode="clip") != word
        return self._codes.take(found, mode="clip"), np.flatnonzero(wrong)


def _slots(words: list[Words], factors: Words) -> npt.NDArray[np.int64]:
    mixed = words[0] * factors[0]
    for word, factor in zip(words[1:], factors[1:], strict=True):
        mixed += word * factor
    mixed >>= np.uint64(64 - _SLOT_BITS)
    return mixed.view(np.int64)


def _spreading(tokens: list[Words]) -> tuple[Words, npt.NDArray[np.int64]]:
    """Factors that give all tokens different slots, or the best ones of some, and these slots."""
    rng = np.random.default_rng(0)
    tried = []
    for _ in range(_TRIES):
        factors = rng.integers(1 << 62, 1 << 63, len(tokens), np.uint64) | np.uint64(1)
        slots = _slots(tokens, factors)
        tried.append((len(np.unique(slots)), factors, slots))
        if tried[-1][0] == len(slots):
            break
    return max(tried, key=itemgetter(0))[1:]
