"""The contract of keyed state backends: every backend passes the whole of it.

Long because it is one list of promises that all backends are held to.
"""

# Lambdas are called where they stand, times without a zone are a type of their own, a refusal may come early or late.
# ruff: noqa: B023, DTZ001, PT012

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tests.contract.state_backend_kit import ALL, Cluster, Subtask, backend_kinds
from tidegate.api.state import (
    AggregateFunction,
    AggregatingState,
    KeyedState,
    ListState,
    MapState,
    PickleSerializer,
    ReducingState,
    StateAccessError,
    StateTtl,
    ValueState,
)
from tidegate.core.errors import ProgramError, SerializationError, StateCompatibilityError, TidegateError
from tidegate.core.key_groups import KeyGroupRange, key_group_range
from tidegate.keys.hashing import hash_value
from tidegate.records.decimals import PAIR, array_of_pairs, pairs_of
from tidegate.state.backend import NO_KEY, ColumnArray
from tidegate.storage.storage import StorageError


@pytest.fixture(params=backend_kinds())
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(request.param, tmp_path)
    yield made
    made.close()


@dataclasses.dataclass
class Cart:
    total: int
    items: list[str]


class Point(NamedTuple):
    x: int
    label: str


@dataclasses.dataclass
class Order:
    number: int
    cart: Cart
    where: Point
    again: Cart | None


class Mean(AggregateFunction[float, tuple[float, int], float]):
    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: float, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        return accumulator[0] / accumulator[1]


# ---- each kind of state ----


def test_value_state_keeps_one_value_per_key(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int, default=7))
    assert isinstance(state, ValueState)
    assert task.at("a", state.value) == 7
    task.at("a", lambda: state.update(1))
    task.at("b", lambda: state.update(2))
    assert [task.at(k, state.value) for k in "abc"] == [1, 2, 7]
    task.at("a", state.clear)
    task.at("b", lambda: state.update(None))
    assert [task.at(k, state.value) for k in "ab"] == [7, 7]


def test_value_state_without_a_default_is_none(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(str))
    assert task.at("a", state.value) is None


def test_list_state_appends_and_replaces(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ListState(int))
    assert task.at("a", state.get) == []
    task.at("a", lambda: state.add(1))
    task.at("a", lambda: state.add_all([2, 3]))
    task.at("b", lambda: state.add(9))
    assert [task.at(k, state.get) for k in "ab"] == [[1, 2, 3], [9]]
    task.at("a", lambda: state.update(iter([5])))
    assert task.at("a", state.get) == [5]
    task.at("a", state.clear)
    task.at("b", lambda: state.update([]))
    assert [task.at(k, state.get) for k in "ab"] == [[], []]
    task.at("a", lambda: state.add(4))
    assert task.at("a", state.get) == [4]


def test_list_state_may_hold_none_where_the_type_says_so(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ListState(int | None))
    task.at("a", lambda: state.add_all([None, 1, None]))
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    again = restored.state(ListState(int | None))
    assert restored.at("a", again.get) == task.at("a", state.get) == [None, 1, None]


