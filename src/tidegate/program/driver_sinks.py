"""Sinks whose records go to the driver: printed there, or collected by the program.

A slot's standard output is a log file of some Spark executor, not the user's terminal. So both sinks hand their
batches to the driver (`WriterContext.send_to_driver`), and are not ready while the driver has not taken the earlier
ones: a slow terminal or a slow loop over results holds the job back instead of filling the memory.
"""

from __future__ import annotations

from typing import TextIO

from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.core.errors import ProgramError
from tidegate.core.identity import Identity
from tidegate.records.batch import Batch

MAX_DRIVER_BACKLOG = 8
"""Batches of one subtask that may wait for the driver."""


class DriverSink(Sink[object]):
    """A sink whose batches the driver takes; the job client decides what happens to them there."""

    limit: int | None = None
    """Most records that one subtask sends; the rest is dropped in the slot."""

    def create_writer(self, context: WriterContext) -> SinkWriter[object]:
        """Make a writer that sends its batches to the driver."""
        return _DriverWriter(context, self.limit)


class PrintSink(DriverSink):
    """Prints every record on the driver's standard output as `prefix:subtask> record`.

    With `limit`, only the first so many records are printed; the others are counted as written and dropped.

    >>> PrintSink("counts").describe()
    'print, prefix counts'
    """

    def __init__(self, prefix: str | None = None, limit: int | None = None) -> None:
        if limit is not None and limit < 0:
            raise ProgramError(f"print: limit must not be negative, got {limit}.")
        self.prefix = prefix
        self.limit = limit

    def describe(self) -> str:
        """Prefix and limit."""
        prefix = f", prefix {self.prefix}" if self.prefix else ""
        return f"print{prefix}" + ("" if self.limit is None else f", at most {self.limit}")

    def describe_repetition(self, name: str) -> str:
        """Nothing that is printed can be taken back."""
        return "print repeats records after a recovery"

    def identity(self) -> Identity:
        """The prefix."""
        return "print", self.prefix


class CollectSink(DriverSink):
    """Hands every record to the program in the driver: what `execute_and_collect` reads from.

    >>> CollectSink().describe()
    'collect to the driver'
    """

    def describe(self) -> str:
        """Where the records go."""
        return "collect to the driver"

    def describe_repetition(self, name: str) -> str:
        """The program has taken the records already."""
        return "collect repeats records after a recovery"

    def identity(self) -> Identity:
        """The driver is the only place."""
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
    """Print a batch of a `PrintSink`, one record per line and at most `limit`; return how many were printed.

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
