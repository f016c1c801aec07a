"""A stateful function per record with Bytewax: key_on and stateful_flat_map over visits that are in memory."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.metadata import version

import bytewax.operators as op
import bytewax_processes
import protocol
import stateful_function
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax_memory import MemorySource
from bytewax_processes import Seen
from stateful_function import STEP_MS, Visit


class Steps(StatelessSinkPartition[tuple[str, int]]):
    """Counts the results and adds up their steps."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def write_batch(self, items: list[tuple[str, int]]) -> None:
        """Take one batch of results."""
        self._seen["results"] += len(items)
        self._seen["total"] += sum(step for _, step in items)
        self._seen["last_ns"] = time.time_ns()


class StepsSink(DynamicSink[tuple[str, int]]):
    """One `Steps` for the one worker of this process."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Steps:
        """The partition of one worker."""
        return Steps(self._seen)


def time_spent(before: int | None, visit: Visit) -> tuple[int, list[int]]:
    """The stateful function as Bytewax wants it: state and value in, new state and results out."""
    before = before or 0
    after = before + visit[1]
    if after // STEP_MS > before // STEP_MS:
        return after, [after // STEP_MS]
    return after, []


def build_flow(args: argparse.Namespace, index: int, seen: Seen) -> tuple[Dataflow, Callable[[], None]]:
    """Load this process's part of the visits and build the flow over it."""
    visits = list(stateful_function.read_visits(args.data / "json", index, args.parallelism))
    seen["results"] = seen["total"] = 0
    flow = Dataflow("stateful_function")
    stream = op.input("input", flow, MemorySource(visits, seen))
    keyed = op.key_on("key", stream, lambda visit: visit[0])
    op.output("output", op.stateful_flat_map("time_spent", keyed, time_spent), StepsSink(seen))
    return flow, lambda: None


def main() -> None:
    """Run and report."""
    args, parts = bytewax_processes.run(__doc__, build_flow)
    first_ns = min(part["first_ns"] for part in parts)
    protocol.report(
        version=version("bytewax"),
        records=args.records,
        seconds=(max(part["last_ns"] for part in parts) - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=sum(part["cpu_s"] for part in parts),
        check={key: sum(part[key] for part in parts) for key in ("results", "total")},
        setting="no recovery store",
    )


if __name__ == "__main__":
    main()
