"""What operators keep is nobody else's: a function that changes its records, inside too, changes no state."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tidegate import Environment
from tidegate.api.functions import MapFunction
from tidegate.api.state import PickleSerializer, ValueState
from tidegate.testing.harness import OperatorHarness


class Tagged(NamedTuple):
    key: str
    tags: list[str]


def together(one: Tagged, other: Tagged) -> Tagged:
    one.tags.extend(other.tags)
    return one


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_running_reduce_shares_no_list_with_what_it_takes_and_emits(backend: str) -> None:
    env = Environment(state_backend=backend)
    stream = env.from_collection([], type=Tagged).key_by(lambda r: r.key, returns=str).reduce(together)
    with OperatorHarness.of(stream, options=env.options) as operator:
        first = Tagged("a", ["x"])
        operator.push([first])
        first.tags.append("changed by who made it")
        operator.rows[0].tags.append("changed by who got it")
        operator.push([Tagged("a", ["y"])])
        assert operator.rows[-1] == Tagged("a", ["x", "y"])
        operator.rows[-1].tags.append("changed by who got it")
        operator.push([Tagged("a", ["z"])])
        assert operator.rows[-1] == Tagged("a", ["x", "y", "z"])


class WithDefault(MapFunction):
    seen = ValueState(list, default=[], serializer=PickleSerializer())

    def map(self, value: str) -> int:
        seen = self.seen.value()
        seen.append(value)
        return len(seen)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_default_that_is_changed_is_the_same_for_the_next_key(backend: str) -> None:
    env = Environment(state_backend=backend)
    stream = (
        env.from_collection([], type=str).key_by(lambda w: w, returns=str).map(WithDefault(), returns=int)
    )
    with OperatorHarness.of(stream, options=env.options) as operator:
        operator.push(["a", "b", "a"])
        assert operator.rows == [1, 1, 1]


def spoiling(left: Tagged, right: Tagged) -> str:
    seen = ",".join(left.tags + right.tags)
    left.tags.append("changed by the join")
    right.tags.append("changed by the join")
    return seen


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_an_interval_join_shares_no_list_with_its_function(backend: str) -> None:
    env = Environment(state_backend=backend)
    sides = [env.from_collection([], type=Tagged).key_by("key") for _ in range(2)]
    joined = sides[0].interval_join(sides[1]).between("-5 ms", "5 ms").apply(spoiling, returns=str)
    with OperatorHarness.of(joined, options=env.options) as operator:
        operator.push([Tagged("a", ["l"])], timestamps=[0])
        operator.push([Tagged("a", ["r1"]), Tagged("a", ["r2"])], timestamps=[1, 2], input_index=1)
        assert operator.rows == ["l,r1", "l,r2"]
