"""PV count with Flink SQL on the JVM: filesystem source, GROUP BY count, blackhole sink, streaming mode."""

from __future__ import annotations

import tempfile
import time

import protocol
from flink_cluster import FlinkCluster, checkpoint_options, jar_urls, table_environment

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
    from pyflink.version import __version__

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
        ready_cpu_s = protocol.tree_cpu_s()
        table.execute_sql(statement).wait()
        ended_ns = time.time_ns()
        cpu_s = protocol.tree_cpu_s() - ready_cpu_s
        job = cluster.finished_job()
        first_ns = cluster.source_running_ns(job)
        protocol.report(
            version=__version__,
            records=args.records * args.repeat,
            seconds=(ended_ns - first_ns) / 1e9,
            startup_s=protocol.seconds_since_start(first_ns),
            cpu_s=cpu_s,
            check={"records": job["vertices"][0]["metrics"]["read-records"]},
            extra=cluster.checkpoint_figures(job),
        )
        cluster.close()


if __name__ == "__main__":
    main()
