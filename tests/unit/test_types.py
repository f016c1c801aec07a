"""Record types: every supported hint gives back the rows that went in, and what does not fit is named."""

from __future__ import annotations

import datetime as dt
import enum
import math
import pickle
import string
import threading
import zoneinfo
from collections import namedtuple
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NewType

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.errors import SchemaError
from tidegate.records.batch import Batch, Origin
from tidegate.records.rows import row_class
from tidegate.records.types import (
    ObjectType,
    RowType,
    ScalarType,
    StructType,
    TupleType,
    infer_record_type,
    record_type_of,
)

UserId = NewType("UserId", int)


@dataclass(frozen=True)
class Point:
    x: int
    y: float


@dataclass
class Visit:
    user: str
    at: dt.datetime
    place: Point
    tags: list[str]
    scores: dict[str, float]
    path: list[Point]
    by_place: dict[Point, int]
    referrer: str | None = None
    parent: Point | None = None


class Pair(NamedTuple):
    left: int
    right: str | None


@dataclass(kw_only=True)
class Named:
    first: int
    second: str


@dataclass
class Tree:
    value: int
    children: list[Tree]


@dataclass
class Derived(Named):
    third: int = 0


@dataclass
class WithInitVar:
    a: int
    seed: InitVar[int]


Untyped = namedtuple("Untyped", ["a"])

int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=8)
floats = st.floats(allow_nan=False)
moments = st.datetimes()
decimals = st.decimals(-(10**15), 10**15, places=6)
points = st.builds(Point, int64, floats)
SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, int64),
    (float, floats),
    (str, text),
    (bytes, st.binary(max_size=8)),
    (dt.datetime, moments),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas(dt.timedelta(days=-(10**6)), dt.timedelta(days=10**6))),
    (Decimal, decimals),
    (UserId, int64),
    (Annotated[int, pa.int16()], st.integers(-(2**15), 2**15 - 1)),
    (Annotated[dt.datetime, pa.timestamp("us", "UTC")], st.datetimes(timezones=st.just(dt.UTC))),
]
NESTED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (list[int], st.lists(int64, max_size=4)),
    (list[str | None], st.lists(st.none() | text, max_size=4)),
    (list[list[float]], st.lists(st.lists(floats, max_size=3), max_size=3)),
    (dict[str, int], st.dictionaries(text, int64, max_size=4)),
    (dict[int, list[str] | None], st.dictionaries(int64, st.none() | st.lists(text, max_size=2), max_size=3)),
    (list[Point], st.lists(points, max_size=3)),
    (list[Point | None], st.lists(st.none() | points, max_size=3)),
    (dict[Point, Pair], st.dictionaries(points, st.builds(Pair, int64, st.none() | text), max_size=2)),
    (list[tuple[int, str | None]], st.lists(st.tuples(int64, st.none() | text), max_size=3)),
    (
        dict[str, tuple[Point, list[int]]],
        st.dictionaries(text, st.tuples(points, st.lists(int64)), max_size=2),
    ),
]
VISITS = st.builds(
    Visit,
    text,
    moments,
    points,
    st.lists(text, max_size=3),
    st.dictionaries(text, floats, max_size=3),
    st.lists(points, max_size=2),
    st.dictionaries(points, int64, max_size=2),
    st.none() | text,
    st.none() | points,
)
STRUCTS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Point, points),
    (Pair, st.builds(Pair, int64, st.none() | text)),
    (Named, st.builds(Named, first=int64, second=text)),
    (Visit, VISITS),
    (tuple[int, str], st.tuples(int64, text)),
    (tuple[float | None, Point], st.tuples(st.none() | floats, points)),
    (tuple[int, tuple[str, Point | None]], st.tuples(int64, st.tuples(text, st.none() | points))),
    (tuple[int, str] | None, st.none() | st.tuples(int64, text)),
    (Point | None, st.none() | points),
]


