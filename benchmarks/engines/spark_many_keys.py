"""Count by user of many users with Spark Structured Streaming's native aggregation, its state in RocksDB."""

from __future__ import annotations

import shutil
import tempfile
import time

import protocol
import pyspark
from spark_session import ROCKSDB, first_task_ns, micro_batches, start_session


def main() -> None:
    """Run the query over all the files once and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--files-per-trigger", type=int, default=8)
    args = parser.parse_args()
    checkpoint = tempfile.mkdtemp(prefix="bench-spark-")
    spark = start_session(args.parallelism, "many keys", ROCKSDB)
    counts = (
        spark.readStream.schema("user_id LONG, duration_ms INT")
        .option("maxFilesPerTrigger", args.files_per_trigger)
        .parquet(str(args.data / "parquet"))
        .groupBy("user_id")
        .count()
    )
    ready_cpu_s = protocol.tree_cpu_s()
    query = (
        counts.writeStream.format("noop")
        .outputMode("update")
        .trigger(availableNow=True)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()
    ended_ns = time.time_ns()
    cpu_s = protocol.tree_cpu_s() - ready_cpu_s
    first_ns = first_task_ns(spark)
    progress = query.recentProgress
    protocol.report(
        version=pyspark.__version__,
        records=args.records,
        seconds=(ended_ns - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=cpu_s,
        check={
            "records": sum(batch["numInputRows"] for batch in progress),
            "keys": progress[-1]["stateOperators"][0]["numRowsTotal"],
        },
        setting=f"RocksDB, a checkpoint with each of {micro_batches(progress)}",
    )
    spark.stop()
    shutil.rmtree(checkpoint, ignore_errors=True)


if __name__ == "__main__":
    main()
