"""Windows of built-in aggregates in plain Python, record by record: what the vectorised ones are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tidegate import Aggregate, Avg, Count, CountDistinct, First, Last, Max, Min, Sum, TopN
from tidegate.records.types import RecordType, RowType

MIN_CLOCK = -(1 << 63)
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
Session = tuple[int, int, list[tuple[int, "Record"]]]


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


class WindowModel:
    """Tumbling, sliding and cumulative windows: each keeps the list of its records."""

    def __init__(
        self,
        windows_of: Callable[[int], Iterable[Window]],
        aggregates: Iterable[tuple[str, Aggregate]],
        lateness_ms: int,
    ) -> None:
        self._windows_of = windows_of
        self._aggregates = tuple(aggregates)
        self._lateness = lateness_ms
        self.clock = MIN_CLOCK
        self.late: list[Record] = []
        self._open: dict[tuple[str | None, Window], list[Record]] = {}

    def add(self, records: Iterable[Record]) -> list[Result]:
        """A batch; returns the windows that are given out again, in any order."""
        again = []
        for r in records:
            windows = list(self._windows_of(r.timestamp))
            alive = [w for w in windows if w[1] - 1 + self._lateness > self.clock]
            if windows and not alive:
                self.late.append(r)
            for w in alive:
                self._open.setdefault((r.key, w), []).append(r)
                if w[1] - 1 <= self.clock:
                    again.append((r.key, w))
        return [self._row(k) for k in dict.fromkeys(again)]

    def advance(self, clock: int) -> list[Result]:
        """The watermark; returns the windows that end by now, in order of their ends."""
        due = [k for k in self._open if self.clock < k[1][1] - 1 <= clock]
        rows = [self._row(k) for k in sorted(due, key=lambda k: k[1][1])]
        self.clock = clock
        for k in [k for k in self._open if k[1][1] - 1 + self._lateness <= clock]:
            del self._open[k]
        return rows

    def _row(self, where: tuple[str | None, Window]) -> Result:
        key, (start, end) = where
        return (key, start, end, *results_of(self._open[where], self._aggregates))


class SessionModel:
    """Sessions, merged record by record as Flink does."""

    def __init__(self, gap_ms: int, aggregates: Iterable[tuple[str, Aggregate]], lateness_ms: int) -> None:
        self._gap = gap_ms
        self._aggregates = tuple(aggregates)
        self._lateness = lateness_ms
        self.clock = MIN_CLOCK
        self.late: list[Record] = []
        self._open: dict[str | None, list[Session]] = {}
        self._arrived = 0

    def add(self, records: Iterable[Record]) -> list[Result]:
        """A batch; returns the sessions that changed behind their end, in any order."""
        touched: set[str | None] = set()
        before = {(k, s, e, len(rows)) for k, sessions in self._open.items() for s, e, rows in sessions}
        for r in records:
            start, end = r.timestamp, r.timestamp + self._gap
            mine = [(self._arrived, r)]
            self._arrived += 1
            meets: list[Session] = []
            rest: list[Session] = []
            for s in self._open.get(r.key, []):
                (meets if s[0] <= end and s[1] >= start else rest).append(s)
            start, end = min([start, *(s[0] for s in meets)]), max([end, *(s[1] for s in meets)])
            if end - 1 + self._lateness <= self.clock:
                self.late.append(r)
                continue
            rows = sorted([*mine, *(row for s in meets for row in s[2])], key=lambda row: row[0])
            self._open[r.key] = [*rest, (start, end, rows)]
            touched.add(r.key)
        return [
            self._row(k, s)
            for k in touched
            for s in self._open[k]
            if s[1] - 1 <= self.clock and (k, s[0], s[1], len(s[2])) not in before
        ]

    def advance(self, clock: int) -> list[Result]:
        """The watermark; returns the sessions that end by now, in order of their ends."""
        due = [
            (k, s) for k, sessions in self._open.items() for s in sessions if self.clock < s[1] - 1 <= clock
        ]
        rows = [self._row(k, s) for k, s in sorted(due, key=lambda pair: pair[1][1])]
        self.clock = clock
        for k in list(self._open):
            self._open[k] = [s for s in self._open[k] if s[1] - 1 + self._lateness > clock]
        return rows

    def _row(self, key: str | None, session: Session) -> Result:
        start, end, rows = session
        return (key, start, end, *results_of([r for _, r in rows], self._aggregates))
