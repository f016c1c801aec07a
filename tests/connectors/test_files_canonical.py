"""Enums and UUIDs in files: one value is one key, however it is spelled, and what is no value is a bad record."""

from __future__ import annotations

import enum
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate import Environment, FileSource, JobFailedError, OutputTag

ID = uuid.UUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeffff")
SPELLINGS = [str(ID), str(ID).upper(), ID.hex, f"{{{ID}}}", f"urn:uuid:{ID}"]


class Kind(enum.Enum):
    BUY = "buy"
    RETURN = "return"

    @classmethod
    def _missing_(cls, value: object) -> Kind | None:
        return cls.BUY if value == "bought" else None


@dataclass
class Event:
    id: uuid.UUID
    kind: Kind
    n: int


@dataclass
class Order:
    ids: list[uuid.UUID]
    kinds: dict[str, Kind | None]
    first: Event


def write(directory: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    path = directory / f"in.{form}"
    if form == "json":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    elif form == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n", "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_one_uuid_in_several_spellings_is_one_key(tmp_path: Path, form: str):
    rows = [{"id": text, "kind": "buy", "n": n} for n, text in enumerate(SPELLINGS)]
    events = Environment(runtime="in-process").from_source(
        FileSource(write(tmp_path, form, rows), form, Event)
    )
    counts = list(events.key_by("id").count().execute_and_collect())
    assert [(row.id, row.count) for row in counts] == [(str(ID), n + 1) for n in range(len(rows))]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_what_the_enum_itself_takes_for_a_member_is_that_member(tmp_path: Path, form: str):
    rows = [{"id": str(ID), "kind": kind, "n": 0} for kind in ("buy", "bought", "return")]
    events = Environment(runtime="in-process").from_source(
        FileSource(write(tmp_path, form, rows), form, Event)
    )
    counts = {row.kind: row.count for row in events.key_by("kind").count().execute_and_collect()}
    assert counts == {"buy": 2, "return": 1}


BAD = [
    ({"id": "zz", "kind": "buy", "n": 1}, "'id': 'zz' is no UUID"),
    ({"id": str(ID), "kind": "gift", "n": 1}, "is no Kind"),
]


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize(("bad", "reason"), BAD, ids=["UUID", "Enum"])
def test_a_value_that_is_none_is_a_bad_record(tmp_path: Path, form: str, bad: dict[str, Any], reason: str):
    good = {"id": str(ID), "kind": "buy", "n": 0}
    path = write(tmp_path, form, [good, bad, good])
    wrong = OutputTag("wrong")
    env = Environment(runtime="in-process")
    events = env.from_source(FileSource(path, form, Event, on_bad_record=wrong))
    (found,) = events.get_side_output(wrong).execute_and_collect()
    assert reason in found.reason
    assert found.line == (2 if form == "json" else 3)
    skipped = env.from_source(FileSource(path, form, Event, on_bad_record="skip"))
    assert [event.n for event in skipped.execute_and_collect()] == [0, 0]
    strict = env.from_source(FileSource(path, form, Event))
    with pytest.raises(JobFailedError, match=reason):
        list(strict.key_by("id", "kind").count().execute_and_collect())


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=["UUID", "Enum"])
def test_a_value_that_is_none_fails_a_job_over_parquet_with_the_file(
    tmp_path: Path, bad: dict[str, Any], reason: str
):
    path = write(tmp_path, "parquet", [{"id": str(ID), "kind": "buy", "n": 0}, bad])
    events = Environment(runtime="in-process").from_source(FileSource(path, "parquet", Event))
    with pytest.raises(
        JobFailedError, match=rf"in\.parquet, in or after row 1: field .*{reason.split(': ')[-1]}"
    ):
        list(events.key_by("id", "kind").count().execute_and_collect())


@dataclass
class Reading:
    level: Literal["low", "high"]
    step: Literal[1, 2] | None
    kind: Literal[Kind.BUY, None]
    tags: list[Literal["a", "b"]]
    n: int


