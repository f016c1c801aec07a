"""Nanoseconds per row of hashing, key groups, dense ids and running aggregates, and of their parts.

    python benchmarks/micro_keying.py [--rows 65536] [--default-malloc] [--no-many-keys]

Batches of 65,536 rows with 1,000 zipf keys unless the line says otherwise; medians of 31 runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.aggregates.segmented_scans import (
    RowGroups,
    empty_totals,
    running_counts,
    running_max,
    running_min,
    running_sums,
)
from tidegate.core.allocator import keep_freed_memory
from tidegate.keys.hashing import hash_column, hash_columns, hash_value, hash_values
from tidegate.keys.key_group_columns import channel_for_key_groups, channel_table, key_groups
from tidegate.keys.key_index import KeyIndex

KEYS = 1_000
MANY = 5_000_000


class Bench:
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def line(
        self, name: str, function: Callable[[], object], rows: int | None = None, runs: int = 31
    ) -> None:
        function()
        times = []
        for _ in range(runs):
            start = time.perf_counter_ns()
            function()
            times.append(time.perf_counter_ns() - start)
        print(f"{name:<58}{sorted(times)[runs // 2] / (rows or self.rows):>9.2f} ns/row", flush=True)


def hashing(bench: Bench, numbers: np.ndarray) -> None:
    words = pa.array([f"app{i}" for i in numbers])
    long_words = pa.array([f"some-longer-application-name-{i:06}" for i in numbers])
    ints = pa.array(numbers)
    encoded = words.dictionary_encode()
    bench.line("hash_column: int64", lambda: hash_column(ints))
    bench.line("hash_column: float64", lambda: hash_column(pa.array(numbers * 1.5)))
    bench.line("hash_column: dictionary of words", lambda: hash_column(encoded))
    bench.line("hash_column: words of 4 to 6 bytes", lambda: hash_column(words))
    bench.line("hash_column: words of 35 bytes", lambda: hash_column(long_words))
    bench.line("hash_columns: dictionary of words and int64", lambda: hash_columns([encoded, ints]))
    few = words[:2000].to_pylist()
    bench.line("hash_values: list of str", lambda: hash_values(few), rows=2000)
    bench.line("hash_value: one str at a time", lambda: [hash_value(word) for word in few], rows=2000, runs=5)
    hashes = hash_column(ints)
    groups = key_groups(hashes, 128)
    table = channel_table(2, 128)
    bench.line("key_groups: of 128", lambda: key_groups(hashes, 128))
    bench.line("key_groups: of 100", lambda: key_groups(hashes, 100))
    bench.line("channel_for_key_groups", lambda: channel_for_key_groups(groups, table))


def dense_ids(bench: Bench, numbers: np.ndarray) -> None:
    words = pa.array([f"app{i}" for i in numbers])
    turned = pa.array([f"app{i}" for i in np.roll(numbers, 5)]).dictionary_encode()
    ints, encoded = pa.array(numbers), words.dictionary_encode()
    for name, columns in (
        ("int64", [ints]),
        ("dictionary of words, the same in each batch", [encoded]),
        ("words (encoded first)", [words]),
        ("dictionary of words and int64", [encoded, ints]),
    ):
        index = KeyIndex()
        bench.line(f"KeyIndex.ids: {name}", lambda index=index, columns=columns: index.ids(columns))
    index = KeyIndex()
    bench.line(
        "KeyIndex.ids: dictionary of words, another in each batch",
        lambda: (index.ids([encoded]), index.ids([turned])),
        rows=2 * bench.rows,
    )
    bench.line("  of which, plain words: pyarrow dictionary_encode", words.dictionary_encode)


def running(bench: Bench, ids: np.ndarray) -> None:
    random = np.random.default_rng(2)
    ints, floats = random.integers(-1000, 1000, bench.rows), random.normal(size=bench.rows)
    frame = pl.DataFrame({"k": ids.astype(np.uint16), "v": ints, "f": floats})
    counts, sums = np.zeros(KEYS, np.int64), np.zeros(KEYS, np.int64)
    groups = RowGroups(ids, KEYS)
    bench.line("RowGroups: sort the rows by key", lambda: RowGroups(ids, KEYS))
    bench.line("  candidate: numpy stable argsort of int64", lambda: np.argsort(ids, kind="stable"))
    small = ids.astype(np.uint16)
    bench.line("  candidate: numpy stable argsort of uint16 (kept)", lambda: np.argsort(small, kind="stable"))
    bench.line("running_counts", lambda: running_counts(ids, counts))
    bench.line("running_counts: groups given", lambda: running_counts(groups, counts))
    bench.line("  candidate: polars cum_count over", lambda: frame.select(pl.col("k").cum_count().over("k")))
    bench.line("running_sums: int64", lambda: running_sums(ids, ints, sums))
    bench.line("running_sums: float64", lambda: running_sums(ids, floats, empty_totals("sum", float, KEYS)))
    bench.line(
        "  candidate: polars cum_sum over, int64", lambda: frame.select(pl.col("v").cum_sum().over("k"))
    )
    bench.line("running_min: int64", lambda: running_min(ids, ints, empty_totals("min", int, KEYS)))
    bench.line("running_max: float64", lambda: running_max(ids, floats, empty_totals("max", float, KEYS)))
    wide = random.integers(0, MANY, bench.rows)
    many = np.zeros(MANY, np.int64)
    bench.line("running_counts: uniform over 5 M keys", lambda: running_counts(wide, many))


def many_keys(bench: Bench) -> None:
    order = np.random.default_rng(3).permutation(MANY)
    parts = [order[start : start + bench.rows] for start in range(0, MANY, bench.rows)]
    makers: list[tuple[str, Callable[[np.ndarray], list[pa.Array]]]] = [
        ("int64", lambda part: [pa.array(part)]),
        ("two int64", lambda part: [pa.array(part // 1000), pa.array(part % 1000)]),
        (
            "words of 6 to 12 bytes",
            lambda part: [pc.binary_join_element_wise("user-", pa.array(part).cast("string"), "")],
        ),
    ]
    for name, make in makers:
        batches = [make(part) for part in parts]
        index = KeyIndex()
        before, worst, start = _resident_mib(), 0.0, time.perf_counter()
        for batch in batches:
            began = time.perf_counter()
            index.ids(batch)
            worst = max(worst, time.perf_counter() - began)
        insert_ns = (time.perf_counter() - start) / MANY * 1e9
        grown = _resident_mib() - before
        start = time.perf_counter()
        for batch in batches[:20]:
            index.ids(batch)
        find_ns = (time.perf_counter() - start) / (20 * bench.rows) * 1e9
        print(
            f"5 M keys, {name}: insert {insert_ns:.0f} ns/key (longest batch {worst * 1e3:.0f} ms), "
            f"find {find_ns:.0f} ns/row, memory +{grown} MiB",
            flush=True,
        )


def _resident_mib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--default-malloc", action="store_true", help="leave the allocator as it is")
    parser.add_argument("--no-many-keys", action="store_true")
    given = parser.parse_args()
    if not given.default_malloc:
        keep_freed_memory()
    bench = Bench(given.rows)
    random = np.random.default_rng(1)
    numbers = random.permutation(KEYS)[np.minimum(random.zipf(1.3, given.rows), KEYS) - 1]
    hashing(bench, numbers)
    dense_ids(bench, numbers)
    running(bench, numbers)
    if not given.no_many_keys:
        many_keys(bench)


if __name__ == "__main__":
    main()