def test_map_state_keeps_a_map_per_key(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(MapState(str, int))
    assert task.at("a", state.is_empty)
    task.at("a", lambda: state.put("x", 1))
    task.at("a", lambda: state.put("y", 2))
    task.at("b", lambda: state.put("x", 3))
    assert task.at("a", lambda: dict(state.items())) == {"x": 1, "y": 2}
    assert task.at("b", lambda: (state.get("x"), state.get("y"), state.get("y", 5))) == (3, None, 5)
    assert task.at("a", lambda: (state.contains("x"), state.contains("z"))) == (True, False)
    task.at("a", lambda: state.remove("x"))
    task.at("a", lambda: state.remove("never there"))
    assert task.at("a", lambda: (sorted(state.keys()), sorted(state.values()))) == (["y"], [2])
    task.at("a", state.clear)
    assert task.at("a", state.is_empty)
    assert not task.at("b", state.is_empty)


def test_map_entry_put_again_after_its_map_was_cleared_is_alone(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(MapState(str, int))
    task.at("a", lambda: (state.put("x", 1), state.put("y", 2)))
    task.checkpoint(1)
    task.at("a", lambda: (state.clear(), state.put("y", 3)))
    assert task.at("a", lambda: dict(state.items())) == {"y": 3}
    restored = cluster.subtask(restore=[task.checkpoint(2)])
    again = restored.state(MapState(str, int))
    assert restored.at("a", lambda: (dict(again.items()), again.contains("x"))) == ({"y": 3}, False)


def test_reducing_state_reduces(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ReducingState(int, max))
    assert task.at("a", state.get) is None
    for value in (3, 9, 4):
        task.at("a", lambda v=value: state.add(v))
    assert task.at("a", state.get) == 9
    assert task.at("b", state.get) is None
    task.at("a", state.clear)
    assert task.at("a", state.get) is None


def test_aggregating_state_keeps_the_accumulator(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(AggregatingState(tuple[float, int], Mean()))
    assert task.at("a", state.get) is None
    for value in (1.0, 2.0, 6.0):
        task.at("a", lambda v=value: state.add(v))
    assert task.at("a", state.get) == 3.0
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    again = restored.state(AggregatingState(tuple[float, int], Mean()))
    restored.at("a", lambda: again.add(7.0))
    assert restored.at("a", again.get) == 4.0
    task.at("a", state.clear)
    assert task.at("a", state.get) is None


def test_states_of_one_operator_do_not_mix(cluster: Cluster) -> None:
    task = cluster.subtask()
    one = task.state(ValueState(int, name="one"))
    two = task.state(ValueState(int, name="two"))
    entries = task.state(MapState(str, int, name="entries"))
    task.at("a", lambda: (one.update(1), two.update(2), entries.put("one", 3)))
    task.at("a", two.clear)
    assert task.at("a", lambda: (one.value(), two.value(), entries.get("one"))) == (1, None, 3)


def test_state_without_a_key_is_refused_by_operator_and_name(cluster: Cluster) -> None:
    task = cluster.subtask()
    value = task.state(ValueState(int, name="total"))
    items = task.state(ListState(int, name="items"))
    entries = task.state(MapState(str, int, name="entries"))
    largest = task.state(ReducingState(int, max, name="largest"))
    assert task.backend.current_key is NO_KEY
    for name, use in [
        ("total", value.value),
        ("total", lambda: value.update(1)),
        ("total", value.clear),
        ("items", items.get),
        ("items", lambda: items.add(1)),
        ("items", lambda: items.update([1])),
        ("items", items.clear),
        ("entries", lambda: entries.get("x")),
        ("entries", lambda: entries.put("x", 1)),
        ("entries", lambda: list(entries.items())),
        ("entries", entries.clear),
        ("largest", largest.get),
        ("largest", lambda: largest.add(1)),
    ]:
        with pytest.raises(StateAccessError) as refused:
            use()
        assert str(refused.value) == (
            f"operator 'counter': state {name!r} is kept by key, but there is no current key here. Use it while a "
            f"record of a keyed stream is processed"
        )


# ---- values ----

VALUES: list[tuple[Any, Any]] = [
    (int, -(2**63)),
    (float, -0.5),
    (float, math.inf),
    (bool, True),
    (str, "snow ☃ and \0"),
    (bytes, b"\x00\xff"),
    (dt.datetime, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)),
    (Annotated[dt.datetime, pa.timestamp("us", "UTC")], dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
    (dt.date, dt.date(1, 1, 1)),
    (dt.time, dt.time(23, 59, 59, 1)),
    (dt.timedelta, dt.timedelta(days=-3, microseconds=1)),
    (Decimal, Decimal("-12345678901234567.000000000000000001")),
    (Cart, Cart(3, ["a", "b"])),
    (Point, Point(1, "origin")),
    (tuple[int, str | None], (1, None)),
    (list[list[int]], [[1], []]),
    (dict[str, list[Cart]], {"x": [Cart(1, [])], "": []}),
    (pa.int16(), 300),
]


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=lambda v: str(v)[:30])
def test_values_of_every_type_come_back_equal(cluster: Cluster, hint: Any, value: Any) -> None:
    task = cluster.subtask()
    single = task.state(ValueState(hint, name="single"))
    several = task.state(ListState(hint, name="several"))
    entries = task.state(MapState(str, hint, name="entries"))
    task.at("a", lambda: (single.update(value), several.add_all([value, value]), entries.put("e", value)))
    handle = task.checkpoint(1)
    restored = cluster.subtask(restore=[handle])
    for t in (task, restored):
        if t is restored:
            single = t.state(ValueState(hint, name="single"))
            several = t.state(ListState(hint, name="several"))
            entries = t.state(MapState(str, hint, name="entries"))
        found = t.at("a", lambda s=single, m=several, e=entries: [s.value(), *m.get(), e.get("e")])
        assert found == [value] * 4
        assert {type(f) for f in found} == {type(value)}


def test_nan_is_a_value(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(float))
    task.at("a", lambda: state.update(math.nan))
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    again = restored.state(ValueState(float))
    assert math.isnan(task.at("a", state.value))
    assert math.isnan(restored.at("a", again.value))


def test_relatives_of_the_declared_type_come_back_as_the_declared_type(cluster: Cluster) -> None:
    task = cluster.subtask()
    number = task.state(ValueState(int, name="number"))
    real = task.state(ValueState(float, name="real"))
    data = task.state(ValueState(bytes, name="data"))
    items = task.state(ValueState(list[int], name="items"))
    task.at(
        "a",
        lambda: (
            number.update(np.int64(5)),
            real.update(3),
            data.update(bytearray(b"x")),
            items.update((1, 2)),
        ),
    )
    found = task.at("a", lambda: [number.value(), real.value(), data.value(), items.value()])
    assert found == [5, 3.0, b"x", [1, 2]]
    assert [type(v) for v in found] == [int, float, bytes, list]


def test_opt_in_serializer_keeps_what_has_no_arrow_type(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(set, serializer=PickleSerializer()))
    mine = {1, "x"}
    task.at("a", lambda: state.update(mine))
    mine.add(2)
    task.at("a", state.value).add(3)
    assert task.at("a", state.value) == {1, "x"}
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    again = restored.state(ValueState(set, serializer=PickleSerializer()))
    assert restored.at("a", again.value) == {1, "x"}


def test_type_without_a_serializer_is_refused_where_the_state_is_made(cluster: Cluster) -> None:
    with pytest.raises(ProgramError, match=r"(?s)'counter'.*'s'.*set.*serializer="):
        cluster.subtask().state(ValueState(set))


def _refusal(task: Subtask, action: Any) -> str:
    """The message of the refusal, which comes at the update or with the snapshot."""
    with pytest.raises(SerializationError) as caught:
        task.at("the key", action)
        task.begin_checkpoint(1)()
    return str(caught.value)


@pytest.mark.parametrize(
    ("hint", "bad", "type_name"),
    [
        (int, "text", "str"),
        (int, True, "bool"),
        (int, 1.5, "float"),
        (int, 2**63, "int"),
        (str, b"bytes", "bytes"),
        (str, "\ud800", "str"),
        (float, "1.0", "str"),
        (dt.datetime, dt.date(2020, 1, 1), "date"),
        (dt.datetime, dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "datetime"),
        (Decimal, Decimal("1e-30"), "Decimal"),
        (list[int], [1, "x"], "list"),
        (dict[str, int], {"a": "x"}, "dict"),
        (Cart, Point(1, "x"), "Point"),
        (Cart, Cart("many", []), "Cart"),  # type: ignore[arg-type]
        (tuple[int, str], (1, "a", 2), "tuple"),
    ],
    ids=str,
)
def test_value_that_does_not_fit_is_named_with_operator_state_and_key(
    cluster: Cluster, hint: Any, bad: Any, type_name: str
) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(hint, name="total"))
    message = _refusal(task, lambda: state.update(bad))
    assert "'counter'" in message
    assert "'total'" in message
    assert "'the key'" in message
    assert type_name in message


def test_bad_elements_and_entries_are_named_too(cluster: Cluster) -> None:
    for declaration, act in [
        (ListState(int), lambda s: s.add("x")),
        (ListState(int), lambda s: s.update([1, 2**70])),
        (MapState(str, int), lambda s: s.put("k", "x")),
        (MapState(str, int), lambda s: s.put(3, 1)),
        (ReducingState(int, lambda a, b: "x"), lambda s: (s.add(1), s.add(2))),
    ]:
        task = cluster.subtask()
        state = task.state(declaration)
        message = _refusal(task, lambda s=state, a=act: a(s))
        assert "'counter'" in message
        assert "'s'" in message
        assert "'the key'" in message


def test_a_refused_value_changes_nothing(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int))
    task.at("a", lambda: state.update(1))
    with pytest.raises(TidegateError):
        task.at("a", lambda: state.update("text"))
    assert task.at("a", state.value) == 1


# ---- values are the caller's own ----


def test_what_the_user_changes_later_does_not_change_the_state(cluster: Cluster) -> None:
    task = cluster.subtask()
    cart = task.state(ValueState(Cart, name="cart"))
    lists = task.state(ListState(list[int], name="lists"))
    entries = task.state(MapState(str, list[int], name="entries"))
    mine, numbers = Cart(1, ["a"]), [1]
    task.at("k", lambda: (cart.update(mine), lists.add(numbers), entries.put("e", numbers)))
    mine.total = 99
    mine.items.append("z")
    numbers.append(99)
    assert task.at("k", lambda: (cart.value(), lists.get(), entries.get("e"))) == (Cart(1, ["a"]), [[1]], [1])


def test_what_was_read_can_be_changed_without_changing_the_state(cluster: Cluster) -> None:
    task = cluster.subtask()
    cart = task.state(ValueState(Cart, name="cart", default=Cart(0, [])))
    lists = task.state(ListState(list[int], name="lists"))
    entries = task.state(MapState(str, list[int], name="entries"))
    task.at("other", cart.value).items.append("z")
    task.at("k", lambda: (cart.update(Cart(1, ["a"])), lists.add([1]), entries.put("e", [1])))

    def change() -> None:
        cart.value().items.append("z")
        lists.get().append([9])
        lists.get()[0].append(9)
        entries.get("e").append(9)
        next(iter(entries.values())).append(9)

    for checkpoint in (1, 2):
        task.at("k", change)
        found = task.at("k", lambda: (cart.value(), lists.get(), entries.get("e")))
        assert found == (Cart(1, ["a"]), [[1]], [1])
        task.checkpoint(checkpoint)
    assert task.at("other", cart.value) == Cart(0, [])


