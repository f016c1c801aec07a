"""Metrics of a subtask."""

from __future__ import annotations

from tidegate.metrics.registry import TaskMetrics


def test_gauges_of_one_name_are_added_up_over_the_operators_of_a_chain() -> None:
    task = TaskMetrics(subtask=0, now_ns=0)
    first, second = task.gauge("timers"), task.gauge("timers")
    first.set(3)
    second.set(4)
    second.set(2)
    assert task.snapshot(now_ns=1).gauges == {"timers": 5}
