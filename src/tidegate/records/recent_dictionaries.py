"""A cache by dictionary: senders and readers use the same dictionary again and again."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import pyarrow as pa

T = TypeVar("T")

_MOST: Final = 16
_MOST_BYTES: Final = 4 << 20


class RecentDictionaries(Generic[T]):
    """A small LRU cache: dictionaries, found by their values, and something computed from each."""

    def __init__(self) -> None:
        self._recent: list[tuple[pa.Array, T]] = []

    def find(self, dictionary: pa.Array) -> T | None:
        """The entry of a dictionary with the same values in the same order, or None."""
        recent = self._recent
        for place, entry in enumerate(recent):
            if len(entry[0]) == len(dictionary) and entry[0].equals(dictionary):
                if place:
                    recent.insert(0, recent.pop(place))
                return entry[1]
        return None

    def keep(self, dictionary: pa.Array, value: T) -> None:
        """Keep this for a dictionary that `find` did not know; drops the least recently used."""
        if pa.types.is_string_view(dictionary.type) or pa.types.is_binary_view(dictionary.type):
            return  # a copy of views would still hold all the data
        # A copy: the dictionary may be a view of a whole frame with its rows.
        own = pa.concat_arrays([dictionary, dictionary.slice(0, 0)])
        self._recent.insert(0, (own, value))
        del self._recent[_MOST:]
        while len(self._recent) > 1 and sum(d.nbytes for d, _ in self._recent) > _MOST_BYTES:
            self._recent.pop()
