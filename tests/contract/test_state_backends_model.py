"""Any backend against plain dicts: random writes, snapshots that complete or do not, and restores at other ranges.

With and without a time to live, in either time, with and without refresh on read. The asynchronous part of a snapshot
goes on by a few lines at a time, while the states are read and written and the time passes: what a restore finds is
what there was at the barrier. Long because the model and the machine that drives it are read together.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.contract.state_backend_kit import ALL, Cluster, Subtask, backend_kinds
from tests.contract.stepped import Stepped
from tidegate.api.state import (
    AggregateFunction,
    AggregatingState,
    KeyedState,
    ListState,
    MapState,
    ReducingState,
    StateTtl,
    ValueState,
)
from tidegate.core.errors import CheckpointError
from tidegate.core.key_groups import key_group_range
from tidegate.keys.hashing import hash_value
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.backend import NO_WATERMARK, ColumnArray
from tidegate.storage.storage import StorageError

KEYS = ["a", "b", "c"]
"""Few, so that what is read and written between two snapshots is often the same."""
keys = st.sampled_from(KEYS)
numbers = st.integers(-(2**63), 2**63 - 1)
items = st.lists(numbers, max_size=2)
names = st.sampled_from(["x", "y", ""])

COUNTS = "counts"
DURATION_MS = 10
TTLS = {
    "for-ever": None,
    "processing": StateTtl(DURATION_MS),
    "processing-refreshed": StateTtl(DURATION_MS, refresh_on_read=True),
    "event": StateTtl(DURATION_MS, time="event"),
    "event-refreshed": StateTtl(DURATION_MS, time="event", refresh_on_read=True),
}
WAITS_FOR_UPLOAD = {"rocksdb"}
"""Backends whose synchronous part, and whose `keys`, wait until the asynchronous part before has written."""


class Collect(AggregateFunction[int, list[int], list[int]]):
    """Changes its accumulator in place and hands it out, as a user's function may."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return one + other


def declarations(ttl: StateTtl | None) -> dict[str, KeyedState]:
    """A state of every kind."""
    return {
        "value": ValueState(int, name="value", ttl=ttl),
        "document": ValueState(dict[str, list[int]], name="document", ttl=ttl),
        "items": ListState(list[int], name="items", ttl=ttl),
        "entries": MapState(str, list[int], name="entries", ttl=ttl),
        "largest": ReducingState(int, max, name="largest", ttl=ttl),
        "collected": AggregatingState(list[int], Collect(), name="collected", ttl=ttl),
    }


READ: dict[str, Callable[[Any], Any]] = {
    "value": lambda state: state.value(),
    "document": lambda state: state.value(),
    "items": lambda state: state.get(),
    "entries": lambda state: dict(state.items()),
    "largest": lambda state: state.get(),
    "collected": lambda state: state.get(),
}


class States:
    """The states of one subtask: those that a test is about."""

    def __init__(self, task: Subtask, ttl: StateTtl | None, about: Sequence[str]) -> None:
        self.task = task
        declared = declarations(ttl)
        self.live: dict[str, Any] = {name: task.state(declared[name]) for name in about if name in declared}
        self.counts: Any = None
        if COUNTS in about:
            self.counts = task.backend.columns(COUNTS, [ColumnArray("count", np.dtype(np.int64), 0)])

    def __getattr__(self, name: str) -> Any:
        return self.live[name]

    def seen(self, key: str) -> dict[str, Any]:
        """All that a key of this subtask has."""
        found = self.task.at(key, lambda: {name: READ[name](state) for name, state in self.live.items()})
        if self.counts is not None:
            ids, _, (counts,) = self.counts.begin([pa.array([key])])
            found[COUNTS] = int(counts[ids[0]])
        seen = copy.deepcopy(found)
        _spoil(found)  # what was handed out is the caller's own
        return seen  # type: ignore[no-any-return]


def _spoil(value: Any) -> None:
    if isinstance(value, dict):
        for inner in value.values():
            _spoil(inner)
        value["spoiled"] = [-1]
    elif isinstance(value, list):
        for inner in value:
            _spoil(inner)
        value.append(-1)


class Timed(NamedTuple):
    """A value and when it was last written."""

    value: Any
    written_ms: int


