"""Sinks whose records go to the driver, which prints them or returns them to the program.

The standard output of a slot is a log file of a Spark executor, not the user's terminal. So both sinks send their
batches to the driver (`WriterContext.send_to_driver`). They are not ready while the driver has too many batches
waiting: a slow terminal, or a slow loop over results, back-pressures the job instead of filling memory.
"""

from __future__ import annotations

from typing import TextIO

from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity
from tidegate.records.batch import Batch

MAX_DRIVER_BACKLOG = 8
"""How many batches of one subtask may wait for the driver."""


class DriverSink(Sink[object]):
    """A sink whose batches go to the driver; the job client decides what happens to them there."""

    limit: int | None = None
    """The most records that one subtask sends; the slot drops the rest."""

    def create_writer(self, context: WriterContext) -> SinkWriter[object]:
        return _DriverWriter(context, self.limit)


class PrintSink(DriverSink):
    """Prints every record on the driver's standard output as `prefix:subtask> record`.

    With `limit`, only the first `limit` records are printed; the others count as written and are dropped.

    >>> PrintSink("counts").describe()
    'print, prefix counts'
    """

    def __init__(self, prefix: str | None = None, limit: int | None = None) -> None:
        if limit is not None and limit < 0:
            raise ProgramError(f"print: limit must not be negative, got {limit}.")
        self.prefix = prefix
        self.limit = limit

    def describe(self) -> str:
        prefix = f", prefix {self.prefix}" if self.prefix else ""
        return f"print{prefix}" + ("" if self.limit is None else f", at most {self.limit}")

    def describe_repetition(self, name: str) -> str:
        return "print repeats records after a recovery"

    def identity(self) -> Identity:
        return "print", self.prefix


class CollectSink(DriverSink):
    """Returns every record to the program in the driver; `execute_and_collect` reads from it.

    >>> CollectSink().describe()
    'collect to the driver'
    """

    def describe(self) -> str:
        return "collect to the driver"

    def describe_repetition(self, name: str) -> str:
        return "collect repeats records after a recovery"

    def identity(self) -> Identity:
        return ("collect",)


class _DriverWriter(SinkWriter[object]):
    def __init__(self, context: WriterContext, limit: int | None) -> None:
        self._send = context.send_to_driver
        self._backlog = context.driver_backlog
        self._left = limit

    def write(self, batch: Batch[object]) -> None:
        if self._left is not None:
            if batch.num_rows > self._left:
                batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        if batch.num_rows:
            self._send(batch)

    def is_ready(self) -> bool:
        return self._left == 0 or self._backlog() < MAX_DRIVER_BACKLOG


def print_batch(
    prefix: str | None, subtask: int, batch: Batch, file: TextIO, limit: int | None = None
) -> int:
    """Print a batch of a `PrintSink`, one record per line, at most `limit`; return how many were printed.

    >>> import sys
    >>> from tidegate.records.types import record_type_of
    >>> batch = Batch(record_type_of(int), rows=[7, 8])
    >>> print_batch("counts", 1, batch, sys.stdout)
    counts:1> 7
    counts:1> 8
    2
    >>> print_batch(None, 0, batch, sys.stdout, limit=1)
    0> 7
    1
    """
    start = f"{prefix}:{subtask}> " if prefix else f"{subtask}> "
    rows = batch.rows if limit is None else batch.slice(0, limit).rows
    file.write("".join(f"{start}{row}\n" for row in rows))
    return len(rows)
