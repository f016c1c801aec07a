"""Event time on the real runtime: watermarks over exchanges, timers before them, idle partitions, alignment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.spark.kit import Noting, wait_until
from tidegate import (
    Environment,
    JobFailedError,
    KeyedProcessFunction,
    ProcessFunction,
    ValueState,
    WatermarkGenerator,
    WatermarkStrategy,
)
from tidegate.program.sequences import CollectionSource
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.testing.scripted_source import Pause, ScriptedSource

pytestmark = pytest.mark.timeout(180)


class Mark(NamedTuple):
    """A record that is also a watermark."""

    key: str
    mark: int


PUNCTUATED = WatermarkStrategy.punctuated(lambda record, ts: record.mark, "mark")


class Clock(KeyedProcessFunction):
    """Timers for 1 to 10, set by the first record; each tells when it fired: (its time, the clock)."""

    is_set = ValueState(bool)

    def process(self, value: Mark, context: Any) -> Iterable[tuple[int, int]]:
        if not self.is_set.value():
            self.is_set.update(True)
            for time in range(1, 11):
                context.timer_service.register_event_time_timer(time)
        return ()

    def on_timer(self, timestamp: int, context: Any) -> Iterable[tuple[int, int]]:
        yield timestamp, context.timer_service.current_watermark


def four_seven_six(directory: Path) -> ScriptedSource:
    """Partitions at 2, 4, 3 and 6, then 4, 7 and 6 for the first three, one after the other."""
    steps = [
        [Mark("k", 2), Pause("a"), Mark("k", 4), Pause("end 0")],
        [Mark("k", 4), Pause("b"), Mark("k", 7), Pause("end 1")],
        [Mark("k", 3), Pause("c"), Mark("k", 6), Pause("end 2")],
        [Mark("k", 6), Pause("end 3")],
    ]
    return ScriptedSource(steps, directory, type=Mark)


def fired_by(notes: Noting, count: int) -> list[Any]:
    wait_until(lambda: len(notes.read()) >= count, f"{count} timers", 90)
    return sorted(notes.read())


@pytest.mark.spec("S3-20", "S3-22")
@pytest.mark.parametrize("readers", [4, 1])
def test_the_clock_is_the_minimum_over_partitions_in_the_example_of_4_7_and_6(
    make_env: Any, tmp_path: Path, readers: int
):
    source, notes = four_seven_six(tmp_path / "script"), Noting(tmp_path / "notes")
    env = make_env(parallelism=readers, watermark_interval=0)
    marks = env.from_source(source, PUNCTUATED, name="marks")
    marks.key_by("key").process(Clock(), returns=tuple[int, int]).set_parallelism(1).sink_to(
        notes
    ).set_parallelism(1)
    client = env.execute_async()
    try:
        assert fired_by(notes, 2) == [(1, 2), (2, 2)]
        source.release("a")  # the first partition is at 4: the clock is 3
        assert fired_by(notes, 3)[2:] == [(3, 3)]
        # The metrics of different slots come one by one; in the end the sink, too, waits for the third partition.
        wait_until(lambda: client.explain().count("00:00:00.003") > 1, "the clock in the metrics")
        wait_until(lambda: "held by marks/partition 2" in client.explain(), "who holds it")
        source.release("b")  # 7: nothing, the third is at 3
        wait_until(lambda: source.has_reached("end 1"), "the watermark 7")
        source.release("c")  # 6: the clock is 4
        assert fired_by(notes, 4)[3:] == [(4, 4)]
        for i in range(4):
            source.release(f"end {i}")
        client.result(60)
    finally:
        if not client.status().is_terminal:
            client.cancel(30)
    assert [time for time, _ in fired_by(notes, 10)] == list(range(1, 11))


@pytest.mark.spec("S3-21")
def test_a_union_of_streams_treats_their_watermarks_as_those_of_partitions(make_env: Any, tmp_path: Path):
    left = ScriptedSource(
        [[Mark("k", 2), Pause("l"), Mark("k", 9), Pause("l end")]], tmp_path / "l", type=Mark
    )
    right = ScriptedSource(
        [[Mark("k", 4), Pause("r"), Mark("k", 6), Pause("r end")]], tmp_path / "r", type=Mark
    )
    notes = Noting(tmp_path / "notes")
    env = make_env(parallelism=1, watermark_interval=0)
    union = env.from_source(left, PUNCTUATED).union(env.from_source(right, PUNCTUATED))
    union.key_by("key").process(Clock(), returns=tuple[int, int]).sink_to(notes)
    client = env.execute_async()
    try:
        assert fired_by(notes, 2) == [(1, 2), (2, 2)]
        left.release("l")
        assert fired_by(notes, 4)[2:] == [(3, 4), (4, 4)]
        right.release("r")
        assert fired_by(notes, 6)[4:] == [(5, 6), (6, 6)]
        left.release("l end")  # what has ended holds nothing back
        right.release("r end")
        client.result(60)
    finally:
        if not client.status().is_terminal:
            client.cancel(30)


@pytest.mark.spec("S3-22")
def test_an_idle_partition_stops_holding_back_the_clock(make_env: Any, tmp_path: Path):
    source, notes = four_seven_six(tmp_path / "script"), Noting(tmp_path / "notes")
    env = make_env(parallelism=2, watermark_interval=0)
    marks = env.from_source(source, PUNCTUATED.with_idleness("500 ms"), name="marks")
    marks.key_by("key").process(Clock(), returns=tuple[int, int]).set_parallelism(1).sink_to(
        notes
    ).set_parallelism(1)
    client = env.execute_async()
    try:
        assert fired_by(notes, 6)[-1][0] == 6  # all are idle now: the clock is that of the fastest
        wait_until(
            lambda: any(s.time and s.time.idle for s in client.metrics().vertices[-1].subtasks), "idle"
        )
        for name in ("a", "b", "c", *(f"end {i}" for i in range(4))):
            source.release(name)
        client.result(60)
    finally:
        if not client.status().is_terminal:
            client.cancel(30)
    assert [time for time, _ in fired_by(notes, 10)] == list(range(1, 11))


class Behind(ProcessFunction):
    """What the operator behind an exchange sees: a record's time, and the watermark when it comes."""

    def process(self, value: tuple[int, int], context: Any) -> Iterable[tuple[int, int]]:
        yield value[0], context.timer_service.current_watermark


