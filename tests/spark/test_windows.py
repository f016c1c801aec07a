"""Windows on Spark: the reference's panes, sessions over many batches, late data in each of its ways."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.event_time import reference as ref
from tests.event_time.jobs import Branch, Case, Click, check, found_in
from tidegate import (
    Count,
    EventTimeSessionWindows,
    OutputTag,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.testing.scripted_source import ScriptedSource

pytestmark = pytest.mark.timeout(240)

CASES = 7
BRANCHES = 8


def random_case(seed: int) -> Case:
    """Events in some disorder, and windows of every kind over them."""
    random_ = random.Random(seed)
    now, events = 1_700_000_000_000, []
    for _ in range(400):
        now += random_.randint(0, 5)
        events.append(Click(random_.choice("abcdef"), now - random_.randint(0, 40), random_.randint(0, 9)))
    branches = []
    for number in range(BRANCHES):
        kind = ("tumbling", "sliding", "cumulative", "session")[number % 4]
        form = "columns" if number < 4 else random_.choice(["process", "aggregate"])
        size, step = random_.randint(5, 60), random_.randint(5, 20)
        windows = ref.Windows(kind, size, step)
        if kind == "cumulative":
            windows = ref.Windows(kind, step * random_.randint(1, 4), step)
        when = ref.When()
        if form != "columns" and kind != "session":
            when = random_.choice([ref.When(), ref.When("count", 3, True), ref.When("continuous", 7)])
        what = {"columns": random_.choice(["count", "sum", "max"]), "process": "values", "aggregate": "sum"}
        lateness = random_.choice([0, 20])
        branches.append(Branch(windows, when, lateness, what[form], form, random_.random() < 0.5))
    return Case(events, random_.choice([20, 50]), random_.choice([0, 10, 50]), 2, seed, tuple(branches))


@pytest.mark.parametrize("seed", range(CASES))
@pytest.mark.spec("S3-18")
def test_windows_of_every_kind_equal_the_reference_on_spark(make_env: Any, seed: int, tmp_path: Path):
    case = random_case(seed)
    env = make_env(parallelism=2, batch_rows=case.batch_rows, watermark_interval=0)
    # Which records are late depends on where batches end; other sources make them smaller on a slow machine.
    script = ScriptedSource([case.events], tmp_path / "script", type=Click)
    clicks = env.from_source(script, WatermarkStrategy.bounded(case.delay, "ts"), uid="clicks")
    check(case, found_in(clicks.set_parallelism(1), case).execute_and_collect())


def clicks_of(env: Any, events: list[tuple[str, int]], delay: int) -> Any:
    rows = [{"key": key, "ts": ts} for key, ts in events]
    clicks = env.from_collection(rows).set_parallelism(1)
    timed = clicks.assign_timestamps_and_watermarks(WatermarkStrategy.bounded(delay, "ts"))
    return timed.set_parallelism(1)


@pytest.mark.spec("S2-11")
def test_a_session_goes_over_as_many_batches_as_it_lasts(make_env: Any):
    """One record per batch: where every micro-batch is a job of its own, this session would be cut 300 times."""
    env = make_env(batch_rows=1, watermark_interval=0)
    events = [("a", 1_000 + i * 100) for i in range(300)] + [("a", 90_000)]
    sessions = clicks_of(env, events, 0).key_by("key").window(EventTimeSessionWindows("1 s")).count()
    found = sorted(
        (r.window_start.timestamp(), r.window_end.timestamp(), r.count)
        for r in sessions.execute_and_collect()
    )
    assert found == [(1.0, 31.9, 300), (90.0, 91.0, 1)]


@pytest.mark.spec("S3-18")
def test_a_tight_bound_is_early_and_loses_and_a_loose_one_waits_and_is_complete(make_env: Any):
    """Late records are counted and handed over, or counted in their window, never dropped without a word."""
    random_ = random.Random(7)
    events = [("a", 1_000_000 + i * 10 - random_.randint(0, 400)) for i in range(2_000)]
    complete = Counter((ts // 1000) * 1000 for _, ts in events)
    late_by_delay = {}
    for delay, lateness in ((0, 0), (100, 0), (500, 0), (0, 500)):
        env = make_env(batch_rows=10, watermark_interval=0)
        tag = OutputTag("late")
        windows = clicks_of(env, events, delay).key_by("key").window(TumblingEventTimeWindows("1 s"))
        counts = windows.allowed_lateness(lateness).side_output_late_data(tag).aggregate(n=Count())
        shown = counts.map(lambda r: (int(r.window_start.timestamp() * 1000), r.n), returns=tuple[int, int])
        late = counts.get_side_output(tag).map(lambda r: (-1, r.ts), returns=tuple[int, int])
        found = list(shown.union(late).execute_and_collect())
        last: dict[int, int] = {}
        for start, n in found:
            if start >= 0:
                last[start] = max(n, last.get(start, 0))
        lost = Counter(ts // 1000 * 1000 for start, ts in found if start < 0)
        assert Counter(last) + lost == complete
        late_by_delay[delay, lateness] = sum(lost.values())
    assert late_by_delay[0, 0] > late_by_delay[100, 0] > late_by_delay[500, 0] == 0
    assert late_by_delay[0, 500] == 0


@pytest.mark.spec("S3-18")
def test_late_records_without_a_side_output_are_counted_and_told_of_at_once_and_at_the_end(
    make_env: Any, caplog: pytest.LogCaptureFixture
):
    env = make_env(batch_rows=1, watermark_interval=0)
    events = [("a", 10_000), ("a", 20_000), ("a", 1_000), ("a", 2_000), ("a", 21_000)]
    counts = clicks_of(env, events, 0).key_by("key").window(TumblingEventTimeWindows("1 s")).count()
    counts.sink_to(lambda row: None)
    metrics = env.execute()
    late = [s.counters.get("late_records", 0) for v in metrics.vertices for s in v.subtasks]
    assert sum(late) == 2
    assert "dropped 2 records that were late" in caplog.text
    at_once = r"has dropped (1 late record|2 late records) so far, about 18.0 s behind the watermark"
    assert re.search(f"{at_once} 1970-01-01 00:00:19.999", caplog.text)
