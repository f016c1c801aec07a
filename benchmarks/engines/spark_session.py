"""The Spark session of all Spark runners, and what its runs tell."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Spark's incremental checkpoints: each commit writes the changes alone.
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
    """When the first task was launched: the nearest that Spark tells to "first record read"."""
    gateway = spark.sparkContext._gateway
    no_quantiles = gateway.new_array(gateway.jvm.double, 0)
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    stages = spark._jsc.sc().statusStore().stageList(None, False, False, no_quantiles, None)
    launched = [stages.apply(i).firstTaskLaunchedTime() for i in range(stages.size())]
    return min(at.get().getTime() for at in launched if at.isDefined()) * 1_000_000


def micro_batches(progress: list[Any]) -> str:
    """How many there were, in words."""
    return f"{len(progress)} micro-batch" + ("es" if len(progress) > 1 else "")
