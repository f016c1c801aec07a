"""Programs with state for runs under faults, and what must come out of them, in plain Python over the input lists."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate import CoProcessFunction, Environment, ProcessContext, ProcessFunction, ValueState
from tidegate.api.streams import DataStream

KEYS = 5


class Click(NamedTuple):
    key: int
    n: int
    source: int


class Seen(NamedTuple):
    """A record and how many its key had with it."""

    key: int
    n: int
    source: int
    count: int


def clicks(count: int, source: int) -> list[Click]:
    """Records with the numbers 0, 1, 2, ...; the keys come in no regular order."""
    return [Click((n * n + source) % KEYS, n, source) for n in range(count)]


def click_of(n: int) -> Click:
    return Click((n * n + 1) % KEYS, n, 1)


def same(click: Click) -> Click:
    return click


def to_second_stage(counted: tuple[int, int]) -> Click:
    key, count = counted
    return Click(count % KEYS, key * 1000 + count, 0)


def add(so_far: Click, click: Click) -> Click:
    return Click(click.key, so_far.n + click.n, 0)


class CountEach(ProcessFunction):
    seen = ValueState(int, default=0)

    def process(self, value: Click, context: ProcessContext) -> Iterator[Seen]:
        self.seen.update(self.seen.value() + 1)
        yield Seen(*value, self.seen.value())


class CountBoth(CoProcessFunction):
    seen = ValueState(int, default=0)

    def process1(self, value: Click, context: ProcessContext) -> Iterator[Seen]:
        self.seen.update(self.seen.value() + 1)
        yield Seen(*value, self.seen.value())

    def process2(self, value: Click, context: ProcessContext) -> Iterator[Seen]:
        yield from self.process1(value, context)


Output = Mapping[int, Sequence[Mapping[str, int]]]
"""The visible rows by sink subtask, in the order of the files."""


@dataclass(frozen=True, eq=False)
class Program:
    """A program, its input and the checks of its output; `counts` is where its keyed state is, if that is checked."""

    name: str
    inputs: Mapping[str, list[Click]]
    build: Callable[[Environment, Mapping[str, list[Click]]], DataStream]
    check: Callable[[Program, Output, str, int], None]
    counts: str = ""
    """The name of the keyed state that counts the records of each key."""

    def all_clicks(self) -> list[Click]:
        return [click for clicks in self.inputs.values() for click in clicks]


# ---- the programs ----


def _pv(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    return env.from_collection(inputs["s0"], name="s0").key_by("key").count()


def _pv_numbers(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    numbers = env.from_sequence(0, len(inputs["s1"]) - 1, name="s1")
    return numbers.map(click_of).key_by("key").count()


def _connected(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    left = env.from_collection(inputs["s0"], name="s0")
    right = env.from_sequence(0, len(inputs["s1"]) - 1, name="s1").map(click_of)
    return left.connect(right).key_by("key", "key").process(CountBoth(), returns=Seen)


def _union(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    """One side takes a longer way, so that barriers come at very different times."""
    slow = env.from_collection(inputs["s0"], name="s0").set_parallelism(1).rebalance().map(same)
    fast = env.from_sequence(0, len(inputs["s1"]) - 1, name="s1").map(click_of)
    return slow.union(fast).key_by("key").process(CountEach(), returns=Seen)


def _reduced(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    return env.from_collection(inputs["s0"], name="s0").key_by("key").reduce(add)


def _two_stages(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    first = env.from_collection(inputs["s0"], name="s0").key_by("key").count()
    return first.map(to_second_stage).key_by("key").process(CountEach(), returns=Seen)


def _stateless(env: Environment, inputs: Mapping[str, list[Click]]) -> DataStream:
    return env.from_collection(inputs["s0"], name="s0").rebalance().map(same)


# ---- the checks; `guarantee` is exactly_once, at_least_once (state too), repeated (state exact) or at_most_once ----


def _compare(found: Counter[Any], truth: Counter[Any], guarantee: str) -> None:
    if guarantee == "exactly_once":
        assert found == truth, f"lost {truth - found}, too many {found - truth}"
    elif guarantee == "at_most_once":
        assert not found - truth, f"too many: {found - truth}"
    elif guarantee == "repeated":
        assert set(found) == set(truth), f"lost {set(truth) - set(found)}, wrong {set(found) - set(truth)}"
    else:
        assert set(found) >= set(truth), f"lost {set(truth) - set(found)}"


def _check_counts(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    """Rows (key, count): for each key 1, 2, 3, ... in order."""
    truth = Counter(click.key for click in program.all_clicks())
    found: Counter[tuple[int, int]] = Counter()
    for rows in output.values():
        last: Counter[int] = Counter()
        for row in rows:
            found[row["key"], row["count"]] += 1
            if guarantee in ("exactly_once", "at_least_once"):
                assert guarantee != "exactly_once" or row["count"] == last[row["key"]] + 1, (row, last)
            last[row["key"]] = row["count"]
    if guarantee != "at_most_once":
        _compare(found, Counter({(k, i): 1 for k, n in truth.items() for i in range(1, n + 1)}), guarantee)


def _check_seen(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    """Every record once, in the order of its source, with the count of its key."""
    found = Counter((row["source"], row["n"]) for rows in output.values() for row in rows)
    truth = Counter((click.source, click.n) for click in program.all_clicks())
    _compare(found, truth, guarantee)
    if guarantee != "exactly_once":
        return
    for rows in output.values():
        counts: Counter[int] = Counter()
        last: dict[tuple[int, int, int], int] = defaultdict(lambda: -1)
        for row in rows:
            counts[row["key"]] += 1
            assert row["count"] == counts[row["key"]], f"count of {row} where {counts[row['key']]} is right"
            total = sum(click.source == row["source"] for click in program.all_clicks())
            if program.name == "union" and row["source"] == 0 and parallelism > 1:
                continue  # its way is rebalanced: no order is promised
            readers = parallelism
            span = sum(row["n"] >= total * i // readers for i in range(1, readers))
            place = (row["key"], row["source"], span)
            assert row["n"] > last[place], f"{row} came behind {last[place]}"
            last[place] = row["n"]


def _check_reduced(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    """Running sums: what was added from row to row is what was put in."""
    truth = Counter((click.key, click.n) for click in program.all_clicks())
    sums: Counter[int] = Counter()
    found: Counter[tuple[int, int]] = Counter()
    for rows in output.values():
        for row in rows:
            found[row["key"], row["n"] - sums[row["key"]]] += 1
            sums[row["key"]] = row["n"]
    totals: Counter[int] = Counter()
    for click in program.all_clicks():
        totals[click.key] += click.n
    if guarantee == "exactly_once":
        _compare(found, truth, guarantee)
    elif guarantee == "repeated":
        assert sums == totals
    elif guarantee == "at_least_once":
        assert all(sums[key] >= total for key, total in totals.items())


def _check_two_stages(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    per_key = Counter(click.key for click in program.all_clicks())
    truth = Counter({k * 1000 + i: 1 for k, n in per_key.items() for i in range(1, n + 1)})
    found = Counter(row["n"] for rows in output.values() for row in rows)
    if guarantee != "at_most_once":
        _compare(found, truth, guarantee)
    if guarantee == "exactly_once":
        for rows in output.values():
            counts: Counter[int] = Counter()
            for row in rows:
                counts[row["key"]] += 1
                assert row["count"] == counts[row["key"]]


def _check_clicks(program: Program, output: Output, guarantee: str, parallelism: int) -> None:
    found = Counter((row["source"], row["n"]) for rows in output.values() for row in rows)
    _compare(found, Counter((click.source, click.n) for click in program.all_clicks()), guarantee)


def _numbers(count: int) -> list[Click]:
    return [click_of(n) for n in range(count)]


PROGRAMS = (
    Program("pv", {"s0": clicks(160, 0)}, _pv, _check_counts, "total"),
    Program("pv of numbers", {"s1": _numbers(140)}, _pv_numbers, _check_counts, "total"),
    Program("connect", {"s0": clicks(90, 0), "s1": _numbers(70)}, _connected, _check_seen, "seen"),
    Program("union", {"s0": clicks(60, 0), "s1": _numbers(100)}, _union, _check_seen, "seen"),
    Program("reduce", {"s0": clicks(120, 0)}, _reduced, _check_reduced),
    Program("two stages", {"s0": clicks(120, 0)}, _two_stages, _check_two_stages),
    Program("stateless", {"s0": clicks(120, 0)}, _stateless, _check_clicks),
)
