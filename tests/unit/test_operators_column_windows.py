"""Window aggregates by columns in a harness: results, late records, two stages, snapshots on both backends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.window_model import AGGREGATES, RECORD_TYPE, Record, Result, SessionModel, WindowModel
from tidegate import (
    Count,
    CumulativeEventTimeWindows,
    Environment,
    EventTimeSessionWindows,
    OutputTag,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.core.errors import StateCompatibilityError
from tidegate.operators.event_time.restored_clocks import RestoredClocks
from tidegate.operators.failures import OperatorError
from tidegate.operators.window.session_operator import SessionColumnsOperator
from tidegate.operators.window.slice_operator import (
    LocalWindowOperator,
    MergeWindowOperator,
    SliceWindowOperator,
)
from tidegate.program.window_partials import in_two_stages
from tidegate.records.batch import Batch
from tidegate.records.elements import MIN_TIMESTAMP
from tidegate.state.operator_states import Restored
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.testing.harness import OperatorHarness

ASSIGNERS = [
    TumblingEventTimeWindows(10),
    SlidingEventTimeWindows(12, 3, offset=1),
    SlidingEventTimeWindows(10, 4),
    CumulativeEventTimeWindows(12, 4),
    EventTimeSessionWindows(6),
]


class Subtasks:
    """One subtask after the other, each going on from a checkpoint of the one before, in real files."""

    def __init__(self, backend: str, directory: Path) -> None:
        self.env = Environment(state_backend=backend, checkpoint_interval="1s")
        self._storage = FilesystemStorage(str(directory), "job-1")
        self._checkpoints = 0
        self._open: list[OperatorHarness] = []

    def stream(self) -> Any:
        """Records with event time."""
        return self.env.from_collection([], type=RECORD_TYPE.schema).assign_timestamps_and_watermarks(
            WatermarkStrategy.no_watermarks(lambda record: 0)
        )

    def first(self, made: Any, **settings: Any) -> OperatorHarness:
        h = OperatorHarness.of(made, options=self.env.options, **settings)
        self._open.append(h)
        h.__enter__()
        return h

    def checkpoint(self, h: OperatorHarness, completes: bool = True) -> Restored:
        self._checkpoints += 1
        h.operator.snapshot(self._checkpoints)
        part = h.states.snapshot(self._checkpoints)
        written = part(self._storage.writer(self._checkpoints, 0, "test-operator", 0))
        if completes:
            h.states.checkpoint_completed(self._checkpoints)
        else:
            h.states.checkpoint_aborted(self._checkpoints)
        assert written.keyed is not None
        return Restored((written.keyed,), written.states, self._storage)

    def resumed(self, h: OperatorHarness, made: Any) -> OperatorHarness:
        """Another one at the clock of the checkpoint, as a task does it."""
        other = self.first(made, restored=self.checkpoint(h))
        other.states.check_claimed()
        if h.operator.clock_ms != MIN_TIMESTAMP:
            other.operator.process_watermark(h.operator.clock_ms)
        other.operator.start()
        assert other.batches == []
        return other

    def close(self) -> None:
        for h in self._open:
            h.__exit__(None, None, None)
            h.states.close()


@pytest.fixture(params=["heap", "rocksdb"])
def subtasks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subtasks]:
    found = Subtasks(request.param, tmp_path)
    yield found
    found.close()


@pytest.fixture
def on_heap(tmp_path: Path) -> Iterator[Subtasks]:
    found = Subtasks("heap", tmp_path)
    yield found
    found.close()


def push(h: OperatorHarness, records: list[Record]) -> None:
    h.push([r[:-1] for r in records], timestamps=[r.timestamp for r in records])


def results(h: OperatorHarness) -> list[Result]:
    """What came out since the last call: key, start, end, aggregates; timestamps are looked at too."""
    found: list[Result] = []
    for batch in h.batches:
        assert batch.plain_columns.schema.types == h.operator.output_type.schema.types
        columns = [
            (c.cast("int64") if f.name.startswith("window_") else c).to_pylist()
            for f, c in zip(batch.plain_columns.schema, batch.plain_columns.columns, strict=True)
        ]
        rows = list(zip(*columns, strict=True))
        assert batch.timestamps is not None
        assert batch.timestamps.to_pylist() == [row[2] - 1 for row in rows]
        found += rows
    h.batches.clear()
    return found


def model_of(assigner: Any, lateness: int = 0) -> WindowModel | SessionModel:
    if isinstance(assigner, EventTimeSessionWindows):
        assert assigner.gap_ms is not None
        return SessionModel(assigner.gap_ms, AGGREGATES, lateness)
    return WindowModel(lambda t: assigner.assign_windows(None, t), AGGREGATES, lateness)


def random_records(chance: random.Random, around: int) -> list[Record]:
    return [
        Record(
            chance.choice(["a", "b", "c", "d", None]),
            chance.choice([None, *range(-9, 9)]),
            chance.choice([None, 0.0, 1.0, -2.0, 3.5]),
            chance.choice([None, "u", "v", "w"]),
            around + chance.randint(-25, 12),
        )
        for _ in range(chance.randint(1, 30))
    ]


def same(got: list[Result], expected: list[Result]) -> None:
    assert sorted(got, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("assigner", ASSIGNERS, ids=lambda a: a.describe())
@pytest.mark.parametrize("seed", range(3))
def test_a_subtask_goes_on_exactly_from_any_checkpoint(subtasks: Subtasks, assigner: Any, seed: int) -> None:
    chance = random.Random(seed)
    lateness = [0, 5, 20][seed]
    windowed = subtasks.stream().key_by("key").window(assigner).allowed_lateness(lateness)
    made = windowed.aggregate(**dict(AGGREGATES))
    model = model_of(assigner, lateness)
    h = subtasks.first(made)
    assert isinstance(h.operator, (SliceWindowOperator, SessionColumnsOperator))
    clock = -50
    late = 0
    for _ in range(12):
        records = random_records(chance, clock + 20)
        push(h, records)
        same(results(h), model.add(records))
        if chance.random() < 0.7:
            clock += chance.randint(0, 15)
            h.advance_watermark(clock)
            got = results(h)
            assert [r[2] for r in got] == sorted(r[2] for r in got)
            same(got, model.advance(clock))
        match chance.random():
            case p if p < 0.2:
                subtasks.checkpoint(h)
            case p if p < 0.4:
                subtasks.checkpoint(h, completes=False)
            case p if p < 0.7:
                late += h.counters["late_records"]
                h = subtasks.resumed(h, made)
    assert late + h.counters["late_records"] == len(model.late)
    h.finish()
    same(results(h), model.advance((1 << 63) - 1))
    assert h.gauges["windows"] == 0


@pytest.mark.parametrize("assigner", ASSIGNERS[:4], ids=lambda a: a.describe())
@pytest.mark.parametrize("seed", range(3))
def test_two_stages_give_what_one_gives(on_heap: Subtasks, assigner: Any, seed: int) -> None:
    chance = random.Random(seed)
    windowed = on_heap.stream().key_by("key").window(assigner).allowed_lateness([0, 5, 20][seed])
    whole = windowed.aggregate(**dict(AGGREGATES))._node
    stages = in_two_stages(whole.operation, RECORD_TYPE)
    assert stages is not None
    local_operation, merge_operation, between = stages
    local = OperatorHarness(local_operation, [RECORD_TYPE], between)
    merge = OperatorHarness(merge_operation, [between], whole.output_type)
    model = model_of(assigner, [0, 5, 20][seed])
    with local, merge:
        assert isinstance(local.operator, LocalWindowOperator)
        assert isinstance(merge.operator, MergeWindowOperator)
        clock = -50
        for _ in range(10):
            batches = [random_records(chance, clock + 20) for _ in range(chance.randint(1, 3))]
            for records in batches:
                push(local, records)
            partial = [batch.columns for batch in local.batches]
            assert all(c.schema.types[1:] == between.schema.types[1:] for c in partial)
            joined = pa.Table.from_batches([between.plain(c) for c in partial]).combine_chunks()
            local.batches.clear()
            if joined.num_rows:
                merge.push_batch(Batch(between, columns=joined.to_batches()[0]))
            same(results(merge), model.add([r for records in batches for r in records]))
            assert merge.counters["late_records"] == len(model.late)
            clock += chance.randint(0, 15)
            merge.advance_watermark(clock)
            same(results(merge), model.advance(clock))


def test_late_records_go_to_the_side_output_as_they_came(on_heap: Subtasks) -> None:
    late: OutputTag[Any] = OutputTag("late")
    for assigner in (TumblingEventTimeWindows(10), EventTimeSessionWindows(10)):
        windowed = on_heap.stream().key_by("key").window(assigner).side_output_late_data(late)
        h = on_heap.first(windowed.count())
        h.advance_watermark(29)
        push(h, [Record("a", 1, None, "x", 35), Record("b", 2, 0.5, None, 3), Record("a", 3, None, None, 9)])
        assert [tuple(row) for row in h.side_rows("late")] == [("b", 2, 0.5, None), ("a", 3, None, None)]
        assert [pa.array(b.timestamps).to_pylist() for b in h._side["late"]] == [[3, 9]]
        assert h.counters["late_records"] == 2
        h.finish()
        assert [r[3] for r in results(h)] == [1]


def test_a_window_that_changes_late_is_given_out_again_once_per_key_and_batch(on_heap: Subtasks) -> None:
    windowed = on_heap.stream().key_by("key").window(TumblingEventTimeWindows(10)).allowed_lateness(10)
    h = on_heap.first(windowed.aggregate(n=Count(), total=Sum("n")))
    push(h, [Record("a", 1, None, None, 1), Record("b", 1, None, None, 2)])
    h.advance_watermark(9)
    assert results(h) == [("a", 0, 10, 1, 1), ("b", 0, 10, 1, 1)]
    push(h, [Record("a", 5, None, None, 3), Record("a", 6, None, None, 4), Record("c", 1, None, None, 14)])
    assert results(h) == [("a", 0, 10, 3, 12)]
    h.advance_watermark(18)
    assert h.gauges["windows"] == 2
    h.advance_watermark(19)
    assert results(h) == [("c", 10, 20, 1, 1)]
    assert h.gauges["windows"] == 1
    push(h, [Record("a", 7, None, None, 5)])
    assert (results(h), h.counters["late_records"]) == ([], 1)


@pytest.mark.parametrize(
    ("repeat", "lateness", "given"),
    [(False, 0, []), (True, 0, []), (False, 1_000, []), (True, 1_000, [("a", 60, 70, 1)])],
)
def test_what_a_key_group_has_given_out_comes_again_only_where_records_repeat_and_windows_change_late(
    on_heap: Subtasks, repeat: bool, lateness: int, given: list[Any]
) -> None:
    windowed = on_heap.stream().key_by("key").window(TumblingEventTimeWindows(10)).allowed_lateness(lateness)
    h = on_heap.first(windowed.aggregate(n=Count()))
    h.operator.clocks_restored(RestoredClocks(by_key_group=np.full(128, 100), repeats=repeat))
    h.advance_watermark(50)
    push(h, [Record("a", 1, None, None, 61)])
    h.advance_watermark(99)
    assert results(h) == given
    push(h, [Record("a", 1, None, None, 111)])
    h.advance_watermark(119)
    assert results(h) == [("a", 110, 120, 1)], "which nobody has given out"


def test_the_whole_stream_and_function_keys_are_windowed_too(on_heap: Subtasks) -> None:
    def parity(record: Any) -> int:
        return int(record.n % 2)

    records = [Record("a", 1, None, None, 1), Record("b", 2, None, None, 2), Record("c", 3, None, None, 3)]
    keyed = on_heap.stream().key_by(parity).window(TumblingEventTimeWindows(10)).sum("n")
    h = on_heap.first(keyed)
    assert isinstance(h.operator, SliceWindowOperator)
    push(h, records)
    h.finish()
    assert sorted(results(h)) == [(0, 0, 10, 2), (1, 0, 10, 4)]
    whole = on_heap.stream().window_all(TumblingEventTimeWindows(10)).sum("n")
    h = on_heap.first(whole)
    assert isinstance(h.operator, SliceWindowOperator)
    push(h, records)
    h = on_heap.resumed(h, whole)
    push(h, records)
    h.finish()
    assert [tuple(r)[2:] for r in h.rows] == [(12,)]


def test_a_sum_that_does_not_fit_names_the_operator_and_what_to_do(on_heap: Subtasks) -> None:
    made = on_heap.stream().key_by("key").window(SlidingEventTimeWindows(20, 10)).sum("n", name="totals")
    h = on_heap.first(made)
    large = (1 << 63) - 1
    push(h, [Record("a", large, None, None, 1), Record("a", 1, None, None, 11)])
    h.advance_watermark(9)
    with pytest.raises(OperatorError) as failure:
        h.advance_watermark(19)
    assert failure.value.operator == "totals"
    assert str(failure.value.__cause__) == (
        "sum(n): the sum of a window does not fit an int64. Cast the column to float before it is summed"
    )


def test_records_without_timestamps_and_with_impossible_ones_are_refused(on_heap: Subtasks) -> None:
    for assigner in (TumblingEventTimeWindows(10), EventTimeSessionWindows(10)):
        h = on_heap.first(on_heap.stream().key_by("key").window(assigner).count())
        with pytest.raises(OperatorError) as failure:
            h.push([("a", 1, None, None)])
        assert "need records with timestamps" in str(failure.value.__cause__)
        with pytest.raises(OperatorError) as failure:
            push(h, [Record("a", 1, None, None, 1 << 62)])
        assert "timestamp 4611686018427387904 is more than 73 million years from 1970" in str(
            failure.value.__cause__
        )


def test_slices_of_other_windows_are_not_taken_for_these(subtasks: Subtasks) -> None:
    h = subtasks.first(subtasks.stream().key_by("key").window(TumblingEventTimeWindows("10 s")).count())
    push(h, [Record("a", 1, None, None, 1)])
    stored = subtasks.checkpoint(h)
    longer = subtasks.stream().key_by("key").window(TumblingEventTimeWindows("20 s")).count()
    with pytest.raises(StateCompatibilityError, match="slices of 10000 every 10000 "):
        subtasks.first(longer, restored=stored)


def test_only_what_changed_is_written(on_heap: Subtasks) -> None:
    h = on_heap.first(on_heap.stream().key_by("key").window(TumblingEventTimeWindows(10)).count())
    operator = h.operator
    assert isinstance(operator, SliceWindowOperator)
    push(h, [Record("a", 1, None, None, 1), Record("b", 1, None, None, 2), Record("a", 1, None, None, 11)])
    h.operator.snapshot(1)
    push(h, [Record("b", 1, None, None, 3), Record("c", 1, None, None, 31)])
    changed = operator.changed_rows()
    assert sorted(zip(changed.keys[0].to_pylist(), changed.panes.tolist(), strict=True)) == [
        ("b", 10),
        ("c", 40),
    ]
    push(h, [Record("d", 1, None, None, 52)])
    h.advance_watermark(59)  # the slice that ends at 60 came and went between two snapshots
    removed = operator.removed_rows()
    assert sorted(zip(removed.keys[0].to_pylist(), removed.panes.tolist(), strict=True)) == [
        ("a", 10),
        ("a", 20),
        ("b", 10),
        ("c", 40),
    ]
    assert (len(operator.changed_rows()), len(operator.removed_rows()), len(operator.all_rows())) == (0, 0, 0)


@pytest.mark.parametrize("size", ["1 d", "6 h"])
def test_windows_of_local_time_are_those_of_the_assigner(subtasks: Subtasks, size: str) -> None:
    hour = 3_600_000
    assigner = TumblingEventTimeWindows(size, time_zone="Europe/Berlin")
    made = (
        subtasks.stream().key_by("key").window(assigner).allowed_lateness("6 h").aggregate(**dict(AGGREGATES))
    )
    model = model_of(assigner, 6 * hour)
    h = subtasks.first(made)
    assert isinstance(h.operator, SliceWindowOperator)
    chance = random.Random(5)
    change = 1_761_440_400_000  # the night in which the clock is set back
    for n in range(-8, 9):
        records = [
            Record("a", n, None, None, change + (9 * n + chance.randint(-20, 9)) * hour) for _ in range(5)
        ]
        push(h, records)
        same(results(h), model.add(records))
        h.advance_watermark(change + 9 * n * hour)
        same(results(h), model.advance(change + 9 * n * hour))
        if n % 3 == 0:
            assert h.counters["late_records"] == len(model.late)
            model.late.clear()
            h = subtasks.resumed(h, made)
    h.finish()
    same(results(h), model.advance((1 << 63) - 1))
