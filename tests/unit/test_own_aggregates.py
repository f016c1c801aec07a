"""Aggregates of users: what they keep, return and read is safe whatever they do with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tidegate import (
    Aggregate,
    Environment,
    JobFailedError,
    Max,
    ProgramError,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.aggregates.aggregate import Input
from tidegate.api.triggers import EventTimeTrigger, TriggerContext, TriggerResult
from tidegate.api.windows import TimeWindow
from tidegate.graph.stream_graph import build_stream_graph

ROWS = [{"k": "a", "n": n, "m": -n, "t": n * 1_000} for n in (1, 2, 3)]


class Listed(Aggregate):
    """All values so far, beside how many they are; changed in place."""

    kind = "listed"

    def __init__(self, column: str) -> None:
        self.column = column

    def result_type(self, *inputs: pa.DataType) -> pa.DataType:
        return pa.list_(pa.int64())

    def partial(self, *inputs: pa.DataType) -> dict[str, pa.DataType]:
        return {"values": pa.list_(pa.int64()), "n": pa.int64()}

    def start(self) -> Any:
        return [], 0

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        kept[0].append(value)
        return kept[0], kept[1] + 1

    def merge(self, left: Any, right: Any) -> Any:
        return left[0] + right[0], left[1] + right[1]

    def result(self, kept: Any) -> Any:
        return kept[0]


class Distinct(Listed):
    """Keeps a set, which no Arrow type gives back."""

    def partial(self, *inputs: pa.DataType) -> dict[str, pa.DataType]:
        return {"values": pa.list_(pa.int64())}

    def start(self) -> Any:
        return set()

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        kept.add(value)
        return kept

    def result(self, kept: Any) -> Any:
        return sorted(kept)


class ByParity(Aggregate):
    """Counts of odd and even values, as a map."""

    kind = "by_parity"
    column = "n"

    def result_type(self, *inputs: pa.DataType) -> pa.DataType:
        return pa.int64()

    def partial(self, *inputs: pa.DataType) -> dict[str, pa.DataType]:
        return {"counts": pa.map_(pa.string(), pa.int64())}

    def start(self) -> Any:
        return {}

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        parity = "odd" if value % 2 else "even"
        return {**kept, parity: kept.get(parity, 0) + 1}

    def merge(self, left: Any, right: Any) -> Any:
        return {p: left.get(p, 0) + right.get(p, 0) for p in {*left, *right}}

    def result(self, kept: Any) -> Any:
        return kept.get("odd", 0)


class Widest(ByParity):
    """Reads every column there is."""

    kind = "widest"

    def inputs(self, names: Sequence[str]) -> tuple[Input, ...]:
        return tuple(name for name in names if name != "k")


def keyed(**options: Any) -> Any:
    env = Environment(runtime="in-process", **options)
    return env.from_collection(ROWS).key_by("k")


def test_a_result_that_is_a_part_of_what_is_kept_stays_as_it_was() -> None:
    found = [row.values for row in keyed().aggregate(values=Listed("n")).execute_and_collect()]
    assert found == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_what_a_restore_would_bring_to_another_form_is_refused_at_once(tmp_path, backend: str) -> None:
    stream = keyed(
        state_backend=backend,
        checkpoint_interval="1 s",
        checkpoint_dir=str(tmp_path),
        restart_strategy="none",
    ).aggregate(values=Distinct("n"))
    with pytest.raises(
        JobFailedError, match=r"keeps .values. as list<.*>, which is a list in Python, but made a set"
    ):
        list(stream.execute_and_collect())


def test_a_map_that_is_kept_is_a_dict_in_windows_too() -> None:
    env = Environment(runtime="in-process", parallelism=2, batch_rows=1)
    views = env.from_collection(ROWS).assign_timestamps_and_watermarks(WatermarkStrategy.bounded("1 s", "t"))
    windows = views.key_by("k").window(TumblingEventTimeWindows("10 s")).aggregate(odd=ByParity())
    assert [row.odd for row in windows.execute_and_collect()] == [2]


def test_a_source_leaves_no_column_out_that_an_aggregate_may_ask_for() -> None:
    assert ByParity().columns() == ("n",)
    assert Widest().columns() is None


class OddOnly(EventTimeTrigger):
    def on_element(
        self, element: Any, timestamp_ms: int, window: TimeWindow, context: TriggerContext
    ) -> TriggerResult:
        return (
            super().on_element(element, timestamp_ms, window, context) if element.m else TriggerResult.PURGE
        )


class WithTrigger(TumblingEventTimeWindows):
    def default_trigger(self) -> Any:
        return OddOnly()


@pytest.mark.parametrize(
    ("assigner", "all_columns"), [(WithTrigger, True), (TumblingEventTimeWindows, False)]
)
def test_a_trigger_that_comes_with_the_assigner_sees_all_columns(assigner: Any, all_columns: bool) -> None:
    env = Environment(runtime="in-process")
    views = env.from_collection(ROWS).assign_timestamps_and_watermarks(WatermarkStrategy.bounded("1 s", "t"))
    views.key_by("k").window(assigner("10 s")).aggregate(total=Sum("n")).print()
    program = env._take_program("job")
    graph = build_stream_graph("job", program.sinks, program.transformations, program.options)
    [window] = [n for n in graph.nodes if n.operation.kind == "window" and not n.operation.is_local_stage]
    needs = window.operation.required_columns() if window.operation.stage != "merge" else frozenset("kn")
    assert (needs is None) == all_columns


def test_two_results_of_one_name_are_refused() -> None:
    with pytest.raises(ProgramError, match="two results named 'sum_n'"):
        keyed().aggregate(Sum("n"), sum_n=Max("m"))


def test_sums_that_change_their_order_are_not_restored_as_each_other(tmp_path) -> None:
    def run(resume: str, **sums: Any) -> None:
        env = Environment(
            runtime="in-process",
            checkpoint_interval="10 ms",
            checkpoint_dir=str(tmp_path),
            checkpoint_keep_on_finish=True,
            resume=resume,
        )
        env.from_collection(ROWS, uid="rows").key_by("k").aggregate(**sums, uid="sums").print()
        env.execute("job")

    (tmp_path / "x").mkdir()
    run("latest-or-new", a=Sum("n"), b=Sum("m"))
    run("latest", a=Sum("n"), b=Sum("m"))
    with pytest.raises(JobFailedError, match=r"cannot restore state .total.: its values are a sum"):
        run("latest", b=Sum("m"), a=Sum("n"))
