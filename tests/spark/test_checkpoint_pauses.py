"""What a checkpoint costs a job that goes on, beside the naive way: pause everything, drain, copy, resume."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.fault.kit import HoldingSink, _HoldingWriter, running, until
from tests.fault.tap import TapSource, _TapReader
from tests.spark.test_checkpoint_rows import QUICK, later_checkpoint
from tidegate.api.source import Idle
from tidegate.records.batch import Batch, Origin

pytestmark = pytest.mark.timeout(600)

log = logging.getLogger(__name__)

KEYS = 100_000
STEP = 1_000


class Flow(TapSource):
    """Goes round KEYS keys at a hundred thousand records a second and partition, but not while it is stopped."""

    def create_reader(self, context: Any) -> Any:
        return _FlowReader(context, self)

    def stop(self) -> None:
        """Read nothing from now on."""
        (Path(self.directory) / "stop").touch()

    def go_on(self) -> None:
        """Read again."""
        (Path(self.directory) / "stop").unlink()

    def sent(self) -> int:
        """Records of all partitions so far."""
        found = [p.read_text("ascii") for p in Path(self.directory).glob("reached-*")]
        return sum(int(text or 0) for text in found)

    def has_stopped(self) -> bool:
        """Whether every reader has seen the stop."""
        return len(list(Path(self.directory).glob("stopped-*"))) == self.partitions


class _FlowReader(_TapReader):
    def poll(self) -> Any:
        if not self._splits:
            return self.out_of_splits()
        now_ns = self._context.clock.monotonic_ns()
        (split,) = self._splits
        mark = Path(self._source.directory) / f"stopped-{split.partition}"
        if os.path.exists(os.path.join(self._source.directory, "stop")):
            mark.touch()
            return Idle(now_ns + 1_000_000)
        mark.unlink(missing_ok=True)
        if now_ns < self._due_ns:
            return Idle(self._due_ns)
        self._due_ns = now_ns + 10_000_000
        start = split.position
        n = np.arange(start, start + STEP, dtype=np.int64)
        partition = np.full(STEP, split.partition, np.int64)
        self._splits = [msgspec.structs.replace(split, position=start + STEP)]
        columns = pa.RecordBatch.from_arrays(
            [pa.array(partition), pa.array(n), pa.array(n % KEYS)], schema=self._source.record_type.schema
        )
        self._reach(split.partition, start + STEP)
        return Batch(self._source.record_type, columns=columns, origin=Origin(split.id, start, "record"))


class CountingSink(HoldingSink):
    """Notes how many records came, not which."""

    def create_writer(self, context: Any) -> Any:
        return _CountingWriter(self, context)

    def count(self) -> int:
        """Records of all subtasks so far."""
        return sum(int(n) for p in Path(self.directory).glob("*.txt") for n in p.read_text().split("\n")[:-1])


class _CountingWriter(_HoldingWriter):
    def write(self, batch: Batch) -> None:
        with open(self._path, "a", encoding="ascii") as file:
            file.write(f"{len(batch)}\n")


def pause_all_and_copy(client: Any, source: Flow, sink: CountingSink) -> tuple[float, Any]:
    """The naive consistent checkpoint: pause all sources, drain, copy, resume. Gives the least pause in ms.

    The copy is made by the same backend into the same storage: it is the checkpoint that is triggered when everything
    has come to rest. Its time alone is counted, not that until its trigger, nor the draining, which is only polled for.
    """
    source.stop()
    until(client, source.has_stopped, "all sources to stop")
    until(client, lambda: sink.count() == source.sent(), "the channels to run dry")
    sink.let_pass(1 << 30)
    copy = later_checkpoint(client, "the copy")
    source.go_on()
    return copy.end_to_end_ms, copy


def checkpoint_meanwhile(client: Any, sink: CountingSink) -> tuple[float, Any]:
    """The real one, while everything goes on. Gives the longest time in ms that it can have stopped a subtask for."""
    sink.let_pass(1 << 30)
    taken = later_checkpoint(client, "the checkpoint")
    return max(s.metrics.alignment_ms + s.metrics.sync_ms for s in taken.subtasks), taken


@pytest.mark.alone
@pytest.mark.spec("S0-33", "S3-31")
def test_a_checkpoint_stops_a_job_for_a_small_part_of_what_pausing_everything_costs(make_env, tmp_path):
    source, sink = Flow(tmp_path / "flow", partitions=2), CountingSink(tmp_path / "out")
    env = make_env(checkpoint_dir=str(tmp_path / "chk"), **{**QUICK, "checkpoint_fsync": True})
    read = env.from_source(source, uid="source")
    read.key_by("app").count(uid="count").sink_to(sink, uid="out")
    naive, real = [], []
    with running(env, "pauses") as client:
        for _ in range(3):
            for kind in ("naive", "real"):
                # No checkpoint is completed while every key changes, so that both have the same to write.
                sink.hold()
                reached = sink.count()
                until(
                    client, lambda reached=reached: sink.count() > reached + 2 * KEYS, "every key to change"
                )
                if kind == "naive":
                    naive.append(pause_all_and_copy(client, source, sink))
                else:
                    real.append(checkpoint_meanwhile(client, sink))
        client.cancel(60)
    # The least of each: a machine with other work can only add to a pause.
    naive_ms, real_ms = (min(ms for ms, _ in found) for found in (naive, real))
    log.info("pauses in ms and bytes, naive: %s", [(round(ms, 1), c.bytes_new) for ms, c in naive])
    log.info("pauses in ms and bytes, real: %s", [(round(ms, 1), c.bytes_new) for ms, c in real])
    both = sorted(sum(c.bytes_new for _, c in found) for found in (naive, real))
    assert both[0] > both[1] / 2 > 100_000, "both copied much, and about the same"
    assert real_ms < naive_ms / 3, (naive_ms, real_ms)


def take_a_while(n: int) -> int:
    time.sleep(0.001)
    return n


def test_checkpoints_are_not_held_up_by_a_slow_function_that_is_chained_behind_the_source(
    make_env: Any, tmp_path: Path
) -> None:
    """A full batch of the source would keep the function busy for more than four minutes."""
    env = make_env(checkpoint_dir=str(tmp_path / "chk"), **QUICK)
    env.from_sequence(1, 10_000_000, uid="numbers").map(take_a_while, uid="slow").sink_to(nothing, uid="out")
    with running(env, "slow") as client:
        until(client, lambda: client.checkpoints().completed >= 3, "three checkpoints")
        done = [c for c in client.checkpoints().history if c.status == "completed"]
        assert done[-1].end_to_end_ms < 2_000
        client.cancel(60)


def nothing(record: Any) -> None:
    pass
