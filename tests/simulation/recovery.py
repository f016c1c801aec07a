"""Runs a program under the faults of one seed and checks the invariants while it runs and when it has ended.

Everything about a run comes from its seed: program, mode, backend, parallelism, options, faults, order of events. One
seed alone, with its trace: `python -m tests.simulation.recovery <seed>`.
"""

from __future__ import annotations

import atexit
import csv
import functools
import hashlib
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tests.simulation.event_time_programs import EVENT_TIME_PROGRAMS
from tests.simulation.recovery_programs import PROGRAMS, Program
from tidegate import Environment, FileSink, ValueState
from tidegate.api.sink import SinkJob
from tidegate.connectors.files.output_names import parse_hidden, parse_part
from tidegate.core.clock import ManualClock
from tidegate.core.errors import CheckpointError
from tidegate.core.ids import JobId
from tidegate.core.key_groups import KeyGroupRange
from tidegate.core.options import Options
from tidegate.core.states import JobStatus
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.failover import events as fe
from tidegate.jobmanager.resume_point import Beginning, beginning
from tidegate.operators.source import SPLITS
from tidegate.records.types import record_type_of
from tidegate.runtime.simulation import Simulation
from tidegate.snapshot.manifest import ManifestError, decode_manifest
from tidegate.state.backend import BackendContext, ColumnArray
from tidegate.state.backends import make_backend
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.job_storage import make_storage
from tidegate.storage.layout import claim_path, inheritance_path
from tidegate.storage.memory import MemoryStorage
from tidegate.storage.storage import StorageError
from tidegate.taskmanager.barriers.in_flight import decode_in_flight
from tidegate.testing.simulated_faults import SimulatedFaults

MODES = ("aligned", "aligned", "unaligned", "unaligned", "timeout", "at_least_once")
MOST_EVENTS = 60_000
EVENT_TIME = 1_000_000
"""From this seed on the programs are those in event time."""


