"""When a database merges its sorted runs: late, and once all of them when a bulk load is over.

What a compaction writes, the next checkpoint uploads. So the small runs of checkpoints after few changes stay as they
are, up to `MOST_SORTED_RUNS` of them, and the whole is rewritten when all that is newer has grown as large: with 1 % of
the keys changed each time, about once in a hundred checkpoints. A bulk load leaves a few large runs; were they left to
the same rule, some checkpoint after few changes would pay for them. They are merged when the load is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

FEWEST_SORTED_RUNS: Final = 10
"""With fewer of them nothing is merged, however large they are."""
MOST_SORTED_RUNS: Final = 64
"""So many of the newest are merged into one: each costs a read of something else one look into a filter."""
NEWER_PERCENT: Final = 100
"""The whole is rewritten when all that is newer than the oldest run has so much of its size."""

LATE: Final = {
    "level0_file_num_compaction_trigger": str(FEWEST_SORTED_RUNS),
    "compaction_options_universal": f"{{max_size_amplification_percent={NEWER_PERCENT}}}",
}
"""RocksDB's options for most of the time."""
NOW: Final = {
    "level0_file_num_compaction_trigger": "2",
    "compaction_options_universal": "{max_size_amplification_percent=10}",
}
"""RocksDB's options for the end of a bulk load: one run, unless all that is newer is next to nothing."""

_MERGED_PERCENT: Final = 90
_BULK_PERCENT: Final = 5
_LOADED_PERCENT: Final = 50
_FEWEST_ENTRIES: Final = 10_000


def is_merged(files: Iterable[Mapping[str, Any]]) -> bool:
    """Whether nearly all is in one sorted run, given RocksDB's files: each of level 0 is a run, else each level is."""
    runs: Counter[Any] = Counter()
    for file in files:
        runs[file["level"] or file["name"]] += file["size"]
    return max(runs.values(), default=0) * 100 >= runs.total() * _MERGED_PERCENT


class BulkLoads:
    """Sees from checkpoint to checkpoint how much is written; says when a bulk load is over. Pure."""

    def __init__(self, writes: int) -> None:
        self._writes = writes
        self._loaded = 0

    def checkpointed(self, writes: int, entries: int) -> bool:
        """Whether to merge all now, given the number of all writes so far, and of entries.

        A bulk load is a run of checkpoints that each write more than 5 % of the entries; it counts when together they
        wrote half of them, so that merging costs at most twice what the load has cost. Of few entries none is one.
        """
        written, self._writes = writes - self._writes, writes
        if written * 100 > entries * _BULK_PERCENT:
            self._loaded += written
            return False
        is_over = self._loaded * 100 > entries * _LOADED_PERCENT and entries >= _FEWEST_ENTRIES
        if is_over:
            self._loaded = 0
        return is_over
