"""`ScriptedSource`: partitions of records with markers between them, at which a reader pauses or dies.

For tests of recovery: the input itself determines what a job has read when a checkpoint is taken, and where it crashes.
A position counts only records, so a stored position of 1000 means that 1000 records were read.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from tidegate.api.known_splits import KnownSplitsSource, RequestingReader
from tidegate.api.source import Boundedness, Finished, Idle, ReaderContext, SourceReader, SourceSplit
from tidegate.core.errors import ProgramError, TidegateError
from tidegate.core.identity import Identity
from tidegate.core.words import number_of
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import infer_record_type, record_type_of

_LOOK_AGAIN_NS = 5_000_000


class ScriptedCrash(TidegateError):
    """A `Crash` marker was reached."""


@dataclass(frozen=True)
class Pause:
    """Stop reading until `ScriptedSource.release(name)` is called."""

    name: str


@dataclass(frozen=True)
class Crash:
    """End the reader's process, or raise in it; only the first time that a reader comes here.

    `kill` is SIGKILL, `exit` is `sys.exit`, `_exit` is `os._exit`, `raise` raises a `ScriptedCrash`. In the process of
    the program itself (the in-process runtime) every way is `raise`.
    """

    name: str = "crash"
    how: Literal["kill", "raise", "exit", "_exit"] = "kill"


class PartitionSplit(SourceSplit, frozen=True, kw_only=True):
    """A partition; `position` is the next record."""

    partition: int
    position: int


class ScriptedSource(KnownSplitsSource):
    """Reads partitions of records; `Pause` and `Crash` markers among them act between two records.

    Subtask i modulo the parallelism reads partition i, in order. Files in `directory` remember the markers that were
    reached; the source creates the directory, and all processes must see it.

    >>> import tempfile
    >>> source = ScriptedSource([[1, 2, Crash("after two"), 3]], tempfile.mkdtemp())
    >>> source.describe()
    'script of 3 records in 1 partition'
    """

    boundedness = Boundedness.BOUNDED
    split_type = PartitionSplit
    on_request = False

    def __init__(
        self, partitions: Iterable[Iterable[Any]], directory: str | os.PathLike[str], *, type: Any = None
    ) -> None:
        self._records: list[list[Any]] = []
        self._markers: list[dict[int, list[Pause | Crash]]] = []
        for partition in partitions:
            records: list[Any] = []
            markers: dict[int, list[Pause | Crash]] = {}
            for step in partition:
                if isinstance(step, (Pause, Crash)):
                    markers.setdefault(len(records), []).append(step)
                else:
                    records.append(step)
            self._records.append(records)
            self._markers.append(markers)
        every = [record for records in self._records for record in records]
        super().__init__(infer_record_type(every) if type is None else record_type_of(type))
        self._type.check_rows(every)
        names = [m.name for markers in self._markers for at in markers.values() for m in at]
        if len(set(names)) != len(names):
            raise ProgramError(f"a script needs markers with different names, got {sorted(names)}")
        self.directory = str(directory)
        self._driver_pid = os.getpid()
        Path(directory).mkdir(parents=True, exist_ok=True)

    # ---- for the test ----

    def release(self, name: str) -> None:
        """Let readers go past a `Pause`, now and after every restart."""
        _touch(self._path("released", name))

    def has_reached(self, name: str) -> bool:
        """Whether a reader has reached the `Pause` or `Crash` of this name, in any attempt."""
        return os.path.exists(self._path("reached", name))

    # ---- the contract of a source ----

    @property
    def expected_records(self) -> int:
        return sum(map(len, self._records))

    def splits(self, parallelism: int) -> list[SourceSplit]:
        return [
            PartitionSplit(id=f"partition {i}", partition=i, position=0) for i in range(len(self._records))
        ]

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _ScriptReader(context, self)

    def describe(self) -> str:
        count = len(self._records)
        return f"script of {number_of(self.expected_records, 'record')} in {number_of(count, 'partition')}"

    def identity(self) -> Identity:
        return "script", tuple(map(len, self._records))

    def _path(self, kind: str, name: str) -> str:
        return os.path.join(self.directory, f"{kind} {name}")


class _ScriptReader(RequestingReader):
    """Reads its partitions in turn; one that pauses does not block the others, and each has its own watermark."""

    last_split = ""

    def __init__(self, context: ReaderContext, source: ScriptedSource) -> None:
        super().__init__(context)
        self._source = source
        self._splits: list[PartitionSplit] = []

    def poll(self) -> Batch | Idle | Finished:
        source = self._source
        for split in list(self._splits):
            records, markers = source._records[split.partition], source._markers[split.partition]
            start = split.position
            if not all(self._passes(marker) for marker in markers.get(start, ())):
                continue
            self._splits.remove(split)
            if start == len(records):
                continue
            # Not `batch_rows`, which depends on the machine's speed: a script's batches must always end at one place.
            stop = min(
                [len(records), start + self._context.most_batch_rows, *(i for i in markers if i > start)]
            )
            self._splits.append(msgspec.structs.replace(split, position=stop))
            self.last_split = split.id
            return Batch(
                source.record_type, rows=records[start:stop], origin=Origin(split.id, start, "record")
            )
        if self._splits:
            return Idle(self._context.clock.monotonic_ns() + _LOOK_AGAIN_NS)
        return self.out_of_splits()

    def add_splits(self, splits: Sequence[Any]) -> None:
        super().add_splits(splits)
        self._splits.extend(splits)

    def snapshot(self) -> list[Any]:
        return list(self._splits)

    def _passes(self, marker: Pause | Crash) -> bool:
        source = self._source
        if isinstance(marker, Pause):
            _touch(source._path("reached", marker.name))
            return os.path.exists(source._path("released", marker.name))
        try:
            os.close(os.open(source._path("reached", marker.name), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return True
        if os.getpid() != source._driver_pid:
            if marker.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if marker.how == "exit":
                sys.exit(1)
            if marker.how == "_exit":
                os._exit(1)
        raise ScriptedCrash(f"crash {marker.name!r} of the script")


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT))