@pytest.mark.spec("S3-19")
def test_what_a_timer_emits_is_in_front_of_the_watermark_that_fired_it(make_env: Any, tmp_path: Path):
    source, notes = four_seven_six(tmp_path / "script"), Noting(tmp_path / "notes")
    env = make_env(parallelism=2, watermark_interval=0)
    marks = env.from_source(source, PUNCTUATED, name="marks")
    timers = marks.key_by("key").process(Clock(), returns=tuple[int, int])
    timers.rebalance().process(Behind(), returns=tuple[int, int]).sink_to(notes)
    for name in ("a", "b", "c", *(f"end {i}" for i in range(4))):
        source.release(name)
    env.execute()
    seen = notes.read()
    assert sorted(time for time, _ in seen) == list(range(1, 11))
    assert [(time, clock) for time, clock in seen if clock >= time] == []


@pytest.mark.spec("S3-17")
def test_a_record_without_a_timestamp_fails_an_event_time_job_by_name(make_env: Any, tmp_path: Path):
    env = make_env()
    rows = [{"key": "a", "ts": 1}, {"key": "b", "ts": None}]
    stream = env.from_collection(rows).assign_timestamps_and_watermarks(
        WatermarkStrategy.monotonous("ts"), name="times"
    )
    stream.print()
    with pytest.raises(JobFailedError, match=r"(?s)'times'.*has no timestamp"):
        env.execute()


class Hasty(WatermarkGenerator):
    """Says the last timestamp, even if it is less than one before."""

    def __init__(self) -> None:
        self.last: int | None = None

    def on_event(self, event: Mark, timestamp_ms: int) -> None:
        self.last = timestamp_ms

    def on_periodic(self) -> int | None:
        return self.last


@pytest.mark.spec("S3-22", "S3-18")
@pytest.mark.parametrize(
    ("strategy", "watermarks", "is_refused"),
    [
        (WatermarkStrategy.bounded("2 ms", "mark"), [MIN_TIMESTAMP, 0, 4, 4], False),
        (WatermarkStrategy.periodic(Hasty, "mark"), [MIN_TIMESTAMP, 3, 7, 7], True),
        (PUNCTUATED, [MIN_TIMESTAMP, 3, 7, 7], True),
    ],
    ids=["source", "periodic", "punctuated"],
)
def test_watermarks_of_each_generator_only_go_up(
    make_env: Any, tmp_path: Path, strategy: WatermarkStrategy, watermarks: list[int], is_refused: bool
):
    notes = Noting(tmp_path / "notes")
    env = make_env(parallelism=1, watermark_interval=0, batch_rows=1)
    marks = env.from_source(CollectionSource([Mark("k", n) for n in (3, 7, 5, 8)]), strategy)
    marks.map(lambda m: (m.mark, 0), returns=tuple[int, int]).rebalance().process(
        Behind(), returns=tuple[int, int]
    ).sink_to(notes)
    metrics = env.execute()
    assert notes.read() == list(zip((3, 7, 5, 8), watermarks, strict=True))
    found = [s.counters.get("watermarks_refused", 0) for v in metrics.vertices for s in v.subtasks]
    assert (sum(found) > 0) is is_refused


