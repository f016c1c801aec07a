"""Programs for the properties: one source of events, several windows over it, all results in one stream.

One job with several branches runs as many cases as it has branches, for little more than the cost of one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.event_time import reference as ref
from tidegate import (
    AggregateFunction,
    Avg,
    ContinuousEventTimeTrigger,
    Count,
    CountDistinct,
    CountTrigger,
    CumulativeEventTimeWindows,
    DataStream,
    Environment,
    EventTimeSessionWindows,
    Max,
    Min,
    OutputTag,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.api.windowed_streams import WindowedStream


class Click(NamedTuple):
    """An event as the job knows it."""

    key: str
    ts: int
    value: int


class Found(NamedTuple):
    """A result of a branch: a pane, or (start -1) a late event."""

    branch: int
    key: str
    start: int
    end: int
    result: str


@dataclass(frozen=True)
class Branch:
    """One case: windows, when they are computed, for how long they are kept, and what is computed, how."""

    windows: ref.Windows
    when: ref.When
    lateness: int
    what: str
    form: str
    """columns: built-in aggregates; rows: the user's functions."""
    late_output: bool = True

    @property
    def refreshes(self) -> bool:
        """Whether a late event may give a result per batch instead of one of its own."""
        return self.form == "columns" and self.lateness > 0


@dataclass(frozen=True)
class Case:
    """Events and everything that a job over them needs."""

    events: list[Click]
    batch_rows: int
    delay: int
    parallelism: int
    seed: int
    branches: tuple[Branch, ...]


# ---- the job ----

BUILT_IN = {
    "count": Count(),
    "sum": Sum("value"),
    "min": Min("value"),
    "max": Max("value"),
    "avg": Avg("value"),
    "distinct": CountDistinct("value"),
}


class Values(ProcessWindowFunction):
    """The values of a window, or what is computed from them, as text."""

    def __init__(self, branch: int, what: str) -> None:
        self.branch = branch
        self.what = what

    def process(self, key: Any, context: Any, elements: Iterable[Click]) -> Iterable[Found]:
        result = ref.RESULTS[self.what](tuple(e.value for e in elements))
        yield Found(self.branch, key, context.window.start_ms, context.window.end_ms, str(result))