class Model:
    """What a backend should hold: a dict of timed values by key and place, and what time it is."""

    def __init__(self, ttl: StateTtl | None, clock: Callable[[], int]) -> None:
        self.ttl = ttl
        self.clock = clock
        self.watermark_ms = self.first_watermark_ms = NO_WATERMARK
        self.counts: dict[str, int] = defaultdict(int)
        self.found: dict[str, dict[tuple[str, ...], Timed]] = defaultdict(dict)

    def copied(self) -> Model:
        new = copy.copy(self)
        new.counts = copy.copy(self.counts)
        new.found = copy.deepcopy(self.found)
        return new

    def advance_watermark(self, watermark_ms: int) -> None:
        if self.first_watermark_ms == NO_WATERMARK:
            self.first_watermark_ms = watermark_ms
        self.watermark_ms = watermark_ms

    def now_ms(self) -> int:
        if self.ttl is None:
            return 0
        return self.watermark_ms if self.ttl.time == "event" else self.clock()

    def _is_alive(self, timed: Timed) -> bool:
        written = self.first_watermark_ms if timed.written_ms == NO_WATERMARK else timed.written_ms
        return self.ttl is None or written == NO_WATERMARK or self.now_ms() < written + DURATION_MS

    def read(self, key: str, *place: str, default: Any = None) -> Any:
        """A value as of now; reading it may refresh it."""
        timed = self.found[key].get(place)
        if timed is None or not self._is_alive(timed):
            self.found[key].pop(place, None)
            return default
        if self.ttl is not None and self.ttl.refresh_on_read:
            self.write(timed.value, key, *place)
        return timed.value

    def write(self, value: Any, key: str, *place: str) -> None:
        self.found[key][place] = Timed(value, self.now_ms())

    def remove(self, key: str, *place: str) -> None:
        self.found[key].pop(place, None)

    def entry_names(self, key: str) -> list[str]:
        """The alive entries of a key's map."""
        return [p[1] for p, timed in self.found[key].items() if p[0] == "entries" and self._is_alive(timed)]

    def keys_of(self, state: str) -> set[str]:
        """The keys that have something alive in a state."""
        return {
            k
            for k, found in self.found.items()
            for p, t in found.items()
            if p[0] == state and self._is_alive(t)
        }

    def seen(self, key: str, about: Sequence[str]) -> dict[str, Any]:
        """All that a key has in these states."""
        empty = {"items": []}
        found: dict[str, Any] = {}
        for name in about:
            if name == COUNTS:
                found[name] = self.counts[key]
            elif name == "entries":
                found[name] = {n: self.read(key, name, n) for n in self.entry_names(key)}
            else:
                found[name] = self.read(key, name, default=empty.get(name))
        return copy.deepcopy(found)


