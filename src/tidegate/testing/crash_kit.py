"""The crash kit: runs a program to its end, then again with crashes after checkpoints, and compares the outputs.

    def program(env, numbers, out):
        numbers.key_by(parity).sum("n").sink_to(FileSink(out), uid="sums")

    check_recovery(program, [range(1000)], directory, crashes=3)

The input is a `ScriptedSource`. At each crash point every partition pauses until a checkpoint that was triggered there
is complete. Half-way to the next point the process of one reader dies, so the job repeats what followed the checkpoint.
A reader of the sinks must see the same output in both runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from tidegate.api.environment import Environment
from tidegate.api.streams import DataStream
from tidegate.core.errors import ProgramError
from tidegate.core.words import number_of
from tidegate.testing.scripted_source import Crash, Pause, ScriptedSource

Program = Callable[[Environment, DataStream[Any], Path], object]
"""Builds the job: reads the stream, writes to sinks below the directory."""
How = Literal["kill", "raise", "exit", "_exit"]

_OTHER_FAILURES = 3
"""Failures beyond the kit's own that the job survives: a machine under load has some."""
_QUICK = {
    "checkpoint_interval": "100 ms",
    "checkpoint_fsync": False,
    "restart_strategy": "fixed-delay",
    "restart_delay": "50 ms",
    "progress": "off",
}


class RecoveryMismatch(AssertionError):
    """The output with crashes differs; the message says what is missing and what is too much."""


@dataclass(frozen=True)
class CrashReport:
    """The result of `check_recovery`."""

    crashes: int
    restarts: int
    checkpoints: int
    """Completed checkpoints of the run with crashes."""
    output: Any
    """The output of both runs."""


def check_recovery(
    program: Program,
    partitions: Iterable[Iterable[Any]],
    directory: str | Path,
    *,
    crashes: int = 2,
    how: How = "kill",
    type: Any = None,
    read: Callable[[Path], Any] | None = None,
    spark: Any = None,
    timeout_s: float = 60.0,
    **options: Any,
) -> CrashReport:
    """Run `program` without and with crashes, each in a new environment, and compare what it wrote.

    Args:
        program: called with an environment, the stream of the records, and the directory for its output.
        partitions: the records, by partition; `type` is their record type, if it cannot be inferred from them.
        directory: an empty directory for all files of both runs; all processes must see it.
        crashes: the number of crashes, spread evenly over the input.
        how: see `Crash`.
        read: returns what to compare, from the output directory; by default the lines of the visible text files and
            the rows of the Parquet files, without their order.
        spark: the session to run on.
        timeout_s: the limit for each wait.
        options: of both environments. Defaults: a checkpoint every 100 ms, a restart after 50 ms, and a few more
            restarts than crashes.

    Raises `RecoveryMismatch` if the outputs differ, and what the program raises.
    """
    home = Path(directory)
    scripts = [list(records) for records in partitions]
    longest = max(map(len, scripts), default=0)
    if not 1 <= crashes < longest:
        raise ProgramError(
            f"check_recovery needs from 1 to {longest - 1} crashes for partitions of up to {longest} records, "
            f"got {crashes}"
        )
    look = read or read_output
    restarts = crashes + _OTHER_FAILURES  # set for every strategy
    settings = {**_QUICK, "restart_attempts": restarts, "restart_max_failures": restarts, **options}
    expected = _Run(program, scripts, home / "without", type, spark, settings).without_crashes(
        look, timeout_s
    )
    run = _Run(program, _with_crashes(scripts, crashes, how), home / "with", type, spark, settings)
    report = run.with_crashes(crashes, look, timeout_s)
    if report.output != expected:
        raise RecoveryMismatch(
            f"with {number_of(crashes, 'crash', 'crashes')} ({number_of(report.restarts, 'restart')}) the output is "
            f"another than without. {difference(expected, report.output)}"
        )
    return report


def read_output(directory: Path) -> Counter[tuple[str, Any]]:
    """The records of all visible files below a directory, each with its folder; without order."""
    found: Counter[tuple[str, Any]] = Counter()
    for path in sorted(directory.rglob("*")):
        if not path.is_file() or any(p.startswith(".") for p in path.relative_to(directory).parts):
            continue
        folder = path.parent.relative_to(directory).as_posix()
        if path.suffix == ".parquet":
            found.update((folder, repr(row)) for row in pq.read_table(path).to_pylist())
        else:
            found.update((folder, line) for line in path.read_text("utf-8").splitlines())
    return found


