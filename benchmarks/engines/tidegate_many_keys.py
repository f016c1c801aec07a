"""Count by user of many users with tidegate: Parquet files, key by user_id, running count, results that are kept."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import protocol
import pyarrow as pa
from tidegate_probe import ProbeSink, TimedSource, environment, report_job

from tidegate.connectors.files import FileSource
from tidegate.records.batch import Batch

SCHEMA = pa.schema([("user_id", pa.int64()), ("duration_ms", pa.int32())])


class UserCounts:
    """Keeps all results, for the last count of every user."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Keep a batch."""
        self._batches.append(batch)

    def summary(self) -> dict[str, Any]:
        """The number of results and of users, and the sum of their last counts."""
        frames = [pl.DataFrame(b.plain_columns).select("user_id", "count") for b in self._batches]
        last = pl.concat(frames).group_by("user_id").agg(pl.col("count").max())["count"]
        return {"results": sum(f.height for f in frames), "keys": last.len(), "records": int(last.sum())}


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = environment(args, notes, mini_batch=args.mode == "mini_batch")
        files = FileSource(str(args.data / "parquet"), format="parquet", schema=SCHEMA)
        visits = env.from_source(TimedSource(files, notes), name="visits")
        visits.key_by("user_id").count().sink_to(ProbeSink(notes, UserCounts))
        client = env.execute_async("many keys")
        client.result()
        report_job(client, notes, args.records, check, f"{args.state_backend} backend")


def check(sinks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the sinks have counted, together."""
    return {key: sum(s[key] for s in sinks) for key in ("records", "keys")}


if __name__ == "__main__":
    main()
