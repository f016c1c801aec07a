"""Checkpoint files that an earlier version of the heap backend wrote are read for ever.

`python -m tests.contract.test_heap_golden_files` writes them; only a new version of the format gets new ones.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tests.contract.state_backend_kit import Cluster, MemoryStorage, Subtask
from tidegate.api.state import ListState, MapState, ReducingState, ValueState
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.backend import ColumnArray

GOLDEN = Path(__file__).parent / "golden" / "heap-1"
KEY = pa.schema([("user", pa.string()), ("day", pa.int32())])
KEYS: list[Any] = [("ann", 1), ("bob", -1), (None, None), ("☃", 2**31 - 1)]


@dataclasses.dataclass
class Cart:
    total: float
    items: list[str]


class States:
    def __init__(self, task: Subtask) -> None:
        self.cart = task.state(ValueState(Cart, name="cart"))
        self.items = task.state(ListState(int, name="items", ttl="1 h"))
        self.entries = task.state(MapState(str, int, name="entries"))
        self.largest = task.state(ReducingState(int, max, name="largest"))
        self.counts = task.backend.columns("counts", [ColumnArray("count", np.dtype(np.int64), 0)])


def write_golden(directory: Path) -> None:
    """A base and an increment of every kind of state."""
    cluster = Cluster("heap", directory)
    task = cluster.subtask(KEY)
    states = States(task)
    columns = [pa.array([k[0] for k in KEYS]), pa.array([k[1] for k in KEYS], pa.int32())]
    for checkpoint in (1, 2):
        for i, key in enumerate(KEYS[checkpoint - 1 :]):
            task.at(
                key,
                lambda i=i, c=checkpoint: (
                    states.cart.update(Cart(i + c / 2, ["x"] * i)),
                    states.items.add(i),
                    states.entries.put(f"e{c}", i),
                    states.largest.add(i * c),
                ),
            )
        ids, _, (counts,) = states.counts.begin(columns)
        counts[ids] += checkpoint
        states.counts.commit()
        task.at(KEYS[3], lambda: (states.cart.clear(), states.entries.remove("e1")))
        handle = task.checkpoint(checkpoint)
    for file in handle.files:
        (directory / file.path.replace("/", "-")).write_bytes(cluster.storage.files[file.path])
    (directory / "handle.json").write_bytes(msgspec.json.format(msgspec.json.encode(handle), indent=1))


def test_golden_files_are_restored(tmp_path: Path) -> None:
    handle = msgspec.json.decode((GOLDEN / "handle.json").read_bytes(), type=KeyedStateHandle)
    cluster = Cluster("heap", tmp_path)
    storage: MemoryStorage = cluster.storage
    for file in handle.files:
        storage.files[file.path] = (GOLDEN / file.path.replace("/", "-")).read_bytes()
    task = cluster.subtask(KEY, restore=[handle])
    states = States(task)
    seen = [
        task.at(
            key,
            lambda: (
                states.cart.value(),
                states.items.get(),
                dict(states.entries.items()),
                states.largest.get(),
            ),
        )
        for key in KEYS
    ]
    assert seen == [
        (Cart(0.5, []), [0], {"e1": 0}, 0),
        (Cart(1.0, []), [1, 0], {"e1": 1, "e2": 0}, 1),
        (Cart(2.0, ["x"]), [2, 1], {"e1": 2, "e2": 1}, 2),
        (None, [3, 2], {"e2": 2}, 4),
    ]
    columns = [pa.array([k[0] for k in KEYS]), pa.array([k[1] for k in KEYS], pa.int32())]
    ids, _, (counts,) = states.counts.begin(columns)
    assert counts[ids].tolist() == [3, 3, 3, 3]
    cluster.close()


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    write_golden(GOLDEN)
