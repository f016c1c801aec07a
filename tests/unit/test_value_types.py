"""Enums, UUIDs, numpy's scalars, TypedDicts, pydantic models: typed columns, and the same values in every function."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
import polars as pl
import pyarrow as pa
import pydantic
import pytest

from tidegate import (
    Environment,
    FileSink,
    FileSource,
    JobFailedError,
    KeyedProcessFunction,
    ListState,
    MapState,
    ProcessContext,
    SchemaError,
    ValueState,
)
from tidegate.records.types import infer_record_type, record_type_of
from tidegate.testing import check_recovery


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Odd(enum.Enum):
    """Values of several classes: stored by name."""

    A = 1
    B = "b"
    C = (1, 2)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Place(TypedDict):
    city: str
    zip: NotRequired[int]


class Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    n: int


class Model(pydantic.BaseModel):
    name: str
    color: Color
    tags: list[str] = []
    frozen: Frozen | None = None


@dataclass
class Event:
    id: uuid.UUID
    color: Color
    level: Level
    odd: Odd
    rights: Rights
    size: Literal["small", "large"]
    amount: np.int32
    place: Place
    model: Model
    colors: list[Color]
    by_color: dict[Color, np.float32]
    maybe: Color | None = None


class Key(NamedTuple):
    color: Color
    id: uuid.UUID


ID = uuid.UUID(int=7)


def event(i: int) -> Event:
    return Event(
        uuid.UUID(int=i),
        Color.RED if i % 2 else Color.GREEN,
        Level.HIGH if i % 3 else Level.LOW,
        list(Odd)[i % 3],
        Rights(i % 4),
        "small",
        np.int32(i),
        {"city": "Oslo"} if i % 2 else {"city": "Rome", "zip": 118},
        Model(name=f"m{i}", color=Color.GREEN, tags=["a"], frozen=Frozen(n=i)),
        [Color.RED],
        {Color.GREEN: np.float32(0.5)},
        None if i % 2 else Color.GREEN,
    )


@pytest.mark.parametrize(
    ("hint", "value", "arrow_type", "stored"),
    [
        (Color, Color.RED, pa.string(), "red"),
        (Level, Level.HIGH, pa.int64(), 3),
        (Odd, Odd.C, pa.string(), "C"),
        (Rights, Rights.READ | Rights.WRITE, pa.int64(), 3),
        (uuid.UUID, ID, pa.string(), str(ID)),
        (Literal["a", "b"], "a", pa.string(), "a"),
        (Literal[1, 2], 2, pa.int64(), 2),
        (np.int16, np.int16(5), pa.int16(), 5),
        (np.float32, np.float32(0.5), pa.float32(), 0.5),
        (np.bool_, np.bool_(True), pa.bool_(), True),
        (np.uint64, np.uint64(2**64 - 1), pa.uint64(), 2**64 - 1),
    ],
)
def test_a_value_has_an_obvious_column_and_comes_back_as_it_was(
    hint: Any, value: Any, arrow_type: pa.DataType, stored: Any
) -> None:
    record_type = record_type_of(hint)
    columns = record_type.to_columns([value, value])
    assert columns.schema.field("value") == pa.field("value", arrow_type, nullable=False)
    assert columns.column(0).to_pylist() == [stored, stored]
    back = record_type.to_rows(columns)
    assert back == [value, value]
    assert {type(v) for v in back} == {type(value)}
    encoded = columns.set_column(0, "value", columns.column(0).dictionary_encode())
    assert record_type.to_rows(encoded) == [value, value]


@pytest.mark.parametrize("hint", [Color | None, Literal["a", None], uuid.UUID | None, np.int64 | None])
def test_each_may_be_none_where_that_is_declared(hint: Any) -> None:
    record_type = record_type_of(hint)
    assert record_type.to_rows(record_type.to_columns([None])) == [None]


@pytest.mark.parametrize(
    ("hint", "wrong"),
    [
        (Color, "red"),
        (Color, Level.LOW),
        (uuid.UUID, str(ID)),
        (np.int32, 1.5),
        (np.int8, 1000),
        (Place, {"city": 1}),
    ],
)
def test_what_is_of_another_type_is_refused(hint: Any, wrong: Any) -> None:
    with pytest.raises(SchemaError):
        record_type_of(hint).to_columns([wrong])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [({"zip": 1}, "without the key 'city'"), ({"city": "Oslo", "x": 1}, "with the unknown key 'x'")],
)
def test_a_typed_dict_has_just_its_keys(wrong: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        record_type_of(Place).check_rows([wrong])


def test_a_class_with_all_of_them_comes_back_as_it_was() -> None:
    record_type = record_type_of(Event)
    events = [event(i) for i in range(12)]
    columns = record_type.to_columns(events)
    assert record_type.to_rows(columns) == events
    assert str(columns.schema.field("rights").type) == "int64"
    assert columns.schema.field("place").type == pa.struct(
        [pa.field("city", pa.string(), False), pa.field("zip", pa.int64())]
    )
    back = record_type.to_rows(columns)[0]
    assert type(back.amount) is np.int32
    assert type(back.model) is Model
    assert "zip" not in record_type.to_rows(columns)[1].place


def test_a_model_is_not_validated_again_and_keeps_what_it_holds() -> None:
    made: list[int] = []

    class Counted(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def count(cls, n: int) -> int:
            made.append(n)
            return n + 1

    record_type = record_type_of(Counted)
    one = Counted(n=1)
    assert record_type.to_rows(record_type.to_columns([one])) == [one]
    assert made == [1]
    assert not record_type_of(Frozen).is_mutable
    assert record_type_of(Model).is_mutable


def test_a_model_comes_back_the_same_whatever_its_aliases_and_its_post_init_do() -> None:
    class Crossed(pydantic.BaseModel):
        low: int = pydantic.Field(alias="high")
        high: int = pydantic.Field(alias="low")
        steps: int = 0

        def model_post_init(self, context: Any) -> None:
            self.steps += 1

    record_type = record_type_of(Crossed)
    one = Crossed.model_validate({"high": 1, "low": 9})
    (back,) = record_type.to_rows(record_type.to_columns([one]))
    assert (back.low, back.high, back.steps) == (1, 9, 1)


def test_what_a_record_may_have_beside_its_fields_keeps_it_an_object() -> None:
    class Open(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        n: int

    class Vague(TypedDict):
        n: NotRequired[int | None]

    assert record_type_of(Open).is_object
    assert record_type_of(Vague).is_object


def test_a_value_from_outside_that_is_no_member_is_named(tmp_path: Path) -> None:
    class Shade(NamedTuple):
        color: Color

    (tmp_path / "a.json").write_text('{"color": "red"}\n{"color": "blue"}\n')
    env = Environment(runtime="in-process")
    stream = env.from_source(FileSource(tmp_path, "json", Shade)).map(lambda s: s.color, returns=Color)
    with pytest.raises(JobFailedError, match="'blue' is no Color; there are 'red', 'green'"):
        list(stream.execute_and_collect())


@pytest.mark.parametrize("hint", [Color, uuid.UUID])
def test_a_value_of_a_dictionary_that_no_row_has_is_nobodys_mistake(hint: Any) -> None:
    good = "red" if hint is Color else str(uuid.UUID(int=7))
    left = pa.array(["no such value", good]).dictionary_encode().filter(pa.array([False, True]))
    assert left.dictionary.to_pylist() == ["no such value", good]
    record_type = record_type_of(hint)
    assert record_type.to_rows(pa.record_batch([left], names=["value"])) == [hint(good)]


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_files_hold_the_plain_values_and_give_the_records_back(tmp_path: Path, format: str) -> None:
    events = [event(i) for i in range(6)]
    env = Environment(runtime="in-process", parallelism=1)
    env.from_collection(events).sink_to(FileSink(tmp_path / "out", format))
    env.execute()
    again = Environment(runtime="in-process", parallelism=2)
    read = again.from_source(FileSource(tmp_path / "out", format, Event)).rebalance().map(same, returns=Event)
    assert sorted(read.execute_and_collect(), key=lambda e: e.id.int) == events


def same(value: Any) -> Any:
    return value


class Remember(KeyedProcessFunction):
    last = ValueState(Event)
    seen = ListState(Color)
    by_id = MapState(uuid.UUID, Place)

    def process(self, value: Event, context: ProcessContext) -> Iterator[tuple[Any, int, int]]:
        before = self.last.value()
        assert before is None or before.color is value.color
        self.last.update(value)
        self.seen.add(value.color)
        self.by_id.put(value.id, value.place)
        assert self.by_id.get(value.id) == value.place
        assert all(type(color) is Color for color in self.seen.get())
        yield str(context.current_key), len(self.seen.get()), len(list(self.by_id.items()))


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("by", ["column", "function", "tuple"])
def test_a_key_is_one_key_wherever_it_comes_from(backend: str, by: str, tmp_path: Path) -> None:
    """Half of the records come as rows, half as columns; each key has one state."""
    env = Environment(
        runtime="in-process",
        parallelism=2,
        state_backend=backend,
        checkpoint_interval="10 ms",
        checkpoint_dir=str(tmp_path / "chk"),
    )
    rows = env.from_collection([event(i) for i in range(8)], parallelism=1)
    columns = env.from_collection([event(i) for i in range(8, 16)], parallelism=1).filter(
        pl.col("amount") >= 0
    )
    both = rows.union(columns)
    keyed = {
        "column": lambda: both.key_by("color"),
        "function": lambda: both.key_by(lambda e: e.color, returns=Color),
        "tuple": lambda: both.key_by(lambda e: Key(e.color, ID), returns=Key),
    }[by]()
    found = list(
        keyed.process(Remember(), returns=tuple[str, int, int], uid="remember").execute_and_collect()
    )
    most = {key: max(n for k, n, _ in found if k == key) for key, _, _ in found}
    assert sorted(most.values()) == [8, 8]
    plain = {"red", "green"} if by != "tuple" else {f"('{c}', '{ID}')" for c in ("red", "green")}
    assert set(most) == plain


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_states_of_such_types_are_restored(tmp_path: Path, backend: str) -> None:
    def program(env: Environment, stream: Any, out: Path) -> None:
        remembered = stream.key_by("color").process(Remember(), returns=tuple[str, int, int], uid="remember")
        remembered.sink_to(FileSink(out), uid="out")

    events = [[event(i) for i in range(24)]]
    report = check_recovery(
        program, events, tmp_path, crashes=3, runtime="in-process", parallelism=2, state_backend=backend
    )
    assert report.output.total() == 24


@pytest.mark.parametrize("hint", [Color, Level, uuid.UUID, np.int64])
def test_totals_by_a_function_of_such_a_type(hint: Any) -> None:
    values = {
        Color: list(Color),
        Level: list(Level),
        uuid.UUID: [ID, uuid.UUID(int=8)],
        np.int64: [np.int64(1), np.int64(2)],
    }
    found = values[hint]
    env = Environment(runtime="in-process", parallelism=2)
    counts = env.from_sequence(0, 9).key_by(lambda n: found[n % 2], returns=hint).count()
    last: dict[Any, int] = {}
    for row in counts.execute_and_collect():
        last[row.key] = max(last.get(row.key, 0), row.count)
    plain = record_type_of(hint)
    assert last == {plain.as_in_columns(v): 5 for v in found}


def test_a_key_function_that_returns_another_type_is_named() -> None:
    env = Environment(runtime="in-process")
    counts = env.from_sequence(0, 9).key_by(lambda n: "red", returns=Color).count()
    with pytest.raises(JobFailedError, match="returned a str, but Color is declared: 'red'"):
        list(counts.execute_and_collect())


def test_lists_without_a_type_are_typed() -> None:
    assert infer_record_type([Color.RED]).describe() == "Color"
    assert infer_record_type([Color.RED, None]).describe() == "Color | None"
    assert infer_record_type([ID, None]).describe() == "UUID | None"
    assert infer_record_type([np.int64(1), np.int64(2)]).describe() == "int64"
    assert infer_record_type(
        [(np.float64(1), Color.RED, None), (np.float64(2), Color.RED, 3)]
    ).describe() == ("tuple(double, string, int64?)")
    assert infer_record_type([{"n": np.int64(1)}]).describe() == "Row(n: int64?)"
    assert infer_record_type([Model(name="a", color=Color.RED)]).describe().startswith("Model(name: string, ")
    assert infer_record_type([{"id": ID}]).is_object
