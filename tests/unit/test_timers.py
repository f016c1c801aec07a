"""The queue of timers, and a model test against a sorted list; `tests/contract/test_timers.py` has the backends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.state import timer_queue
from tidegate.state.timer_queue import Namespace, TimerQueue


def taken(queue: TimerQueue, until_ms: int) -> list[tuple[int, Any, Namespace]]:
    return list(queue.due(until_ms))


def test_timers_fire_by_time_and_at_one_time_in_order_of_registration() -> None:
    queue = TimerQueue()
    for key, time in [("b", 20), ("z", 10), ("a", 20), ("y", 30)]:
        queue.register(key, time)
    assert taken(queue, 20) == [(10, "z", None), (20, "b", None), (20, "a", None)]
    assert queue.pending == 1
    assert queue.next_ms == 30


def test_a_timer_registered_twice_fires_once() -> None:
    queue = TimerQueue()
    queue.register("a", 10)
    queue.register("a", 10)
    queue.written()
    queue.register("a", 10)
    queue.register("a", 10, (0, 5))
    queue.register("a", 10, (0, 5))
    assert queue.pending == 2
    assert taken(queue, 10) == [(10, "a", None), (10, "a", (0, 5))]
    assert taken(queue, 10) == []
    assert (queue.pending, queue.next_ms) == (0, None)


def test_a_deleted_timer_does_not_fire_and_deleting_what_is_not_there_changes_nothing() -> None:
    queue = TimerQueue()
    for ns in (None, (0, 5), (5, 10)):
        queue.register("a", 10, ns)
    queue.delete("a", 10, (0, 5))
    queue.delete("a", 10, (7, 7))
    queue.delete("a", 11)
    queue.delete("b", 10)
    assert queue.pending == 2
    assert taken(queue, 10) == [(10, "a", None), (10, "a", (5, 10))]


def test_what_a_callback_registers_fires_in_the_same_pass_in_its_place() -> None:
    queue = TimerQueue()
    for key in ("a", "b"):
        queue.register(key, 10)
    queue.register("c", 30)
    seen = []
    for time, key, _ in queue.due(30):
        seen.append((time, key))
        if (time, key) == (10, "a"):
            queue.register("late", 5)
            queue.register("again", 10)
            queue.register("between", 20)
            queue.register("future", 31)
            queue.delete("b", 10)
    assert seen == [(10, "a"), (5, "late"), (10, "again"), (20, "between"), (30, "c")]
    assert queue.next_ms == 31


def test_callbacks_may_go_back_in_time_ten_thousand_times() -> None:
    queue = TimerQueue()
    for i in range(3):
        queue.register(i, 10_000)
    seen = []
    for time, key, _ in queue.due(10_000):
        seen.append(time)
        if key == 0 and time:
            queue.register(0, time - 1)
    assert seen == [*range(10_000, -1, -1), 10_000, 10_000]


def test_timers_that_were_not_taken_are_still_there() -> None:
    queue = TimerQueue()
    queue.register_all(range(5), [1, 1, 1, 2, 2])
    for _, key, _ in queue.due(2):
        if key == 1:
            break
    assert queue.pending == 3
    assert [key for _, key, _ in queue.due(2)] == [2, 3, 4]


def test_thousands_of_times_fire_in_order_and_those_not_taken_are_still_there() -> None:
    queue = TimerQueue()
    times = [(i * 7919) % 10_007 for i in range(10_007)]
    queue.register_all(times, times)
    queue.written()
    seen = []
    for time, key, _ in queue.due(5_000):
        assert time == key
        seen.append(time)
        if time == 3_000:
            queue.register("earlier", 10)
            assert queue.pending == 7_007
            break
    assert [t for t, _, _ in queue.due(5_000)] == [10, *range(3_001, 5_001)]
    assert seen == list(range(3_001))
    assert queue.next_ms == 5_001


def test_times_of_deleted_timers_do_not_pile_up() -> None:
    queue = TimerQueue()
    queue.register("stays", 50)
    for time in range(100_000):
        queue.register("session", time)
        if time:
            queue.delete("session", time - 1)
    assert len(queue._times) < 3_000
    assert taken(queue, 100_000) == [(50, "stays", None), (99_999, "session", None)]


def test_registered_and_fired_between_two_snapshots_is_no_change() -> None:
    queue = TimerQueue()
    queue.register("a", 10)
    queue.written()
    queue.register("b", 10)
    queue.register("c", 20)
    taken(queue, 10)
    queue.delete("c", 20)
    assert {t: keys for t, keys in queue.new.items() if keys} == {}
    assert queue.removed == ([10], ["a"])


keys = st.sampled_from("abc")
times = st.integers(0, 6)
namespaces = st.sampled_from([None, (0, 1), (1, 2)])
timers = st.tuples(keys, times, namespaces)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.lists(timers, max_size=4)),
        st.tuples(st.just("delete"), timers),
        st.tuples(st.just("fire"), times, st.lists(st.tuples(st.booleans(), timers), max_size=6)),
        st.tuples(st.just("snapshot")),
    ),
    max_size=40,
)


@given(steps)
def test_a_queue_is_a_sorted_list(steps: list[Any]) -> None:
    check_against_a_list(steps)


@given(steps)
def test_a_queue_that_takes_many_times_at_once_is_a_sorted_list(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer_queue, "_FEW_TIMES", 0)
        check_against_a_list(steps)


def check_against_a_list(steps: list[Any]) -> None:
    queue = TimerQueue()
    pending: list[tuple[int, Any, Namespace]] = []
    durable: dict[tuple[int, Any], set[Namespace]] = {}

    def register(key: str, time: int, ns: Namespace) -> None:
        queue.register(key, time, ns)
        if (time, key, ns) not in pending:
            pending.append((time, key, ns))

    def delete(key: str, time: int, ns: Namespace) -> None:
        queue.delete(key, time, ns)
        if (time, key, ns) in pending:
            pending.remove((time, key, ns))

    for step in steps:
        match step:
            case ("register", several):
                for timer in several:
                    register(*timer)
            case ("delete", timer):
                delete(*timer)
            case ("fire", until, actions):
                waiting = list(actions)
                for fired in queue.due(until):
                    same_key = [t for t in pending if t[:2] == fired[:2]]
                    assert fired[0] == min(t for t, _, _ in pending)
                    assert fired == same_key[0], "timers of a key and time fire in order of registration"
                    pending.remove(fired)
                    if waiting:
                        is_new, timer = waiting.pop()
                        (register if is_new else delete)(*timer)
                assert all(t > until for t, _, _ in pending)
            case ("snapshot",):
                for time, key in zip(*queue.removed, strict=True):
                    if key not in queue.new.get(time, {}):
                        del durable[time, key]
                for time, new in queue.new.items():
                    for key, have in new.items():
                        durable[time, key] = {have} if have is None or isinstance(have[0], int) else set(have)
                queue.written()
                model: dict[tuple[int, Any], set[Namespace]] = {}
                for time, key, ns in pending:
                    model.setdefault((time, key), set()).add(ns)
                assert durable == model
        assert queue.pending == len(pending)
        assert queue.next_ms == min((t for t, _, _ in pending), default=None)
