"""What the tests of recovery share: sinks that note and hold, waiting for a job, killing its processes."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.kit import wait_until
from tidegate.api.sink import Committer, Sink, SinkWriter, WriterContext
from tidegate.core.key_groups import key_group_for_hash, subtask_for_key_group
from tidegate.keys.hashing import hash_value
from tidegate.records.batch import Batch

DEADLINE_S = 180.0
"""For one thing that a job does: a busy machine must not look like a stuck job."""
ALL = 1 << 30
PROGRAM = Path(__file__).with_name("driver.py")
"""What a driver of its own runs."""


class Nothing(msgspec.Struct, frozen=True):
    """The committable of a sink that never has one."""


class HoldingSink(Sink):
    """Notes every record at once (so after a failure twice), and holds checkpoints back.

    In the first attempt checkpoint n is written only when `let_pass(n)` or more was said, so that the last completed
    one is known while the job goes on past it; later attempts hold nothing. A line is (attempt, subtask, record).
    """

    committable_type = Nothing

    def __init__(self, directory: Path, passing: int = ALL) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = str(directory)
        self.let_pass(passing)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _HoldingWriter(self, context)

    def create_committer(self, context: WriterContext) -> Committer:
        return _NoCommitter()

    # ---- for the test ----

    def let_pass(self, checkpoints: int, subtask: int | None = None) -> None:
        """Let the first so many checkpoints pass, in one subtask or in all that were not told otherwise."""
        path = os.path.join(self.directory, "passing" if subtask is None else f"passing-{subtask}")
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(str(checkpoints))
        os.replace(path + ".new", path)

    def hold(self) -> None:
        """Complete no checkpoint whose barrier comes from now on."""
        self.let_pass(0)

    def noted(self, attempt: int | None = None) -> list[Any]:
        """The records of one attempt, or of all; those of one subtask in their order."""
        return [record for a, _, record in self.lines() if attempt in (None, a)]

    def lines(self) -> list[tuple[int, int, Any]]:
        """All that was noted so far."""
        files = sorted(Path(self.directory).glob("*.txt"))
        return [ast.literal_eval(line) for f in files for line in f.read_text("utf-8").split("\n")[:-1]]


class _HoldingWriter(SinkWriter):
    def __init__(self, sink: HoldingSink, context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._checkpoints = 0
        self._path = os.path.join(
            sink.directory, f"{context.attempt}-{context.subtask_index}-{os.getpid()}.txt"
        )

    def write(self, batch: Batch) -> None:
        c = self._context
        lines = [f"{(c.attempt, c.subtask_index, _plain(row))!r}\n" for row in batch.rows]
        with open(self._path, "a", encoding="utf-8") as file:
            file.write("".join(lines))

    def prepare_commit(self, defer: Callable[[Callable[[], None]], None]) -> Sequence[Any]:
        self._checkpoints += 1
        if self._context.attempt == 0:
            defer(functools.partial(self._wait, self._checkpoints))
        return ()

    def _wait(self, checkpoint: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self._passing() < checkpoint:
            if time.monotonic() > deadline:
                raise TimeoutError("the test did not open the sink")
            time.sleep(0.005)

    def _passing(self) -> int:
        own = Path(self._sink.directory) / f"passing-{self._context.subtask_index}"
        return int((own if own.exists() else Path(self._sink.directory) / "passing").read_text("ascii"))


class _NoCommitter(Committer):
    def commit(self, committables: Sequence[Any]) -> None:
        pass


def _plain(record: Any) -> Any:
    return tuple(record) if isinstance(record, tuple) else record


class WaitingFor:
    """A gate for user code: `wait` returns when the file is there."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def wait(self) -> None:
        """Tell that somebody waits, then wait."""
        Path(self.path + ".waiting").touch()
        deadline = time.monotonic() + DEADLINE_S
        while not os.path.exists(self.path):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody opened {self.path}")
            time.sleep(0.005)

    def is_awaited(self) -> bool:
        """Whether somebody waits or waited."""
        return os.path.exists(self.path + ".waiting")

    def open(self) -> None:
        """Let everybody go on."""
        Path(self.path).touch()


# ---- jobs ----


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP a process for as long as the block lasts."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def running(env: Any, name: str) -> Iterator[Any]:
    """A job that is not left behind when a test fails."""
    client = env.execute_async(name)
    try:
        yield client
    finally:
        if not client.status().is_terminal:
            client.cancel(30)


def until(client: Any, condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Poll a condition; a job that fails meanwhile is an error with its message."""

    def look() -> Any:
        if (found := condition()) or not client.status().is_terminal:
            return found
        if not (found := condition()):
            client.result(1)
            raise AssertionError(f"the job ended ({client.status().name}) before: {what}")
        return found

    return wait_until(look, f"{what}; {client.overview()}", deadline_s)


def hold_next(client: Any, sink: HoldingSink) -> int:
    """Hold a checkpoint that has not begun, whole: `hold()` may come between two sinks' parts of one that has.

    Returns the number of the last one that passes.
    """
    while True:
        last = int(client.checkpoints().triggered) + 2
        sink.let_pass(last)
        if client.checkpoints().triggered <= last:
            return last


def until_completed(client: Any, count: int = 1, deadline_s: float = DEADLINE_S) -> None:
    """Wait until so many checkpoints were completed in all."""
    until(client, lambda: client.checkpoints().completed >= count, f"{count} checkpoints", deadline_s)


def until_restarted(client: Any, restarts: int = 1, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the job runs again."""
    until(
        client,
        lambda: client.overview().restarts >= restarts and client.status().name == "RUNNING",
        f"restart {restarts}",
        deadline_s,
    )


def pids(client: Any) -> list[int]:
    """The processes of the job's slots, by slot."""
    return [s.pid for s in client.slots() if s.pid]


def kill(pid: int, sign: int = signal.SIGKILL) -> bool:
    """Send a signal; False if the process is gone."""
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        return False
    return True


def max_parallelism_for(keys: Sequence[str], parallelism: int) -> int:
    """A number of key groups with which key i goes to subtask i modulo the parallelism."""
    for groups in range(parallelism, 2000):
        found = [
            subtask_for_key_group(key_group_for_hash(hash_value(k), groups), parallelism, groups)
            for k in keys
        ]
        if found == [i % parallelism for i in range(len(keys))]:
            return groups
    raise AssertionError("there is none")
