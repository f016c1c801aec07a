"""Per-record Python chain with tidegate: map, filter, keyed reduce in the user's own Python, over clicks in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import protocol
import python_chain
from tidegate_probe import ProbeSink, note_first_read, read_notes

import tidegate
from tidegate import Environment
from tidegate.api.source import (
    FINISHED,
    IDLE,
    Boundedness,
    Finished,
    FixedSplitsEnumerator,
    Idle,
    ReaderContext,
    Source,
    SourceReader,
    SourceSplit,
)
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType, record_type_of

BATCH = 10_000


class AllTogether(FixedSplitsEnumerator):
    """Lets the readers start together, when the last has loaded its clicks, as the peers' workers do."""

    def __init__(self, context: Any, splits: list[SourceSplit]) -> None:
        super().__init__(context, splits)
        self._waiting: list[int] = []
        self._readers = len(splits)

    def handle_split_request(self, subtask: int) -> None:
        """Answer all requests at once."""
        self._waiting.append(subtask)
        if len(self._waiting) == self._readers:
            for reader in self._waiting:
                super().handle_split_request(reader)


class MemorySource(Source):
    """Hands out batches of clicks that were loaded before the clock started, as the peers' sources do."""

    def __init__(self, data: Path, notes: Path, parallelism: int) -> None:
        self._data, self._notes, self._parallelism = data, notes, parallelism

    @property
    def boundedness(self) -> Boundedness:
        """It ends."""
        return Boundedness.BOUNDED

    @property
    def record_type(self) -> RecordType:
        """Tuples, as the workload defines them."""
        return record_type_of(tuple[str, int, str, int])

    def create_enumerator(self, context: Any) -> FixedSplitsEnumerator:
        """One split for each reader."""
        return AllTogether(context, [SourceSplit(id=str(i)) for i in range(self._parallelism)])

    def restore_enumerator(self, context: Any, state: Any) -> FixedSplitsEnumerator:
        """Not needed here."""
        raise AssertionError("a benchmark is not restored")

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """A reader with its own part of the clicks."""
        return _MemoryReader(self._data, self._notes, self._parallelism, context)


class _MemoryReader(SourceReader):
    def __init__(self, data: Path, notes: Path, parts: int, context: ReaderContext) -> None:
        self._type = record_type_of(tuple[str, int, str, int])
        self._clicks = list(python_chain.read_clicks(data / "json", context.subtask_index, parts))
        self._notes = notes / f"source-{context.subtask_index}.json"
        self._context = context
        self._next = 0
        self._assigned = False

    def start(self) -> None:
        self._context.request_split()

    def poll(self) -> Batch | Idle | Finished:
        if not self._assigned:
            return IDLE
        if self._next == 0:
            note_first_read(self._notes)
        rows = self._clicks[self._next : self._next + BATCH]
        self._next += BATCH
        return Batch.of_rows(self._type, rows) if rows else FINISHED

    def add_splits(self, splits: Sequence[Any]) -> None:
        self._assigned = True

    def no_more_splits(self) -> None:
        pass

    def snapshot(self) -> list[Any]:
        return []


class Totals:
    """Keeps the latest result of every key and counts them."""

    def __init__(self) -> None:
        self._totals: dict[str, python_chain.Visit] = {}
        self._results = 0

    def add(self, batch: Batch) -> None:
        """Take results in order."""
        rows = batch.rows
        self._totals.update(zip(map(itemgetter(0), rows), rows, strict=True))
        self._results += len(rows)

    def summary(self) -> dict[str, Any]:
        """The number of results, and the sum of the last totals."""
        return {"results": self._results, "total": sum(visit[2] for visit in self._totals.values())}


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = Environment(parallelism=args.parallelism, progress="off")
        clicks = env.from_source(MemorySource(args.data, notes, args.parallelism), name="clicks")
        visits = clicks.map(python_chain.parse).filter(python_chain.is_counted)
        visits.key_by("f0").reduce(python_chain.add).sink_to(ProbeSink(notes, Totals))
        client = env.execute_async("chain")
        client.result()
        measured = read_notes(notes)
    protocol.report(
        version=tidegate.__version__,
        records=args.records,
        seconds=(measured.last_ns - measured.first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(measured.first_ns),
        cpu_s=measured.cpu_s,
        check={key: sum(s[key] for s in measured.sinks) for key in ("results", "total")},
    )


if __name__ == "__main__":
    main()
