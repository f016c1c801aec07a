"""Record types: what goes in comes out of exchanges and processes as it was, of every type and size."""

# ruff: noqa: DTZ001 - times without a zone are one of the types
from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pytest

from tests.spark.kit import RUNTIMES, SEEDS, also_on_spark, bag, by_key, collected, in_process
from tidegate import DataStream, Environment


@pytest.fixture(params=RUNTIMES)
def env(request: pytest.FixtureRequest, env_of: Callable[..., Environment]) -> Environment:
    """An environment of parallelism 2; the batches are small, so that a job has many."""
    return env_of(request.param, batch_rows=16)


def double(n: int) -> int:
    return 2 * n


@dataclass
class Money:
    amount: decimal.Decimal
    currency: str = "EUR"


class Point(NamedTuple):
    x: int
    y: float | None = None


@dataclass(frozen=True)
class Order:
    id: int
    customer: str | None
    lines: list[Money]
    at: dt.datetime
    spot: Point
    extra: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclass(kw_only=True)
class Named:
    name: str
    number: int = 3


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Plain:
    """No schema: travels as a pickle."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.value == self.value

    def __hash__(self) -> int:
        return hash(repr(self.value))


def orders(n: int) -> list[Order]:
    when = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)
    return [
        Order(
            i,
            None if i % 3 == 0 else f"customer {i} ☃",
            [Money(decimal.Decimal(f"{i}.5")) for _ in range(i % 4)],
            when + dt.timedelta(microseconds=i),
            Point(i, None if i % 2 else i / 8),
            {"a": i} if i % 2 else {},
        )
        for i in range(n)
    ]


RECORDS: dict[str, tuple[list[Any], Any]] = {
    "int": ([*range(-5, 20), 2**63 - 1, -(2**63)], int),
    "float": ([0.5, -1.0, 1e300, float("inf"), 3.0], float),
    "text": (["", "a", "Straße ☃ 😀", "line\nbreak", "\x00"], str),
    "bytes": ([b"", b"\x00\xff", b"x" * 300], bytes),
    "bool": ([True, False, True], bool),
    "date": ([dt.date(1969, 12, 31), dt.date(2024, 2, 29)], dt.date),
    "datetime": ([dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4)], dt.datetime),
    "time": ([dt.time(0, 0), dt.time(23, 59, 59, 999999)], dt.time),
    "timedelta": ([dt.timedelta(days=-1), dt.timedelta(microseconds=1)], dt.timedelta),
    "decimal": (
        [decimal.Decimal("1.5"), decimal.Decimal("-12345678901234567890.000000000000000001")],
        decimal.Decimal,
    ),
    "optional int": ([1, None, 3, None], int | None),
    "zoned datetime": (
        [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
        Annotated[dt.datetime, pa.timestamp("us", "UTC")],
    ),
    "list": ([[1, 2], [], [3]], list[int]),
    "map": ([{"a": 1}, {}, {"b": 2, "c": 3}], dict[str, int]),
    "tuple": ([(1, "a"), (2, "b"), (-3, "")], tuple[int, str]),
    "tuple, found": ([(1, "a", None), (2, "b", 0.5)], None),
    "NamedTuple": ([Point(i, i / 2 if i % 2 else None) for i in range(9)], Point),
    "dataclass, nested": (orders(20), Order),
    "dataclass by keyword": ([Named(name="a"), Named(name="b", number=4)], Named),
    "dataclass, found": ([Money(decimal.Decimal(3)), Money(decimal.Decimal("0.25"), "USD")], None),
    "objects of one class": ([Plain(i) for i in range(5)], None),
    "objects of many classes": (
        [1, "a", None, 2.5, (1, 2), {"k": [1]}, Color.RED, Point(1), Plain([1, {2}])],
        None,
    ),
    "set and frozenset": ([{1, 2}, frozenset("ab")], None),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_every_type_come_through_exchanges_as_they_were(kind):
    values, hint = RECORDS[kind]
    for seed in SEEDS:
        _check_records(in_process(seed, batch_rows=3), values, hint)


@pytest.mark.parametrize(
    "kind", ["dataclass, nested", "objects of many classes", "NamedTuple", "map", "optional int"]
)
def test_records_of_every_type_come_through_processes_as_they_were(make_process_env, kind):
    _check_records(make_process_env(batch_rows=3), *RECORDS[kind])


@pytest.mark.parametrize("kind", ["dataclass, nested", "objects of many classes"])
def test_records_come_through_spark_as_they_were(make_spark_env, kind):
    _check_records(make_spark_env(batch_rows=3), *RECORDS[kind])


def _check_records(env: Environment, values: list[Any], hint: Any) -> None:
    def same(value):  # the type of what goes in is that of what comes out
        return value

    stream = env.from_collection(values, type=hint)
    out = list(
        stream.rebalance()
        .map(same, returns=stream.record_type)
        .shuffle()
        .filter(lambda v: True)
        .execute_and_collect()
    )
    unseen = list(values)
    for record in out:
        unseen.remove(record)
    assert unseen == []
    assert bag(map(type, out)) == bag(map(type, values))


@also_on_spark
def test_rows_of_a_schema_are_read_by_name_attribute_and_position(env):
    def check(row: Any) -> bool:
        return bool(
            row.app == row["app"] == row[0] and row["a b"] == row[1] and row.as_dict()["app"] == row.app
        )

    schema = pa.schema([("app", pa.string()), ("a b", pa.int64())])
    rows = env.from_collection([("x", 1), ("y", 2)], type=schema)
    assert bag(map(tuple, collected(rows.rebalance().filter(check)))) == bag([("x", 1), ("y", 2)])


def test_functions_may_return_dicts_or_tuples_for_a_schema(env):
    schema = pa.schema([("n", pa.int64()), ("half", pa.float64())])
    by_name = env.from_sequence(1, 9).map(lambda n: {"n": n, "half": n / 2}, returns=schema)
    by_place = by_name.map(lambda r: (r.n, r.half), returns=schema)
    assert bag(map(tuple, collected(by_place))) == bag((n, n / 2) for n in range(1, 10))


def test_none_is_a_record_where_the_type_allows_it(env):
    def maybe(n: int) -> int | None:
        return None if n % 2 else n

    assert bag(collected(env.from_sequence(1, 10).map(maybe).rebalance().map(str))) == bag(
        [*["None"] * 5, "2", "4", "6", "8", "10"]
    )


def test_large_text_and_records_larger_than_a_buffer(env):
    texts = [chr(97 + i) * (1 << 20) for i in range(6)]
    stream = (
        env.from_collection(texts)
        .rebalance()
        .map(str.upper, returns=str)
        .shuffle()
        .map(lambda t: (t[0], len(t)))
    )
    assert bag(collected(stream)) == bag((chr(65 + i), 1 << 20) for i in range(6))


def test_records_larger_than_a_tiny_buffer():
    for seed in SEEDS:
        env = in_process(seed, buffer_size=64, buffers_per_channel=1, floating_buffers=0)
        texts = ["x" * n for n in (0, 63, 64, 65, 1000, 100_000)]
        assert bag(collected(env.from_collection(texts).rebalance().map(len, returns=int))) == bag(
            map(len, texts)
        )


@pytest.mark.parametrize(
    "options",
    [
        {"buffer_timeout": 0},
        {"buffer_timeout": "1 s"},
        {"buffer_size": 1},
        {"buffers_per_channel": 1, "floating_buffers": 0},
        {"batch_rows": 1},
        {"chaining": False},
    ],
    ids=str,
)
def test_no_setting_of_buffers_changes_the_result(options):
    build: Callable[[Environment], DataStream] = lambda env: (  # noqa: E731
        env.from_sequence(1, 300).rebalance().map(double).key_by(lambda n: n % 5, returns=int).count()
    )
    for seed in SEEDS:
        found = by_key(collected(build(in_process(seed, parallelism=3, **options))))
        assert found == {k: list(range(1, 61)) for k in range(5)}
