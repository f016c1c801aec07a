"""Draws docs/images/windows.svg, windows over a stream out of order: `python docs/make_event_time_picture.py`.

The picture shows a real run: the watermark at each record, the panes that windows emitted and at which watermark, the
records that were too late. Only the arrival times are invented, in `ARRIVALS`. A test keeps the picture up to date.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidegate import (
    Environment,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowContext,
)

PICTURE = Path(__file__).parent / "images" / "windows.svg"

ARRIVALS: Final = [
    (2, 1), (4, 3), (5, 2), (7, 6), (9, 8), (11, 9), (12, 5), (14, 13), (15, 12), (17, 15), (19, 18), (20, 14),
    (21, 7), (23, 22), (25, 24), (26, 21), (28, 27), (30, 29), (32, 25), (34, 33), (35, 8), (37, 36), (39, 33),
    (41, 38), (43, 42), (45, 38), (47, 46), (49, 45), (51, 49), (53, 52), (54, 34), (56, 55), (58, 56),
]  # fmt: skip
"""(arrival, event time) of each record, in seconds."""
SIZE_S: Final = 10
OUT_OF_ORDERNESS_S: Final = 5
LATENESS_S: Final = 5
END_S: Final = 60
"""When the input ends, and with it the last windows."""


class Event(NamedTuple):
    """A record."""

    arrival: int
    time: int


class Seen(NamedTuple):
    """A record, and the watermark when it arrived."""

    event: Event
    watermark_ms: int


class Pane(NamedTuple):
    """A result of a window, its watermark, and the arrival of its last record."""

    start: int
    count: int
    watermark_ms: int
    last_arrival: int


class Run(NamedTuple):
    """What was seen."""

    records: list[Seen]
    panes: list[Pane]
    late: list[Event]


class See(ProcessFunction):
    """Notes the watermark at each record."""

    def process(self, event: Event, context: ProcessContext) -> Iterator[Seen]:
        """One note per record."""
        yield Seen(event, context.timer_service.current_watermark)


class Counted(ProcessWindowFunction):
    """Counts a window's records, and notes when it was asked to."""

    def process(self, key: str, context: WindowContext, events: Sequence[Event]) -> Iterator[Pane]:
        """One pane."""
        last = max(event.arrival for event in events)
        yield Pane(context.window.start_ms // 1000, len(events), context.current_watermark, last)


def run() -> Run:
    """Send the records through windows, one at a time, with a watermark after each."""
    env = Environment(runtime="in-process", parallelism=1, batch_rows=1, watermark_interval=0)
    strategy = WatermarkStrategy.bounded(f"{OUT_OF_ORDERNESS_S} s", lambda event: event.time * 1000)
    events = env.from_collection([Event(*a) for a in ARRIVALS]).assign_timestamps_and_watermarks(strategy)
    late = OutputTag("late")
    tens = events.key_by(lambda event: "all").window(TumblingEventTimeWindows(f"{SIZE_S} s"))
    panes = tens.allowed_lateness(f"{LATENESS_S} s").side_output_late_data(late).process(Counted())
    return Run(
        list(events.process(See()).execute_and_collect()),
        list(panes.execute_and_collect()),
        list(panes.get_side_output(late).execute_and_collect()),
    )


# ---- drawing: arrival from left to right, event time upwards ----

LEFT, TOP, WIDTH, HEIGHT = 64, 58, 720, 420
FONT: Final = 'font-family="sans-serif" font-size="13" fill="#333"'


def x(arrival_s: float) -> float:
    """Where a moment is."""
    return LEFT + arrival_s * WIDTH / END_S


def y(event_s: float) -> float:
    """Where an event time is."""
    return TOP + HEIGHT - event_s * HEIGHT / END_S


def picture() -> str:
    """The whole SVG."""
    found = run()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 80} {TOP + HEIGHT + 56}" {FONT}>',
        "<title>Ten-second windows over a stream that is out of order</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        *_axes(),
        *_panes(found),
        _watermark(found),
        *_dots(found),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes() -> Iterator[str]:
    for start in range(0, END_S, SIZE_S):
        shade = "#f3f5f8" if start // SIZE_S % 2 else "#fafbfc"
        yield f'<rect x="{LEFT}" y="{y(start + SIZE_S):g}" width="{WIDTH}" height="{HEIGHT / 6:g}" fill="{shade}"/>'
        yield f'<text x="{LEFT - 8}" y="{y(start) + 4:g}" text-anchor="end">{start} s</text>'
        yield f'<text x="{x(start):g}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{start} s</text>'
    yield f'<text x="{x(END_S):g}" y="{TOP + HEIGHT + 20}" text-anchor="middle">end of input</text>'
    yield (
        f'<line x1="{x(0):g}" y1="{y(0):g}" x2="{x(END_S):g}" y2="{y(END_S):g}" stroke="#bbb" stroke-dasharray="2 4"/>'
    )
    yield f'<text x="{x(30):g}" y="{TOP + HEIGHT + 42}" text-anchor="middle">arrival</text>'
    middle = TOP + HEIGHT / 2
    yield f'<text x="18" y="{middle:g}" text-anchor="middle" transform="rotate(-90 18 {middle:g})">event time</text>'


