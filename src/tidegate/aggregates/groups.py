"""Groups of rows of a batch, found without sorting if the numbers allow it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.aggregates.segmented_scans import RowGroups

Longs = npt.NDArray[np.int64]

_SMALL_SPACE: Final = 1 << 14
_INT64_MAX: Final = (1 << 63) - 1


class Groups:
    """The group of each row: `codes` below `space`. `present` are the codes that occur, in order.

    Aggregates are computed for the whole space and then taken at `present`, so rows need no renumbering.
    """

    def __init__(self, codes: Longs, space: int) -> None:
        """`space` should not be much larger than the number of rows; see `grouped`."""
        self.codes = codes
        self.space = space

    def __len__(self) -> int:
        return len(self.present)

    @cached_property
    def _counts(self) -> Longs:
        return np.bincount(self.codes, minlength=self.space)

    @cached_property
    def present(self) -> Longs:
        """The codes that occur."""
        return np.flatnonzero(self._counts)

    @cached_property
    def sizes(self) -> Longs:
        """The number of rows of each present code."""
        return self._counts[self.present]

    @cached_property
    def sorted(self) -> RowGroups:
        """The rows group by group, in a stable order; its ids are `present`."""
        return RowGroups(self.codes, self.space)

    @cached_property
    def first_rows(self) -> Longs:
        """The first row of each present code."""
        row_of = np.empty(self.space, np.int64)
        row_of[self.codes[::-1]] = np.arange(
            len(self.codes) - 1, -1, -1
        )  # of several writes the last one stays
        return row_of[self.present]

    def subset(self, rows: Longs) -> Groups:
        """The same groups with only these rows."""
        return Groups(self.codes[rows], self.space)

    def positions(self, codes: Longs) -> Longs:
        """The positions of these codes in `present`."""
        position_of = np.empty(self.space, np.int64)
        position_of[self.present] = np.arange(len(self.present))
        return position_of[codes]


def grouped(codes: Longs, space: int) -> tuple[Groups, npt.NDArray[Any]]:
    """Group rows with equal codes (from 0, below `space`); also returns the code of each group of `present`.

    Groups are in the order of their codes if the space is small, else in the order of their first rows.
    """
    if space <= max(_SMALL_SPACE, 4 * len(codes)):
        groups = Groups(codes, space)
        return groups, groups.present
    encoded = pa.array(codes).dictionary_encode()
    groups = Groups(encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary))
    return groups, encoded.dictionary.to_numpy()


def grouped_pairs(ids: Longs, keys: int, numbers: Longs) -> tuple[Groups, Longs, Longs]:
    """Group rows with equal id (below `keys`) and equal number; also returns the id and the number of each group."""
    low = int(numbers.min())
    span = int(numbers.max()) - low + 1
    if span == 1:
        groups, found = grouped(ids, keys)
        return groups, found, np.full(len(found), low)
    if span * keys > _INT64_MAX:
        distinct, numbers = np.unique(numbers, return_inverse=True)
        groups, of_ids, of_numbers = grouped_pairs(ids, keys, numbers.astype(np.int64))
        return groups, of_ids, distinct[of_numbers]
    codes = numbers - low
    codes *= keys
    codes += ids
    groups, found = grouped(codes, span * keys)
    relative, found_ids = np.divmod(found, keys)
    return groups, found_ids, relative + low
