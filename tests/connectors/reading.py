"""Runs a source's enumerator and readers in one thread, the way the runtime does, with a manual clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import cloudpickle
import msgspec

from tidegate.api.source import FINISHED, Finished, Idle, ReaderContext, Source, SourceReader
from tidegate.core.clock import ManualClock
from tidegate.metrics.registry import TaskMetrics
from tidegate.records.batch import Batch
from tidegate.testing.subtasks import subtask_info


class SourceRun:
    """One job with one source: what the readers return is taken with `poll` or `read_to_end`."""

    def __init__(
        self,
        source: Source,
        parallelism: int = 1,
        *,
        batch_rows: int = 65536,
        clock: ManualClock | None = None,
        restored: tuple[Any, list[Any]] | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.source: Source = cloudpickle.loads(cloudpickle.dumps(source))  # as it reaches the slots
        self.parallelism = parallelism
        self.clock = clock or ManualClock()
        self.metrics = TaskMetrics(0, 0)
        self.requests = [0] * parallelism
        self.assigned: list[list[Any]] = [[] for _ in range(parallelism)]
        state, splits = restored or (None, [])
        if restored is None:
            self.enumerator = self.source.create_enumerator(self)
        else:
            self.enumerator = self.source.restore_enumerator(self, state)
        self.enumerator.start()
        self.readers: list[SourceReader] = [
            self.source.create_reader(self._context(i, batch_rows, wake)) for i in range(parallelism)
        ]
        for i, split in enumerate(splits):
            self.assign([split], i % parallelism)
        for reader in self.readers:
            reader.start()

    def _context(self, subtask: int, batch_rows: int, wake: Callable[[], None]) -> ReaderContext:
        def request_split() -> None:
            self.requests[subtask] += 1
            self.enumerator.handle_split_request(subtask)

        def no_side_output(tag: str, batch: Batch) -> None:
            raise AssertionError(f"unexpected side output {tag}")

        return ReaderContext(
            subtask=subtask_info("source", subtask, self.parallelism),
            clock=self.clock,
            batch_rows=batch_rows,
            most_batch_rows=batch_rows,
            request_split=request_split,
            wake=wake,
            counter=self.metrics.counter,
            side_output=no_side_output,
        )

    def assign(self, splits: list[Any], subtask: int) -> None:
        wire = json.loads(msgspec.json.encode(list(splits)))  # splits cross the wire as JSON
        arrived = msgspec.convert(wire, list[self.source.split_type])
        self.assigned[subtask] += arrived
        self.readers[subtask].add_splits(arrived)

    def no_more_splits(self, subtask: int) -> None:
        self.readers[subtask].no_more_splits()

    def poll(self, subtask: int = 0) -> Batch | Idle | Finished:
        return self.readers[subtask].poll()

    def next_batch(self, subtask: int = 0) -> Batch:
        """Polls through the exchange with the enumerator."""
        answer = self.poll(subtask)
        if isinstance(answer, Idle):
            answer = self.poll(subtask)
        assert isinstance(answer, Batch), answer
        return answer

    def read_to_end(self, subtasks: list[int] | None = None) -> list[list[Any]]:
        """The rows of each reader; the readers take turns. Moves the clock to where they want to be woken."""
        rows: list[list[Any]] = [[] for _ in self.readers]
        reading = list(range(self.parallelism) if subtasks is None else subtasks)
        while reading:
            wake_at: list[int] = []
            progress = False
            for i in list(reading):
                answer = self.poll(i)
                if isinstance(answer, Batch):
                    assert answer.num_rows > 0
                    rows[i] += answer.rows
                    progress = True
                elif answer is FINISHED:
                    reading.remove(i)
                elif answer.wake_at_ns is not None:
                    wake_at.append(answer.wake_at_ns)
                else:
                    progress = True  # it asked for a split and has it by now
            if reading and not progress:
                self.clock.advance_ns(max(0, min(wake_at) - self.clock.monotonic_ns()))
        return rows

    def checkpoint(self) -> tuple[Any, list[Any]]:
        """The enumerator's state and all readers' splits, through JSON as in a stored checkpoint."""
        state = json.loads(msgspec.json.encode(self.enumerator.snapshot()))
        splits = [split for reader in self.readers for split in reader.snapshot()]
        stored = json.loads(msgspec.json.encode(splits))
        return state, msgspec.convert(stored, list[self.source.split_type])

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.enumerator.close()
