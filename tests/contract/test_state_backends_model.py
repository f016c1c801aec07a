"""Any backend against plain dicts: random writes, snapshots that complete or do not, and restores at other ranges."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.contract.state_backend_kit import ALL, Cluster, Subtask, backend_kinds
from tidegate.api.state import ListState, MapState, ReducingState, ValueState
from tidegate.core.key_groups import key_group_range
from tidegate.records.hashing import hash_value
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.backend import ColumnArray

KEYS = [f"key-{i}" for i in range(12)]
keys = st.sampled_from(KEYS)
numbers = st.integers(-(2**63), 2**63 - 1)
names = st.sampled_from(["x", "y", "z", ""])

Model = dict[str, dict[str, Any]]


class States:
    """The states of one subtask."""

    def __init__(self, task: Subtask) -> None:
        self.task = task
        self.value = task.state(ValueState(int, name="value"))
        self.items = task.state(ListState(list[int], name="items"))
        self.entries = task.state(MapState(str, int, name="entries"))
        self.largest = task.state(ReducingState(int, max, name="largest"))
        self.counts = task.backend.columns("counts", [ColumnArray("count", np.dtype(np.int64), 0)])

    def seen(self, key: str) -> dict[str, Any]:
        """All that a key of this subtask has."""
        found = self.task.at(
            key,
            lambda: {
                "value": self.value.value(),
                "items": self.items.get(),
                "entries": dict(self.entries.items()),
                "largest": self.largest.get(),
            },
        )
        ids, _, (counts,) = self.counts.begin([pa.array([key])])
        found["count"] = int(counts[ids[0]])
        return found  # type: ignore[no-any-return]


def nothing() -> dict[str, Any]:
    return {"value": None, "items": [], "entries": {}, "largest": None, "count": 0}


def copied(model: Model) -> Model:
    return {
        k: {**v, "items": [list(i) for i in v["items"]], "entries": dict(v["entries"])}
        for k, v in model.items()
    }


class BackendMachine(RuleBasedStateMachine):
    """One operator, always whole: one subtask, or restored into several whose handles are restored into one."""

    kind: ClassVar[str]

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.cluster = Cluster(self.kind, Path(self.directory.name))
        self.states = States(self.cluster.subtask())
        self.model: Model = {k: nothing() for k in KEYS}
        self.next_checkpoint = 1
        self.waiting: dict[int, tuple[Any, Model]] = {}
        self.written: dict[int, tuple[KeyedStateHandle, Model]] = {}
        self.completed: tuple[list[KeyedStateHandle], Model] | None = None

    # ---- writes ----

    def at(self, key: str, action: Any) -> dict[str, Any]:
        self.states.task.at(key, action)
        return self.model[key]

    @rule(key=keys, number=numbers)
    def update(self, key: str, number: int) -> None:
        self.at(key, lambda: self.states.value.update(number))["value"] = number

    @rule(key=keys)
    def clear_value(self, key: str) -> None:
        self.at(key, self.states.value.clear)["value"] = None

    @rule(key=keys, item=st.lists(numbers, max_size=2))
    def append(self, key: str, item: list[int]) -> None:
        self.at(key, lambda: self.states.items.add(item))["items"].append(list(item))
        item.append(0)  # the state must not see it

    @rule(key=keys, items=st.lists(st.lists(numbers, max_size=2), max_size=2))
    def replace_list(self, key: str, items: list[list[int]]) -> None:
        self.at(key, lambda: self.states.items.update(items))["items"] = [list(i) for i in items]

    @rule(key=keys, name=names, number=numbers)
    def put(self, key: str, name: str, number: int) -> None:
        self.at(key, lambda: self.states.entries.put(name, number))["entries"][name] = number

    @rule(key=keys, name=names)
    def remove_entry(self, key: str, name: str) -> None:
        self.at(key, lambda: self.states.entries.remove(name))["entries"].pop(name, None)

    @rule(key=keys)
    def clear_map(self, key: str) -> None:
        self.at(key, self.states.entries.clear)["entries"].clear()

    @rule(key=keys, number=numbers)
    def reduce(self, key: str, number: int) -> None:
        entry = self.at(key, lambda: self.states.largest.add(number))
        entry["largest"] = number if entry["largest"] is None else max(entry["largest"], number)

    @rule(batch=st.lists(keys, min_size=1, max_size=40))
    def count(self, batch: list[str]) -> None:
        ids, _, (counts,) = self.states.counts.begin([pa.array(batch)])
        np.add.at(counts, ids, 1)
        self.states.counts.commit(np.unique(ids))
        for key in batch:
            self.model[key]["count"] += 1

    @rule(key=keys)
    def read(self, key: str) -> None:
        assert self.states.seen(key) == self.model[key]

    # ---- checkpoints ----

    @rule()
    def begin(self) -> None:
        checkpoint, self.next_checkpoint = self.next_checkpoint, self.next_checkpoint + 1
        self.waiting[checkpoint] = (self.states.task.begin_checkpoint(checkpoint), copied(self.model))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from(sorted(self.waiting)))
        part, model = self.waiting.pop(checkpoint)
        self.written[checkpoint] = (part(), model)

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from(sorted(self.written)))
        handle, model = self.written[checkpoint]
        self.states.task.backend.checkpoint_completed(checkpoint)
        self.completed = ([handle], model)
        for older in [c for c in (*self.waiting, *self.written) if c <= checkpoint]:
            self.waiting.pop(older, None)
            self.written.pop(older, None)

    @precondition(lambda self: self.waiting or self.written)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from(sorted({*self.waiting, *self.written})))
        self.waiting.pop(checkpoint, None)
        self.written.pop(checkpoint, None)
        self.states.task.backend.checkpoint_aborted(checkpoint)
        storage = self.cluster.storage  # nothing may refer to what was written for it
        storage.delete([path for path in storage.files if f"/c{checkpoint}-" in path])

    # ---- restores ----

    @precondition(lambda self: self.completed is not None)
    @rule(parts=st.integers(1, 3))
    def fail_and_restore(self, parts: int) -> None:
        """Go back to the last completed checkpoint; by way of several subtasks, which each take one themselves."""
        assert self.completed is not None
        handles, model = self.completed
        if parts > 1:
            ranges = [key_group_range(i, parts, 128) for i in range(parts)]
            tasks = [self.cluster.subtask(key_groups=groups, restore=handles) for groups in ranges]
            for task, groups in zip(tasks, ranges, strict=True):
                states = States(task)
                for key in KEYS:
                    if hash_value(key) % 128 in groups:
                        assert states.seen(key) == model[key]
                    else:
                        assert task.at(key, states.value.value) is None
            handles = [task.checkpoint(self.next_checkpoint) for task in tasks]
            self.next_checkpoint += 1
        self.states = States(self.cluster.subtask(key_groups=ALL, restore=handles))
        self.model = copied(model)
        self.completed = (handles, model)
        self.waiting.clear()
        self.written.clear()
        for key in KEYS:
            assert self.states.seen(key) == self.model[key]

    def teardown(self) -> None:
        if hasattr(self, "states"):
            for key in KEYS:
                assert self.states.seen(key) == self.model[key]
            self.cluster.close()
            self.directory.cleanup()


@pytest.mark.parametrize("kind", backend_kinds())
def test_a_backend_is_a_dict_with_snapshots(kind: str) -> None:
    machine = type("Machine", (BackendMachine,), {"kind": kind})
    machine.TestCase.settings = settings(  # type: ignore[attr-defined]
        max_examples=40 if kind == "heap" else 15,
        stateful_step_count=30,
        suppress_health_check=list(HealthCheck),
    )
    machine.TestCase().runTest()  # type: ignore[attr-defined]
