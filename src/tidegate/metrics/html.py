"""Metrics as a table for notebooks: a headline, a line for each task and, indented, one for each of its operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.metrics.snapshot import JobMetrics, VertexMetrics

_COLUMNS = ("operator", "subtasks", "records in", "records out", "busy", "back-pressured", "idle")


def metrics_html(metrics: JobMetrics) -> str:
    rows = "".join(_row(cells, bold) for vertex in metrics.vertices for cells, bold in _lines(vertex))
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in _COLUMNS)
    title = f"job {metrics.name!r} {metrics.status}, {metrics.elapsed_ms / 1000:.1f} s"
    return f"<div><b>{escape(title)}</b><table><tr>{head}</tr>{rows}</table></div>"


def _lines(vertex: VertexMetrics) -> Iterator[tuple[Iterable[str], bool]]:
    whole = max(1, vertex.total("running_ms"))
    shares = [f"{vertex.total(part) / whole:.0%}" for part in ("busy_ms", "backpressured_ms", "idle_ms")]
    subtasks = f"{len(vertex.subtasks)}/{vertex.parallelism}"
    counts = [f"{vertex.total(name):,}" for name in ("records_in", "records_out")]
    yield [vertex.name, subtasks, *counts, *shares], True
    operators = vertex.operators()
    for counted in operators if len(operators) > 1 else ():
        yield (
            [f"\u2003{counted.name}", "", f"{counted.records_in:,}", f"{counted.records_out:,}", "", "", ""],
            False,
        )


def _row(cells: Iterable[str], bold: bool) -> str:
    weight = "600" if bold else "400"
    inside = "".join(f"<td style='text-align:left;font-weight:{weight}'>{escape(c)}</td>" for c in cells)
    return f"<tr>{inside}</tr>"
