"""Decimals add up, exactly, beside Python's fractions: by columns, by rows, in two stages and after restores."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.windows_kit import Checkpoints, harness
from tidegate import (
    Avg,
    CountDistinct,
    CumulativeEventTimeWindows,
    Environment,
    EventTimeSessionWindows,
    EventTimeTrigger,
    FileSink,
    FileSource,
    Max,
    Min,
    SlidingEventTimeWindows,
    Sum,
    TopN,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.core.errors import JobFailedError, ProgramError
from tidegate.operators.failures import OperatorError
from tidegate.records.decimals import (
    PAIR,
    DecimalOverflow,
    average_type,
    decimals,
    limbs_of,
    numbers_of_limbs,
    numbers_of_pairs,
    pairs_of,
    pairs_of_limbs,
    pairs_of_numbers,
    unscaled,
)
from tidegate.state.backend import ColumnArray
from tidegate.testing import check_recovery
from tidegate.testing.harness import OperatorHarness

EXACT = decimal.Context(prec=200, traps=[decimal.Inexact])
SCALE = 2
MONEY, WIDE = pa.decimal128(12, SCALE), pa.decimal128(36, SCALE)


def exact(number: int, scale: int = SCALE) -> Decimal:
    return Decimal(number).scaleb(-scale, EXACT)


def amounts(kind: pa.Decimal128Type) -> st.SearchStrategy[Decimal | None]:
    most = 10**kind.precision - 1
    return (st.integers(-most, most) | st.integers(-9, 9)).map(exact) | st.none()


Event = tuple[str, Decimal | None, int]


@st.composite
def streams(draw: st.DrawFn) -> tuple[pa.Decimal128Type, list[list[Event]]]:
    kind = draw(st.sampled_from([MONEY, WIDE]))
    event = st.tuples(st.sampled_from("ab"), amounts(kind), st.integers(0, 59))
    events = draw(st.lists(event, max_size=25))
    borders = draw(st.lists(st.integers(0, 25), max_size=4))
    places = sorted({0, len(events), *(b % (len(events) + 1) for b in borders)})
    return kind, [events[a:b] for a, b in pairwise(places)]


def schema(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("k", pa.string()), ("v", kind), ("t", pa.int64())])


def batch(kind: pa.DataType, events: list[Event]) -> pa.RecordBatch:
    columns = [list(c) for c in zip(*events, strict=True)] if events else [[], [], []]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema(kind), strict=True)], schema=schema(kind)
    )


def stream(kind: pa.DataType, backend: str = "heap") -> Any:
    env = Environment(state_backend=backend)
    made = env.from_collection([], type=schema(kind))
    return made.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks("t"))


# ---- the oracle ----


def mean(values: list[Decimal], scale: int) -> Decimal:
    """The quotient by fractions, a half away from zero."""
    exactly = sum((Fraction(v) for v in values), Fraction(0)) / len(values)
    scaled = abs(exactly) * 10**scale
    whole = int(scaled + Fraction(1, 2))
    return exact(whole if exactly >= 0 else -whole, scale)


def expected(kind: pa.Decimal128Type, values: list[Decimal | None]) -> tuple[Any, ...]:
    """sum, min, max, avg, distinct, the two largest."""
    seen = [v for v in values if v is not None]
    best = sorted(seen, reverse=True)[:2]
    if not seen:
        return None, None, None, None, 0, best
    total = Decimal(0)
    for v in seen:
        total = EXACT.add(total, v)
    scale = average_type(kind).scale
    return total, min(seen), max(seen), mean(seen, scale), len(set(seen)), best


AGGREGATES: dict[str, Any] = {
    "total": Sum("v"),
    "least": Min("v"),
    "most": Max("v"),
    "mean": Avg("v"),
    "distinct": CountDistinct("v"),
    "best": TopN(2, by="v", select=["v"]),
}


# ---- columns of whole numbers ----


@given(st.lists(amounts(WIDE), max_size=20), st.integers(0, 20))
def test_whole_numbers_and_back_are_the_same_decimals(values: list[Decimal | None], start: int) -> None:
    column = pa.array(values, WIDE).slice(start)
    numbers = unscaled(column)
    assert numbers.tolist() == [0 if v is None else int(v.scaleb(2, EXACT)) for v in values[start:]]
    null = np.array([v is None for v in values[start:]], np.bool_)
    back = decimals(numbers, WIDE, null)
    back.validate(full=True)
    assert back.to_pylist() == column.to_pylist()


def test_a_mean_has_four_digits_more_as_far_as_there_are_38_and_always_fits() -> None:
    given_and_found = [
        ((10, 2), (14, 6)),
        ((38, 18), (38, 18)),
        ((38, 0), (38, 0)),
        ((36, 2), (38, 4)),
        ((5, 5), (9, 9)),
    ]
    for (p, s), wanted in given_and_found:
        found = average_type(pa.decimal128(p, s))
        assert (found.precision, found.scale) == wanted


# ---- windows ----

WINDOWS = [
    TumblingEventTimeWindows("10 ms"),
    SlidingEventTimeWindows("20 ms", "10 ms"),
    CumulativeEventTimeWindows("60 ms", "20 ms"),
    EventTimeSessionWindows("7 ms"),
]


def windows_of(assigner: Any, events: list[Event]) -> dict[tuple[str, int], list[Decimal | None]]:
    found: dict[tuple[str, int], list[Decimal | None]] = {}
    if isinstance(assigner, EventTimeSessionWindows):
        for key in "ab":
            session: list[Event] = []
            for event in sorted((e for e in events if e[0] == key), key=lambda e: e[2]):
                if session and event[2] > session[-1][2] + 7:
                    found[key, session[-1][2] + 7] = [v for _, v, _ in session]
                    session = []
                session.append(event)
            if session:
                found[key, session[-1][2] + 7] = [v for _, v, _ in session]
        return found
    for key, value, t in events:
        if isinstance(assigner, TumblingEventTimeWindows):
            ends = [t // 10 * 10 + 10]
        elif isinstance(assigner, SlidingEventTimeWindows):
            ends = [t // 10 * 10 + 10, t // 10 * 10 + 20]
        else:
            ends = list(range(t // 20 * 20 + 20, 61, 20))
        for end in ends:
            found.setdefault((key, end), []).append(value)
    return found


def drain(h: OperatorHarness, clock_ms: int) -> list[tuple[str, int, tuple[Any, ...]]]:
    h.advance_watermark(clock_ms)
    found = []
    for out in h.batches:
        for row in out.columns.to_pylist():
            *values, best = (row[name] for name in AGGREGATES)
            found.append(
                (row["key"], row["window_end"].timestamp() * 1000, (*values, [b["v"] for b in best]))
            )
    h.batches.clear()
    return found


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("assigner", WINDOWS, ids=lambda a: type(a).__name__)
def test_windows_of_decimals_are_exact_also_across_a_restore(
    tmp_path: Path, backend: str, assigner: Any
) -> None:
    count = 0

    @settings(max_examples=12 if backend == "heap" else 4, deadline=None)
    @given(streams(), st.integers(0, 4))
    def check(case: Any, cut: int) -> None:
        nonlocal count
        count += 1
        kind, batches = case
        keyed = stream(kind, backend).key_by(lambda r: r.k, returns=str)
        made = keyed.window(assigner).aggregate(**AGGREGATES)
        checkpoints = Checkpoints(tmp_path / str(count))
        h = harness(made)
        h.__enter__()
        for i, events in enumerate(batches):
            if i == cut:
                h, before = checkpoints.restored(h, made), h
                before.__exit__(None, None, None)
                h.operator.start()
            if events:
                h.push([e[:3] for e in events], timestamps=[t for _, _, t in events])
        events = [e for b in batches for e in b]
        wanted = {k: expected(kind, values) for k, values in windows_of(assigner, events).items()}
        found = drain(h, 1_000)
        h.__exit__(None, None, None)
        assert {(key, round(end)): values for key, end, values in found} == wanted

    check()


class ByRows(EventTimeTrigger):
    """Fires as the built-in one does, but is the user's: the windows are computed record by record."""


