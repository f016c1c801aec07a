"""Vectorised tumbling, sliding and cumulative windows agree with a list of records per window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.window_model import (
    AGGREGATES,
    NUMBERS,
    RECORD_TYPE,
    Aggregates,
    Record,
    Result,
    Window,
    WindowModel,
    batches_of_records,
    columns_of,
)
from tidegate.api.window_operations import AggregateWindow
from tidegate.api.windows import (
    TumblingEventTimeWindows,
)
from tidegate.operators.window.declared import column_readers, window_aggregates
from tidegate.operators.window.slices import SliceState
from tidegate.operators.window.slicing import Slicing
from tidegate.records.elements import MAX_WATERMARK


class Windows:
    """The vectorised core with records in and rows out."""

    def __init__(self, slicing: Slicing, aggregates: Aggregates, lateness_ms: int = 0) -> None:
        operation = AggregateWindow(TumblingEventTimeWindows(1), None, aggregates=aggregates)
        self._read = column_readers(operation, RECORD_TYPE)
        self._aggregates = window_aggregates(operation, RECORD_TYPE)
        self.state = SliceState(slicing, self._aggregates, lateness_ms)
        self.late: list[Record] = []

    def add(self, records: list[Record]) -> list[Result]:
        columns, timestamps = columns_of(records)
        late = self.state.late(timestamps)
        if late is not None:
            self.late += [r for r, is_late in zip(records, late.tolist(), strict=True) if is_late]
            kept = np.flatnonzero(~late)
            if not len(kept):
                return []
            columns, timestamps = columns.take(pa.array(kept)), timestamps[kept]
        ids = self.state.index.ids([columns.column(0)])
        rows = self.state.group(ids, timestamps, [read(columns) for read in self._read])
        if len(rows[0]):
            self.state.add(*rows)
        return list(self._rows(self.state.refreshed()))

    def advance(self, clock: int) -> list[Result]:
        return list(self._rows(self.state.advance(clock)))

    def crash(self) -> None:
        """Go on with what a snapshot has."""
        old = self.state
        new = SliceState(old.slicing, self._aggregates, old.lateness_ms)
        ids, ends, columns = old.everything()
        if len(ids):
            arrays = old.aggregates.to_arrow(columns)
            new.restore(new.index.ids(old.index.keys(ids)), ends, new.aggregates.from_arrow(arrays))
        new.recover_clock(old.clock_ms)
        self.state = new

    def _rows(self, windows: Any) -> Iterator[Result]:
        for end, part in windows:
            ids, columns = part.rows()
            keys = self.state.index.keys(ids)[0].to_pylist() if len(ids) else []
            results = [c.to_pylist() for c in self.state.aggregates.results(columns)]
            start = self.state.slicing.window_start(end)
            yield from zip(keys, [start] * len(ids), [end] * len(ids), *results, strict=True)


def windows_of(
    size: int, step: int, offset: int, timestamp: int, cumulative: bool = False
) -> Iterator[Window]:
    """By trying: every window that could have the timestamp."""
    if cumulative:
        begins = [s for s in range(timestamp - size, timestamp + 1) if (s - offset) % size == 0]
        for begin in begins:
            for end in range(begin + step, begin + size + 1, step):
                if begin <= timestamp < end:
                    yield begin, end
        return
    for begin in range(timestamp - size, timestamp + 1):
        if (begin - offset) % step == 0 and begin <= timestamp < begin + size:
            yield begin, begin + size


@st.composite
def slicings(draw: st.DrawFn) -> Slicing:
    kind = draw(st.sampled_from(["tumbling", "sliding", "cumulative"]))
    step = draw(st.integers(1, 12))
    size = step
    if kind == "sliding":
        size = draw(st.integers(1, 30))
    elif kind == "cumulative":
        size = step * draw(st.integers(1, 4))
    return Slicing(size, step, draw(st.integers(-step + 1, step - 1)), kind == "cumulative")


@given(slicings(), batches_of_records(), st.integers(0, 15), st.data(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_windows_are_those_of_a_list_of_records_per_window(
    slicing: Slicing, batches: list[list[Record]], lateness: int, data: st.DataObject, dense: bool
) -> None:
    aggregates = NUMBERS if dense else AGGREGATES
    model = WindowModel(
        lambda t: windows_of(slicing.size_ms, slicing.step_ms, slicing.offset_ms, t, slicing.cumulative),
        aggregates,
        lateness,
    )
    windows = Windows(slicing, aggregates, lateness)
    clock = -200
    for batch in batches:
        assert sorted(windows.add(batch), key=repr) == sorted(model.add(batch), key=repr)
        assert windows.late == model.late
        clock = data.draw(st.integers(clock, max(clock, 70)), "clock")
        got, expected = windows.advance(clock), model.advance(clock)
        assert [r[2] for r in got] == [r[2] for r in expected]
        assert sorted(got, key=repr) == sorted(expected, key=repr)
        if data.draw(st.booleans(), "crash"):
            windows.crash()
    got, expected = windows.advance(MAX_WATERMARK), model.advance(MAX_WATERMARK)
    assert [r[2] for r in got] == [r[2] for r in expected]
    assert sorted(got, key=repr) == sorted(expected, key=repr)
    assert len(windows.state) == 0
