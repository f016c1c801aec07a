"""PV count with Spark Structured Streaming's native aggregation: file source, groupBy count, update mode, noop sink.

Spark writes a checkpoint with every micro-batch; it has no runs without.
"""

from __future__ import annotations

import protocol
from spark_session import micro_batches, report_query, start_session, timed_query

SCHEMA = "ts LONG, app_id STRING, user_id LONG, page STRING, duration_ms INT"


def main() -> None:
    """Run the query over all the files once and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--files-per-trigger", type=int, default=8)
    args = parser.parse_args()
    spark = start_session(args.parallelism, "pv")
    with protocol.files_of(args) as directory:
        counts = (
            spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", args.files_per_trigger)
            .format(args.format)
            .load(str(directory))
            .groupBy("app_id")
            .count()
        )
        queried = timed_query(spark, counts, "update")
    apps = queried.progress[-1]["stateOperators"][0]["numRowsTotal"]
    report_query(queried, args.records * args.repeat, {"apps": apps}, micro_batches(queried.progress))
    spark.stop()


if __name__ == "__main__":
    main()
