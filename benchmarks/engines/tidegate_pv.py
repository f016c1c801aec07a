"""PV count with tidegate: files, key by app_id, running count, a sink that keeps the results."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import protocol
import pyarrow as pa
from tidegate_probe import ProbeSink, TimedSource, environment, report_job

from tidegate.connectors.files import FileSource
from tidegate.records.batch import Batch
from tidegate.records.column_bits import CodeTable
from tidegate.records.recent_dictionaries import RecentDictionaries

SCHEMA = {"ts": int, "app_id": str, "user_id": int, "page": str, "duration_ms": int}


class LastCounts:
    """Keeps all results, for the last count of every app."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Keep a batch."""
        self._batches.append(batch)

    def summary(self) -> dict[str, Any]:
        """The number of results, and what the last counts say."""
        frames = [pl.DataFrame(b.plain_columns) for b in self._batches]
        counts = (
            pl.concat(frames).group_by("app_id").agg(pl.col("count").max())["count"]
            if frames
            else pl.Series([0])
        )
        rows = sum(b.num_rows for b in self._batches)
        return {"results": rows, "apps": counts.len(), "records": int(counts.sum()), "top": int(counts.max())}


class FoldedCounts:
    """Keeps only the last count of every app: for more results than fit into memory."""

    def __init__(self) -> None:
        self._results = 0
        self._ids: dict[str, int] = {}
        self._counts = np.zeros(1024, np.int64)
        self._ids_of: RecentDictionaries[CodeTable] = RecentDictionaries()

    def add(self, batch: Batch) -> None:
        """Take a batch; of several counts of an app in it the last one stays."""
        apps, counts = batch.columns.column("app_id"), batch.columns.column("count")
        if not pa.types.is_dictionary(apps.type):
            apps = apps.dictionary_encode()
        ids = self._ids_of.find(apps.dictionary)
        if ids is None:
            values = apps.dictionary.to_pylist()
            ids = CodeTable(np.array([self._ids.setdefault(app, len(self._ids)) for app in values], np.int64))
            self._ids_of.keep(apps.dictionary, ids)
            if len(self._ids) > len(self._counts):
                self._counts = np.concatenate([self._counts, np.zeros(len(self._ids), np.int64)])
        self._counts[ids.look_up(apps).to_numpy()] = counts.to_numpy()
        self._results += batch.num_rows

    def summary(self) -> dict[str, Any]:
        """The number of results, and what the last counts say."""
        counts = self._counts[self._counts > 0]
        top = int(counts.max(initial=0))
        return {"results": self._results, "apps": len(counts), "records": int(counts.sum()), "top": top}


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder,
        protocol.files_of(args) as directory,
    ):
        notes = Path(folder)
        env = environment(args, notes, mini_batch=args.mode == "mini_batch")
        files = FileSource(str(directory), format=args.format, schema=click_type())
        clicks = env.from_source(TimedSource(files, notes), name="clicks")
        tally = LastCounts if args.repeat == 1 else FoldedCounts
        clicks.key_by("app_id").count().sink_to(ProbeSink(notes, tally))
        client = env.execute_async("pv")
        client.result()
        report_job(client, notes, args.records * args.repeat, check, results)


def check(sinks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the sinks have counted, together."""
    return {
        "records": sum(s["records"] for s in sinks),
        "apps": sum(s["apps"] for s in sinks),
        "top_count": max(s["top"] for s in sinks),
    }


def results(sinks: list[dict[str, Any]]) -> str:
    """How many results there were."""
    return f"{sum(s['results'] for s in sinks):,} results"


def click_type() -> Any:
    """The columns of the data, as a dataclass."""
    import dataclasses

    return dataclasses.make_dataclass("Click", list(SCHEMA.items()))


if __name__ == "__main__":
    main()