GOOD_READING = {"level": "low", "step": 2, "kind": "bought", "tags": ["a"], "n": 0}
BAD_LITERALS = [
    ({"level": "Low"}, "field 'level': 'Low' is none of 'low', 'high'"),
    ({"step": 3}, "field 'step': 3 is none of 1, 2"),
    ({"kind": "return"}, "field 'kind': 'return' is none of <Kind.BUY: 'buy'>"),
    ({"tags": ["a", "c"]}, "field 'tags': 'c' is none of 'a', 'b'"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_LITERALS, ids=["text", "number", "Enum", "in a list"])
@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_value_that_a_literal_does_not_have_is_a_bad_record(
    tmp_path: Path, form: str, change: dict[str, Any], reason: str
):
    if form == "csv" and "tags" in change:
        return  # there are no lists in CSV
    cls = Reading if form != "csv" else Flat
    good = {k: v for k, v in GOOD_READING.items() if form != "csv" or k != "tags"}
    nothing = good | ({"step": "", "kind": ""} if form == "csv" else {"step": None, "kind": None})
    env = Environment(runtime="in-process")
    sound = env.from_source(FileSource(write(tmp_path, form, [good, nothing]), form, cls))
    assert [(r.level, r.step, r.kind) for r in sound.execute_and_collect()] == [
        ("low", 2, Kind.BUY),
        ("low", None, None),
    ]
    bad = write(tmp_path, form, [good, good | change, nothing | {"n": 1}])
    if form != "parquet":
        skipped = env.from_source(FileSource(bad, form, cls, on_bad_record="skip"))
        assert [r.n for r in skipped.execute_and_collect()] == [0, 1]
    with pytest.raises(JobFailedError) as failed:
        list(env.from_source(FileSource(bad, form, cls)).execute_and_collect())
    assert reason in str(failed.value)


@dataclass
class Flat:
    level: Literal["low", "high"]
    step: Literal[1, 2] | None
    kind: Literal[Kind.BUY, None]
    n: int


def test_values_inside_others_are_looked_at_too(tmp_path: Path):
    first = {"id": SPELLINGS[1], "kind": "bought", "n": 1}
    rows = [{"ids": SPELLINGS, "kinds": {"a": "bought", "b": None}, "first": first}]
    orders = Environment(runtime="in-process").from_source(
        FileSource(write(tmp_path, "json", rows), "json", Order)
    )
    (columns,) = orders.map_batches(
        lambda batch: batch, returns=orders.record_type.schema
    ).execute_and_collect()
    assert columns.ids == [str(ID)] * len(SPELLINGS)
    assert columns.kinds == {"a": "buy", "b": None}
    assert columns.first == {"id": str(ID), "kind": "buy", "n": 1}
    bad = write(tmp_path, "json", [{"ids": ["zz"], "kinds": {}, "first": first}])
    wrong = Environment(runtime="in-process").from_source(FileSource(bad, "json", Order))
    with pytest.raises(JobFailedError, match="field 'ids': 'zz' is no UUID"):
        list(wrong.execute_and_collect())


def test_columns_that_a_function_returns_as_records_of_a_class_are_brought_to_the_form_too():
    spelled = pa.schema([("id", pa.string()), ("kind", pa.string()), ("n", pa.int64())])
    rows = Environment(runtime="in-process").from_collection(
        [{"id": text, "kind": "buy", "n": n} for n, text in enumerate(SPELLINGS)], type=spelled
    )
    events = rows.map_batches(lambda batch: batch, returns=Event)
    assert {row.id for row in events.key_by("id").count().execute_and_collect()} == {str(ID)}
    wrong = rows.map_batches(
        lambda batch: batch.set_column(1, "kind", pa.array(["gift"] * batch.num_rows)), returns=Event
    )
    with pytest.raises(JobFailedError, match="field 'kind': 'gift' is no Kind"):
        list(wrong.execute_and_collect())


def test_directories_are_looked_at_too(tmp_path: Path):
    directory = tmp_path / "kind=bought"
    directory.mkdir()
    (directory / "in.json").write_text(json.dumps({"id": str(ID), "n": 1}) + "\n", "utf-8")
    events = Environment(runtime="in-process").from_source(FileSource(tmp_path, "json", Event))
    assert [row.kind for row in events.key_by("kind").count().execute_and_collect()] == ["buy"]
    directory.rename(tmp_path / "kind=gift")
    wrong = Environment(runtime="in-process").from_source(FileSource(tmp_path, "json", Event))
    with pytest.raises(JobFailedError, match="the path says that column 'kind' is 'gift': 'gift' is no Kind"):
        list(wrong.execute_and_collect())
