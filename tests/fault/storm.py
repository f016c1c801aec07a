"""Kill storms: a job whose processes are killed again and again, watched by a poller and judged by an oracle.

The oracle shares no code with the engine: the input is a plain function of (partition, n), the output is read as JSON
lines, the checkpoints as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.fault.kit import DEADLINE_S, kill, pids, until
from tests.fault.tap import TapSource, Tick, app_of
from tidegate import Environment, FileSink, MapFunction

logger = logging.getLogger(__name__)

OPTIONS = {
    "progress": "off",
    "checkpoint_interval": "200 ms",
    "checkpoint_fsync": False,
    "checkpoint_retained": 20,
    "checkpoint_keep_on_finish": True,
    "restart_strategy": "fixed-delay",
    "restart_attempts": 100_000,
    "restart_delay": "10 ms",
    "heartbeat_interval": "100 ms",
    "heartbeat_timeout": "2 s",
}


WITH_EXECUTORS = {"one": 3, "all": 4, "executor": 3, "_exit": 1}


class Bomb(MapFunction):
    """User code that fails in the way that a file names, once."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = str(directory)

    def map(self, tick: Tick) -> Tick:
        if tick.n % 25 == 0:
            self._look()
        return tick

    def _look(self) -> None:
        path = os.path.join(self.directory, "bomb")
        if not os.path.exists(path):
            return
        taken = os.path.join(self.directory, f"taken-{os.getpid()}-{time.monotonic_ns()}")
        try:
            os.rename(path, taken)
        except FileNotFoundError:
            return  # another subtask was faster
        how = Path(taken).read_text("ascii")
        if how == "raise":
            raise ValueError("a bomb of the storm")
        if how == "exit":
            sys.exit(3)
        os._exit(4)

    def place(self, how: str) -> None:
        """Let the next record find it."""
        path = Path(self.directory) / "bomb.new"
        path.write_text(how, "ascii")
        path.rename(Path(self.directory) / "bomb")

    def is_taken(self) -> bool:
        """Whether it went off."""
        return not os.path.exists(os.path.join(self.directory, "bomb"))


@dataclass
class Outcome:
    """What a storm did."""

    processes_killed: int = 0
    recoveries: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    polls: int = 0
    polls_per_s: float = 0.0
    files: int = 0
    records: int = 0
    checkpoints: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        """For the log of a test run."""
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.faults.items()))
        return (
            f"{self.processes_killed} processes killed ({kinds}), {self.recoveries} recoveries, "
            f"{self.checkpoints} checkpoints, {self.polls} polls at {self.polls_per_s:.0f} Hz over {self.files} files, "
            f"{self.records} records exactly once, in {self.seconds:.0f} s"
        )


