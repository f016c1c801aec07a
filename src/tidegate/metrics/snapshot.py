"""Snapshots of a job's metrics, as plain values for the wire and for display.

All numbers of records, bytes and milliseconds are totals since the subtask started; rates come from two snapshots. The
three times of a subtask add up to the time since its start, so they are also the clock of its counters: a reader of two
snapshots needs no other clock.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.core.words import number_of
from tidegate.metrics.html import metrics_html

RECORDS_BEHIND: Final = "records_behind"
"""The gauge of a source subtask: how many records wait in its splits, if its reader knows."""

RECORDS_BEFORE: Final = "records_before"
"""The gauge of a restored source subtask: how many records it had emitted before the checkpoint."""


class OperatorCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Records in and out of one operator inside a chain."""

    name: str
    records_in: int = 0
    records_out: int = 0
    watermark_ms: int | None = None
    """The last watermark that it emitted; of several subtasks the smallest. None: no watermark yet."""


class EventTime(msgspec.Struct, frozen=True, kw_only=True):
    """The event time of a subtask, and what holds it back."""

    watermark_ms: int | None = None
    """None: no watermark yet."""
    lag_ms: int = 0
    """How far the watermark is behind the wall clock."""
    idle: bool = False
    held_by: tuple[int, int] | None = None
    """The upstream vertex and subtask that it waits for."""
    split: str = ""
    """The split that a source waits for; empty if it has none."""
    quiet_ms: int = 0
    """For how long that split has had no record."""


class SubtaskMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask of a job vertex (a chain of operators), as its slot reports it."""

    subtask: int
    records_in: int = 0
    """Records received over the edges; in a chain that begins with a source, records that the source emitted."""
    records_out: int = 0
    """Records sent over the edges, counted once per edge, and records that the sinks of the chain wrote."""
    bytes_in: int = 0
    bytes_out: int = 0
    busy_ms: int = 0
    idle_ms: int = 0
    backpressured_ms: int = 0
    backlog: int = 0
    """Waiting input batches."""
    credits: int = 0
    """Batches that the receivers will still accept."""
    operators: tuple[OperatorCounts, ...] = ()
    """The operators of the chain, first to last; empty if they are not counted separately."""
    counters: dict[str, int] = {}
    """Counters that operators registered by name."""
    gauges: dict[str, int] = {}
    """Gauges that operators registered by name."""
    time: EventTime | None = None
    """The event time; None before the first watermark."""

    @property
    def running_ms(self) -> int:
        """Time from the subtask's start to this snapshot."""
        return self.busy_ms + self.idle_ms + self.backpressured_ms


def event_time_of(
    watermark_ms: int,
    now_ms: int,
    *,
    idle: bool = False,
    held_by: tuple[int, int] | None = None,
    split: str = "",
    quiet_ms: int = 0,
) -> EventTime:
    """The event time at a watermark, which may be no watermark (-2^63) or the end of input (2^63 - 1)."""
    known = watermark_ms > -(1 << 63)
    lag_ms = max(0, now_ms - watermark_ms) if known else 0
    return EventTime(
        watermark_ms=watermark_ms if known else None,
        lag_ms=lag_ms,
        idle=idle,
        held_by=held_by,
        split=split,
        quiet_ms=quiet_ms,
    )


class VertexMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One job vertex: all its subtasks that have reported."""

    vertex: int
    name: str
    parallelism: int
    subtasks: tuple[SubtaskMetrics, ...] = ()
    records_expected: int | None = None
    """How many records a bounded source will emit in total, if it knows."""

    def total(self, counter: str) -> int:
        """The sum of one field of `SubtaskMetrics` over the subtasks.

        >>> subtasks = (SubtaskMetrics(subtask=0, records_in=3), SubtaskMetrics(subtask=1, records_in=4))
        >>> VertexMetrics(vertex=1, name="count", parallelism=2, subtasks=subtasks).total("records_in")
        7
        """
        return sum(getattr(subtask, counter) for subtask in self.subtasks)

    def operators(self) -> list[OperatorCounts]:
        """The counts of the chain's operators, summed over the subtasks."""
        sums: dict[int, OperatorCounts] = {}
        for subtask in self.subtasks:
            for i, counts in enumerate(subtask.operators):
                sums[i] = _added(sums[i], counts) if i in sums else counts
        return list(sums.values())


