"""A record does not wait for others: at a low rate it is through the whole job in milliseconds, one by one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors.datagen import DataGeneratorSource, created_at_ns, sequence

MICRO_BATCH_FLOOR_MS = 100.0
"""What an engine pays that plans and starts a job for every batch of records."""


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


@pytest.mark.alone
@pytest.mark.spec("S2-11")
@pytest.mark.parametrize("buffer_timeout", ["10ms", 0])
def test_at_a_low_rate_latency_is_far_below_the_floor_of_micro_batches(make_env, tmp_path, buffer_timeout):
    rate, count = 200, 600
    note, sizes = NoteLatency(tmp_path), NoteSizes(tmp_path)
    env = make_env(parallelism=2, buffer_timeout=buffer_timeout)
    source = DataGeneratorSource(fields={"n": sequence(), "sent": created_at_ns()}, rate=rate, count=count)
    stream = env.from_source(source)
    stream.key_by("n").map_batches(sizes, returns=stream.record_type).rebalance().sink_to(note)
    env.execute()
    latencies = note.read()
    assert set(latencies) == set(range(count)), "every record came, once"
    settled = [ms for n, ms in latencies.items() if n >= rate]
    found = histogram(settled)
    assert found["p50"] < MICRO_BATCH_FLOOR_MS / 5, found
    assert found["p90"] < MICRO_BATCH_FLOOR_MS, found
    assert sum(1 for size in sizes.read() if size == 1) > count / 2, (
        "records travel one by one, not in batches"
    )