@functools.cache
def workplace() -> str:
    """A directory in memory, if the machine has one: thousands of small files are written and synced."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    made = tempfile.mkdtemp(prefix="tidegate-simulation-", dir=parent)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def graph_of(program: Program, parallelism: int, out: str) -> tuple[JobGraph, Any]:
    """The job graph and the sink of a program; they are the same for all seeds."""
    env = Environment(runtime="in-process", parallelism=parallelism)
    sink = FileSink(out, "csv")
    program.build(env, program.inputs).sink_to(sink)
    made = env._program(f"simulated {program.name}")
    graph = build_stream_graph(made.name, made.sinks, made.transformations, made.options)
    return build_job_graph(graph), sink


@dataclass(frozen=True)
class Plan:
    """What a seed means."""

    seed: int
    program: Program
    mode: str
    backend: str
    parallelism: int
    storage: str
    damages: bool
    consumes: bool
    """Whether a consumer takes visible files away while the job runs."""
    values: dict[str, object]

    @staticmethod
    def of(seed: int) -> Plan:
        rng = random.Random(f"plan {seed}")
        programs = PROGRAMS if seed < EVENT_TIME else EVENT_TIME_PROGRAMS
        program = programs[seed % len(programs)]
        mode = rng.choice(MODES)
        damages = rng.random() < 0.12
        storage = "directory" if damages or rng.random() < 0.85 else "memory"
        values: dict[str, object] = {
            "execution.batch_rows": rng.choice((2, 5, 11)),
            "network.buffer_size": rng.choice((1, 64, 4096)),
            "network.buffers_per_channel": rng.choice((1, 2)),
            "network.floating_buffers": rng.choice((0, 1, 4)),
            "network.buffer_timeout": rng.choice((0, 10)),
            "checkpoint.interval": rng.choice((10, 10, 25)),
            "checkpoint.timeout": 1500,
            "checkpoint.min_pause": rng.choice((0, 10)),
            "checkpoint.max_concurrent": rng.choice((1, 1, 2, 3)),
            "checkpoint.retained": rng.choice((2, 3) if damages else (1, 2, 3)),
            "checkpoint.tolerable_failures": rng.choice((1, 1000)),
            "checkpoint.fsync": False,
            "checkpoint.unaligned": mode == "unaligned",
            "checkpoint.alignment_timeout": rng.choice((1, 5)) if mode == "timeout" else 0,
            "checkpoint.mode": "at_least_once" if mode == "at_least_once" else "exactly_once",
            "heartbeat.interval": 100,
            "heartbeat.timeout": 1000,
            "cancel.grace": 100,
            "restart_strategy.type": "fixed-delay",
            "restart_strategy.fixed_delay.attempts": 30,
            "restart_strategy.fixed_delay.delay": 20,
        }
        if mode in ("unaligned", "timeout"):
            values["checkpoint.max_concurrent"] = 1
        backend = "rocksdb" if rng.random() < 0.06 else "heap"
        values["state.backend"] = backend
        values["watermark.interval"] = rng.choice((0, 0, 15))
        parallelism = rng.choice((1, 2, 2, 3))
        if damages:
            values["checkpoint.fallback"] = rng.choice(("refuse", "repeat-output"))
        values["checkpoint.full_every"] = rng.choice((0, 0, 1, 3))
        consumes = rng.random() < 0.5
        return Plan(seed, program, mode, backend, parallelism, storage, damages, consumes, values)


class _Ended(Exception):
    """Nothing is to be resumed."""


class Run:
    """One seed, from the first driver to the end of the job."""

    def __init__(self, seed: int) -> None:
        self.plan = plan = Plan.of(seed)
        self.place = os.path.join(workplace(), "run")
        shutil.rmtree(self.place, ignore_errors=True)
        self.out = os.path.join(self.place, "out")
        self.taken = os.path.join(self.place, "taken")
        self.consumer = random.Random(f"consumer {seed}")
        self.checkpoints = os.path.join(self.place, "checkpoints")
        os.makedirs(self.checkpoints)
        os.makedirs(self.taken)
        values = dict(plan.values)
        if plan.storage == "directory":
            values["checkpoint.dir"] = self.checkpoints
        self.options = Options().with_values(values, "the seed").checked()
        self.graph, self.sink = graph_of(plan.program, plan.parallelism, self.out)
        self.drivers = 0
        self.completed: list[int] = []
        """Ids that the coordinator took for complete, in order."""
        self.covered: set[str] = set()
        """Visible names that some durable manifest has."""
        self.restores = 0
        self.last_alive: dict[tuple[str, int], int] = {}
        """Attempts that have become zombies, and how many checkpoints were complete when one of their slots lived."""
        resume = self._resume if plan.storage == "directory" else None
        self.faults = SimulatedFaults(seed, resume=resume, damages=plan.damages)
        self.simulation = Simulation(
            self.graph,
            self.options,
            seed,
            begin=self._prepared(self._beginning() if plan.storage == "directory" else self._in_memory()),
            faults=self.faults,
            observe=self._observe,
        )

    # ---- drivers ----

    def _in_memory(self) -> Beginning:
        job_id = JobId("simulated")
        return Beginning(job_id, make_storage(self.options, job_id))

    def _prepared(self, begin: Beginning) -> Beginning:
        self.drivers += 1
        self.job = SinkJob(begin.job_id, begin.first_attempt, self.plan.parallelism, begin.is_resumed)
        self.sink.prepare(self.job)
        return begin

    def _resume(self) -> Beginning:
        if self.simulation.job.status is JobStatus.FINISHED:
            raise _Ended("the driver died when the job had finished and was cleaning up")
        try:
            begin = self._beginning()
        except CheckpointError as e:
            if not self._is_damaged:
                raise
            raise _Ended("all checkpoints are damaged, which is said by name") from e
        if not begin.is_resumed:
            assert not self.completed or self._is_damaged, "a completed checkpoint was lost"
        return self._prepared(begin)

    def _beginning(self) -> Beginning:
        """What the operator's program begins with, each time that it is started."""
        options = self.options.with_values({"resume": "latest-or-new"}, "the operator")
        return beginning(options, self.graph.name, self.graph)

    @property
    def _is_damaged(self) -> bool:
        return self.faults.struck["damage"] > 0

    # ---- while it runs ----

    def run(self) -> list[str]:
        """To the end, with every check; returns the trace."""
        simulation = self.simulation
        with self.faults.at_failpoints():
            try:
                while True:
                    self._run_driver()
                    if simulation.status is JobStatus.FINISHED:
                        break
                    if self._ends_in_a_named_error():
                        return simulation.trace
                    simulation.kill_driver()
                    simulation.start_driver(self._resume())
            except _Ended:
                if simulation.job.status is not JobStatus.FINISHED:
                    return simulation.trace
            finally:
                simulation.close()
        self._check_end()
        return simulation.trace

    def _run_driver(self) -> None:
        simulation = self.simulation
        while simulation.driver_is_down or not simulation.status.is_terminal:
            events = len(simulation.trace)
            simulation.run_one_event()
            if len(simulation.trace) > events:
                last = simulation.trace[-1]
                if last.startswith("storage"):
                    self._after_storage(last)
            if events % 5 == 0:
                self._check_visible()
            for gang in simulation.gangs:
                if (gang.job_id, gang.attempt) != (
                    simulation.job.job_id,
                    simulation.job.attempt,
                ) and gang.lives:
                    self.last_alive[gang.job_id, gang.attempt] = len(self.completed)
            assert events < MOST_EVENTS, f"it does not end: {simulation.job.overview()}"

    def _ends_in_a_named_error(self) -> bool:
        message = self.simulation.message
        if (
            "none of its completed checkpoints can be restored" in message
            or "is the storage mounted?" in message
            or "would be written a second time" in message
        ):
            assert self._is_damaged, message
            return True
        # The storage was away when a driver began: whoever runs the job starts it again.
        assert "cannot be read: injected" in message, message
        return False

    def _observe(self, event: Any, actions: Any) -> None:
        if isinstance(event, ce.ManifestWritten):
            retained = self.simulation.job.coordinator.completed.retained
            if retained and retained[-1].checkpoint_id == event.checkpoint_id:
                assert not self.completed or event.checkpoint_id > self.completed[-1], (event, self.completed)
                self.completed.append(event.checkpoint_id)
        for action in actions:
            if isinstance(action, fe.BeginAttempt):
                self._on_begin(action)

    def _on_begin(self, action: fe.BeginAttempt) -> None:
        restored = 0 if action.restore is None else action.restore.checkpoint_id
        newest = self.completed[-1] if self.completed else 0
        assert self._is_damaged or restored >= newest, f"restored {restored}, but {newest} is complete"
        if restored:
            self.restores += 1
            try:
                self._check_state(restored)
            except (
                ManifestError,
                StorageError,
            ):  # damaged since it was verified: the slots will find it as well
                assert self._is_damaged

    def _after_storage(self, what: str) -> None:
        storage = self.simulation.driver.storage
        assert storage is not None
        if "WriteManifest" in what:
            for id in storage.completed()[-2:]:
                self._cover(storage.read_manifest(id))
        if isinstance(storage, MemoryStorage) or self._is_damaged:
            return
        for checkpoint in self.simulation.job.coordinator.completed.retained:
            for path in checkpoint.files:
                whole = os.path.join(storage.place.path, path)
                assert os.path.exists(whole), f"{path} of checkpoint {checkpoint.checkpoint_id} is gone"

    def _cover(self, data: bytes) -> None:
        try:
            operators = decode_manifest(data) and json.loads(data)["operators"]
        except ManifestError:
            assert self._is_damaged
            return
        for operator in operators:
            for subtask in operator["subtasks"]:
                for state in subtask["states"]:
                    if state["name"] == "committables":
                        self.covered |= {entry["name"] for entry in state["entries"]}

    def _check_visible(self) -> None:
        """What a reader sees is the output of completed checkpoints; of some seeds it takes away what it sees."""
        if self.simulation.driver_is_down:
            return
        visible = {name for name in os.listdir(self.out) if not name.startswith(".")}
        if visible and self.plan.consumes and self.consumer.random() < 0.2:
            for name in sorted(visible):
                assert not os.path.exists(os.path.join(self.taken, name)), f"{name} was published twice"
                os.rename(os.path.join(self.out, name), os.path.join(self.taken, name))
        if visible <= self.covered:
            return
        storage = self.simulation.driver.storage
        assert storage is not None
        for id in storage.completed():
            self._cover(storage.read_manifest(id))
        assert visible <= self.covered, f"{visible - self.covered} is visible, but in no completed checkpoint"

    # ---- what a checkpoint holds ----

    def _check_state(self, checkpoint_id: int) -> None:
        """Keyed state and in-flight records together are the fold over what the sources have given."""
        program = self.plan.program
        storage = self.simulation.driver.storage
        assert storage is not None
        data = storage.read_manifest(checkpoint_id)
        self._cover(data)
        if not program.counts:
            return
        manifest = decode_manifest(data)
        given: Counter[int] = Counter()
        for operator in manifest.operators:
            if operator.name in program.inputs:
                clicks = program.inputs[operator.name]
                handles = [h for s in operator.subtasks for h in s.states if h.name == SPLITS]
                left = [json.loads(bytes(e)) for h in handles for e in h.entries]
                for unassigned in json.loads(bytes(manifest.enumerators[operator.id])):
                    left += unassigned if isinstance(unassigned, list) else [unassigned]
                unread = {i for span in left for i in range(span["position"], span["end"])}
                given.update(click.key for i, click in enumerate(clicks) if i not in unread)
        in_flight: Counter[int] = Counter()
        for vertex in manifest.vertices:
            for _, handle in vertex.in_flight:
                for _, _, batch in decode_in_flight(storage.read(handle.file), "in flight"):
                    with pa.ipc.open_stream(batch) as reader:
                        in_flight.update(reader.read_all().column("key").to_pylist())
        found = self._counts(manifest, storage)
        if self.plan.mode == "at_least_once":
            assert not given - found, f"checkpoint {checkpoint_id}: {given} read, {found} counted"
        else:
            assert found + in_flight == given, (
                f"checkpoint {checkpoint_id}: {given} read, {found} counted, {in_flight} in flight"
            )

    def _counts(self, manifest: Any, storage: Any) -> Counter[int]:
        handles = [s.keyed for o in manifest.operators for s in o.subtasks if s.keyed is not None]
        if not handles:
            return Counter()
        directory = os.path.join(self.place, "reading")
        shutil.rmtree(directory, ignore_errors=True)

        def make() -> str:
            os.makedirs(directory)
            return directory

        backend = make_backend(
            BackendContext(
                "reader",
                0,
                0,
                record_type_of(int),
                KeyGroupRange(0, 127),
                128,
                ManualClock(),
                self.options,
                make,
            )
        )
        backend.restore(handles, storage)
        found: Counter[int] = Counter()
        if self.plan.program.counts == "total":
            table = backend.columns("total", [ColumnArray("count", np.dtype(np.int64), 0)])
            keys = pa.array(range(20), pa.int64())
            ids, _, arrays = table.begin([keys])
            found.update({k: int(arrays[0][i]) for k, i in zip(range(20), ids, strict=True) if arrays[0][i]})
            table.commit(np.empty(0, np.int64))
        else:
            state: Any = backend.state(ValueState(int, default=0, name=self.plan.program.counts))
            for key in list(backend.keys(self.plan.program.counts)):
                backend.current_key = key
                found[key] = state.value()
        backend.close()
        return found

    # ---- the end ----

    def _check_end(self) -> None:
        self._check_visible()
        if not self.simulation.driver_is_down:
            self.sink.release(self.job, resumable=False)
        hidden = [name for name in os.listdir(self.out) if parse_part(name) is None]
        output = read_output(self.out, self.taken)
        guarantee = self.plan.mode if self.plan.mode == "at_least_once" else "exactly_once"
        may_repeat = self.options.checkpoint_fallback == "repeat-output"
        if self._is_damaged and may_repeat and guarantee == "exactly_once":
            guarantee = "repeated"
        self.plan.program.check(self.plan.program, output, guarantee, self.plan.parallelism)
        if not self.simulation.driver_is_down:
            self._check_litter(hidden)

    def _check_litter(self, hidden: list[str]) -> None:
        """Nothing is left of what ended two checkpoints ago; of later zombies, and of another job, something may be."""
        job = self.simulation.job
        recent = [
            (job_id, attempt)
            for (job_id, attempt), completed in self.last_alive.items()
            if len(self.completed) - completed < 2 or job_id != job.job_id
        ]
        for name in hidden:
            found = parse_hidden(name)
            assert found is not None, f"left behind: {name}"
            assert (found.part.job, found.part.attempt) in recent, f"left behind: {name}"
        storage = self.simulation.driver.storage
        if isinstance(storage, MemoryStorage):
            assert not storage.files
            assert not storage.completed()
            return
        if self._is_damaged:
            return  # a manifest that a resumed driver could not read stays where it is, to be looked at
        if self.simulation.driver.may_be_resumed:
            return  # the storage failed to the very end, so deletions were not done, and the log says which
        recent_attempts = [attempt for job_id, attempt in recent if job_id == job.job_id]
        assert isinstance(storage, FilesystemStorage)
        [claim] = storage.claims()  # it outlives the job: the next run has the same id
        stays = {claim_path(claim), inheritance_path(claim)}
        for directory, _, names in os.walk(os.path.join(self.checkpoints, job.job_id)):
            for name in names:
                if os.path.relpath(os.path.join(directory, name), storage.place.path) in stays:
                    continue
                by_recent = any(f"-a{a}-" in f"-{name}" for a in recent_attempts)
                late = name.endswith(".0badf00d.tmp")
                assert by_recent or late, f"left behind: {directory}/{name}"


def read_output(*directories: str) -> dict[int, list[dict[str, int]]]:
    """The rows that are visible, by subtask and in the order in which it wrote them."""
    output: dict[int, list[dict[str, int]]] = {}
    for name, directory in sorted((name, d) for d in directories for name in os.listdir(d)):
        part = parse_part(name)  # a subtask's files sort as it wrote them
        if part is not None:
            with open(os.path.join(directory, name), newline="") as lines:
                rows = ({k: int(v) for k, v in row.items()} for row in csv.DictReader(lines))
                output.setdefault(part.subtask, []).extend(rows)
    return output


def digest(trace: list[str]) -> str:
    """A trace in few characters, to compare."""
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()[:16]


if __name__ == "__main__":
    import sys

    shown = Run(int(sys.argv[1]))
    try:
        shown.run()
    finally:
        sys.stdout.write(
            "\n".join([*shown.simulation.trace, str(shown.plan), digest(shown.simulation.trace), ""])
        )
