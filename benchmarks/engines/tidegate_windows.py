"""Windowed count with tidegate: files, event time from a column, key by app_id, windows, results that are kept."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import protocol
import windows
from tidegate_probe import ProbeSink, TimedSource, environment, report_job
from tidegate_pv import click_type

from tidegate import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.connectors.files import FileSource
from tidegate.records.batch import Batch

WINDOWS = {
    "tumbling": TumblingEventTimeWindows(f"{windows.TUMBLING_S} s"),
    "sliding": SlidingEventTimeWindows(f"{windows.SLIDING_S} s", f"{windows.SLIDE_S} s"),
    "session": EventTimeSessionWindows(f"{windows.SESSION_GAP_S} s"),
}


class Panes:
    """Keeps all results."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Keep a batch."""
        self._batches.append(batch)

    def summary(self) -> dict[str, Any]:
        """What the results are."""
        times = [pl.col(name).dt.epoch("ms") for name in ("window_start", "window_end")]
        frames = (pl.DataFrame(b.plain_columns).select("app_id", *times, "count") for b in self._batches)
        return windows.added(windows.summary(frame.iter_rows()) for frame in frames)


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = environment(args, notes)
        # A file is one split, and each slot reads one, from its beginning to its end, as the watermark wants it.
        files = FileSource(
            str(args.data / args.format), format=args.format, schema=click_type(), split_size="64 GiB"
        )
        strategy = WatermarkStrategy.bounded(windows.OUT_OF_ORDERNESS, "ts")
        clicks = env.from_source(TimedSource(files, notes, args.parallelism), strategy, name="clicks")
        counts = clicks.key_by("app_id").window(WINDOWS[args.windows]).count()
        counts.sink_to(ProbeSink(notes, Panes))
        client = env.execute_async("windows")
        client.result()
        report_job(client, notes, args.records, windows.added)


if __name__ == "__main__":
    main()
