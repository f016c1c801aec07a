"""Per-record Python chain with Bytewax: map, filter, key_on and stateful_map over clicks that are in memory."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.metadata import version

import bytewax.operators as op
import bytewax_processes
import protocol
import python_chain
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax_memory import MemorySource
from bytewax_processes import Seen
from python_chain import Visit


class Totals(StatelessSinkPartition[tuple[str, Visit]]):
    """Keeps the latest result of every key and counts them."""

    def __init__(self, totals: dict[str, Visit], seen: Seen) -> None:
        self._totals, self._seen = totals, seen

    def write_batch(self, items: list[tuple[str, Visit]]) -> None:
        """Take one batch of results."""
        self._totals.update(items)
        self._seen["results"] += len(items)
        self._seen["last_ns"] = time.time_ns()


class TotalsSink(DynamicSink[tuple[str, Visit]]):
    """One `Totals` for the one worker of this process."""

    def __init__(self, totals: dict[str, Visit], seen: Seen) -> None:
        self._totals, self._seen = totals, seen

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Totals:
        """The partition of one worker."""
        return Totals(self._totals, self._seen)


def running(before: Visit | None, visit: Visit) -> tuple[Visit, Visit]:
    """The keyed reduce as Bytewax wants it: state and value in, new state and result out."""
    after = visit if before is None else python_chain.add(before, visit)
    return after, after


def build_flow(args: argparse.Namespace, index: int, seen: Seen) -> tuple[Dataflow, Callable[[], None]]:
    """Load this process's part of the clicks and build the flow over it."""
    clicks = list(python_chain.read_clicks(args.data / "json", index, args.parallelism))
    totals: dict[str, Visit] = {}
    seen["results"] = 0
    flow = Dataflow("chain")
    stream = op.input("input", flow, MemorySource(clicks, seen, args.repeat))
    visits = op.filter("filter", op.map("map", stream, python_chain.parse), python_chain.is_counted)
    keyed = op.key_on("key", visits, lambda visit: visit[0])
    op.output("output", op.stateful_map("reduce", keyed, running), TotalsSink(totals, seen))

    def finish() -> None:
        seen["total"] = sum(visit[2] for visit in totals.values())

    return flow, finish


def main() -> None:
    """Run and report."""
    args, parts = bytewax_processes.run(__doc__, build_flow)
    first_ns = min(part["first_ns"] for part in parts)
    protocol.report(
        version=version("bytewax"),
        records=args.records * args.repeat,
        seconds=(max(part["last_ns"] for part in parts) - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=sum(part["cpu_s"] for part in parts),
        check={key: sum(part[key] for part in parts) for key in ("results", "total")},
    )


if __name__ == "__main__":
    main()
