"""What the tests of this folder share: environments in both runtimes, polling with a deadline, sinks that tell."""

from __future__ import annotations

import ast
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tidegate import DataStream, Environment, JobFailedError

DEADLINE_S = 30.0
SEEDS = (0, 1, 2)
RUNTIMES = (*(f"in-process, seed {seed}" for seed in SEEDS), "processes")
"""Where a program runs without Spark: in this thread with one order of events per seed, and in a process per slot."""
also_on_spark = pytest.mark.parametrize("env", [*RUNTIMES, "Spark"], indirect=True)
"""For a test that stands for its kind on Spark, too."""


def in_process(seed: int = 0, parallelism: int = 2, **options: Any) -> Environment:
    """An environment of the runtime that runs a job in this thread, with one order of events per seed."""
    return Environment(runtime="in-process", seed=seed, parallelism=parallelism, **options)


def collected(stream: DataStream) -> list[Any]:
    """Run the job and gather the stream's records."""
    return list(stream.execute_and_collect())


def numbers(env: Environment, n: int = 20) -> DataStream:
    """The numbers below n, from one subtask."""
    return env.from_collection(list(range(n)), type=int, parallelism=1, name="numbers")


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Poll until the condition gives something true, which is returned."""
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.01)
    return found


class Noting:
    """A function for `sink_to` that notes each record as a literal in a file of its process; `read` gives them all.

    A line is written with one call, so that what one process noted is never mixed with what another did.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = str(directory)

    def __call__(self, record: Any) -> None:
        path = os.path.join(self.directory, f"{os.getpid()}.txt")
        with open(path, "a", encoding="utf-8", newline="\n") as file:
            file.write(f"{record!r}\n")

    def read(self) -> list[Any]:
        """All records that were noted so far, as plain values."""
        return [ast.literal_eval(line) for line in self.lines()]

    def lines(self) -> list[str]:
        """The same as text."""
        files = sorted(Path(self.directory).glob("*.txt"))
        return [line for f in files for line in f.read_text("utf-8").split("\n") if line]


def bag(values: Iterable[Hashable]) -> Counter[Hashable]:
    """Values without an order."""
    return Counter(values)


def by_key(pairs: Iterable[Any], *, width: int = 1) -> dict[Any, list[Any]]:
    """Results of rolling aggregates: per key (the first `width` fields) its values in the order of arrival."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for pair in pairs:
        found[pair[0] if width == 1 else tuple(pair[:width])].append(pair[width])
    return dict(found)


def assert_still_works(env: Environment) -> None:
    """Whatever happened before, a good job gives its exact result."""
    numbers = env.from_sequence(1, 100).key_by("value").count().execute_and_collect()
    assert sorted(tuple(r) for r in numbers) == [(n, 1) for n in range(1, 101)]


def failure(run: Callable[[], Any]) -> str:
    """Run a job that must fail; return what the user reads, once it is what every such message must be."""
    with pytest.raises(JobFailedError) as caught:
        run()
    text = str(caught.value)
    for word in ("org.apache.spark", "py4j", "mapInArrow", "tidegate/taskmanager", "tidegate/operators"):
        assert word not in text, text
    assert text.count("Traceback (most recent call last)") <= 1, text
    assert len(text.splitlines()) < 40, text
    return text


def listening(pid: int) -> set[int]:
    return {
        c.laddr.port for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN
    }


def connected(pid: int) -> set[tuple[int, int]]:
    """Established connections: the port here and the port there."""
    found = psutil.Process(pid).net_connections("tcp")
    return {(c.laddr.port, c.raddr.port) for c in found if c.status == psutil.CONN_ESTABLISHED}
