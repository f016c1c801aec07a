"""Runs a source without a runtime: one enumerator, some readers, restored wherever a test wants it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec

from tidegate.api.source import Finished, Idle, ReaderContext, Source, SourceReader, SplitEnumerator
from tidegate.core.clock import ManualClock
from tidegate.records.batch import Batch
from tidegate.testing.subtasks import subtask_info


class Metric:
    """A counter that a test can read."""

    def __init__(self) -> None:
        self.value = 0

    def inc(self, n: int = 1) -> None:
        self.value += n


class EnumeratorHarness:
    """An enumerator and what it assigned: `assigned[subtask]`, and who was told that nothing follows."""

    def __init__(self, source: Source, parallelism: int = 1, state: Any = None) -> None:
        self.parallelism = parallelism
        self.clock = ManualClock()
        self.assigned: dict[int, list[Any]] = defaultdict(list)
        self.told_no_more: set[int] = set()
        self.enumerator: SplitEnumerator
        if state is None:
            self.enumerator = source.create_enumerator(self)
        else:
            self.enumerator = source.restore_enumerator(self, through_json(state))

    def assign(self, splits: Any, subtask: int) -> None:
        self.assigned[subtask] += splits

    def no_more_splits(self, subtask: int) -> None:
        self.told_no_more.add(subtask)


class ReaderHarness:
    """A reader with a context that records its side outputs and metrics."""

    def __init__(
        self,
        source: Source,
        splits: Any = (),
        *,
        batch_rows: int = 65_536,
        most_batch_rows: int = 0,
        no_more: bool = True,
    ) -> None:
        self.clock = ManualClock()
        self.requests = 0
        self.metrics: dict[str, Metric] = defaultdict(Metric)
        self.side: dict[str, list[Any]] = defaultdict(list)
        self.context = ReaderContext(
            subtask=subtask_info("files"),
            clock=self.clock,
            batch_rows=batch_rows,
            most_batch_rows=max(batch_rows, most_batch_rows),
            request_split=self._request,
            wake=lambda: None,
            counter=lambda name: self.metrics[name],
            side_output=lambda tag, batch: self.side[tag].extend(batch.rows),
        )
        self.reader: SourceReader = source.create_reader(self.context)
        if splits:
            self.reader.add_splits(list(splits))
        if no_more:
            self.reader.no_more_splits()
        self.reader.start()

    def _request(self) -> None:
        self.requests += 1

    def poll(self) -> Batch | Idle | Finished:
        answer = self.reader.poll()
        if isinstance(answer, Batch):
            assert 1 <= answer.num_rows <= self.context.batch_rows
            assert answer.columns.num_rows == answer.num_rows
            answer.plain_columns.validate(full=True)
            assert answer.plain_columns.schema.equals(answer.type.schema)
        return answer

    def next_batch(self) -> Batch | None:
        """The next batch, or None at the end."""
        while True:
            answer = self.poll()
            if isinstance(answer, Batch):
                return answer
            if isinstance(answer, Finished):
                return None
            assert answer.wake_at_ns is not None, "the reader waits for splits that nobody will send"

    def batches(self) -> list[Batch]:
        return list(iter(self.next_batch, None))

    def rows(self) -> list[Any]:
        return [row for batch in self.batches() for row in batch.rows]

    def restart(self, source: Source, *, batch_rows: int | None = None) -> ReaderHarness:
        """A new reader that continues where this one is; splits cross as JSON, side outputs and metrics are kept."""
        splits = [
            msgspec.json.decode(msgspec.json.encode(s), type=source.split_type)
            for s in self.reader.snapshot()
        ]
        self.reader.close()
        rows, most = batch_rows or self.context.batch_rows, self.context.most_batch_rows
        new = ReaderHarness(source, splits, batch_rows=rows, most_batch_rows=most)
        new.side, new.metrics = self.side, self.metrics
        return new


def through_json(value: Any) -> Any:
    """What comes back when a value was stored as JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def all_splits(source: Source) -> list[Any]:
    """Every split of a bounded source."""
    harness = EnumeratorHarness(source)
    harness.enumerator.start()
    while not harness.told_no_more:
        harness.enumerator.handle_split_request(0)
    harness.enumerator.close()
    return harness.assigned[0]


def read_all(source: Source, *, batch_rows: int = 65_536) -> list[Any]:
    """Every record of a bounded source, as rows."""
    harness = ReaderHarness(source, all_splits(source), batch_rows=batch_rows)
    try:
        return harness.rows()
    finally:
        harness.reader.close()


def counted(rows: Any) -> Counter[Any]:
    """Rows as a bag, for comparing without an order."""
    return Counter(rows)