@settings(max_examples=20, deadline=None)
@given(streams())
def test_two_stages_rows_and_columns_give_the_same(case: Any) -> None:
    kind, batches = case
    events = [e for b in batches for e in b]
    env = Environment(runtime="in-process", parallelism=2, batch_rows=3)
    source = env.from_collection(batch(kind, events).to_pylist(), type=schema(kind))
    stamped = source.assign_timestamps_and_watermarks(WatermarkStrategy.bounded("60 ms", "t"))
    cut = TumblingEventTimeWindows("10 ms")
    by_columns = stamped.key_by("k").window(cut).aggregate(**AGGREGATES)
    by_rows = stamped.key_by("k").window(cut).trigger(ByRows()).aggregate(**AGGREGATES)
    for made in (by_columns, by_rows):
        found = {}
        for row in made.execute_and_collect():
            *values, best = (getattr(row, name) for name in AGGREGATES)
            found[row.k, round(row.window_end.timestamp() * 1000)] = (*values, [b["v"] for b in best])
        assert found == {k: expected(kind, values) for k, values in windows_of(cut, events).items()}


# ---- what does not fit ----

LARGEST = exact(10**38 - 1)


def test_a_running_sum_of_more_than_38_digits_fails_and_names_operator_column_and_key() -> None:
    made = stream(pa.decimal128(38, 2)).key_by("k").sum("v", emit="each").name("total")
    with OperatorHarness.of(made) as h:
        h.push([("b", Decimal(1), 0), ("a", LARGEST, 0)])
        with pytest.raises(OperatorError) as caught:
            h.push([("b", Decimal(1), 0), ("a", exact(1), 0)])
        assert caught.value.operator == "total"
        assert "sum('v') of key 'a': " in str(caught.value.__cause__)
        assert "does not fit a decimal128(38, 2). Look at the values" in str(caught.value.__cause__)
        h.push([("a", exact(-1), 0), ("b", Decimal(1), 0)])  # nothing of the refused batch is in it
        assert [row.sum_v for row in h.rows] == [Decimal(1), LARGEST, exact(10**38 - 2), Decimal(2)]