def test_reducing_function_may_change_its_first_argument_in_place(cluster: Cluster) -> None:
    def merge(so_far: Cart, more: Cart) -> Cart:
        so_far.total += more.total
        so_far.items.extend(more.items)
        return so_far

    task = cluster.subtask()
    state = task.state(ReducingState(Cart, merge))
    first = Cart(1, ["a"])
    task.at("k", lambda: state.add(first))
    write = task.begin_checkpoint(1)
    task.at("k", lambda: state.add(Cart(2, ["b"])))
    handle = write()
    assert task.at("k", state.get) == Cart(3, ["a", "b"])
    assert first == Cart(1, ["a"])
    restored = cluster.subtask(restore=[handle])
    assert restored.at("k", restored.state(ReducingState(Cart, merge)).get) == Cart(1, ["a"])


def test_map_may_be_changed_while_it_is_iterated(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(MapState(str, int))
    task.at("k", lambda: [state.put(f"e{i}", i) for i in range(10)])

    def drop_odd() -> None:
        for name, value in state.items():
            if value % 2:
                state.remove(name)
            else:
                state.put(f"{name}!", value)

    task.at("k", drop_odd)
    assert task.at("k", lambda: sorted(state.values())) == sorted([0, 2, 4, 6, 8] * 2)


# ---- keys ----

KEYS: list[tuple[Any, list[Any]]] = [
    (int, [0, -1, 2**62, -(2**63)]),
    (str, ["", "a", "snow ☃", "a\0b", "x" * 1000]),
    (str | None, [None, "", "None"]),
    (bytes, [b"", b"\x00", b"\xff" * 300]),
    (float, [0.0, 1.5, math.nan, math.inf, -math.inf]),
    (bool, [True, False]),
    (dt.datetime, [dt.datetime(1969, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4)]),
    (dt.date, [dt.date(1969, 1, 1), dt.date(2024, 2, 29)]),
    (Decimal, [Decimal("1.1"), Decimal("-3"), Decimal("0")]),
    (tuple[str, int], [("a", 1), ("a", 2), ("", 0)]),
    (tuple[float, str | None], [(math.nan, None), (math.nan, ""), (0.0, None)]),
    (Point, [Point(1, "a"), Point(2, "a")]),
    (pa.schema([("user", pa.string())]), ["ann", None, "☃"]),
    (pa.schema([("user", pa.string()), ("day", pa.int32())]), [("ann", 1), ("ann", 2), (None, None)]),
    (pa.schema([("t", pa.timestamp("ms"))]), [dt.datetime(2020, 1, 1), None]),
]


@pytest.mark.parametrize(("key_type", "keys"), KEYS, ids=lambda v: str(v)[:40])
def test_keys_of_every_type_are_found_again(cluster: Cluster, key_type: Any, keys: list[Any]) -> None:
    task = cluster.subtask(key_type)
    state = task.state(ValueState(int))
    for i, key in enumerate(keys):
        task.at(key, lambda i=i: state.update(i))
    assert [task.at(k, state.value) for k in keys] == list(range(len(keys)))
    handle = task.checkpoint(1)
    assert [task.at(k, state.value) for k in keys] == list(range(len(keys)))
    restored = cluster.subtask(key_type, restore=[handle])
    again = restored.state(ValueState(int))
    assert [restored.at(k, again.value) for k in keys] == list(range(len(keys)))


def test_zero_has_one_sign_as_a_key(cluster: Cluster) -> None:
    task = cluster.subtask(float)
    state = task.state(ValueState(int))
    task.at(0.0, lambda: state.update(1))
    assert task.at(-0.0, state.value) == 1
    restored = cluster.subtask(float, restore=[task.checkpoint(1)])
    assert restored.at(-0.0, restored.state(ValueState(int)).value) == 1


def test_keys_without_a_type_cannot_be_checkpointed_and_the_message_says_what_to_do(cluster: Cluster) -> None:
    with pytest.raises(ProgramError, match=r"(?s)'counter'.*key.*return type"):
        task = cluster.subtask(object)
        state = task.state(ValueState(int))
        task.at(frozenset(), lambda: state.update(1))
        task.begin_checkpoint(1)()


def test_map_keys_of_every_type_are_found_again(cluster: Cluster) -> None:
    for key_type, keys in KEYS[:12]:
        keys = [k for k in keys if k is not None]
        key_type = str if key_type == str | None else key_type
        task = cluster.subtask()
        state = task.state(MapState(key_type, int))
        task.at("a", lambda s=state, ks=keys: [s.put(k, i) for i, k in enumerate(ks)])
        restored = cluster.subtask(restore=[task.checkpoint(1)])
        again = restored.state(MapState(key_type, int))
        for t, s in ((task, state), (restored, again)):
            assert t.at("a", lambda s=s, ks=keys: [s.get(k) for k in ks]) == list(range(len(keys)))
            assert len(t.at("a", lambda s=s: list(s.keys()))) == len(keys)


# ---- snapshots ----


def test_snapshot_is_not_touched_by_what_is_written_after_it(cluster: Cluster) -> None:
    task = cluster.subtask()
    total = task.state(ValueState(int, name="total"))
    items = task.state(ListState(int, name="items"))
    entries = task.state(MapState(str, int, name="entries"))
    task.at("a", lambda: (total.update(1), items.add(1), entries.put("x", 1), entries.put("y", 1)))
    write = task.begin_checkpoint(1)
    task.at("a", lambda: (total.update(2), items.add(2), entries.put("x", 2), entries.remove("y")))
    task.at("b", lambda: (total.update(3), items.add(3), entries.put("z", 3)))
    restored = cluster.subtask(restore=[write()])
    total = restored.state(ValueState(int, name="total"))
    items = restored.state(ListState(int, name="items"))
    entries = restored.state(MapState(str, int, name="entries"))
    assert restored.at("a", lambda: (total.value(), items.get(), dict(entries.items()))) == (
        1,
        [1],
        {"x": 1, "y": 1},
    )
    assert restored.at("b", lambda: (total.value(), items.get(), dict(entries.items()))) == (None, [], {})


def test_asynchronous_part_may_run_while_the_state_is_written(cluster: Cluster) -> None:
    keys = [f"k{i}" for i in range(2_000)]
    task = cluster.subtask()
    state = task.state(ValueState(int, default=0))
    entries = task.state(MapState(str, int, name="entries"))
    for round_number in range(1, 6):
        for key in keys:
            task.at(key, lambda r=round_number: (state.update(r), entries.put("last", r)))
        write = task.begin_checkpoint(round_number)
        found: list[Any] = []
        thread = threading.Thread(target=lambda w=write, f=found: f.append(w()))
        thread.start()
        while thread.is_alive():
            for key in keys[:100]:
                task.at(key, lambda r=round_number: (state.update(-r), entries.put("new", -r)))
        thread.join()
        task.backend.checkpoint_completed(round_number)
        restored = cluster.subtask(restore=found)
        again = restored.state(ValueState(int, default=0))
        expected = {round_number}
        assert {restored.at(k, again.value) for k in keys} == expected
    assert cluster.storage.files


def test_removed_keys_stay_removed(cluster: Cluster) -> None:
    task = cluster.subtask()
    total = task.state(ValueState(int, name="total"))
    items = task.state(ListState(int, name="items"))
    entries = task.state(MapState(str, int, name="entries"))
    for key in "abc":
        task.at(key, lambda: (total.update(1), items.add(1), entries.put("x", 1), entries.put("y", 1)))
    task.checkpoint(1)
    task.at("a", lambda: (total.clear(), items.clear(), entries.clear()))
    task.at("b", lambda: entries.remove("x"))
    handle = task.checkpoint(2)
    for t in (task, cluster.subtask(restore=[handle])):
        if t is not task:
            total = t.state(ValueState(int, name="total"))
            items = t.state(ListState(int, name="items"))
            entries = t.state(MapState(str, int, name="entries"))
        seen = {k: t.at(k, lambda: (total.value(), items.get(), dict(entries.items()))) for k in "abc"}
        assert seen == {
            "a": (None, [], {}),
            "b": (1, [1], {"y": 1}),
            "c": (1, [1], {"x": 1, "y": 1}),
        }


def test_removed_values_of_structured_types_stay_removed(cluster: Cluster) -> None:
    def states(t: Subtask) -> tuple[Any, Any, Any]:
        return (
            t.state(ValueState(Order, name="order")),
            t.state(MapState(Point, Order, name="orders", ttl="1 h")),
            t.state(ListState(Order, name="list")),
        )

    order = Order(1, Cart(2, ["x"]), Point(3, "p"), None)
    task = cluster.subtask(Point)
    single, entries, several = states(task)
    for i in range(4):
        key = Point(i, "k")
        task.at(key, lambda: (single.update(order), entries.put(Point(0, "e"), order), several.add(order)))
    task.checkpoint(1)
    task.at(Point(0, "k"), lambda: (single.clear(), entries.clear(), several.clear()))
    task.at(Point(1, "k"), lambda: (entries.remove(Point(0, "e")), single.update(None)))
    task.at(Point(2, "k"), lambda: (entries.clear(), entries.put(Point(9, "e"), order)))
    restored = cluster.subtask(Point, restore=[task.checkpoint(2)])
    single, entries, several = states(restored)
    seen = [
        restored.at(Point(i, "k"), lambda: (single.value(), dict(entries.items()), several.get()))
        for i in range(4)
    ]
    assert seen == [
        (None, {}, []),
        (None, {}, [order]),
        (order, {Point(9, "e"): order}, [order]),
        (order, {Point(0, "e"): order}, [order]),
    ]


def test_increment_after_a_completed_checkpoint_is_small(cluster: Cluster) -> None:
    task = cluster.subtask(int)
    state = task.state(ValueState(int))
    for key in range(20_000):
        task.at(key, lambda k=key: state.update(k * 7919))
    full = task.checkpoint(1)
    for key in range(0, 20_000, 200):
        task.at(key, lambda: state.update(-1))
    increment = task.checkpoint(2)
    assert full.bytes_new == full.bytes_full
    assert 0 < increment.bytes_new < full.bytes_new / 4
    assert {f.path for f in full.files} & {f.path for f in increment.files}
    restored = cluster.subtask(int, restore=[increment])
    again = restored.state(ValueState(int))
    assert [restored.at(k, again.value) for k in (0, 1, 200, 19_999)] == [-1, 7919, -1, 19_999 * 7919]


def test_what_an_aborted_checkpoint_had_is_in_the_next_one(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int))
    task.at("a", lambda: state.update(1))
    task.checkpoint(1)
    task.at("b", lambda: state.update(2))
    task.checkpoint(2, complete=False)
    task.at("c", lambda: state.update(3))
    handle = task.checkpoint(3)
    cluster.storage.verify(handle.files)
    restored = cluster.subtask(restore=[handle])
    again = restored.state(ValueState(int))
    assert [restored.at(k, again.value) for k in "abc"] == [1, 2, 3]


