"""PV count with Flink SQL on the JVM: filesystem source, GROUP BY count, blackhole sink, streaming mode."""

from __future__ import annotations

import time

import protocol
from flink_cluster import FlinkCluster, jar_urls

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
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment
    from pyflink.version import __version__

    options = Configuration()
    for key, value in cluster.options.items():
        options.set_string(key, value)
    if args.format == "parquet":
        options.set_string("pipeline.jars", jar_urls())
    if args.mode == "mini_batch":
        for key, value in MINI_BATCH.items():
            options.set_string(key, value)
    table = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(options).build()
    )
    table.execute_sql(f"""
        CREATE TABLE clicks (ts BIGINT, app_id STRING, user_id BIGINT, page STRING, duration_ms INT)
        WITH ('connector' = 'filesystem', 'path' = '{(args.data / args.format).resolve().as_uri()}',
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
        records=args.records,
        seconds=(ended_ns - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=cpu_s,
        check={"records": job["vertices"][0]["metrics"]["read-records"]},
    )
    cluster.close()


if __name__ == "__main__":
    main()
