"""Sources of one alignment group do not run ahead of the slowest by more than they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from tidegate import BlackholeSink, Environment, WatermarkStrategy
from tidegate.api.source import IDLE
from tidegate.cli.progress import Rates, plain_line
from tidegate.core.ids import OperatorId
from tidegate.jobmanager.watermark_alignment import WatermarkGroups
from tidegate.metrics.event_time import watermark_lines
from tidegate.metrics.snapshot import EventTime, JobMetrics, SubtaskMetrics, VertexMetrics
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP
from tidegate.testing.harness import OperatorHarness
from tidegate.testing.scripted_source import Crash, Pause, ScriptedSource

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


def test_a_source_reads_no_further_before_it_has_heard_of_its_group(source: OperatorHarness):
    give_all(source)
    assert source.poll() is None
    assert source.poll() is IDLE
    source.operator.align("g", MIN_TIMESTAMP)  # somebody else has no watermark yet
    assert source.poll() is IDLE
    source.operator.align("g", 0)
    assert source.poll() is None


def test_the_drift_is_kept_within_a_watermark_interval_and_told_at_its_end_at_once():
    env = Environment(watermark_interval="10 s", batch_rows=50)
    stream = env._read(_numbers(env), "numbers", {}, ALIGNED)
    with OperatorHarness.of(stream, options=env.options) as harness:
        harness.operator.start()
        give_all(harness)
        harness.operator.align("g", 0)
        polls = [harness.poll() for _ in range(5)]
        assert polls == [None, None, None, IDLE, IDLE]  # 149 is ahead of 100, though nothing was sent yet
        harness.advance_clock(0)  # not after 10 s: all of the group may wait for this word
        assert harness.reports[-1] == ("g", 149)


class TestGroups:
    MEMBERS: ClassVar = {"g": [(OperatorId("clicks"), 0), (OperatorId("views"), 0)]}

    def test_one_that_has_not_reported_yet_is_the_slowest(self):
        groups = WatermarkGroups(self.MEMBERS)
        assert groups.reported("g", OperatorId("clicks"), 0, 500) is None
        assert groups.reported("g", OperatorId("views"), 0, 200) == 200

    def test_one_that_is_idle_or_at_its_end_is_not_waited_for(self):
        for gone in (None, MAX_WATERMARK):
            groups = WatermarkGroups(self.MEMBERS)
            assert groups.reported("g", OperatorId("clicks"), 0, 500) is None
            assert groups.reported("g", OperatorId("views"), 0, gone) == 500

    def test_one_that_wakes_up_is_waited_for_again(self):
        groups = WatermarkGroups(self.MEMBERS)
        groups.reported("g", OperatorId("clicks"), 0, 500)
        groups.reported("g", OperatorId("views"), 0, None)
        assert groups.reported("g", OperatorId("views"), 0, 100) == 100
        assert groups.reported("g", OperatorId("clicks"), 0, 700) is None


class Step(NamedTuple):
    source: str
    mark: int


@pytest.mark.parametrize("interval", ["0 ms", "200 ms"])
def test_no_source_of_a_group_is_ever_further_ahead_than_it_may(interval: str, tmp_path: Path):
    drift, count = 30, 60
    for seed in range(25):
        log = tmp_path / f"{seed}-{interval}"
        env = Environment(
            runtime="in-process", parallelism=1, batch_rows=1, watermark_interval=interval, seed=seed
        )
        strategy = WatermarkStrategy.monotonous("mark").with_alignment("g", drift)

        def read(name: str, pace: int, env: Any = env, log: Path = log, strategy: Any = strategy) -> Any:
            def note(step: Step) -> Step:
                with log.open("a") as file:
                    file.write(f"{step.source} {step.mark}\n")
                return step

            records = env.from_collection([Step(name, n * pace) for n in range(1, count)], type=Step)
            source = records._node.operation.source
            return env.from_source(source, strategy, name=name).map(note, returns=Step)

        read("slow", 1).union(read("fast", 20)).sink_to(BlackholeSink())
        env.execute()
        highest: dict[str, int] = {}
        for line in log.read_text().splitlines():
            name, mark = line.split()
            other = highest.get("fast" if name == "slow" else "slow")
            if name in highest and other != (20 if name == "slow" else 1) * (count - 1):
                assert other is not None, (
                    f"seed {seed}: {name} read {mark} before the other had read anything"
                )
                assert highest[name] <= other + drift, f"seed {seed}: {name} read {mark} beside {other}"
            highest[name] = int(mark)
        assert highest == {"slow": count - 1, "fast": 20 * (count - 1)}


def test_a_source_that_had_finished_before_a_recovery_holds_nobody(tmp_path: Path):
    short = ScriptedSource([[Step("short", 1)]], tmp_path / "short", type=Step)
    steps = [Step("long", n * 100) for n in range(1, 20)]
    long = ScriptedSource(
        [[*steps[:5], Pause("checkpoint"), Crash("fail", how="raise"), *steps[5:]]],
        tmp_path / "long",
        type=Step,
    )
    strategy = WatermarkStrategy.monotonous("mark").with_alignment("g", 10)
    env = Environment(
        runtime="in-process",
        parallelism=1,
        batch_rows=1,
        watermark_interval=0,
        checkpoint_interval="10 ms",
        checkpoint_dir=str(tmp_path / "checkpoints"),
        restart_strategy="fixed-delay",
    )
    union = env.from_source(short, strategy, name="short").union(env.from_source(long, strategy, name="long"))
    union.sink_to(BlackholeSink(), name="out")
    client = env.execute_async()
    for _ in range(20_000):
        if long.has_reached("checkpoint"):
            break
        client.simulation.run_one_event()
    seen = client.checkpoints().completed
    for _ in range(20_000):
        if client.checkpoints().completed > seen + 1:
            break
        client.simulation.run_one_event()
    long.release("checkpoint")
    client.result(60)
    assert (client.overview().restarts, client.checkpoints().restored) == (1, 1)


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