@pytest.mark.parametrize("aggregate", [Sum("v"), Avg("v")])
@pytest.mark.parametrize("rows", [False, True])
def test_the_sum_of_a_window_of_more_than_38_digits_is_an_error(aggregate: Any, rows: bool) -> None:
    env = Environment(runtime="in-process", parallelism=1, restart_strategy="none")
    events = [("a", LARGEST, 0), ("a", exact(1), 1)]
    source = env.from_collection(
        batch(pa.decimal128(38, 2), events).to_pylist(), type=schema(pa.decimal128(38, 2))
    )
    stamped = source.assign_timestamps_and_watermarks(WatermarkStrategy.bounded("60 ms", "t")).key_by("k")
    windows = stamped.count_window(2) if rows else stamped.window(TumblingEventTimeWindows("10 ms"))
    with pytest.raises(JobFailedError, match=r"(sum|avg)\('?v'?\): .*(38 digits|decimal128\(38, 2\))"):
        list(windows.aggregate(it=aggregate).execute_and_collect())


@dataclass
class Payment:
    user: str
    amount: Decimal


def test_a_decimal_of_a_class_is_kept_to_18_digits_and_refused_rather_than_rounded() -> None:
    env = Environment(runtime="in-process", parallelism=1)
    cents = [Payment("a", Decimal("0.10"))] * 3 + [
        Payment("a", Decimal("-0")),
        Payment("a", Decimal("1e-18")),
    ]
    last = list(env.from_collection(cents).key_by("user").sum("amount").execute_and_collect())[-1]
    assert last.sum_amount == Decimal("0.300000000000000001")
    for wrong in ("1e-19", "1e20", "NaN", "Infinity"):
        with pytest.raises(Exception, match=r"(?i)amount|decimal"):
            list(env.from_collection([Payment("a", Decimal(wrong))]).execute_and_collect())