def round_trip(hint: Any, rows: list[Any]) -> list[Any]:
    record_type = record_type_of(hint)
    assert not record_type.is_object
    record_type.check_rows(rows)
    columns = record_type.to_columns(rows)
    assert columns.schema.equals(record_type.schema)
    columns.validate(full=True)
    return record_type.to_rows(columns)


@pytest.mark.parametrize(("hint", "values"), SCALARS + NESTED + STRUCTS, ids=lambda p: str(p)[:40])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_rows_become_columns_and_the_same_rows_again(
    hint: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(values, max_size=6))
    assert round_trip(hint, rows) == rows


@pytest.mark.parametrize(("hint", "values"), SCALARS + NESTED, ids=lambda p: str(p)[:40])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_optional_values_keep_their_nones(
    hint: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.none() | values, max_size=6))
    assert round_trip(hint | None, rows) == rows


def test_a_record_type_chooses_the_column_names() -> None:
    assert record_type_of(int).names == ["value"]
    assert record_type_of(tuple[int, str]).names == ["f0", "f1"]
    assert record_type_of(Pair).names == ["left", "right"]
    assert record_type_of(pa.schema([("a", pa.int8())])).names == ["a"]
    assert record_type_of(None).names == ["object"]


@pytest.mark.parametrize(
    ("hint", "description"),
    [
        (int, "int"),
        (int | None, "int | None"),
        (list[int], "list<item: int64 not null>"),
        (pa.int8(), "int8 | None"),
        (Pair, "Pair(left: int64, right: string?)"),
        (tuple[int, str | None], "tuple(int64, string?)"),
        (pa.schema([("a", pa.int8())]), "Row(a: int8?)"),
        (set[int], "object (pickled)"),
    ],
)
def test_a_record_type_describes_itself(hint: Any, description: str) -> None:
    record_type = record_type_of(hint)
    assert record_type.describe() == description
    assert repr(record_type) == f"<{description}>"


@pytest.mark.parametrize(
    "hint",
    [set[int], complex, Any, object, tuple[int, ...], list[set[int]], Tree, Untyped, WithInitVar, int | str],
    ids=str,
)
def test_types_that_arrow_does_not_know_travel_as_objects(hint: Any) -> None:
    assert isinstance(record_type_of(hint), ObjectType)


