"""PV count with Flink SQL on the JVM: filesystem source, GROUP BY count, blackhole sink, streaming mode."""

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

MINI_BATCH = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}


def main() -> None:
    """Run the statement over all the files once and report."""
    args = protocol.arguments(__doc__).parse_args()
    cluster = FlinkCluster(args.parallelism)
    with (
        tempfile.TemporaryDirectory(prefix="bench-flink-") as folder,
        protocol.files_of(args) as directory,
    ):
        options = checkpoint_options(args.checkpoint_interval, folder)
        if args.format == "parquet":
            options |= {"pipeline.jars": jar_urls()}
        if args.mode == "mini_batch":
            options |= MINI_BATCH
        table = table_environment(cluster, options)
        table.execute_sql(f"""
            CREATE TABLE clicks (ts BIGINT, app_id STRING, user_id BIGINT, page STRING, duration_ms INT)
            WITH ('connector' = 'filesystem', 'path' = '{directory.resolve().as_uri()}',
                  'format' = '{args.format}')""")
        table.execute_sql("CREATE TABLE counts (app_id STRING, pv BIGINT) WITH ('connector' = 'blackhole')")
        statement = "INSERT INTO counts SELECT app_id, COUNT(*) FROM clicks GROUP BY app_id"
        inserted = timed_insert(cluster, table, statement)
        report_insert(cluster, inserted, args.records * args.repeat, {})
        cluster.close()


if __name__ == "__main__":
    main()
