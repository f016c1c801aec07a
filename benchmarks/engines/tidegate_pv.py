"""PV count with tidegate: files, key by app_id, running count, a sink that keeps the results."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import protocol
from tidegate_probe import ProbeSink, TimedSource, read_notes

import tidegate
from tidegate import Environment
from tidegate.connectors.files import FileSource
from tidegate.records.batch import Batch

SCHEMA = {"ts": int, "app_id": str, "user_id": int, "page": str, "duration_ms": int}


class LastCounts:
    """Keeps all results, for the last count of every app."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Keep a batch."""
        self._batches.append(batch)

    def summary(self) -> dict[str, Any]:
        """The number of results, and what the last counts say."""
        frames = [pl.DataFrame(b.plain_columns) for b in self._batches]
        counts = (
            pl.concat(frames).group_by("app_id").agg(pl.col("count").max())["count"]
            if frames
            else pl.Series([0])
        )
        rows = sum(b.num_rows for b in self._batches)
        return {"results": rows, "apps": counts.len(), "records": int(counts.sum()), "top": int(counts.max())}


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = Environment(parallelism=args.parallelism, mini_batch=args.mode == "mini_batch", progress="off")
        files = FileSource(str(args.data / args.format), format=args.format, schema=click_type())
        clicks = env.from_source(TimedSource(files, notes), name="clicks")
        clicks.key_by("app_id").count().sink_to(ProbeSink(notes, LastCounts))
        client = env.execute_async("pv")
        client.result()
        measured = read_notes(notes)
    protocol.report(
        version=tidegate.__version__,
        records=args.records,
        seconds=(measured.last_ns - measured.first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(measured.first_ns),
        cpu_s=measured.cpu_s,
        check={
            "records": sum(s["records"] for s in measured.sinks),
            "apps": sum(s["apps"] for s in measured.sinks),
            "top_count": max(s["top"] for s in measured.sinks),
        },
        setting=f"{sum(s['results'] for s in measured.sinks):,} results",
    )


def click_type() -> Any:
    """The columns of the data, as a dataclass."""
    import dataclasses

    return dataclasses.make_dataclass("Click", list(SCHEMA.items()))


if __name__ == "__main__":
    main()
