"""What latency is measured with: sinks and functions that note, and a bystander that knows how late the machine is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

MICRO_BATCH_FLOOR_MS = 100.0
"""What an engine pays that plans and starts a job for every batch of records."""
_WAKES = 3
"""How many processes must wake up one after the other until a record is through: source, exchange, sink."""
_BYSTANDER = """
import sys, time
while True:
    due = time.monotonic_ns() + 5_000_000
    time.sleep(0.005)
    sys.stdout.write(f"{time.monotonic_ns() - due}\\n")
    sys.stdout.flush()
"""


class NoteLatency:
    """A sink function that notes how long each record took, in a file per process."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def __call__(self, record: Any) -> None:
        took = time.monotonic_ns() - record.sent
        with open(f"{self._directory}/{os.getpid()}.ns", "a") as file:
            file.write(f"{record.n} {took}\n")

    def read(self) -> dict[int, float]:
        """Milliseconds per record, by its number."""
        lines = [
            line.split() for p in Path(self._directory).glob("*.ns") for line in p.read_text().splitlines()
        ]
        assert len({n for n, _ in lines}) == len(lines), "no record came twice"
        return {int(n): int(ns) / 1e6 for n, ns in lines}


class NoteSizes:
    """A batch function that notes the sizes of what comes by."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def __call__(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        with open(f"{self._directory}/{os.getpid()}.sizes", "a") as file:
            file.write(f"{columns.num_rows}\n")
        return columns

    def read(self) -> list[int]:
        return [
            int(line) for p in Path(self._directory).glob("*.sizes") for line in p.read_text().splitlines()
        ]


def histogram(latencies_ms: list[float]) -> dict[str, float]:
    ordered = sorted(latencies_ms)
    return {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99)}


@dataclass
class Machine:
    """How late the machine woke a process that had nothing else to do, while something was measured."""

    delays_ms: list[float]

    def check(self, latencies_ms: list[float], sizes: list[int], rate: int) -> dict[str, float]:
        """Latency is far below the floor, and records come one by one, but for what the machine adds to any process."""
        found, delay = histogram(latencies_ms), histogram(self.delays_ms)
        assert found["p50"] < MICRO_BATCH_FLOOR_MS / 5 + _WAKES * delay["p50"], (found, delay)
        assert found["p90"] < MICRO_BATCH_FLOOR_MS + _WAKES * delay["p90"], (found, delay)
        ready_meanwhile = int(rate * _WAKES * delay["p50"] / 1000)
        assert median(sizes) <= 1 + ready_meanwhile, (delay, sizes)
        return found


@contextmanager
def bystander(directory: Path) -> Iterator[Machine]:
    """Watch the machine for as long as the block lasts, from a process of its own."""
    path, machine = directory / "bystander", Machine([])
    with path.open("w") as file, subprocess.Popen([sys.executable, "-c", _BYSTANDER], stdout=file) as process:
        try:
            yield machine
        finally:
            process.kill()
    lines = path.read_text().split("\n")[:-1]
    machine.delays_ms += [int(line) / 1e6 for line in lines]
