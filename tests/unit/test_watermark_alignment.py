"""Sources of one alignment group do not run ahead of the slowest by more than they may."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate import Environment, WatermarkStrategy
from tidegate.api.source import IDLE
from tidegate.cli.progress import Rates, plain_line
from tidegate.metrics.event_time import watermark_lines
from tidegate.metrics.snapshot import EventTime, JobMetrics, SubtaskMetrics, VertexMetrics
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.testing.harness import OperatorHarness

ALIGNED = WatermarkStrategy.monotonous("value").with_alignment("g", "100 ms").with_idleness("1 s")


@pytest.fixture
def source() -> Any:
    env = Environment(watermark_interval=0, batch_rows=50)
    stream = env._read(_numbers(env), "numbers", {}, ALIGNED)
    with OperatorHarness.of(stream, options=env.options) as harness:
        harness.operator.start()
        yield harness


def _numbers(env: Environment) -> Any:
    return env.from_sequence(1, 10_000)._node.operation.source


def give_all(harness: OperatorHarness) -> None:
    import msgspec

    source = harness.operator.operation.source
    splits: list[Any] = []

    class Context:
        parallelism = 1
        clock = harness.clock

        def assign(self, found: Any, subtask: int) -> None:
            splits.extend(found)

        def no_more_splits(self, subtask: int) -> None: ...

    source.create_enumerator(Context()).handle_split_request(0)
    harness.add_splits([msgspec.json.encode(s) for s in splits])


def test_a_source_that_is_ahead_waits_until_the_slowest_has_come_near(source: OperatorHarness):
    give_all(source)
    assert source.reports == [("g", MIN_TIMESTAMP)]
    assert source.poll() is None  # the numbers up to 50
    source.advance_clock(0)
    assert source.reports[-1] == ("g", 49)
    source.operator.align("g", -80)  # so it may be at 20
    assert source.poll() is IDLE
    assert source.operator.align("other", 500) is False
    assert source.poll() is IDLE
    assert source.operator.align("g", 0) is True
    assert source.poll() is None


def test_a_source_that_has_to_wait_is_not_idle(source: OperatorHarness):
    give_all(source)
    source.poll()
    source.advance_clock(0)
    source.operator.align("g", -1000)
    source.advance_clock(5_000)
    assert source.statuses == []
    assert source.operator.align("g", 0)
    source.advance_clock(500)
    assert source.statuses == []
    source.advance_clock(500)
    assert source.statuses == [True]
    assert source.reports[-1] == ("g", None)


def test_the_display_names_what_holds_a_watermark_back():
    sources = tuple(
        SubtaskMetrics(subtask=i, time=EventTime(watermark_ms=mark, split=f"partition {i}", quiet_ms=quiet))
        for i, mark, quiet in ((0, 90_000, 0), (1, 3_000, 40_000))
    )
    count = SubtaskMetrics(subtask=0, time=EventTime(watermark_ms=3_000, held_by=(0, 1)))
    metrics = JobMetrics(
        name="pv",
        status="RUNNING",
        elapsed_ms=1,
        vertices=(
            VertexMetrics(vertex=0, name="clicks", parallelism=2, subtasks=sources),
            VertexMetrics(vertex=1, name="count", parallelism=1, subtasks=(count,)),
            VertexMetrics(vertex=2, name="sink", parallelism=1, subtasks=(SubtaskMetrics(subtask=0),)),
        ),
    )
    assert watermark_lines(metrics)[1] == (
        "count: watermark 1970-01-01 00:00:03, held by clicks/partition 1, without records for 40.0 s"
    )
    assert len(watermark_lines(metrics)) == 2


def test_the_plain_line_says_how_far_the_slowest_operator_is_behind():
    def vertex(number: int, name: str, time: EventTime) -> VertexMetrics:
        return VertexMetrics(
            vertex=number, name=name, parallelism=1, subtasks=(SubtaskMetrics(subtask=0, time=time),)
        )

    def line(*vertices: VertexMetrics) -> str:
        metrics = JobMetrics(name="pv", status="RUNNING", elapsed_ms=1, vertices=vertices)
        return plain_line(metrics, Rates().add(metrics))

    clicks = vertex(0, "clicks", EventTime(watermark_ms=3_000, lag_ms=7_300, split="p1", quiet_ms=5_300))
    bids = vertex(1, "bids", EventTime(watermark_ms=8_000, lag_ms=2_300))
    join = vertex(2, "join", EventTime(watermark_ms=3_000, lag_ms=7_400, held_by=(0, 0)))
    held = " | watermark 7.4 s behind, held by clicks/p1, without records for 5.3 s"
    assert line(clicks, bids, join).endswith(held)
    assert "watermark" not in line(vertex(0, "clicks", EventTime(watermark_ms=(1 << 63) - 1)))
    assert "watermark" not in line(vertex(0, "clicks", EventTime(watermark_ms=1, lag_ms=5, idle=True)))


def test_the_display_says_how_many_records_were_too_late():
    time = EventTime(watermark_ms=(1 << 63) - 1)
    count = VertexMetrics(
        vertex=0,
        name="count",
        parallelism=2,
        subtasks=tuple(
            SubtaskMetrics(subtask=i, time=time, counters={"late_records": 3_000}) for i in range(2)
        ),
    )
    metrics = JobMetrics(name="pv", status="FINISHED", elapsed_ms=1, vertices=(count,))
    assert watermark_lines(metrics) == ["count: watermark at the end, 6,000 late records"]
    assert plain_line(metrics, Rates().add(metrics)).endswith("count 0/s (6,000 late)")
