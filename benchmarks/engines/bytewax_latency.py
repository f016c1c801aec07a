"""Latency with Bytewax: a rate-limited generator in each process, key_on, running count, sink."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import bytewax.operators as op
import bytewax_processes
import protocol
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax_processes import Seen

APPS = [f"app-{app:04d}" for app in range(1_000)]
AWAKE_EVERY = timedelta(milliseconds=1)
Click = tuple[str, int]
Counted = tuple[str, tuple[int, int]]


class Generator(StatelessSourcePartition[Click]):
    """Creates what is due at each call; asked again after AWAKE_EVERY."""

    def __init__(self, rate: float, records: int, seen: Seen) -> None:
        self._rate, self._records, self._seen = rate, records, seen
        self._sent = 0

    def next_batch(self) -> Iterable[Click]:
        """The records that have become due since the last call."""
        now = time.time_ns()
        started = self._seen.setdefault("first_ns", now)
        if self._sent >= self._records:
            raise StopIteration
        due = min(self._records, int((now - started) * self._rate / 1e9))
        batch = [(APPS[i * 617 % len(APPS)], now) for i in range(self._sent, due)]
        self._sent = due
        return batch

    def next_awake(self) -> datetime | None:
        """When to call again."""
        return datetime.now(UTC) + AWAKE_EVERY


class GeneratorSource(DynamicSource[Click]):
    """One `Generator` for the one worker of this process."""

    def __init__(self, rate: float, records: int, seen: Seen) -> None:
        self._rate, self._records, self._seen = rate, records, seen

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Generator:
        """The partition of one worker."""
        return Generator(self._rate, self._records, self._seen)


class Ages(StatelessSinkPartition[Counted]):
    """Notes each record's age."""

    def __init__(self, ages: list[tuple[int, int]]) -> None:
        self._ages = ages

    def write_batch(self, items: list[Counted]) -> None:
        """Take one batch of results."""
        now = time.time_ns()
        self._ages.extend((created, now - created) for _, (_, created) in items)


class AgesSink(DynamicSink[Counted]):
    """One `Ages` for the one worker of this process."""

    def __init__(self, ages: list[tuple[int, int]]) -> None:
        self._ages = ages

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Ages:
        """The partition of one worker."""
        return Ages(self._ages)


def count(before: int | None, click: Click) -> tuple[int, tuple[int, int]]:
    """The running count of one app, and the record's creation time."""
    after = (before or 0) + 1
    return after, (after, click[1])


def build_flow(args: argparse.Namespace, index: int, seen: Seen) -> tuple[Dataflow, Callable[[], None]]:
    """A flow whose generator makes this process's share of the records."""
    records = int(args.rate * (args.warmup_s + args.measure_s)) // args.parallelism
    ages: list[tuple[int, int]] = []
    flow = Dataflow("latency")
    stream = op.input("input", flow, GeneratorSource(args.rate / args.parallelism, records, seen))
    keyed = op.key_on("key", stream, lambda click: click[0])
    op.output("output", op.stateful_map("count", keyed, count), AgesSink(ages))

    def finish() -> None:
        measure_from = seen["first_ns"] + args.warmup_s * 1e9
        seen["ages_ns"] = [age for created, age in ages if created >= measure_from]

    return flow, finish


def main() -> None:
    """Run and report."""
    args, parts = bytewax_processes.run(__doc__, build_flow)
    ages_ms = sorted(age / 1e6 for part in parts for age in part["ages_ns"])
    running_s = args.warmup_s + args.measure_s
    protocol.report(
        version=version("bytewax"),
        records=int(args.rate * running_s),
        seconds=running_s,
        startup_s=protocol.seconds_since_start(min(part["first_ns"] for part in parts)),
        cpu_s=sum(part["cpu_s"] for part in parts),
        check={"measured": len(ages_ms)},
        p50_ms=round(protocol.percentile(ages_ms, 0.5), 4),
        p99_ms=round(protocol.percentile(ages_ms, 0.99), 4),
    )


if __name__ == "__main__":
    main()
