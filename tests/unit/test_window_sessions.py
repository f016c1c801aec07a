"""Vectorised session windows agree with sessions that are merged record by record."""

from __future__ import annotations

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
    SessionModel,
    batches_of_records,
    columns_of,
)
from tidegate.aggregates.count import CountRecords
from tidegate.operators.columns.aggregate_inputs import AggregateInputs
from tidegate.operators.window.parts import WindowAggregates
from tidegate.operators.window.session_pool import Sessions
from tidegate.operators.window.sessions import SessionState, running_ends
from tidegate.records.elements import MAX_WATERMARK


class SessionWindows:
    """The vectorised core with records in and rows out."""

    def __init__(self, gap: int, aggregates: Aggregates, lateness_ms: int = 0) -> None:
        self._inputs = AggregateInputs([a for _, a in aggregates], RECORD_TYPE)
        self._aggregates = WindowAggregates(self._inputs.kernels)
        self._gap, self._lateness = gap, lateness_ms
        self.state = SessionState(gap, self._aggregates, lateness_ms)
        self.late: list[Record] = []

    def add(self, records: list[Record]) -> list[Result]:
        columns, timestamps = columns_of(records)
        ids = self.state.index.ids([columns.column(0)])
        late = self.state.late(ids, timestamps)
        if late is not None:
            self.late += [r for r, is_late in zip(records, late.tolist(), strict=True) if is_late]
            kept = np.flatnonzero(~late)
            if not len(kept):
                return []
            columns, timestamps, ids = columns.take(pa.array(kept)), timestamps[kept], ids[kept]
        return self._rows(self.state.add(ids, timestamps, self._inputs.columns(columns)))

    def advance(self, clock: int) -> list[Result]:
        return self._rows(self.state.advance(clock))

    def crash(self) -> None:
        """Go on with what a snapshot has."""
        old, new = self.state, SessionState(self._gap, self._aggregates, self._lateness)
        found = old.everything()
        if len(found):
            ids = new.index.ids(old.index.keys(found.ids))
            columns = self._aggregates.from_arrow(self._aggregates.to_arrow(found.columns))
            flags: Any = np.zeros(len(found), np.bool_)
            new.restore(Sessions(ids, found.starts, found.ends, columns, flags, ~flags))
        new.recover_clock(old.clock_ms)
        self.state = new

    def _rows(self, found: Sessions | None) -> list[Result]:
        if found is None:
            return []
        keys = self.state.index.keys(found.ids)[0].to_pylist()
        results = [c.to_pylist() for c in self._aggregates.results(found.columns)]
        return list(zip(keys, found.starts.tolist(), found.ends.tolist(), *results, strict=True))


@given(st.integers(1, 20), batches_of_records(), st.sampled_from([0, 0, 5, 15]), st.data(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_sessions_are_those_that_are_merged_record_by_record(
    gap: int, batches: list[list[Record]], lateness: int, data: st.DataObject, numbers: bool
) -> None:
    aggregates = NUMBERS if numbers else AGGREGATES
    model = SessionModel(gap, aggregates, lateness)
    sessions = SessionWindows(gap, aggregates, lateness)
    clock = -200
    for batch in batches:
        assert sorted(sessions.add(batch), key=repr) == sorted(model.add(batch), key=repr)
        assert sessions.late == model.late
        clock = data.draw(st.integers(clock, max(clock, 70)), "clock")
        got, expected = sessions.advance(clock), model.advance(clock)
        assert [r[2] for r in got] == [r[2] for r in expected]
        assert sorted(got, key=repr) == sorted(expected, key=repr)
        if data.draw(st.booleans(), "crash"):
            sessions.crash()
    got, expected = sessions.advance(MAX_WATERMARK), model.advance(MAX_WATERMARK)
    assert sorted(got, key=repr) == sorted(expected, key=repr)
    assert len(sessions.state) == 0


def test_ends_of_keys_too_far_apart_for_one_number_are_found_too() -> None:
    same_key = np.array([False, True, True, False, True])
    starts = np.array([-(1 << 60), 0, 5, 1, 2])
    ends = np.array([9, 4, 12, 1 << 60, 3])
    assert running_ends(same_key, starts, ends).tolist() == [9, 9, 12, 1 << 60, 1 << 60]


def test_keys_without_sessions_are_forgotten() -> None:
    state = SessionState(10, WindowAggregates([CountRecords()]))
    for n in range(40):
        keys = np.append(np.arange(n * 5_000, (n + 1) * 5_000), -1)
        state.add(state.index.ids([pa.array(keys)]), np.full(5_001, 10 * n), [()])
        found = state.advance(10 * n + 5)
        assert (found is None) == (n == 0)
        if found is not None:
            assert state.index.keys(found.ids)[0].to_pylist() == (keys[:-1] - 5_000).tolist()
        state.forget_keys()
    assert len(state.index) <= 70_000
    last = state.advance(MAX_WATERMARK)
    assert last is not None
    counts = dict(zip(state.index.keys(last.ids)[0].to_pylist(), last.columns[0].tolist(), strict=True))
    assert (len(counts), counts[-1]) == (5_001, 40)
