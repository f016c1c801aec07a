"""kill -9 while windows, timers, joins and requests are open: what comes out is what comes without (I4, I5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidegate import (
    EventTimeSessionWindows,
    FileSink,
    KeyedProcessFunction,
    MapState,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.testing import check_recovery

pytestmark = pytest.mark.timeout(400)


class Click(NamedTuple):
    key: str
    ts: int
    value: int


CLICKS = [[Click("abcde"[(n * n + p) % 5], n * 10 - n * 7 % 40, n) for n in range(400)] for p in range(2)]
"""Up to 40 ms out of order, by partition."""

TIMES = WatermarkStrategy.bounded("50 ms", "ts")


class ByHand(KeyedProcessFunction):
    """Sums of 100 ms, with a map and timers, and a reminder by the wall clock that is always set anew."""

    sums = MapState(int, int)

    def process(self, value: Click, context: Any) -> Iterable[tuple[str, int, int]]:
        end = value.ts // 100 * 100 + 99
        self.sums.put(end, (self.sums.get(end) or 0) + value.value)
        context.timer_service.register_event_time_timer(end)
        return ()

    def on_timer(self, timestamp: int, context: Any) -> Iterable[tuple[str, int, int]]:
        yield context.current_key, timestamp, self.sums.get(timestamp) or 0
        self.sums.remove(timestamp)


async def look_up(click: Click) -> Click:
    await asyncio.sleep(0.002 * (click.value % 3))
    return Click(click.key, click.ts, click.value + 1000)


def program(env: Any, clicks: Any, out: Path) -> None:
    timed = clicks.assign_timestamps_and_watermarks(TIMES, uid="times")
    keyed = timed.key_by("key")
    pair = tuple[str, int, int]
    counts = keyed.window(TumblingEventTimeWindows("100 ms")).count(uid="tumbling")
    counts.sink_to(FileSink(out / "tumbling"), uid="tumbling out")
    sliding = keyed.window(SlidingEventTimeWindows("200 ms", "50 ms")).sum("value", uid="sliding")
    sliding.sink_to(FileSink(out / "sliding"), uid="sliding out")
    sessions = keyed.window(EventTimeSessionWindows("60 ms")).reduce(
        lambda a, b: Click(a.key, min(a.ts, b.ts), a.value + b.value), uid="sessions"
    )
    sessions.sink_to(FileSink(out / "sessions"), uid="sessions out")
    keyed.process(ByHand(), returns=pair, uid="timers").sink_to(FileSink(out / "timers"), uid="timers out")
    asked = timed.map_async(look_up, ordered=False, capacity=20, uid="asked")
    joined = keyed.interval_join(asked.key_by("key")).between("-20 ms", "20 ms")
    joined.apply(lambda a, b: (a.key, a.value, b.value), returns=pair, uid="join").sink_to(
        FileSink(out / "joined"), uid="joined out"
    )


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_windows_timers_joins_and_requests_in_flight_survive_killed_processes(
    spark: Any, tmp_path: Path, backend: str
):
    report = check_recovery(
        program,
        CLICKS,
        tmp_path,
        crashes=2,
        type=Click,
        spark=spark,
        timeout_s=150,
        parallelism=2,
        batch_rows=20,
        watermark_interval="10 ms",
        state_backend=backend,
    )
    assert report.restarts == 2
    folders = {folder for folder, _ in report.output}
    assert folders == {"tumbling", "sliding", "sessions", "timers", "joined"}
