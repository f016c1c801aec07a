"""Functions with state, on both backends: bound before `open`, of the record's key, and gone outside one.

Long because every kind of function is held to the same promises, with the functions of the one kit at the top.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.state_backend_kit import MemoryStorage
from tests.unit.operators_kit import Pair, keyed, pairs
from tidegate import Environment
from tidegate.api.functions import (
    BroadcastContext,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    MapFunction,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from tidegate.core.clock import ManualClock
from tidegate.core.errors import ProgramError, TidegateError
from tidegate.operators.failures import OperatorError
from tidegate.state import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    PickleSerializer,
    ReducingState,
    StateAccessError,
    StateTtl,
    UnionListState,
    ValueState,
)
from tidegate.state.operator_states import Restored
from tidegate.testing.harness import OperatorHarness

MS = 1_000_000
PAIRS = [("a", 1), ("b", 10), ("a", 2), ("c", 100), ("b", 20), ("a", 3)]


def harness(made: Any, **settings: Any) -> OperatorHarness:
    return OperatorHarness.of(made, options=made._env.options, **settings)


def results(made: Any, *batches: list[Any]) -> list[Any]:
    with harness(made) as h:
        for batch in batches:
            h.push(batch)
        return h.rows


def next_attempt(
    made: Any, before: OperatorHarness, storage: MemoryStorage | None = None, checkpoint_id: int = 1
) -> OperatorHarness:
    """A harness that goes on from the state of another one."""
    storage = storage or MemoryStorage()
    snapshot = before.states.snapshot(checkpoint_id)(storage.writer(checkpoint_id, 0, "operator", 0))
    handles = () if snapshot.keyed is None else (snapshot.keyed,)
    return harness(made, restored=Restored(handles, snapshot.states, storage))


class Counting:
    """What the functions below have in common: a count of the key's records."""

    n = ValueState(int, default=0)

    def count(self) -> int:
        self.n.update(self.n.value() + 1)
        return self.n.value()