class BackendMachine(RuleBasedStateMachine):
    """One operator, always whole: one subtask, or restored into several whose handles are restored into one."""

    kind: ClassVar[str]
    ttl: ClassVar[StateTtl | None]
    about: ClassVar[Sequence[str]] = (*READ, COUNTS)

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.cluster = Cluster(self.kind, Path(self.directory.name))
        self.states = self.made(self.cluster.subtask())
        self.model = Model(self.ttl, self.cluster.clock.now_ms)
        self.next_checkpoint = 1
        self.waiting: dict[int, tuple[Any, Model]] = {}
        self.running: tuple[int, Stepped[KeyedStateHandle], Model] | None = None
        self.written: dict[int, tuple[KeyedStateHandle, Model]] = {}
        self.completed: tuple[list[KeyedStateHandle], Model] | None = None

    def made(self, task: Subtask) -> States:
        return States(task, self.ttl, self.about)

    # ---- writes ----

    def at(self, key: str, action: Any) -> Any:
        return self.states.task.at(key, action)

    @rule(key=keys, number=numbers)
    def update(self, key: str, number: int) -> None:
        self.at(key, lambda: self.states.value.update(number))
        self.model.write(number, key, "value")

    @rule(key=keys)
    def clear_value(self, key: str) -> None:
        self.at(key, self.states.value.clear)
        self.model.remove(key, "value")

    @rule(key=keys, name=names, item=items)
    def put_into_document(self, key: str, name: str, item: list[int]) -> None:
        """Read, change and write back, as a user does."""

        def put() -> None:
            document = self.states.document.value() or {}
            document[name] = item
            self.states.document.update(document)
            _spoil(document)

        known = self.model.read(key, "document", default={})
        self.model.write({**known, name: list(item)}, key, "document")
        self.at(key, put)

    @rule(key=keys, item=items)
    def append(self, key: str, item: list[int]) -> None:
        known = self._list_of(key)
        self.model.write([*known, list(item)], key, "items")
        self.at(key, lambda: self.states.items.add(item))
        _spoil(item)

    @rule(key=keys, more=st.lists(items, max_size=2))
    def append_all(self, key: str, more: list[list[int]]) -> None:
        if more:
            self.model.write([*self._list_of(key), *copy.deepcopy(more)], key, "items")
        self.at(key, lambda: self.states.items.add_all(more))
        _spoil(more)

    def _list_of(self, key: str) -> list[Any]:
        timed = self.model.found[key].get(("items",))
        return timed.value if timed is not None and self.model._is_alive(timed) else []

    @rule(key=keys, more=st.lists(items, max_size=2))
    def replace_list(self, key: str, more: list[list[int]]) -> None:
        self.at(key, lambda: self.states.items.update(more))
        if more:
            self.model.write(copy.deepcopy(more), key, "items")
        else:
            self.model.remove(key, "items")
        _spoil(more)

    @rule(key=keys, name=names, item=items)
    def put(self, key: str, name: str, item: list[int]) -> None:
        self.at(key, lambda: self.states.entries.put(name, item))
        self.model.write(list(item), key, "entries", name)
        _spoil(item)

    @rule(key=keys, name=names)
    def remove_entry(self, key: str, name: str) -> None:
        self.at(key, lambda: self.states.entries.remove(name))
        self.model.remove(key, "entries", name)

    @rule(key=keys)
    def clear_map(self, key: str) -> None:
        self.at(key, self.states.entries.clear)
        for name in self.model.entry_names(key):
            self.model.remove(key, "entries", name)

    @rule(key=keys, number=numbers)
    def reduce(self, key: str, number: int) -> None:
        known = self.model.read(key, "largest", default=number)
        self.model.write(max(known, number), key, "largest")
        self.at(key, lambda: self.states.largest.add(number))

    @rule(key=keys, number=numbers)
    def collect(self, key: str, number: int) -> None:
        known = self.model.read(key, "collected", default=[])
        self.model.write([*known, number], key, "collected")
        self.at(key, lambda: self.states.collected.add(number))

    @rule(batch=st.lists(keys, min_size=1, max_size=9))
    def count(self, batch: list[str]) -> None:
        ids, _, (counts,) = self.states.counts.begin([pa.array(batch)])
        np.add.at(counts, ids, 1)
        self.states.counts.commit(np.unique(ids))
        for key in batch:
            self.model.counts[key] += 1

    # ---- reads ----

    @rule(key=keys)
    def read(self, key: str) -> None:
        assert self.states.seen(key) == self.model.seen(key, self.about)

    @rule(key=keys)
    def read_list(self, key: str) -> None:
        assert self.at(key, self.states.items.get) == self.model.read(key, "items", default=[])

    @rule(key=keys, name=names)
    def read_entry(self, key: str, name: str) -> None:
        assert self.at(key, lambda: self.states.entries.contains(name)) == (
            self.model.read(key, "entries", name) is not None
        )
        assert self.at(key, lambda: self.states.entries.get(name)) == self.model.read(key, "entries", name)

    @rule(key=keys)
    def look_for_entries(self, key: str) -> None:
        assert self.at(key, self.states.entries.is_empty) == (not self.model.entry_names(key))

    @rule()
    def list_keys(self) -> None:
        self.wait_for_upload()
        for state in self.states.live:
            assert set(self.states.task.backend.keys(state)) == self.model.keys_of(state)

    # ---- time ----

    @rule(ms=st.integers(1, DURATION_MS + 2))
    def time_passes(self, ms: int) -> None:
        self.cluster.advance(ms)
        if self.ttl is not None and self.ttl.time == "event":
            self.model.advance_watermark(max(self.model.watermark_ms, 0) + ms)
            self.states.task.backend.current_watermark_ms = self.model.watermark_ms

    # ---- checkpoints ----

    @rule()
    def begin(self) -> None:
        self.wait_for_upload()
        checkpoint, self.next_checkpoint = self.next_checkpoint, self.next_checkpoint + 1
        self.waiting[checkpoint] = (self.states.task.begin_checkpoint(checkpoint), self.model.copied())

    @precondition(lambda self: self.waiting and self.running is None)
    @rule(lines=st.integers(0, 400))
    def begin_to_write(self, lines: int) -> None:
        checkpoint = min(self.waiting)
        part, model = self.waiting.pop(checkpoint)
        self.running = (checkpoint, Stepped(part), model)
        self.running[1].step(lines)

    @precondition(lambda self: self.running is not None)
    @rule(lines=st.integers(1, 400))
    def write_on(self, lines: int) -> None:
        assert self.running is not None
        self.running[1].step(lines)

    @precondition(lambda self: self.running is not None)
    @rule()
    def write(self) -> None:
        assert self.running is not None
        checkpoint, stepped, model = self.running
        self.running = None
        handle = stepped.finish()
        self.written[checkpoint] = (handle, model)
        self.compare_all([handle], model)

    def compare_all(self, handles: list[KeyedStateHandle], model: Model) -> None:
        """A subtask that is restored from a checkpoint has what there was at its barrier."""
        restored, expected = self.made(self.cluster.subtask(restore=handles)), model.copied()
        for key in self.model.found:
            assert restored.seen(key) == expected.seen(key, self.about)

    def wait_for_upload(self) -> None:
        if self.running is not None and self.kind in WAITS_FOR_UPLOAD:
            self.write()

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self._complete(data.draw(st.sampled_from(sorted(self.written))))

    def complete_newest(self) -> None:
        self._complete(max(self.written))

    def _complete(self, checkpoint: int) -> None:
        handle, model = self.written[checkpoint]
        self.states.task.backend.checkpoint_completed(checkpoint)
        self.completed = ([handle], model)
        for older in [c for c in (*self.waiting, *self.written) if c <= checkpoint]:
            self.waiting.pop(older, None)
            self.written.pop(older, None)
        if self.running is not None and self.running[0] < checkpoint:
            self.give_up_running()

    @precondition(lambda self: self.waiting or self.written or self.running)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        running = () if self.running is None else (self.running[0],)
        checkpoint = data.draw(st.sampled_from(sorted({*self.waiting, *self.written, *running})))
        self.waiting.pop(checkpoint, None)
        self.written.pop(checkpoint, None)
        self.states.task.backend.checkpoint_aborted(checkpoint)
        if checkpoint in running:
            self.give_up_running()
        storage = self.cluster.storage  # nothing may refer to what was written for it
        storage.delete([path for path in storage.files if f"/c{checkpoint}-" in path])

    def give_up_running(self) -> None:
        """Nobody waits for its result any more, if it has one."""
        if self.running is not None:
            _, stepped, _ = self.running
            self.running = None
            with contextlib.suppress(CheckpointError, StorageError):
                stepped.finish()

    # ---- restores ----

    @precondition(lambda self: self.completed is not None)
    @rule(parts=st.integers(1, 3))
    def fail_and_restore(self, parts: int) -> None:
        """Go back to the last completed checkpoint; by way of several subtasks, which each take one themselves."""
        assert self.completed is not None
        self.give_up_running()
        handles, model = self.completed[0], self.completed[1].copied()
        if parts > 1:
            ranges = [key_group_range(i, parts, 128) for i in range(parts)]
            tasks = [self.cluster.subtask(key_groups=groups, restore=handles) for groups in ranges]
            for task, groups in zip(tasks, ranges, strict=True):
                states = self.made(task)
                for key in KEYS:
                    if hash_value(key) % 128 in groups:
                        assert states.seen(key) == model.seen(key, self.about)
                    else:
                        assert not task.at(key, states.items.get)
            handles = [task.checkpoint(self.next_checkpoint) for task in tasks]
            self.next_checkpoint += 1
        self.completed = (handles, model.copied())
        self.states = self.made(self.cluster.subtask(key_groups=ALL, restore=handles))
        self.model = model
        self.waiting.clear()
        self.written.clear()
        self.compare_all(handles, self.model)  # another subtask reads: this one has nothing in its caches

    def teardown(self) -> None:
        if hasattr(self, "states"):
            self.give_up_running()
            for key in KEYS:
                assert self.states.seen(key) == self.model.seen(key, self.about)
            self.cluster.close()
            self.directory.cleanup()


