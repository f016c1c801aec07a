"""Seeded data, written once and read by every engine: clicks as Parquet and as JSON lines, visits of many users.

Run as a script to make it ahead of a benchmark: `python benchmarks/data.py --records 10000000`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parent / ".data"
SEED = 20240229
FILES = 8
ROW_GROUPS_PER_FILE = 10
APPS = 1_000
PAGES = 100
USERS = 200_000
ZIPF_EXPONENT = 1.1
FIRST_TS_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Clicks:
    """Where one generated data set is stored, and the results that every engine must find."""

    directory: Path
    records: int
    apps: int
    """Distinct values of `app_id` that occur."""
    top_app: str
    top_count: int

    @property
    def parquet(self) -> Path:
        """Directory of the Parquet files."""
        return self.directory / "parquet"

    @property
    def json_lines(self) -> Path:
        """Directory of the JSON lines files."""
        return self.directory / "json"


@dataclass(frozen=True)
class Visits:
    """A data set with exactly two visits of every user, and the results that every engine must find."""

    directory: Path
    records: int
    keys: int


def warm(directory: Path) -> None:
    """Read every file once, so that the first engine to run does not pay for the disk."""
    for path in sorted(directory.rglob("part-*")):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def zipf_indices(rng: np.random.Generator, count: int, distinct: int) -> np.ndarray:
    """`count` indices below `distinct`, index i with weight 1 / (i + 1) ** ZIPF_EXPONENT."""
    weights = 1.0 / np.arange(1, distinct + 1) ** ZIPF_EXPONENT
    cumulative = np.cumsum(weights / weights.sum())
    drawn = np.searchsorted(cumulative, rng.random(count), side="right")
    return np.minimum(drawn, distinct - 1)


def click_frame(first: int, count: int) -> pl.DataFrame:
    """Rows `first` to `first + count` of the click stream; a function of SEED and `first` alone."""
    rng = np.random.default_rng([SEED, first])
    # A fixed shuffle of the ids, so that frequent apps and pages are not neighbours in any hash or range.
    names = np.random.default_rng(SEED)
    apps = np.array([f"app-{i:04d}" for i in names.permutation(APPS)])
    pages = np.array([f"/page/{i:02d}" for i in names.permutation(PAGES)])
    return pl.DataFrame(
        {
            "ts": FIRST_TS_MS + first + np.arange(count, dtype=np.int64),
            "app_id": apps[zipf_indices(rng, count, APPS)],
            "user_id": rng.integers(0, USERS, count, dtype=np.int64),
            "page": pages[zipf_indices(rng, count, PAGES)],
            "duration_ms": rng.gamma(2.0, 400.0, count).astype(np.int32),
        }
    )


def clicks(records: int = 10_000_000) -> Clicks:
    """The click data with that many records; generated under `benchmarks/.data` if it does not exist."""
    directory = ROOT / f"clicks-{records}"
    truth = directory / "truth.json"
    if not truth.exists():
        _generate(directory, records)
    return Clicks(directory=directory, **json.loads(truth.read_text()))


def user_ids(numbers: np.ndarray) -> np.ndarray:
    """One id of 64 bits for each number of a user: no two alike, and without any order."""
    # The finalizer of splitmix64: it permutes the numbers of 64 bits. A mere factor would leave few distinct gaps
    # between the sorted ids, which compress as no real ids do.
    mixed = numbers.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)


def visits(records: int = 10_000_000) -> Visits:
    """Two visits of each of `records / 2` users: in a random order first the one of all, then the other."""
    directory = ROOT / f"visits-{records}"
    truth = directory / "truth.json"
    if not truth.exists():
        with made(directory) as partial:
            (partial / "parquet").mkdir()
            users = records // 2
            rng = np.random.default_rng(SEED)
            ids = user_ids(np.concatenate([rng.permutation(users), rng.permutation(users)]))
            for index, part in enumerate(np.array_split(ids, FILES)):
                duration = rng.gamma(2.0, 400.0, len(part)).astype(np.int32)
                write_parquet(
                    pa.table({"user_id": part, "duration_ms": duration}), partial / "parquet", index
                )
            (partial / "truth.json").write_text(json.dumps({"records": 2 * users, "keys": users}))
    return Visits(directory=directory, **json.loads(truth.read_text()))


@contextlib.contextmanager
def made(directory: Path) -> Iterator[Path]:
    """A directory to fill; it gets its name at the end, so an interrupted generation leaves nothing."""
    partial = directory.with_suffix(f".partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def write_parquet(table: pa.Table, directory: Path, index: int) -> None:
    """Write one file of the data."""
    group = max(1, -(-table.num_rows // ROW_GROUPS_PER_FILE))
    pq.write_table(table, directory / f"part-{index}.parquet", row_group_size=group)


def plain_table(frame: pl.DataFrame) -> pa.Table:
    """As an Arrow table of types that every engine reads."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    fields = [
        pa.field(f.name, pa.string() if pa.types.is_large_string(f.type) else f.type) for f in table.schema
    ]
    return table.cast(pa.schema(fields))


def _generate(directory: Path, records: int) -> None:
    with made(directory) as partial:
        for name in ("parquet", "json"):
            (partial / name).mkdir()
        bounds = np.linspace(0, records, FILES + 1).astype(int)
        counts: dict[str, int] = {}
        for index in range(FILES):
            first, count = int(bounds[index]), int(bounds[index + 1] - bounds[index])
            frame = click_frame(first, count)
            frame.write_ndjson(partial / "json" / f"part-{index}.json")
            write_parquet(plain_table(frame), partial / "parquet", index)
            for app, app_count in frame.group_by("app_id").len().iter_rows():
                counts[app] = counts.get(app, 0) + app_count
        top_app = max(counts, key=lambda app: (counts[app], app))
        truth = {"records": records, "apps": len(counts), "top_app": top_app, "top_count": counts[top_app]}
        (partial / "truth.json").write_text(json.dumps(truth))


def main() -> None:
    """Generate the data and print what it contains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    records = parser.parse_args().records
    print(clicks(records), visits(records), sep="\n")


if __name__ == "__main__":
    main()
