"""What a driver says before it starts anything: state without a uid, and a checkpoint that does not fit the program."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate import (
    Environment,
    FileSink,
    KeyedProcessFunction,
    ProcessContext,
    ProcessFunction,
    StateCompatibilityError,
    TumblingEventTimeWindows,
    ValueState,
    WatermarkStrategy,
)


class Count(ProcessFunction):
    seen = ValueState(int, default=0)

    def process(self, value: int, context: ProcessContext) -> Iterator[int]:
        self.seen.update(self.seen.value() + 1)
        yield self.seen.value()


def parity(n: int) -> str:
    return "odd" if n % 2 else "even"


def program(tmp_path: Path, uid: str | None = "count", **options: object) -> Environment:
    env = Environment(
        runtime="in-process",
        parallelism=1,
        checkpoint_interval="10 ms",
        checkpoint_dir=str(tmp_path / "chk"),
        checkpoint_keep_on_finish=True,
        **options,
    )
    numbers = env.from_sequence(1, 20, uid="numbers").map(str, returns=str).map(int, returns=int)
    counted = numbers.key_by(parity, returns=str).process(Count(), returns=int, name="count")
    if uid is not None:
        counted.uid(uid)
    counted.sink_to(FileSink(tmp_path / "out", append=True), uid="files")
    return env


def test_state_without_a_uid_is_warned_of_when_checkpoints_outlive_the_driver(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    program(tmp_path).execute("job")
    assert "no uid" not in caplog.text, "functions without state need none"
    program(tmp_path, uid=None).execute("job")
    assert "job 'job' takes checkpoints, but these operators have state and no uid: 'count'." in caplog.text


class Echo(KeyedProcessFunction):
    def process(self, value: int, context: ProcessContext) -> None:
        context.timer_service.register_event_time_timer(value)

    def on_timer(self, timestamp: int, context: ProcessContext) -> Iterator[int]:
        yield timestamp


async def ask(n: int) -> int:
    return n


def test_timers_and_requests_are_state_and_a_part_of_a_window_is_not_the_users_to_name(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    env = Environment(runtime="in-process", checkpoint_interval="10 ms", checkpoint_dir=str(tmp_path / "chk"))
    numbers = env.from_sequence(1, 20, uid="numbers").assign_timestamps_and_watermarks(
        WatermarkStrategy.monotonous("value")
    )
    numbers.key_by("value").window(TumblingEventTimeWindows("1 s")).count(uid="window").print()
    numbers.map_async(ask, name="asked").print()
    numbers.key_by("value").process(Echo(), returns=int, name="timed").print()
    env.execute("job")
    assert "these operators have state and no uid: 'asked', 'timed'." in caplog.text


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_claimed_or_started(tmp_path):
    program(tmp_path).execute("job")
    claims = sorted((tmp_path / "chk").glob("*/claims/*"))
    assert len(claims) == 1
    with pytest.raises(
        StateCompatibilityError,
        match=r"job 'job' cannot resume from .*chk-\d+: operator 'count' has state .* uid back",
    ):
        program(tmp_path, uid="other", resume="latest").execute("job")
    assert sorted((tmp_path / "chk").glob("*/claims/*")) == claims
    program(tmp_path, resume="latest").execute("job")
    assert sorted((tmp_path / "chk").glob("*/claims/*")) != claims
