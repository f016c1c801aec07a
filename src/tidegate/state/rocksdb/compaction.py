"""When a database merges its sorted runs (universal compaction): late, and completely after a bulk load.

What a compaction writes, the next checkpoint must upload. So the small runs of checkpoints with few changes stay, up to
`MOST_SORTED_RUNS` of them. The whole is rewritten when everything newer has grown as large: with 1 % of the keys
changed each time, about once in a hundred checkpoints. A bulk load leaves a few large runs; under the same rule, some
later checkpoint with few changes would have to pay for them. So they are merged when the load is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

FEWEST_SORTED_RUNS: Final = 10
"""Fewer runs are never merged, however large they are."""
MOST_SORTED_RUNS: Final = 64
"""How many of the newest runs are merged into one: each run costs other reads one filter look-up."""
NEWER_PERCENT: Final = 100
"""The whole is rewritten when everything newer than the oldest run reaches this share of its size."""

LATE: Final = {
    "level0_file_num_compaction_trigger": str(FEWEST_SORTED_RUNS),
    "compaction_options_universal": f"{{max_size_amplification_percent={NEWER_PERCENT}}}",
}
"""RocksDB's options for most of the time."""
NOW: Final = {
    "level0_file_num_compaction_trigger": "2",
    "compaction_options_universal": "{max_size_amplification_percent=10}",
}
"""RocksDB's options for the end of a bulk load: one run, unless everything newer is negligible."""

_MERGED_PERCENT: Final = 90
_BULK_PERCENT: Final = 5
_LOADED_PERCENT: Final = 50
_FEWEST_ENTRIES: Final = 10_000


def is_merged(files: Iterable[Mapping[str, Any]]) -> bool:
    """Whether nearly everything is in one sorted run, given RocksDB's files.

    Each file of level 0 is a run; below that, each level is one.
    """
    runs: Counter[Any] = Counter()
    for file in files:
        runs[file["level"] or file["name"]] += file["size"]
    return max(runs.values(), default=0) * 100 >= runs.total() * _MERGED_PERCENT


class BulkLoads:
    """Watches how much each checkpoint writes, and says when a bulk load is over. Pure."""

    def __init__(self, writes: int) -> None:
        self._writes = writes
        self._loaded = 0

    def checkpointed(self, writes: int, entries: int) -> bool:
        """Whether to merge everything now, given the total number of writes and of entries so far.

        A bulk load is a series of checkpoints that each write more than 5 % of the entries. It counts if together they
        wrote half of the entries, so that merging costs at most twice what the load has cost. With few entries there is
        none.
        """
        written, self._writes = writes - self._writes, writes
        if written * 100 > entries * _BULK_PERCENT:
            self._loaded += written
            return False
        is_over = self._loaded * 100 > entries * _LOADED_PERCENT and entries >= _FEWEST_ENTRIES
        if is_over:
            self._loaded = 0
        return is_over
