"""Windows of built-in aggregates by columns: CPU time per record, of the local stage and of the window operator.

    python benchmarks/micro_windows.py [--batches 40] [--keys 1000] [--rate 10000]

One operator in a harness, batches of 65,536 records with a dictionary-encoded text key, 5 % of them up to 2 s out of
order, a watermark after each batch, `--rate` records per second of event time. Nothing is read, exchanged or written.
The last line counts the codes of the same keys with one `np.bincount`; it shows how fast the machine is at the moment.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate import (
    Avg,
    Count,
    CountDistinct,
    CumulativeEventTimeWindows,
    Environment,
    EventTimeSessionWindows,
    First,
    Last,
    Max,
    SlidingEventTimeWindows,
    Sum,
    TopN,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.program.window_operations import AggregateWindow
from tidegate.program.window_partials import in_two_stages
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType, RowType
from tidegate.testing.harness import OperatorHarness

ROWS: Final = 65_536
REPEATS: Final = 3
RECORDS: RecordType = RowType(
    pa.schema([("key", pa.string()), ("amount", pa.int64()), ("price", pa.float64())])
)
NUMBERS: dict[str, Any] = {"n": Count(), "total": Sum("amount"), "high": Max("price"), "mean": Avg("amount")}

Batches = list[tuple[Batch, int]]


def made_batches(count: int, keys: int, rate: int) -> Batches:
    """Batches and the watermark after each."""
    chance = np.random.default_rng(1)
    words = pa.array([f"key-{i}" for i in range(keys)])
    start, found = 0, []
    for _ in range(count):
        times = start + np.arange(ROWS) * 1000 // rate
        start = int(times[-1])
        behind = chance.random(ROWS) < 0.05
        times[behind] -= chance.integers(0, 2_000, int(behind.sum()))
        codes = pa.array(chance.integers(0, keys, ROWS).astype(np.int32))
        columns = {
            "key": pa.DictionaryArray.from_arrays(codes, words),
            "amount": pa.array(chance.integers(0, 100, ROWS)),
            "price": pa.array(chance.random(ROWS)),
        }
        batch = Batch(RECORDS, columns=pa.RecordBatch.from_pydict(columns), timestamps=pa.array(times))
        found.append((batch, start - 2_000))
    return found


def cpu(action: Callable[[], Any]) -> float:
    """The seconds."""
    start = time.process_time()
    action()
    return time.process_time() - start


def one_stage(stream: Any, batches: Batches) -> tuple[float, float, int]:
    """Seconds of the local stage (none) and of the operator, and how many results there are."""
    results = 0
    with OperatorHarness.of(stream) as harness:
        operator = harness.operator
        seconds = 0.0
        for batch, watermark in batches:
            seconds += cpu(lambda batch=batch: operator.process(batch, 0))  # type: ignore[misc]
            seconds += cpu(lambda watermark=watermark: operator.process_watermark(watermark))  # type: ignore[misc]
            results += sum(b.num_rows for b in harness.batches)
            harness.batches.clear()
    return 0.0, seconds, results


def two_stages(stream: Any, batches: Batches) -> tuple[float, float, int]:
    """The same with a separate local stage."""
    operation = stream._node.operation
    assert isinstance(operation, AggregateWindow)
    stages = in_two_stages(operation, RECORDS)
    assert stages is not None
    local_operation, merge_operation, between = stages
    local = OperatorHarness(local_operation, [RECORDS], between)
    merge = OperatorHarness(merge_operation, [between], stream._node.output_type)
    first = second = 0.0
    results = 0
    with local, merge:
        for batch, watermark in batches:
            first += cpu(lambda batch=batch: local.operator.process(batch, 0))  # type: ignore[misc]
            for partial in local.batches:
                second += cpu(lambda partial=partial: merge.operator.process(partial, 0))  # type: ignore[misc]
            second += cpu(lambda watermark=watermark: merge.operator.process_watermark(watermark))  # type: ignore[misc]
            results += sum(b.num_rows for b in merge.batches)
            local.batches.clear()
            merge.batches.clear()
    return first, second, results


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=10_000)
    args = parser.parse_args()
    batches = made_batches(args.batches, args.keys, args.rate)
    keyed = (
        Environment()
        .from_collection([], type=RECORDS.schema)
        .assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks(lambda record: 0))
        .key_by("key")
    )
    tumbling = keyed.window(TumblingEventTimeWindows("10 s"))
    sliding = keyed.window(SlidingEventTimeWindows("60 s", "1 s"))
    cumulative = keyed.window(CumulativeEventTimeWindows("60 s", "1 s"))
    sessions = keyed.window(EventTimeSessionWindows("200 ms"))
    cases: list[tuple[str, Any, Any]] = [
        ("tumbling 10 s, count", two_stages, tumbling.count()),
        ("sliding 60 s / 1 s, count", two_stages, sliding.count()),
        ("cumulative 60 s / 1 s, count", two_stages, cumulative.count()),
        ("tumbling 10 s, count sum max avg", two_stages, tumbling.aggregate(**NUMBERS)),
        ("sliding 60 s / 1 s, count sum max avg", two_stages, sliding.aggregate(**NUMBERS)),
        ("tumbling 10 s, count, one stage", one_stage, tumbling.count()),
        ("tumbling 10 s, first last", one_stage, tumbling.aggregate(a=First("price"), b=Last("price"))),
        ("tumbling 10 s, count distinct", one_stage, tumbling.aggregate(n=CountDistinct("amount"))),
        ("tumbling 10 s, top 3", one_stage, tumbling.aggregate(best=TopN(3, "price", ("amount",)))),
        ("sessions of 200 ms, count", one_stage, sessions.count()),
        ("sessions of 200 ms, count sum max avg", one_stage, sessions.aggregate(**NUMBERS)),
    ]
    best: dict[str, tuple[float, float, int]] = {}
    for _ in range(REPEATS):  # one after the other, so that all see the same machine
        for name, measure, stream in cases:
            found = measure(stream, batches)
            if name not in best or sum(found[:2]) < sum(best[name][:2]):
                best[name] = found
    per_record = 1e9 / (args.batches * ROWS)
    print(f"{'ns of CPU per record':40} {'local':>7} {'keeps':>7} {'both':>7}   results")
    for name, (first, second, results) in best.items():
        cells = (first * per_record, second * per_record, (first + second) * per_record)
        print(f"{name:40} " + " ".join(f"{c:7.1f}" for c in cells) + f"   {results}")
    codes = batches[0][0].columns.column("key").indices.to_numpy().astype(np.int64)
    machine = min(cpu(lambda: np.bincount(codes, minlength=args.keys)) for _ in range(20))
    print(f"{'np.bincount of the codes':40} {machine * 1e9 / ROWS:7.1f}")


if __name__ == "__main__":
    main()
