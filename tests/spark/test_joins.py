"""Joins on the real runtime: a stalled input holds the clock and lets the state grow, and it goes when it moves on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.spark.kit import Noting, wait_until
from tidegate import JobClient, WatermarkStrategy
from tidegate.testing.scripted_source import Pause, ScriptedSource

pytestmark = pytest.mark.timeout(180)


class Sent(NamedTuple):
    key: str
    ms: int


TIMES = WatermarkStrategy.monotonous("ms")


def buffered(client: JobClient) -> int:
    gauges = [s.gauges for v in client.metrics().vertices for s in v.subtasks]
    return sum(g.get("buffered_records", 0) for g in gauges)


@pytest.mark.spec("S3-21")
def test_a_stalled_input_of_a_join_lets_its_state_grow_and_the_metric_shows_it(make_env: Any, tmp_path: Path):
    """Left goes on to second 100, right stands at 1; the records of the left that could go by their own time stay."""
    left = ScriptedSource(
        [[*(Sent(f"k{n % 7}", n * 100) for n in range(1000)), Pause("left")]], tmp_path / "left", type=Sent
    )
    right = ScriptedSource(
        [[Sent("k1", 1000), Pause("stall"), Sent("k0", 99_400), Pause("right")]],
        tmp_path / "right",
        type=Sent,
    )
    notes = Noting(tmp_path / "notes")
    env = make_env(parallelism=2, watermark_interval=0)
    pairs = (
        env.from_source(left, TIMES, name="left")
        .key_by("key")
        .interval_join(env.from_source(right, TIMES, name="right").key_by("key"))
        .between("-1 s", "1 s")
        .apply(lambda one, other: (one.ms, other.ms), returns=tuple[int, int])
    )
    pairs.sink_to(notes)
    client = env.execute_async()
    try:
        wait_until(lambda: buffered(client) >= 980, "the left to be buffered", 90)
        right.release("stall")
        wait_until(lambda: buffered(client) < 40, "the state to go", 90)
        left.release("left")
        right.release("right")
        client.result(60)
    finally:
        if not client.status().is_terminal:
            client.cancel(30)
    sent = [(f"k{n % 7}", n * 100) for n in range(1000)]
    expected = [
        (a, b)
        for key, a in sent
        for other, b in (("k1", 1000), ("k0", 99_400))
        if key == other and -1000 <= b - a <= 1000
    ]
    assert sorted(map(tuple, notes.read())) == sorted(expected)
