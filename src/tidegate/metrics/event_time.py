"""Event time in words: each operator's watermark, its lag, what holds it back, down to the split; late records.

Pure: snapshots in, words out. The live display and `explain` of a running job use the same words.
"""

from __future__ import annotations

import datetime

import msgspec

from tidegate.core.words import number_of
from tidegate.metrics.quantities import brief_duration
from tidegate.metrics.snapshot import EventTime, JobMetrics, SubtaskMetrics, VertexMetrics

_END = (1 << 63) - 1
_NAME_CELLS = 32
_SPLIT_CELLS = 40
_REMEDY = (
    "allow for more disorder in the WatermarkStrategy (files of the past may need no_watermarks), or take them with "
    "allowed_lateness(...) or a side output for late data"
)
_QUIET_MS = 1_000
"""A split without records for so long is shown as quiet."""


def watermark_words(metrics: JobMetrics, vertex: VertexMetrics) -> str:
    """The watermark of a vertex's slowest subtask, and what holds it back; empty without event time.

    >>> clicks = VertexMetrics(vertex=0, name="clicks", parallelism=1, subtasks=(SubtaskMetrics(
    ...     subtask=0, time=EventTime(watermark_ms=43_203_000, split="partition 3", quiet_ms=40_000)),))
    >>> count = VertexMetrics(vertex=1, name="count", parallelism=1, subtasks=(SubtaskMetrics(
    ...     subtask=0, time=EventTime(watermark_ms=43_203_000, lag_ms=2_000, held_by=(0, 0))),))
    >>> job = JobMetrics(name="job", status="RUNNING", elapsed_ms=1, vertices=(clicks, count))
    >>> watermark_words(job, count)
    'watermark 1970-01-01 12:00:03, 2.0 s behind, held by clicks/partition 3, without records for 40.0 s'
    """
    time = _slowest(vertex)
    if time is None:
        return ""
    words = f"watermark {watermark_time(time.watermark_ms)}"
    if time.lag_ms and time.watermark_ms != _END:
        words += f", {brief_duration(time.lag_ms)} behind"
    late = late_records(vertex)
    if late:
        words += f", {late:,} late {'record' if late == 1 else 'records'}"
    if time.idle:
        return f"{words}, idle"
    holder = _holder(metrics, vertex, time)
    return f"{words}, held by {holder}" if holder else words


class OperatorWatermark(msgspec.Struct, frozen=True):
    """The event time of one operator of a running job; of several subtasks the slowest.

    The field names are keys of the JSON format of `explain`.
    """

    watermark_ms: int | None
    """None: no watermark yet; 2^63 - 1: the input has ended."""
    lag_ms: int
    """How far the watermark is behind the wall clock."""
    idle: bool
    held_by: str
    """What the operator waits for, down to the split, and how long that has been quiet; empty if nothing."""

    @property
    def words(self) -> str:
        """The fields as a sentence.

        >>> OperatorWatermark(43_203_000, 2_000, False, "clicks/partition 3").words
        'watermark 1970-01-01 12:00:03, 2.0 s behind, held by clicks/partition 3'
        """
        words = f"watermark {watermark_time(self.watermark_ms)}"
        words += f", {brief_duration(self.lag_ms)} behind" if self.lag_ms else ""
        words += ", idle" if self.idle else ""
        return f"{words}, held by {self.held_by}" if self.held_by else words


def operator_watermarks(metrics: JobMetrics, vertex: VertexMetrics) -> list[OperatorWatermark]:
    """One for each operator of the chain; empty if the vertex has no event time.

    >>> from tidegate.metrics.snapshot import OperatorCounts
    >>> time = EventTime(watermark_ms=10_000, lag_ms=2_000, split="partition 3")
    >>> chain = tuple(OperatorCounts(name=n, watermark_ms=w) for n, w in (("clicks", 10_000), ("count", 9_000)))
    >>> clicks = VertexMetrics(vertex=0, name="clicks -> count", parallelism=1, subtasks=(
    ...     SubtaskMetrics(subtask=0, time=time, operators=chain),))
    >>> job = JobMetrics(name="job", status="RUNNING", elapsed_ms=1, vertices=(clicks,))
    >>> [mark.lag_ms for mark in operator_watermarks(job, clicks)]
    [2000, 3000]
    """
    time = _slowest(vertex)
    if time is None:
        return []
    holder = "" if time.idle else _holder(metrics, vertex, time)
    now_ms = None if time.watermark_ms is None else time.watermark_ms + time.lag_ms
    found = []
    chain = VertexMetrics(vertex=0, name="", parallelism=0, subtasks=tuple(_waited_for(vertex)))
    for counts in chain.operators():
        mark = counts.watermark_ms
        lag_ms = 0 if mark is None or mark == _END or now_ms is None else max(0, now_ms - mark)
        found.append(OperatorWatermark(mark, lag_ms, time.idle, "" if mark == _END else holder))
    return found


def lag_words(metrics: JobMetrics) -> str:
    """How far the slowest vertex is behind, and what holds it back; empty without event time, and at the end.

    >>> time = EventTime(watermark_ms=43_203_000, lag_ms=42_000, split="partition 3", quiet_ms=40_000)
    >>> clicks = VertexMetrics(
    ...     vertex=0, name="clicks", parallelism=1, subtasks=(SubtaskMetrics(subtask=0, time=time),))
    >>> lag_words(JobMetrics(name="job", status="RUNNING", elapsed_ms=1, vertices=(clicks,)))
    'watermark 42.0 s behind, held by clicks/partition 3, without records for 40.0 s'
    """
    slowest = [(vertex, time) for vertex in metrics.vertices if (time := _slowest(vertex)) is not None]
    waited_for = [(v, t) for v, t in slowest if t.lag_ms and not t.idle and t.watermark_ms != _END]
    if not waited_for:
        return ""
    vertex, time = max(waited_for, key=lambda found: found[1].lag_ms)
    holder = _holder(metrics, vertex, time)
    words = f"watermark {brief_duration(time.lag_ms)} behind"
    return f"{words}, held by {holder}" if holder else words


