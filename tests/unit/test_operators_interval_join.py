"""The interval join: pairs by key and time, outer joins, late records, and state that goes when its time is over."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.state_backend_kit import MemoryStorage
from tests.unit.operators_kit import harness, next_attempt, stamped
from tidegate import Environment, JoinContext, OutputTag, ProcessJoinFunction, ProgramError, ValueState
from tidegate.operators.failures import OperatorError
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP
from tidegate.records.types import record_type_of
from tidegate.state.operator_states import Restored
from tidegate.state.serializers import KeySerializer
from tidegate.testing.harness import OperatorHarness


class Row(NamedTuple):
    name: str
    date: dt.date | None
    values: list[float]


Record = tuple[str, int]
"""A key and a number."""
Pair = tuple[int, int]
LATE: OutputTag[Any] = OutputTag("late", Record)


@pytest.fixture(params=["heap", "rocksdb"])
def env(request: pytest.FixtureRequest) -> Environment:
    return Environment(state_backend=request.param)


def records(env: Environment) -> Any:
    return env.from_collection([], type=Record)


def numbers(left: Record | None, right: Record | None) -> Pair:
    return -1 if left is None else left[1], -1 if right is None else right[1]


def joined(env: Environment, lower: Any = "-5 ms", upper: Any = "10 ms", how: Any = "inner") -> Any:
    streams = records(env).key_by("f0").interval_join(records(env).key_by("f0"))
    return streams.between(lower, upper).how(how)


def stored(made: Any, h: OperatorHarness, storage: MemoryStorage | None = None, checkpoint: int = 1) -> int:
    """How many records a checkpoint of now has."""
    storage = storage or MemoryStorage()
    h.operator.snapshot(checkpoint)
    snapshot = h.states.snapshot(checkpoint)(storage.writer(checkpoint, 0, "operator", 0))
    assert snapshot.keyed is not None
    with harness(made, restored=Restored((snapshot.keyed,), snapshot.states, storage)) as restored:
        return restored.gauges["buffered_records"]


class TestInner:
    def test_both_bounds_belong_to_the_interval(self, env: Environment) -> None:
        with harness(joined(env).apply(numbers)) as h:
            h.push([("a", 1)], timestamps=[100])
            h.push(
                [("a", n) for n in (94, 95, 100, 110, 111)], timestamps=[94, 95, 100, 110, 111], input_index=1
            )
            assert stamped(h) == [((1, 95), 100), ((1, 100), 100), ((1, 110), 110)]

    def test_bounds_can_be_left_out(self, env: Environment) -> None:
        made = joined(env).lower_bound_exclusive().upper_bound_exclusive().apply(numbers)
        with harness(made) as h:
            h.push([("a", n) for n in (95, 96, 109, 110)], timestamps=[95, 96, 109, 110], input_index=1)
            h.push([("a", 1)], timestamps=[100])
            assert h.rows == [(1, 96), (1, 109)]

    def test_only_equal_keys_meet_and_earlier_records_first(self, env: Environment) -> None:
        with harness(joined(env).apply(numbers)) as h:
            h.push([("a", 3), ("b", 9), ("a", 1), ("a", 2)], timestamps=[103, 100, 101, 102])
            h.push([("a", 0), ("c", 0)], timestamps=[104, 104], input_index=1)
            assert h.rows == [(1, 0), (2, 0), (3, 0)]

    def test_records_go_when_no_partner_can_come(self, env: Environment) -> None:
        made = joined(env).apply(numbers)
        with harness(made) as h:
            h.push([("a", 1), ("b", 2)], timestamps=[100, 105])
            h.push([("a", 3)], timestamps=[100], input_index=1)
            assert h.gauges["buffered_records"] == 3
            h.advance_watermark(106)
            assert h.gauges["buffered_records"] == 2
            h.advance_watermark(111)
            assert (h.gauges["buffered_records"], stored(made, h)) == (1, 1)
            h.advance_watermark(116)
            assert h.gauges["buffered_records"] == 0

    def test_a_stalled_input_lets_the_other_grow_and_shows_it(self, env: Environment) -> None:
        with harness(joined(env).apply(numbers)) as h:
            for start in range(0, 1000, 100):  # the clock of both stands still while one stalls
                h.push([("a", n) for n in range(100)], timestamps=[start + n for n in range(100)])
            assert h.gauges["buffered_records"] == 1000
            h.advance_watermark(2000)
            assert h.gauges["buffered_records"] == 0


class TestLate:
    def test_late_records_are_counted_and_handed_over(self, env: Environment) -> None:
        right = OutputTag[Any]("late right")
        made = joined(env).side_output_left_late_data(LATE).side_output_right_late_data(right).apply(numbers)
        with harness(made) as h:
            h.push([("a", 1)], timestamps=[100])
            h.advance_watermark(101)
            h.push([("a", 2), ("a", 3), ("a", 4)], timestamps=[100, 101, 99])
            h.push([("a", 5), ("a", 6)], timestamps=[100, 101], input_index=1)
            assert h.rows == [(1, 6), (3, 6)]
            assert (h.side_rows("late"), h.side_rows("late right")) == ([("a", 2), ("a", 4)], [("a", 5)])
            assert h.counters["late_records"] == 3

    def test_without_a_side_output_they_are_counted_all_the_same(self, env: Environment) -> None:
        with harness(joined(env, how="full").apply(numbers)) as h:
            h.advance_watermark(101)
            h.push([("a", 2)], timestamps=[100])
            h.finish()
            assert (h.rows, h.counters["late_records"]) == ([], 1)


class TestOuter:
    @pytest.mark.parametrize(
        ("how", "alone"),
        [("left", [(2, -1)]), ("right", [(-1, 9)]), ("full", [(2, -1), (-1, 9)]), ("inner", [])],
    )
    def test_what_meets_nobody_is_emitted_once_with_none(
        self, env: Environment, how: str, alone: Any
    ) -> None:
        with harness(joined(env, how=how).apply(numbers)) as h:
            h.push([("a", 1), ("b", 2)], timestamps=[100, 100])
            h.push([("a", 8), ("c", 9)], timestamps=[101, 103], input_index=1)
            assert h.take_rows() == [(1, 8)]
            h.finish()
            assert h.rows == alone

    def test_they_come_when_the_watermark_proves_it_and_before_it(self, env: Environment) -> None:
        with harness(joined(env, how="left").apply(numbers)) as h:
            h.push([("a", 1)], timestamps=[100])
            h.advance_watermark(110)  # a record of 110 is not late yet
            assert h.rows == []
            h.advance_watermark(111)
            assert stamped(h) == [((1, -1), 100)]

    def test_watermarks_are_held_back_so_that_they_are_not_late(self, env: Environment) -> None:
        for how, delay in (("inner", 0), ("left", 11), ("right", 6), ("full", 11)):
            with harness(joined(env, how=how).apply(numbers)) as h:
                h.advance_watermark(MIN_TIMESTAMP + 1)
                h.advance_watermark(200)
                h.finish()
                assert h.watermarks == [
                    max(MIN_TIMESTAMP, MIN_TIMESTAMP + 1 - delay),
                    200 - delay,
                    MAX_WATERMARK,
                ]


class Totals(ProcessJoinFunction):
    """Tells everything it knows, and counts the pairs of the key."""

    pairs = ValueState(int, default=0)

    def process(self, left: Record | None, right: Record | None, context: JoinContext) -> Iterator[Any]:
        self.pairs.update(self.pairs.value() + 1)
        context.output(LATE, (context.current_key, context.timestamp))
        yield context.current_key, context.left_timestamp, context.right_timestamp, self.pairs.value()


class TestFunctions:
    def test_a_process_function_knows_the_times_and_has_state_and_side_outputs(
        self, env: Environment
    ) -> None:
        with harness(joined(env, how="full").process(Totals(), side_outputs=(LATE,))) as h:
            h.push([("a", 1), ("b", 2)], timestamps=[100, 100])
            h.push([("a", 8), ("a", 9)], timestamps=[95, 110], input_index=1)
            h.finish()
            assert h.rows == [("a", 100, 95, 1), ("a", 100, 110, 2), ("b", 100, None, 1)]
            assert h.side_rows("late") == [("a", 100), ("a", 110), ("b", 100)]
            assert stamped(h)[1][1] == 110

    def test_a_function_that_changes_its_records_changes_nobody_elses(self, env: Environment) -> None:
        @dataclass
        class Box:
            key: str
            n: int

        def add(left: Box, right: Box) -> Box:
            left.n += 100
            right.n += 100
            return right

        boxes = env.from_collection([], type=Box)
        made = boxes.key_by("key").interval_join(boxes.key_by("key")).between(-5, 5).apply(add)
        with harness(made) as h:
            h.push([Box("a", 1)], timestamps=[0])
            h.push([Box("a", 2), Box("a", 3)], timestamps=[0, 1], input_index=1)
            h.push([Box("a", 4)], timestamps=[0])
            assert [box.n for box in h.rows] == [102, 103, 102, 103]

    @pytest.mark.parametrize("hint", [int | None, Row, list[int], dict[str, int]])
    def test_records_of_any_type_wait_in_checkpoints(self, env: Environment, hint: Any) -> None:
        values = {Row: Row("x", None, [1.5]), list[int]: [1, 2], dict[str, int]: {"a": 1}}
        value = values.get(hint)
        stream = env.from_collection([], type=hint).key_by(lambda record: 1, returns=int)
        made = stream.interval_join(stream).between(0, 10).apply(lambda a, b: [a, b], returns=Any)
        with harness(made) as h:
            h.push([value], timestamps=[0])
            second = next_attempt(made, h, MemoryStorage(), 1)
            second.push([value], timestamps=[1], input_index=1)
            assert second.rows == [[value, value]]
            second.operator.close()
            second.states.close()

    @pytest.mark.parametrize("watermark", [0, 9])
    def test_two_subtasks_become_one(self, env: Environment, watermark: int) -> None:
        made = joined(env, 0, 10, how="full").apply(numbers)
        column = pa.array([f"k{n}" for n in range(40)])
        groups = KeySerializer(record_type_of(str)).key_groups(column, 128).tolist()
        owners = [group * 2 // 128 for group in groups]
        storage, handles = MemoryStorage(), []
        for subtask in (0, 1):
            mine = [n for n in range(40) if owners[n] == subtask]
            with harness(made, subtask_index=subtask, parallelism=2) as h:
                h.push([(f"k{n}", n) for n in mine], timestamps=[n % 5 for n in mine])
                h.operator.snapshot(1)
                writer = storage.writer(1, 0, "operator", subtask)
                snapshot = h.states.snapshot(1)(writer)
                assert snapshot.keyed is not None
                handles.append(snapshot.keyed)
        with harness(made, restored=Restored(tuple(handles), (), storage)) as h:
            assert h.gauges["buffered_records"] == 40
            h.push([(f"k{n}", 100 + n) for n in range(0, 40, 2)], timestamps=[9] * 20, input_index=1)
            h.advance_watermark(watermark)
            last = next_attempt(made, h, storage, 2)
            last.finish()
            rows = h.rows + last.rows
            assert sorted(rows) == sorted((n, -1 if n % 2 else 100 + n) for n in range(40))
            last.operator.close()
            last.states.close()

    def test_what_fails_is_named_with_its_record(self, env: Environment) -> None:
        with harness(
            joined(env).apply(lambda left, right: left[1] // right[1], returns=int, name="divide")
        ) as h:
            h.push([("a", 1)], timestamps=[100])
            with pytest.raises(OperatorError) as caught:
                h.push([("b", 1), ("a", 0)], timestamps=[100, 100], input_index=1)
        assert (caught.value.operator, caught.value.record) == ("divide", "('a', 0)")

    def test_records_without_times_are_refused(self, env: Environment) -> None:
        with harness(joined(env).apply(numbers, name="join")) as h, pytest.raises(OperatorError) as caught:
            h.push([("a", 1)])
        assert "records have no event time" in str(caught.value.__cause__)


class TestProgram:
    def test_mistakes_are_refused_where_they_are_written(self, env: Environment) -> None:
        keyed = records(env).key_by("f0")
        with pytest.raises(ProgramError, match="needs two keyed streams"):
            keyed.interval_join(records(env))
        with pytest.raises(ProgramError, match="nothing could meet"):
            joined(env, "5 s", "-5 s")
        with pytest.raises(ProgramError, match="keys of one type"):
            keyed.interval_join(records(env).key_by("f1"))
        with pytest.raises(ProgramError, match="how is one of 'inner', 'left', 'right', 'full', got 'outer'"):
            joined(env, how="outer")
        with pytest.raises(ProgramError, match="lower bound"):
            joined(env, "soon", "later")
        with pytest.raises(
            ProgramError, match=r"between\(3, 4\) with a bound excluded leaves nothing to meet"
        ):
            joined(env, 3, 4).lower_bound_exclusive().upper_bound_exclusive().apply(numbers)
        with pytest.raises(ProgramError, match="late records are"):
            joined(env).side_output_left_late_data(OutputTag("late", int))

    def test_the_plan_shows_the_bounds(self, env: Environment) -> None:
        operation = joined(env, how="left").apply(numbers)._node.operation
        assert operation.detail() == "left numbers per f0, right within [-5 ms, +10 ms] of left"


# ---- every small case ----

SMALL = range(-1, 3)
"""The timestamps of the records."""


class Script(NamedTuple):
    """One record of each side: its timestamp, and how many watermarks came before it; who came first if as many."""

    left: int
    left_slot: int
    right: int
    right_slot: int
    left_first: bool


SCRIPTS = [
    Script(*numbers)
    for numbers in product(SMALL, range(3), SMALL, range(3), (True, False))
    if numbers[1] == numbers[3] or numbers[4]  # the order matters only between the same two watermarks
]


def must_meet(script: Script, clocks: list[int], bounds: tuple[int, int], how: str) -> set[tuple[Any, Any]]:
    """The results of a script by the rule alone, without a buffer: whoever is late is nowhere, all others meet."""
    left = script.left if script.left >= clocks[script.left_slot] else None
    right = script.right if script.right >= clocks[script.right_slot] else None
    if left is not None and right is not None and bounds[0] <= right - left <= bounds[1]:
        return {(left, right)}
    alone = set()
    if left is not None and how in ("left", "full"):
        alone.add((left, None))
    if right is not None and how in ("right", "full"):
        alone.add((None, right))
    return alone


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize("excluded", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_records_that_are_not_late_meet_whatever_the_order_of_records_and_watermarks(
    how: str, excluded: tuple[int, int]
) -> None:
    env = Environment()
    for lower, upper in [(a, b) for a, b in product(range(-2, 3), repeat=2) if a + sum(excluded) <= b]:
        join = joined(env, lower, upper, how)
        join = join.lower_bound_exclusive() if excluded[0] else join
        join = join.upper_bound_exclusive() if excluded[1] else join
        made = join.apply(lambda a, b: ((a or b)[0], a and a[1], b and b[1]), returns=Any)
        for watermarks in combinations(SMALL, 2):
            clocks = [MIN_TIMESTAMP, *watermarks]
            with harness(made) as h:
                for slot in range(3):
                    if slot:
                        h.advance_watermark(clocks[slot])
                    for side, first in ((0, True), (1, None), (0, False)):
                        mine = [
                            (str(n), s.right if side else s.left)
                            for n, s in enumerate(SCRIPTS)
                            if (s.right_slot if side else s.left_slot) == slot
                            and (side or (s.left_first is first))
                        ]
                        h.push(mine, timestamps=[t for _, t in mine], input_index=side)
                h.finish()
                found: dict[str, list[tuple[Any, Any]]] = {}
                for (key, *pair), _ in stamped(h):
                    found.setdefault(key, []).append(tuple(pair))
            bounds = lower + excluded[0], upper - excluded[1]
            for n, script in enumerate(SCRIPTS):
                expected = must_meet(script, clocks, bounds, how)
                assert sorted(found.get(str(n), []), key=str) == sorted(expected, key=str), (
                    f"{script} with watermarks {watermarks}, bounds {bounds}"
                )


# ---- against lists ----

Event = tuple[str, Any]
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), min_size=1, max_size=5),
        ),
        st.tuples(st.just("watermark"), st.integers(1, 15)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=14,
)


class Naive:
    """The same with one list of all records that ever came."""

    def __init__(self, lower: int, upper: int, how: str) -> None:
        self.bounds = lower, upper
        self.reach = max(0, upper), max(0, -lower)
        self.outer = how in ("left", "full"), how in ("right", "full")
        self.clock = MIN_TIMESTAMP
        self.all: list[list[Any]] = []  # side, key, time, number, has met, is gone
        self.late = 0

    def push(self, side: int, batch: list[tuple[str, int, int]]) -> list[tuple[Pair, int]]:
        out = []
        for key, time, number in batch:
            if time < self.clock:
                self.late += 1
                continue
            me = [side, key, time, number, False, False]
            for other in sorted((o for o in self.all if not o[5]), key=lambda o: (o[2], o[3])):
                distance = other[2] - time if side == 0 else time - other[2]
                if other[0] != side and other[1] == key and self.bounds[0] <= distance <= self.bounds[1]:
                    me[4] = other[4] = True
                    pair = (number, other[3]) if side == 0 else (other[3], number)
                    out.append((pair, max(time, other[2])))
            self.all.append(me)
        return out

    def advance(self, clock: int) -> list[tuple[Pair, int]]:
        self.clock = clock
        out = []
        for one in sorted(self.all, key=lambda o: (o[2], o[0], o[3])):
            side, _, time, number, has_met, is_gone = one
            if not is_gone and time + self.reach[side] < clock:
                one[5] = True
                if self.outer[side] and not has_met:
                    out.append(((number, -1) if side == 0 else (-1, number), time))
        return out


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=100)
@given(
    events=EVENTS,
    bounds=st.tuples(st.integers(-12, 12), st.integers(-12, 12)).map(sorted),
    how=st.sampled_from(["inner", "left", "right", "full"]),
)
def test_any_join_gives_what_a_list_of_all_records_gives(
    backend: str, events: list[Event], bounds: list[int], how: str
) -> None:
    env = Environment(state_backend=backend)
    made = joined(env, bounds[0], bounds[1], how).apply(numbers)
    naive = Naive(bounds[0], bounds[1], how)
    storage = MemoryStorage()
    current = harness(made)
    current.operator.open()
    number = late = 0
    try:
        for step, (what, argument) in enumerate([*events, ("watermark", MAX_WATERMARK)], 1):
            expected: list[tuple[Pair, int]] = []
            if what in ("left", "right"):
                side = 0 if what == "left" else 1
                batch = []
                for key, time in argument:
                    number += 1
                    batch.append((key, time, number))
                current.push(
                    [(k, n) for k, _, n in batch], timestamps=[t for _, t, _ in batch], input_index=side
                )
                expected = naive.push(side, batch)
            elif what == "watermark":
                clock = min(MAX_WATERMARK, max(naive.clock, 0) + argument)
                before = max(current.watermarks, default=MIN_TIMESTAMP)
                current.advance_watermark(clock)
                assert all(time > before for _, time in stamped(current)), "late for those behind"
                expected = naive.advance(clock)
            else:
                late += current.counters["late_records"]
                watermarks = current.watermarks
                current = next_attempt(made, current, storage, step)  # which hears of the clock again
                current.watermarks[:] = watermarks
                expected = [] if naive.clock == MIN_TIMESTAMP else naive.advance(naive.clock)
            got = stamped(current)
            current.batches.clear()
            assert Counter(got) == Counter(expected)
            assert current.gauges["buffered_records"] >= sum(not one[5] for one in naive.all)
        assert late + current.counters["late_records"] == naive.late
        assert current.gauges["buffered_records"] == 0
        assert stored(made, current, storage, 99) == 0
    finally:
        current.operator.close()
        current.states.close()
