"""Readers say which split a batch is from, so each split has a watermark of its own, and a name where it is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.connectors.reader_harness import ReaderHarness, all_splits
from tests.contract.state_backend_kit import MemoryStorage
from tidegate import (
    Count,
    DataGeneratorSource,
    Environment,
    FileSink,
    FileSource,
    MapFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.api.source import Finished, Source, SourceSplit
from tidegate.connectors.datagen import sequence
from tidegate.connectors.datagen.blocks import GeneratorSplit
from tidegate.program.sequences import CollectionSource, NumberSequenceSource
from tidegate.runtime import simulation
from tidegate.state.operator_states import Restored
from tidegate.testing.harness import OperatorHarness

TIMES = pa.schema([("ts", pa.int64())])


def write_json(path: Path, times: Sequence[int]) -> None:
    path.write_text("".join(f"{json.dumps({'ts': t})}\n" for t in times))


def text_files(directory: Path) -> Source:
    write_json(directory / "a.json", range(10))
    write_json(directory / "b.json", range(10))
    return FileSource(directory, format="json", schema=TIMES)


def parquet_files(directory: Path) -> Source:
    for name in ("a", "b"):
        pq.write_table(pa.table({"ts": list(range(10))}), directory / f"{name}.parquet")
    return FileSource(directory, format="parquet")


@pytest.mark.parametrize(
    "make",
    [
        text_files,
        parquet_files,
        lambda _: CollectionSource(range(10)),
        lambda _: NumberSequenceSource(1, 10),
        lambda _: DataGeneratorSource(fields={"ts": sequence()}, count=10),
    ],
)
def test_every_reader_names_the_split_of_a_batch_and_what_it_reads(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path)
    splits = all_splits(source)
    harness = ReaderHarness(source, splits, batch_rows=3)
    assert harness.reader.last_split == ""
    named: list[str] = []
    while (batch := harness.next_batch()) is not None:
        named += [harness.reader.last_split] * batch.num_rows
        assert harness.reader.reading() == [harness.reader.last_split] or (
            len(named) % 10 == 0 and harness.reader.reading() == []  # behind the split's last record
        )
    assert harness.reader.reading() == []
    assert named == [split.id for split in splits for _ in range(10)]


class SourceTask:
    """A source operator with a strategy that is asked for a watermark behind every batch."""

    def __init__(
        self, source: Source, strategy: WatermarkStrategy, *, batch_rows: int = 5, **settings: Any
    ) -> None:
        env = Environment(watermark_interval=0, batch_rows=batch_rows)
        self.harness = OperatorHarness.of(env.from_source(source, strategy), options=env.options, **settings)
        self.harness.operator.start()

    def add(self, *splits: SourceSplit) -> None:
        self.harness.add_splits([msgspec.json.encode(split) for split in splits])

    def poll(self) -> Any:
        answer = self.harness.poll()
        self.harness.advance_clock(0)
        return answer

    def holder(self) -> str:
        time = self.harness.operator.event_time()
        assert time is not None
        return time.split


def share(k: int, position: int) -> GeneratorSplit:
    return GeneratorSplit(
        id=f"share {k + 1} of 2", start=0, end=1000, share=k, shares=2, unit=1, position=position
    )


def test_the_watermark_is_the_minimum_over_the_splits_that_are_read_at_the_same_time():
    """As after a restore on fewer subtasks: one slot reads two shares in turn, and one of them is far behind."""
    source = DataGeneratorSource(fields={"ts": sequence()}, count=1000)
    task = SourceTask(source, WatermarkStrategy.monotonous("ts"))
    with task.harness as h:
        task.add(share(0, 400), share(1, 0))
        task.poll()
        assert [row.ts for row in h.take_rows()] == [800, 802, 804, 806, 808]
        assert h.watermarks == []  # the second share has had its turn nowhere yet
        task.poll()
        assert [row.ts for row in h.take_rows()] == [1, 3, 5, 7, 9]
        assert h.watermarks == [8]
        assert task.holder() == "share 2 of 2"


def test_files_that_are_read_one_after_the_other_do_not_wait_for_each_other(tmp_path: Path):
    """The first takes the clock with it, so what is far behind in the second is late; as the guide says."""
    write_json(tmp_path / "a.json", range(100_000, 110_000, 1000))
    write_json(tmp_path / "b.json", [*range(0, 5000, 1000), *range(200_000, 205_000, 1000)])
    source = FileSource(tmp_path, format="json", schema=TIMES)
    task = SourceTask(source, WatermarkStrategy.bounded("2 s", "ts"))
    with task.harness as h:
        task.add(*all_splits(source))
        task.poll()
        assert h.watermarks == [101_999]
        assert task.holder().endswith("a.json@0")
        task.poll()
        task.poll()
        assert [row.ts for row in h.take_rows()][-1] == 4000
        assert h.watermarks == [101_999, 106_999]
        assert task.holder().endswith("b.json@0")
        task.poll()
        assert h.watermarks == [101_999, 106_999, 201_999]


def test_files_that_two_subtasks_had_begun_wait_for_each_other_where_one_goes_on_with_both(tmp_path: Path):
    for name in ("a", "b"):
        write_json(tmp_path / f"{name}.json", range(0, 10_000, 1000))
    source, strategy = FileSource(tmp_path, format="json", schema=TIMES), WatermarkStrategy.monotonous("ts")
    storage, states = MemoryStorage(), []
    for subtask, split in enumerate(all_splits(source)):
        task = SourceTask(source, strategy, batch_rows=3, subtask_index=subtask, parallelism=2)
        with task.harness as h:
            task.add(split)
            task.poll()
            assert h.watermarks == [1999]
            h.operator.snapshot(1)
            states += h.states.snapshot(1)(storage.writer(1, 0, "operator", subtask)).states
    task = SourceTask(source, strategy, restored=Restored((), tuple(states), storage))
    with task.harness as h:
        task.poll()
        task.poll()
        assert [row.ts for row in h.take_rows()] == list(range(3000, 10_000, 1000))
        assert h.watermarks == [1999], "the other file is there"
        assert task.holder().endswith("b.json@0")
        task.poll()
        task.poll()
        assert [row.ts for row in h.take_rows()] == list(range(3000, 10_000, 1000))
        assert h.watermarks == [1999, 6999, 8999]


def test_a_file_that_is_finished_has_moved_the_clock_even_if_none_follows_yet(tmp_path: Path):
    write_json(tmp_path / "a.json", [1000])
    source = FileSource(tmp_path, format="json", schema=TIMES)
    task = SourceTask(source, WatermarkStrategy.monotonous("ts"))
    with task.harness as h:
        task.add(*all_splits(source))
        task.poll()
        assert h.watermarks == [999]
        assert task.holder() == ""
        assert not isinstance(task.poll(), Finished)


def test_a_source_between_two_files_is_idle_when_its_time_has_passed_and_active_with_the_next(tmp_path: Path):
    for name in ("a", "b"):
        write_json(tmp_path / f"{name}.json", [1000])
    source = FileSource(tmp_path, format="json", schema=TIMES)
    task = SourceTask(source, WatermarkStrategy.monotonous("ts").with_idleness("1 s"))
    first, second = all_splits(source)
    with task.harness as h:
        h.advance_clock(900)
        task.add(first)
        task.poll()
        h.advance_clock(999)
        assert h.statuses == []  # since its last record, not since the start of the job
        h.advance_clock(1)
        assert h.statuses == [True]
        task.add(second)
        task.poll()
        assert h.statuses == [True, False]


class FailsOnce(MapFunction):
    """Raises at one record, the first time that it comes."""

    def __init__(self, at: int, marker: Path) -> None:
        self._at, self._marker = at, marker

    def map(self, value: Any) -> int:
        if value.ts == self._at and not self._marker.exists():
            self._marker.touch()
            raise RuntimeError("once")
        return int(value.ts)


@pytest.mark.parametrize("seed", range(5))
def test_a_job_over_files_goes_on_with_the_watermarks_of_its_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    """The files are in the order of their times, so nothing is late, with a crash in the third or without."""
    monkeypatch.setattr(simulation, "_EVENT_NS", 1_000_000)  # or the job ends before its first checkpoint
    monkeypatch.setattr(simulation, "_TICK_NS", 1_000_000)
    (tmp_path / "in").mkdir()
    for number in range(4):
        start = number * 10_000
        write_json(tmp_path / "in" / f"{number}.json", range(start, start + 10_000, 50))
    env = Environment(
        runtime="in-process", seed=seed, parallelism=1, batch_rows=7, watermark_interval=0,
        checkpoint_interval="10 ms", checkpoint_dir=str(tmp_path / "checkpoints"),
        restart_strategy="fixed-delay", restart_delay="1 ms",
    )  # fmt: skip
    source = FileSource(tmp_path / "in", format="json", schema=TIMES)
    times = env.from_source(source, WatermarkStrategy.bounded("50 ms", "ts"), uid="files")
    mapped = times.map(FailsOnce(25_000, tmp_path / "failed"), uid="map")
    counts = mapped.key_by(zero).window(TumblingEventTimeWindows("1 s")).aggregate(n=Count(), uid="windows")
    counts.sink_to(FileSink(tmp_path / "out", format="json"), uid="out")
    client = env.execute_async()
    metrics = client.result()
    assert client.overview().restored_checkpoint
    written = "".join(p.read_text() for p in (tmp_path / "out").rglob("*.json"))
    found = [json.loads(line) for line in written.splitlines()]
    assert len({row["window_start"] for row in found}) == 40
    assert [row["n"] for row in found] == [20] * 40
    assert sum(s.counters.get("late_records", 0) for v in metrics.vertices for s in v.subtasks) == 0


def zero(value: int) -> int:
    return 0
