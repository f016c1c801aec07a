"""Windows of built-in aggregates in plain Python, record by record: what the vectorised ones are compared with.

Which windows there are, and when, the reference of the tests of event time says; here are the aggregates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.event_time.reference import Event, Pane, Reference, When, Windows
from tidegate import Aggregate, Avg, Count, CountDistinct, First, Last, Max, Min, Sum, TopN
from tidegate.records.types import RecordType, RowType

RECORD_TYPE: RecordType = RowType(
    pa.schema(
        [
            pa.field("key", pa.string()),
            pa.field("n", pa.int64()),
            pa.field("x", pa.float64()),
            pa.field("word", pa.string()),
        ]
    )
)
AGGREGATES: tuple[tuple[str, Aggregate], ...] = (
    ("records", Count()),
    ("values", Count("n")),
    ("total", Sum("n")),
    ("float_total", Sum("x")),
    ("low", Min("n")),
    ("high", Max("x")),
    ("mean", Avg("n")),
    ("first", First("word")),
    ("last", Last("word")),
    ("words", CountDistinct("word")),
    ("best", TopN(2, by="x", select=("word", "n"))),
    ("least", TopN(2, by="n", select="word", largest=False)),
)
NUMBERS = AGGREGATES[:7]
"""Those that can be dense."""


class Record(NamedTuple):
    """One record and its timestamp."""

    key: str | None
    n: int | None
    x: float | None
    word: str | None
    timestamp: int


Window = tuple[int, int]
Result = tuple[Any, ...]
Aggregates = tuple[tuple[str, Aggregate], ...]


def results_of(records: list[Record], aggregates: Iterable[tuple[str, Aggregate]]) -> tuple[Any, ...]:
    """All aggregates of the records of one window, which are in order of arrival."""
    return tuple(_result(a, records) for _, a in aggregates)


def _result(aggregate: Aggregate, records: list[Record]) -> Any:
    if isinstance(aggregate, TopN):
        ((by, direction),) = aggregate.orders
        with_by = [r for r in records if getattr(r, by) is not None]
        sign = -1 if direction == "desc" else 1
        best = sorted(with_by, key=lambda r: (sign * _order(getattr(r, by)), r.timestamp))
        return [{c: getattr(r, c) for c in aggregate.select or ()} for r in best[: aggregate.n]]
    columns = aggregate.columns()
    if not columns:
        return len(records)
    seen = [(r.timestamp, getattr(r, columns[0])) for r in records if getattr(r, columns[0]) is not None]
    values = [v for _, v in seen]
    if aggregate.kind == "count":
        return len(values)
    if aggregate.kind == "count_distinct":
        return len(set(values))
    if not values:
        return None
    if aggregate.kind == "sum":
        return sum(values)
    if aggregate.kind == "min":
        return min(values, key=_order)
    if aggregate.kind == "max":
        return max(values, key=_order)
    if aggregate.kind == "avg":
        return float(sum(values)) / len(values)
    if aggregate.kind == "first":
        return min(seen, key=lambda pair: pair[0])[1]
    return max(reversed(seen), key=lambda pair: pair[0])[1]


def _order(number: float) -> float:
    return math.inf if number != number else number


def columns_of(records: list[Record]) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.int64]]]:
    columns = pa.RecordBatch.from_pylist([r._asdict() for r in records], schema=RECORD_TYPE.schema)
    return columns, np.array([r.timestamp for r in records], np.int64)


def batches_of_records(span: int = 60) -> st.SearchStrategy[list[list[Record]]]:
    record = st.builds(
        Record,
        st.sampled_from(["a", "b", "c", None]),
        st.none() | st.integers(-5, 5),
        st.none() | st.integers(-3, 3).map(float),
        st.none() | st.sampled_from(["u", "v", "w"]),
        st.integers(-span, span),
    )
    return st.lists(st.lists(record, min_size=1, max_size=12), max_size=6)


class _Windows(NamedTuple):
    """Windows as an assigner has them."""

    kind: str
    of: Callable[[int], Iterable[Window]]


class WindowModel:
    """Tumbling, sliding and cumulative windows of the reference, with aggregates over the records of each pane."""

    def __init__(
        self,
        windows_of: Callable[[int], Iterable[Window]],
        aggregates: Aggregates,
        lateness_ms: int,
    ) -> None:
        self._reference = Reference(self._windows(windows_of), When(), lateness_ms)
        self._aggregates = aggregates
        self.late: list[Record] = []

    def _windows(self, windows_of: Any) -> Any:
        return _Windows("assigned", lambda timestamp: [tuple(w) for w in windows_of(timestamp)])

    def add(self, records: Iterable[Record]) -> list[Result]:
        """A batch; returns the windows that are emitted again, each once, in any order."""
        for r in records:
            self._reference.add(Event(r.key, r.timestamp, r))
        self.late += [event.value for event in self._reference.late]
        self._reference.late = []
        last = {pane[:3]: pane for pane in self._panes()}
        return [self._row(p) for p in last.values() if self._reference.is_open(p.key, (p.start, p.end))]

    def advance(self, clock: int) -> list[Result]:
        """The watermark; returns the windows that end by now, in order of their ends."""
        self._reference.advance(clock)
        return [self._row(pane) for pane in self._panes()]

    def _panes(self) -> list[Pane]:
        panes, self._reference.panes = self._reference.panes, []
        return panes

    def _row(self, pane: Pane) -> Result:
        return (pane.key, pane.start, pane.end, *results_of(list(pane.values), self._aggregates))


class SessionModel(WindowModel):
    """The same for sessions: with a gap in the place of windows."""

    def _windows(self, gap_ms: int) -> Windows:
        return Windows("session", gap_ms)
