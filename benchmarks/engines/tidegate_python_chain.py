"""Per-record Python chain with tidegate: map, filter and keyed reduce in the user's own Python, from JSON lines files."""

from __future__ import annotations

import tempfile
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import protocol
import python_chain
from tidegate_probe import ProbeSink, TimedSource, read_notes

import tidegate
from tidegate import Environment
from tidegate.connectors.files import FileSource
from tidegate.records.batch import Batch

Click = make_dataclass("Click", [("ts", int), ("app_id", str), ("user_id", int), ("page", str), ("duration_ms", int)])


def parse(click: Any) -> tuple[str, int, int]:
    """The workload's map, on the four fields that it is defined for."""
    return python_chain.parse((click.app_id, click.user_id, click.page, click.duration_ms))


def is_counted(visit: tuple[str, int, int]) -> bool:
    """The workload's filter."""
    return python_chain.is_counted(visit)


def add(left: tuple[str, int, int], right: tuple[str, int, int]) -> tuple[str, int, int]:
    """The workload's reduce."""
    return python_chain.add(left, right)


def summary(batches: list[Batch]) -> dict[str, Any]:
    """The number of results, and the sum of the last totals."""
    totals: dict[str, int] = {}
    for batch in batches:
        for app, _, total in batch.rows:
            totals[app] = total
    return {"results": sum(b.num_rows for b in batches), "total": sum(totals.values())}


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = Environment(parallelism=args.parallelism, progress="off")
        files = FileSource(str(args.data / "json"), format="json", schema=Click)
        clicks = env.from_source(TimedSource(files, notes), name="clicks")
        visits = clicks.map(parse).filter(is_counted)
        visits.key_by("f0").reduce(add).sink_to(ProbeSink(notes, summary))
        client = env.execute_async("chain")
        ready_cpu_s = protocol.tree_cpu_s()
        client.result()
        cpu_s = protocol.tree_cpu_s() - ready_cpu_s
        first_ns, last_ns, sinks = read_notes(notes)
    protocol.report(
        version=tidegate.__version__,
        records=args.records,
        seconds=(last_ns - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=cpu_s,
        check={key: sum(s[key] for s in sinks) for key in ("results", "total")},
    )


if __name__ == "__main__":
    main()
