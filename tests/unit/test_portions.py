"""Large batches enter chains of per-record Python in portions that suit the speed of the user's function."""

from __future__ import annotations

from tidegate.core.clock import ManualClock
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of
from tidegate.taskmanager.portions import MOST_ROWS, Portions


def batch_of(n: int) -> Batch:
    return Batch.of_rows(record_type_of(int), list(range(n)))


def run(portions: Portions, batch: Batch, clock: ManualClock, ns_per_row: int) -> list[list[int]]:
    seen: list[list[int]] = []

    def receive(part: Batch) -> None:
        seen.append(part.rows)
        clock.advance_ns(ns_per_row * part.num_rows)

    portions.offer(batch, receive)
    while not portions.is_empty:
        portions.step()
    return seen


def test_a_vectorised_chain_takes_a_batch_whole() -> None:
    clock = ManualClock()
    assert len(run(Portions(clock), batch_of(100_000), clock, 1)) == 1


def test_all_rows_come_once_and_in_order_in_portions_that_fit_the_caches() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    portions.enabled = True
    parts = run(portions, batch_of(10_000), clock, 100)
    assert [row for part in parts for row in part] == list(range(10_000))
    assert max(map(len, parts)) <= MOST_ROWS


def test_a_slow_function_gets_small_portions_and_a_fast_one_large_ones_again() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    portions.enabled = True
    slow = run(portions, batch_of(10_000), clock, 1_000_000)
    assert all(len(part) <= 10 for part in slow[1:])
    fast = run(portions, batch_of(100_000), clock, 10)
    assert len(fast[-2]) == MOST_ROWS


def test_a_second_batch_waits_for_the_rest_of_the_first() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    portions.enabled = True
    seen: list[int] = []
    portions.offer(batch_of(2 * MOST_ROWS), lambda part: seen.extend(part.rows))
    portions.offer(batch_of(1), lambda part: seen.extend(part.rows))
    assert seen == [*range(2 * MOST_ROWS), 0]


def test_also_batches_that_come_small_are_handed_on_in_parts_of_10_ms() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    portions.enabled = True
    for _ in range(3):
        parts = run(portions, batch_of(100), clock, 1_000_000)
    assert max(map(len, parts)) <= 12
    assert len(parts) <= 14


def test_who_wants_to_know_is_told_how_long_a_batch_took_without_waiting_for_credit() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    told: list[int] = []
    portions.took = told.append
    run(portions, batch_of(100_000), clock, 3)  # whole
    portions.chain_is_ready()
    portions.enabled = True
    run(portions, batch_of(7), clock, 3)
    assert told == [300_000]
    portions.chain_is_ready()
    portions.chain_is_ready()
    portions.offer(batch_of(MOST_ROWS + 1), lambda part: clock.advance_ns(part.num_rows))
    clock.advance_ns(1_000)  # not ready
    clock.advance_ns(1_000_000)  # no credit
    portions.waited_for_credit(1_000_000)
    portions.step()
    clock.advance_ns(10)  # other tasks
    portions.chain_is_ready()
    assert told == [300_000, 21, MOST_ROWS + 1 + 1_000]


def test_that_an_operator_is_not_ready_behind_the_last_part_counts_as_well() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    portions.enabled = True
    told: list[int] = []
    portions.took = told.append
    run(portions, batch_of(7), clock, 3)
    clock.advance_ns(10)  # other tasks
    portions.chain_is_busy()
    clock.advance_ns(1_000)
    portions.chain_is_busy()
    clock.advance_ns(1_000_000)  # no credit
    portions.waited_for_credit(1_000_000)
    clock.advance_ns(500)
    portions.chain_is_ready()
    assert told == [21 + 1_500]


def test_a_batch_without_records_goes_through() -> None:
    clock = ManualClock()
    portions = Portions(clock)
    portions.enabled = True
    assert run(portions, batch_of(0), clock, 3) == [[]]
    assert len(run(portions, batch_of(MOST_ROWS), clock, 3)) == 1
