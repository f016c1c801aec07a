"""Count by user of many users with Flink SQL, its state in RocksDB with incremental checkpoints."""

from __future__ import annotations

import tempfile
import time

import protocol
from flink_cluster import FlinkCluster, checkpoint_options, jar_urls, table_environment
from flink_pv import MINI_BATCH

ROCKSDB = {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"}
MANAGED_MEMORY_PER_SLOT_MB = 256
"""As much as tidegate's RocksDB has."""


def main() -> None:
    """Run the statement over all the files once and report."""
    args = protocol.arguments(__doc__).parse_args()
    managed = f"{MANAGED_MEMORY_PER_SLOT_MB * args.parallelism}m"
    with tempfile.TemporaryDirectory(prefix="bench-flink-") as folder:
        cluster = FlinkCluster(args.parallelism, {"taskmanager.memory.managed.size": managed, **ROCKSDB})
        from pyflink.version import __version__

        options = checkpoint_options(args.checkpoint_interval, folder) | {"pipeline.jars": jar_urls()}
        table = table_environment(cluster, options | (MINI_BATCH if args.mode == "mini_batch" else {}))
        table.execute_sql(f"""
            CREATE TABLE visits (user_id BIGINT, duration_ms INT)
            WITH ('connector' = 'filesystem', 'path' = '{(args.data / "parquet").resolve().as_uri()}',
                  'format' = 'parquet')""")
        table.execute_sql("CREATE TABLE counts (user_id BIGINT, n BIGINT) WITH ('connector' = 'blackhole')")
        statement = "INSERT INTO counts SELECT user_id, COUNT(*) FROM visits GROUP BY user_id"
        ready_cpu_s = protocol.tree_cpu_s()
        table.execute_sql(statement).wait()
        ended_ns = time.time_ns()
        cpu_s = protocol.tree_cpu_s() - ready_cpu_s
        job = cluster.finished_job()
        first_ns = cluster.source_running_ns(job)
        protocol.report(
            version=__version__,
            records=args.records,
            seconds=(ended_ns - first_ns) / 1e9,
            startup_s=protocol.seconds_since_start(first_ns),
            cpu_s=cpu_s,
            check={"records": job["vertices"][0]["metrics"]["read-records"]},
            setting="RocksDB, incremental checkpoints",
            extra=cluster.checkpoint_figures(job),
        )
        cluster.close()


if __name__ == "__main__":
    main()
