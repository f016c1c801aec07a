"""State backends by name: what options and the planner must know of a backend before it is loaded.

A new backend is a folder of its own in `state/` and a line here.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class StateBackend(NamedTuple):
    """The facts about one backend."""

    implementation: str
    """Module and class of its `KeyedStateBackend`; imported only in the slots of jobs that use it."""
    keeps_objects: bool
    """Whether state lives as Python objects, so that values without a type work until a checkpoint stores them."""


STATE_BACKENDS: Final = {
    "heap": StateBackend("tidegate.state.heap.backend:HeapBackend", keeps_objects=True),
    "rocksdb": StateBackend("tidegate.state.rocksdb.backend:RocksDBBackend", keeps_objects=False),
}
