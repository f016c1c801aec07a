"""A stateful function per record with tidegate: a ProcessFunction with a ValueState, over visits in memory."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import protocol
import stateful_function
from stateful_function import STEP_MS, Step, Visit
from tidegate_memory import MemorySource
from tidegate_probe import ProbeSink, environment, report_job

from tidegate import ProcessContext, ProcessFunction, ValueState
from tidegate.records.batch import Batch


class TimeSpent(ProcessFunction):
    """Adds up a user's visits and emits a result each time another step is full."""

    spent = ValueState(int, default=0)

    def process(self, visit: Visit, context: ProcessContext) -> list[Step] | None:
        """Called for each record."""
        user, duration_ms = visit
        before = self.spent.value()
        after = before + duration_ms
        self.spent.update(after)
        if after // STEP_MS > before // STEP_MS:
            return [(user, after // STEP_MS)]
        return None


class Steps:
    """Counts the results and adds up their steps."""

    def __init__(self) -> None:
        self._results = self._total = 0

    def add(self, batch: Batch) -> None:
        """Take results."""
        rows = batch.rows
        self._results += len(rows)
        self._total += sum(step for _, step in rows)

    def summary(self) -> dict[str, Any]:
        """The number of results, and the sum of their steps."""
        return {"results": self._results, "total": self._total}


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = environment(args, notes)
        load = functools.partial(stateful_function.read_visits, args.data / "json")
        source = MemorySource(load, tuple[str, int], notes, args.records, args.parallelism)
        steps = env.from_source(source, name="visits").key_by("f0").process(TimeSpent())
        steps.sink_to(ProbeSink(notes, Steps))
        client = env.execute_async("stateful function")
        client.result()
        report_job(client, notes, args.records, check, f"{args.state_backend} backend")


def check(sinks: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of all sinks together."""
    return {key: sum(s[key] for s in sinks) for key in ("results", "total")}


if __name__ == "__main__":
    main()
