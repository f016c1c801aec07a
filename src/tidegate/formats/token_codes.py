"""Codes of known tokens, looked up by their bytes for a whole chunk at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tidegate.formats.line_loops import NO_TOKEN, WORD, Integers, Text, find_tokens, padded, put_tokens

_FEWEST_SLOTS = 64


class TokenCodes:
    """A hash table (open addressing) from a token's bytes, none of them zero, to its code, at least -1."""

    def __init__(self, codes: Mapping[bytes, int]) -> None:
        ends = np.cumsum([len(token) for token in codes], dtype=np.int32)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int32)
        # At least three quarters of the slots are free, so the first probe mostly hits.
        slots = max(_FEWEST_SLOTS, 1 << (4 * len(codes) - 1).bit_length())
        self._words = np.zeros((slots, -(-max(map(len, codes)) // WORD)), np.uint64)
        self._codes = np.full(slots, NO_TOKEN, np.int32)
        text, _ = padded(b"".join(codes))
        put_tokens(text, starts, ends, np.array(list(codes.values()), np.int32), self._words, self._codes)

    def find(self, text: Text, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
        """The code of each token of a padded text, and the indices of unknown tokens, whose code is arbitrary."""
        codes, unknown = np.empty((2, len(starts)), np.int32)
        missing = find_tokens(text, starts, ends, self._words, self._codes, codes, unknown)
        return codes, unknown[:missing]
