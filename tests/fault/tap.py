"""An endless input that ends when the test says so: every partition counts 0, 1, 2, ... and never repeats itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.api.known_splits import KnownSplitsSource, RequestingReader
from tidegate.api.source import Boundedness, Finished, Idle, ReaderContext, SourceReader, SourceSplit
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import record_type_of
from tidegate.testing.scripted_source import PartitionSplit

APPS = 31
_BATCH = 50
_PAUSE_NS = 10_000_000


class Tick(NamedTuple):
    """Record n of a partition. The app is a plain function of the two, so that an oracle needs nothing else."""

    partition: int
    n: int
    app: int


def app_of(partition: int, n: int) -> int:
    """The app of a record."""
    return (n * 7919 + partition * 13) % APPS


class TapSource(KnownSplitsSource):
    """Some thousand records a second from each partition, until `close_at` has said where it ends."""

    boundedness = Boundedness.BOUNDED
    split_type = PartitionSplit
    on_request = False

    def __init__(self, directory: Path, partitions: int) -> None:
        super().__init__(record_type_of(Tick))
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = str(directory)
        self.partitions = partitions

    def splits(self, parallelism: int) -> list[SourceSplit]:
        return [PartitionSplit(id=f"tap {i}", partition=i, position=0) for i in range(self.partitions)]

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _TapReader(context, self)

    # ---- for the test ----

    def close(self) -> int:
        """End every partition well behind what any reader has ever reached; returns the length of each.

        Readers go on until they see it, as long as a busy disk takes to write it: four seconds of records are spare.
        """
        reached = [int(p.read_text("ascii") or 0) for p in Path(self.directory).glob("reached-*")]
        end = max([0, *reached]) + 400 * _BATCH
        path = Path(self.directory) / "end"
        path.with_suffix(".new").write_text(str(end), "ascii")
        path.with_suffix(".new").rename(path)
        return end


class _TapReader(RequestingReader):
    def __init__(self, context: ReaderContext, source: TapSource) -> None:
        super().__init__(context)
        self._source = source
        self._splits: list[PartitionSplit] = []
        self._due_ns = 0

    def poll(self) -> Batch | Idle | Finished:
        if not self._splits:
            return self.out_of_splits()
        now_ns = self._context.clock.monotonic_ns()
        end = self._end()
        if end is None and now_ns < self._due_ns:
            return Idle(self._due_ns)
        split = self._splits.pop(0)
        start = split.position
        stop = start + _BATCH if end is None else min(start + 100 * _BATCH, end)
        if stop <= start:
            return self.poll()
        self._due_ns = now_ns + _PAUSE_NS // max(1, len(self._splits) + 1)
        self._reach(split.partition, stop)
        self._splits.append(msgspec.structs.replace(split, position=stop))
        n = np.arange(start, stop, dtype=np.int64)
        columns = pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(len(n), split.partition, np.int64)),
                pa.array(n),
                pa.array(app_of(split.partition, n)),  # type: ignore[arg-type]
            ],
            schema=self._source.record_type.schema,
        )
        return Batch(self._source.record_type, columns=columns, origin=Origin(split.id, start, "record"))

    def add_splits(self, splits: Sequence[Any]) -> None:
        super().add_splits(splits)
        self._splits.extend(splits)

    def snapshot(self) -> list[Any]:
        return list(self._splits)

    def _end(self) -> int | None:
        try:
            with open(os.path.join(self._source.directory, "end"), encoding="ascii") as file:
                return int(file.read())
        except FileNotFoundError:
            return None

    def _reach(self, partition: int, position: int) -> None:
        """Said before it is sent. Only this reader writes the file, and a restart goes back at most a little."""
        path = os.path.join(self._source.directory, f"reached-{partition}-{os.getpid()}")
        with open(path, "w", encoding="ascii") as file:
            file.write(str(position))