def machine_of(kind: str, ttl: str, about: Sequence[str] = BackendMachine.about) -> type[BackendMachine]:
    return type("Machine", (BackendMachine,), {"kind": kind, "ttl": TTLS[ttl], "about": about})


def settings_for(examples: int, steps: int = 50) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        phases=[
            Phase.explicit,
            Phase.reuse,
            Phase.generate,
        ],  # to shrink takes minutes, and examples are short
        report_multiple_bugs=False,
        deadline=None,
    )


def run_machine(kind: str, ttl: str, examples: int, steps: int) -> None:
    machine = machine_of(kind, ttl)
    machine.TestCase.settings = settings_for(examples, steps)  # type: ignore[attr-defined]
    machine.TestCase().runTest()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("kind", backend_kinds())
def test_a_backend_is_a_dict_with_snapshots(kind: str, ttl: str) -> None:
    run_machine(kind, ttl, 12 if kind == "heap" else 4, 30)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("kind", backend_kinds())
def test_a_backend_is_a_dict_with_snapshots_at_length(kind: str, ttl: str) -> None:
    run_machine(kind, ttl, 2000 if kind == "heap" else 400, 60)


# ---- one state, and what happens between its barrier and its last file ----

Action = tuple[str, dict[str, Any]]


def action(method: str, /, **arguments: Any) -> st.SearchStrategy[Action]:
    return st.tuples(st.just(method), st.fixed_dictionaries(arguments))


