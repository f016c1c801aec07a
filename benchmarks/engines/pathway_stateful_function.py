"""A stateful function with Pathway: a stateful reducer by user over JSON lines, in streaming mode.

The reducer is called with a user's state and one visit after the other. It keeps a table: a change of
the steps is emitted once per minibatch, not for each record. So the check is the last step of every user, and there
are fewer results than from the other engines. In streaming mode Pathway watches the files for ever: the parent ends
the processes when they have emitted the results of all visits.
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
from stateful_function import STEP_MS, USERS

POLL_S = 0.005


class ClickSchema(pw.Schema):
    """The columns of a click that the function reads."""

    user_id: int
    duration_ms: int


@pw.reducers.stateful_single  # type: ignore[untyped-decorator]
def time_spent(before: int | None, duration_ms: int) -> int:
    """The state of a user with one more visit."""
    return (before or 0) + duration_ms


def run(data: Path, out: Path) -> None:
    """Run until killed; what this process has seen stands in `out` after each minibatch."""
    clicks = pw.io.jsonlines.read(str(data / "json"), schema=ClickSchema, mode="streaming")
    visits = clicks.select(user=clicks.user_id % USERS, duration_ms=clicks.duration_ms)
    spent = visits.groupby(visits.user).reduce(
        visits.user, spent=time_spent(visits.duration_ms), visits=pw.reducers.count()
    )
    steps = spent.select(spent.user, spent.visits, step=pw.declare_type(int, spent.spent) // STEP_MS)
    latest: dict[int, tuple[int, int]] = {}
    ready_cpu_s = protocol.tree_cpu_s()
    first_ns = time.time_ns()

    def on_change(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            latest[row["user"]] = (row["visits"], row["step"])

    def on_time_end(minibatch: int) -> None:
        now_ns = time.time_ns()
        seen = {
            "first_ns": first_ns,
            "last_ns": now_ns,
            "cpu_s": protocol.tree_cpu_s() - ready_cpu_s,
            "records": sum(visits for visits, _ in latest.values()),
            "results": sum(step for _, step in latest.values()),
        }
        partial = out.with_suffix(".partial")
        partial.write_text(json.dumps(seen))
        partial.rename(out)

    pw.io.subscribe(steps, on_change=on_change, on_time_end=on_time_end)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def main() -> None:
    """Start the processes, wait until they have seen all records, end them and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.out:
        run(args.data, args.out)
        return
    with tempfile.TemporaryDirectory() as directory:
        outs = [Path(directory) / str(index) for index in range(args.parallelism)]
        processes = pathway_processes.start(outs)
        parts: list[dict[str, Any]] = []
        while sum(part["records"] for part in parts) < args.records:
            time.sleep(POLL_S)
            parts = [json.loads(out.read_text()) for out in outs if out.exists()]
            if any(process.poll() is not None for process in processes):
                raise SystemExit("a Pathway process has ended by itself")
        for process in processes:
            process.kill()
            process.wait()
    first_ns = min(part["first_ns"] for part in parts)
    protocol.report(
        version=version("pathway"),
        records=args.records,
        seconds=(max(part["last_ns"] for part in parts) - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=sum(part["cpu_s"] for part in parts),
        check={key: sum(part[key] for part in parts) for key in ("records", "results")},
        setting="streaming mode, results per minibatch",
    )


if __name__ == "__main__":
    main()