def test_decimals_of_an_untyped_key_function_are_added_without_rounding() -> None:
    env = Environment(runtime="in-process", parallelism=1)
    values = [exact(10**33 + 1), exact(10**33 + 2), exact(-3)]
    rows = batch(WIDE, [("a", v, 0) for v in values]).to_pylist()
    summed = env.from_collection(rows, type=schema(WIDE)).key_by(lambda r: r.k).sum("v")
    assert list(summed.execute_and_collect())[-1] == ("a", exact(2 * 10**33))


def test_decimals_of_another_width_are_refused_by_name() -> None:
    keyed = Environment().from_collection([], type=schema(pa.decimal256(50, 2))).key_by("k")
    with pytest.raises(
        ProgramError, match=r"sum\('v'\): the column is decimal256\(50, 2\), but must be .*decimal128"
    ):
        keyed.sum("v")


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=40))
def test_sums_of_limbs_are_the_sums_of_the_numbers_or_an_error(numbers: list[int]) -> None:
    kind = pa.decimal128(38, 0)
    limbs = limbs_of(pairs_of_numbers(np.array(numbers, object), kind))
    for limb in limbs:
        np.cumsum(limb, out=limb)
    wanted = np.cumsum(np.array(numbers, object)).tolist()
    assert numbers_of_limbs(limbs).tolist() == wanted
    wrong = [i for i, total in enumerate(wanted) if abs(total) >= 10**38]
    if not wrong:
        assert numbers_of_pairs(pairs_of_limbs(limbs, kind)).tolist() == wanted
        return
    with pytest.raises(DecimalOverflow) as caught:
        pairs_of_limbs(limbs, kind)
    assert caught.value.at == wrong[0]
    assert str(wanted[wrong[0]]) in str(caught.value)


@pytest.mark.parametrize("name", ["pay.jsonl", "pay.csv", "pay.parquet"])
def test_decimals_of_files_add_up(tmp_path: Path, name: str) -> None:
    wanted = [Decimal("0.10"), Decimal("0.30"), Decimal("30000000000000000000000000000.29")]
    digits = ["0.10", "0.20", "29999999999999999999999999999.99"]
    declared = pa.schema([("k", pa.string()), ("v", pa.decimal128(34, 2))])
    if name.endswith("parquet"):
        pq.write_table(pa.table({"k": ["a"] * 3, "v": list(map(Decimal, digits))}, declared), tmp_path / name)
    elif name.endswith("csv"):
        (tmp_path / name).write_text("k,v\n" + "".join(f"a,{v}\n" for v in digits))
    else:
        (tmp_path / name).write_text("".join(f'{{"k": "a", "v": {v}}}\n' for v in digits))
    env = Environment(runtime="in-process", parallelism=1)
    source = FileSource(tmp_path / name, format="json" if name.endswith("jsonl") else None, schema=declared)
    got = [row.sum_v for row in env.from_source(source).key_by("k").sum("v").execute_and_collect()]
    assert got == wanted


def test_what_tables_of_state_keep_of_a_decimal_is_arrows_own_16_bytes() -> None:
    money = pa.decimal128(38, 2)
    pairs = pairs_of(pa.array([exact(-1), exact(150), exact(1 << 64)], money))
    assert pairs.tobytes().hex() == "ff" * 16 + "96" + "00" * 15 + "00" * 8 + "01" + "00" * 7
    assert ColumnArray("sum", PAIR, None, money).type_name == "decimal128(38, 2)"


class Paid(NamedTuple):
    """A record of a payment."""

    user: str
    amount: Decimal


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_running_sums_and_extremes_of_decimals_go_on_exactly_after_crashes(
    tmp_path: Path, backend: str
) -> None:
    def program(env: Environment, payments: Any, out: Path) -> None:
        by_user = payments.key_by("user")
        for kind in ("sum", "min", "max"):
            made = getattr(by_user, kind)("amount", output="it", emit="each", uid=kind)
            made.sink_to(FileSink(out / kind), uid=f"{kind} out")

    paid = [Paid(f"u{n % 3}", exact((-1) ** n * 7**n % 10**18 * 10**17, 18)) for n in range(90)]
    report = check_recovery(
        program, [paid], tmp_path, crashes=2, runtime="in-process", parallelism=2, state_backend=backend
    )
    assert (report.crashes, report.output.total()) == (2, 3 * len(paid))
