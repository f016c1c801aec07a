"""Windows of built-in aggregates in whole programs: planned in two stages where nothing forbids it, same results."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.window_model import AGGREGATES, RECORD_TYPE, Record, SessionModel, WindowModel
from tidegate import (
    CountTrigger,
    CumulativeEventTimeWindows,
    Environment,
    EventTimeSessionWindows,
    OutputTag,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.graph.stream_graph import StreamNode, build_stream_graph
from tidegate.program.window_operations import AggregateWindow
from tidegate.records.elements import MAX_WATERMARK

TIMED = RECORD_TYPE.schema.append(pa.field("timestamp", pa.int64()))
WINDOWS = TumblingEventTimeWindows("10 s")


class Slanted(TumblingEventTimeWindows):
    """A user's own windows."""


def timed(records: list[Record], **options: Any) -> Any:
    env = Environment(runtime="in-process", **options)
    rows = [r._asdict() for r in records]
    return env.from_collection(rows, type=TIMED).assign_timestamps_and_watermarks(
        WatermarkStrategy.bounded(1_000, "timestamp")
    )


def window_nodes(made: Any) -> list[StreamNode]:
    env = made._env
    sink = made.print()
    graph = build_stream_graph("job", (sink._node,), tuple(env._nodes), env.options)
    return [n for n in graph.nodes if isinstance(n.operation, AggregateWindow)]


def by_key(**options: Any) -> Any:
    return timed([], **options).key_by("key")


@pytest.mark.parametrize(
    "made",
    [
        by_key().window(WINDOWS).count(),
        by_key().window(SlidingEventTimeWindows("1 min", "1 s")).allowed_lateness("5 s").top_n(3, "x"),
        by_key().window(TumblingEventTimeWindows("1 d", time_zone="Europe/Berlin")).count(),
        by_key().window(CumulativeEventTimeWindows("1 d", "1 h")).aggregate(**dict(AGGREGATES)),
    ],
    ids=lambda made: made._node.operation.detail(),
)
def test_windows_are_aggregated_before_the_exchange(made: Any) -> None:
    local, merge = window_nodes(made)
    assert isinstance(local.operation, AggregateWindow)
    assert isinstance(merge.operation, AggregateWindow)
    assert (local.operation.stage, merge.operation.stage) == ("local", "merge")
    assert local.name == f"local {merge.name}"
    assert [e.partitioning.describe() for e in merge.inputs] == ["hash(key)"]


@pytest.mark.parametrize(
    "made",
    [
        by_key().window(EventTimeSessionWindows("1 s")).count(),
        by_key().window(WINDOWS).side_output_late_data(OutputTag("late")).count(),
        by_key().window(WINDOWS).trigger(CountTrigger(3)).count(),
        by_key().window(Slanted("1 s")).count(),
        by_key().window(SlidingEventTimeWindows("2 d", "1 d", time_zone="Europe/Berlin")).count(),
        timed([]).key_by(lambda r: r.key, returns=str).window(WINDOWS).count(),
        timed([]).window_all(WINDOWS).count(),
    ],
    ids=lambda made: made._node.operation.detail(),
)
def test_windows_that_need_records_as_they_are_have_one_stage(made: Any) -> None:
    (only,) = window_nodes(made)
    assert isinstance(only.operation, AggregateWindow)
    assert only.operation.stage == "whole"


def test_the_local_stage_runs_where_its_input_does_and_the_other_keeps_the_settings() -> None:
    keyed = by_key(parallelism=2)
    local, merge = window_nodes(keyed.window(WINDOWS).count(uid="counts", name="counts", parallelism=3))
    assert (local.parallelism, local.uid, local.name) == (2, None, "local counts")
    assert (merge.parallelism, merge.uid, merge.name) == (3, "counts", "counts")
    assert [e.unchained_because for e in local.inputs] == [""]


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows(100, offset=7),
        TumblingEventTimeWindows(100, time_zone="America/New_York"),
        SlidingEventTimeWindows(250, 100),
        CumulativeEventTimeWindows(300, 100),
        EventTimeSessionWindows(20),
    ],
    ids=lambda a: a.describe(),
)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_jobs_give_the_windows_of_the_model(assigner: Any, parallelism: int) -> None:
    chance = random.Random(7)
    records = [
        Record(
            chance.choice("abcdefg"), n % 10, None, chance.choice(["u", None]), n + chance.randint(-400, 400)
        )
        for n in range(-1_000, 3_000)
    ]
    aggregates = tuple(a for a in AGGREGATES if a[0] not in ("float_total", "first", "last", "best", "least"))
    model: WindowModel | SessionModel
    if isinstance(assigner, EventTimeSessionWindows):
        model = SessionModel(20, aggregates, 0)
    else:
        model = WindowModel(lambda t: assigner.assign_windows(None, t), aggregates, 0)
    made = timed(records, parallelism=parallelism, watermark_interval=0, seed=3)
    windowed = made.key_by("key").window(assigner).aggregate(**dict(aggregates))
    got = [tuple(row) for row in windowed.execute_and_collect()]
    short = [(r[0], round(r[1].timestamp() * 1000), round(r[2].timestamp() * 1000), *r[3:]) for r in got]
    model.add(records)
    assert sorted(short) == sorted(model.advance(MAX_WATERMARK))
