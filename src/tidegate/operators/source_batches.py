"""How many records a source gives at a time: at most what is asked for, fewer where what is behind it is slow.

A checkpoint begins between two batches of a source, and what is chained behind the source has to be done with a batch
first. A function that takes a millisecond would be at work on 262,144 records for four minutes; so its source gives it
about 100 at a time.
"""

from __future__ import annotations

from typing import Final

_FIRST_ROWS: Final = 256
_AIM_NS: Final = 100_000_000
_SLOW_NS: Final = 2 * _AIM_NS
_FAST_NS: Final = _AIM_NS // 2
_MOST_GROWTH: Final = 16


class SourceBatches:
    """Learns from each batch how large the next one should be. Pure."""

    def __init__(self, most_rows: int, *, careful: bool) -> None:
        """`careful`: begin with a small one, since what is behind the source may be slow."""
        self._most = most_rows
        self.rows = min(_FIRST_ROWS, most_rows) if careful else most_rows
        """How many records the next batch should have at most."""

    def took(self, rows: int, spent_ns: int) -> None:
        """A batch of so many records took the chain so long, without the time in which it had nowhere to put them."""
        fair = rows * _AIM_NS // max(1, spent_ns)
        if spent_ns > _SLOW_NS:
            self.rows = max(1, min(self.rows, fair))
        elif spent_ns < _FAST_NS and rows >= self.rows:
            self.rows = min(self._most, self.rows * _MOST_GROWTH, fair)
