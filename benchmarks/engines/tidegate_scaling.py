"""Cost per record with tidegate: at parallelism 1 and 2, and with chains of 1, 4 and 16 vectorised operators.

Parquet files, `--chain-length` expressions on columns, key by app_id, running count, a sink that keeps the last result
of each app. Keeping all of them would need fresh memory all the time, at a cost that differs from run to run. With
`--jobs 2` two such jobs run at the same time, which shows what two busy cores cost each other, as they share memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
import protocol
import pyarrow as pa
from pyspark.sql import SparkSession
from tidegate_probe import ProbeSink, TimedSource, read_notes
from tidegate_pv import FoldedCounts

import tidegate
from tidegate import Environment
from tidegate.connectors.files import FileSource

SCHEMA = pa.schema([("app_id", pa.string()), ("user_id", pa.int64()), ("duration_ms", pa.int32())])


def main() -> None:
    """Run and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="jobs at the same time, each over all records")
    parser.set_defaults(format="parquet")
    args = parser.parse_args()
    slots = args.jobs * args.parallelism
    with (
        tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder,
        protocol.files_of(args) as directory,
    ):
        notes = Path(folder)
        spark = SparkSession.builder.master(f"local[{slots}]").getOrCreate() if args.jobs > 1 else None
        clients = []
        for job in range(args.jobs):
            env = Environment(spark=spark, parallelism=args.parallelism, progress="off")
            files = FileSource(str(directory), format="parquet", schema=SCHEMA)
            label = f"{job}-" if args.jobs > 1 else ""
            stream = env.from_source(TimedSource(files, notes, args.jobs, label), name="clicks")
            for _ in range(args.chain_length):
                stream = stream.with_columns((pl.col("user_id") + 1).alias("user_id"))
            stream.key_by("app_id").count().sink_to(ProbeSink(notes, FoldedCounts, label))
            clients.append(env.execute_async("scaling"))
        for client in clients:
            client.result()
        measured = read_notes(notes)
    protocol.report(
        version=tidegate.__version__,
        records=args.jobs * args.records * args.repeat,
        seconds=(measured.last_ns - measured.first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(measured.first_ns),
        cpu_s=measured.cpu_s,
        check={
            "records": sum(s["records"] for s in measured.sinks) // args.jobs,
            "apps": sum(s["apps"] for s in measured.sinks) // args.jobs,
        },
    )


if __name__ == "__main__":
    main()
