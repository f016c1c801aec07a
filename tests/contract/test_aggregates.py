"""Every aggregate, and one of a user's own, keeps the contract of `tidegate.Aggregate`.

An aggregate is compared with an oracle in plain Python, which sees the records of one group in order of arrival.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import (
    Aggregate,
    Avg,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    MaxBy,
    Min,
    MinBy,
    ProgramError,
    SchemaError,
    Sum,
    TopN,
)
from tidegate.aggregates.aggregate import AggregateError
from tidegate.aggregates.groups import Groups
from tidegate.aggregates.rows import RowAggregates
from tidegate.operators.columns.aggregate_inputs import AggregateInputs
from tidegate.operators.window.parts import WindowAggregates, concat
from tidegate.program.aggregate_inputs import kernel_of
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType, RowType

RECORD_TYPE: RecordType = RowType(
    pa.schema(
        [
            pa.field("n", pa.int64()),
            pa.field("x", pa.float64()),
            pa.field("paid", pa.decimal128(12, 2)),
            pa.field("word", pa.string()),
            pa.field("at", pa.timestamp("ms")),
        ]
    )
)
GROUPS = 3


class Record(NamedTuple):
    group: int
    timestamp: int
    n: int | None
    x: float | None
    paid: Decimal | None
    word: str | None
    at: Any


# ---- a user's own ----


class Spread(Aggregate):
    """The distance between the largest and the smallest number of a column."""

    kind = "spread"

    def __init__(self, column: str) -> None:
        self.column = column

    def result_type(self, *inputs: pa.DataType) -> pa.DataType:
        return inputs[0]

    def partial(self, *inputs: pa.DataType) -> dict[str, pa.DataType]:
        return {"low": inputs[0], "high": inputs[0]}

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        return self.merge(kept, (value, value))

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return min(left[0], right[0]), max(left[1], right[1])

    def result(self, kept: Any) -> Any:
        return None if kept is None else kept[1] - kept[0]


@dataclass(frozen=True)
class Words(Aggregate):
    """All words, each once, in order of their letters; with a start of its own, and what is kept goes on changing."""

    kind = "words"
    column: str
    where: pl.Expr | None = None

    def result_type(self, *inputs: pa.DataType) -> pa.DataType:
        return pa.list_(inputs[0])

    def partial(self, *inputs: pa.DataType) -> dict[str, pa.DataType]:
        return {"words": pa.list_(inputs[0])}

    def start(self) -> Any:
        return []

    def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
        if value not in kept:
            kept.append(value)
            kept.sort()
        return kept

    def merge(self, left: Any, right: Any) -> Any:
        for word in right:
            self.add(left, word, 0)
        return left


# ---- the oracles ----

Oracle = Callable[[list[Record]], Any]


def order(value: Any) -> Any:
    return (value != value, 0 if value != value else value)


def values(column: str, then: Callable[[list[Any]], Any], empty: Any = None) -> Oracle:
    def oracle(records: list[Record]) -> Any:
        found = [v for r in records if (v := getattr(r, column)) is not None]
        return then(found) if found else empty

    return oracle


def mean_of_decimals(found: list[Decimal]) -> Decimal:
    exact = Context(prec=60)
    quotient = exact.divide(sum(found, Decimal(0)), Decimal(len(found)))
    return quotient.quantize(Decimal("0.000001"), ROUND_HALF_UP, exact)


def best(records: Iterable[Record], *by: tuple[str, bool], n: int = 1, ties: bool = False) -> list[Record]:
    """The best records: a stable sort by each key, the last one first, where records are in order of timestamps."""
    found = [r for r in records if all(getattr(r, column) is not None for column, _ in by)]
    found.sort(key=lambda r: r.timestamp)
    for column, descending in reversed(by):
        found.sort(key=lambda r: order(getattr(r, column)), reverse=False)
        if descending:  # reverse=True would turn equal ones round, too
            groups: dict[Any, list[Record]] = {}
            for r in found:
                groups.setdefault(order(getattr(r, column)), []).append(r)
            found = [r for key in sorted(groups, reverse=True) for r in groups[key]]
    if not ties:
        return found[:n]
    places = [[order(getattr(r, c)) for c, _ in by] for r in found]
    return [r for r, place in zip(found, places, strict=True) if places.index(place) < n]


def chosen(records: list[Record], *columns: str) -> list[dict[str, Any]]:
    return [{c: getattr(r, c) for c in columns} for r in records]


def at_edge(column: str, last: bool) -> Oracle:
    def oracle(records: list[Record]) -> Any:
        found = sorted((r for r in records if getattr(r, column) is not None), key=lambda r: r.timestamp)
        return None if not found else getattr(found[-1 if last else 0], column)

    return oracle


def only(condition: Callable[[Record], Any], oracle: Oracle) -> Oracle:
    return lambda records: oracle([r for r in records if condition(r)])


def largest(column: str, descending: bool, select: Sequence[str] | str) -> Oracle:
    def oracle(records: list[Record]) -> Any:
        found = best(records, (column, descending))
        if not found:
            return None
        return getattr(found[0], select) if isinstance(select, str) else chosen(found, *select)[0]

    return oracle


ALL = ("n", "x", "paid", "word", "at")
POSITIVE = pl.col("n") > 0
positive = lambda r: r.n is not None and r.n > 0  # noqa: E731
CASES: dict[str, tuple[Aggregate, Oracle]] = {
    "count": (Count(), len),
    "count of values": (Count("word"), values("word", len, 0)),
    "count where": (Count(where=POSITIVE), only(positive, len)),
    "sum": (Sum("n"), values("n", sum)),
    "sum of floats": (Sum("x"), values("x", sum)),
    "sum of decimals": (Sum("paid"), values("paid", lambda v: sum(v, Decimal(0)))),
    "sum where": (Sum("paid", where=POSITIVE), only(positive, values("paid", lambda v: sum(v, Decimal(0))))),
    "sum of an expression": (Sum(pl.col("n") * 2 + 1), values("n", lambda v: sum(2 * n + 1 for n in v))),
    "min": (Min("n"), values("n", min)),
    "min of floats": (Min("x"), values("x", lambda v: min(v, key=order))),
    "max of floats": (Max("x"), values("x", lambda v: max(v, key=order))),
    "max of decimals": (Max("paid"), values("paid", max)),
    "min of texts": (Min("word"), values("word", min)),
    "max of texts": (
        Max(pl.col("word").str.to_uppercase()),
        values("word", lambda v: max(w.upper() for w in v)),
    ),
    "max of times": (Max("at"), values("at", max)),
    "avg": (Avg("n"), values("n", lambda v: sum(v) / len(v))),
    "avg of decimals": (Avg("paid"), values("paid", mean_of_decimals)),
    "first": (First("word"), at_edge("word", last=False)),
    "last": (Last("n"), at_edge("n", last=True)),
    "last where": (Last("word", where=POSITIVE), only(positive, at_edge("word", last=True))),
    "count distinct": (CountDistinct("word"), values("word", lambda v: len(set(v)), 0)),
    "count distinct of floats": (CountDistinct("x"), values("x", lambda v: len(set(map(order, v))), 0)),
    "top n": (TopN(2, "x", ("n", "word")), lambda r: chosen(best(r, ("x", True), n=2), "n", "word")),
    "top n of texts": (TopN(2, "word", largest=False), lambda r: chosen(best(r, ("word", False), n=2), *ALL)),
    "top n by several": (
        TopN(2, [("word", "desc"), ("x", "asc")], "n"),
        lambda r: chosen(best(r, ("word", True), ("x", False), n=2), "n"),
    ),
    "top n with ties": (
        TopN(2, "n", "word", ties="all", where=POSITIVE),
        only(positive, lambda r: chosen(best(r, ("n", True), n=2, ties=True), "word")),
    ),
    "top n by several with ties": (
        TopN(1, [("word", "asc"), "n"], "n", ties="all"),
        lambda r: chosen(best(r, ("word", False), ("n", True), ties=True), "n"),
    ),
    "max by": (MaxBy("x", "word"), largest("x", True, "word")),
    "min by text": (MinBy("word", ("n", "at")), largest("word", False, ("n", "at"))),
    "max by decimals": (MaxBy("paid"), largest("paid", True, ALL)),
    "min by expression": (MinBy(-pl.col("n"), "n"), largest("n", True, "n")),
    "own": (Spread("n"), values("n", lambda v: max(v) - min(v))),
    "own with a start": (Words("word"), values("word", lambda v: sorted(set(v)), [])),
    "own where": (Words("word", POSITIVE), only(positive, values("word", lambda v: sorted(set(v)), []))),
}
every_aggregate = pytest.mark.parametrize(("aggregate", "oracle"), CASES.values(), ids=CASES)


@st.composite
def drawn_records(draw: st.DrawFn) -> list[Record]:
    record = st.builds(
        Record,
        st.integers(0, GROUPS - 1),
        st.integers(-3, 3),
        st.none() | st.integers(-3, 3),
        st.none() | st.sampled_from([0.0, -1.0, 2.0, math.nan]),
        st.none() | st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2)),
        st.none() | st.sampled_from(["", "a", "ä", "z", "\U0001f600", "\ufffd"]),
        st.none() | st.datetimes().map(lambda t: t.replace(microsecond=0, fold=0)),
    )
    return draw(st.lists(record, max_size=20))


class Computed:
    """One aggregate by columns and by rows."""

    def __init__(self, aggregate: Aggregate) -> None:
        self.inputs = AggregateInputs([aggregate], RECORD_TYPE)
        (self.kernel,) = self.inputs.kernels
        self.aggregates = WindowAggregates([self.kernel])
        self.rows = RowAggregates([("result", self.kernel)])

    def partial(self, records: list[Record]) -> tuple[Any, list[Any]]:
        """The groups that occur, and their partial results."""
        groups = Groups(np.array([r.group for r in records], np.int64), GROUPS)
        times = np.array([r.timestamp for r in records], np.int64)
        columns = self.aggregates.partial(groups, self.inputs.columns(batch_of(records).columns), times)
        return groups.present, columns

    def merged(self, *parts: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        groups = Groups(np.concatenate([codes for codes, _ in parts]), GROUPS)
        columns = [concat([c[i] for _, c in parts]) for i in range(len(self.aggregates.schema))]
        return groups.present, self.aggregates.merge(groups, columns)

    def results(self, part: tuple[Any, list[Any]]) -> dict[int, Any]:
        codes, columns = part
        (array,) = self.aggregates.results(columns)
        assert array.type == self.kernel.result_type
        assert self.kernel.nullable or not array.null_count
        return dict(zip(codes.tolist(), array.to_pylist(), strict=True))

    def kept(self, records: list[Record]) -> dict[int, Any]:
        """What is kept of each group, record by record."""
        found: dict[int, Any] = {}
        for record, value in zip(
            records, zip(*self.inputs.rows(batch_of(records)), strict=True), strict=True
        ):
            kept = found.setdefault(record.group, self.rows.start())
            self.rows.add(kept, value, record.timestamp)
        return found

    def row_results(self, kept: dict[int, Any]) -> dict[int, Any]:
        return {group: self.rows.result(each)[0] for group, each in kept.items()}


def batch_of(records: list[Record]) -> Batch:
    columns = [pa.array([getattr(r, f.name) for r in records], f.type) for f in RECORD_TYPE.schema]
    return Batch(RECORD_TYPE, columns=pa.RecordBatch.from_arrays(columns, schema=RECORD_TYPE.schema))


def expected(oracle: Oracle, records: list[Record]) -> dict[int, Any]:
    groups = sorted({r.group for r in records})
    return {group: oracle([r for r in records if r.group == group]) for group in groups}


def shown(results: dict[int, Any]) -> list[str]:
    """Comparable: all NaN are one, and 0.0 is -0.0."""
    return [repr(r).replace("-0.0", "0.0") for r in sorted(results.items())]


@every_aggregate
@settings(max_examples=30, deadline=None)
@given(records=drawn_records(), cuts=st.tuples(st.integers(0, 20), st.integers(0, 20)))
def test_columns_rows_and_merges_at_any_split_give_what_the_oracle_gives(
    aggregate: Aggregate, oracle: Oracle, records: list[Record], cuts: tuple[int, int]
) -> None:
    computed, wanted = Computed(aggregate), shown(expected(oracle, records))
    assert shown(computed.results(computed.partial(records))) == wanted
    assert shown(computed.row_results(computed.kept(records))) == wanted

    low, high = sorted(cuts)
    parts = [records[:low], records[low:high], records[high:]]
    a, b, c = (computed.partial(part) for part in parts)
    left = computed.merged(computed.merged(a, b), c)
    right = computed.merged(a, computed.merged(b, c))
    assert shown(computed.results(left)) == wanted
    assert shown(computed.results(right)) == wanted
    assert shown(computed.results(computed.merged(a, b, c))) == wanted

    rows, start = computed.rows, computed.rows.start
    for merge in (
        lambda x, y, z: rows.merge(rows.merge(x, y), z),
        lambda x, y, z: rows.merge(x, rows.merge(y, z)),
    ):
        kept = [computed.kept(part) for part in parts]  # a merge may change what it is given
        merged = {
            group: merge(*(k.get(group, start()) for k in kept)) for group in {g for k in kept for g in k}
        }
        assert shown(computed.row_results(merged)) == wanted


@every_aggregate
@settings(max_examples=10, deadline=None)
@given(records=drawn_records())
def test_what_is_kept_survives_files_and_state(
    aggregate: Aggregate, oracle: Oracle, records: list[Record]
) -> None:
    computed, wanted = Computed(aggregate), shown(expected(oracle, records))
    codes, columns = computed.partial(records)
    arrays = computed.aggregates.to_arrow(columns)
    assert [a.type for a in arrays] == computed.aggregates.schema.types
    stored = pa.RecordBatch.from_arrays(arrays, schema=computed.aggregates.schema)
    back = computed.aggregates.from_arrow(through_a_file(stored).columns)
    assert shown(computed.results((codes, back))) == wanted

    kept = computed.kept(records)
    rows = [computed.rows.dump(each) for each in kept.values()]
    table = computed.rows.stored_type.to_columns(rows)
    again = RowType(table.schema).to_rows(through_a_file(table)) if rows else []
    loaded = dict(zip(kept, map(computed.rows.load, again), strict=True))
    assert shown(computed.row_results(loaded)) == wanted


def through_a_file(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    table = pa.ipc.open_stream(sink.getvalue()).read_all().combine_chunks()
    return table.to_batches()[0] if table.num_rows else batch.slice(0, 0)


@every_aggregate
def test_no_records_and_only_none_are_as_the_oracle_has_them(aggregate: Aggregate, oracle: Oracle) -> None:
    computed = Computed(aggregate)
    assert computed.results(computed.partial([])) == {}
    empty = [Record(1, 0, None, None, None, None, None)] * 2
    assert computed.results(computed.partial(empty)) == {1: oracle(empty)}
    assert computed.row_results(computed.kept(empty)) == {1: oracle(empty)}


@every_aggregate
def test_a_declaration_crosses_the_wire_and_says_who_it_is(aggregate: Aggregate, oracle: Oracle) -> None:
    again = pickle.loads(pickle.dumps(aggregate))
    assert again.identity() == aggregate.identity()
    assert again.describe() == aggregate.describe()
    assert again.default_output() == aggregate.default_output()
    one, other = kernel_of(aggregate, RECORD_TYPE), kernel_of(again, RECORD_TYPE)
    assert (one.partial, one.stored, one.result_type) == (other.partial, other.stored, other.result_type)


IDENTITIES: list[tuple[Aggregate, tuple[Any, ...], list[str]]] = [
    (Count(), ("count",), []),
    (Count("n"), ("count", "n"), ["count"]),
    (Sum("n"), ("sum", "n"), ["sum", "seen"]),
    (Sum("paid"), ("sum", "paid"), ["sum", "seen"]),
    (Min("x"), ("min", "x"), ["min", "seen"]),
    (Max("word"), ("max", "word"), ["max"]),
    (Avg("n"), ("avg", "n"), ["sum", "count"]),
    (First("word"), ("first", "word"), ["time", "first"]),
    (Last("word"), ("last", "word"), ["time", "last"]),
    (CountDistinct("n"), ("count_distinct", "n"), ["values"]),
    (TopN(3, "n"), ("top_n", 3, (("n", "desc"),), None, "first"), ["best"]),
    (MaxBy("n", "word"), ("max_by", "n", "word"), ["time", "by", "value"]),
    (MinBy("n", "word"), ("min_by", "n", "word"), ["time", "by", "value"]),
    (Spread("n"), ("spread", "n"), ["low", "high"]),
]


@pytest.mark.parametrize(("aggregate", "identity", "fields"), IDENTITIES)
def test_identities_and_the_names_of_what_is_kept_stay(
    aggregate: Aggregate, identity: tuple[Any, ...], fields: list[str]
) -> None:
    assert aggregate.identity() == identity
    assert [f.name for f in kernel_of(aggregate, RECORD_TYPE).partial] == fields


def test_a_condition_is_part_of_the_identity() -> None:
    assert Count(where=POSITIVE).identity() != Count().identity()
    assert Count(where=POSITIVE).identity() != Count(where=pl.col("n") > 1).identity()
    assert TopN(2, "n", where=POSITIVE).identity() != TopN(2, "n").identity()


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Sum(pl.col("n").cum_sum()), "is not computed from one record alone"),
        (lambda: Count(where=pl.col("n") > pl.col("n").mean()), "is not computed from one record alone"),
        (lambda: Count(where=pl.col("n") + 1), "does not fit"),
        (lambda: Count(where="n > 1"), "takes a polars expression"),
        (lambda: Sum(pl.all()), "several columns"),
        (lambda: Sum(3), "needs the name of one column"),
        (lambda: Sum("word"), "must be an integer, a float or a decimal128"),
        (lambda: Sum(pl.col("nothing") + 1), "nothing"),
        (lambda: TopN(2, [("n", "up")]), '"asc" or "desc"'),
        (lambda: TopN(2, []), "at least one column"),
        (lambda: TopN(2, "n", ties="some"), '"first" or "all"'),
        (lambda: MaxBy("n", ()), "at least one column"),
        (lambda: type("Half", (Aggregate,), {"kind": "half"})(), "does not define result_type"),
        (lambda: type("Nameless", (Aggregate,), {})(), "does not define kind"),
    ],
)
def test_what_cannot_be_is_refused_while_the_program_is_written(make: Callable[[], Any], part: str) -> None:
    with pytest.raises((ProgramError, SchemaError), match=part):
        kernel_of(make(), RECORD_TYPE)


def test_a_failure_in_a_users_own_names_it() -> None:
    class Broken(Spread):
        def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
            raise LookupError("no such thing")

    record = Record(0, 0, 1, None, None, None, None)
    with pytest.raises(AggregateError, match="the aggregate Broken failed: LookupError") as failed:
        Computed(Broken("n")).partial([record])
    assert isinstance(failed.value.__cause__, LookupError)


@every_aggregate
def test_only_a_users_own_runs_code_of_the_users(aggregate: Aggregate, oracle: Oracle) -> None:
    assert aggregate.runs_user_code == isinstance(aggregate, (Spread, Words))