def test_an_aborted_checkpoint_whose_writing_never_began_does_no_harm(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int))
    for checkpoint in range(1, 8):
        task.at(f"k{checkpoint}", lambda c=checkpoint: state.update(c))
        if checkpoint % 3:
            task.begin_checkpoint(checkpoint)
            task.backend.checkpoint_aborted(checkpoint)
        else:
            task.checkpoint(checkpoint)
    restored = cluster.subtask(restore=[task.checkpoint(9)])
    again = restored.state(ValueState(int))
    assert [restored.at(f"k{c}", again.value) for c in range(1, 8)] == list(range(1, 8))


def test_checkpoints_may_overlap(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int))
    task.at("a", lambda: state.update(1))
    first = task.begin_checkpoint(1)
    task.at("b", lambda: state.update(2))
    second = task.begin_checkpoint(2)
    task.at("a", lambda: state.update(3))
    handles = [first(), second()]
    task.backend.checkpoint_completed(2)  # the first one is subsumed
    handles.append(task.checkpoint(3))
    seen = []
    for handle in handles:
        restored = cluster.subtask(restore=[handle])
        again = restored.state(ValueState(int))
        seen.append([restored.at(k, again.value) for k in "ab"])
    assert seen == [[1, None], [1, 2], [3, 2]]


def test_many_increments_stay_readable_and_bounded(cluster: Cluster) -> None:
    task = cluster.subtask(int)
    state = task.state(ValueState(int))
    expected: dict[int, int] = {}
    sizes = []
    for checkpoint in range(1, 41):
        for key in range(checkpoint * 37 % 200, 2_000, 11):
            expected[key] = checkpoint
            task.at(key, lambda c=checkpoint: state.update(c))
        handle = task.checkpoint(checkpoint)
        sizes.append(handle.bytes_full)
    restored = cluster.subtask(int, restore=[handle])
    again = restored.state(ValueState(int))
    assert {k: restored.at(k, again.value) for k in expected} == expected
    assert sizes[-1] < 60 * sizes[0], "a checkpoint must not refer to ever more files"


def test_checkpoint_of_nothing_restores_to_nothing(cluster: Cluster) -> None:
    task = cluster.subtask()
    task.state(ValueState(int))
    handle = task.checkpoint(1)
    restored = cluster.subtask(restore=[handle])
    assert restored.at("a", restored.state(ValueState(int)).value) is None


def test_failed_write_declines_the_checkpoint_and_loses_nothing(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int))
    task.at("a", lambda: state.update(1))
    write = task.begin_checkpoint(1)
    cluster.storage.refuse = True
    with pytest.raises(StorageError, match="disk is full"):
        write()
    cluster.storage.refuse = False
    task.backend.checkpoint_aborted(1)
    task.at("b", lambda: state.update(2))
    restored = cluster.subtask(restore=[task.checkpoint(2)])
    again = restored.state(ValueState(int))
    assert [restored.at(k, again.value) for k in "ab"] == [1, 2]


def test_notices_of_unknown_checkpoints_change_nothing(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int))
    task.backend.checkpoint_completed(40)
    task.backend.checkpoint_aborted(41)
    task.at("a", lambda: state.update(1))
    task.checkpoint(50)
    task.backend.checkpoint_completed(50)
    task.backend.checkpoint_aborted(50)
    task.at("b", lambda: state.update(2))
    restored = cluster.subtask(restore=[task.checkpoint(51)])
    again = restored.state(ValueState(int))
    assert [restored.at(k, again.value) for k in "ab"] == [1, 2]


# ---- restore ----


