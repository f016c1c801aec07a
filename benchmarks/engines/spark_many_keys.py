"""Count by user of many users with Spark Structured Streaming's native aggregation, its state in RocksDB."""

from __future__ import annotations

import protocol
from spark_session import ROCKSDB, micro_batches, report_query, start_session, timed_query


def main() -> None:
    """Run the query over all the files once and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--files-per-trigger", type=int, default=8)
    args = parser.parse_args()
    spark = start_session(args.parallelism, "many keys", ROCKSDB)
    counts = (
        spark.readStream.schema("user_id LONG, duration_ms INT")
        .option("maxFilesPerTrigger", args.files_per_trigger)
        .parquet(str(args.data / "parquet"))
        .groupBy("user_id")
        .count()
    )
    queried = timed_query(spark, counts, "update")
    users = queried.progress[-1]["stateOperators"][0]["numRowsTotal"]
    setting = f"RocksDB, a checkpoint with each of {micro_batches(queried.progress)}"
    report_query(queried, args.records, {"keys": users}, setting)
    spark.stop()


if __name__ == "__main__":
    main()
