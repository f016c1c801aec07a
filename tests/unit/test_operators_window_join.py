"""Window joins and co-groups against plain lists: the pairs of each key and window, outer joins, late records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.state_backend_kit import MemoryStorage
from tests.unit.operators_kit import harness, next_attempt, stamped
from tidegate import (
    CoGroupFunction,
    Environment,
    EventTimeSessionWindows,
    JoinFunction,
    OutputTag,
    ProgramError,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tidegate.operators.join.window_join import WindowJoinOperator
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP

Record = tuple[str, int]
Pair = tuple[int, int]
TEN = TumblingEventTimeWindows(10)


@pytest.fixture(params=["heap", "rocksdb"])
def env(request: pytest.FixtureRequest) -> Environment:
    return Environment(state_backend=request.param)


def records(env: Environment) -> Any:
    return env.from_collection([], type=Record)


def numbers(left: Record | None, right: Record | None) -> Pair:
    return -1 if left is None else left[1], -1 if right is None else right[1]


def joined(env: Environment, assigner: Any = TEN, how: Any = "inner") -> Any:
    streams = records(env).join(records(env)).where("f0").equal_to("f0")
    return streams.window(assigner).how(how)


class TestJoin:
    def test_pairs_of_one_key_and_window_come_at_its_end(self, env: Environment) -> None:
        with harness(joined(env).apply(numbers)) as h:
            h.push([("a", 1), ("b", 2), ("a", 3)], timestamps=[1, 2, 11])
            h.push([("a", 7), ("a", 8), ("c", 9)], timestamps=[9, 12, 3], input_index=1)
            assert (h.gauges["buffered_records"], h.gauges["windows"]) == (6, 4)
            h.advance_watermark(8)
            assert h.rows == []
            h.advance_watermark(9)
            assert stamped(h) == [((1, 7), 9)]
            h.advance_watermark(19)
            assert stamped(h)[1:] == [((3, 8), 19)]
            assert (h.gauges["buffered_records"], h.gauges["windows"]) == (0, 0)

    @pytest.mark.parametrize(
        ("how", "alone"),
        [("left", [(2, -1)]), ("right", [(-1, 9)]), ("full", [(2, -1), (-1, 9)]), ("inner", [])],
    )
    def test_an_outer_join_gives_none_for_the_missing_side(
        self, env: Environment, how: str, alone: Any
    ) -> None:
        with harness(joined(env, how=how).apply(numbers)) as h:
            h.push([("a", 1), ("b", 2)], timestamps=[1, 2])
            h.push([("a", 8), ("c", 9)], timestamps=[3, 4], input_index=1)
            h.finish()
            assert h.rows == [(1, 8), *alone]

    def test_the_two_streams_may_have_other_keys_and_types(self, env: Environment) -> None:
        users = env.from_collection([], type=tuple[int, str])

        class Names(JoinFunction):
            def join(self, left: Record, right: tuple[int, str]) -> tuple[str, str]:
                return left[0], right[1]

        made = records(env).join(users).where("f1").equal_to("f0").window(TEN).apply(Names())
        with harness(made) as h:
            h.push([("x", 7)], timestamps=[1])
            h.push([(7, "ann"), (8, "bob")], timestamps=[1, 1], input_index=1)
            h.finish()
            assert h.rows == [("x", "ann")]

    def test_late_records_are_counted_and_handed_over_by_side(self, env: Environment) -> None:
        left, right = OutputTag("left", Record), OutputTag("right", Record)
        made = joined(env).side_output_left_late_data(left).side_output_right_late_data(right)
        with harness(made.allowed_lateness(5).apply(numbers)) as h:
            h.push([("a", 1)], timestamps=[1])
            h.advance_watermark(13)
            h.push([("a", 5)], timestamps=[9], input_index=1)
            assert h.take_rows() == [(1, 5)], "within the allowed lateness the window fires again"
            h.advance_watermark(14)
            h.push([("a", 2)], timestamps=[9])
            h.push([("a", 6), ("a", 7)], timestamps=[9, 20], input_index=1)
            assert (h.rows, h.side_rows("left"), h.side_rows("right")) == ([], [("a", 2)], [("a", 6)])
            assert h.counters["late_records"] == 2

    def test_windows_of_the_wall_clock(self, env: Environment) -> None:
        with harness(joined(env, TumblingProcessingTimeWindows(10)).apply(numbers)) as h:
            h.push([("a", 1)])
            h.push([("a", 2)], input_index=1)
            h.advance_clock(10)
            h.push([("a", 3)])
            h.finish()
            assert h.rows == [(1, 2)]

    def test_mistakes_are_refused_where_they_are_written(self, env: Environment) -> None:
        with pytest.raises(ProgramError, match="keys of one type"):
            records(env).join(records(env)).where("f0").equal_to("f1")
        with pytest.raises(ProgramError, match="join needs a stream"):
            records(env).join([1])
        with pytest.raises(ProgramError, match="how belongs to a join"):
            records(env).co_group(records(env)).where("f0").equal_to("f0").window(TEN).how("left")
        with pytest.raises(ProgramError, match="window needs a WindowAssigner"):
            joined(env, 10)


class TestCoGroup:
    def test_the_function_sees_all_records_of_both_sides(self, env: Environment) -> None:
        class Both(CoGroupFunction):
            def co_group(self, left: Sequence[Record], right: Sequence[Record]) -> Iterator[Pair]:
                yield sum(r[1] for r in left), sum(r[1] for r in right)

        made = records(env).co_group(records(env)).where("f0").equal_to("f0").window(TEN).apply(Both())
        with harness(made) as h:
            h.push([("a", 1), ("a", 2), ("b", 3)], timestamps=[1, 2, 3])
            h.push([("a", 10), ("c", 20)], timestamps=[4, 5], input_index=1)
            h.finish()
            assert h.rows == [(3, 10), (3, 0), (0, 20)]

    def test_sessions_of_both_streams_are_one(self, env: Environment) -> None:
        made = joined(env, EventTimeSessionWindows.with_gap(5)).co_group(
            lambda lefts, rights: [(len(lefts), len(rights))], returns=Pair
        )
        with harness(made) as h:
            h.push([("a", 1), ("a", 3)], timestamps=[0, 8])
            h.push([("a", 2), ("a", 4)], timestamps=[4, 30], input_index=1)
            h.finish()
            assert stamped(h) == [((2, 1), 12), ((0, 1), 34)]
            assert (h.gauges["buffered_records"], h.gauges["windows"]) == (0, 0)


# ---- against lists ----

EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), min_size=1, max_size=5),
        ),
        st.tuples(st.just("watermark"), st.integers(1, 25)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=12,
)
SIZES = st.sampled_from([(10, 10), (20, 10), (30, 7), (5, 5)])


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=80)
@given(events=EVENTS, sizes=SIZES, how=st.sampled_from(["inner", "left", "right", "full"]))
def test_any_window_join_gives_what_lists_give(
    backend: str, events: list[tuple[str, Any]], sizes: tuple[int, int], how: str
) -> None:
    size, slide = sizes
    env = Environment(state_backend=backend)
    made = joined(env, SlidingEventTimeWindows(size, slide), how).apply(numbers)
    held: dict[tuple[int, str], tuple[list[int], list[int]]] = {}
    clock, number, late, counted = MIN_TIMESTAMP, 0, 0, 0
    storage = MemoryStorage()
    current = harness(made)
    current.operator.open()
    try:
        for step, (what, argument) in enumerate([*events, ("watermark", MAX_WATERMARK)], 1):
            expected: list[tuple[Pair, int]] = []
            if what == "watermark":
                clock = min(MAX_WATERMARK, max(clock, 0) + argument)
                current.advance_watermark(clock)
                for (start, key), (lefts, rights) in list(held.items()):
                    if start + size - 1 <= clock:
                        del held[(start, key)]
                        pairs = [(left, right) for left in lefts for right in rights]
                        if not rights and how in ("left", "full"):
                            pairs += [(left, -1) for left in lefts]
                        if not lefts and how in ("right", "full"):
                            pairs += [(-1, right) for right in rights]
                        expected += [(pair, start + size - 1) for pair in pairs]
            elif what == "restart":
                counted += current.counters["late_records"]
                current = next_attempt(made, current, storage, step)
            else:
                side = 0 if what == "left" else 1
                batch = []
                for key, time in argument:
                    number += 1
                    batch.append((key, number))
                    starts = [s for s in range(-70, 70) if s % slide == 0 and s <= time < s + size]
                    open_ = [s for s in starts if s + size - 1 > clock]
                    late += bool(starts) and not open_
                    for start in open_:
                        held.setdefault((start, key), ([], []))[side].append(number)
                current.push(batch, timestamps=[t for _, t in argument], input_index=side)
            assert Counter(stamped(current)) == Counter(expected)
            current.batches.clear()
            assert current.gauges["windows"] == len(held)
            assert current.gauges["buffered_records"] == sum(len(x) for sides in held.values() for x in sides)
        assert counted + current.counters["late_records"] == late
        operator = current.operator
        assert isinstance(operator, WindowJoinOperator)
        operator.snapshot(99)
        names = ("$windows.left", "$windows.right", "$elements.left", "$elements.right")
        assert not [key for name in names for key in operator.backend.keys(name)]
    finally:
        current.operator.close()
        current.states.close()