def dropped_words(metrics: JobMetrics) -> list[str]:
    """Messages at the end of a job about dropped late records, one per vertex that has any.

    >>> count = VertexMetrics(vertex=0, name="count", parallelism=1, subtasks=(
    ...     SubtaskMetrics(subtask=0, counters={"late_records": 3, "late_records_dropped": 3}),))
    >>> dropped_words(JobMetrics(name="job", status="FINISHED", elapsed_ms=1, vertices=(count,)))[0][:41]
    "'count' dropped 3 records that were late;"
    """
    found = []
    for vertex in metrics.vertices:
        dropped = sum(subtask.counters.get("late_records_dropped", 0) for subtask in vertex.subtasks)
        if dropped:
            found.append(f"{vertex.name!r} dropped {number_of(dropped, 'record')} that were late; {_REMEDY}")
    return found


def drop_words(operator: str, watermark_ms: int, late_by_ms: int, dropped: int, next_at: int) -> str:
    """The message while a job runs about late records that an operator has dropped so far.

    >>> words = drop_words("count", 43_203_000, 2_500, 12, 100)
    >>> words[:94]
    "operator 'count' has dropped 12 late records so far, about 2.5 s behind the watermark 1970-01-"
    >>> words[105:143]
    '; the next report comes at 100 of them'
    """
    behind = f"about {brief_duration(late_by_ms)} behind the watermark {watermark_time(watermark_ms)}"
    return (
        f"operator {operator!r} has dropped {dropped:,} late {'record' if dropped == 1 else 'records'} so far, "
        f"{'after the last watermark' if watermark_ms == _END else behind}; the next report comes at {next_at:,} of "
        f"them. To keep such records, {_REMEDY}"
    )


def late_records(vertex: VertexMetrics) -> int:
    """How many records were too late for the operators of a vertex, and so are in no result.

    >>> late_records(VertexMetrics(vertex=0, name="count", parallelism=1, subtasks=(
    ...     SubtaskMetrics(subtask=0, counters={"late_records": 3}),)))
    3
    """
    return sum(subtask.counters.get("late_records", 0) for subtask in vertex.subtasks)


def watermark_time(watermark_ms: int | None) -> str:
    """A watermark as a readable time, in UTC.

    >>> watermark_time(None), watermark_time(3_723_500)
    ('none yet', '1970-01-01 01:02:03.500')
    """
    if watermark_ms is None:
        return "none yet"
    if watermark_ms == _END:
        return "at the end"
    try:
        moment = datetime.datetime.fromtimestamp(watermark_ms // 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{watermark_ms} ms"
    fraction = watermark_ms % 1000
    return f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{fraction:03d}" if fraction else "")


def watermark_lines(metrics: JobMetrics) -> list[str]:
    """One line per vertex with event time."""
    found = ((vertex.name, watermark_words(metrics, vertex)) for vertex in metrics.vertices)
    return [f"{_brief(name)}: {words}" for name, words in found if words]


def _brief(name: str) -> str:
    """A name, cut if it is long, so that what follows stays visible.

    >>> _brief("count -> async ask -> map <lambda> -> sink json files in /data/out")
    'count -> async ask -> map <lamb…'
    """
    return name if len(name) <= _NAME_CELLS else f"{name[: _NAME_CELLS - 1].rstrip()}…"


def _brief_split(split: str) -> str:
    """A split; of a long one only the end, where paths differ.

    >>> _brief_split("/data/2026/clicks/part-00000-3f1c9a52-11aa.json@16777216")
    '…/part-00000-3f1c9a52-11aa.json@16777216'
    """
    return split if len(split) <= _SPLIT_CELLS else f"…{split[1 - _SPLIT_CELLS :]}"


def _slowest(vertex: VertexMetrics) -> EventTime | None:
    times = [s.time for s in _waited_for(vertex) if s.time is not None]
    return min(
        times, key=lambda time: -_END if time.watermark_ms is None else time.watermark_ms, default=None
    )


def _waited_for(vertex: VertexMetrics) -> list[SubtaskMetrics]:
    """The subtasks that are not idle; all of them if all are."""
    timed = [s for s in vertex.subtasks if s.time is not None]
    return [s for s in timed if s.time is not None and not s.time.idle] or timed


def _holder(metrics: JobMetrics, vertex: VertexMetrics, time: EventTime) -> str:
    """Follow `held_by` upstream to the source; the graph has no cycles, so this ends."""
    if time.watermark_ms == _END:
        return ""
    vertices = {v.vertex: v for v in metrics.vertices}
    name, seen = "", 0
    while time.held_by is not None and seen < len(vertices):
        seen += 1
        before = vertices.get(time.held_by[0])
        if before is None:
            return name
        vertex, name = before, f"{_brief(before.name)}/{time.held_by[1]}"
        subtask = next((s for s in before.subtasks if s.subtask == time.held_by[1]), None)
        if subtask is None or subtask.time is None:
            return name
        time = subtask.time
    if time.split:
        source = vertex.operators()[0].name if vertex.operators() else vertex.name
        name = f"{_brief(source)}/{_brief_split(time.split)}"
    if name and time.quiet_ms >= _QUIET_MS:
        name += f", without records for {brief_duration(time.quiet_ms)}"
    return name
