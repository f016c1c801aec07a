"""What was found out about the dictionaries that came lately: a sender or a reader uses one again and again."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import pyarrow as pa

T = TypeVar("T")

_MOST: Final = 16
_MOST_BYTES: Final = 4 << 20


class RecentDictionaries(Generic[T]):
    """A few dictionaries, found by their values, and something that was made of each."""

    def __init__(self) -> None:
        self._recent: list[tuple[pa.Array, T]] = []

    def find(self, dictionary: pa.Array) -> T | None:
        """What was kept for a dictionary of the same values in the same order; None for none."""
        recent = self._recent
        for place, entry in enumerate(recent):
            if len(entry[0]) == len(dictionary) and entry[0].equals(dictionary):
                if place:
                    recent.insert(0, recent.pop(place))
                return entry[1]
        return None

    def keep(self, dictionary: pa.Array, value: T) -> None:
        """Keep this for a dictionary that `find` did not know; those not asked for the longest have to go."""
        if pa.types.is_string_view(dictionary.type) or pa.types.is_binary_view(dictionary.type):
            return  # a copy would still hold all that they are views of
        # A copy: the dictionary may be a part of a frame with all the rows that came with it.
        own = pa.concat_arrays([dictionary, dictionary.slice(0, 0)])
        self._recent.insert(0, (own, value))
        del self._recent[_MOST:]
        while len(self._recent) > 1 and sum(d.nbytes for d, _ in self._recent) > _MOST_BYTES:
            self._recent.pop()
