"""Serializers, copies, fingerprints and times to live of state, by themselves."""

# ruff: noqa: DTZ001 - times without a zone are a type of their own

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import pickle
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.state import ListState, MapState, PickleSerializer, StateTtl, ValueState
from tidegate.core.errors import ProgramError, SchemaError, StateCompatibilityError
from tidegate.records.rows import row_class
from tidegate.records.types import record_type_of
from tidegate.state.copies import copier_for
from tidegate.state.fingerprints import check_compatible, state_schema
from tidegate.state.serializers import KeySerializer, map_key_serializer, value_serializer


@dataclasses.dataclass
class Inner:
    n: int
    tags: list[str]


@dataclasses.dataclass
class Outer:
    inner: Inner
    by_name: dict[str, Inner]
    maybe: float | None = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    items: list[int]


@dataclasses.dataclass(slots=True)
class Slotted:
    n: int
    items: list[int]


@dataclasses.dataclass(frozen=True)
class Fixed:
    n: int


class Pair(NamedTuple):
    n: int
    items: list[int]


TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (str, st.text()),
    (bytes, st.binary()),
    (dt.date, st.dates()),
    (dt.datetime, st.datetimes()),
    (dt.timedelta, st.timedeltas(dt.timedelta(days=-100_000_000), dt.timedelta(days=100_000_000))),
    (Decimal, st.decimals(-(10**19), 10**19, places=18)),
    (tuple[int, str | None], st.tuples(st.integers(-9, 9), st.none() | st.text())),
    (list[list[int]], st.lists(st.lists(st.integers(-9, 9)))),
    (
        list[tuple[int, list[str]]],
        st.lists(st.tuples(st.integers(-9, 9), st.lists(st.text(max_size=3))), max_size=3),
    ),
    (dict[str, float], st.dictionaries(st.text(), st.floats(allow_nan=False))),
    (
        Outer,
        st.builds(
            Outer,
            st.builds(Inner, st.integers(0, 9), st.lists(st.text(max_size=3), max_size=3)),
            st.dictionaries(
                st.text(max_size=2), st.builds(Inner, st.integers(0, 9), st.just([])), max_size=2
            ),
            st.none() | st.floats(allow_nan=False),
        ),
    ),
    (Annotated[dt.datetime, pa.timestamp("us", "UTC")], st.datetimes(timezones=st.just(dt.UTC))),
    (Annotated[int, ["a note"]], st.integers(-(2**63), 2**63 - 1)),
    (list[Annotated[str, {"unit": "m"}]], st.lists(st.text(max_size=3), max_size=3)),
    (pa.uint8(), st.integers(0, 255)),
]


@pytest.mark.parametrize(("hint", "values"), TYPES, ids=lambda v: str(v)[:40])
def test_values_survive_columns_and_bytes(hint: Any, values: st.SearchStrategy[Any]) -> None:
    serializer = value_serializer("op", "s", hint)

    @given(values)
    def check(value: Any) -> None:
        kept = serializer.adopt(value)
        assert kept == value
        assert serializer.from_bytes(serializer.to_bytes(kept)) == kept
        column = serializer.to_column([kept, kept])
        assert column.type == serializer.arrow_type
        assert serializer.from_column(column) == [kept, kept]
        assert serializer.release(kept) == value

    check()


