"""After a failure a job is behind; whether it catches up is measured, and said if it does not."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.fault.kit import kill, pids, running, until, until_completed, until_restarted
from tests.spark.test_checkpoint_rows import QUICK
from tidegate import MapFunction
from tidegate.api.known_splits import KnownSplitsSource, RequestingReader
from tidegate.api.sink import BlackholeSink
from tidegate.api.source import Boundedness, Finished, Idle, ReaderContext, SourceReader, SourceSplit
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import record_type_of
from tidegate.testing.scripted_source import PartitionSplit

RATE = 2_000


class GrowingLog(KnownSplitsSource):
    """A log that somebody else appends to, so many records a second, whether anybody reads it or not."""

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED
    split_type = PartitionSplit
    on_request = False

    def __init__(self) -> None:
        super().__init__(record_type_of(int))
        self.began_s = time.time()

    def splits(self, parallelism: int) -> list[SourceSplit]:
        return [PartitionSplit(id="log", partition=0, position=0)]

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _LogReader(context, self)

    def length(self) -> int:
        """How long it is now."""
        return int((time.time() - self.began_s) * RATE)


class _LogReader(RequestingReader):
    def __init__(self, context: ReaderContext, log: GrowingLog) -> None:
        super().__init__(context)
        self._log = log
        self._split: PartitionSplit | None = None

    def poll(self) -> Batch | Idle | Finished:
        split = self._split
        if split is None:
            return self.out_of_splits()
        stop = min(self._log.length(), split.position + 200)
        if stop <= split.position:
            return Idle(self._context.clock.monotonic_ns() + 5_000_000)
        self._split = msgspec.structs.replace(split, position=stop)
        columns = pa.RecordBatch.from_arrays(
            [pa.array(range(split.position, stop), pa.int64())], schema=self._log.record_type.schema
        )
        return Batch(
            self._log.record_type, columns=columns, origin=Origin(split.id, split.position, "record")
        )

    def records_behind(self) -> int | None:
        return None if self._split is None else max(0, self._log.length() - self._split.position)

    def add_splits(self, splits: Sequence[Any]) -> None:
        super().add_splits(splits)
        (self._split,) = splits

    def snapshot(self) -> list[Any]:
        return [] if self._split is None else [self._split]


class Pace(MapFunction):
    """Takes a millisecond for a record while there is the file: half of what arrives."""

    def __init__(self, slow: Path) -> None:
        self.slow = str(slow)

    def open(self, context: Any) -> None:
        self.pause_s = 0.001 if os.path.exists(self.slow) else 0.0

    def map(self, value: int) -> int:
        if self.pause_s:
            time.sleep(self.pause_s)
        return value


@pytest.mark.spec("S2-1")
@pytest.mark.timeout(600)
def test_a_job_tells_how_it_catches_up_after_a_failure_and_warns_when_it_cannot(make_env, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    env = make_env(
        parallelism=1,
        checkpoint_dir=str(tmp_path / "chk"),
        **{**QUICK, "checkpoint_interval": "500 ms", "restart_attempts": 100},
    )
    slow = tmp_path / "slow"
    numbers = env.from_source(GrowingLog(), uid="log").map(Pace(slow), returns=int, uid="pace")
    numbers.sink_to(BlackholeSink(), uid="nowhere")
    with running(env, "catching up") as client:
        until_completed(client, 2)
        assert client.metrics().catch_up is None, "nothing has failed"
        kill(pids(client)[0])
        until_restarted(client, 1)

        def caught_up() -> Any:
            found = client.metrics().catch_up
            return found if found is not None and found.caught_up_after_ms is not None else None

        found = until(client, caught_up, "the job to catch up")
        assert found.records_arriving_per_s == pytest.approx(RATE, rel=0.25)
        assert found.records_behind <= found.records_arriving_per_s
        assert client.metrics().records_behind is not None
        assert "does not catch up" not in caplog.text

        slow.touch()
        kill(pids(client)[0])
        until_restarted(client, 2)
        until(client, lambda: "does not catch up" in caplog.text, "the warning")
        behind = client.metrics().catch_up
        assert behind.caught_up_after_ms is None
        assert behind.records_read_per_s <= behind.records_arriving_per_s
        assert behind.records_behind > RATE
        assert "job 'catching up': it does not catch up after its recovery: it reads" in caplog.text
