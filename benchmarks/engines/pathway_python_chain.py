"""Per-record Python chain with Pathway: two UDFs, a filter and a grouped reducer over JSON lines, streaming mode.

Pathway keeps a table of the latest results by minibatch; it has no result for each record. Its own reader parses the
files, which is faster than handing rows over from Python.
"""

from __future__ import annotations

import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pathway as pw
import pathway_processes
import protocol
import python_chain


class ClickSchema(pw.Schema):
    """The columns of a click that the chain reads."""

    app_id: str
    user_id: int
    page: str
    duration_ms: int


@pw.udf(deterministic=True)
def parse(app_id: str, user_id: int, page: str, duration_ms: int) -> tuple[str, int, int]:
    """Map."""
    return python_chain.parse((app_id, user_id, page, duration_ms))


@pw.udf(deterministic=True)
def is_counted(visit: tuple[str, int, int]) -> bool:
    """Filter."""
    return python_chain.is_counted(visit)


class Total(pw.BaseCustomAccumulator):
    """Keyed reduce."""

    def __init__(self, visit: Any) -> None:
        self.visit = visit

    @classmethod
    def from_row(cls, row: list[Any]) -> Total:
        """One visit."""
        return cls(row[0])

    def update(self, other: Total) -> None:
        """Add another accumulator's visits to this one's."""
        self.visit = python_chain.add(self.visit, other.visit)

    def compute_result(self) -> tuple[str, int, int]:
        """The total so far."""
        return self.visit


total = pw.reducers.udf_reducer(Total)


def run(data: Path) -> dict[str, Any]:
    """Run until the (bounded) input has been read; what this process has seen."""
    clicks = pw.io.jsonlines.read(str(data / "json"), schema=ClickSchema, mode="static")
    columns = (clicks.app_id, clicks.user_id, clicks.page, clicks.duration_ms)
    visits = clicks.select(clicks.app_id, visit=parse(*columns))
    counted = visits.filter(is_counted(visits.visit))
    result = counted.groupby(counted.app_id).reduce(counted.app_id, visit=total(counted.visit))
    totals: dict[str, int] = {}

    def on_change(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            totals[row["app_id"]] = row["visit"][2]

    pw.io.subscribe(result, on_change=on_change)
    first_ns = time.time_ns()
    ready_cpu_s = protocol.tree_cpu_s()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return {
        "first_ns": first_ns,
        "last_ns": time.time_ns(),
        "cpu_s": protocol.tree_cpu_s() - ready_cpu_s,
        "total": sum(totals.values()),
    }


def main() -> None:
    """Start one process for each worker (faster than threads, which share the interpreter lock) and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.out:
        args.out.write_text(json.dumps(run(args.data)))
        return
    with tempfile.TemporaryDirectory() as directory:
        outs = [Path(directory) / str(index) for index in range(args.parallelism)]
        processes = pathway_processes.start(outs)
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit("a Pathway process failed")
        parts = [json.loads(out.read_text()) for out in outs]
    first_ns = min(part["first_ns"] for part in parts)
    protocol.report(
        version=version("pathway"),
        records=args.records,
        seconds=(max(part["last_ns"] for part in parts) - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=sum(part["cpu_s"] for part in parts),
        check={"total": sum(part["total"] for part in parts)},
    )


if __name__ == "__main__":
    main()