@pytest.mark.parametrize(
    ("hint", "bad"),
    [
        (int, 2**63),
        (int, True),
        (int, "1"),
        (float, True),
        (str, b""),
        (str, "\ud800"),
        (bytes, ""),
        (dt.date, dt.datetime(2020, 1, 1)),
        (dt.datetime, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        (Decimal, Decimal("1e-19")),
        (list[int], "12"),
        (list[int], [None]),
        (dict[str, int], {1: 1}),
        (Inner, Inner("x", [])),  # type: ignore[arg-type]
        (Inner, Fixed(1)),
        (tuple[int, int], (1,)),
        (pa.uint8(), 256),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_columns_and_by_bytes_alike(hint: Any, bad: Any) -> None:
    serializer = value_serializer("op", "s", hint)
    with pytest.raises(SchemaError):
        serializer.to_column([serializer.adopt(bad)])
    with pytest.raises(SchemaError):
        serializer.to_bytes(bad)


MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 6_000, dt.UTC)
COLUMNS = pa.schema(
    [
        pa.field("n", pa.int64(), False),
        pa.field("the name", pa.string()),
        pa.field("small", pa.uint8()),
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("since", pa.timestamp("us", "UTC")),
    ]
)
RECORDS = [
    (
        COLUMNS,
        row_class(tuple(COLUMNS.names))(1, "a", 255, MOMENT, None),
        {
            0: [None, 1 << 63, True, "1"],
            1: [1, "\ud800"],
            2: [256, -1],
            3: [MOMENT.replace(tzinfo=None)],
        },
    ),
    (tuple[int, str | None], (1, None), {0: [None, 1.5], 1: [b"x"]}),
]


@pytest.mark.parametrize(("hint", "record", "misfits"), RECORDS, ids=["rows", "tuples"])
def test_a_record_of_plain_columns_is_taken_at_a_look_and_a_misfit_is_not(
    hint: Any, record: Any, misfits: dict[int, list[Any]]
) -> None:
    serializer = value_serializer("op", "s", record_type_of(hint))
    assert serializer.fits(record)
    make = getattr(type(record), "_make", tuple)
    for place, values in misfits.items():
        for value in values:
            wrong = make([value if i == place else v for i, v in enumerate(record)])
            assert not serializer.fits(wrong)
            with pytest.raises(SchemaError):
                serializer.adopt(wrong)


def test_bytes_are_compact() -> None:
    sizes = {
        hint: len(value_serializer("op", "s", hint).to_bytes(value))
        for hint, value in [
            (int, -1),
            (float, 0.1),
            (str, "abc"),
            (bytes, b"abc"),
            (bool, True),
            (Inner, Inner(1, ["a"])),
        ]
    }
    assert sizes == {int: 8, float: 8, str: 3, bytes: 3, bool: 1, Inner: 5}


@pytest.mark.parametrize(
    ("key_type", "equal"),
    [
        (float, [0.0, -0.0, 0]),
        (float, [math.nan, -math.nan, float("nan")]),
        (Decimal, [Decimal("1.1"), Decimal("1.10")]),
        (tuple[float, int], [(0.0, 1), (-0.0, 1)]),
    ],
)
def test_equal_keys_have_equal_bytes(key_type: Any, equal: list[Any]) -> None:
    keys = KeySerializer(record_type_of(key_type))
    assert len({keys.to_bytes(k) for k in equal}) == 1
    assert len({keys.adopt(k) for k in equal}) == 1


def test_keys_of_one_column_are_plain_and_of_several_are_tuples() -> None:
    one = KeySerializer(record_type_of(pa.schema([("user", pa.string())])))
    several = KeySerializer(record_type_of(pa.schema([("user", pa.string()), ("n", pa.float64())])))
    assert one.from_column(one.to_column(["a", None])) == ["a", None]
    (found,) = several.from_column(several.to_column([("a", math.nan)]))
    assert type(found) is tuple
    assert found == ("a", math.nan), "NaN is found by identity"


@pytest.mark.parametrize("hint", [list[int], Inner, str | None, set])
def test_map_keys_must_be_typed_and_immutable(hint: Any) -> None:
    with pytest.raises(ProgramError, match=r"'op'.*'s'.*keys of type"):
        map_key_serializer("op", "s", hint)


@pytest.mark.parametrize("hint", [int, str, tuple[int, str], Fixed, dt.datetime, pa.int32()])
def test_immutable_values_are_not_copied(hint: Any) -> None:
    assert copier_for(hint) is None


@pytest.mark.parametrize(
    ("hint", "value", "change"),
    [
        (list[list[int]], [[1]], lambda v: v[0].append(2)),
        (dict[str, list[int]], {"a": [1]}, lambda v: v["a"].append(2)),
        (Outer, Outer(Inner(1, ["a"]), {"x": Inner(2, [])}), lambda v: v.inner.tags.append("b")),
        (Outer, Outer(Inner(1, ["a"]), {"x": Inner(2, [])}), lambda v: v.by_name["x"].tags.append("b")),
        (Frozen, Frozen(1, [1]), lambda v: v.items.append(2)),
        (Slotted, Slotted(1, [1]), lambda v: v.items.append(2)),
        (Pair, Pair(1, [1]), lambda v: v.items.append(2)),
        (tuple[int, list[int]], (1, [1]), lambda v: v[1].append(2)),
        (pa.list_(pa.int64()), [1], lambda v: v.append(2)),
    ],
    ids=range(9),
)
def test_copies_share_nothing_that_can_change(hint: Any, value: Any, change: Any) -> None:
    copier = copier_for(hint)
    assert copier is not None
    before = pickle.dumps(value)
    taken = copier(value)
    assert taken == value
    assert type(taken) is type(value)
    change(taken)
    assert taken != value
    assert pickle.dumps(value) == before


# ---- fingerprints ----


def _schema(declaration: Any, key: Any = str) -> Any:
    declaration.name = "s"
    hint = declaration.value_type if isinstance(declaration, MapState) else declaration.type
    map_key = (
        map_key_serializer("op", "s", declaration.key_type) if isinstance(declaration, MapState) else None
    )
    value = value_serializer("op", "s", hint, declaration.serializer)
    return state_schema(declaration, record_type_of(key), value, map_key)


def test_fingerprints_never_change() -> None:
    """They are stored in checkpoints: another value here means that no checkpoint can be restored."""
    assert [
        _schema(ValueState(int)).fingerprint,
        _schema(ListState(str), key=tuple[int, str]).fingerprint,
        _schema(MapState(str, Outer, ttl="1 h")).fingerprint,
    ] == GOLDEN


GOLDEN = [
    "a81f724798a7000bdad8dddb88342e28",
    "ca767ef5334292185d0e6db06574a16f",
    "4d3a17c023a4f175ab940467c52ba443",
]


def test_names_and_lengths_do_not_count() -> None:
    @dataclasses.dataclass
    class Renamed:
        n: int
        tags: list[str]

    same = [
        (_schema(ValueState(Inner)), _schema(ValueState(Renamed))),
        (_schema(ValueState(int, ttl="1 h")), _schema(ValueState(int, ttl="2 h"))),
        (_schema(ValueState(int), pa.schema([("a", pa.int64())])), _schema(ValueState(int), int)),
    ]
    assert all(a.fingerprint == b.fingerprint for a, b in same)


def test_everything_that_changes_the_bytes_counts() -> None:
    schemas = [
        _schema(ValueState(int)),
        _schema(ValueState(float)),
        _schema(ListState(int)),
        _schema(MapState(str, int)),
        _schema(MapState(int, int)),
        _schema(ValueState(int), key=int),
        _schema(ValueState(int), key=tuple[str, int]),
        _schema(ValueState(int, ttl="1 h")),
        _schema(ValueState(int, ttl=StateTtl("1 h", time="event"))),
        _schema(ValueState(int, serializer=PickleSerializer())),
        _schema(ValueState(Inner)),
        _schema(ValueState(list[int])),
        _schema(ValueState(list[int | None])),
    ]
    assert len({s.fingerprint for s in schemas}) == len(schemas)


def test_a_change_deep_inside_is_named_by_fingerprint_when_words_are_equal() -> None:
    one = _schema(ValueState(list[int]))
    other = with_fingerprint(one, "0" * 32)
    with pytest.raises(
        StateCompatibilityError, match=r"(?s)'op'.*'s'.*0000 in the checkpoint but .* in the program"
    ):
        check_compatible("op", other, one)


def with_fingerprint(schema: Any, fingerprint: str) -> Any:
    return type(schema)(
        schema.name, schema.kind, schema.key, schema.value, schema.serializer, schema.ttl_ms, fingerprint
    )


# ---- opt-in ----


class Upper:
    name = "upper"

    def serialize(self, value: str) -> Any:
        return value.upper().encode() if value else "no bytes"

    def deserialize(self, data: bytes) -> str:
        return data.decode()


def test_opt_in_serializer_is_asked_for_everything() -> None:
    serializer = value_serializer("op", "s", str, Upper())
    kept = serializer.adopt("abc")
    assert kept == b"ABC"
    assert serializer.release(serializer.from_bytes(serializer.to_bytes(kept))) == "ABC"
    assert serializer.from_column(serializer.to_column([kept])) == [b"ABC"]
    with pytest.raises(SchemaError, match="'upper' cannot take an int"):
        serializer.adopt(5)
    with pytest.raises(SchemaError, match="'upper' made a str"):
        serializer.adopt("")


def test_serializer_without_a_name_is_refused() -> None:
    class Nameless:
        name = ""

        def serialize(self, value: Any) -> bytes:
            return b""

        def deserialize(self, data: bytes) -> Any:
            return None

    with pytest.raises(ProgramError, match="needs a name"):
        value_serializer("op", "s", int, Nameless())


def test_pickle_serializer_takes_classes_that_cannot_be_imported() -> None:
    class Local:
        def __init__(self) -> None:
            self.n = 5

    serializer = PickleSerializer()
    assert serializer.deserialize(serializer.serialize(Local())).n == 5
    assert serializer.deserialize(serializer.serialize({1, 2})) == {1, 2}