def _filled(cluster: Cluster, ranges: list[KeyGroupRange], keys: list[str]) -> list[Any]:
    """Handles of several subtasks; each has the keys of its range, some in an increment, some removed again."""
    handles = []
    for groups in ranges:
        task = cluster.subtask(key_groups=groups)
        state = task.state(ValueState(int))
        entries = task.state(MapState(str, int, name="entries"))
        mine = [k for k in keys if hash_value(k) % 128 in groups]
        for key in mine:
            task.at(key, lambda k=key: (state.update(len(k)), entries.put("a", 1), entries.put("b", 2)))
        task.checkpoint(1)
        for key in mine[::3]:
            task.at(key, lambda: (state.update(-1), entries.remove("b")))
        for key in mine[1::3]:
            task.at(key, state.clear)
        handles.append(task.checkpoint(2))
    return handles


@pytest.mark.parametrize(("before", "after"), [(2, 2), (4, 2), (2, 4), (1, 3), (3, 1), (3, 5)])
def test_keyed_state_is_redistributed_by_key_group(cluster: Cluster, before: int, after: int) -> None:
    keys = [f"user-{i * i}" for i in range(300)]
    handles = _filled(cluster, [key_group_range(i, before, 128) for i in range(before)], keys)
    plain: dict[str, Any] = {}
    for i in range(before):
        mine = [k for k in keys if hash_value(k) % 128 in key_group_range(i, before, 128)]
        plain |= {k: len(k) for k in mine} | dict.fromkeys(mine[::3], -1) | dict.fromkeys(mine[1::3])
    for i in range(after):
        groups = key_group_range(i, after, 128)
        mine = [k for k in keys if hash_value(k) % 128 in groups]
        overlapping = [h for h in handles if len(groups.intersection(h.range))]
        task = cluster.subtask(key_groups=groups, restore=overlapping)
        state = task.state(ValueState(int))
        entries = task.state(MapState(str, int, name="entries"))
        assert mine
        assert {k: task.at(k, state.value) for k in mine} == {k: plain[k] for k in mine}
        assert {task.at(k, lambda: len(list(entries.items()))) for k in mine if plain[k] == -1} == {1}
        others = [k for k in keys if k not in mine]
        assert {task.at(k, state.value) for k in others} <= {None}
        # ... and what was restored is in the next checkpoint, whatever it was made from.
        task.at(mine[0], lambda: state.update(77))
        again = cluster.subtask(key_groups=groups, restore=[task.checkpoint(3)])
        restored = again.state(ValueState(int))
        assert {k: again.at(k, restored.value) for k in mine} == {k: plain[k] for k in mine} | {mine[0]: 77}


def test_increments_go_on_after_a_restore(cluster: Cluster) -> None:
    task = cluster.subtask(int)
    state = task.state(ValueState(int))
    for key in range(5_000):
        task.at(key, lambda k=key: state.update(k * 31))
    handle = task.checkpoint(1)
    restored = cluster.subtask(int, restore=[handle])
    state = restored.state(ValueState(int))
    restored.at(5, lambda: state.update(-5))
    second = restored.checkpoint(2)
    assert second.bytes_new < handle.bytes_new / 4
    third_task = cluster.subtask(int, restore=[second])
    state = third_task.state(ValueState(int))
    assert [third_task.at(k, state.value) for k in (4, 5, 4_999)] == [124, -5, 4_999 * 31]


def test_a_state_that_is_not_declared_any_more_is_kept(cluster: Cluster) -> None:
    task = cluster.subtask()
    old = task.state(ValueState(int, name="old"))
    task.at("a", lambda: old.update(1))
    handle = task.checkpoint(1)
    middle = cluster.subtask(restore=[handle])
    new = middle.state(ValueState(str, name="new"))
    middle.at("a", lambda: new.update("x"))
    last = cluster.subtask(restore=[middle.checkpoint(2)])
    old = last.state(ValueState(int, name="old"))
    new = last.state(ValueState(str, name="new"))
    assert last.at("a", lambda: (old.value(), new.value())) == (1, "x")


@pytest.mark.parametrize(
    ("stored", "declared", "words"),
    [
        (ValueState(int, name="s"), ValueState(str, name="s"), ["int", "str"]),
        (ValueState(int, name="s"), ListState(int, name="s"), ["value", "list"]),
        (ValueState(Cart, name="s"), ValueState(Point, name="s"), ["Cart", "Point"]),
        (MapState(str, int, name="s"), MapState(str, float, name="s"), ["int", "float"]),
        (MapState(str, int, name="s"), MapState(int, int, name="s"), ["str", "int"]),
        (
            ValueState(int, name="s"),
            ValueState(int, name="s", serializer=PickleSerializer()),
            ["arrow", "pickle"],
        ),
        (ValueState(int, name="s"), ValueState(int, name="s", ttl="1 h"), ["time to live"]),
    ],
    ids=range(7),
)
def test_another_type_than_the_stored_one_is_refused_with_both(
    cluster: Cluster, stored: Any, declared: Any, words: list[str]
) -> None:
    task = cluster.subtask()
    task.state(stored)
    handle = task.checkpoint(1)
    restored = cluster.subtask(restore=[handle])
    with pytest.raises(StateCompatibilityError) as caught:
        restored.state(declared)
    message = str(caught.value)
    assert message.startswith("operator 'counter' cannot restore state 's': ")
    assert "in the checkpoint but" in message
    assert "in the program" in message
    assert all(word in message for word in words)


def test_another_key_type_is_refused(cluster: Cluster) -> None:
    task = cluster.subtask(int)
    task.state(ValueState(int))
    handle = task.checkpoint(1)
    with pytest.raises(StateCompatibilityError, match=r"(?s)'counter'.*'s'.*keys"):
        cluster.subtask(str, restore=[handle]).state(ValueState(int))


def test_length_of_the_ttl_and_names_of_classes_may_change(cluster: Cluster) -> None:
    @dataclasses.dataclass
    class Basket:
        total: int
        items: list[str]

    task = cluster.subtask(Point)
    state = task.state(ValueState(Cart, ttl="1 h"))
    task.at(Point(1, "x"), lambda: state.update(Cart(1, ["a"])))
    restored = cluster.subtask(tuple[int, str], restore=[task.checkpoint(1)])
    state = restored.state(ValueState(Basket, ttl="2 h"))
    assert restored.at((1, "x"), state.value) == Basket(1, ["a"])


def test_a_state_asked_for_twice_is_the_same(cluster: Cluster) -> None:
    task = cluster.subtask()
    one = task.state(ValueState(int))
    task.at("a", lambda: one.update(1))
    assert task.at("a", task.state(ValueState(int)).value) == 1


def test_elements_that_were_just_written_are_read_once(cluster: Cluster) -> None:
    """After a restore a list is read from the files, which have by then what is still on its way to them."""
    task = cluster.subtask()
    state = task.state(ListState(int))
    task.at("a", lambda: state.add(1))
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    state = restored.state(ListState(int))
    restored.at("a", lambda: state.add(2))
    restored.begin_checkpoint(2)()
    assert restored.at("a", state.get) == [1, 2]
    restored.backend.checkpoint_completed(2)
    restored.at("a", lambda: state.add(3))
    assert restored.at("a", state.get) == [1, 2, 3]
    again = cluster.subtask(restore=[restored.checkpoint(3)])
    assert again.at("a", again.state(ListState(int)).get) == [1, 2, 3]