class TestEveryKindOfFunction:
    """The same count per key, in every function class. (A state of a mixin is a state of the class.)"""

    COUNTS = [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 2), ("a", 3)]

    def test_map(self, env: Environment) -> None:
        class Number(Counting, MapFunction):
            def map(self, value: Pair) -> Pair:
                return value[0], self.count()

        assert results(keyed(env).map(Number()), PAIRS[:2], PAIRS[2:]) == self.COUNTS

    def test_flat_map(self, env: Environment) -> None:
        class Number(Counting, FlatMapFunction):
            def flat_map(self, value: Pair) -> Iterator[Pair]:
                n = self.count()
                if n > 1:
                    yield value[0], n

        assert results(keyed(env).flat_map(Number()), PAIRS[:2], PAIRS[2:]) == [
            p for p in self.COUNTS if p[1] > 1
        ]

    def test_filter(self, env: Environment) -> None:
        class Second(Counting, FilterFunction):
            def filter(self, value: Pair) -> bool:
                return self.count() == 2

        assert results(keyed(env).filter(Second()), PAIRS[:2], PAIRS[2:]) == [("a", 2), ("b", 20)]

    def test_process_sees_the_key_that_its_state_has(self, env: Environment) -> None:
        class Number(Counting, ProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> list[Pair]:
                return [(context.current_key, self.count())]

        assert results(keyed(env).process(Number()), PAIRS[:2], PAIRS[2:]) == self.COUNTS

    def test_reduce(self, env: Environment) -> None:
        class Sum(Counting, ReduceFunction):
            def reduce(self, left: Pair, right: Pair) -> Pair:
                return left[0], left[1] + right[1] + 1000 * self.count()

        assert results(keyed(env).reduce(Sum()), PAIRS[:2], PAIRS[2:]) == [
            ("a", 1), ("b", 10), ("a", 1003), ("c", 100), ("b", 1030), ("a", 3006),
        ]  # fmt: skip

    @pytest.mark.parametrize("form", ["map", "flat_map", "process"])
    def test_functions_of_two_streams_share_the_state_of_a_key(self, env: Environment, form: str) -> None:
        class Map(Counting, CoMapFunction):
            def map1(self, value: Pair) -> Pair:
                return value[0], self.count()

            def map2(self, value: str) -> Pair:
                return value, -self.count()

        class FlatMap(Counting, CoFlatMapFunction):
            def flat_map1(self, value: Pair) -> list[Pair]:
                return [(value[0], self.count())]

            def flat_map2(self, value: str) -> list[Pair]:
                return [(value, -self.count())]

        class Process(Counting, CoProcessFunction):
            def process1(self, value: Pair, context: ProcessContext) -> list[Pair]:
                return [(context.current_key, self.count())]

            def process2(self, value: str, context: ProcessContext) -> list[Pair]:
                return [(context.current_key, -self.count())]

        both = pairs(env).connect(env.from_collection([], type=str)).key_by("f0", "value")
        function = {"map": Map, "flat_map": FlatMap, "process": Process}[form]()
        with harness(getattr(both, form)(function)) as h:
            h.push([("a", 0), ("b", 0)])
            h.push(["a", "c", "a"], input_index=1)
            h.push([("c", 0)])
            assert h.rows == [("a", 1), ("b", 1), ("a", -2), ("c", -1), ("a", -3), ("c", 2)]


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class AllKinds(ProcessFunction):
    last = ValueState(int)
    all = ListState(int)
    seen = MapState(int, str)
    most = ReducingState(int, max)
    mean = AggregatingState(tuple[int, int], Mean())

    def process(self, value: Pair, context: ProcessContext) -> list[Any]:
        before = self.last.value()
        self.last.update(value[1])
        self.all.add(value[1])
        self.seen.put(value[1], value[0])
        self.most.add(value[1])
        self.mean.add(value[1])
        return [(value[0], before, self.all.get(), dict(self.seen.items()), self.most.get(), self.mean.get())]


def test_each_kind_of_state_is_that_of_the_records_key(env: Environment) -> None:
    assert results(keyed(env).process(AllKinds()), PAIRS) == [
        ("a", None, [1], {1: "a"}, 1, 1.0),
        ("b", None, [10], {10: "b"}, 10, 10.0),
        ("a", 1, [1, 2], {1: "a", 2: "a"}, 2, 1.5),
        ("c", None, [100], {100: "c"}, 100, 100.0),
        ("b", 10, [10, 20], {10: "b", 20: "b"}, 20, 15.0),
        ("a", 2, [1, 2, 3], {1: "a", 2: "a", 3: "a"}, 3, 2.0),
    ]


def test_state_goes_on_in_the_next_attempt(env: Environment) -> None:
    made = keyed(env).process(AllKinds())
    with harness(made) as first:
        first.push(PAIRS)
        with next_attempt(made, first) as second:
            second.push([("b", 0), ("d", 4)])
            assert second.rows == [
                ("b", 20, [10, 20, 0], {10: "b", 20: "b", 0: "b"}, 20, 10.0),
                ("d", None, [4], {4: "d"}, 4, 4.0),
            ]


def test_a_value_expires_when_its_time_to_live_is_over(env: Environment) -> None:
    class Once(FilterFunction):
        seen = ValueState(bool, default=False, ttl=StateTtl("10 s"))

        def filter(self, value: Pair) -> bool:
            known = self.seen.value()
            self.seen.update(True)
            return not known

    clock = ManualClock()
    with harness(keyed(env).filter(Once()), clock=clock) as h:
        h.push([("a", 1), ("a", 2)])
        clock.advance_ns(9_999 * MS)
        h.push([("b", 3)])
        clock.advance_ns(1 * MS)
        h.push([("a", 4), ("b", 5)])
        assert h.rows == [("a", 1), ("b", 3), ("a", 4)]


def test_subtasks_and_operators_have_their_own_state(env: Environment) -> None:
    class Number(Counting, MapFunction):
        def map(self, value: Pair) -> Pair:
            return value[0], self.count()

    function = Number()
    one, other = keyed(env).map(function), keyed(env).map(function)
    with harness(one) as h1, harness(other) as h2, harness(one, subtask_index=1, parallelism=2) as h3:
        h1.push([("a", 0), ("a", 0)])
        h2.push([("a", 0)])
        h3.push([("a", 0)])
        assert (h1.rows, h2.rows, h3.rows) == ([("a", 1), ("a", 2)], [("a", 1)], [("a", 1)])
    assert isinstance(function.n, ValueState)
    with pytest.raises(StateAccessError, match="only a declaration here"):
        function.n.value()


class TestWithoutAKey:
    @pytest.mark.parametrize("method", ["open", "close"])
    def test_keyed_state_is_refused_by_name(self, env: Environment, method: str) -> None:
        class Early(Counting, MapFunction):
            def map(self, value: Pair) -> Pair:
                return value[0], self.count()

        setattr(Early, method, lambda self, *_: self.n.value())
        h = harness(keyed(env).map(Early(), name="early"))

        def run() -> None:
            h.operator.open()
            h.push([("a", 1)])
            h.finish()
            h.operator.close()

        with pytest.raises(OperatorError) as caught:
            run()
        assert isinstance(caught.value.__cause__, StateAccessError)
        assert "'early'" in str(caught.value.__cause__)
        assert "'n'" in str(caught.value.__cause__)
        h.states.close()

    def test_the_key_is_gone_after_a_batch_and_after_a_failure(self, env: Environment) -> None:
        class Fails(Counting, MapFunction):
            def map(self, value: Pair) -> Pair:
                return value[0], 10 // value[1]

        with harness(keyed(env).map(Fails())) as h:
            function = h.operator.operation.function
            h.push([("a", 1)])
            with pytest.raises(StateAccessError):
                function.n.value()
            with pytest.raises(OperatorError) as caught:
                h.push([("a", 1), ("b", 0), ("c", 1)])
            assert caught.value.record == "('b', 0)"
            with pytest.raises(StateAccessError):
                function.n.update(1)

    def test_what_a_lazy_result_reads_is_of_its_own_record(self, env: Environment) -> None:
        class Lazy(Counting, ProcessFunction):
            def process(self, value: Pair, context: ProcessContext) -> Iterator[Pair]:
                return ((value[0], self.count()) for _ in range(2))

        assert results(keyed(env).process(Lazy(), returns=Pair), [("a", 0), ("b", 0)]) == [
            ("a", 1), ("a", 2), ("b", 1), ("b", 2),
        ]  # fmt: skip


def test_a_frozen_dataclass_can_have_state(env: Environment) -> None:
    @dataclass(frozen=True)
    class Every(FilterFunction):
        step: int
        n = ValueState(int, default=0)

        def filter(self, value: Pair) -> bool:
            self.n.update(self.n.value() + 1)
            return self.n.value() % self.step == 0

    assert results(keyed(env).filter(Every(2)), PAIRS) == [("a", 2), ("b", 20)]


def test_any_object_can_be_stored_with_a_serializer(env: Environment) -> None:
    class Sets(MapFunction):
        seen = ValueState(set, serializer=PickleSerializer())

        def map(self, value: Pair) -> Pair:
            seen = self.seen.value() or set()
            self.seen.update(seen | {value[1]})
            return value[0], len(seen)

    made = keyed(env).map(Sets())
    with harness(made) as first:
        first.push([("a", 1), ("a", 1), ("a", 2)])
        assert first.rows == [("a", 0), ("a", 1), ("a", 1)]
        with next_attempt(made, first) as second:
            second.push([("a", 3)])
            assert second.rows == [("a", 2)]


def test_a_value_of_another_type_names_operator_state_and_key(env: Environment) -> None:
    class Wrong(MapFunction):
        n = ValueState(int)

        def map(self, value: Pair) -> Pair:
            self.n.update("many")  # type: ignore[arg-type]
            return value

    with harness(keyed(env).map(Wrong(), name="wrong")) as h, pytest.raises(OperatorError) as caught:
        h.push([("a", 1)])
    message = str(caught.value.__cause__)
    assert isinstance(caught.value.__cause__, TidegateError)
    assert all(part in message for part in ("'wrong'", "'n'", "'a'", "str"))


class TestOperatorState:
    class Buffered(MapFunction):
        mine = OperatorListState(int)
        everyones = UnionListState(int)

        def open(self, context: RuntimeContext) -> None:
            self.index = context.subtask_index

        def map(self, value: int) -> tuple[list[int], list[int]]:
            before = self.mine.get(), self.everyones.get()
            self.mine.add(value)
            self.everyones.update([value])
            return before

    def test_lists_belong_to_the_subtask_and_need_no_key(self, env: Environment) -> None:
        made = env.from_collection([], type=int).map(self.Buffered())
        with harness(made, subtask_index=0, parallelism=2) as h0, harness(
            made, subtask_index=1, parallelism=2
        ) as h1:  # fmt: skip
            h0.push([1, 2, 3])
            h1.push([7])
            assert h0.rows == [([], []), ([1], [1]), ([1, 2], [2])]
            assert h1.rows == [([], [])]

    def test_lists_go_on_in_the_next_attempt(self, env: Environment) -> None:
        made = env.from_collection([], type=int).map(self.Buffered())
        with harness(made) as first:
            first.push([1, 2, 3])
            with next_attempt(made, first) as second:
                second.push([4])
                assert second.rows == [([1, 2, 3], [3])]

    def test_what_is_taken_out_is_the_callers_own(self, env: Environment) -> None:
        class Greedy(MapFunction):
            rows = OperatorListState(list[int])

            def map(self, value: int) -> list[list[int]]:
                mine = [value]
                self.rows.add(mine)
                mine.append(-1)
                self.rows.get()[0].append(-2)
                return self.rows.get()

        made = env.from_collection([], type=int).map(Greedy())
        with harness(made) as h:
            h.push([1, 2])
            assert h.rows == [[[1]], [[1], [2]]]

    def test_any_object_can_be_stored_with_a_serializer(self, env: Environment) -> None:
        class Sets(MapFunction):
            seen = OperatorListState(set, serializer=PickleSerializer())

            def map(self, value: int) -> int:
                self.seen.add({value, 0})
                self.seen.get()[0].add(99)
                return sum(map(len, self.seen.get()))

        made = env.from_collection([], type=int).map(Sets())
        with harness(made) as first:
            first.push([1, 2])
            assert first.rows == [2, 4]
            with next_attempt(made, first) as second:
                second.push([3])
                assert second.rows == [6]

    def test_a_value_of_another_type_is_refused_where_it_is_stored(self, env: Environment) -> None:
        class Wrong(MapFunction):
            seen = OperatorListState(int)

            def map(self, value: int) -> int:
                self.seen.add("many")  # type: ignore[arg-type]
                return value

        made = env.from_collection([], type=int).map(Wrong(), name="wrong")
        with harness(made) as h, pytest.raises(OperatorError) as caught:
            h.push([1])
        assert "operator 'wrong': state 'seen' cannot store a str" in str(caught.value.__cause__)

    def test_lists_can_be_used_in_open_and_close(self, env: Environment) -> None:
        class Kept(MapFunction):
            seen = OperatorListState(int)

            def open(self, context: RuntimeContext) -> None:
                self.known = set(self.seen.get())

            def map(self, value: int) -> bool:
                self.known.add(value)
                self.seen.update(sorted(self.known))
                return True

        made = env.from_collection([], type=int).map(Kept())
        with harness(made) as first:
            first.push([2, 1, 2])
            with next_attempt(made, first) as second:
                assert second.operator.operation.function.known == {1, 2}


LIMIT = OutputTag("limits", int)


class Limits(KeyedBroadcastProcessFunction):
    """Sums per key, capped by the limit that was broadcast."""

    total = ValueState(int, default=0)
    limits = BroadcastState(str, int)

    def process(self, value: Pair, context: ProcessContext) -> list[Pair]:
        limit = self.limits.get("limit", 1000)
        assert limit is not None
        self.total.update(min(limit, self.total.value() + value[1]))
        return [(context.current_key, self.total.value())]

    def process_broadcast(self, value: int, context: BroadcastContext) -> Iterator[Pair]:
        self.limits.put("limit", value)
        capped = []

        def cap(key: str, total: ValueState[int]) -> None:
            if total.value() > value:
                total.update(value)
                capped.append((key, -value))

        context.apply_to_keyed_state(self.total, cap)
        context.output(LIMIT, value)
        yield from sorted(capped)


class TestBroadcast:
    def made(self, env: Environment, function: Any = None, **settings: Any) -> Any:
        numbers = env.from_collection([], type=int)
        return keyed(env).connect(numbers.broadcast()).process(function or Limits(), **settings)

    def test_rules_are_applied_to_the_state_of_all_keys(self, env: Environment) -> None:
        with harness(self.made(env, side_outputs=(LIMIT,))) as h:
            h.push([("a", 5), ("b", 50), ("c", 500)])
            h.push([40], input_index=1)
            h.push([("a", 50), ("b", 1), ("d", 1)])
            assert h.rows == [
                ("a", 5), ("b", 50), ("c", 500), ("b", -40), ("c", -40), ("a", 40), ("b", 40), ("d", 1),
            ]  # fmt: skip
            assert h.side_rows("limits") == [40]

    def test_broadcast_state_goes_on_in_the_next_attempt(self, env: Environment) -> None:
        made = self.made(env, side_outputs=(LIMIT,))
        with harness(made) as first:
            first.push([("a", 5), ("b", 50)])
            first.push([40], input_index=1)
            with next_attempt(made, first) as second:
                second.push([("a", 50)])
                second.push([30], input_index=1)
                assert second.rows == [("a", 40), ("a", -30), ("b", -30)]

    def test_broadcast_state_can_be_looked_through_on_both_sides(self, env: Environment) -> None:
        class Looks(BroadcastProcessFunction):
            rules = BroadcastState(str, int)

            def process(self, value: Pair, context: ProcessContext) -> list[str]:
                return [f"{list(self.rules.keys())} {list(self.rules.values())} {self.rules.is_empty()}"]

            def process_broadcast(self, value: int, context: BroadcastContext) -> None:
                self.rules.put("limit", value)

        numbers = env.from_collection([], type=int)
        with harness(keyed(env).connect(numbers.broadcast()).process(Looks())) as h:
            h.push([("a", 5)])
            h.push([7], input_index=1)
            h.push([("a", 5)])
            assert h.rows == ["[] [] True", "['limit'] [7] False"]

    def test_the_other_side_cannot_write_it(self, env: Environment) -> None:
        class Writes(Limits):
            def process(self, value: Pair, context: ProcessContext) -> list[Pair]:
                self.limits.put("limit", 1)
                return []

        with harness(self.made(env, Writes(), name="limits", side_outputs=(LIMIT,))) as h:
            h.push([7], input_index=1)
            with pytest.raises(OperatorError) as caught:
                h.push([("a", 5)])
        assert isinstance(caught.value.__cause__, StateAccessError)
        assert "operator 'limits': broadcast state 'limits' is read-only here" in str(caught.value.__cause__)

    def test_keyed_state_has_no_key_on_the_broadcast_side(self, env: Environment) -> None:
        class Reads(Limits):
            def process_broadcast(self, value: int, context: BroadcastContext) -> None:  # type: ignore[override]
                self.total.value()

        with harness(self.made(env, Reads())) as h, pytest.raises(OperatorError) as caught:
            h.push([7], input_index=1)
        assert isinstance(caught.value.__cause__, StateAccessError)

    def test_an_unknown_state_is_refused_with_those_that_there_are(self, env: Environment) -> None:
        class Wrong(Limits):
            def process_broadcast(self, value: int, context: BroadcastContext) -> None:  # type: ignore[override]
                context.apply_to_keyed_state("sum", lambda key, state: None)

        with harness(self.made(env, Wrong())) as h, pytest.raises(OperatorError) as caught:
            h.push([7], input_index=1)
        assert "apply_to_keyed_state('sum')" in str(caught.value.__cause__)
        assert "(declared: 'total')" in str(caught.value.__cause__)

    def test_without_keys(self, env: Environment) -> None:
        class Allowed(BroadcastProcessFunction):
            names = BroadcastState(str, bool)

            def process(self, value: Pair, context: ProcessContext) -> list[Pair]:
                return [value] if self.names.contains(value[0]) else []

            def process_broadcast(self, value: str, context: BroadcastContext) -> None:
                self.names.put(value, True)

        names = env.from_collection([], type=str)
        with harness(pairs(env).connect(names.broadcast()).process(Allowed())) as h:
            h.push([("a", 1)])
            h.push(["a", "b"], input_index=1)
            h.push(PAIRS)
            assert h.rows == [p for p in PAIRS if p[0] in "ab"]


class Name(NamedTuple):
    first: str
    born: dt.date | None


EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a column without a zone
KEYS: list[tuple[Any, list[Any]]] = [
    (int, [0, 1, -1, 2**63 - 1, -(2**63)]),
    (str, ["", "a", "ab", "ä", "long" * 50]),
    (bytes, [b"", b"\x00", b"ab"]),
    (bool, [True, False]),
    (float, [0.0, 1.5, -2.25, float("inf")]),
    (int | None, [None, 0, 7]),
    (dt.date, [dt.date(1960, 2, 29), dt.date(2024, 1, 1)]),
    (dt.datetime, [EPOCH - dt.timedelta(microseconds=1), EPOCH, EPOCH + dt.timedelta(days=20_000)]),
    (dt.timedelta, [dt.timedelta(0), dt.timedelta(days=-1, microseconds=1)]),
    (dt.time, [dt.time(0), dt.time(23, 59, 59, 1)]),
    (Decimal, [Decimal(0), Decimal("-12.5"), Decimal("1e3")]),
    (tuple[str, int], [("a", 1), ("", 0), ("a", -1)]),
    (Name, [Name("ann", None), Name("bob", dt.date(1990, 5, 5))]),
]


@pytest.mark.parametrize(("key_type", "keys"), KEYS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_all_keys_of_a_state_are_found_again(
    env: Environment, key_type: Any, keys: list[Any], kind: str
) -> None:
    class Remember(KeyedBroadcastProcessFunction):
        value = ValueState(int)
        list = ListState(int)
        map = MapState(int, int)

        def process(self, value: Any, context: ProcessContext) -> None:
            self.value.update(1)
            self.list.add_all([1, 2])
            self.map.put(1, 1)
            self.map.put(2, 2)

        def process_broadcast(self, value: int, context: BroadcastContext) -> None:
            found: list[Any] = []
            context.apply_to_keyed_state(kind, lambda key, state: found.append(key))
            FOUND.append(found)
            context.apply_to_keyed_state(kind, lambda key, state: state.clear())

    FOUND: list[list[Any]] = []
    stream = env.from_collection([], type=tuple[key_type]).key_by(lambda r: r[0], returns=key_type)  # type: ignore[valid-type]
    made = stream.connect(env.from_collection([], type=int).broadcast()).process(Remember())
    with harness(made) as h:
        function = h.operator.operation.function
        process = type(function).process_broadcast
        FOUND = process.__closure__[0].cell_contents  # the harness copies the function, and its list with it
        h.push([(k,) for k in keys])
        h.push([1], input_index=1)
        h.push([(keys[0],)])
        h.push([1, 1], input_index=1)
    first, second, third = FOUND
    assert len(first) == len(keys)
    assert {(type(k), k) for k in first} == {(type(k), k) for k in keys}
    assert (second, third) == ([keys[0]], [])


def test_expired_values_are_not_among_the_keys(env: Environment) -> None:
    class Remember(KeyedBroadcastProcessFunction):
        value = ValueState(int, ttl="10 s")
        list = ListState(int, ttl="10 s")
        map = MapState(int, int, ttl="10 s")

        def process(self, value: Pair, context: ProcessContext) -> None:
            self.value.update(value[1])
            self.list.add(value[1])
            self.map.put(value[1], 0)

        def process_broadcast(self, value: int, context: BroadcastContext) -> Iterator[Pair]:
            found: list[Pair] = []
            for name in ("value", "list", "map"):
                context.apply_to_keyed_state(name, lambda key, state: found.append((key, 0)))
            yield from found

    clock = ManualClock()
    made = keyed(env).connect(env.from_collection([], type=int).broadcast())
    with harness(made.process(Remember(), returns=Pair), clock=clock) as h:
        h.push([("a", 1)])
        clock.advance_ns(6_000 * MS)
        h.push([("b", 1)])
        clock.advance_ns(6_000 * MS)
        h.push([1], input_index=1)
        assert h.rows == [("b", 0)] * 3


# ---- random programs of state calls against plain dicts ----

CALL = st.one_of(
    st.tuples(st.just("value"), st.sampled_from(["update", "clear"]), st.integers(-5, 5)),
    st.tuples(st.just("list"), st.sampled_from(["add", "update", "clear"]), st.integers(-5, 5)),
    st.tuples(st.just("map"), st.sampled_from(["put", "remove", "clear"]), st.integers(-5, 5)),
    st.tuples(st.just("most"), st.sampled_from(["add", "clear"]), st.integers(-5, 5)),
)
Record = tuple[int, str, str, int]


class Interpreter(ProcessFunction):
    """Does the calls that it is told, and shows everything that its key has."""

    value = ValueState(int, default=-1)
    list = ListState(int)
    map = MapState(int, int)
    most = ReducingState(int, max)

    def process(self, call: Record, context: ProcessContext) -> Iterator[Any]:
        _, state, method, argument = call
        live = getattr(self, state)
        if method == "clear":
            live.clear()
        elif method == "put":
            live.put(argument % 3, argument)
        elif (state, method) == ("list", "update"):
            live.update([argument] * (argument % 3))
        elif method == "remove":
            live.remove(argument % 3)
        else:
            getattr(live, method)(argument)
        yield (self.value.value(), self.list.get(), sorted(self.map.items()), self.most.get())


class Model:
    """The same with plain dicts."""

    def __init__(self) -> None:
        self.value: dict[int, int] = {}
        self.list: dict[int, list[int]] = {}
        self.map: dict[int, dict[int, int]] = {}
        self.most: dict[int, int] = {}

    def process(self, call: Record) -> Any:
        key, state, method, argument = call
        if method == "clear":
            getattr(self, state).pop(key, None)
        elif state == "value":
            self.value[key] = argument
        elif state == "list" and method == "add":
            self.list.setdefault(key, []).append(argument)
        elif state == "list":
            self.list[key] = [argument] * (argument % 3)
        elif method == "put":
            self.map.setdefault(key, {})[argument % 3] = argument
        elif method == "remove":
            self.map.get(key, {}).pop(argument % 3, None)
        else:
            self.most[key] = max(self.most.get(key, argument), argument)
        return (
            self.value.get(key, -1),
            list(self.list.get(key, [])),
            sorted(self.map.get(key, {}).items()),
            self.most.get(key),
        )


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=40, deadline=None)
@given(
    programs=st.lists(
        st.lists(st.tuples(st.integers(0, 3), CALL).map(lambda t: (t[0], *t[1])), min_size=1, max_size=12),
        min_size=1,
        max_size=4,
    ),
    restart=st.booleans(),
)
def test_any_program_of_state_calls_gives_what_plain_dicts_give(
    backend: str, programs: list[list[Record]], restart: bool
) -> None:
    env = Environment(state_backend=backend)
    made = env.from_collection([], type=Record).key_by("f0").process(Interpreter())
    model = Model()
    storage = MemoryStorage()
    current = harness(made)
    current.operator.open()
    try:
        for checkpoint_id, batch in enumerate(programs, 1):
            current.push(batch)
            assert current.take_rows() == [model.process(call) for call in batch]
            if restart:
                following = next_attempt(made, current, storage, checkpoint_id)
                current.operator.close()
                current.states.close()
                current = following
                current.operator.open()
    finally:
        current.operator.close()
        current.states.close()


def test_a_function_that_needs_keys_refuses_to_run_without(env: Environment) -> None:
    from tidegate.program.operations import ApplyFunction

    class Number(Counting, MapFunction):
        def map(self, value: Pair) -> Pair:
            return value[0], self.count()

    h = OperatorHarness(ApplyFunction("map", Number()), [Pair], Pair, options=env.options)
    with pytest.raises(OperatorError) as caught:
        h.operator.open()
    assert isinstance(caught.value.__cause__, ProgramError)
    h.operator.close()
