"""Large batches enter chains of per-record Python in portions that suit the speed of the user's function."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from tests.unit.test_fusion import CLICKS, Chain, to_exchange
from tidegate.core.clock import ManualClock
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of
from tidegate.taskmanager.portions import MOST_ROWS, Portions


def batch_of(n: int) -> Batch:
    return Batch(record_type_of(int), rows=list(range(n)))


def run(portions: Portions, batch: Batch, clock: ManualClock, ns_per_row: int) -> list[list[int]]:
    seen: list[list[int]] = []

    def receive(part: Batch) -> None:
        seen.append(part.rows)
        clock.advance_ns(ns_per_row * part.num_rows)

    portions.offer(batch, receive)
    while not portions.is_empty:
        portions.step()
    return seen


def test_a_vectorised_chain_takes_a_batch_whole_and_a_function_in_portions() -> None:
    columns = pa.RecordBatch.from_pylist([{"app": "a", "n": i, "x": 0.5} for i in range(5_000)], CLICKS)
    vectorised = Chain(lambda s: to_exchange(s.filter(pl.col("n") >= 0)))
    vectorised.push(columns)
    assert (vectorised.chain.has_more, vectorised.chain.rest) == (False, None)
    assert [b.num_rows for b in vectorised.out] == [5_000]
    per_record = Chain(lambda s: to_exchange(s.filter(lambda row: True)))
    per_record.push(columns)
    assert per_record.chain.has_more
    assert per_record.chain.rest is not None
    assert per_record.chain.rest.num_rows == 5_000 - MOST_ROWS
    while per_record.chain.has_more:
        per_record.chain.process_more()
    assert sum(b.num_rows for b in per_record.out) == 5_000


def test_all_rows_come_once_and_in_order_in_portions_that_fit_the_caches() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    parts = run(portions, batch_of(10_000), clock, 100)
    assert [row for part in parts for row in part] == list(range(10_000))
    assert max(map(len, parts)) <= MOST_ROWS


def test_a_slow_function_gets_small_portions_and_a_fast_one_large_ones_again() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    slow = run(portions, batch_of(10_000), clock, 1_000_000)
    assert all(len(part) <= 10 for part in slow[1:])
    fast = run(portions, batch_of(100_000), clock, 10)
    assert len(fast[-2]) == MOST_ROWS


def test_a_second_batch_waits_for_the_rest_of_the_first() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    seen: list[int] = []
    portions.offer(batch_of(2 * MOST_ROWS), lambda part: seen.extend(part.rows))
    portions.offer(batch_of(1), lambda part: seen.extend(part.rows))
    assert seen == [*range(2 * MOST_ROWS), 0]


def test_also_batches_that_come_small_are_handed_on_in_parts_of_10_ms() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    for _ in range(3):
        parts = run(portions, batch_of(100), clock, 1_000_000)
    assert max(map(len, parts)) <= 12
    assert len(parts) <= 14


def test_a_batch_without_records_goes_through() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    assert run(portions, batch_of(0), clock, 3) == [[]]
    assert len(run(portions, batch_of(MOST_ROWS), clock, 3)) == 1