@pytest.mark.parametrize(
    ("hint", "row", "message"),
    [
        (int, "x", "column 'value' is int64 but got a str: 'x'"),
        (int, 2**63, f"column 'value' is int64 but got an int: {2**63}"),
        (int, 1.5, "column 'value' is int64 but got a float: 1.5"),
        (int, True, "column 'value' is int64 but got a bool: True"),
        (float, "1.5", "column 'value' is double but got a str"),
        (float, 2**70, "column 'value' is double but got an int"),
        (str, b"x", "column 'value' is string but got a bytes: b'x'"),
        (str, "\ud800", "column 'value' is string but got a str"),
        (bytes, "x", "column 'value' is binary but got a str: 'x'"),
        (bool, 1, "column 'value' is bool but got an int: 1"),
        (dt.date, dt.datetime(2026, 1, 1), "column 'value' is date32[day] but got a datetime"),  # noqa: DTZ001
        (dt.datetime, dt.date(2026, 1, 1), "column 'value' is timestamp[us] but got a date"),
        (dt.datetime, 5, "column 'value' is timestamp[us] but got an int: 5"),
        (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "without a time zone"),
        (Annotated[dt.datetime, pa.timestamp("us", "UTC")], dt.datetime(2026, 1, 1), "with a time zone"),  # noqa: DTZ001
        (dt.time, dt.time(1, tzinfo=dt.UTC), "without a time zone"),
        (Decimal, Decimal("1e-30"), "column 'value' is decimal128(38, 18) but got a Decimal"),
        (Annotated[int, pa.int8()], 300, "column 'value' is int8 but got an int: 300"),
        (Point, Point("a", 1.0), "column 'x' is int64 but got a str: 'a'"),
        (Point, Point(1.5, 1.0), "column 'x' is int64 but got a float: 1.5"),
        (Point, Pair(1, "a"), "expected Point(x: int64, y: double) but got a Pair"),
        (Pair, (1, "a"), "expected Pair(left: int64, right: string?) but got a tuple"),
        (Named, Derived(first=1, second="", third=3), "but got a Derived"),
        (tuple[int, str], (1, 2), "column 'f1' is string but got an int: 2"),
        (tuple[int, str], (1,), "but got a tuple of length 1: (1,)"),
        (tuple[int, str], [1, "a"], "but got a list: [1, 'a']"),
        (list[int], [1, 1.5], "column 'value item' is int64 but got a float: 1.5"),
        (list[int], "12", "but got a str: '12'"),
        (list[Point], [1], "but got a list: [1]"),
        (dict[str, int], {"a": "b"}, "column 'value value' is int64 but got a str: 'b'"),
        (dict[str, int], {1: 1}, "column 'value key' is string but got an int: 1"),
        (dict[str, int], [1], "but got a list: [1]"),
        (tuple[Point], (Point("a", 1.0),), "column 'f0.x' is int64 but got a str: 'a'"),
        (list[tuple[int, str]], [(1, "a", 2)], "but got a list: [(1, 'a', 2)]"),
        (list[tuple[int, str]], [[1, "a"]], "but got a list: [[1, 'a']]"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_column(hint: Any, row: Any, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        record_type_of(hint).to_columns([row])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "row", "column"),
    [
        (int, None, "'value'"),
        (Point, Point(None, 1.0), "'x'"),
        (tuple[int, str], (1, None), "'f1'"),
        (list[int], [None], "'value item'"),
        (dict[str, int], {"a": None}, "'value value'"),
        (dict[str, int], {None: 1}, "'value key'"),
        (list[Point], [Point(1, None)], "'value item.y'"),
        (list[Point], [None], "'value item'"),
    ],
)
def test_none_is_refused_where_it_is_not_declared(hint: Any, row: Any, column: str) -> None:
    with pytest.raises(SchemaError, match=f"column {column} is .* without None, but got None"):
        record_type_of(hint).to_columns([row])


def test_numbers_of_numpy_fit_where_their_python_twins_do() -> None:
    rows = [Point(np.int64(1), np.float32(0.5)), Point(np.int8(2), np.int64(3))]
    assert round_trip(Point, rows) == [Point(1, 0.5), Point(2, 3.0)]


@pytest.mark.parametrize(
    ("hint", "rows", "message"),
    [
        (int, [1, "a"], "expected int but got a str: 'a'"),
        (int, [True], "expected int but got a bool: True"),
        (int, [None], "expected int but got a NoneType: None"),
        (str, [b""], "expected str but got a bytes"),
        (Point, [None], "but got a NoneType"),
    ],
)
def test_rows_are_checked_by_class_without_conversion(hint: Any, rows: list[Any], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        record_type_of(hint).check_rows(rows)
    assert message in str(caught.value)


def test_an_int_passes_where_a_float_is_declared_and_none_where_it_is_optional() -> None:
    record_type_of(float).check_rows([1, 2.5])
    record_type_of(int | None).check_rows([1, None])


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("hint", "values", "expected"),
    [
        (int, [1, -(2**63), 2**63 - 1], [1, -(2**63), 2**63 - 1]),
        (int, [1, Level.LOW], [1, 1]),
        (float, [0.5, math.inf, -0.0], [0.5, math.inf, -0.0]),
        (float, [0.5, 2], [0.5, 2.0]),
        (int | None, [1, None], [1, None]),
        (int, [], []),
    ],
)
def test_numbers_of_the_very_class_and_others_make_the_same_column(
    hint: Any, values: list[Any], expected: list[Any]
) -> None:
    record_type = record_type_of(hint)
    columns = record_type.to_columns(values)
    assert columns.schema.equals(record_type.schema)
    assert columns.column(0).to_pylist() == expected
    assert [type(v) for v in record_type.to_rows(columns)] == [type(v) for v in expected]


@pytest.mark.parametrize(
    ("hint", "values"), [(int, [1, True]), (int, [1, 2.0]), (int, [1, 2**63]), (float, [0.5, "1"])]
)
def test_a_number_that_would_come_back_as_another_is_refused_among_others_that_fit(
    hint: Any, values: list[Any]
) -> None:
    with pytest.raises(SchemaError, match=f"column 'value'.*{values[1]}"):
        record_type_of(hint).to_columns(values)


@pytest.mark.parametrize("rows", [[(1, 2), (1,), (1, 2, 3)], [(1,), (2,)], [(1, 2), [1, 2]]])
def test_tuples_of_another_length_or_class_do_not_become_columns(rows: list[Any]) -> None:
    with pytest.raises(SchemaError, match=r"expected (a )?tuple\(int64, int64\)"):
        record_type_of(tuple[int, int]).to_columns(rows)


def test_rows_of_a_schema_are_read_by_attribute_by_name_and_by_position() -> None:
    record_type = record_type_of(
        pa.schema([("app", pa.string()), ("count", pa.int64()), ("a b", pa.int64())])
    )
    (row,) = record_type.to_rows(record_type.to_columns([("x", 3, 4)]))
    assert (row.app, row["count"], row[2], row["a b"]) == ("x", 3, 4, 4)
    assert row.as_dict() == {"app": "x", "count": 3, "a b": 4}
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(KeyError, match="no column 'b'; the row has app, count, a b"):
        row["b"]


def test_a_row_shows_times_as_people_write_them() -> None:
    hour = dt.datetime(2026, 3, 29, 12, tzinfo=dt.UTC)
    berlin = hour.astimezone(zoneinfo.ZoneInfo("Europe/Berlin"))
    row = row_class(("start", "there", "naive", "day", "n"))(
        hour.replace(microsecond=500_000), berlin, hour.replace(tzinfo=None), hour.date(), "a"
    )
    assert repr(row) == (
        "Row(start=2026-03-29 12:00:00.500Z, there=2026-03-29 14:00:00+02:00, naive=2026-03-29 12:00:00, "
        "day=2026-03-29, n='a')"
    )


def test_rows_of_a_schema_are_made_from_tuples_or_from_dicts() -> None:
    record_type = record_type_of(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    expected = [(1, "x"), (2, None)]
    assert record_type.to_rows(record_type.to_columns([(1, "x"), (2, None)])) == expected
    assert record_type.to_rows(record_type.to_columns([{"a": 1, "b": "x"}, {"a": 2}])) == expected
    for rows, message in [
        ([(1,)], "got 1 fields"),
        ([{"c": 1}], "unknown fields c"),
        ([(1, "x"), {"a": 1}], "got a dict"),
        ([5], "got an int: 5"),
    ]:
        with pytest.raises(SchemaError, match=message):
            record_type.to_columns(rows)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(SchemaError, match="column names must differ, got a, a"):
        RowType(pa.schema([("a", pa.int64()), ("a", pa.int64())]))


def test_an_unknown_column_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SchemaError, match="key_by names column 'z', but the records have x, y"):
        record_type_of(Point).field_index("z", "key_by")
    clicks = RowType(pa.schema([("app_id", pa.string()), ("ts", pa.int64())]))
    with pytest.raises(SchemaError, match=r"have app_id, ts\. Did you mean 'app_id'\?"):
        clicks.field_index("appid", "key_by")


def test_dictionary_encoded_columns_give_the_same_rows_and_decode_to_the_declared_type() -> None:
    record_type = record_type_of(pa.schema([("app", pa.string())]))
    plain = record_type.to_columns([("a",), ("b",), ("a",)])
    encoded = pa.RecordBatch.from_arrays([plain.column(0).dictionary_encode()], names=["app"])
    assert record_type.to_rows(encoded) == record_type.to_rows(plain)
    assert record_type.plain(encoded).equals(plain)
    with_none = pa.RecordBatch.from_arrays([pa.array(["a", None]).dictionary_encode()], names=["app"])
    assert record_type.to_rows(with_none) == [("a",), (None,)]


class TestObjects:
    def test_any_python_object_travels(self) -> None:
        rows = [{1, 2}, object, 3 + 4j, None, {"a": [1]}]
        record_type = record_type_of(None)
        assert record_type.to_rows(record_type.to_columns(rows)) == rows

    def test_an_instance_of_a_class_that_no_module_knows_travels(self) -> None:
        local = type("OnlyHere", (), {"__module__": "__main__", "__eq__": lambda a, b: type(a) is type(b)})
        record_type = record_type_of(None)
        assert record_type.to_rows(record_type.to_columns([local(), 5])) == [local(), 5]

    def test_one_that_cannot_be_pickled_is_named(self) -> None:
        with pytest.raises(
            SchemaError, match=r"a lock cannot leave its process: .* Give the function a return"
        ):
            record_type_of(None).to_columns([1, threading.Lock()])

    def test_a_repr_that_raises_does_not_hide_the_error(self) -> None:
        class Rude:
            def __repr__(self) -> str:
                raise RuntimeError

            def __reduce__(self) -> Any:
                raise RuntimeError("no")

        with pytest.raises(SchemaError, match="<Rude whose repr raises RuntimeError>"):
            record_type_of(None).to_columns([Rude()])


class TestInference:
    @pytest.mark.parametrize(
        ("values", "description"),
        [
            ([1, 2], "int"),
            (["a"], "str"),
            ([Point(1, 2.0)], "Point(x: int64, y: double)"),
            ([1, None], "int | None"),
            ([None, "a", None], "str | None"),
            ([1, 2.5], "float"),
            ([2**53, None, 0.5], "float | None"),
            ([Decimal("1.5"), None], "Decimal | None"),
            ([dt.date(2026, 1, 1), None], "date | None"),
            ([(1, "a"), (2, None)], "tuple(int64, string?)"),
            ([(1, 2.5), (0.5, 3)], "tuple(double, double)"),
            ([{"a": 1}, {"a": 2, "b": "x"}], "Row(a: int64?, b: string?)"),
        ],
    )
    def test_values_of_one_known_class_get_a_schema(self, values: list[Any], description: str) -> None:
        record_type = infer_record_type(values)
        assert record_type.describe() == description
        assert len(record_type.to_rows(record_type.to_columns(values))) == len(values)

    @pytest.mark.parametrize(
        "values",
        [
            [],
            [1, "a"],
            [None, None],
            [True, 1],
            [True, 2.5],
            [2**53 + 1, 0.5],
            [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None],
            [2**70, None],
            [Point(1, 2.0), None],
            [(1,), None],
            [dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)],  # noqa: DTZ001
            [()],
            [{}],
            [(1,), (1, 2)],
            [(None,)],
            [{1: 2}],
            [{"a": 2**70}],
            [("a",), (b"b",)],
            [({"a": 1},), ({"b": 2},)],
            [((1, 2),)],
            [(dt.datetime(2026, 1, 1),), (dt.datetime(2026, 1, 1, tzinfo=dt.UTC),)],  # noqa: DTZ001
            [(2**60 + 1,), (0.5,)],
            [Untyped(1)],
            [{1, 2}],
        ],
        ids=str,
    )
    def test_values_that_would_come_back_changed_stay_objects(self, values: list[Any]) -> None:
        assert isinstance(infer_record_type(values), ObjectType)

    @given(
        st.lists(
            st.tuples(st.integers(), floats | text, st.none() | text | st.binary(max_size=3)), min_size=1
        )
    )
    @settings(max_examples=60, deadline=None)
    def test_whatever_is_inferred_gives_the_values_back(self, values: list[Any]) -> None:
        record_type = infer_record_type(values)
        assert record_type.to_rows(record_type.to_columns(values)) == values


@pytest.mark.parametrize(
    "hint", [int, float | None, list[Point], dict[str, int], Point, Pair, tuple[int, Point], Visit], ids=str
)
def test_types_cross_processes_and_stay_equal(hint: Any) -> None:
    record_type = record_type_of(hint)
    again = cloudpickle.loads(cloudpickle.dumps(record_type))
    assert again == record_type
    assert hash(again) == hash(record_type)


def test_types_differ_by_python_class_and_by_schema() -> None:
    assert record_type_of(int) != record_type_of(int | None)
    assert record_type_of(Pair) != record_type_of(tuple[int, str | None])
    assert record_type_of(Pair) == StructType(Pair)
    assert isinstance(record_type_of(Pair | None), ScalarType)
    assert isinstance(record_type_of(tuple[int]), TupleType)
    assert record_type_of(record_type_of(int)) == record_type_of(int)


class TestBatch:
    def test_each_form_is_made_once_and_only_when_asked_for(self) -> None:
        batch = Batch(record_type_of(int), rows=[1, 2, 3])
        assert batch.has_rows
        assert batch.nbytes() == 24
        assert batch.columns is batch.columns
        back = Batch(batch.type, columns=batch.columns)
        assert not back.has_rows
        assert back.rows == [1, 2, 3]
        assert back.rows is back.rows
        assert repr(back) == "Batch(3 x int, columns+rows)"

    def test_a_slice_knows_where_its_first_record_came_from(self) -> None:
        batch = Batch(
            record_type_of(str), rows=list(string.ascii_letters), origin=Origin("in.txt", 100, "line")
        )
        part = batch.slice(3, 2)
        assert part.rows == ["d", "e"]
        assert len(part) == 2
        assert part.origin is not None
        assert part.origin.at(1) == "line 104 of in.txt"
        assert batch.slice(50, 9).rows == ["Y", "Z"]

    def test_user_code_sees_the_declared_types(self) -> None:
        encoded = pa.RecordBatch.from_arrays([pa.array(["a", "a"]).dictionary_encode()], names=["value"])
        batch = Batch(record_type_of(str), columns=encoded)
        assert batch.columns.schema.types != [pa.string()]
        assert batch.plain_columns.schema.types == [pa.string()]


@dataclass
class Computed:
    a: int
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        self.doubled = 2 * self.a


def test_fields_that_the_class_computes_are_computed_again() -> None:
    assert round_trip(Computed, [Computed(4)]) == [Computed(4)]
    assert record_type_of(Computed).names == ["a"]


def test_a_time_beyond_the_years_of_datetime_is_refused_with_its_column():
    type_ = record_type_of(pa.schema([("at", pa.timestamp("ms", "UTC"))]))
    beyond = pa.record_batch([pa.array([None, 0, 253402300800000]).cast(type_.schema.types[0])], type_.schema)
    with pytest.raises(
        SchemaError, match=r"column 'at' has the timestamp\[ms, tz=UTC\] 253402300800000, .* 1 to 9999"
    ):
        type_.to_rows(beyond)


@pytest.mark.parametrize("kind", [pa.list_(pa.timestamp("ms")), pa.duration("s")], ids=str)
def test_so_is_one_within_a_list_and_a_duration(kind: pa.DataType):
    type_ = record_type_of(pa.schema([("at", kind)]))
    value = pa.array([[2**60]] if pa.types.is_list(kind) else [2**60]).cast(kind)
    with pytest.raises(
        SchemaError, match=r"column 'at' of .* has a value that Python's datetime cannot hold"
    ):
        type_.to_rows(pa.record_batch([value], type_.schema))
