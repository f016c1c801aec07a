"""A RocksDB backend as an operator subtask would hold it, with options of one's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.contract.state_backend_kit import ALL, MAX_PARALLELISM, MemoryStorage, Subtask
from tidegate.core.clock import ManualClock
from tidegate.core.key_groups import KeyGroupRange
from tidegate.core.options import Options
from tidegate.records.types import record_type_of
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.backend import BackendContext
from tidegate.state.rocksdb.backend import RocksDBBackend


class RocksDBSubtasks:
    """Makes subtasks of one operator, with one storage; closes them."""

    def __init__(self, directory: Path) -> None:
        self.storage = MemoryStorage()
        self.directory = directory
        self.clock = ManualClock(1_000_000)
        self._numbers = itertools.count()
        self._made: list[RocksDBBackend] = []

    def open(
        self,
        key_type: Any = int,
        key_groups: KeyGroupRange = ALL,
        restore: Sequence[KeyedStateHandle] = (),
        **options: Any,
    ) -> Subtask:
        """A new subtask in a new attempt."""
        attempt = next(self._numbers)
        local = self.directory / f"attempt-{attempt}"
        local.mkdir()
        backend = RocksDBBackend(
            BackendContext(
                operator_name="counter",
                subtask_index=0,
                attempt=attempt,
                key_type=record_type_of(key_type),
                key_groups=key_groups,
                max_parallelism=MAX_PARALLELISM,
                clock=self.clock,
                options=Options().with_keywords(**options),
                local_directory=lambda: str(local),
            )
        )
        self._made.append(backend)
        if restore:
            backend.restore(restore, self.storage)
        return Subtask(backend, self.storage)

    def close(self) -> None:
        """Close all that were made."""
        for backend in self._made:
            backend.close()