class Poller:
    """A reader of the output while it is written: at least 20 times a second it looks at everything that is visible.

    A file must be whole when it first appears, must never change or go, and must be among the files that a completed
    checkpoint has committed.
    """

    def __init__(self, sinks: list[Path], checkpoints: Path) -> None:
        self._sinks = sinks
        self._checkpoints = checkpoints
        self._sizes: dict[Path, int] = {}
        self._manifests: set[Path] = set()
        self._committed: set[tuple[str, str]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self.polls = 0
        self.seconds = 0.0
        self.error: BaseException | None = None

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def files(self) -> int:
        return len(self._sizes)

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            while not self._stop.wait(0.01):
                self._poll()
                self.polls += 1
            self._poll()
        except BaseException as e:  # noqa: BLE001 -- raised by the test
            self.error = e
        self.seconds = time.monotonic() - begun

    def _poll(self) -> None:
        visible = {
            Path(entry.path): entry.stat().st_size
            for sink in self._sinks
            if sink.exists()
            for entry in os.scandir(sink)
            if not entry.name.startswith(".")
        }
        gone = self._sizes.keys() - visible.keys()
        assert not gone, f"visible files are gone: {sorted(gone)}"
        changed = [path for path, size in self._sizes.items() if visible[path] != size]
        assert not changed, f"visible files changed: {changed}"
        new = visible.keys() - self._sizes.keys()
        if new:
            self._read_manifests()
        for path in new:
            content = path.read_bytes()
            assert content.endswith(b"\n"), f"{path} is not complete"
            assert len(content) == visible[path], f"{path} grew from {visible[path]} to {len(content)} bytes"
            for line in content.splitlines():
                json.loads(line)
            of_checkpoint = (path.parent.name, path.name) in self._committed
            assert of_checkpoint, f"{path} is visible but of no completed checkpoint"
            self._sizes[path] = visible[path]

    def _read_manifests(self) -> None:
        for path in self._checkpoints.glob("*/chk-*/_metadata"):
            if path in self._manifests:
                continue
            try:
                manifest = json.loads(path.read_bytes())
            except FileNotFoundError:
                continue  # an old one, discarded meanwhile
            self._manifests.add(path)
            for operator in manifest["operators"]:
                for subtask in operator["subtasks"]:
                    for state in subtask["states"]:
                        if state["name"] == "committables":
                            self._committed |= {
                                (operator["uid"], entry["name"]) for entry in state["entries"]
                            }


def executor_of(pid: int) -> int | None:
    """The JVM of an executor, from the process of one of its slots."""
    try:
        for parent in psutil.Process(pid).parents():
            if "java" in parent.name():
                return parent.pid if "CoarseGrainedExecutorBackend" in " ".join(parent.cmdline()) else None
    except psutil.NoSuchProcess:
        pass
    return None


class Storm:
    """One long job under faults, until so many processes were killed."""

    def __init__(self, spark: Any, directory: Path, seed: int, parallelism: int = 4, **options: Any) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.tap = TapSource(directory / "tap", parallelism)
        self.bomb = Bomb(directory / "bomb")
        self.outcome = Outcome()
        self._zombies: list[int] = []
        env = Environment(
            spark=spark,
            **{**OPTIONS, "parallelism": parallelism, "checkpoint_dir": str(directory / "chk"), **options},
        )
        ticks = env.from_source(self.tap, uid="tap").map(self.bomb, returns=Tick, uid="bomb")
        ticks.sink_to(FileSink(directory / "ticks"), uid="ticks")
        ticks.key_by("app").count(uid="count").sink_to(FileSink(directory / "counts"), uid="counts")
        self._env = env

    def run(self, kills: int, faults: dict[str, int], deadline_s: float) -> Outcome:
        """Strike until `kills` processes are dead, let the job finish, judge.

        Every kind of fault comes once, then they come at random, as often as their weights say.
        """
        first = list(faults)
        outcome, begun = self.outcome, time.monotonic()
        sinks = [self.directory / "ticks", self.directory / "counts"]
        with Poller(sinks, self.directory / "chk") as poller:
            client = self._env.execute_async("storm")
            try:
                while first or outcome.processes_killed < kills:
                    assert time.monotonic() - begun < deadline_s, f"too slow: {outcome.line()}"
                    assert poller.error is None, poller.error
                    (kind,) = self.random.choices(list(faults), list(faults.values()))
                    self._strike(client, first.pop() if first else kind)
                    logger.info("%s", outcome.line())
                end = self.tap.close()
                client.result(DEADLINE_S)
            finally:
                for pid in self._zombies:
                    kill(pid, signal.SIGCONT)
                if not client.status().is_terminal:
                    client.cancel(30)
        if poller.error is not None:
            raise poller.error
        outcome.seconds = time.monotonic() - begun
        outcome.polls, outcome.polls_per_s = poller.polls, poller.polls / poller.seconds
        outcome.files = poller.files
        outcome.recoveries = client.overview().restarts
        outcome.checkpoints = client.checkpoints().completed
        outcome.records = judge(self.directory, self.tap.partitions, end)
        logger.warning("%s", outcome.line())
        return outcome

    # ---- faults ----

    def _strike(self, client: Any, kind: str) -> None:
        outcome = self.outcome
        if kind == "in restore":
            attempt = client.overview().attempt
            self._kill(pids(client)[:1] or self._ready(client)[:1])
            until(client, lambda: client.overview().attempt > attempt and pids(client), "the next attempt")
            self._kill(pids(client)[:1])  # whatever it does: it may be restoring
            outcome.faults[kind] += 1
            return
        victims = self._ready(client)
        if not victims:
            return
        attempt = client.overview().attempt
        match kind:
            case "one":
                self._kill([self.random.choice(victims)])
            case "all":
                self._kill(victims)
            case "executor":
                executor = executor_of(self.random.choice(victims))
                assert executor is not None, "the slots are not in executors of their own"
                self._kill([executor])
            case "zombie":
                pid = self.random.choice(victims)
                if not kill(pid, signal.SIGSTOP):
                    return
                self._zombies.append(pid)
                until(client, lambda: client.overview().attempt > attempt, "the job to go on without it")
                kill(pid, signal.SIGCONT)
            case "raise" | "exit" | "_exit":
                self.bomb.place(kind)
                until(client, self.bomb.is_taken, "the bomb")
                outcome.processes_killed += kind == "_exit"
        until(client, lambda: client.overview().attempt > attempt, f"a restart after {kind!r}")
        outcome.faults[kind] += 1

    def _ready(self, client: Any) -> list[int]:
        """The slots' processes once the job runs again and has completed a checkpoint, or has just begun one."""
        overview = client.overview()
        before = client.checkpoints().completed

        def ready() -> bool:
            if client.status().name != "RUNNING":
                return False
            return client.checkpoints().completed > before

        until(client, ready, f"a checkpoint of attempt {overview.attempt}")
        if self.random.random() < 0.3:  # while one is under way
            newest = client.checkpoints().triggered
            until(client, lambda: client.checkpoints().triggered > newest, "another trigger")
        return pids(client)

    def _kill(self, victims: list[int]) -> None:
        for pid in victims:
            self.outcome.processes_killed += kill(pid)


# ---- the oracle ----


def judge(directory: Path, partitions: int, end: int) -> int:
    """Compare what is visible with the truth: every record of every partition once, every count once."""
    seen: Counter[tuple[int, int]] = Counter()
    for row in rows(directory / "ticks"):
        assert row["app"] == app_of(row["partition"], row["n"])
        seen[row["partition"], row["n"]] += 1
    twice = [record for record, times in seen.items() if times > 1]
    assert not twice, f"{len(twice)} records are there twice, such as {sorted(twice)[:5]}"
    missing = [(p, n) for p in range(partitions) for n in range(end) if (p, n) not in seen]
    assert not missing, f"{len(missing)} records are missing, such as {missing[:5]}"
    assert len(seen) == partitions * end, "records that were never sent"
    truth = Counter(app_of(p, n) for p in range(partitions) for n in range(end))
    counts: dict[int, list[int]] = {}
    for row in rows(directory / "counts"):
        counts.setdefault(row["app"], []).append(row["count"])
    assert counts.keys() == truth.keys()
    for app, found in counts.items():
        assert sorted(found) == list(range(1, truth[app] + 1)), f"the counts of app {app}"
    for sink in ("ticks", "counts"):
        # Notes of what was published stay as long as the checkpoints, which are kept here.
        found = (p.name for p in (directory / sink).iterdir())
        litter = [name for name in found if name.startswith(".") and not name.endswith(".published")]
        assert not litter, f"left behind in {sink}: {litter}"
    return len(seen)


def rows(directory: Path) -> list[dict[str, int]]:
    """All visible records."""
    return [
        json.loads(line)
        for path in sorted(directory.glob("part-*"))
        for line in path.read_bytes().splitlines()
    ]
