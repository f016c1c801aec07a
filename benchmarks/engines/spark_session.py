"""The Spark session of all Spark runners, and the figures of its runs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from typing import Any, NamedTuple

import protocol
import pyspark
from pyspark.sql import SparkSession

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Spark's incremental checkpoints: each commit writes only the changes.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "256",
}
"""State in RocksDB, with as much cache per partition as tidegate gives a slot."""


def start_session(parallelism: int, name: str, settings: dict[str, str] | None = None) -> SparkSession:
    """A local session without anything that costs time and is not needed."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{parallelism}]")
        .appName(name)
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(parallelism))
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.sql.adaptive.enabled", "false")
    )
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def first_task_ns(spark: SparkSession) -> int:
    """When the first task was launched: the closest that Spark reports to "first record read"."""
    gateway = spark.sparkContext._gateway
    no_quantiles = gateway.new_array(gateway.jvm.double, 0)
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    stages = spark._jsc.sc().statusStore().stageList(None, False, False, no_quantiles, None)
    launched = [stages.apply(i).firstTaskLaunchedTime() for i in range(stages.size())]
    return min(at.get().getTime() for at in launched if at.isDefined()) * 1_000_000


class Queried(NamedTuple):
    """The times and results of a streaming query that has read all its files."""

    progress: list[Any]
    first_ns: int
    seconds: float
    cpu_s: float


def timed_query(spark: SparkSession, frame: Any, output_mode: str) -> Queried:
    """Run the query into nothing until all files are read, the first one of this session, and take its times."""
    checkpoint = tempfile.mkdtemp(prefix="bench-spark-")
    ready_cpu_s = protocol.tree_cpu_s()
    query = started(frame.writeStream.format("noop").outputMode(output_mode), checkpoint)
    query.awaitTermination()
    ended_ns = time.time_ns()
    cpu_s = protocol.tree_cpu_s() - ready_cpu_s
    shutil.rmtree(checkpoint, ignore_errors=True)
    first_ns = first_task_ns(spark)
    return Queried(query.recentProgress, first_ns, (ended_ns - first_ns) / 1e9, cpu_s)


def started(writer: Any, checkpoint: str) -> Any:
    """The query of a writer, which ends when all files are read."""
    return writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start()


def report_query(queried: Queried, records: int, check: dict[str, Any], setting: str) -> None:
    """Report what `timed_query` has measured."""
    protocol.report(
        version=pyspark.__version__,
        records=records,
        seconds=queried.seconds,
        startup_s=protocol.seconds_since_start(queried.first_ns),
        cpu_s=queried.cpu_s,
        check={"records": sum(batch["numInputRows"] for batch in queried.progress), **check},
        setting=setting,
    )


def micro_batches(progress: list[Any]) -> str:
    """How many there were, in words."""
    return f"{len(progress)} micro-batch" + ("es" if len(progress) > 1 else "")
