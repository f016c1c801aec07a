"""State in the user's functions on a real Spark: of one key, of one operator, of one subtask, on both backends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.spark.kit import Noting, bag
from tidegate import (
    BroadcastContext,
    BroadcastState,
    Environment,
    KeyedBroadcastProcessFunction,
    ListState,
    MapFunction,
    MapState,
    OperatorListState,
    ProcessContext,
    ProcessFunction,
    RuntimeContext,
    UnionListState,
    ValueState,
)

KEYS, RECORDS = 50, 5_000
Pair = tuple[int, int]
History = tuple[int, int, list[int], dict[int, int]]


@pytest.fixture(params=["heap", "rocksdb"])
def env(request: pytest.FixtureRequest, make_env: Callable[..., Environment]) -> Environment:
    return make_env(state_backend=request.param, batch_rows=100)


def records(env: Environment) -> Any:
    """(key, n): the numbers up to RECORDS, dealt out over the keys."""
    return env.from_sequence(0, RECORDS - 1).map(lambda n: (n * 7919 % KEYS, n), returns=Pair)


class Remember(ProcessFunction):
    """Keeps a count, the last three numbers, and a count per last digit; gives all of it with every record."""

    count = ValueState(int, default=0)
    last = ListState(int)
    digits = MapState(int, int)

    def process(self, value: Pair, context: ProcessContext) -> Iterator[History]:
        assert context.current_key == value[0]
        self.count.update(self.count.value() + 1)
        self.last.add(value[1])
        if len(self.last.get()) > 3:
            self.last.update(self.last.get()[1:])
        digit = value[1] % 10
        self.digits.put(digit, (self.digits.get(digit) or 0) + 1)
        yield value[0], self.count.value(), self.last.get(), dict(self.digits.items())


@pytest.mark.spec("S3-25")
def test_value_list_and_map_state_are_those_of_the_records_key(env: Environment) -> None:
    by_key = defaultdict(list)
    for key, count, last, digits in records(env).key_by("f0").process(Remember()).execute_and_collect():
        by_key[key].append((count, last, digits))
    expected = defaultdict(set)
    for n in range(RECORDS):
        expected[n * 7919 % KEYS].add(n)
    assert by_key.keys() == expected.keys()
    for key, numbers in expected.items():
        histories = by_key[key]
        assert [h[0] for h in histories] == list(range(1, len(numbers) + 1))
        seen: list[int] = []
        for _, last, digits in histories:  # what came before it, of this key alone, in some order
            seen.append(last[-1])
            assert last == seen[-3:]
            assert digits == Counter(n % 10 for n in seen)
        assert set(seen) == numbers


class CountOwn(ProcessFunction):
    """The count of the key's records in this operator."""

    count = ValueState(int, default=0)

    def process(self, value: Pair, context: ProcessContext) -> list[Pair]:
        self.count.update(self.count.value() + 1)
        return [(value[0], self.count.value())]


@pytest.mark.spec("S3-25")
def test_two_operators_with_the_same_function_and_key_share_no_state(env: Environment, tmp_path: Any) -> None:
    function, notes = CountOwn(), [Noting(tmp_path / "one"), Noting(tmp_path / "two")]
    source = records(env)
    source.key_by("f0").process(function, name="one").sink_to(notes[0])
    source.filter(lambda r: r[1] % 2 == 0).key_by("f0").process(function, name="two").sink_to(notes[1])
    env.execute()
    everything = Counter(n * 7919 % KEYS for n in range(RECORDS))
    even = Counter(n * 7919 % KEYS for n in range(0, RECORDS, 2))
    for noted, counts in zip(notes, (everything, even), strict=True):
        expected = [(key, i) for key, count in counts.items() for i in range(1, count + 1)]
        assert bag(noted.read()) == bag(expected)


class Mine(MapFunction):
    """Puts every record into two lists of the subtask; says who it is, and what the lists had."""

    own = OperatorListState(int)
    union = UnionListState(int)

    def open(self, context: RuntimeContext) -> None:
        assert self.own.get() == self.union.get() == []
        self.who = context.subtask_index

    def map(self, value: int) -> tuple[int, int, list[int], list[int]]:
        before = self.own.get(), self.union.get()
        self.own.add(value)
        self.union.add(value)
        return (self.who, value, *before)


@pytest.mark.spec("S3-24")
def test_operator_lists_are_those_of_one_operator_and_one_subtask(
    make_env: Callable[..., Environment], tmp_path: Any
) -> None:
    env = make_env(parallelism=3)
    function, notes = Mine(), [Noting(tmp_path / "one"), Noting(tmp_path / "two")]
    source = env.from_sequence(1, 60).rebalance()
    source.map(function, name="one").sink_to(notes[0])
    source.map(function, name="two").sink_to(notes[1])
    env.execute()
    for noted in notes:
        lists: dict[int, list[int]] = defaultdict(list)
        for who, value, own, union in noted.read():
            assert own == union == lists[who]
            lists[who].append(value)
        assert len(lists) == 3, "every subtask had some of the records"
        assert sorted(n for values in lists.values() for n in values) == list(range(1, 61))


class Limit(KeyedBroadcastProcessFunction):
    """Reports each key's total once a rule asks for it; rules are the same in all subtasks."""

    total = ValueState(int, default=0)
    rules = BroadcastState(str, int)

    def open(self, context: RuntimeContext) -> None:
        self.who = context.subtask_index

    def process(self, value: Pair, context: ProcessContext) -> list[tuple[str, int, int]]:
        self.total.update(self.total.value() + 1)
        return []

    def process_broadcast(self, value: str, context: BroadcastContext) -> Iterator[tuple[str, int, int]]:
        self.rules.put(value, len(dict(self.rules.items())) + 1)
        found: list[tuple[str, int, int]] = []
        context.apply_to_keyed_state(self.total, lambda key, total: found.append((value, key, self.who)))
        yield from found
        yield value, -self.rules.get(value, 0), self.who  # type: ignore[operator]


@pytest.mark.spec("S3-24")
def test_every_subtask_has_the_same_broadcast_state_and_its_own_keys(env: Environment) -> None:
    rules = env.from_collection(["first", "second"], parallelism=1).broadcast()  # so that they have an order
    made = records(env).key_by("f0").connect(rules).process(Limit())
    rows = list(made.execute_and_collect())
    # A rule comes at any time among the records, so it finds some keys or all; never one twice, or of two subtasks.
    owners: dict[int, set[int]] = defaultdict(set)
    for rule in ("first", "second"):
        keys = [key for name, key, _ in rows if name == rule and key >= 0]
        assert len(keys) == len(set(keys))
        assert sorted(who for name, number, who in rows if name == rule and number < 0) == [0, 1]
    for _, key, who in rows:
        if key >= 0:
            owners[key].add(who)
    assert all(len(found) == 1 for found in owners.values())
    assert {(name, number) for name, number, _ in rows if number < 0} == {("first", -1), ("second", -2)}


@pytest.mark.spec("S3-26")
def test_both_backends_give_the_same_answers(make_env: Callable[..., Environment]) -> None:
    found = []
    for backend in ("heap", "rocksdb"):
        env = make_env(state_backend=backend, batch_rows=100)
        rows = records(env).key_by("f0").process(CountOwn()).execute_and_collect()
        found.append(bag(tuple(r) for r in rows))
    assert found[0] == found[1]
    assert len(found[0]) == RECORDS
