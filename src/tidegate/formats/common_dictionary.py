"""One dictionary for a column whose parts were encoded each with a dictionary of its own, as Parquet's row groups are.

Behind the reader, what was found out about a dictionary is known by its values: the hashes that a partitioner has made,
the ids that a keyed operator has found. With a dictionary that stays as it is, or grows, that is done once instead of
once for each row group at each of these places.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.records.column_bits import take

MOST_VALUES: Final = 4096
"""More values are not brought together: those who know the dictionary would be slower with it than with its parts."""
MOST_BYTES: Final = 256 << 10
"""The same for their size: a dictionary goes with each batch to each consumer."""
CODES: Final = pa.int16()
"""So few values need no more. Codes are all of a column that an exchange cuts, sends and receives, so this is what
parallelism costs (figures in benchmarks/log.md)."""
_ROWS_PER_VALUE: Final = 16
"""Finding a value costs as much as this many rows cost behind the reader."""


class CommonDictionary:
    """Takes the parts of one column in turn. Used by one thread."""

    def __init__(self) -> None:
        self._values: pa.Array | None = None
        self._last: pa.Array | None = None
        self._places: pa.Array | None = None
        """The code of each value of `_last`; None if they are the same already."""

    def encode(self, column: pa.DictionaryArray) -> pa.DictionaryArray:
        """The same rows with `CODES` of the common dictionary, or as they came where that would not pay."""
        own = column.dictionary
        if len(own) * _ROWS_PER_VALUE > len(column) or own.null_count or _is_large(own):
            return column
        if self._last is None or not self._last.equals(own):
            self._take_in(own)
        indices = column.indices
        indices = indices.cast(CODES) if self._places is None else take(self._places, indices)
        return pa.DictionaryArray.from_arrays(indices, self._values, ordered=column.type.ordered, safe=False)

    def _take_in(self, own: pa.Array) -> None:
        """Find the values of a part; add the few that are new, or begin anew with this part if they are many."""
        self._last, self._places = own, None
        if self._values is None or self._values.type != own.type:
            self._values = own
            return
        found = pc.index_in(own, value_set=self._values)
        if found.null_count:
            new = own.filter(pc.is_null(found))
            values = pa.concat_arrays([self._values, new])
            if 2 * len(new) > len(own) or _is_large(values):
                self._values = own
                return
            self._values = values
            found = pc.index_in(own, value_set=self._values)
        self._places = found.cast(CODES)


def _is_large(values: pa.Array) -> bool:
    return len(values) > MOST_VALUES or values.nbytes > MOST_BYTES
