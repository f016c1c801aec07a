"""The plan as a picture: a self-contained SVG with a box per task, its operators inside, exchanges as arrows.

A dashed frame inside a task holds the operators that run as one query.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from tidegate.graph.explain_layout import Box, Layout, Link, Point, lay_out
from tidegate.graph.explain_plan import Plan, PlannedExchange, PlannedOperator, PlannedTask
from tidegate.program.operations import Execution

MARGIN = 28
HEADER = 62
FOOTER = 50
TITLE_HEIGHT = 34
ROW_HEIGHT = 46
LINE_HEIGHT = 15
ROW_GAP = 14
QUERY_TITLE = 18
QUERY_EDGE = 6
PADDING = 12
INDENT = 18
LONGEST_NAME = 34
LONGEST_DETAIL = 44
LONGEST_LABEL = 30
MOST_WARNINGS = 12

COLOURS: dict[Execution, str] = {
    "reads": "#2f9e6e",
    "writes": "#7a5af5",
    "vectorised": "#2478d4",
    "per record": "#e08a1e",
}
LEGEND: dict[Execution, str] = {
    "reads": "source",
    "vectorised": "vectorised",
    "per record": "your Python, per record",
    "writes": "sink",
}

STYLE = """
.tidegate-plan text{font-family:ui-sans-serif,system-ui,"Segoe UI","DejaVu Sans",sans-serif;fill:#1c2733}
.tidegate-plan .job{font-size:20px;font-weight:600}
.tidegate-plan .sub{font-size:13px;fill:#5b6b7c}
.tidegate-plan .task{fill:#f4f7fa;stroke:#c3ced9}
.tidegate-plan .tt{font-size:12px;fill:#5b6b7c}
.tidegate-plan .op{fill:#fff;stroke:#d5dde5}
.tidegate-plan .name{font-size:13px;font-weight:600}
.tidegate-plan .detail{font-size:11px;fill:#5b6b7c}
.tidegate-plan .query{fill:#e9f1fb;stroke:#2478d4;stroke-dasharray:4 3}
.tidegate-plan .call{fill:none;stroke:#8a99a8;stroke-width:1.5}
.tidegate-plan .edge{fill:none;stroke:#51606f;stroke-width:1.8}
.tidegate-plan .slow{stroke:#d43c3c}
.tidegate-plan .label{font-size:11.5px;fill:#33414f;paint-order:stroke;stroke:#fff;stroke-width:5px}
.tidegate-plan .slowtext{fill:#b42a2a}
"""
"""Each rule is for this picture only: in a notebook all outputs share one page and its style sheets."""


class _Row(NamedTuple):
    """An operator inside its task: its position, its indentation, the row that calls it, and its place."""

    position: int
    indent: int
    caller: int | None
    top: float
    height: float


def svg_of(plan: Plan) -> str:
    rows = [_rows(task) for task in plan.tasks]
    boxes = [_box(task, rows[task.id]) for task in plan.tasks]
    links = [_link(e, rows) for e in plan.exchanges]
    layout = lay_out(boxes, links, gap_x=64, gap_y=34)
    notes = _notes(plan)
    groups = ", ".join(f"{g} {n}" for g, n in plan.slots.by_group.items())
    subtitle = f"slots needed: {plan.slots.total} ({groups})"
    texts = [_width(plan.name, 20, bold=True), _width(subtitle, 13), *(_width(n, 12) for n in notes), 620.0]
    width = max(layout.width, *texts) + 2 * MARGIN
    height = layout.height + HEADER + 2 * MARGIN + FOOTER + 18 * len(notes)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" class="tidegate-plan" role="img">'
        ),
        f"<title>{escape(plan.name)}</title><style>{STYLE}</style>",
        (
            '<defs><marker id="tidegate-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5.5" markerHeight="5.5" '
            'orient="auto"><path d="M0 0L8 4L0 8z" fill="#51606f"/></marker></defs>'
        ),
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="job" x="{MARGIN}" y="{MARGIN + 18}">{escape(plan.name)}</text>',
        f'<text class="sub" x="{MARGIN}" y="{MARGIN + 40}">{escape(subtitle)}</text>',
        f'<g transform="translate({MARGIN},{MARGIN + HEADER})">',
        *(_edge(route, e) for route, e in zip(layout.routes, plan.exchanges, strict=True)),
        *(_task(t, rows[t.id], boxes[t.id], layout.corners[t.id]) for t in plan.tasks),
        *_labels(layout, plan.exchanges),
        "</g>",
        _legend(MARGIN, MARGIN + HEADER + layout.height + 38),
    ]
    y = MARGIN + HEADER + layout.height + 66
    for note in notes:
        style = "detail slowtext" if note.startswith("slow") else "detail"
        parts.append(
            f'<text class="{style}" style="font-size:12px" x="{MARGIN}" y="{y:.0f}">{escape(note)}</text>'
        )
        y += 18
    return "\n".join([*parts, "</svg>", ""])


def _rows(task: PlannedTask) -> list[_Row]:
    """The operators, each below its caller; where a caller has several, they are indented."""
    callees: dict[int, list[int]] = {}
    for call in task.calls:
        callees.setdefault(call.source, []).append(call.target)
    rows: list[_Row] = []
    first, last = {q[0] for q in task.queries}, {q[-1] for q in task.queries}
    top: float = TITLE_HEIGHT
    stack: list[tuple[int, int, int | None]] = [(0, 0, None)]
    while stack:
        position, indent, caller = stack.pop()
        row = len(rows)
        height = ROW_HEIGHT + LINE_HEIGHT * len(_times(task.operators[position]))
        top += QUERY_TITLE if position in first else 0
        rows.append(_Row(position, indent, caller, top, height))
        top += height + ROW_GAP + (QUERY_EDGE if position in last else 0)
        below = callees.get(position, [])
        deeper = min(indent + (1 if len(below) > 1 else 0), 8)
        stack += [(target, deeper, row) for target in reversed(below)]
    return rows


def _box(task: PlannedTask, rows: list[_Row]) -> Box:
    widest = max(_row_width(task.operators[r.position]) + r.indent * INDENT for r in rows)
    title = _width(_task_title(task), 12)
    return Box(max(widest, title, 150) + 2 * PADDING, rows[-1].top + rows[-1].height + PADDING)


def _row_width(operator: PlannedOperator) -> float:
    name = _width(_cut(operator.name, LONGEST_NAME), 13, bold=True)
    below = [_cut(_detail(operator), LONGEST_DETAIL), *_times(operator)]
    return max(name, *(_width(line, 11) for line in below)) + 30


def _link(exchange: PlannedExchange, rows: list[list[_Row]]) -> Link:
    source = next(r for r in rows[exchange.source_task] if r.position == exchange.source_operator)
    target = rows[exchange.target_task][0]
    return Link(
        exchange.source_task,
        exchange.target_task,
        source.top + source.height / 2,
        target.top + target.height / 2 + (10 * exchange.input if exchange.input else 0),
        _width(_label(exchange), 11.5),
    )


def _task(task: PlannedTask, rows: list[_Row], box: Box, corner: Point) -> str:
    parts = [
        f'<g transform="translate({corner.x:.1f},{corner.y:.1f})">',
        f'<rect class="task" width="{box.width:.1f}" height="{box.height:.1f}" rx="10"/>',
        f'<text class="tt" x="{PADDING}" y="22">{escape(_task_title(task))}</text>',
    ]
    places = {row.position: row for row in rows}
    parts += [_query(places[q[0]], places[q[-1]], box) for q in task.queries]
    for index, row in enumerate(rows):
        if row.caller is not None:
            parts.append(_call(rows[row.caller], row, index == row.caller + 1))
    for row in rows:
        operator = task.operators[row.position]
        x, y = PADDING + row.indent * INDENT, row.top
        parts += [
            f"<g><title>{escape(_tooltip(operator))}</title>",
            f'<rect class="op" x="{x}" y="{y}" width="{box.width - PADDING - x:.1f}" height="{row.height}" rx="6"/>',
            (
                f'<path d="M{x + 5} {y}a5 5 0 0 0 -5 5v{row.height - 10}a5 5 0 0 0 5 5z" '
                f'fill="{COLOURS[operator.runs]}"/>'
            ),
            f'<text class="name" x="{x + 15}" y="{y + 19}">{escape(_cut(operator.name, LONGEST_NAME))}</text>',
            (
                f'<text class="detail" x="{x + 15}" y="{y + 36}">'
                f"{escape(_cut(_detail(operator), LONGEST_DETAIL))}</text>"
            ),
            *(
                f'<text class="detail" x="{x + 15}" y="{y + 36 + LINE_HEIGHT * i}">{escape(line)}</text>'
                for i, line in enumerate(_times(operator), 1)
            ),
            "</g>",
        ]
    return "\n".join([*parts, "</g>"])


def _query(first: _Row, last: _Row, box: Box) -> str:
    """The frame around the operators of a query, with its title above the first."""
    x, y = PADDING + first.indent * INDENT - QUERY_EDGE, first.top - QUERY_TITLE
    width, height = box.width - PADDING + QUERY_EDGE - x, last.top + last.height + QUERY_EDGE - y
    return (
        f'<rect class="query" x="{x}" y="{y}" width="{width:.1f}" height="{height}" rx="8"/>'
        f'<text class="detail" x="{x + QUERY_EDGE + 30}" y="{first.top - 5}">one polars query</text>'
    )


def _call(caller: _Row, row: _Row, is_next: bool) -> str:
    """An arrow from a row down to one that it calls: straight if they are neighbours, else around the corner."""
    bottom = caller.top + caller.height
    if caller.indent == row.indent and is_next:
        x = PADDING + row.indent * INDENT + 22
        return f'<path class="call" d="M{x} {bottom}V{row.top - 2}" marker-end="url(#tidegate-head)"/>'
    x = PADDING + caller.indent * INDENT + 9
    middle = row.top + row.height / 2
    return (
        f'<path class="call" d="M{x} {bottom}V{middle - 6}q0 6 6 6H{PADDING + row.indent * INDENT - 1}" '
        f'marker-end="url(#tidegate-head)"/>'
    )


def _edge(route: list[Point], exchange: PlannedExchange) -> str:
    path = [f"M{route[0].x:.1f} {route[0].y:.1f}"]
    for i, (a, b) in enumerate(itertools.pairwise(route)):
        if i % 2 == 1:  # past a column
            path.append(f"L{b.x:.1f} {b.y:.1f}")
            continue
        bend = max((b.x - a.x) / 2, 20)
        path.append(f"C{a.x + bend:.1f} {a.y:.1f} {b.x - bend:.1f} {b.y:.1f} {b.x:.1f} {b.y:.1f}")
    style = "edge slow" if exchange.pickled else "edge"
    why = f"{exchange.partitioning}; records: {exchange.record_type}; not chained: {exchange.because}"
    return (
        f'<path class="{style}" d="{"".join(path)}" marker-end="url(#tidegate-head)">'
        f"<title>{escape(why)}</title></path>"
    )


def _labels(layout: Layout, exchanges: Sequence[PlannedExchange]) -> list[str]:
    """Each label in the middle of its first bend; labels that would overlap move down."""
    taken: list[tuple[float, float, float]] = []
    parts = []
    for route, exchange in zip(layout.routes, exchanges, strict=True):
        text = _label(exchange)
        half = _width(text, 11.5) / 2
        x, y = (route[0].x + route[1].x) / 2, (route[0].y + route[1].y) / 2 - 6
        if len(taken) < 500:
            while any(abs(y - ty) < 14 and abs(x - tx) < half + thalf for tx, ty, thalf in taken):
                y += 15
        taken.append((x, y, half))
        style = "label slowtext" if exchange.pickled else "label"
        parts.append(
            f'<text class="{style}" text-anchor="middle" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
        )
    return parts


def _legend(x: float, y: float) -> str:
    parts = []
    for runs, text in LEGEND.items():
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" rx="2" fill="{COLOURS[runs]}"/>'
            f'<text class="detail" x="{x + 16:.0f}" y="{y:.0f}">{escape(text)}</text>'
        )
        x += _width(text, 11) + 42
    return "".join(parts)


def _notes(plan: Plan) -> list[str]:
    notes = (
        [f"not run, because they lead to no sink: {_cut(', '.join(plan.unused), 120)}"] if plan.unused else []
    )
    notes += plan.warnings[:MOST_WARNINGS]
    if len(plan.warnings) > MOST_WARNINGS:
        notes.append(f"and {len(plan.warnings) - MOST_WARNINGS} more warnings")
    return notes


def _task_title(task: PlannedTask) -> str:
    return f"task {task.id} · parallelism {task.parallelism} · {task.slot_sharing_group}"


def _label(exchange: PlannedExchange) -> str:
    side = f"{exchange.tag}: " if exchange.tag is not None else ""
    return _cut(f"{side}{exchange.partitioning}", LONGEST_LABEL) + (" (pickled)" if exchange.pickled else "")


def _detail(operator: PlannedOperator) -> str:
    return f"{operator.kind} · {operator.detail}" if operator.detail else operator.kind


def _times(operator: PlannedOperator) -> list[str]:
    """What the plan says about event time, in lines that fit."""
    return [part for line in operator.event_time for part in textwrap.wrap(line, LONGEST_DETAIL)]


def _tooltip(operator: PlannedOperator) -> str:
    lines = [operator.name, _detail(operator), operator.runs]
    lines += [f"uid {operator.uid}"] if operator.uid is not None else []
    lines += operator.event_time
    lines += [f"out: {operator.output_type}"] if operator.output_type else []
    return "\n".join([*lines, *(f"side output {t}: {d}" for t, d in operator.side_outputs.items())])


def _cut(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _width(text: str, size: float, *, bold: bool = False) -> float:
    """About how wide a text is drawn; generous, because fonts differ."""
    units = sum(
        0.34 if c in "iljtf.,:;|!'()[] " else 0.9 if c in "mwMW@…→" else 0.66 if c.isupper() else 0.58
        for c in text
    )
    return units * size * (1.08 if bold else 1.0)