# ---- time to live ----


def test_value_expires_after_its_ttl(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int, default=0, ttl=StateTtl(1_000)))
    task.at("a", lambda: state.update(1))
    cluster.advance(600)
    task.at("b", lambda: state.update(2))
    assert task.at("a", state.value) == 1
    cluster.advance(400)
    assert [task.at(k, state.value) for k in "ab"] == [0, 2]
    cluster.advance(600)
    assert [task.at(k, state.value) for k in "ab"] == [0, 0]


def test_writing_renews_the_ttl_and_reading_does_not(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int, ttl=StateTtl(1_000)))
    task.at("a", lambda: state.update(1))
    task.at("b", lambda: state.update(1))
    cluster.advance(900)
    task.at("a", lambda: state.update(2))
    task.at("b", state.value)
    cluster.advance(900)
    assert [task.at(k, state.value) for k in "ab"] == [2, None]


def test_reading_renews_the_ttl_where_it_is_asked_for(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int, ttl=StateTtl(1_000, refresh_on_read=True)))
    task.at("a", lambda: state.update(1))
    for _ in range(3):
        cluster.advance(900)
        assert task.at("a", state.value) == 1
    cluster.advance(1_000)
    assert task.at("a", state.value) is None


def test_map_entries_expire_one_by_one(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(MapState(str, int, ttl=StateTtl(1_000)))
    task.at("a", lambda: state.put("x", 1))
    cluster.advance(600)
    task.at("a", lambda: state.put("y", 2))
    cluster.advance(400)
    assert task.at("a", lambda: (dict(state.items()), state.contains("x"), state.get("x"))) == (
        {"y": 2},
        False,
        None,
    )
    cluster.advance(600)
    assert task.at("a", state.is_empty)


def test_list_expires_as_a_whole_after_its_last_write(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ListState(int, ttl=StateTtl(1_000)))
    task.at("a", lambda: state.add(1))
    cluster.advance(600)
    task.at("a", lambda: state.add(2))
    cluster.advance(600)
    assert task.at("a", state.get) == [1, 2]
    cluster.advance(400)
    assert task.at("a", state.get) == []
    task.at("a", lambda: state.add(3))
    assert task.at("a", state.get) == [3]


def test_reduced_and_aggregated_values_expire(cluster: Cluster) -> None:
    task = cluster.subtask()
    largest = task.state(ReducingState(int, max, name="largest", ttl=StateTtl(1_000)))
    mean = task.state(AggregatingState(tuple[float, int], Mean(), name="mean", ttl=StateTtl(1_000)))
    task.at("a", lambda: (largest.add(9), mean.add(9.0)))
    cluster.advance(1_000)
    assert task.at("a", lambda: (largest.get(), mean.get())) == (None, None)
    task.at("a", lambda: (largest.add(1), mean.add(1.0)))
    assert task.at("a", lambda: (largest.get(), mean.get())) == (1, 1.0)


def test_time_of_writing_survives_a_restore(cluster: Cluster) -> None:
    task = cluster.subtask()
    value = task.state(ValueState(int, name="value", ttl=StateTtl(1_000)))
    items = task.state(ListState(int, name="items", ttl=StateTtl(1_000)))
    entries = task.state(MapState(str, int, name="entries", ttl=StateTtl(1_000)))
    task.at("a", lambda: (value.update(1), items.add(1), entries.put("x", 1)))
    cluster.advance(600)
    task.at("b", lambda: (value.update(2), items.add(2), entries.put("x", 2)))
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    value = restored.state(ValueState(int, name="value", ttl=StateTtl(1_000)))
    items = restored.state(ListState(int, name="items", ttl=StateTtl(1_000)))
    entries = restored.state(MapState(str, int, name="entries", ttl=StateTtl(1_000)))
    read = lambda: (value.value(), items.get(), entries.get("x"))  # noqa: E731
    assert [restored.at(k, read) for k in "ab"] == [(1, [1], 1), (2, [2], 2)]
    cluster.advance(400)
    assert [restored.at(k, read) for k in "ab"] == [(None, [], None), (2, [2], 2)]


def test_event_time_ttl_follows_the_watermark(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int, ttl=StateTtl(1_000, time="event")))
    task.at("early", lambda: state.update(0))
    cluster.advance(1_000_000)
    assert task.at("early", state.value) == 0
    task.backend.current_watermark_ms = 5_000
    assert task.at("early", state.value) == 0, "what came before the first watermark counts from it"
    task.at("a", lambda: state.update(1))
    task.backend.current_watermark_ms = 5_999
    task.at("b", lambda: state.update(2))
    assert [task.at(k, state.value) for k in ("early", "a", "b")] == [0, 1, 2]
    task.backend.current_watermark_ms = 6_000
    assert [task.at(k, state.value) for k in ("early", "a", "b")] == [None, None, 2]


def test_what_had_expired_by_the_watermark_does_not_come_back_with_a_restore(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ValueState(int, ttl=StateTtl(1_000, time="event")))
    task.backend.current_watermark_ms = 5_000
    task.at("a", lambda: state.update(1))
    task.checkpoint(1)
    task.backend.current_watermark_ms = 5_500
    task.at("b", lambda: state.update(2))
    task.backend.current_watermark_ms = 6_000
    restored = cluster.subtask(restore=[task.checkpoint(2)])
    state = restored.state(ValueState(int, ttl=StateTtl(1_000, time="event")))
    assert [restored.at(k, state.value) for k in "ab"] == [None, 2]


def test_expired_values_are_removed_in_the_end(cluster: Cluster) -> None:
    task = cluster.subtask(int)
    state = task.state(ValueState(int, ttl=StateTtl(1_000)))
    entries = task.state(MapState(str, int, name="entries", ttl=StateTtl(1_000)))
    for round_number in range(40):
        for key in range(500):
            task.at(round_number * 500 + key, lambda: (state.update(1), entries.put("x", 1)))
        cluster.advance(500)
        task.checkpoint(round_number + 1)
    assert task.backend.key_count < 10_000, "40,000 entries were written, 2,000 to 3,000 of them are alive"


def test_a_list_that_was_refreshed_and_appended_to_after_the_barrier_is_stored_as_it_was(
    cluster: Cluster,
) -> None:
    ttl = StateTtl(1_000, refresh_on_read=True)
    task = cluster.subtask()
    state = task.state(ListState(int, ttl=ttl))
    task.at("a", lambda: state.add(1))
    part = task.begin_checkpoint(1)
    cluster.advance(1)
    assert task.at("a", state.get) == [1]
    task.at("a", lambda: state.add(2))
    restored = cluster.subtask(restore=[part()])
    assert restored.at("a", restored.state(ListState(int, ttl=ttl)).get) == [1]
    assert task.at("a", state.get) == [1, 2]


def test_a_list_that_expires_while_a_snapshot_is_written_keeps_what_was_added_in_time(
    cluster: Cluster,
) -> None:
    task = cluster.subtask()
    state = task.state(ListState(int, ttl=StateTtl(1_000)))
    task.at("a", lambda: state.add(1))
    part = task.begin_checkpoint(1)
    cluster.advance(900)
    task.at("a", lambda: state.add(2))
    cluster.advance(200)
    part()
    assert task.at("a", state.get) == [1, 2]
    restored = cluster.subtask(restore=[task.checkpoint(2)])
    assert restored.at("a", restored.state(ListState(int, ttl=StateTtl(1_000))).get) == [1, 2]


