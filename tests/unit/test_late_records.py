"""Late records that nobody takes are never dropped in silence: how many, where, how late, from the slot to the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.job_master_kit import MasterKit
from tests.unit.operators_kit import harness
from tidegate import (
    BlackholeSink,
    Count,
    Environment,
    EventTimeSessionWindows,
    OutputTag,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.core.ids import OperatorId
from tidegate.jobmanager import events as ev
from tidegate.protocol import messages as m

Record = tuple[str, int]
LATE: OutputTag[Any] = OutputTag("late", Record)


def records() -> Any:
    return Environment().from_collection([], type=Record)


def keyed() -> Any:
    return records().key_by("f0")


def both() -> tuple[Any, Any]:
    env = Environment()
    return env.from_collection([], type=Record), env.from_collection([], type=Record)


def interval_join() -> Any:
    left, right = (stream.key_by("f0") for stream in both())
    return left.interval_join(right).between(0, 10)


def window_join() -> Any:
    left, right = both()
    return left.join(right).where("f0").equal_to("f0").window(TumblingEventTimeWindows(10))


def pair(left: Record, right: Record) -> Record:
    return left


TEN = TumblingEventTimeWindows(10)
DROPPING = {
    "windows by columns": lambda: keyed().window(TEN).aggregate(n=Count()),
    "sessions by columns": lambda: keyed().window(EventTimeSessionWindows(10)).aggregate(n=Count()),
    "windows by rows": lambda: keyed().window(TEN).reduce(pair),
    "windows over all": lambda: records().window_all(TEN).reduce(pair),
    "interval join": lambda: interval_join().apply(pair, returns=Record),
    "window join": lambda: window_join().apply(pair, returns=Record),
    "deduplication": lambda: keyed().deduplicate(within=10),
}
HANDING_OVER = {
    "windows by columns": lambda: keyed().window(TEN).side_output_late_data(LATE).aggregate(n=Count()),
    "windows by rows": lambda: keyed().window(TEN).side_output_late_data(LATE).reduce(pair),
    "interval join": lambda: interval_join().side_output_left_late_data(LATE).apply(pair, returns=Record),
    "window join": lambda: window_join().side_output_left_late_data(LATE).apply(pair, returns=Record),
    "deduplication": lambda: keyed().deduplicate(within=10, late_data=LATE),
}


@pytest.mark.parametrize("name", DROPPING)
def test_an_operator_reports_its_first_dropped_record_and_then_whenever_they_have_doubled(name: str):
    with harness(DROPPING[name]()) as h:
        h.push([("a", 1)], timestamps=[100])
        h.advance_watermark(120)
        assert h.dropped == []
        for _ in range(20):
            h.push([("b", 2), ("b", 3)], timestamps=[100, 130])
        assert h.dropped == [(n, 120, 20) for n in (1, 2, 4, 8, 16)]
        h.push([("c", n) for n in range(100)], timestamps=list(range(100)))
        assert h.dropped[-1] == (120, 120, 120)
        assert h.counters["late_records"] == h.counters["late_records_dropped"] == 120


@pytest.mark.parametrize("name", HANDING_OVER)
def test_what_a_side_output_takes_is_not_reported(name: str):
    with harness(HANDING_OVER[name]()) as h:
        h.advance_watermark(120)
        h.push([("b", 2), ("b", 3)], timestamps=[100, 130])
        assert (h.dropped, h.side_rows("late")) == ([], [("b", 2)])
        assert (h.counters["late_records"], h.counters["late_records_dropped"]) == (1, 0)


def dropped(subtask: int, records: int) -> m.LateRecordsDropped:
    return m.LateRecordsDropped(OperatorId("id-count"), subtask, records, 43_203_000, 2_500)


def test_the_job_manager_adds_the_subtasks_up_and_says_it_at_growing_intervals():
    kit = MasterKit().to_running()
    assert kit.say(0, dropped(0, 1)) == [
        ev.ReportTrouble(
            "job 'pv': operator 'count' has dropped 1 late record so far, about 2.5 s behind the watermark 1970-01-01 "
            "12:00:03; the next report comes at 10 of them. To keep such records, allow for more disorder in the "
            "WatermarkStrategy (files of the past may need no_watermarks), or take them with allowed_lateness(...) or "
            "a side output for late data"
        )
    ]
    assert kit.say(1, dropped(1, 1)) == []
    assert kit.say(0, dropped(0, 8)) == []
    assert "dropped 10 late records" in kit.say(1, dropped(1, 2))[0].text
    assert kit.say(0, dropped(0, 64)) == []
    assert "dropped 4,098 late records" in kit.say(0, dropped(0, 4096))[0].text
    assert kit.say(0, dropped(0, 9_000)) == []


def test_a_slot_that_reports_for_an_operator_that_it_does_not_run_breaks_the_protocol():
    kit = MasterKit().to_running()
    kit.say(0, dropped(1, 1))
    assert kit.master.failure is not None


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_says_it_in_the_log_of_its_driver(parallelism: int, caplog: pytest.LogCaptureFixture):
    env = Environment(runtime="in-process", parallelism=parallelism, batch_rows=1, watermark_interval=0)
    times = [1_000, 9_000, *range(100, 400, 10)]
    stream = env.from_collection([(f"k{t % 3}", t) for t in times], type=Record).set_parallelism(1)
    stamped = stream.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("f1")).set_parallelism(1)
    counts = stamped.key_by("f0").window(TumblingEventTimeWindows(10)).aggregate(n=Count(), name="counts")
    counts.sink_to(BlackholeSink())
    with caplog.at_level(logging.WARNING):
        env.execute("pageviews")
    said = [r.getMessage() for r in caplog.records if "has dropped" in r.getMessage()]
    assert 1 <= len(said) <= 2, said  # 30 records, in as many batches as the exchange makes of them
    assert said[0].startswith("job 'pageviews': operator 'counts' has dropped ")
    assert "about 8.9 s behind the watermark 1970-01-01 00:00:08.999" in said[0]