def _panes(found: Run) -> Iterator[str]:
    """A box from a window's first record to its first result; a mark for each later result."""
    boxed: set[int] = set()
    for pane in found.panes:
        first = min(r.event.arrival for r in found.records if r.event.time // SIZE_S * SIZE_S == pane.start)
        fired = _moment(found, pane.watermark_ms)
        if pane.start in boxed:  # a late record of it came, and made it fire again
            yield _label(pane.last_arrival, pane, "#b45309")
            continue
        boxed.add(pane.start)
        yield (
            f'<rect x="{x(first) - 8:g}" y="{y(pane.start + SIZE_S) + 3:g}" width="{x(fired) - x(first) + 8:g}" '
            f'height="{HEIGHT / 6 - 6:g}" rx="4" fill="#3b82f6" fill-opacity="0.12" stroke="#3b82f6"/>'
        )
        yield _label(fired, pane, "#1d4ed8")


def _label(arrival: float, pane: Pane, colour: str) -> str:
    low, high = y(pane.start) - 3, y(pane.start + SIZE_S) + 3
    return (
        f'<line x1="{x(arrival):g}" y1="{low:g}" x2="{x(arrival):g}" y2="{high:g}" stroke="{colour}" stroke-width="3"/>'
        f'<text x="{x(arrival) + 6:g}" y="{high + 14:g}" fill="{colour}" font-weight="bold">{pane.count}</text>'
    )


def _moment(found: Run, watermark_ms: int) -> float:
    """When the clock came to a watermark: with the record before the first one that met it."""
    before: float = 0
    for record in found.records:
        if record.watermark_ms >= watermark_ms:
            return before
        before = record.event.arrival
    return END_S if watermark_ms == (1 << 63) - 1 else before


def _watermark(found: Run) -> str:
    """Steps: what the next record met holds from this one on."""
    points = []
    for record, following in zip(found.records, found.records[1:], strict=False):
        at, mark = record.event.arrival, max(0, following.watermark_ms / 1000)
        points.append(f"{x(at):g},{y(mark):g} {x(following.event.arrival):g},{y(mark):g}")
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="#dc2626" stroke-width="2"/>'


def _dots(found: Run) -> Iterator[str]:
    late = set(found.late)
    for event, watermark_ms in found.records:
        place = f'cx="{x(event.arrival):g}" cy="{y(event.time):g}"'
        if event in late:
            yield f'<circle {place} r="5" fill="#fff" stroke="#dc2626" stroke-width="2.5"/>'
        else:
            behind = event.time * 1000 <= watermark_ms
            yield f'<circle {place} r="4.5" fill="{"#d97706" if behind else "#1f2937"}"/>'


def _legend() -> Iterator[str]:
    circle, line = '<circle cx="{x}" cy="28" ', "<line "
    words = [
        (0, circle + 'r="4.5" fill="#1f2937"/>', "record"),
        (84, line + 'x1="{l}" y1="28" x2="{r}" y2="28" stroke="#dc2626" stroke-width="2"/>', "watermark"),
        (
            190,
            line + 'x1="{x}" y1="20" x2="{x}" y2="36" stroke="#1d4ed8" stroke-width="3"/>',
            "result: its count",
        ),
        (336, circle + 'r="4.5" fill="#d97706"/>', "within the allowed lateness"),
        (550, circle + 'r="5" fill="#fff" stroke="#dc2626" stroke-width="2.5"/>', "too late: side output"),
    ]
    for offset, mark, text in words:
        at = LEFT + 10 + offset
        yield mark.format(x=at, l=at - 9, r=at + 9)
        yield f'<text x="{at + 14}" y="32">{text}</text>'


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