@pytest.mark.parametrize("refresh", [False, True])
def test_what_expires_by_the_watermark_after_the_barrier_is_in_the_checkpoint(
    cluster: Cluster, refresh: bool
) -> None:
    ttl = StateTtl(1_000, time="event", refresh_on_read=refresh)
    kinds: list[Callable[[], KeyedState]] = [
        lambda: ValueState(int, name="value", ttl=ttl),
        lambda: MapState(str, int, name="entries", ttl=ttl),
        lambda: ListState(int, name="items", ttl=ttl),
    ]
    task = cluster.subtask()
    value, entries, items = (task.state(make()) for make in kinds)
    task.backend.current_watermark_ms = 5_000
    task.at("a", lambda: (value.update(1), entries.put("x", 1), items.add(1)))
    part = task.begin_checkpoint(1)
    task.backend.current_watermark_ms = 6_000
    restored = cluster.subtask(restore=[part()])
    value, entries, items = (restored.state(make()) for make in kinds)
    assert restored.at("a", lambda: (value.value(), entries.get("x"), items.get())) == (1, 1, [1])


def test_what_has_expired_stays_so_when_the_clock_is_set_back(cluster: Cluster) -> None:
    task = cluster.subtask()
    value = task.state(ValueState(int, name="value", ttl=StateTtl(1_000)))
    items = task.state(ListState(int, name="items", ttl=StateTtl(1_000)))
    task.at("a", lambda: (value.update(1), items.add(1)))
    cluster.advance(1_000)
    task.checkpoint(1)
    cluster.clock.set_back(500)
    assert task.at("a", lambda: (value.value(), items.get())) == (None, [])
    task.at("a", lambda: items.add(2))
    assert task.at("a", items.get) == [2]
    restored = cluster.subtask(restore=[task.checkpoint(2)])
    items = restored.state(ListState(int, name="items", ttl=StateTtl(1_000)))
    assert restored.at("a", items.get) == [2]


def test_iterating_a_map_refreshes_its_entries_and_asking_whether_it_is_empty_does_not(
    cluster: Cluster,
) -> None:
    task = cluster.subtask()
    state = task.state(MapState(str, int, ttl=StateTtl(1_000, refresh_on_read=True)))
    task.at("a", lambda: state.put("x", 1))
    task.at("b", lambda: state.put("x", 2))
    cluster.advance(900)
    assert task.at("a", lambda: dict(state.items())) == {"x": 1}
    assert not task.at("b", state.is_empty)
    assert set(task.backend.keys("s")) == {"a", "b"}
    cluster.advance(900)
    assert [task.at(k, lambda: state.get("x")) for k in "ab"] == [1, None]


def test_adding_nothing_to_a_list_does_not_keep_it_alive(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ListState(int, ttl=StateTtl(1_000)))
    task.at("a", lambda: state.add(1))
    cluster.advance(900)
    task.at("a", lambda: state.add_all([]))
    cluster.advance(100)
    assert task.at("a", state.get) == []


def test_a_list_that_is_read_between_many_checkpoints_stays_small(cluster: Cluster) -> None:
    task = cluster.subtask()
    state = task.state(ListState(int, ttl=StateTtl(1_000, refresh_on_read=True)))
    task.at("a", lambda: state.add(1))
    for checkpoint in range(1, 100):
        cluster.advance(500)
        assert task.at("a", state.get) == [1]
        task.checkpoint(checkpoint)
    assert task.backend.key_count < 50
    restored = cluster.subtask(restore=[task.checkpoint(100)])
    state = restored.state(ListState(int, ttl=StateTtl(1_000, refresh_on_read=True)))
    assert restored.at("a", state.get) == [1]


# ---- column tables ----

COUNTS = [ColumnArray("count", np.dtype(np.int64), 0)]
TWO = [ColumnArray("sum", np.dtype(np.float64), 0.0), ColumnArray("seen", np.dtype(np.bool_), False)]


def _add_counts(table: Any, *keys: pa.Array) -> dict[Any, int]:
    """Count rows, and return what the batch's keys have then."""
    ids, count, (totals,) = table.begin(keys)
    assert len(totals) >= count
    assert int(ids.max(initial=-1)) < count
    np.add.at(totals, ids, 1)
    rows = list(zip(*(k.to_pylist() for k in keys), strict=True))
    found = {row if len(row) > 1 else row[0]: int(totals[i]) for row, i in zip(rows, ids, strict=True)}
    table.commit(np.unique(ids))
    return found


def test_column_table_keeps_arrays_by_key(cluster: Cluster) -> None:
    task = cluster.subtask()
    table = task.backend.columns("count", COUNTS)
    assert _add_counts(table, pa.array(["a", "b", "a"])) == {"a": 2, "b": 1}
    assert _add_counts(table, pa.array(["c", "a"])) == {"c": 1, "a": 3}
    assert _add_counts(table, pa.array([], pa.string())) == {}


def test_column_table_survives_checkpoints_and_restores(cluster: Cluster) -> None:
    rng = np.random.default_rng(5)
    task = cluster.subtask(int)
    table = task.backend.columns("count", COUNTS)
    expected = np.zeros(400, np.int64)
    for checkpoint in range(1, 12):
        batch = rng.integers(0, 400 if checkpoint < 6 else 40, 300)
        np.add.at(expected, batch, 1)
        _add_counts(table, pa.array(batch))
        handle = task.checkpoint(checkpoint, complete=checkpoint % 4 != 2)
        if checkpoint in (5, 9):
            task = cluster.subtask(int, restore=[handle])
            table = task.backend.columns("count", COUNTS)
    restored = cluster.subtask(int, restore=[handle])
    table = restored.backend.columns("count", COUNTS)
    ids, _, (totals,) = table.begin([pa.array(np.arange(400))])
    assert totals[ids].tolist() == expected.tolist()


def test_column_table_snapshot_is_not_touched_by_later_batches(cluster: Cluster) -> None:
    task = cluster.subtask()
    table = task.backend.columns("count", COUNTS)
    _add_counts(table, pa.array(["a", "b"]))
    write = task.begin_checkpoint(1)
    _add_counts(table, pa.array(["a", "c", None] * 5_000))
    restored = cluster.subtask(restore=[write()])
    again = restored.backend.columns("count", COUNTS)
    assert _add_counts(again, pa.array(["a", "b", "c"])) == {"a": 2, "b": 2, "c": 1}


def test_column_table_is_redistributed_by_key_group(cluster: Cluster) -> None:
    keys = [f"user-{i}" for i in range(500)]
    task = cluster.subtask()
    table = task.backend.columns("count", COUNTS)
    _add_counts(table, pa.array(keys))
    task.checkpoint(1)
    _add_counts(table, pa.array(keys[::2]))
    handle = task.checkpoint(2)
    parts = [key_group_range(i, 3, 128) for i in range(3)]
    handles = []
    for groups in parts:
        part = cluster.subtask(key_groups=groups, restore=[handle])
        table = part.backend.columns("count", COUNTS)
        mine = [k for k in keys if hash_value(k) % 128 in groups]
        if (
            cluster.kind == "heap"
        ):  # RocksDB's estimate counts what was deleted by range until it is compacted
            assert part.backend.key_count == len(mine)
        _add_counts(table, pa.array(mine))
        handles.append(part.checkpoint(3))
    whole = cluster.subtask(key_groups=ALL, restore=handles)
    table = whole.backend.columns("count", COUNTS)
    ids, _, (totals,) = table.begin([pa.array(keys)])
    assert totals[ids].tolist() == [3, 2] * 250


