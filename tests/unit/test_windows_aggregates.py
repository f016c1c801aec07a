"""Built-in aggregates of windows, record by record and by columns, against plain Python; types and refusals."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.windows_kit import Click, by_user, harness, panes
from tidegate import (
    Avg,
    Count,
    CountDistinct,
    Environment,
    EventTimeSessionWindows,
    EventTimeTrigger,
    FileSource,
    First,
    Last,
    Max,
    Min,
    ProgramError,
    PurgingTrigger,
    SchemaError,
    SlidingEventTimeWindows,
    Sum,
    TopN,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
)
from tidegate.operators.failures import OperatorError
from tidegate.operators.window.window_operator import WindowOperator
from tidegate.testing.harness import OperatorHarness


class Reading(NamedTuple):
    """A record with all kinds of columns."""

    sensor: str
    n: int | None
    x: float | None
    word: str | None


IS_A = pl.col("word") == "a"
ALL = {
    "records": Count(),
    "values": Count("n"),
    "total": Sum("n"),
    "ftotal": Sum("x"),
    "least": Min("n"),
    "fleast": Min("x"),
    "most": Max("x"),
    "mean": Avg("n"),
    "first": First("word"),
    "last": Last("n"),
    "words": CountDistinct("word"),
    "numbers": CountDistinct("x"),
    "top": TopN(2, by="n", select=("n", "word")),
    "low": TopN(2, by="x", select="x", largest=False),
}


def readings() -> Any:
    stream = Environment().from_collection([], type=Reading)
    return stream.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks(lambda r: 0)).key_by(
        "sensor"
    )


def expected(events: list[tuple[Reading, int]]) -> dict[str, Any]:
    """The aggregates of one window; `events` in the order in which they came."""

    def column(name: str) -> list[Any]:
        return [v for r, _ in events if (v := getattr(r, name)) is not None]

    def edge(name: str, latest: bool) -> Any:
        have = [(t, i, getattr(r, name)) for i, (r, t) in enumerate(events) if getattr(r, name) is not None]
        if not have:
            return None
        return max(have, key=lambda h: h[:2])[2] if latest else min(have, key=lambda h: h[:2])[2]

    def top(by: str, names: tuple[str, ...], largest: bool) -> list[dict[str, Any]]:
        have = [(getattr(r, by), t, i, r) for i, (r, t) in enumerate(events) if getattr(r, by) is not None]
        sign = -1 if largest else 1

        def rank(entry: Any) -> tuple[float, int, int]:
            value = math.inf if entry[0] != entry[0] else entry[0]
            return sign * value, entry[1], entry[2]

        return [{n: getattr(h[3], n) for n in names} for h in sorted(have, key=rank)[:2]]

    n, x, words = column("n"), column("x"), column("word")
    largest = (math.nan if any(v != v for v in x) else max(x)) if x else None
    return {
        "records": len(events),
        "values": len(n),
        "total": sum(n) if n else None,
        "ftotal": sum(x) if x else None,
        "least": min(n) if n else None,
        "fleast": min((v for v in x if v == v), default=math.nan) if x else None,
        "most": largest,
        "mean": sum(n) / len(n) if n else None,
        "first": edge("word", latest=False),
        "last": edge("n", latest=True),
        "words": len(set(words)),
        "numbers": len({"nan" if v != v else v for v in x}),
        "top": top("n", ("n", "word"), largest=True),
        "low": top("x", ("x",), largest=False),
    }


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if value != value else round(value, 9)
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items()}
    return [comparable(v) for v in value] if isinstance(value, list) else value


READINGS = st.builds(
    Reading,
    st.sampled_from("ab"),
    st.none() | st.integers(-5, 5),
    st.none() | st.sampled_from([math.nan, 0.5, 1.25, -2.0, 100.0]),
    st.none() | st.sampled_from(["tide", "gate", ""]),
)
EVENTS = st.lists(st.tuples(READINGS, st.integers(0, 25_000)), min_size=1, max_size=25)


@pytest.mark.parametrize("way", ["records", "columns"])
@given(events=EVENTS, cut=st.integers(0, 25))
@settings(max_examples=60, deadline=None)
def test_aggregates_are_what_plain_python_computes(way: str, events: Any, cut: int):
    windowed = readings().window(TumblingEventTimeWindows("10 s"))
    made = windowed.trigger(PurgingTrigger(EventTimeTrigger())).aggregate(**ALL) if way == "records" else None
    if made is None:
        made = readings().window_all(TumblingEventTimeWindows("10 s")).aggregate(**ALL)
        events = [(r._replace(sensor="a"), t) for r, t in events]
    with harness(made) as h:
        assert isinstance(h.operator, WindowOperator) == (way == "records")
        for part in (events[:cut], events[cut:]):
            h.push([r for r, _ in part], timestamps=[t for _, t in part])
        h.finish()
        found = {}
        for pane in panes(h):
            sensor, start, end, *results = pane if way == "records" else ("a", *pane)
            assert end == start + 10_000
            found[sensor, start] = comparable(dict(zip(ALL, results, strict=True)))
    groups: dict[Any, list[Any]] = {}
    for reading, time in events:
        groups.setdefault((reading.sensor, time // 10_000 * 10_000), []).append((reading, time))
    assert found == {k: comparable(expected(v)) for k, v in groups.items()}


@given(events=EVENTS)
@settings(max_examples=40, deadline=None)
def test_aggregates_merge_when_sessions_do(events: Any):
    # Without equal timestamps: whose record came first is not known of two sessions that became one.
    events = [(r, t * 30 + i) for i, (r, t) in enumerate(events)]
    windowed = readings().window(EventTimeSessionWindows("20 s"))
    with harness(windowed.trigger(PurgingTrigger(EventTimeTrigger())).aggregate(**ALL)) as h:
        for reading, time in events:
            h.push([reading], timestamps=[time])
        h.finish()
        found = {pane[:3]: comparable(dict(zip(ALL, pane[3:], strict=True))) for pane in panes(h)}
    wanted = {}
    for sensor in {r.sensor for r, _ in events}:
        group: list[Any] = []
        for reading, time in [
            *sorted((e for e in events if e[0].sensor == sensor), key=lambda e: e[1]),
            (None, 10**9),
        ]:
            if group and time - group[-1][1] > 20_000:
                wanted[sensor, group[0][1], group[-1][1] + 20_000] = comparable(expected(group))
                group = []
            group.append((reading, time))
    assert found == wanted


def test_results_are_rows_of_key_window_and_aggregates():
    with harness(
        by_user().window(TumblingEventTimeWindows("10 s")).aggregate(total=Sum("amount"), n=Count())
    ) as _:
        pass
    made = by_user().count_window(1).sum("amount")
    assert made.record_type.schema == pa.schema(
        [pa.field("user", pa.string(), False), pa.field("sum_amount", pa.int64())]
    )
    timed = by_user().window(TumblingEventTimeWindows("10 s")).top_n(1, "amount")
    assert timed.record_type.names == ["user", "window_start", "window_end", "top_1_amount"]
    assert timed.record_type.schema.field("window_start").type == pa.timestamp("ms", "UTC")


def test_keys_by_function_have_the_columns_of_their_type():
    keyed = by_user()
    windowed = TumblingProcessingTimeWindows("10 s")

    def pair(click: Click) -> tuple[str, int]:
        return click.user, click.amount % 2

    def parity(click: Click) -> int:
        return click.amount % 2

    for key, names in ((pair, ["f0", "f1"]), (parity, ["key"])):
        made = keyed.key_by(key).window(windowed).count()
        assert made.record_type.names == [*names, "window_start", "window_end", "count"]
        with harness(made) as h:
            h.push([Click("a", 1), Click("a", 3)])
            h.finish()
            key_columns = ("a", 1) if key is pair else (1,)
            assert [(*p[: len(names)], p[-1]) for p in panes(h)] == [(*key_columns, 2)]


def test_keys_without_a_type_give_tuples():
    made = (
        by_user()
        .key_by(lambda click: {click.user}.pop())
        .window(TumblingProcessingTimeWindows("10 s"))
        .count()
    )
    with harness(made) as h:
        h.push([Click("a", 1), Click("a", 3)])
        h.finish()
        start, end = (datetime.fromtimestamp(s, UTC) for s in (0, 10))
        assert h.rows == [("a", start, end, 2)]


def test_a_sum_that_does_not_fit_is_an_error_that_names_the_column():
    made = by_user().count_window(2).sum("amount")
    with harness(made) as h, pytest.raises(OperatorError) as failed:
        h.push([Click("a", 2**62), Click("a", 2**62)])
    assert "sum('amount'): 9223372036854775808 does not fit into int64. Cast the column" in str(
        failed.value.__cause__
    )


def test_windows_whose_end_no_calendar_has_come_out_as_columns():
    made = (
        by_user().window(TumblingEventTimeWindows("1 d")).trigger(PurgingTrigger(EventTimeTrigger())).count()
    )
    with harness(made) as h:
        last = 253_402_300_799_999  # 9999-12-31 23:59:59.999
        h.push([Click("a", 1)], timestamps=[last])
        h.finish()
        assert panes(h) == [("a", last + 1 - 86_400_000, last + 1, 1)]


@pytest.mark.parametrize(
    ("aggregates", "part"),
    [
        ({"n": Sum("nothing")}, "nothing"),
        ({"n": Sum("word")}, "must be an integer, a float or a decimal128"),
        ({"n": Avg("word")}, "must be an integer, a float or a decimal128"),
        ({"n": Max(IS_A)}, "must be an integer, a float, a decimal128, a text or a time"),
        ({"n": TopN(3, by=IS_A)}, "must be an integer, a float, a decimal128, a text or a time"),
        ({"sensor": Count()}, "two columns named 'sensor'"),
        ({"window_end": Count()}, "two columns named 'window_end'"),
        ({"n": Count}, "got the class"),
        ({}, "takes built-in aggregates by name"),
    ],
)
def test_aggregates_that_cannot_be_are_refused_where_they_are_written(aggregates: Any, part: str):
    with pytest.raises((ProgramError, SchemaError), match=part):
        readings().window(SlidingEventTimeWindows("10 s", "5 s")).aggregate(**aggregates)


def test_top_n_refuses_numbers_that_make_no_sense():
    for make in (lambda: TopN(0, "n"), lambda: TopN(2, "n", select=())):
        with pytest.raises(ProgramError):
            make()


def test_without_records_of_a_column_results_are_none_and_counts_zero():
    made = readings().window(TumblingProcessingTimeWindows("10 s")).aggregate(**ALL)
    with OperatorHarness.of(made) as h:
        h.push([Reading("a", None, None, None)])
        h.finish()
        (row,) = h.rows
        found = dict(zip(made.record_type.names, row, strict=True))
    assert {k: found[k] for k in ALL} == {
        **dict.fromkeys(ALL),
        "records": 1,
        "values": 0,
        "words": 0,
        "numbers": 0,
        "top": [],
        "low": [],
    }


# ---- which columns are read: some, none or all ----

BEST = Reading("s", 2, 0.5, "b")
FEW = [Reading("s", 1, 0.5, "a"), BEST]


@pytest.mark.parametrize("batch_rows", [1, 100])
@pytest.mark.parametrize(
    ("aggregate", "wanted"),
    [
        (TopN(1, by="n"), [BEST._asdict()]),
        (TopN(1, by="n", select="word"), [{"word": "b"}]),
        (Count(), 2),
        (Count("n"), 2),
        (Sum("n"), 3),
    ],
)
@pytest.mark.parametrize(
    "cut",
    [
        lambda s, w: s.window_all(w),
        lambda s, w: s.key_by(lambda r: r.sensor, returns=str).window(w),
        lambda s, w: s.key_by(lambda r: r.sensor).window(w),
        lambda s, w: s.key_by("sensor").window(w),
        lambda s, w: s.window_all(w).trigger(PurgingTrigger(EventTimeTrigger())),
    ],
    ids=["window_all", "typed key function", "untyped key function", "key column", "by rows"],
)
@pytest.mark.parametrize("as_rows", [False, True])
def test_an_aggregate_of_all_columns_of_some_or_of_none_works_however_the_stream_is_cut(
    cut: Any, aggregate: Any, wanted: Any, as_rows: bool, batch_rows: int
) -> None:
    env = Environment(runtime="in-process", parallelism=1, batch_rows=batch_rows)
    stream = env.from_collection(FEW) if as_rows else env.from_collection([r._asdict() for r in FEW])
    stamped = stream.assign_timestamps_and_watermarks(WatermarkStrategy.bounded("1 s", "n"))
    (result,) = cut(stamped, TumblingEventTimeWindows("10 s")).aggregate(it=aggregate).execute_and_collect()
    assert result[-1] == wanted


def test_a_source_of_columns_is_asked_for_all_of_them_where_one_aggregate_reads_all(tmp_path: Any) -> None:
    pq.write_table(pa.table({"s": ["a", "a"], "n": [1, 2], "x": [3, 4]}), tmp_path / "part.parquet")
    env = Environment(runtime="in-process", parallelism=1)
    strategy = WatermarkStrategy.bounded("1 s", "n")
    for aggregates, wanted in (
        ({"best": TopN(1, by="n")}, [[{"s": "a", "n": 2, "x": 4}]]),
        ({"n": Count(), "best": TopN(1, by="n", select="n")}, [2, [{"n": 2}]]),
        ({"n": Count()}, [2]),
    ):
        windows = env.from_source(FileSource(tmp_path, format="parquet"), strategy).window_all(
            TumblingEventTimeWindows("10 s")
        )
        (row,) = windows.aggregate(**aggregates).execute_and_collect()
        assert list(row)[2:] == wanted
