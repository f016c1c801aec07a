"""Windowed count with Flink SQL on the JVM: the TUMBLE, HOP and SESSION table functions, streaming mode.

The clock measures a run into a blackhole; then the same statement runs again, into files, for the check.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import protocol
import windows
from flink_cluster import (
    FlinkCluster,
    checkpoint_options,
    jar_urls,
    report_insert,
    table_environment,
    timed_insert,
)

WINDOWS = {
    "tumbling": f"TUMBLE(TABLE clicks, DESCRIPTOR(event_time), INTERVAL '{windows.TUMBLING_S}' SECOND)",
    "sliding": f"HOP(TABLE clicks, DESCRIPTOR(event_time), INTERVAL '{windows.SLIDE_S}' SECOND, "
    f"INTERVAL '{windows.SLIDING_S}' SECOND)",
    "session": f"SESSION(TABLE clicks PARTITION BY app_id, DESCRIPTOR(event_time), "
    f"INTERVAL '{windows.SESSION_GAP_S}' SECOND)",
}


def main() -> None:
    """Run the statement over all the files once and report."""
    args = protocol.arguments(__doc__).parse_args()
    cluster = FlinkCluster(args.parallelism)
    with tempfile.TemporaryDirectory(prefix="bench-flink-") as folder:
        files = (args.data / args.format).resolve().as_uri()
        table = _tables(
            cluster,
            args,
            files,
            checkpoint_options(args.checkpoint_interval, folder),
            "'connector' = 'blackhole'",
        )
        inserted = timed_insert(cluster, table, _statement(args.windows))
        results = Path(folder) / "results"
        to_files = f"'connector' = 'filesystem', 'path' = '{results.as_uri()}', 'format' = 'csv'"
        _tables(cluster, args, files, {}, to_files).execute_sql(_statement(args.windows)).wait()
        report_insert(cluster, inserted, args.records, windows.summary(_read(results)))
        cluster.close()


def _tables(cluster: FlinkCluster, args: Any, files: str, options: dict[str, str], sink: str) -> Any:
    """A table environment with the clicks and a place for the counts."""
    more = {"table.local-time-zone": "UTC"} | (
        {"pipeline.jars": jar_urls()} if args.format == "parquet" else {}
    )
    table = table_environment(cluster, options | more)
    table.execute_sql(f"""
        CREATE TABLE clicks (
            ts BIGINT, app_id STRING, user_id BIGINT, page STRING, duration_ms INT,
            event_time AS TO_TIMESTAMP_LTZ(ts, 3),
            WATERMARK FOR event_time AS event_time - INTERVAL '{windows.OUT_OF_ORDERNESS_MS / 1000:.3f}' SECOND(1, 3))
        WITH ('connector' = 'filesystem', 'path' = '{files}', 'format' = '{args.format}')""")
    table.execute_sql(f"""
        CREATE TABLE counts (app_id STRING, window_start TIMESTAMP(3), window_end TIMESTAMP(3), n BIGINT)
        WITH ({sink})""")
    return table


def _statement(kind: str) -> str:
    return f"""
        INSERT INTO counts SELECT app_id, window_start, window_end, COUNT(*) FROM {WINDOWS[kind]}
        GROUP BY app_id, window_start, window_end"""


def _read(directory: Path) -> Iterator[windows.Result]:
    """The results that the second run has written."""
    for path in sorted(directory.iterdir()):
        with path.open(newline="") as file:
            for app, start, end, count in csv.reader(file):
                yield app, _millis(start), _millis(end), int(count)


def _millis(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


if __name__ == "__main__":
    main()
