"""How event time is shown: each operator's watermark, what holds it back, followed to the source, and late records."""

from __future__ import annotations

import datetime

from tidegate.cli.quantities import brief_duration
from tidegate.metrics.snapshot import EventTime, JobMetrics, SubtaskMetrics, VertexMetrics

_END = (1 << 63) - 1
_NAME_CELLS = 32
_QUIET_MS = 1_000
"""From here on it is said that a split has had no record."""


def watermark_words(metrics: JobMetrics, vertex: VertexMetrics) -> str:
    """The watermark of a vertex, its slowest subtask's, and who holds it; empty without event time.

    >>> clicks = VertexMetrics(vertex=0, name="clicks", parallelism=1, subtasks=(SubtaskMetrics(
    ...     subtask=0, time=EventTime(watermark_ms=43_203_000, split="partition 3", quiet_ms=40_000)),))
    >>> count = VertexMetrics(vertex=1, name="count", parallelism=1, subtasks=(SubtaskMetrics(
    ...     subtask=0, time=EventTime(watermark_ms=43_203_000, lag_ms=2_000, held_by=(0, 0))),))
    >>> job = JobMetrics(name="job", status="RUNNING", elapsed_ms=1, vertices=(clicks, count))
    >>> watermark_words(job, count)
    'watermark 1970-01-01 12:00:03, held by clicks/partition 3, without records for 40.0 s'
    """
    slowest = _slowest(vertex)
    if slowest is None or slowest.time is None:
        return ""
    words = f"watermark {watermark_time(slowest.time.watermark_ms)}"
    late = late_records(vertex)
    if late:
        words += f", {late:,} late {'record' if late == 1 else 'records'}"
    if slowest.time.idle:
        return f"{words}, idle"
    if slowest.time.watermark_ms == _END:
        return words
    holder = _holder(metrics, vertex, slowest.time)
    return f"{words}, held by {holder}" if holder else words


def dropped_words(metrics: JobMetrics) -> list[str]:
    """What to say at the end of a job about late records that went nowhere; nothing if there are none.

    >>> count = VertexMetrics(vertex=0, name="count", parallelism=1, subtasks=(
    ...     SubtaskMetrics(subtask=0, counters={"late_records": 3, "late_records_dropped": 3}),))
    >>> dropped_words(JobMetrics(name="job", status="FINISHED", elapsed_ms=1, vertices=(count,)))[0][:41]
    "'count' dropped 3 records that were late;"
    """
    found = []
    for vertex in metrics.vertices:
        dropped = sum(subtask.counters.get("late_records_dropped", 0) for subtask in vertex.subtasks)
        if dropped:
            found.append(
                f"{vertex.name!r} dropped {dropped:,} records that were late; allow for more disorder in the "
                f"WatermarkStrategy, or take them with allowed_lateness(...) or a side output for late data"
            )
    return found


def late_records(vertex: VertexMetrics) -> int:
    """How many records came too late for the operators of a vertex; they are in no result.

    >>> late_records(VertexMetrics(vertex=0, name="count", parallelism=1, subtasks=(
    ...     SubtaskMetrics(subtask=0, counters={"late_records": 3}),)))
    3
    """
    return sum(subtask.counters.get("late_records", 0) for subtask in vertex.subtasks)


def watermark_time(watermark_ms: int | None) -> str:
    """A watermark as people read it, in UTC.

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
    """A line per vertex that has event time."""
    found = ((vertex.name, watermark_words(metrics, vertex)) for vertex in metrics.vertices)
    return [f"{_brief(name)}: {words}" for name, words in found if words]


def _brief(name: str) -> str:
    """The name of a long chain, cut: what follows it is to be seen too.

    >>> _brief("count -> async ask -> map <lambda> -> sink json files in /data/out")
    'count -> async ask -> map <lamb…'
    """
    return name if len(name) <= _NAME_CELLS else f"{name[: _NAME_CELLS - 1].rstrip()}…"


def _slowest(vertex: VertexMetrics) -> SubtaskMetrics | None:
    timed = [s for s in vertex.subtasks if s.time is not None]
    return min(timed, key=_mark, default=None)


def _mark(subtask: SubtaskMetrics) -> int:
    assert subtask.time is not None
    return -_END if subtask.time.watermark_ms is None else subtask.time.watermark_ms


def _holder(metrics: JobMetrics, vertex: VertexMetrics, time: EventTime) -> str:
    """Follow who waits for whom to the source; a step back in a graph without cycles, so it ends."""
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
        name = f"{_brief(vertex.name)}/{time.split}"
    if name and time.quiet_ms >= _QUIET_MS:
        name += f", without records for {brief_duration(time.quiet_ms)}"
    return name
