"""PV count with Spark Structured Streaming's native aggregation: file source, groupBy count, update mode, noop sink."""

from __future__ import annotations

import shutil
import tempfile
import time

import protocol
import pyspark
from pyspark.sql import SparkSession

SCHEMA = "ts LONG, app_id STRING, user_id LONG, page STRING, duration_ms INT"


def main() -> None:
    """Run the query over all the files once and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--files-per-trigger", type=int, default=8)
    args = parser.parse_args()
    checkpoint = tempfile.mkdtemp(prefix="bench-spark-")
    spark = (
        SparkSession.builder.master(f"local[{args.parallelism}]")
        .appName("pv")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(args.parallelism))
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    stream = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", args.files_per_trigger)
        .format(args.format)
        .load(str(args.data / args.format))
        .groupBy("app_id")
        .count()
    )
    ready_cpu_s = protocol.tree_cpu_s()
    query = (
        stream.writeStream.format("noop")
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
            "apps": progress[-1]["stateOperators"][0]["numRowsTotal"],
        },
        setting=f"{len(progress)} micro-batch" + ("es" if len(progress) > 1 else ""),
    )
    spark.stop()
    shutil.rmtree(checkpoint, ignore_errors=True)


def first_task_ns(spark: SparkSession) -> int:
    """When the first task was launched: the nearest that Spark tells to "first record read"."""
    gateway = spark.sparkContext._gateway
    no_quantiles = gateway.new_array(gateway.jvm.double, 0)
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    stages = spark._jsc.sc().statusStore().stageList(None, False, False, no_quantiles, None)
    launched = [stages.apply(i).firstTaskLaunchedTime() for i in range(stages.size())]
    return min(at.get().getTime() for at in launched if at.isDefined()) * 1_000_000


if __name__ == "__main__":
    main()
