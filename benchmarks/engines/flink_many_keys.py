"""Count by user of many users with Flink SQL, its state in RocksDB with incremental checkpoints."""

from __future__ import annotations

import tempfile

import protocol
from flink_cluster import (
    FlinkCluster,
    checkpoint_options,
    jar_urls,
    report_insert,
    table_environment,
    timed_insert,
)
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
        options = checkpoint_options(args.checkpoint_interval, folder) | {"pipeline.jars": jar_urls()}
        table = table_environment(cluster, options | (MINI_BATCH if args.mode == "mini_batch" else {}))
        table.execute_sql(f"""
            CREATE TABLE visits (user_id BIGINT, duration_ms INT)
            WITH ('connector' = 'filesystem', 'path' = '{(args.data / "parquet").resolve().as_uri()}',
                  'format' = 'parquet')""")
        table.execute_sql("CREATE TABLE counts (user_id BIGINT, n BIGINT) WITH ('connector' = 'blackhole')")
        statement = "INSERT INTO counts SELECT user_id, COUNT(*) FROM visits GROUP BY user_id"
        inserted = timed_insert(cluster, table, statement)
        report_insert(cluster, inserted, args.records, {}, setting="RocksDB, incremental checkpoints")
        cluster.close()


if __name__ == "__main__":
    main()
