"""A source for Bytewax's runners that hands out records which were loaded before the clock started."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax_processes import Seen

BATCH = 2_000
"""Faster by 7 % than 10,000, and as fast as 1,000."""


class Memory(StatelessSourcePartition[Any]):
    """Hands out batches; notes the time of the first."""

    def __init__(self, records: list[Any], seen: Seen) -> None:
        self._records, self._seen, self._next = records, seen, 0

    def next_batch(self) -> Iterable[Any]:
        """The next BATCH records."""
        if self._next == 0:
            self._seen["first_ns"] = time.time_ns()
        if self._next >= len(self._records):
            raise StopIteration
        batch = self._records[self._next : self._next + BATCH]
        self._next += BATCH
        return batch


class MemorySource(DynamicSource[Any]):
    """One `Memory` for the one worker of this process."""

    def __init__(self, records: list[Any], seen: Seen) -> None:
        self._records, self._seen = records, seen

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Memory:
        """The partition of one worker."""
        return Memory(self._records, self._seen)
