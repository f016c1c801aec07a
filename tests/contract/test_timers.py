"""Timers over every state backend: what a snapshot has, what a restore gives back, and key groups that move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.state_backend_kit import Cluster, Subtask, backend_kinds
from tidegate.core.key_groups import key_group_range
from tidegate.state.timers import EVENT_TIMERS, PROCESSING_TIMERS, TimerService


@pytest.fixture(params=backend_kinds())
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(request.param, tmp_path)
    yield made
    made.close()


def checkpoint(task: Subtask, timers: TimerService, checkpoint_id: int, complete: bool = True) -> Any:
    timers.snapshot()
    return task.checkpoint(checkpoint_id, complete)


def all_event_time(timers: TimerService) -> list[Any]:
    return sorted(timers.due_event_time(2**63 - 1), key=repr)


def test_timers_of_both_times_come_back_with_their_namespaces(cluster: Cluster) -> None:
    task = cluster.subtask()
    timers = TimerService(task.backend)
    timers.register_event_time("a", 10)
    timers.register_event_time("a", 10, (0, 11))
    timers.register_event_time("a", 10, (-5, 11))
    timers.register_event_time("b", -(2**63), (-(2**63), 2**63 - 1))
    timers.register_processing_times(["a", "b"], [2**63 - 1, 7])
    handle = checkpoint(task, timers, 1)

    restored = TimerService(cluster.subtask(restore=[handle]).backend)
    assert restored.pending_event_time == 4
    assert restored.pending_processing_time == 2
    assert restored.next_processing_time_ms == 7
    assert list(restored.due_event_time(10)) == [
        (-(2**63), "b", (-(2**63), 2**63 - 1)),
        (10, "a", None),
        (10, "a", (0, 11)),
        (10, "a", (-5, 11)),
    ]
    assert list(restored.due_processing_time(7)) == [(7, "b", None)]
    assert restored.next_processing_time_ms == 2**63 - 1


def test_fired_and_deleted_timers_do_not_come_back(cluster: Cluster) -> None:
    task = cluster.subtask()
    timers = TimerService(task.backend)
    timers.register_event_times(["a", "b", "c", "d"], [10, 20, 30, 30])
    timers.register_event_time("c", 30, (0, 1))
    checkpoint(task, timers, 1)
    assert len(list(timers.due_event_time(10))) == 1
    timers.delete_event_time("b", 20)
    timers.delete_event_time("c", 30)
    timers.delete_event_time("d", 30)
    timers.register_event_time("d", 30)
    handle = checkpoint(task, timers, 2)
    restored = TimerService(cluster.subtask(restore=[handle]).backend)
    assert all_event_time(restored) == [(30, "c", (0, 1)), (30, "d", None)]


def test_what_changed_before_an_aborted_checkpoint_is_in_the_next_one(cluster: Cluster) -> None:
    task = cluster.subtask()
    timers = TimerService(task.backend)
    timers.register_event_times(["a", "b"], [10, 20])
    checkpoint(task, timers, 1)
    timers.register_event_time("c", 30)
    list(timers.due_event_time(10))
    checkpoint(task, timers, 2, complete=False)
    timers.register_event_time("d", 40)
    handle = checkpoint(task, timers, 3)
    restored = TimerService(cluster.subtask(restore=[handle]).backend)
    assert all_event_time(restored) == [(20, "b", None), (30, "c", None), (40, "d", None)]


def test_restored_timers_fire_are_deduplicated_and_deleted_for_good(cluster: Cluster) -> None:
    task = cluster.subtask()
    timers = TimerService(task.backend)
    timers.register_event_times("abcd", [10, 10, 20, 20])
    handle = checkpoint(task, timers, 1)
    task = cluster.subtask(restore=[handle])
    timers = TimerService(task.backend)
    timers.register_event_time("c", 20)
    timers.delete_event_time("d", 20)
    assert timers.pending == 3
    assert len(list(timers.due_event_time(10))) == 2
    handle = checkpoint(task, timers, 2)
    restored = TimerService(cluster.subtask(restore=[handle]).backend)
    assert all_event_time(restored) == [(20, "c", None)]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_timers_move_with_their_key_groups(cluster: Cluster, before: int, after: int) -> None:
    keys = [f"key-{i}" for i in range(200)]
    task = cluster.subtask()
    timers = TimerService(task.backend)
    timers.register_event_times(keys, range(200))
    handles = [checkpoint(task, timers, 1)]
    for count in (before, after):
        ranges = [key_group_range(i, count, 128) for i in range(count)]
        tasks = [
            cluster.subtask(key_groups=r, restore=[h for h in handles if len(r.intersection(h.range))])
            for r in ranges
        ]
        services = [TimerService(t.backend) for t in tasks]
        handles = [checkpoint(t, s, 2) for t, s in zip(tasks, services, strict=True)]
    found = [[key for _, key, _ in s.due_event_time(1000)] for s in services]
    assert all(found)
    assert sorted(k for part in found for k in part) == sorted(keys)


def test_keys_of_several_columns_come_back(cluster: Cluster) -> None:
    task = cluster.subtask(tuple[str, int])
    timers = TimerService(task.backend)
    timers.register_event_time(("a", 1), 10)
    timers.register_event_time(("a", 2), 10, (0, 1))
    handle = checkpoint(task, timers, 1)
    restored = TimerService(cluster.subtask(tuple[str, int], restore=[handle]).backend)
    assert all_event_time(restored) == [(10, ("a", 1), None), (10, ("a", 2), (0, 1))]


def test_timers_are_states_with_names_of_their_own(cluster: Cluster) -> None:
    task = cluster.subtask()
    timers = TimerService(task.backend)
    timers.register_event_time("a", 1)
    handle = checkpoint(task, timers, 1)
    assert {s.name for s in handle.states} == {EVENT_TIMERS, PROCESSING_TIMERS} == task.backend.claimed
