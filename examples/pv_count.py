"""Page views per app: clicks, keyed by app, counted as they arrive, exactly once. `make run` runs this.

    python examples/pv_count.py [--records 10000000] [--out DIRECTORY] [--crash] [any tidegate option]

The clicks come from the embedded generator (1,000 apps, zipf), the running counts go to JSON lines files, with a
checkpoint every second. The program prints the last count of every app beside the truth, which numpy computes
without tidegate, straight from the generator's random numbers. The exit code is 0 only if they are equal and there is
one result for each click.

`--crash` (`make run CRASH=1`) kills one of the worker processes in the middle, with SIGKILL. The job continues from its
last checkpoint, and the result is the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table

from tidegate import DataGeneratorSource, Environment, FileSink
from tidegate.cli.plan import print_plan
from tidegate.cli.progress import ProgressDisplay

APPS = [f"app-{i:04d}" for i in range(1000)]
BLOCK = 8192


def apps_of_block(block: int) -> np.ndarray:
    """The app of each click of a block; it depends only on the block's number."""
    ranks = np.random.default_rng([2024, block]).zipf(1.3, BLOCK)
    return (ranks - 1) % len(APPS)


def click(indices: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    """The clicks with these indices."""
    first, last = int(indices[0]) // BLOCK, int(indices[-1]) // BLOCK
    apps = np.concatenate([apps_of_block(b) for b in range(first, last + 1)])[indices - first * BLOCK]
    return {"app_id": np.array(APPS)[apps], "user_id": rng.integers(0, 1_000_000, len(indices))}


def true_counts(records: int) -> Counter[str]:
    """The number of clicks of every app, counted without tidegate."""
    totals = np.zeros(len(APPS), dtype=np.int64)
    for block in range((records + BLOCK - 1) // BLOCK):
        apps = apps_of_block(block)[: records - block * BLOCK]
        totals += np.bincount(apps, minlength=len(APPS))
    return Counter({app: int(n) for app, n in zip(APPS, totals, strict=True) if n})


def read_results(directory: Path) -> tuple[Counter[str], int]:
    """From the sink's files: the largest, and so the last, count of every app, and the number of results."""
    files = sorted(directory.glob("part-*.json"))
    found = pl.scan_ndjson(files).group_by("app_id").agg(pl.col("count").max(), pl.len()).collect()
    return Counter(dict(found.select("app_id", "count").iter_rows())), int(found["len"].sum())


def show(found: Counter[str], truth: Counter[str]) -> None:
    """The most viewed apps: the counted and the true numbers."""
    table = Table("app", box=box.SIMPLE_HEAD)
    table.add_column("counted", justify="right")
    table.add_column("truth", justify="right")
    for app, true in truth.most_common(10):
        table.add_row(app, f"{found[app]:,}", f"{true:,}")
    Console().print(f"\nPage views of the first 10 of {len(truth):,} apps", table)


def kill_a_worker(client: Any) -> None:
    """Wait until the job has a checkpoint to go back to, then kill the process of its last slot."""
    while not client.status().is_terminal:
        done, progress = client.checkpoints().completed, client.metrics().progress or 0.0
        if done >= 1 and progress >= 0.2:
            slot = client.slots()[-1]
            print(f"\n*** kill -9 {slot.pid}: slot {slot.slot}, which runs {', '.join(slot.subtasks)} ***\n")
            os.kill(slot.pid, signal.SIGKILL)
            return
        time.sleep(0.05)


def run(env: Environment, crash: bool) -> int:
    """Run the job, with or without a kill in the middle; return how many milliseconds it took."""
    if not crash:
        return env.execute().elapsed_ms
    print_plan(env.explain())
    client = env.execute_async()
    killer = threading.Thread(target=kill_a_worker, args=(client,), daemon=True)
    killer.start()
    with ProgressDisplay.of(client):
        return client.result().elapsed_ms


def count_clicks(records: int, out: Path, options: list[str], crash: bool = False) -> int:
    """Run the job, compare, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="pv-checkpoints-") as checkpoints:
        env = Environment(
            job_name="pv count",
            parallelism=2,
            progress="on",
            checkpoint_interval="1 s",
            checkpoint_dir=checkpoints,
            args=options,
        )
        clicks = env.from_source(DataGeneratorSource(click, count=records), uid="clicks", name="clicks")
        counts = clicks.key_by("app_id").count(uid="pv", name="pv")
        counts.sink_to(FileSink(out, format="json", overwrite=True), uid="files", name="files")
        elapsed_ms = run(env, crash)

    found, results = read_results(out)
    truth = true_counts(records)
    show(found, truth)
    equal = found == truth and results == records
    print(
        f"{len(truth)} apps, {records:,} clicks, {results:,} results in {elapsed_ms / 1000:.1f} s: ", end=""
    )
    print("equal to the truth" if equal else "NOT equal to the truth")
    return 0 if equal else 1


def main() -> int:
    """Read the command line and count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records", type=int, default=10_000_000, help="clicks to generate (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="directory for the result files (default: a temporary one)")
    parser.add_argument("--crash", action="store_true", help="kill a worker process in the middle")
    own, options = parser.parse_known_args()
    if own.out is not None:
        return count_clicks(own.records, own.out, options, own.crash)
    with tempfile.TemporaryDirectory(prefix="pv-count-") as out:
        return count_clicks(own.records, Path(out), options, own.crash)


if __name__ == "__main__":
    sys.exit(main())
