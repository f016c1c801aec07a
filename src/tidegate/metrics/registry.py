"""The slot's side of metrics: plain counters and the account of a subtask's time.

Only the mailbox thread writes them, so there is no lock. Any thread may call `TaskMetrics.snapshot`, which makes the
value for the wire: each number is consistent, but they need not be of one moment.
"""

from __future__ import annotations

import enum
from operator import index

from tidegate.metrics.snapshot import EventTime, OperatorCounts, SubtaskMetrics

_NS_PER_MS = 1_000_000


class Counter:
    """A number that only grows.

    >>> bad_lines = Counter()
    >>> bad_lines.inc()
    >>> bad_lines.inc(2)
    >>> bad_lines.value
    3
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, n: int = 1) -> None:
        """Add an integer; a numpy integer becomes a Python one, which the wire needs."""
        self.value += index(n)


class Gauge:
    """A number that goes up and down.

    >>> pending = Gauge()
    >>> pending.set(3)
    >>> pending.value
    3
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def set(self, value: int) -> None:
        """Set the value, an integer."""
        self.value = index(value)


class TaskState(enum.IntEnum):
    """What a subtask spends its time on."""

    BUSY = 0
    """It processes records."""
    IDLE = 1
    """It has nothing to do."""
    BACKPRESSURED = 2
    """It has records, but its receivers have no room for more."""


class TimeAccount:
    """The time that a subtask spent in each state; the mailbox loop switches between states.

    >>> account = TimeAccount(now_ns=0)
    >>> account.switch(TaskState.BUSY, 5_000_000)
    >>> account.switch(TaskState.BACKPRESSURED, 7_000_000)
    >>> account.totals_ms(now_ns=10_000_000)
    (2, 5, 3)
    """

    __slots__ = ("_book", "state")

    def __init__(self, now_ns: int, state: TaskState = TaskState.IDLE) -> None:
        self.state = state
        # Time by state, the current state and its start, in one tuple: a snapshot never sees half a switch.
        self._book: tuple[int, int, int, TaskState, int] = (0, 0, 0, state, now_ns)

    def switch(self, state: TaskState, now_ns: int) -> None:
        """Book the time up to now under the old state and start the new one. The same state again is free."""
        if state is not self.state:
            self._book = (*self._spent_ns(now_ns), state, now_ns)
            self.state = state

    def totals_ms(self, now_ns: int) -> tuple[int, int, int]:
        """Milliseconds busy, idle and back-pressured, including the current state."""
        busy, idle, backpressured = self._spent_ns(now_ns)
        return busy // _NS_PER_MS, idle // _NS_PER_MS, backpressured // _NS_PER_MS

    def _spent_ns(self, now_ns: int) -> tuple[int, int, int]:
        busy, idle, backpressured, state, since_ns = self._book
        passed = max(0, now_ns - since_ns)
        if state is TaskState.BUSY:
            return busy + passed, idle, backpressured
        if state is TaskState.IDLE:
            return busy, idle + passed, backpressured
        return busy, idle, backpressured + passed


class OperatorMetrics:
    """Records in and out of one operator of a chain; add to the attributes."""

    __slots__ = ("name", "records_in", "records_out", "watermark_ms")

    def __init__(self, name: str) -> None:
        self.name = name
        self.records_in = 0
        self.records_out = 0
        self.watermark_ms: int | None = None
        """The last watermark that the operator emitted."""


class TaskMetrics:
    """All metrics of one subtask; add to the attributes, call `snapshot` for the wire.

    >>> task = TaskMetrics(subtask=0, now_ns=0)
    >>> task.records_in += 100
    >>> task.counter("bad_records").inc()
    >>> report = task.snapshot(now_ns=3_000_000)
    >>> report.records_in, report.idle_ms, report.counters
    (100, 3, {'bad_records': 1})
    """

    __slots__ = (
        "_counters",
        "_gauges",
        "_operators",
        "backlog",
        "bytes_in",
        "bytes_out",
        "credits",
        "event_time",
        "records_in",
        "records_out",
        "subtask",
        "time",
    )

    def __init__(self, subtask: int, now_ns: int) -> None:
        self.subtask = subtask
        self.time = TimeAccount(now_ns)
        self.records_in = 0
        self.records_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.backlog = 0
        self.credits = 0
        self.event_time: EventTime | None = None
        self._operators: list[OperatorMetrics] = []
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, list[Gauge]] = {}

    def operator(self, name: str) -> OperatorMetrics:
        """Add an operator of the chain, first to last; names may repeat."""
        operator = OperatorMetrics(name)
        self._operators.append(operator)
        return operator

    def counter(self, name: str) -> Counter:
        """The counter with this name, made on first use."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = Counter()
        return counter

    def gauge(self, name: str) -> Gauge:
        """A new gauge of one operator of the chain; a snapshot has the sum of all gauges of a name."""
        gauge = Gauge()
        self._gauges.setdefault(name, []).append(gauge)
        return gauge

    def snapshot(self, now_ns: int) -> SubtaskMetrics:
        busy_ms, idle_ms, backpressured_ms = self.time.totals_ms(now_ns)
        return SubtaskMetrics(
            subtask=self.subtask,
            records_in=self.records_in,
            records_out=self.records_out,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            busy_ms=busy_ms,
            idle_ms=idle_ms,
            backpressured_ms=backpressured_ms,
            backlog=self.backlog,
            credits=self.credits,
            operators=tuple(
                OperatorCounts(
                    name=o.name,
                    records_in=o.records_in,
                    records_out=o.records_out,
                    watermark_ms=o.watermark_ms,
                )
                for o in self._operators
            ),
            counters={name: counter.value for name, counter in self._counters.copy().items()},
            gauges={name: sum(g.value for g in gauges) for name, gauges in self._gauges.copy().items()},
            time=self.event_time,
        )
