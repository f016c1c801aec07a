"""One common dictionary for a column whose parts each have their own, as in Parquet's row groups.

Operators after the reader cache facts per dictionary: a partitioner its hashes, a keyed operator its key ids. With one
dictionary that stays the same or grows, each of them computes these facts once instead of once per row group.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.records.column_bits import take

MOST_VALUES: Final = 4096
"""The most values of a common dictionary: with more, its consumers would be slower than with the parts."""
MOST_BYTES: Final = 256 << 10
"""The most bytes of a common dictionary: it travels with each batch to each consumer."""
CODES: Final = pa.int16()
"""Wide enough for `MOST_VALUES`. An exchange cuts, sends and receives only the codes of a column, so their width is
what parallelism costs (figures in benchmarks/log.md)."""
_ROWS_PER_VALUE: Final = 16
"""Looking up a value costs as much as processing this many rows after the reader."""


class CommonDictionary:
    """Encodes the parts of one column in turn. Used by one thread."""

    def __init__(self) -> None:
        self._values: pa.Array | None = None
        self._last: pa.Array | None = None
        self._places: pa.Array | None = None
        """The common code of each value of `_last`; None if its own codes are the common ones."""

    def encode(self, column: pa.DictionaryArray) -> pa.DictionaryArray:
        """The same rows with `CODES` of the common dictionary, or unchanged if that would not pay."""
        own = column.dictionary
        if len(own) * _ROWS_PER_VALUE > len(column) or own.null_count or _is_large(own):
            return column
        if self._last is None or not self._last.equals(own):
            self._take_in(own)
        indices = column.indices
        indices = indices.cast(CODES) if self._places is None else take(self._places, indices)
        return pa.DictionaryArray.from_arrays(indices, self._values, ordered=column.type.ordered, safe=False)

    def _take_in(self, own: pa.Array) -> None:
        """Look up the values of a part; add the new ones, or start over with this part if they are many."""
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
