"""Latency with tidegate: a rate-limited generator in each slot, key by app, running count, a sink that notes ages."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import protocol
from tidegate_probe import checkpoint_figures, environment

import tidegate
from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.connectors.datagen import DataGeneratorSource, choice, created_at_ns
from tidegate.records.batch import Batch

APPS = [f"app-{app:04d}" for app in range(1_000)]


class AgesSink(Sink):
    """Notes the age of every result."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer per subtask."""
        return _AgesWriter(self._notes / f"sink-{context.subtask_index}.json")


class _AgesWriter(SinkWriter):
    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._created: list[np.ndarray] = []
        self._ages: list[np.ndarray] = []

    def write(self, batch: Batch) -> None:
        created = batch.columns.column(batch.columns.num_columns - 1).to_numpy()
        self._created.append(created)
        self._ages.append(time.monotonic_ns() - created)

    def flush(self, end_of_input: bool) -> None:
        if end_of_input:
            created, ages = np.concatenate(self._created), np.concatenate(self._ages)
            self._notes.write_text(json.dumps({"created": created.tolist(), "ages": ages.tolist()}))


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    running_s = args.warmup_s + args.measure_s
    count = int(args.rate * running_s)
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = environment(args, notes)
        source = DataGeneratorSource(
            fields={"app_id": choice(APPS), "created": created_at_ns()},
            count=count,
            rate=args.rate,
            tick="1 ms",
        )
        # The largest creation time so far of the app: for records in order it is the record's own.
        counted = env.from_source(source).key_by("app_id").max("created")
        counted.sink_to(AgesSink(notes))
        client = env.execute_async("latency")
        ready_cpu_s = protocol.tree_cpu_s()
        client.result()
        cpu_s = protocol.tree_cpu_s() - ready_cpu_s
        found = [json.loads(f.read_text()) for f in notes.glob("sink-*.json")]
    created = np.concatenate([np.array(f["created"], dtype=np.int64) for f in found])
    ages = np.concatenate([np.array(f["ages"], dtype=np.int64) for f in found])
    first = created.min()
    ages_ms = sorted((ages[created >= first + args.warmup_s * 1e9] / 1e6).tolist())
    protocol.report(
        version=tidegate.__version__,
        records=count,
        seconds=running_s,
        startup_s=protocol.seconds_since_start(time.time_ns() - (time.monotonic_ns() - int(first))),
        cpu_s=cpu_s,
        check={"measured": len(ages_ms)},
        p50_ms=round(protocol.percentile(ages_ms, 0.5), 4),
        p99_ms=round(protocol.percentile(ages_ms, 0.99), 4),
        extra=checkpoint_figures(client),
    )


if __name__ == "__main__":
    main()
