"""Windowed count with Spark Structured Streaming's native `window` and `session_window`, append mode, noop sink.

In append mode a window is emitted when it is closed, as in the other engines. There is no end of input: the
windows that the last watermark leaves open are not emitted. Spark writes a checkpoint with every micro-batch.
"""

from __future__ import annotations

from typing import Any

import protocol
import pyspark.sql.functions as f
import windows
from spark_pv import SCHEMA
from spark_session import micro_batches, report_query, start_session, timed_query

WINDOWS = {
    "tumbling": lambda: f.window("time", f"{windows.TUMBLING_S} seconds"),
    "sliding": lambda: f.window("time", f"{windows.SLIDING_S} seconds", f"{windows.SLIDE_S} seconds"),
    "session": lambda: f.session_window("time", f"{windows.SESSION_GAP_S} seconds"),
}


def main() -> None:
    """Run the query over all the files once and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--files-per-trigger", type=int, default=8)
    args = parser.parse_args()
    spark = start_session(args.parallelism, "windows")
    # One file for each micro-batch: then they must be in the order of time, as the watermark is the latest of all.
    folder = args.format if args.files_per_trigger > 1 else f"{args.format}-slices"
    counts = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", args.files_per_trigger)
        .format(args.format)
        .load(str(args.data / folder))
        .select("app_id", f.timestamp_millis("ts").alias("time"))
        .withWatermark("time", f"{windows.OUT_OF_ORDERNESS_MS} milliseconds")
        .groupBy("app_id", WINDOWS[args.windows]().alias("window"))
        .agg(f.count("*").alias("n"))
    )
    queried = timed_query(spark, counts.observe("closed", *_summary()), "append")
    observed = [batch["observedMetrics"]["closed"] for batch in queried.progress]
    names = ("closed_results", "closed_counted", "closed_checksum")
    check = {name: sum(each[name] or 0 for each in observed) for name in names}
    report_query(queried, args.records, check, micro_batches(queried.progress))
    spark.stop()


def _summary() -> list[Any]:
    """As `windows.summary` does it."""
    start, end = f.unix_millis("window.start"), f.unix_millis("window.end")
    return [
        f.count("*").alias("closed_results"),
        f.sum("n").alias("closed_counted"),
        f.sum(f.crc32(f.concat_ws(",", "app_id", start, end, "n"))).alias("closed_checksum"),
    ]


if __name__ == "__main__":
    main()
