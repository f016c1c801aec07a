"""Seeded clicks with event times out of order, for the `windows` workload, and their true results.

There are as many files as slots, each over the whole time, like a partition of a log. So watermarks mean the same to
all engines: a file's events are at most 2 s behind its latest one. `parquet-slices` has the rows of `parquet`, cut by
time, for engines that read files one after the other and have no order within a micro-batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.data import FIRST_TS_MS, ROOT, SEED, click_frame, made, plain_table, write_parquet
from benchmarks.engines import windows

PARTITIONS = 2
SLICES = 8
EVENTS_PER_MS = 10
OUT_OF_ORDER = 0.05


@dataclass(frozen=True)
class Events:
    """Where one generated data set is stored, and the results of each kind of window."""

    directory: Path
    records: int
    truth: dict[str, dict[str, int]]


def events(records: int = 10_000_000) -> Events:
    """The data with that many records; generated under `benchmarks/.data` if it does not exist."""
    directory = ROOT / f"events-{records}"
    stored = directory / "truth.json"
    if not stored.exists():
        _generate(directory, records)
    return Events(directory, records, json.loads(stored.read_text()))


def event_frame(records: int) -> pl.DataFrame:
    """All events in order of arrival: 10 per millisecond, one of twenty up to 2 s too late."""
    rng = np.random.default_rng([SEED, records])
    times = np.arange(records, dtype=np.int64) // EVENTS_PER_MS
    behind = rng.integers(1, windows.OUT_OF_ORDERNESS_MS, records)
    times = np.where(rng.random(records) < OUT_OF_ORDER, np.maximum(times - behind, 0), times)
    return click_frame(0, records).with_columns(ts=pl.Series(FIRST_TS_MS + times))


def _generate(directory: Path, records: int) -> None:
    frame = event_frame(records)
    with made(directory) as partial:
        for name in ("parquet", "json", "parquet-slices"):
            (partial / name).mkdir()
        for index in range(PARTITIONS):
            part = frame.gather_every(PARTITIONS, index)
            part.write_ndjson(partial / "json" / f"part-{index}.json")
            write_parquet(plain_table(part), partial / "parquet", index)
        bounds = np.linspace(0, records, SLICES + 1).astype(int)
        for number in range(SLICES):
            piece = frame[bounds[number] : bounds[number + 1]]
            write_parquet(plain_table(piece), partial / "parquet-slices", number)
        truth = {kind: _summary(frame, kind) for kind in windows.KINDS}
        (partial / "truth.json").write_text(json.dumps(truth))


# ---- the true results ----


def _summary(frame: pl.DataFrame, kind: str) -> dict[str, int]:
    """The summary of all results, and (`closed_...`) of the windows that end by the last watermark.

    Spark has no end of input: windows that the last watermark does not close are never emitted.
    """
    found = _RESULTS[kind](frame.select("app_id", "ts"))
    last_watermark = int(frame["ts"].max()) - windows.OUT_OF_ORDERNESS_MS  # type: ignore[arg-type]
    closed = windows.summary(found.filter(pl.col("end") <= last_watermark).iter_rows())
    return windows.summary(found.iter_rows()) | {f"closed_{name}": n for name, n in closed.items()}


def _tumbling(frame: pl.DataFrame) -> pl.DataFrame:
    size = windows.TUMBLING_S * 1000
    start = pl.col("ts") // size * size
    return frame.group_by("app_id", start=start, end=start + size).agg(n=pl.len())


def _sliding(frame: pl.DataFrame) -> pl.DataFrame:
    """By second and app in a table, then differences of its running sums."""
    size, slide = windows.SLIDING_S // windows.SLIDE_S, windows.SLIDE_S * 1000
    counts = frame.group_by("app_id", slot=pl.col("ts") // slide).agg(n=pl.len())
    apps = counts["app_id"].unique().sort()
    first, last = int(counts["slot"].min()), int(counts["slot"].max())  # type: ignore[arg-type]
    table = np.zeros((apps.len(), last - first + 1), np.int64)
    places = apps.search_sorted(counts["app_id"]).to_numpy()
    table[places, counts["slot"].to_numpy() - first] = counts["n"].to_numpy()
    sums = np.pad(np.cumsum(table, axis=1), ((0, 0), (size, size - 1)), mode="edge")
    sums[:, :size] = 0
    totals = sums[:, size:] - sums[:, :-size]  # column i: the window whose last slot is first + i
    rows, columns = np.nonzero(totals)
    end = (first + columns + 1) * slide
    return pl.DataFrame(
        {
            "app_id": apps.gather(rows),
            "start": end - size * slide,
            "end": end,
            "n": totals[rows, columns],
        }
    )


def _session(frame: pl.DataFrame) -> pl.DataFrame:
    gap = windows.SESSION_GAP_S * 1000
    ordered = frame.sort("app_id", "ts")
    begins = (pl.col("app_id") != pl.col("app_id").shift()) | (pl.col("ts").diff() > gap)
    numbered = ordered.with_columns(session=begins.fill_null(True).cum_sum())
    grouped = numbered.group_by("session").agg(
        pl.col("app_id").first(), start=pl.col("ts").first(), end=pl.col("ts").last() + gap, n=pl.len()
    )
    return grouped.select("app_id", "start", "end", "n")


_RESULTS = {"tumbling": _tumbling, "sliding": _sliding, "session": _session}
