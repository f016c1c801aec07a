"""Windowed count with PyFlink's DataStream windows: an AggregateFunction per window, over events in memory.

Timestamps are assigned in Python, as PyFlink does it. Only the app and the time of each event are read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import windows
from flink_cluster import checkpoint_options
from pyflink_job import PyFlinkJob, arguments, note_ready

Event = tuple[str, int]


def read_events(directory: Path) -> Iterator[Event]:
    """The events of all JSON lines files, in the order in which they were made: one of each file in turn."""
    files = [path.open() for path in sorted(directory.glob("part-*.json"))]
    for lines in zip(*files, strict=True):
        for line in lines:
            row = json.loads(line)
            yield row["app_id"], row["ts"]


def main() -> None:
    """Run the job once and report."""
    args = arguments(__doc__)
    folder = tempfile.TemporaryDirectory(prefix="bench-pyflink-")
    job = PyFlinkJob(args, checkpoint_options(args.checkpoint_interval, folder.name))
    from pyflink.common import Duration, Time, Types
    from pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
    from pyflink.datastream import AggregateFunction, ProcessWindowFunction, RuntimeContext
    from pyflink.datastream.window import (
        EventTimeSessionWindows,
        SlidingEventTimeWindows,
        TumblingEventTimeWindows,
    )

    class EventTime(TimestampAssigner):  # type: ignore[misc]
        """The second field."""

        def extract_timestamp(self, value: Event, record_timestamp: int) -> int:
            """Called for each record."""
            return value[1]

    class Count(AggregateFunction):  # type: ignore[misc]
        """Counts the events of a window as they come."""

        def create_accumulator(self) -> int:
            """The count of an empty window."""
            return 0

        def add(self, value: Event, accumulator: int) -> int:
            """Called for each record."""
            return accumulator + 1

        def get_result(self, accumulator: int) -> int:
            """Called for each window."""
            return accumulator

        def merge(self, acc_a: int, acc_b: int) -> int:
            """Called for two sessions that merge."""
            return acc_a + acc_b

    class Pane(ProcessWindowFunction):  # type: ignore[misc]
        """Adds the key and the window to the count; records when its worker was ready, and its results."""

        def __init__(self, stamps: str, found: str) -> None:
            self._stamps, self._found = stamps, found

        def open(self, runtime_context: RuntimeContext) -> None:
            """Called once in each worker."""
            note_ready(self._stamps)
            self._results = Path(self._found, f"found-{runtime_context.get_index_of_this_subtask()}")
            self._lines: list[str] = []

        def process(self, key: str, context: Any, elements: Iterable[int]) -> Iterator[windows.Result]:
            """Called for each window."""
            window = context.window()
            for count in elements:
                self._lines.append(f"{key} {window.start} {window.end} {count}\n")
                yield key, window.start, window.end, count

        def close(self) -> None:
            """Called once in each worker."""
            self._results.write_text("".join(self._lines))

    assigners = {
        "tumbling": TumblingEventTimeWindows.of(Time.seconds(windows.TUMBLING_S)),
        "sliding": SlidingEventTimeWindows.of(Time.seconds(windows.SLIDING_S), Time.seconds(windows.SLIDE_S)),
        "session": EventTimeSessionWindows.with_gap(Time.seconds(windows.SESSION_GAP_S)),
    }
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(
        Duration.of_millis(windows.OUT_OF_ORDERNESS_MS)
    ).with_timestamp_assigner(EventTime())
    source = job.environment.from_collection(
        list(read_events(args.data / "json")), Types.TUPLE([Types.STRING(), Types.LONG()])
    )
    (
        source.assign_timestamps_and_watermarks(strategy)
        .key_by(lambda each: each[0], Types.STRING())
        .window(assigners[args.windows])
        .aggregate(
            Count(),
            Pane(job.stamps, folder.name),
            Types.LONG(),
            Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()]),
        )
        .add_sink(job.discarding_sink())
    )

    def found(told: dict[str, Any]) -> dict[str, int]:
        lines = (line.split() for path in Path(folder.name).glob("found-*") for line in path.open())
        return windows.summary((key, int(start), int(end), int(n)) for key, start, end, n in lines)

    job.run("windows", found, f"{args.execution_mode} mode")
    folder.cleanup()


if __name__ == "__main__":
    main()