class Total(AggregateFunction[Click, int, int]):
    """A sum, by the user."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Click, accumulator: int) -> int:
        return accumulator + value.value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class Shown(ProcessWindowFunction):
    """The one element that a window has, behind an AggregateFunction."""

    def __init__(self, branch: int) -> None:
        self.branch = branch

    def process(self, key: Any, context: Any, elements: Iterable[int]) -> Iterable[Found]:
        for element in elements:
            yield Found(self.branch, key, context.window.start_ms, context.window.end_ms, str(element))


def windowed(stream: DataStream, branch: Branch) -> WindowedStream:
    """The windows of a branch over a stream."""
    w = branch.windows
    assigner: Any
    match w.kind:
        case "tumbling":
            assigner = TumblingEventTimeWindows(w.size, w.offset)
        case "sliding":
            assigner = SlidingEventTimeWindows(w.size, w.slide, w.offset)
        case "cumulative":
            assigner = CumulativeEventTimeWindows(w.size, w.slide, w.offset)
        case _:
            assigner = EventTimeSessionWindows(w.size)
    found = stream.key_by("key").window(assigner)
    trigger: Any = None
    if branch.when.kind == "count":
        trigger = CountTrigger(branch.when.number)
    elif branch.when.kind == "continuous":
        trigger = ContinuousEventTimeTrigger(branch.when.number)
    if trigger is not None:
        found = found.trigger(PurgingTrigger(trigger) if branch.when.purging else trigger)
    if branch.lateness:
        found = found.allowed_lateness(branch.lateness)
    return found


def results_of(stream: DataStream, number: int, branch: Branch) -> list[DataStream]:
    """The streams of what a branch finds: panes, and late events."""
    late = OutputTag(f"late {number}")
    windows = windowed(stream, branch)
    if branch.late_output:
        windows = windows.side_output_late_data(late)
    if branch.form == "columns":
        what = BUILT_IN[branch.what]
        panes = windows.aggregate(result=what, uid=f"window {number}")

        def show(row: Any) -> Found:
            start, end = (round(t.timestamp() * 1000) for t in (row.window_start, row.window_end))
            return Found(number, row.key, start, end, str(row.result))

        shown = panes.map(show, returns=Found)
    elif branch.form == "aggregate":
        panes = shown = windows.aggregate(Total(), Shown(number), returns=Found, uid=f"window {number}")
    else:
        panes = shown = windows.process(Values(number, branch.what), returns=Found, uid=f"window {number}")
    if not branch.late_output:
        return [shown]

    def show_late(click: Click) -> Found:
        return Found(number, click.key, -1, click.ts, str(click.value))

    return [shown, panes.get_side_output(late).map(show_late, returns=Found)]


def program(env: Environment, case: Case) -> DataStream:
    """The whole job of a case, up to the stream of all that is found."""
    clicks = env.from_collection(case.events, type=Click, uid="clicks").set_parallelism(1)
    timed = clicks.assign_timestamps_and_watermarks(WatermarkStrategy.bounded(case.delay, "ts"), uid="times")
    timed.set_parallelism(1)
    return found_in(timed, case)


def found_in(timed: DataStream, case: Case) -> DataStream:
    """All that the branches find in a stream."""
    found = [s for i, branch in enumerate(case.branches) for s in results_of(timed, i, branch)]
    return found[0].union(*found[1:])


# ---- what must come out ----

Place = tuple[str, int, int]
"""A key and a window."""


def expected(case: Case) -> Counter[Found]:
    """What the reference says."""
    found: Counter[Found] = Counter()
    events = [ref.Event(*e) for e in case.events]
    for number, branch in enumerate(case.branches):
        run = ref.Reference(branch.windows, branch.when, branch.lateness)
        run.run(ref.batches_of(events, case.batch_rows), case.delay)
        for key, start, end, result in ref.results(run.panes, branch.what):
            assert end != math.inf
            found[Found(number, key, start, end, str(result))] += 1
        if branch.late_output:
            found.update(Found(number, e.key, -1, e.ts, str(e.value)) for e in run.late)
    return found


def check(case: Case, found: Iterable[Found]) -> None:
    """What was found is what the reference says."""
    check_equal(case, Counter(found), expected(case))


def check_equal(case: Case, got: Counter[Found], must: Counter[Found]) -> None:
    """Our results are those that there must be; where late events refresh results, the last ones are."""
    for number, branch in enumerate(case.branches):
        mine = Counter({f: n for f, n in got.items() if f.branch == number})
        theirs = Counter({f: n for f, n in must.items() if f.branch == number})
        if branch.refreshes:
            assert mine.keys() <= theirs.keys(), f"branch {number} {branch}"
            last, must_be = _last(mine), _last(theirs)
            if branch.windows.kind == "session":
                # One that is soon a part of a larger one may be given out, or not: both may come with one batch.
                last, must_be = _not_within_others(last), _not_within_others(must_be)
            assert last == must_be, f"branch {number} {branch}"
        else:
            assert mine == theirs, f"branch {number} {branch}"


def _last(found: Counter[Found]) -> dict[Place, float]:
    """The largest, and so the last, result of each window: branches that refresh count, sum or take a maximum."""
    last: dict[Place, float] = {}
    for f in found:
        place = f.key, f.start, f.end
        last[place] = max(last.get(place, -math.inf), float(f.result))
    return last


def _not_within_others(last: dict[Place, float]) -> dict[Place, float]:
    """All late events (start -1), and the sessions that did not become a part of another."""
    sessions = [place for place in last if place[1] != -1]

    def is_within_another(key: str, start: int, end: int) -> bool:
        return any(
            other == key and first <= start and end <= until and (first, until) != (start, end)
            for other, first, until in sessions
        )

    return {place: last[place] for place in last if place[1] == -1 or not is_within_another(*place)}


# ---- cases ----

GROWING = ("count", "sum", "max", "distinct")


@st.composite
def branches(draw: Any, kinds: tuple[str, ...], forms: tuple[str, ...]) -> Branch:
    """Any windows of these kinds."""
    kind = draw(st.sampled_from(kinds))
    form = draw(st.sampled_from(forms))
    size = draw(st.integers(1, 40))
    windows = ref.Windows(kind, size)
    if kind == "tumbling":
        windows = ref.Windows(kind, size, 0, draw(st.integers(0, size - 1)))
    elif kind == "sliding":
        slide = draw(st.integers(1, 30))
        windows = ref.Windows(kind, size, slide, draw(st.integers(1 - slide, slide - 1)))
    elif kind == "cumulative":
        step = draw(st.integers(1, 10))
        windows = ref.Windows(kind, step * draw(st.integers(1, 5)), step)
    lateness = draw(st.sampled_from([0, 0, 5, 30]))
    when = ref.When()
    if form != "columns" and kind != "session":
        when = draw(
            st.sampled_from(
                [ref.When(), ref.When("count", 2), ref.When("count", 3, True), ref.When("continuous", 7)]
            )
        )
    what = "values" if form == "process" else "sum"
    if form == "columns":
        what = draw(st.sampled_from(GROWING if lateness else tuple(BUILT_IN)))
    return Branch(windows, when, lateness, what, form, draw(st.booleans()))


@st.composite
def cases(
    draw: Any,
    kinds: tuple[str, ...] = ("tumbling", "sliding", "cumulative", "session"),
    forms: tuple[str, ...] = ("columns", "process", "aggregate"),
    many: int = 8,
    least: int = 1,
    most_rows: int = 7,
    in_order: bool = False,
) -> Case:
    """Any events, in any order, and `many` branches over them.

    With at `least` so many events in batches of at `most_rows`, a checkpoint is there before the end. `in_order`: no
    event is late whenever watermarks come, and no trigger goes by them.
    """
    jitter = 0 if in_order else draw(st.sampled_from([0, 10, 60]))
    times = draw(st.lists(st.integers(0, 5), min_size=least, max_size=40))
    events, now = [], draw(st.sampled_from([-30, 0, 1_700_000_000_000]))
    for step in times:
        now += step
        ts = now - draw(st.integers(0, jitter)) if jitter else now
        events.append(Click(draw(st.sampled_from("abc")), ts, draw(st.integers(0, 9))))
    return Case(
        events,
        draw(st.integers(1, most_rows)),
        draw(st.sampled_from([0, 3, 20])),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 1000)),
        tuple(
            draw(branches(kinds, forms).filter(lambda b: not in_order or b.when.kind != "continuous"))
            for _ in range(many)
        ),
    )