def difference(expected: Any, found: Any) -> str:
    """The missing and the surplus records, the first few of each."""
    if not (isinstance(expected, Counter) and isinstance(found, Counter)):
        return f"Expected {expected!r}, found {found!r}."
    parts = []
    for word, more in (("Missing", expected - found), ("Too much", found - expected)):
        if more:
            some = ", ".join(repr(item) for item, _ in more.most_common(5))
            parts.append(f"{word}: {more.total()}, such as {some}.")
    return " ".join(parts)


# ---- inside ----


def _with_crashes(scripts: Sequence[Sequence[Any]], crashes: int, how: How) -> list[list[Any]]:
    """Add pauses at evenly spread points of every partition, and in the longest partition a crash after each."""
    longest = max(range(len(scripts)), key=lambda i: len(scripts[i]))
    made = []
    for index, records in enumerate(scripts):
        script: list[Any] = []
        step = len(records) / (crashes + 1)
        borders = [round(step * i) for i in range(1, crashes + 1)]
        begin = 0
        for i, border in enumerate(borders):
            end = borders[i + 1] if i + 1 < crashes else len(records)
            half = border + max(1, (end - border) // 2) if index == longest else border
            script += [*records[begin:border], Pause(f"{i} of {index}"), *records[border:half]]
            if index == longest:
                script.append(Crash(f"crash {i}", how))
            begin = half
        made.append([*script, *records[begin:]])
    return made


class _Run:
    """One run of the program in an environment of its own."""

    def __init__(
        self,
        program: Program,
        scripts: Sequence[Sequence[Any]],
        home: Path,
        record_type: Any,
        spark: Any,
        settings: dict[str, Any],
    ) -> None:
        self._output = home / "output"
        self._output.mkdir(parents=True)
        self._partitions = len(scripts)
        self.source = ScriptedSource(scripts, home / "script", type=record_type)
        self._env = Environment(spark=spark, **{"checkpoint_dir": str(home / "checkpoints"), **settings})
        program(self._env, self._env.from_source(self.source, uid="crash-kit-source"), self._output)

    def without_crashes(self, read: Callable[[Path], Any], timeout_s: float) -> Any:
        with _ended(self._env.execute_async("crash kit")) as client:
            client.result(timeout_s)
        return read(self._output)

    def with_crashes(self, crashes: int, read: Callable[[Path], Any], timeout_s: float) -> CrashReport:
        with _ended(self._env.execute_async("crash kit")) as client:
            for i in range(crashes):
                self._crash(client, i, timeout_s)
            client.result(timeout_s)
        overview = client.overview()
        return CrashReport(crashes, overview.restarts, client.checkpoints().completed, read(self._output))

    def _crash(self, client: Any, i: int, timeout_s: float) -> None:
        """Wait for a checkpoint while every partition pauses at this point, then let one reader crash after it."""
        names = [f"{i} of {p}" for p in range(self._partitions)]
        _until(client, lambda: all(map(self.source.has_reached, names)), f"crash point {i}", timeout_s)
        # A checkpoint that is under way may have begun before the pause; the next one has not.
        newest = max((c.checkpoint_id for c in client.checkpoints().history), default=0)
        _until(client, lambda: _latest(client) > newest, "a checkpoint", timeout_s)
        before = client.overview().restarts
        for name in names:
            self.source.release(name)
        _until(client, lambda: client.overview().restarts > before, f"a restart after crash {i}", timeout_s)


@contextmanager
def _ended(client: Any) -> Iterator[Any]:
    """Cancel the job when the block ends, unless it has ended."""
    try:
        yield client
    finally:
        if not client.status().is_terminal:
            client.cancel()


def _latest(client: Any) -> int:
    """The newest completed checkpoint, or 0."""
    latest = client.checkpoints().latest_completed
    return 0 if latest is None else int(latest.checkpoint_id)


def _until(client: Any, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    simulation = getattr(client, "simulation", None)
    while not condition():
        if client.status().is_terminal:
            client.result(timeout_s)
            raise RecoveryMismatch(f"the job ended before {what}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {timeout_s:g} s; {client.overview()}")
        if simulation is None:
            time.sleep(0.01)
        else:
            simulation.run_one_event()  # an in-process job advances only while a caller waits for it
