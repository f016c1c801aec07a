"""Columns that a file does not hold: optional ones that it was written without, and those that its directories name."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.connectors.reader_harness import ReaderHarness, all_splits, read_all
from tidegate import FileSource
from tidegate.connectors.files.paths import InputFileError
from tidegate.core.errors import BadRecordError, SchemaError
from tidegate.formats import CsvFormat

KINDS = ["json", "csv", "parquet"]


def write(path: Path, kind: str, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        lines = [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=3)


# ---- columns that older files do not have ----


@dataclass(frozen=True)
class Click:
    app: str
    n: int
    referrer: str | None = None
    price: float | None = 9.5


@pytest.mark.parametrize("kind", KINDS)
def test_an_optional_column_that_a_file_was_written_without_is_null(tmp_path, kind):
    write(tmp_path / f"1.{kind}", kind, [{"app": "a", "n": i} for i in range(7)])
    write(tmp_path / f"2.{kind}", kind, [{"n": 7, "price": 1.5, "app": "b", "referrer": "r"}])
    source = FileSource(tmp_path, kind, Click, split_size=20)
    expected = [Click("a", i, None, None) for i in range(7)] + [Click("b", 7, "r", 1.5)]
    assert read_all(source, batch_rows=2) == expected
    for names in (["referrer"], ["price", "n"], ["referrer", "price"], []):
        narrow = [tuple(getattr(row, name) for name in names) for row in expected]
        assert read_all(source.with_columns(names)) == narrow


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_that_must_be_there_is_missed_with_the_file_named(tmp_path, kind):
    write(tmp_path / f"old.{kind}", kind, [{"app": "a", "other": 1}])
    with pytest.raises(
        SchemaError, match=rf"old\.{kind}: there is no column 'n'; the columns are app, other"
    ):
        read_all(FileSource(tmp_path, kind, Click))


@dataclass(frozen=True)
class AllOptional:
    app: str | None
    n: int | None


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_has_none_of_the_columns_is_refused(tmp_path, kind):
    write(tmp_path / f"x.{kind}", kind, [{"a": "a", "5": 1}])
    source = FileSource(tmp_path, kind, AllOptional)
    for reading in (source, source.with_columns(["n"]), source.with_columns([])):
        with pytest.raises(SchemaError, match=rf"x\.{kind}: it has none of the columns app, n"):
            read_all(reading)


def test_a_field_may_be_missing_inside_a_nested_column_too(tmp_path):
    old, new = pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64()), ("y", pa.string())])
    write(tmp_path / "a.parquet", "parquet", [{"p": {"x": 1}}], pa.schema([("p", old)]))
    source = FileSource(tmp_path, "parquet", pa.schema([("p", new)]))
    assert [row.p for row in read_all(source)] == [{"x": 1, "y": None}]


# ---- columns that the directories name ----


class Visit(NamedTuple):
    app: str
    region: str | None
    dt: dt.date
    hour: int


@pytest.mark.parametrize("kind", KINDS)
def test_directories_name_columns_typed_as_they_are_declared(tmp_path, kind):
    base = tmp_path / "visits" / "dt=2024-01-31"
    write(
        base / "region=S%C3%A3o%20Paulo%3D" / "hour=07" / f"a.{kind}",
        kind,
        [{"app": f"a{i}"} for i in range(8)],
    )
    write(base / "region=__HIVE_DEFAULT_PARTITION__" / "hour=8" / f"a.{kind}", kind, [{"app": "b"}])
    source = FileSource(tmp_path, kind, Visit, split_size=10)
    day = dt.date(2024, 1, 31)
    expected = [Visit(f"a{i}", "São Paulo=", day, 7) for i in range(8)] + [Visit("b", None, day, 8)]
    assert sorted(read_all(source, batch_rows=3)) == sorted(expected, key=lambda v: v.app)
    for names in (["region"], ["hour", "app"], ["dt", "region", "hour"]):
        narrow = sorted((tuple(getattr(v, n) for n in names) for v in expected), key=repr)
        assert sorted(read_all(source.with_columns(names)), key=repr) == narrow


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_of_directories_goes_on_where_another_stopped(tmp_path, kind):
    for hour in range(3):
        rows = [{"app": f"a{hour}-{i}"} for i in range(7)]
        write(tmp_path / "dt=2024-01-31" / f"hour={hour}" / f"a.{kind}", kind, rows)
    source = FileSource(tmp_path, kind, Visit, split_size=25)
    expected = read_all(source)
    assert len(expected) == 21
    for stop in range(0, 21, 2):
        harness = ReaderHarness(source, all_splits(source), batch_rows=1)
        rows = [row for _ in range(stop) for row in harness.next_batch().rows]
        assert rows + harness.restart(source, batch_rows=5).rows() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_path_takes_the_place_of_a_column_of_the_file(tmp_path, kind):
    write(tmp_path / "app=path" / f"a.{kind}", kind, [{"n": 1, "app": "file"}])
    assert read_all(FileSource(tmp_path, kind, AllOptional)) == [AllOptional("path", 1)]


def test_lines_without_a_header_hold_the_columns_that_the_path_does_not(tmp_path):
    (tmp_path / "region=eu" / "hour=3").mkdir(parents=True)
    (tmp_path / "region=eu" / "hour=3" / "a.csv").write_text("x,2024-01-31\ny,2024-02-01\n")
    rows = read_all(FileSource(tmp_path, CsvFormat(header=False), Visit))
    assert rows == [Visit("x", "eu", dt.date(2024, 1, 31), 3), Visit("y", "eu", dt.date(2024, 2, 1), 3)]


def test_lines_of_text_have_the_columns_of_their_path_beside_them(tmp_path):
    (tmp_path / "hour=3").mkdir()
    (tmp_path / "hour=3" / "a.txt").write_text("x\n\ny\n")
    schema = pa.schema([pa.field("line", pa.string(), False), pa.field("hour", pa.int64(), False)])
    source = FileSource(tmp_path, "text", schema)
    assert read_all(source) == [("x", 3), ("", 3), ("y", 3)]
    assert read_all(source.with_columns(["hour"])) == [(3,)] * 3
    assert read_all(FileSource(tmp_path, "text")) == ["x", "", "y"]
    (tmp_path / "b.txt").write_text("z\n")
    with pytest.raises(SchemaError, match=r"b\.txt: there is no column 'hour'"):
        read_all(source)


@pytest.mark.parametrize(
    ("data_type", "text", "value"),
    [
        (pa.int16(), "-5", -5),
        (pa.float64(), "1.5", 1.5),
        (pa.bool_(), "true", True),
        (pa.decimal128(5, 2), "1.25", decimal.Decimal("1.25")),
        (pa.timestamp("us"), "2024-01-31 10%3A00%3A00", dt.datetime(2024, 1, 31, 10)),  # noqa: DTZ001
        (pa.large_string(), "", ""),
        (pa.string(), "a%2Fb", "a/b"),
    ],
)
def test_a_directory_may_name_a_value_of_any_plain_type(tmp_path, data_type, text, value):
    write(tmp_path / f"v={text}" / "a.json", "json", [{"n": 1}])
    rows = read_all(FileSource(tmp_path, "json", pa.schema([("n", pa.int64()), ("v", data_type)])))
    assert rows == [(1, value)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("data_type", "text", "message"),
    [
        (pa.int64(), "0x10", "column 'v' is '0x10', but it is declared as int64"),
        (pa.int8(), "300", "column 'v' is '300', but it is declared as int8"),
        (pa.date32(), "2024-02-30", "column 'v' is '2024-02-30', but it is declared as date32"),
        (pa.int64(), "__HIVE_DEFAULT_PARTITION__", "column 'v' is null, but it is declared without None"),
    ],
)
def test_a_directory_whose_value_does_not_fit_is_named(tmp_path, kind, data_type, text, message):
    write(tmp_path / f"v={text}" / f"a.{kind}", kind, [{"n": 1}])
    schema = pa.schema([pa.field("n", pa.int64(), False), pa.field("v", data_type, False)])
    source = FileSource(tmp_path, kind, schema)
    with pytest.raises(SchemaError, match=rf"v={text}/a\.{kind}: the path says that {message}"):
        read_all(source)
    assert read_all(source.with_columns(["n"])) == [(1,)], "what is not read does not matter"


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_directories_is_inferred_from_all_of_them(tmp_path, kind):
    for day, hour, region in [("2024-01-31", "7", "1"), ("2024-02-01", "23", "x"), ("2024-02-01", "0", "02")]:
        path = tmp_path / f"dt={day}" / f"hour={hour}" / f"region={region}" / f"a.{kind}"
        write(path, kind, [{"n": 1, "hour": "in the file"}])
    source = FileSource(tmp_path / "*" / "*" / "*" / f"*.{kind}", kind)
    types = {f.name: f.type for f in source.record_type.schema}
    assert types == {"n": pa.int64(), "dt": pa.date32(), "hour": pa.int64(), "region": pa.string()}
    assert {(r.dt.day, r.hour, r.region) for r in read_all(source)} == {
        (31, 7, "1"),
        (1, 23, "x"),
        (1, 0, "02"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_path_itself_names_no_column_unless_the_base_path_is_above_it(tmp_path, kind):
    """As with Spark: what is read does not depend on where the whole tree is kept."""
    partition = tmp_path / "dt=2024-01-31" / "in"
    write(partition / "hour=7" / f"a.{kind}", kind, [{"n": 1}])
    day = dt.date(2024, 1, 31)
    for path, base_path, expected in (
        (partition, None, {"n": 1, "hour": 7}),
        (f"{partition}/", None, {"n": 1, "hour": 7}),
        (partition / "hour=7", None, {"n": 1}),
        (partition / "hour=7" / f"a.{kind}", None, {"n": 1}),
        (partition / "hour=*" / f"*.{kind}", None, {"n": 1, "hour": 7}),
        ([partition, partition / "hour=7"], None, {"n": 1, "hour": 7}),
        (partition, tmp_path, {"n": 1, "dt": day, "hour": 7}),
        (partition / "hour=7" / f"a.{kind}", f"{partition}/", {"n": 1, "hour": 7}),
        (partition, partition, {"n": 1, "hour": 7}),
    ):
        source = FileSource(path, kind, base_path=base_path)
        (row,) = read_all(source)
        assert dict(zip(source.record_type.names, row, strict=True)) == expected, (path, base_path)
        assert read_all(FileSource(path, kind, source.record_type.schema, base_path=base_path)) == [row]
    with_day = pa.schema([("n", pa.int64()), pa.field("dt", pa.date32(), False)])
    # A line of JSON tells what it has; of the other files, the file does.
    said = "missing required field `dt`" if kind == "json" else r"no column 'dt'.* names it, set base_path"
    with pytest.raises((SchemaError, BadRecordError), match=said):
        read_all(FileSource(partition, kind, with_day))
    with pytest.raises(InputFileError, match="is not below the base_path"):
        read_all(FileSource(partition, kind, base_path=tmp_path / "dt=2024"))


def test_text_of_the_path_is_one_dictionary_for_all_files_of_a_reader(tmp_path):
    for region in ("eu", "us", "eu2"):
        write(tmp_path / f"region={region}" / "a.parquet", "parquet", [{"n": i} for i in range(5)])
    source = FileSource(tmp_path, "parquet")
    harness = ReaderHarness(source, all_splits(source))
    dictionaries = [batch.columns.column("region").dictionary.to_pylist() for batch in harness.batches()]
    assert dictionaries == [["eu"], ["eu", "eu2"], ["eu", "eu2", "us"]]


def test_a_directory_that_names_a_column_is_not_hidden_by_an_underscore(tmp_path):
    write(tmp_path / "_day=1" / "a.json", "json", [{"n": 1}])
    write(tmp_path / "_temporary" / "a.json", "json", [{"n": 2}])
    write(tmp_path / ".day=3" / "a.json", "json", [{"n": 3}])
    assert read_all(FileSource(tmp_path, "json")) == [(1, 1)]
