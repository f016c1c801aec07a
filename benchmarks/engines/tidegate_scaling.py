"""Cost per record with tidegate: at parallelism 1 and 2, and with chains of 1, 4 and 16 vectorised operators.

Parquet files, `--chain-length` expressions on columns, key by app_id, running count, a sink that keeps the results.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
import protocol
import pyarrow as pa
from tidegate_probe import ProbeSink, TimedSource, read_notes
from tidegate_pv import LastCounts

import tidegate
from tidegate import Environment
from tidegate.connectors.files import FileSource

SCHEMA = pa.schema([("app_id", pa.string()), ("user_id", pa.int64()), ("duration_ms", pa.int32())])


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = Environment(parallelism=args.parallelism, progress="off")
        files = FileSource(str(args.data / "parquet"), format="parquet", schema=SCHEMA)
        stream = env.from_source(TimedSource(files, notes), name="clicks")
        for _ in range(args.chain_length):
            stream = stream.with_columns((pl.col("user_id") + 1).alias("user_id"))
        stream.key_by("app_id").count().sink_to(ProbeSink(notes, LastCounts))
        client = env.execute_async("scaling")
        client.result()
        measured = read_notes(notes)
    protocol.report(
        version=tidegate.__version__,
        records=args.records,
        seconds=(measured.last_ns - measured.first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(measured.first_ns),
        cpu_s=measured.cpu_s,
        check={
            "records": sum(s["records"] for s in measured.sinks),
            "apps": sum(s["apps"] for s in measured.sinks),
        },
    )


if __name__ == "__main__":
    main()
