"""A checkpoint in which the clocks of one operator differ, restored with another parallelism: every pane comes once.

An unaligned barrier overtakes watermarks that wait at one subtask, while the other has had them. No batch is overtaken,
so the parallelism may change, and the key groups of both subtasks meet in one.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidegate import (
    DataStream,
    Environment,
    EventTimeSessionWindows,
    FileSink,
    KeyedStream,
    ProcessWindowFunction,
    RestartStrategies,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.api.sink import SinkJob
from tidegate.api.windowed_streams import WindowedStream
from tidegate.core.key_groups import key_group_for_hash, subtask_for_key_group
from tidegate.core.states import JobStatus
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.jobmanager.resume_point import beginning
from tidegate.keys.hashing import hash_value
from tidegate.records.elements import MAX_WATERMARK
from tidegate.runtime.simulation import Simulation
from tidegate.snapshot.manifest import Manifest, decode_manifest

KEYS = "abcdefgh"
"""They are spread over two subtasks."""


class Click(NamedTuple):
    key: str
    ts: int


QUICK = [k for k in KEYS if subtask_for_key_group(key_group_for_hash(hash_value(k), 128), 2, 128) == 0]
"""The keys of the first of two subtasks, which is the quick one."""
CLICKS = [
    *(Click(key, ts) for ts in range(0, 20, 3) for key in KEYS),
    *(Click(key, ts) for ts in range(20, 300, 3) for key in QUICK),
]
"""In order, so nothing is late. At last the slow subtask has watermarks alone."""


def counted(windows: WindowedStream) -> DataStream:
    return windows.count(uid="windows")


class CountPane(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Iterable[Click]) -> Iterator[tuple[str, int, int]]:
        yield key, context.window.start_ms, len(list(elements))


def by_record(windows: WindowedStream) -> DataStream:
    return windows.process(CountPane(), returns=tuple[str, int, int], uid="windows")


PROGRAMS: dict[str, Callable[[KeyedStream], DataStream]] = {
    "tumbling": lambda keyed: counted(keyed.window(TumblingEventTimeWindows(10))),
    "tumbling, kept for late records": lambda keyed: counted(
        keyed.window(TumblingEventTimeWindows(10)).allowed_lateness(1_000)
    ),
    "sliding": lambda keyed: counted(keyed.window(SlidingEventTimeWindows(20, 5))),
    "sliding, by record": lambda keyed: by_record(keyed.window(SlidingEventTimeWindows(20, 5))),
    "sessions": lambda keyed: counted(keyed.window(EventTimeSessionWindows(2))),
    "sessions, kept for late records": lambda keyed: counted(
        keyed.window(EventTimeSessionWindows(2)).allowed_lateness(1_000)
    ),
}


class SlowSlot:
    """Nothing goes wrong, but the second slot takes fewer steps: clocks differ in a checkpoint for one seed in five."""

    tick_ns = 5_000_000
    event_ns = 100_000

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def strike(self, simulation: Simulation) -> str | None:
        return None

    def choose(self, choices: list[Any]) -> Any:
        others = [c for c in choices if c.name != "step 1"]
        quick = others if others and self._random.random() < 0.5 else choices
        return self._random.choice(quick)

    def to_slot(self, message: Any, deliver: Callable[[Any], None]) -> None:
        deliver(message)

    def from_slot(self, message: Any, deliver: Callable[[Any], None]) -> None:
        deliver(message)


def simulation(
    place: Path, program: str, parallelism: int, mode: dict[str, object], **more: Any
) -> Simulation:
    env = Environment(
        runtime="in-process",
        parallelism=parallelism,
        batch_rows=len(QUICK),
        watermark_interval=0,
        checkpoint_interval="10 ms",
        checkpoint_fsync=False,
        checkpoint_dir=str(place / "checkpoints"),
        resume="latest-or-new",
        restart_strategy=RestartStrategies.none(),
        **mode,
    )
    clicks = env.from_collection(CLICKS, type=Click, uid="clicks").set_parallelism(1)
    timed = clicks.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous("ts"), uid="times")
    panes = PROGRAMS[program](timed.set_parallelism(1).key_by("key"))
    sink = FileSink(place / "out", "csv", append=True)
    panes.sink_to(sink, uid="files")
    (place / "checkpoints").mkdir(parents=True, exist_ok=True)
    made = env._program("clicks")
    graph = build_job_graph(build_stream_graph(made.name, made.sinks, made.transformations, made.options))
    begin = beginning(made.options, made.name)
    sink.prepare(SinkJob(begin.job_id, begin.first_attempt, parallelism, begin.is_resumed))
    return Simulation(graph, made.options, begin=begin, **more)


def clocks(manifest: Manifest) -> list[int]:
    """Those of the subtasks of the windows."""
    states = [h for o in manifest.operators if o.uid == "windows" for s in o.subtasks for h in s.states]
    return [json.loads(bytes(e))["watermark_ms"] for h in states if h.name == "$watermark" for e in h.entries]


def written(place: Path) -> Counter[str]:
    return Counter(line for part in place.glob("out/part-*") for line in part.read_text().splitlines()[1:])


def run_until_clocks_differ(place: Path, program: str, mode: dict[str, object], seed: int) -> bool:
    """A job that dies behind such a checkpoint; False: there was none."""
    first = simulation(place, program, 2, mode, faults=SlowSlot(seed))
    try:
        seen = 0
        while not first.status.is_terminal:
            first.run_one_event()
            completed = first.job.coordinator.completed.retained
            if not completed or completed[-1].checkpoint_id == seen:
                continue
            seen = completed[-1].checkpoint_id
            manifest = decode_manifest(
                (place / "checkpoints" / first.job.job_id / f"chk-{seen}" / "_metadata").read_bytes()
            )
            found = set(clocks(manifest))
            overtook = any(v.in_flight for v in manifest.vertices)
            if len(found) == 2 and MAX_WATERMARK not in found and not overtook:
                return True
        return False
    finally:
        first.kill_driver()
        first.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("program", "parallelism"), [*((p, 3) for p in PROGRAMS), ("sliding", 1)])
def test_every_pane_comes_once(tmp_path, program, parallelism):
    mode: dict[str, object] = {"checkpoint_unaligned": True}
    whole = simulation(tmp_path / "whole", program, 1, {})
    assert whole.run() is JobStatus.FINISHED
    whole.close()
    for seed in range(40):
        place = tmp_path / str(seed)
        if run_until_clocks_differ(place, program, mode, seed):
            break
    else:
        pytest.fail("no checkpoint has clocks that differ")
    again = simulation(place, program, parallelism, mode)
    assert again.run() is JobStatus.FINISHED, again.message
    again.close()
    assert written(place) == written(tmp_path / "whole")
