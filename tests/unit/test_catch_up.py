"""Whether a job catches up after a failure is known from what its sources say."""

from __future__ import annotations

import msgspec
import pytest

from tidegate.jobmanager.failover.catch_up import CatchUpWatch, Sample, sample_of
from tidegate.metrics.snapshot import OperatorCounts, SubtaskMetrics


def run(watch: CatchUpWatch, behind: float, arriving: float, reading: float, seconds: int) -> list[str]:
    """Constant rates for so many seconds; returns the warnings."""
    read, warnings = 0.0, []
    for second in range(seconds):
        now_ms = second * 1_000
        if watch.is_due(now_ms):
            warnings.append(watch.sampled(Sample(int(behind), int(read)), now_ms))
        step = min(reading, behind + arriving)
        read += step
        behind += arriving - step
    return [w for w in warnings if w]


def test_a_job_that_reads_faster_than_records_arrive_catches_up_without_a_warning():
    watch = CatchUpWatch()
    watch.began(0)
    assert run(watch, behind=10_000, arriving=1_000, reading=2_000, seconds=30) == []
    value = watch.value
    assert value is not None
    assert value.caught_up_after_ms == 9_000
    assert value.records_behind <= 1_000
    assert value.records_arriving_per_s == pytest.approx(1_000, rel=0.1)
    assert not watch.is_due(10**9), "nothing is to be watched any more"


@pytest.mark.parametrize("reading", [500, 1_000])
def test_a_job_that_does_not_read_faster_than_records_arrive_is_warned_of_once(reading):
    watch = CatchUpWatch()
    watch.began(0)
    (warning,) = run(watch, behind=10_000, arriving=1_000, reading=reading, seconds=30)
    assert f"it reads {reading} records/s while 1000 records/s arrive" in warning
    assert watch.value is not None
    assert watch.value.caught_up_after_ms is None
    watch.began(40_000)
    assert watch.value is None
    assert run(watch, behind=0, arriving=0, reading=0, seconds=1) == []


def test_nothing_is_watched_without_a_recovery_or_when_the_sources_cannot_tell():
    watch = CatchUpWatch()
    assert not watch.is_due(10**9)
    watch.began(0)
    assert watch.sampled(None, 0) == ""
    assert watch.value is None


def test_only_sources_that_can_tell_count():
    reports = [
        SubtaskMetrics(
            subtask=0,
            gauges={"records_behind": 3},
            records_out=99,
            operators=(OperatorCounts(name="log", records_out=5),),
        ),
        SubtaskMetrics(subtask=1, gauges={"records_behind": 4}, records_out=6),
        SubtaskMetrics(subtask=0, records_out=100),
    ]
    encoded = [msgspec.msgpack.encode(report) for report in reports]
    assert sample_of([*encoded, b"not metrics"]) == Sample(7, 11)
    assert sample_of(encoded[2:]) is None
