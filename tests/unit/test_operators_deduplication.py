"""Deduplication within a time: against a loop over records, late records, and keys that are forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.state_backend_kit import MemoryStorage
from tests.unit.operators_kit import harness, next_attempt
from tidegate import Environment, OutputTag, ProgramError
from tidegate.operators.failures import OperatorError
from tidegate.operators.keyed.deduplication import DeduplicateOperator, ObjectDeduplicateOperator
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP

Record = tuple[str, int]


def records(env: Environment) -> Any:
    return env.from_collection([], type=Record)


def test_the_first_of_a_key_passes_and_then_none_for_a_time(env: Environment) -> None:
    with harness(records(env).key_by("f0").deduplicate(within=10)) as h:
        h.push([("a", 1), ("a", 2), ("b", 3), ("a", 4), ("a", 5)], timestamps=[0, 9, 9, 10, 5])
        h.push([("a", 6), ("a", 7), ("b", 8)], timestamps=[19, 20, 19])
        assert h.rows == [("a", 1), ("b", 3), ("a", 4), ("a", 7), ("b", 8)]
        assert [t for b in h.batches for t in b.timestamps.to_pylist()] == [0, 9, 10, 20, 19]  # type: ignore[union-attr]


def test_keys_are_forgotten_when_a_duplicate_would_be_late(env: Environment) -> None:
    with harness(records(env).key_by("f0").deduplicate(within=100)) as h:
        h.push([("a", 1), ("b", 2)], timestamps=[0, 50])
        assert h.gauges["remembered_keys"] == 2
        h.advance_watermark(98)
        assert h.gauges["remembered_keys"] == 2
        h.advance_watermark(104)
        assert h.gauges["remembered_keys"] == 1
        h.finish()
        assert h.gauges["remembered_keys"] == 0


def test_late_records_are_counted_and_handed_over(env: Environment) -> None:
    late = OutputTag("late", Record)
    with harness(records(env).key_by("f0").deduplicate(within=10, late_data=late)) as h:
        h.advance_watermark(100)
        h.push([("a", 1), ("b", 2), ("c", 3)], timestamps=[100, 101, 99])
        assert (h.rows, h.side_rows("late"), h.counters["late_records"]) == (
            [("b", 2)],
            [("a", 1), ("c", 3)],
            2,
        )


def test_ids_are_given_anew_when_most_keys_are_forgotten(env: Environment) -> None:
    made = env.from_collection([], type=tuple[int, int]).key_by("f0").deduplicate(within=10)
    storage = MemoryStorage()
    current = harness(made)
    current.operator.open()
    for round_ in range(5):
        keys = range(round_ * 2000, round_ * 2000 + 2000)
        times = [100 * round_] * 2000
        current.push([(k, 0) for k in keys], timestamps=times)
        current.push([(k, 1) for k in keys], timestamps=times)
        assert current.take_rows() == [(k, 0) for k in keys]
        current.advance_watermark(100 * round_ + 50)
        operator = current.operator
        assert isinstance(operator, DeduplicateOperator)
        assert len(operator._index) <= 2000
        current = next_attempt(made, current, storage, round_ + 1)
    assert current.gauges["remembered_keys"] == 0
    current.operator.close()
    current.states.close()


@pytest.mark.parametrize("typed", [True, False])
def test_keys_of_functions(typed: bool) -> None:
    env = Environment()
    made = records(env).key_by(lambda r: r[0], returns=str if typed else None).deduplicate(within=10)
    with harness(made) as h:
        assert isinstance(h.operator, DeduplicateOperator if typed else ObjectDeduplicateOperator)
        h.push([("a", 1), ("a", 2), ("b", 3), ("a", 4)], timestamps=[0, 9, 9, 10])
        h.advance_watermark(18)
        assert h.gauges["remembered_keys"] == 1
        assert h.rows == [("a", 1), ("b", 3), ("a", 4)]


def test_bad_arguments_are_refused_where_they_are_written(env: Environment) -> None:
    keyed = records(env).key_by("f0")
    with pytest.raises(ProgramError, match="longer than 0"):
        keyed.deduplicate(within=0)
    with pytest.raises(ProgramError, match='only "first" is there'):
        keyed.deduplicate(within=1, keep="last")
    with pytest.raises(ProgramError, match="is not a unit of time"):
        keyed.deduplicate(within="1 year")
    with harness(keyed.deduplicate(within=1)) as h, pytest.raises(OperatorError) as caught:
        h.push([("a", 1)])
    assert "records have no event time" in str(caught.value.__cause__)


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"),
            st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), min_size=1, max_size=12),
        ),
        st.tuples(st.just("watermark"), st.integers(1, 20)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=12,
)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=100)
@given(events=EVENTS, within=st.integers(1, 30))
def test_any_stream_keeps_what_a_loop_over_records_keeps(
    backend: str, events: list[tuple[str, Any]], within: int
) -> None:
    env = Environment(state_backend=backend)
    made = records(env).key_by("f0").deduplicate(within=within)
    last: dict[str, int] = {}
    clock, number, late, counted = MIN_TIMESTAMP, 0, 0, 0
    storage = MemoryStorage()
    current = harness(made)
    current.operator.open()
    try:
        for step, (what, argument) in enumerate([*events, ("watermark", MAX_WATERMARK)], 1):
            if what == "watermark":
                clock = min(MAX_WATERMARK, max(clock, 0) + argument)
                current.advance_watermark(clock)
            elif what == "restart":
                counted += current.counters["late_records"]
                current = next_attempt(made, current, storage, step)
            else:
                batch, expected = [], []
                for key, time in argument:
                    number += 1
                    batch.append((key, number))
                    if time <= clock:
                        late += 1
                    elif key not in last or time >= last[key] + within:
                        last[key] = time
                        expected.append((key, number))
                current.push(batch, timestamps=[t for _, t in argument])
                assert current.take_rows() == expected
            assert current.gauges["remembered_keys"] == np.count_nonzero(
                current.operator._kept != MIN_TIMESTAMP
            )
        assert counted + current.counters["late_records"] == late
        assert current.gauges["remembered_keys"] == 0
        current = next_attempt(made, current, storage, 99)
        assert current.gauges["remembered_keys"] == 0, "a checkpoint of the end has no keys"
    finally:
        current.operator.close()
        current.states.close()