@pytest.mark.spec("S3-23")
def test_a_job_warns_of_timestamps_that_are_assigned_again_and_far_from_the_source(
    make_env: Any, caplog: pytest.LogCaptureFixture
):
    rows = CollectionSource([Mark(f"k{n % 5}", n * 10) for n in range(100)])
    times = WatermarkStrategy.monotonous("mark")
    env = make_env()
    near = env.from_source(rows, times, name="marks")
    assert len(list(near.rebalance().execute_and_collect())) == 100
    assert "event time" not in caplog.text
    again = near.rebalance().assign_timestamps_and_watermarks(times, name="again")
    assert len(list(again.execute_and_collect("far"))) == 100
    words = [r.getMessage() for r in caplog.records if "event time" in r.getMessage()]
    overwrites, behind_an_exchange = words
    assert overwrites.startswith(
        "job 'far': event time: 'again' overwrites the timestamps and watermarks of 'marks'"
    )
    assert "'again' assigns timestamps after an exchange" in behind_an_exchange
    assert "Assign them at the source: from_source(source, strategy)" in behind_an_exchange


def test_what_a_slot_warns_of_is_in_the_log_of_the_driver_with_its_name(
    make_env: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    env = make_env(parallelism=1)
    strategy = WatermarkStrategy.monotonous("value")
    seconds = env.from_collection([1_750_000_000, 1_750_000_001], type=int)
    seconds.assign_timestamps_and_watermarks(strategy, name="stamps").sink_to(lambda n: None)
    env.execute("seconds")
    (words,) = [r.getMessage() for r in caplog.records if "looks like seconds" in r.getMessage()]
    assert words.startswith("job 'seconds': slot 0 (pid ")
    assert "(subtask 0 of 1): operator 'stamps': timestamp 1750000000 of " in words
    assert "looks like seconds" not in capfd.readouterr().err, "said once"


@pytest.mark.spec("S3-21")
def test_sources_of_an_alignment_group_stay_near_the_slowest(make_env: Any, tmp_path: Path):
    slow = ScriptedSource([[Mark("s", 100), Pause("s"), Mark("s", 10_000)]], tmp_path / "slow", type=Mark)
    fast = ScriptedSource(
        [[step for n in range(1, 100) for step in (Mark("f", n * 100), Pause(f"f{n}"))]],
        tmp_path / "fast",
        type=Mark,
    )
    for n in range(1, 100):
        fast.release(f"f{n}")
    aligned = WatermarkStrategy.monotonous("mark").with_alignment("g", "1 s")
    notes = Noting(tmp_path / "notes")
    env: Environment = make_env(parallelism=1, watermark_interval="20 ms")
    union = env.from_source(slow, aligned, name="slow").union(env.from_source(fast, aligned, name="fast"))
    union.map(lambda m: (m.key, m.mark), returns=tuple[str, int]).sink_to(notes)
    client = env.execute_async()
    try:
        wait_until(lambda: len(notes.read()) > 5, "records")
        wait_until(lambda: _fast_is_paused(client), "the fast source to wait")
        # The slow one is at 99. The fast one has read 1,200, found itself at 1,199, more than 1 s ahead, and waits.
        wait_until(lambda: ("f", 1_200) in notes.read(), "what the fast source has read")
        assert max(mark for key, mark in notes.read() if key == "f") == 1_200
        slow.release("s")
        client.result(60)
    finally:
        if not client.status().is_terminal:
            client.cancel(30)
    assert len(notes.read()) == 101


def _fast_is_paused(client: Any) -> bool:
    times = {v.name: v.subtasks[0].time for v in client.metrics().vertices if v.subtasks}
    fast = next((t for name, t in times.items() if name.startswith("fast")), None)
    return fast is not None and fast.watermark_ms is not None and fast.watermark_ms > 1_100
