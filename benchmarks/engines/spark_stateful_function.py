"""A stateful function with Spark's transformWithState in Python, its state in RocksDB, over JSON lines.

Spark calls the function with all rows that a key has in a micro-batch. `--state-per record` reads and writes the state
for each of them, as the other engines do, in a micro-batch per file; `batch` does it once per call, with all files in
one micro-batch, which is Spark's best.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import protocol
from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from spark_session import ROCKSDB, micro_batches, report_query, start_session, timed_query
from stateful_function import STEP_MS, USERS

SCHEMA = "ts LONG, app_id STRING, user_id LONG, page STRING, duration_ms INT"
FILES_PER_TRIGGER = {"record": 1, "batch": 8}


class TimeSpent(StatefulProcessor):
    """Adds up a user's visits and emits a result each time another step is full."""

    def __init__(self, per_record: bool, step_ms: int) -> None:
        self._per_record, self._step_ms = per_record, step_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called once per partition and micro-batch."""
        self._spent = handle.getValueState("spent", "ms LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Called with the rows of one user."""
        found = self._spent.get()
        after = found[0] if found is not None else 0
        for position, row in enumerate(rows):
            if self._per_record and position:
                after = self._spent.get()[0]
            before, after = after, after + row.duration_ms
            if self._per_record:
                self._spent.update((after,))
            if after // self._step_ms > before // self._step_ms:
                yield Row(user=key[0], step=after // self._step_ms)
        if not self._per_record:
            self._spent.update((after,))

    def close(self) -> None:
        """Nothing to release."""


def main() -> None:
    """Run the query over all the files once and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--state-per", choices=["record", "batch"], default="record")
    args = parser.parse_args()
    spark = start_session(args.parallelism, "stateful function", ROCKSDB)
    user = f.format_string("user-%04d", f.col("user_id") % USERS)
    steps = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", FILES_PER_TRIGGER[args.state_per])
        .json(str(args.data / "json"))
        .select(user.alias("user"), "duration_ms")
        .groupBy("user")
        .transformWithState(
            statefulProcessor=TimeSpent(args.state_per == "record", STEP_MS),
            outputStructType="user STRING, step LONG",
            outputMode="Append",
            timeMode="None",
        )
        .observe("steps", f.count(f.lit(1)).alias("results"), f.sum("step").alias("total"))
    )
    queried = timed_query(spark, steps, "append")
    observed = [batch["observedMetrics"]["steps"] for batch in queried.progress]
    report_query(
        queried,
        args.records,
        {
            "results": sum(each["results"] for each in observed),
            "total": sum(each["total"] or 0 for each in observed),
        },
        f"state read and written per {args.state_per}, RocksDB, {micro_batches(queried.progress)}",
    )
    spark.stop()


if __name__ == "__main__":
    main()