def test_column_table_of_decimals_survives_checkpoints_and_restores(cluster: Cluster) -> None:
    money = pa.decimal128(38, 2)
    declared = [ColumnArray("sum", PAIR, np.zeros(1, PAIR)[0], money)]
    values = [Decimal("-0.01"), Decimal("99999999999999999999.99"), Decimal(0)]
    task = cluster.subtask()
    table = task.backend.columns("sum", declared)
    ids, _, (totals,) = table.begin([pa.array(["a", "b", "c"])])
    totals[ids] = pairs_of(pa.array(values, money))
    table.commit()
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    table = restored.backend.columns("sum", declared)
    ids, _, (totals,) = table.begin([pa.array(["c", "b", "a", "new"])])
    assert array_of_pairs(totals[ids], money).to_pylist() == [*reversed(values), Decimal(0)]
    other = [ColumnArray("sum", PAIR, np.zeros(1, PAIR)[0], pa.decimal128(38, 3))]
    with pytest.raises(StateCompatibilityError, match=r"decimal128\(38, 2\)"):
        cluster.subtask(restore=[task.checkpoint(2)]).backend.columns("sum", other)


def test_column_table_with_composite_keys_nulls_and_several_arrays(cluster: Cluster) -> None:
    key_type = pa.schema([("user", pa.string()), ("amount", pa.float64()), ("day", pa.date32())])
    keys = [
        pa.array(["a", "a", None, "a"]),
        pa.array([math.nan, 1.5, None, math.nan]),
        pa.array([dt.date(2020, 1, 1), None, None, dt.date(2020, 1, 1)]),
    ]
    task = cluster.subtask(key_type)
    table = task.backend.columns("sum", TWO)
    ids, _, (sums, seen) = table.begin(keys)
    assert seen[ids].tolist() == [False] * 4
    np.add.at(sums, ids, [1.0, 2.0, 3.0, 4.0])
    seen[ids] = True
    table.commit()
    restored = cluster.subtask(key_type, restore=[task.checkpoint(1)])
    table = restored.backend.columns("sum", TWO)
    ids, _, (sums, seen) = table.begin(keys)
    assert sums[ids].tolist() == [5.0, 2.0, 3.0, 5.0]
    assert seen[ids].tolist() == [True] * 4


def test_column_increment_is_small(cluster: Cluster) -> None:
    task = cluster.subtask(int)
    table = task.backend.columns("count", COUNTS)
    _add_counts(table, pa.array(np.arange(50_000)))
    full = task.checkpoint(1)
    _add_counts(table, pa.array(np.arange(0, 50_000, 100)))
    increment = task.checkpoint(2)
    assert 0 < increment.bytes_new < full.bytes_new / 10


def test_column_table_of_other_arrays_is_refused(cluster: Cluster) -> None:
    task = cluster.subtask()
    task.backend.columns("count", COUNTS)
    handle = task.checkpoint(1)
    with pytest.raises(StateCompatibilityError, match=r"(?s)'counter'.*'count'.*count: int64.*sum: float64"):
        cluster.subtask(restore=[handle]).backend.columns("count", TWO)


def test_column_table_and_row_states_live_side_by_side(cluster: Cluster) -> None:
    task = cluster.subtask()
    table = task.backend.columns("count", COUNTS)
    state = task.state(ValueState(int))
    _add_counts(table, pa.array(["a"]))
    task.at("a", lambda: state.update(5))
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    assert restored.at("a", restored.state(ValueState(int)).value) == 5
    assert _add_counts(restored.backend.columns("count", COUNTS), pa.array(["a"])) == {"a": 2}


# ---- values that do not fit inside ----


class Place(NamedTuple):
    name: str
    floors: list[int]


@dataclasses.dataclass
class Visit:
    user: str
    seconds: dict[str, int]


class Append(AggregateFunction[Any, list[int], list[int]]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return one + other


MISFITS: list[tuple[KeyedState, Callable[[Any], None]]] = [
    (ValueState(int, name="s"), lambda s: s.update(1 << 63)),
    (ValueState(str, name="s"), lambda s: s.update("half of a pair: \ud800")),
    (ValueState(dict[str, int], name="s"), lambda s: s.update({"a": "1"})),
    (ValueState(dict[str, int], name="s"), lambda s: s.update({1: 1})),
    (ValueState(dict[str, int], name="s"), lambda s: s.update({"a": None})),
    (ValueState(list[int], name="s"), lambda s: s.update([1, 1 << 63])),
    (ValueState(list[dict[str, int]], name="s"), lambda s: s.update([5])),
    (ValueState(tuple[int, str], name="s"), lambda s: s.update((1, 2))),
    (ValueState(tuple[int, str], name="s"), lambda s: s.update((1, "a", "b"))),
    (ValueState(Place, name="s"), lambda s: s.update(Place("a", ["1"]))),  # type: ignore[list-item]
    (ValueState(Visit, name="s"), lambda s: s.update(Visit("a", {"x": 1.5}))),  # type: ignore[dict-item]
    (ValueState(list[Visit], name="s"), lambda s: s.update([Visit("a", {}), Visit(None, {})])),  # type: ignore[arg-type]
    (ValueState(dt.datetime, name="s"), lambda s: s.update(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))),
    (ListState(list[int], name="s"), lambda s: s.add(["1"])),
    (ListState(list[int], name="s"), lambda s: s.add_all([[1], ["1"]])),
    (ListState(list[int], name="s"), lambda s: s.update([["1"]])),
    (MapState(str, list[int], name="s"), lambda s: s.put("x", ["1"])),
    (MapState(int, int, name="s"), lambda s: s.put(1 << 63, 1)),
    (MapState(tuple[str, int], int, name="s"), lambda s: s.put(("a", "b"), 1)),
    (ReducingState(list[int], lambda a, b: a, name="s"), lambda s: s.add(["1"])),
    (AggregatingState(list[int], Append(), name="s"), lambda s: s.add("1")),
]


@pytest.mark.parametrize(("declaration", "put"), MISFITS, ids=[str(i) for i in range(len(MISFITS))])
def test_a_value_that_does_not_fit_inside_is_refused_where_it_is_put(
    cluster: Cluster, declaration: KeyedState, put: Callable[[Any], None]
) -> None:
    task = cluster.subtask()
    state = task.state(declaration)
    with pytest.raises(SerializationError, match=r"operator 'counter': state 's' cannot store"):
        task.at("a", lambda: put(state))
    task.checkpoint(1)


def test_close_relatives_are_taken_inside_too(cluster: Cluster) -> None:
    task = cluster.subtask()
    numbers = task.state(ValueState(list[int], name="numbers"))
    times = task.state(ValueState(dict[str, float], name="times"))
    task.at("a", lambda: (numbers.update([np.int64(1), 2]), times.update({"x": 1.0})))
    restored = cluster.subtask(restore=[task.checkpoint(1)])
    numbers = restored.state(ValueState(list[int], name="numbers"))
    assert restored.at("a", numbers.value) == [1, 2]