_KEY = st.sampled_from(["a", "a", "a", "b"])
_NUMBER = st.integers(0, 9)
_ITEM = st.lists(_NUMBER, max_size=1)
OF_STATE = {
    "value": [action("update", key=_KEY, number=_NUMBER), action("clear_value", key=_KEY)],
    "document": [action("put_into_document", key=_KEY, name=names, item=_ITEM)],
    "items": [
        action("append", key=_KEY, item=_ITEM),
        action("append_all", key=_KEY, more=st.lists(_ITEM, max_size=2)),
        action("replace_list", key=_KEY, more=st.lists(_ITEM, max_size=2)),
    ],
    "entries": [
        action("put", key=_KEY, name=names, item=_ITEM),
        action("remove_entry", key=_KEY, name=names),
        action("clear_map", key=_KEY),
        action("read_entry", key=_KEY, name=names),
        action("look_for_entries", key=_KEY),
    ],
    "largest": [action("reduce", key=_KEY, number=_NUMBER)],
    "collected": [action("collect", key=_KEY, number=_NUMBER)],
}
ANY_STATE = [
    action("list_keys"),
    action("read", key=_KEY),
    action("time_passes", ms=st.sampled_from([1, 4, 6, DURATION_MS])),
]
STEPS = action("write_on", lines=st.integers(1, 60))


class Round(NamedTuple):
    """A checkpoint: what happens before its barrier, and what while it is written."""

    before: list[Action]
    lines: int
    during: list[Action]
    completes: bool


def rounds_of(state: str) -> st.SearchStrategy[list[Round]]:
    actions = st.one_of(*OF_STATE[state], *ANY_STATE)
    during = st.lists(st.one_of(actions, STEPS), min_size=4, max_size=8)
    one = st.builds(
        Round, st.lists(actions, min_size=2, max_size=4), st.integers(0, 30), during, st.booleans()
    )
    return st.lists(one, min_size=1, max_size=2)


def play(kind: str, ttl: str, state: str, rounds: list[Round]) -> None:
    machine = machine_of(kind, ttl, (state,))()
    machine.start()
    try:
        for one in rounds:
            for name, arguments in one.before:
                getattr(machine, name)(**copy.deepcopy(arguments))
            machine.begin()
            machine.begin_to_write(lines=one.lines)
            for name, arguments in one.during:
                if name != "write_on" or machine.running is not None:
                    getattr(machine, name)(**copy.deepcopy(arguments))
            if machine.running is not None:
                machine.write()
            if one.completes:
                machine.complete_newest()
    finally:
        machine.teardown()


@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("kind", backend_kinds())
def test_a_snapshot_holds_what_there_was_at_its_barrier(kind: str, ttl: str) -> None:
    @settings_for(40 if kind == "heap" else 8)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(sorted(OF_STATE)))
        play(kind, ttl, state, data.draw(rounds_of(state)))

    holds()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("state", OF_STATE)