def _added(one: OperatorCounts, other: OperatorCounts) -> OperatorCounts:
    marks = one.watermark_ms, other.watermark_ms
    return OperatorCounts(
        name=one.name,
        records_in=one.records_in + other.records_in,
        records_out=one.records_out + other.records_out,
        watermark_ms=None if marks[0] is None or marks[1] is None else min(marks[0], marks[1]),
    )


class CatchUp(msgspec.Struct, frozen=True, kw_only=True):
    """How a restored job makes up for lost time."""

    records_behind: int
    """Records that wait in the sources."""
    records_read_per_s: float | None = None
    """None, like the next rate, while too little time has passed."""
    records_arriving_per_s: float | None = None
    caught_up_after_ms: int | None = None
    """How long catching up took, from the first report of the attempt; None: not caught up yet."""


class JobMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A whole job at one moment."""

    name: str
    status: str
    elapsed_ms: int
    vertices: tuple[VertexMetrics, ...] = ()
    job_id: str = ""
    attempt: int = 0
    catch_up: CatchUp | None = None
    """Since the last recovery; None: no recovery, or the sources do not know how many records wait."""

    @property
    def records_behind(self) -> int | None:
        """How many records wait in the sources; None if no source knows.

        >>> waiting = SubtaskMetrics(subtask=0, gauges={"records_behind": 7})
        >>> log = VertexMetrics(vertex=0, name="log", parallelism=1, subtasks=(waiting,))
        >>> JobMetrics(name="job", status="RUNNING", elapsed_ms=1000, vertices=(log,)).records_behind
        7
        """
        gauges = [s.gauges for v in self.vertices for s in v.subtasks]
        known = [g[RECORDS_BEHIND] for g in gauges if RECORDS_BEHIND in g]
        return sum(known) if known else None

    def __str__(self) -> str:
        """A line for the job and one for each operator; `repr` shows every number of every subtask.

        >>> counts = OperatorCounts(name="numbers", records_out=3), OperatorCounts(name="print", records_in=3)
        >>> vertex = VertexMetrics(vertex=0, name="numbers -> print", parallelism=1,
        ...     subtasks=(SubtaskMetrics(subtask=0, operators=counts),))
        >>> print(JobMetrics(name="job", status="FINISHED", elapsed_ms=1234, vertices=(vertex,)))
        job 'job' FINISHED, 1.2 s
          numbers: 0 records in, 3 out
          print: 3 records in, 0 out
        """
        lines = [f"job {self.name!r} {self.status}, {self.elapsed_ms / 1000:.1f} s"]
        for vertex in self.vertices:
            lines += (
                f"  {o.name}: {number_of(o.records_in, 'record')} in, {o.records_out:,} out"
                for o in vertex.operators()
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return metrics_html(self)

    @property
    def progress(self) -> float | None:
        """The fraction of the expected records that the sources have emitted; None while that is unknown.

        >>> source = VertexMetrics(vertex=0, name="numbers", parallelism=1, records_expected=200,
        ...     subtasks=(SubtaskMetrics(subtask=0, records_out=50),))
        >>> JobMetrics(name="job", status="RUNNING", elapsed_ms=1000, vertices=(source,)).progress
        0.25
        """
        bounded = [v for v in self.vertices if v.records_expected is not None]
        expected = sum(v.records_expected or 0 for v in bounded)
        if not expected:
            return None
        emitted = sum(_emitted_by_source(v) for v in bounded)
        return min(1.0, emitted / expected)


def _emitted_by_source(vertex: VertexMetrics) -> int:
    """Records that the source itself emitted, also before a restore; the chain after it may drop or multiply them."""
    operators = vertex.operators()
    before = sum(s.gauges.get(RECORDS_BEFORE, 0) for s in vertex.subtasks)
    return before + (operators[0].records_out if operators else vertex.total("records_out"))
