"""`keyed.aggregate(...)` without a window: each record and per batch, across a restore, on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.state_backend_kit import MemoryStorage
from tests.contract.test_aggregates import Spread, Words
from tests.unit.operators_kit import next_attempt
from tidegate import (
    Avg,
    Count,
    CountDistinct,
    Environment,
    First,
    Last,
    Max,
    MaxBy,
    Min,
    MinBy,
    ProgramError,
    Sum,
    TopN,
)
from tidegate.aggregates.totals import Totals
from tidegate.operators.failures import OperatorError
from tidegate.program.operations import RollingAggregate
from tidegate.testing.harness import OperatorHarness


class Sale(NamedTuple):
    shop: str | None
    id: int
    price: int | None
    paid: Decimal | None
    buyer: str | None


SCHEMA = pa.schema(
    [
        ("shop", pa.string()),
        ("id", pa.int64()),
        ("price", pa.int64()),
        ("paid", pa.decimal128(12, 2)),
        ("buyer", pa.string()),
    ]
)
NUMBERS: dict[str, Any] = {
    "n": Count(),
    "prices": Count("price"),
    "dear": Count(where=pl.col("price") > 1),
    "revenue": Sum("price"),
    "double": Sum(pl.col("price") * 2),
    "paid": Sum("paid"),
    "low": Min("paid"),
    "high": Max("price", where=pl.col("buyer") == "a"),
    "mean": Avg("price"),
    "mean_paid": Avg("paid"),
}
ANY: dict[str, Any] = {
    "n": Count(),
    "paid": Sum("paid"),
    "first_buyer": Min("buyer"),
    "last_buyer": Max("buyer"),
    "best": MaxBy("price", "id"),
    "worst": MinBy("price", ("id", "buyer")),
    "earliest": First("buyer"),
    "latest": Last("buyer"),
    "buyers": CountDistinct("buyer"),
    "top": TopN(2, [("price", "desc"), ("buyer", "asc")], "id"),
    "ties": TopN(1, "price", "id", ties="all"),
    "spread": Spread("price"),
    "words": Words("buyer", pl.col("price") > 0),
}


def order(sale: Sale, *columns: str) -> Any:
    return tuple(getattr(sale, c) for c in columns)


def numbers_of(sales: list[Sale]) -> dict[str, Any]:
    prices = [s.price for s in sales if s.price is not None]
    paid = [s.paid for s in sales if s.paid is not None]
    high = [s.price for s in sales if s.price is not None and s.buyer == "a"]
    mean = sum(paid, Decimal(0)) / len(paid) if paid else None
    return {
        "n": len(sales),
        "prices": len(prices),
        "dear": sum(p > 1 for p in prices),
        "revenue": sum(prices) if prices else None,
        "double": 2 * sum(prices) if prices else None,
        "paid": sum(paid, Decimal(0)) if paid else None,
        "low": min(paid, default=None),
        "high": max(high, default=None),
        "mean": sum(prices) / len(prices) if prices else None,
        "mean_paid": None if mean is None else mean.quantize(Decimal("0.000001"), "ROUND_HALF_UP"),
    }


def any_of(sales: list[Sale]) -> dict[str, Any]:
    """Records come in order, and have no timestamps."""
    priced = [s for s in sales if s.price is not None]
    buyers = [s.buyer for s in sales if s.buyer is not None]
    paid = [s.paid for s in sales if s.paid is not None]
    ranked = sorted((s for s in priced if s.buyer is not None), key=lambda s: (-(s.price or 0), s.buyer))
    prices = [s.price or 0 for s in priced]
    worst = min(priced, key=lambda s: s.price or 0, default=None)
    return {
        "n": len(sales),
        "paid": sum(paid, Decimal(0)) if paid else None,
        "first_buyer": min(buyers, default=None),
        "last_buyer": max(buyers, default=None),
        "best": max(priced, key=lambda s: s.price or 0).id if priced else None,
        "worst": None if worst is None else {"id": worst.id, "buyer": worst.buyer},
        "earliest": buyers[0] if buyers else None,
        "latest": buyers[-1] if buyers else None,
        "buyers": len(set(buyers)),
        "top": [{"id": s.id} for s in ranked[:2]],
        "ties": [{"id": s.id} for s in priced if s.price == max(prices)],
        "spread": max(prices) - min(prices) if prices else None,
        "words": sorted({s.buyer for s in priced if s.buyer is not None and (s.price or 0) > 0}),
    }


CASES = {"numbers": (NUMBERS, numbers_of), "any": (ANY, any_of)}
sales = st.lists(
    st.builds(
        Sale,
        st.sampled_from(["n", "s", None]),
        st.integers(0, 99),
        st.none() | st.integers(-3, 3),
        st.none() | st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2)),
        st.none() | st.sampled_from(["a", "b", "é"]),
    ),
    min_size=1,
    max_size=12,
)


def running(backend: str, emit: Any, aggregates: dict[str, Any], key: Any = "shop") -> Any:
    env = Environment(state_backend=backend, checkpoint_interval="1s")
    keyed = env.from_collection([], type=SCHEMA).key_by(key)
    return keyed.aggregate(emit=emit, **aggregates)


class Job:
    """One running operator, behind its local stage where it has one; it may crash between two batches."""

    def __init__(self, made: Any) -> None:
        self._made, self._storage, self._checkpoint = made, MemoryStorage(), 0
        node = made._node.inputs[0][0].upstream
        self._local: OperatorHarness | None = None
        if isinstance(node.operation, RollingAggregate):
            self._local = OperatorHarness(node.operation, [SCHEMA], node.output_type)
            self._local.operator.open()
        self._harness = OperatorHarness.of(made, options=made._env.options)
        self._harness.operator.open()

    def push(self, records: list[Sale]) -> list[dict[str, Any]]:
        self._harness.batches.clear()
        if self._local is None:
            self._harness.push(records)
        else:
            self._local.batches.clear()
            self._local.push(records)
            for batch in self._local.batches:
                self._harness.push_batch(batch)
        return [row._asdict() for row in self._harness.rows]

    def crash(self) -> None:
        self._checkpoint += 1
        self._harness = next_attempt(self._made, self._harness, self._storage, self._checkpoint)


def expected(batches: list[list[Sale]], oracle: Any, emit: str) -> Iterator[list[dict[str, Any]]]:
    seen: dict[str | None, list[Sale]] = {}
    for batch in batches:
        found = []
        for sale in batch:
            seen.setdefault(sale.shop, []).append(sale)
            found.append({"shop": sale.shop, **oracle(seen[sale.shop])})
        if emit == "batch":
            found = list({row["shop"]: row for row in found}.values())
        yield found


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("emit", ["each", "batch"])
@pytest.mark.parametrize(("aggregates", "oracle"), CASES.values(), ids=CASES)
@settings(max_examples=12, deadline=None)
@given(batches=st.lists(sales, min_size=1, max_size=4), crashes=st.sets(st.integers(0, 3)))
def test_running_results_are_exact_also_after_a_recovery(
    backend: str, emit: str, aggregates: Any, oracle: Any, batches: list[list[Sale]], crashes: set[int]
) -> None:
    job = Job(running(backend, emit, aggregates))
    for i, (batch, wanted) in enumerate(zip(batches, expected(batches, oracle, emit), strict=True)):
        assert sorted(map(repr, job.push(batch))) == sorted(map(repr, wanted))
        if i in crashes:
            job.crash()


@pytest.mark.parametrize("aggregates", [NUMBERS, ANY], ids=["numbers", "any"])
def test_keys_of_a_function_are_the_same(aggregates: dict[str, Any]) -> None:
    batch = [Sale("n", 1, 2, None, "a"), Sale("s", 2, 3, None, "b"), Sale("n", 3, 1, None, None)]
    by_column = Job(running("heap", "each", aggregates)).push(batch)

    def shop(sale: Any) -> str:
        return str(sale.shop)

    by_function = Job(running("heap", "each", aggregates, shop)).push(batch)
    assert [{"shop": row.pop("key"), **row} for row in by_function] == by_column


def test_keys_without_a_type_give_tuples() -> None:
    env = Environment()
    keyed = env.from_collection([], type=SCHEMA).key_by(lambda sale: sale.shop)
    made = keyed.aggregate(n=Count(), best=MaxBy("price", "id"))
    with OperatorHarness.of(made) as h:
        h.push([Sale("n", 7, 2, None, None), Sale("n", 8, 1, None, None), Sale("s", 9, None, None, None)])
        assert h.rows == [("n", 1, 7), ("n", 2, 7), ("s", 1, None)]


def test_records_with_times_are_first_and_last_by_these() -> None:
    made = running("heap", "each", {"first": First("id"), "last": Last("id"), "best": MaxBy("price", "id")})
    with OperatorHarness.of(made) as h:
        h.push([Sale("n", i, 5, None, None) for i in (1, 2, 3)], timestamps=[5, 9, 2])
        assert [tuple(row)[1:] for row in h.rows] == [(1, 1, 1), (1, 2, 1), (3, 2, 3)]


def test_max_by_and_min_by_are_methods() -> None:
    keyed = Environment().from_collection([], type=SCHEMA).key_by("shop")
    for made, wanted in (
        (keyed.max_by("price", "id"), ("n", 2)),
        (keyed.min_by("price", ("id", "buyer"), output="worst"), ("n", {"id": 1, "buyer": "a"})),
    ):
        with OperatorHarness.of(made) as h:
            h.push([Sale("n", 1, 2, None, "a"), Sale("n", 2, 3, None, "b")])
            assert tuple(h.rows[-1]) == wanted
    assert keyed.max_by("price", "id").record_type.names == ["shop", "max_by_price"]


def test_only_numbers_are_aggregated_before_the_exchange() -> None:
    numbers, anything = running("heap", "batch", NUMBERS), running("heap", "batch", ANY)
    assert numbers._node.operation.stage == "merge"
    assert anything._node.operation.stage == "whole"


def test_a_sum_of_several_that_overflows_names_itself_and_the_key() -> None:
    made = running("heap", "each", {"n": Count(), "revenue": Sum("price")})
    with OperatorHarness.of(made) as h, pytest.raises(OperatorError) as failed:
        h.push([Sale("n", 1, (1 << 63) - 1, None, None), Sale("n", 2, 1, None, None)])
    assert "sum('price') of key 'n'" in str(failed.value.__cause__)


def test_a_users_own_that_fails_is_blamed_with_its_record() -> None:
    class Broken(Spread):
        def add(self, kept: Any, value: Any, timestamp_ms: int) -> Any:
            return super().add(kept, 6 // value, timestamp_ms)

    with OperatorHarness.of(running("heap", "each", {"n": Broken("price")})) as h:
        with pytest.raises(OperatorError, match="id=2") as failed:
            h.push([Sale("n", 1, 1, None, None), Sale("n", 2, 0, None, None)])
        assert isinstance(failed.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("aggregates", "part"),
    [
        ({}, "takes aggregates by name"),
        ({"n": Count}, "got the class"),
        ({"shop": Count()}, "has the name of a key column"),
        ({"n": Sum("buyer")}, "must be an integer"),
    ],
)
def test_misuse_is_refused_while_the_program_is_written(aggregates: dict[str, Any], part: str) -> None:
    with pytest.raises(ProgramError, match=part):
        running("heap", "each", aggregates)


def test_totals_that_lack_a_method_are_refused_when_they_are_made():
    class Half(Totals):
        def each(self, rows: Any, arrays: Any, values: Any) -> Any:
            return None

    with pytest.raises(TypeError, match="latest"):
        Half()  # type: ignore[abstract]