@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("kind", backend_kinds())
def test_a_snapshot_holds_what_there_was_at_its_barrier_at_length(kind: str, ttl: str, state: str) -> None:
    @settings_for(2000 if kind == "heap" else 300)
    @given(rounds_of(state))
    def holds(rounds: list[Round]) -> None:
        play(kind, ttl, state, rounds)

    holds()


# ---- every short history of a key around two barriers ----

WRITE: dict[str, Callable[[BackendMachine, str, int], None]] = {
    "value": lambda machine, key, n: machine.update(key=key, number=n),
    "document": lambda machine, key, n: machine.put_into_document(key=key, name=str(n), item=[n]),
    "items": lambda machine, key, n: machine.append(key=key, item=[n]),
    "entries": lambda machine, key, n: machine.put(key=key, name=str(n % 2), item=[n]),
    "largest": lambda machine, key, n: machine.reduce(key=key, number=n),
    "collected": lambda machine, key, n: machine.collect(key=key, number=n),
}
BEFORE, MEANWHILE, AFTER = ("", "w"), ("", "r", "w", "rw", "wr"), ("", "w")
HISTORIES = {"-".join(h): h for h in itertools.product(BEFORE, BEFORE, MEANWHILE, MEANWHILE, AFTER)}
"""What a key sees: twice before the barrier, twice while the snapshot is written, and once before the next barrier."""


@pytest.mark.parametrize("start", ["empty", "restored"])
@pytest.mark.parametrize("state", WRITE)
@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("kind", backend_kinds())
def test_every_short_history_of_a_key_around_a_barrier(kind: str, ttl: str, state: str, start: str) -> None:
    """A time to live of 10 ms: at 0, 3, barrier, 5, at 11 while the snapshot is written bit by bit, 14, barrier."""
    machine = machine_of(kind, ttl, (state,))()
    machine.start()
    try:
        machine.time_passes(ms=1)  # the first watermark
        if start == "restored":  # then the backend does not know everything from memory
            machine.begin()
            machine.begin_to_write(lines=0)
            machine.write()
            machine.complete_newest()
            machine.fail_and_restore(parts=1)

        def happen(slot: int, meanwhile: Callable[[], None] = lambda: None) -> None:
            for key, history in HISTORIES.items():
                for what in history[slot]:
                    if what == "w":
                        WRITE[state](machine, key, slot)
                    else:
                        machine.read(key=key)
                    meanwhile()

        def write_on() -> None:
            if machine.running is not None:
                machine.write_on(lines=1)

        happen(0)
        machine.time_passes(ms=3)
        happen(1)
        machine.begin()
        machine.time_passes(ms=2)
        happen(2)
        machine.time_passes(ms=6)
        machine.begin_to_write(lines=0)
        happen(3, write_on)
        machine.write()
        for key in HISTORIES:
            machine.read(key=key)
        machine.complete_newest()
        machine.time_passes(ms=3)
        happen(4)
        machine.begin()
        machine.begin_to_write(lines=0)
        machine.write()
    finally:
        machine.teardown()


@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("kind", backend_kinds())
def test_a_snapshot_is_written_while_another_thread_reads_and_appends(
    kind: str, ttl: str, tmp_path: Path
) -> None:
    """With real threads, which change as often as the interpreter lets them."""
    cluster = Cluster(kind, tmp_path)
    states = States(cluster.subtask(int), TTLS[ttl], ["items"])
    count = 3000
    for key in range(count):
        states.task.at(key, lambda key=key: states.items.add([key]))
    part = states.task.begin_checkpoint(1)
    cluster.advance(1)
    states.task.backend.current_watermark_ms = 1
    handles: list[KeyedStateHandle] = []
    writer = threading.Thread(target=lambda: handles.append(part()))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        writer.start()
        for key in range(count):
            states.task.at(key, lambda key=key: (states.items.get(), states.items.add([-key])))
        writer.join()
    finally:
        sys.setswitchinterval(interval)
    restored = States(cluster.subtask(int, restore=handles), TTLS[ttl], ["items"])
    wrong = [k for k in range(count) if restored.task.at(k, restored.items.get) != [[k]]]
    cluster.close()
    assert not wrong
