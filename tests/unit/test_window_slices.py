"""Vectorised tumbling, sliding and cumulative windows agree with a list of records per window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.event_time.reference import Windows as reference_windows
from tests.unit.window_model import (
    AGGREGATES,
    NUMBERS,
    RECORD_TYPE,
    Aggregates,
    Record,
    Result,
    WindowModel,
    batches_of_records,
    columns_of,
)
from tidegate.aggregates.count import CountRecords
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.sum import NumberSum
from tidegate.aggregates.top_n import BestRecords
from tidegate.operators.columns.aggregate_inputs import AggregateInputs
from tidegate.operators.window.parts import Part, WindowAggregates
from tidegate.operators.window.slice_bounds import Slicing
from tidegate.operators.window.slices import SliceState
from tidegate.records.elements import MAX_WATERMARK


class Windows:
    """The vectorised core with records in and rows out."""

    def __init__(self, slicing: Slicing, aggregates: Aggregates, lateness_ms: int = 0) -> None:
        self._inputs = AggregateInputs([a for _, a in aggregates], RECORD_TYPE)
        self._aggregates = WindowAggregates(self._inputs.kernels)
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
        rows = self.state.group(ids, timestamps, self._inputs.columns(columns))
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
    kind = "cumulative" if slicing.cumulative else "sliding"
    reference = reference_windows(kind, slicing.size_ms, slicing.step_ms, slicing.offset_ms)
    model = WindowModel(reference.of, aggregates, lateness)
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


def keyed_counts(slicing: Slicing, lateness_ms: int = 0) -> SliceState:
    return SliceState(slicing, WindowAggregates([CountRecords(), NumberSum("sum", pa.int64())]), lateness_ms)


def add_counts(state: SliceState, keys: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> None:
    ids = state.index.ids([pa.array(keys)])
    state.add(*state.group(ids, times, [(), (pa.array(keys),)]))


def fired(state: SliceState, clock: int) -> list[tuple[int, dict[int, tuple[int, int]]]]:
    """For each window its end, and the count and sum of each key."""
    windows = []
    for end, part in state.advance(clock):
        ids, columns = part.rows()
        keys = state.index.keys(ids)[0].to_pylist() if len(ids) else []
        counts, sums = (c.to_pylist() for c in state.aggregates.results(columns))
        windows.append((end, dict(zip(keys, zip(counts, sums, strict=True), strict=True))))
    state.forget_keys()
    return windows


def test_keys_that_are_gone_are_forgotten() -> None:
    state = keyed_counts(Slicing(40, 10))
    for n in range(40):
        keys = np.arange(n * 5_000, (n + 1) * 5_000)
        add_counts(state, np.append(keys, -1), np.full(5_001, 10 * n + 5))
        ((end, rows),) = fired(state, 10 * n + 9)
        recent = range(max(0, n - 3) * 5_000, (n + 1) * 5_000)
        assert (end, len(rows), rows[-1]) == (10 * n + 10, len(recent) + 1, (min(4, n + 1), -min(4, n + 1)))
        assert all(rows[k] == (1, k) for k in recent)
    assert len(state.index) <= 100_000
    assert [len(rows) for _, rows in fired(state, MAX_WATERMARK)] == [15_001, 10_001, 5_001]


def test_a_slice_with_few_of_many_keys_stays_small() -> None:
    state = keyed_counts(Slicing(10, 10))
    add_counts(state, np.arange(3), np.full(3, 25))  # dense, as these are all keys there are
    add_counts(state, np.arange(200_000), np.full(200_000, 5))
    add_counts(state, np.array([199_999, 1]), np.array([25, 25]))
    kept = state._slices[30].part(len(state.index))
    assert kept.ids is not None
    assert len(kept.ids) == 4
    first, second = fired(state, MAX_WATERMARK)
    assert len(first[1]) == 200_000
    assert second == (30, {0: (1, 0), 1: (2, 2), 2: (1, 2), 199_999: (1, 199_999)})


def test_a_window_of_many_slices_costs_a_few_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = 200
    state = keyed_counts(Slicing(slices, 1))
    merges = 0
    merged = WindowAggregates.merged

    def counting(self: WindowAggregates, parts: Sequence[Part], keys: int) -> Part:
        nonlocal merges
        merges += max(0, len(parts) - 1)
        return merged(self, parts, keys)

    monkeypatch.setattr(WindowAggregates, "merged", counting)
    for time in range(5 * slices):
        add_counts(state, np.array([1, 2]), np.full(2, time))
        ((end, rows),) = fired(state, time)
        so_far = min(slices, time + 1)
        assert (end, rows) == (time + 1, {1: (so_far, so_far), 2: (so_far, 2 * so_far)})
    assert merges <= 3 * 5 * slices


def test_timestamps_far_apart_do_not_fill_the_time_between() -> None:
    state = keyed_counts(Slicing(60_000, 1_000))
    year = 31_536_000_000
    add_counts(state, np.array([1, 1, 1]), np.array([-70 * year, 0, 8_029 * year]))
    windows = fired(state, MAX_WATERMARK)
    assert len(windows) == 3 * 60
    assert all(rows == {1: (1, 1)} for _, rows in windows)


def test_a_sum_that_does_not_fit_is_refused_in_a_batch_and_over_batches() -> None:
    large = np.array([(1 << 63) - 1])
    state = keyed_counts(Slicing(10, 10))
    ids = np.zeros(2, np.int64)
    state.index.ids([pa.array([0])])
    with pytest.raises(OverflowError):
        state.group(ids, np.zeros(2, np.int64), [(), (pa.array(np.append(large, 1)),)])
    one = state.group(ids[:1], np.zeros(1, np.int64), [(), (pa.array(large),)])
    state.add(*one)
    with pytest.raises(OverflowError):
        state.add(*one)


def test_the_best_of_many_records_are_those_that_a_sort_gives() -> None:
    chance = np.random.default_rng(11)
    count = 5_000
    by = chance.integers(0, 40, count).astype(np.float64)
    by[chance.random(count) < 0.05] = np.nan
    times = chance.integers(0, 1_000, count)
    codes = chance.integers(0, 7, count)
    best = BestRecords(3, [pa.float64()], [pa.field("row", pa.int64())], [True])
    (lists,) = best.reduce(Groups(codes, 7), [pa.array(by), pa.array(np.arange(count))], times)
    found = best.finish([lists], np.zeros(7, np.int64)).to_pylist()
    for code in range(7):
        rows = np.flatnonzero(codes == code).tolist()
        rows.sort(key=lambda i: (-np.inf if np.isnan(by[i]) else -by[i], times[i], i))
        assert [item["row"] for item in found[code]] == rows[:3]
