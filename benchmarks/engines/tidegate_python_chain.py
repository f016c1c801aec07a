"""Per-record Python chain with tidegate: map, filter, keyed reduce in the user's own Python, over clicks in memory."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import protocol
import python_chain
from tidegate_memory import MemorySource
from tidegate_probe import ProbeSink, environment, report_job

from tidegate.records.batch import Batch


class Totals:
    """Keeps the latest result of every key and counts them."""

    def __init__(self) -> None:
        self._totals: dict[str, python_chain.Visit] = {}
        self._results = 0

    def add(self, batch: Batch) -> None:
        """Take results in order."""
        totals = self._totals
        for row in batch.rows:
            totals[row[0]] = row
        self._results += batch.num_rows

    def summary(self) -> dict[str, Any]:
        """The number of results, and the sum of the last totals."""
        return {"results": self._results, "total": sum(visit[2] for visit in self._totals.values())}


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = environment(args, notes)
        load = functools.partial(python_chain.read_clicks, args.data / "json")
        click = tuple[str, int, str, int]
        source = MemorySource(load, click, notes, args.records, args.parallelism, args.repeat)
        visits = (
            env.from_source(source, name="clicks").map(python_chain.parse).filter(python_chain.is_counted)
        )
        visits.key_by("f0").reduce(python_chain.add).sink_to(ProbeSink(notes, Totals))
        client = env.execute_async("chain")
        client.result()
        report_job(client, notes, args.records * args.repeat, check)


def check(sinks: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of all sinks together."""
    return {key: sum(s[key] for s in sinks) for key in ("results", "total")}


if __name__ == "__main__":
    main()
