"""FileSource on Parquet: row groups, positions, types and dictionaries."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.connectors.reader_harness import ReaderHarness, all_splits, counted, read_all
from tidegate.connectors.files import FileChangedError, FileSource, InputFileError
from tidegate.core.errors import SchemaError
from tidegate.formats import parquet
from tidegate.records.batch import Batch


class Click(NamedTuple):
    app: str
    n: int


def table(count: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"app": [f"app-{i % 7}" for i in numbers], "n": list(numbers)})


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    group=st.integers(1, 40),
    split_size=st.sampled_from([1, 300, 1000, 10**6]),
    batch_rows=st.integers(1, 50),
    most_batch_rows=st.integers(1, 100),
    stops=st.lists(st.booleans(), min_size=1),
    seed=st.randoms(),
)
def test_any_order_of_splits_and_any_restore_points_give_every_row_once(
    tmp_path_factory, counts, group, split_size, batch_rows, most_batch_rows, stops, seed
):
    directory = tmp_path_factory.mktemp("parquet")
    for i, count in enumerate(counts):
        pq.write_table(table(count, i * 100), directory / f"{i}.parquet", row_group_size=group)
    source = FileSource(directory, "parquet", Click, split_size=split_size)
    splits = all_splits(source)
    seed.shuffle(splits)
    harness = ReaderHarness(source, splits, batch_rows=batch_rows, most_batch_rows=most_batch_rows)
    numbers: list[int] = []
    i = 0
    while True:
        if stops[i % len(stops)]:
            harness = harness.restart(source)
        i += 1
        batch = harness.next_batch()
        if batch is None:
            break
        numbers += [row.n for row in batch.rows]
        first = batch.rows[0].n
        assert batch.origin.at(0) == f"row {first % 100 + 1} of {directory / f'{first // 100}.parquet'}"
    assert harness.reader.snapshot() == []
    assert counted(numbers) == counted(i * 100 + k for i, count in enumerate(counts) for k in range(count))


def test_the_schema_comes_from_the_footer(tmp_path):
    pq.write_table(pa.table({"app": pa.array(["x"]).dictionary_encode(), "l": [[1]]}), tmp_path / "a.parquet")
    source = FileSource(tmp_path / "a.parquet")
    assert source.record_type.schema == pa.schema({"app": pa.string(), "l": pa.list_(pa.int64())})
    assert [tuple(r) for r in read_all(source)] == [("x", [1])]


def test_columns_that_repeat_come_as_dictionaries_and_others_do_not(tmp_path):
    many = pa.table({"app": [f"app-{i % 5}" for i in range(9000)], "id": [f"id-{i}" for i in range(9000)]})
    pq.write_table(many, tmp_path / "a.parquet")
    source = FileSource(tmp_path / "a.parquet")
    batch = ReaderHarness(source, all_splits(source)).next_batch()
    assert pa.types.is_dictionary(batch.columns.column("app").type)
    assert pa.types.is_string(batch.columns.column("id").type)
    assert batch.plain_columns.to_pylist() == many.to_pylist()


def batches_of(source: FileSource, batch_rows: int) -> list[Batch]:
    harness = ReaderHarness(source, all_splits(source), batch_rows=batch_rows)
    return list(iter(harness.next_batch, None))


def test_small_row_groups_are_read_together_and_large_ones_in_parts(tmp_path):
    pq.write_table(table(1000), tmp_path / "a.parquet", row_group_size=30)
    source = FileSource(tmp_path / "a.parquet", schema=Click, split_size=10**6)
    small = batches_of(source, 100)
    assert [b.num_rows for b in small] == [90] * 10 + [100]
    assert [b.origin.at(0).split()[1] for b in small] == [str(1 + 90 * i) for i in range(11)]
    assert [row.n for b in small for row in b.rows] == list(range(1000))
    assert [b.num_rows for b in batches_of(source, 20)][:4] == [20, 10, 20, 10]
    assert [b.num_rows for b in batches_of(source.with_columns([]), 100)] == [90] * 10 + [100]


def test_row_groups_without_rows_are_nothing(tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", table(1).schema) as writer:
        for count in (0, 400, 0, 0, 400, 0):
            writer.write_table(table(1000).slice(0, count))
    source = FileSource(tmp_path / "a.parquet", schema=Click)
    assert [b.num_rows for b in batches_of(source, 1000)] == [800]
    assert [b.num_rows for b in batches_of(source, 300)] == [300, 100, 300, 100]


def test_wide_rows_come_fewer_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH_BYTES", 100_000)
    wide = pa.table({"app": [f"{i:0>1000}" for i in range(1000)], "n": list(range(1000))})
    pq.write_table(wide, tmp_path / "a.parquet", use_dictionary=False)
    source = FileSource(tmp_path / "a.parquet", schema=Click, split_size=10**7)
    rows = [b.num_rows for b in batches_of(source, 5000)]
    assert sum(rows) == 1000
    assert max(rows) <= 100
    numbers = source.with_columns(["n"])
    assert [b.num_rows for b in batches_of(numbers, 5000)] == [1000]
    constant = pa.table({"app": ["x"] * 100_000, "n": [7] * 100_000})  # next to nothing in the file
    pq.write_table(constant, tmp_path / "a.parquet")
    source = FileSource(tmp_path / "a.parquet", schema=Click, split_size=10**7)
    assert max(b.num_rows for b in batches_of(source, 10**6)) <= 100_000 // 8


def test_one_wide_row_does_not_make_all_batches_small(tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", table(1).schema, use_dictionary=False) as writer:
        writer.write_table(table(30_000))
        writer.write_table(pa.table({"app": ["x" * 5_000_000], "n": [0]}))
        writer.write_table(table(30_000))
    source = FileSource(tmp_path / "a.parquet", schema=Click, split_size=10**8)
    assert [b.num_rows for b in batches_of(source, 100_000)] == [60_001]


def test_values_that_the_file_stores_once_do_not_fill_the_memory(tmp_path):
    values = [bytes([i]) * 2000 for i in range(50)]
    repeated = pa.table({"a.b": values * 2000})
    pq.write_table(repeated, tmp_path / "a.parquet")
    source = FileSource(tmp_path / "a.parquet")
    read = batches_of(source, 10**6)
    assert [b.num_rows for b in read] == [65_536, 34_464]
    assert pa.Table.from_batches([b.columns for b in read]).equals(repeated)


@pytest.mark.parametrize("index", [pa.int8(), pa.int16(), pa.int32()])
@pytest.mark.parametrize("others", ["the same", "different"])
def test_any_width_of_a_files_own_indices_is_read(tmp_path, index, others):
    kind = pa.dictionary(index, pa.string())
    first, second = [f"{i:0>300}" for i in range(100)], [f"{i:0>300}" for i in range(100, 200)]
    if others == "the same":
        second = first[::-1]
    groups = [pa.table({"app": pa.array(part * 2, kind)}) for part in (first, second)]
    with pq.ParquetWriter(tmp_path / "a.parquet", groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    (batch,) = batches_of(FileSource(tmp_path / "a.parquet"), 10_000)
    assert batch.columns.column("app").to_pylist() == first * 2 + second * 2


def test_all_files_of_a_reader_have_one_dictionary(tmp_path):
    for i in range(3):
        apps = [f"app-{(i + k) % 5}" for k in range(9000)]
        pq.write_table(
            pa.table({"app": apps, "n": list(range(9000))}), tmp_path / f"{i}.parquet", row_group_size=3000
        )
    source = FileSource(tmp_path, "parquet", Click)
    read = batches_of(source, 3000)
    assert len(read) == 9
    columns = [b.columns.column("app") for b in read]
    assert len({tuple(c.dictionary.to_pylist()) for c in columns}) == 1
    apps = [app for c in columns for app in c.to_pylist()]
    assert counted(apps) == counted(f"app-{(i + k) % 5}" for i in range(3) for k in range(9000))


def test_row_groups_with_and_without_the_common_dictionary_become_one_batch(tmp_path):
    few, many = ["a", "b"] * 500, [f"{i % 500:0>300}" for i in range(1000)]
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("app", pa.string())])) as writer:
        for part in (few, many, few):
            writer.write_table(pa.table({"app": part}))
    source = FileSource(tmp_path / "a.parquet")
    assert [b.columns.column("app").type.index_type for b in batches_of(source, 1000)] == [
        pa.int16(),
        pa.int32(),
        pa.int16(),
    ]
    (batch,) = batches_of(source, 10_000)
    column = batch.columns.column("app")
    assert column.type == pa.dictionary(pa.int32(), pa.string())
    assert column.to_pylist() == few + many + few


def test_row_groups_with_more_values_together_than_codes_can_tell_become_one_batch(tmp_path):
    groups = [[f"{g}-{i}" for i in range(4000)] * 16 for g in range(9)]
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("app", pa.string())])) as writer:
        for group in groups:
            writer.write_table(pa.table({"app": group}), row_group_size=10**6)
    (batch,) = batches_of(FileSource(tmp_path / "a.parquet"), 10**6)
    assert batch.columns.column("app").type == pa.string()
    assert batch.columns.column("app").to_pylist() == [app for group in groups for app in group]


def test_with_columns_reads_only_those_in_the_given_order(tmp_path):
    pq.write_table(table(10), tmp_path / "a.parquet", row_group_size=4)
    source = FileSource(tmp_path / "a.parquet", schema=Click)
    assert [tuple(r) for r in read_all(source.with_columns(["n"]))] == [(i,) for i in range(10)]
    assert tuple(read_all(source.with_columns(["n", "app"]))[3]) == (3, "app-3")
    assert len(read_all(source.with_columns([]), batch_rows=3)) == 10


def test_a_narrower_type_is_widened_and_a_value_too_large_is_named(tmp_path):
    when = dt.datetime(2024, 1, 2)  # noqa: DTZ001
    small = pa.table(
        {
            "i": pa.array([1], pa.int32()),
            "f": pa.array([1.5], pa.float32()),
            "t": pa.array([when], pa.timestamp("ms")),
            "s": pa.array(["x"], pa.large_string()),
        }
    )
    pq.write_table(small, tmp_path / "a.parquet")
    schema = pa.schema({"i": pa.int64(), "f": pa.float64(), "t": pa.timestamp("us"), "s": pa.string()})
    assert [tuple(r) for r in read_all(FileSource(tmp_path, "parquet", schema))] == [(1, 1.5, when, "x")]
    pq.write_table(pa.table({"i": [1, 300]}), tmp_path / "a.parquet")
    with pytest.raises(
        SchemaError, match=r"column 'i' of .*a\.parquet, in or after row 1, does not fit in int8"
    ):
        read_all(FileSource(tmp_path, "parquet", pa.schema({"i": pa.int8()})))


@pytest.mark.parametrize(
    ("found", "declared"),
    [(pa.string(), pa.int64()), (pa.float64(), pa.int64()), (pa.float64(), pa.float32())],
)
def test_another_type_is_refused_with_both(tmp_path, found, declared):
    pq.write_table(pa.table({"c": pa.array([None], found)}), tmp_path / "a.parquet")
    with pytest.raises(
        SchemaError, match=rf"a\.parquet: column 'c' is {found}, but the source declares {declared}"
    ):
        read_all(FileSource(tmp_path, "parquet", pa.schema({"c": declared})))


def test_a_missing_column_and_a_null_are_named(tmp_path):
    pq.write_table(pa.table({"app": ["a", None], "n": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"'app' of .* is null in row 2"):
        read_all(FileSource(tmp_path, "parquet", Click))
    pq.write_table(pa.table({"app": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"a\.parquet: there is no column 'n'; the columns are app"):
        read_all(FileSource(tmp_path, "parquet", Click))


def test_files_that_are_no_parquet_are_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"certainly not Parquet")
    with pytest.raises(InputFileError, match=r"a\.parquet cannot be read as Parquet"):
        read_all(FileSource(tmp_path, "parquet", Click))
    with pytest.raises(InputFileError, match=r"a\.parquet cannot be read as Parquet"):
        _ = FileSource(tmp_path / "a.parquet").record_type


def test_damage_inside_a_file_is_named(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(table(10_000), file)
    data = bytearray(file.read_bytes())
    data[4:400] = b"\xff" * 396
    file.write_bytes(data)
    with pytest.raises(InputFileError, match=r"a\.parquet cannot be read from row 1"):
        read_all(FileSource(tmp_path, "parquet", Click))


def test_a_file_replaced_between_two_row_groups_is_named(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(table(100), file, row_group_size=10)
    source = FileSource(tmp_path, "parquet", Click)
    harness = ReaderHarness(source, all_splits(source), batch_rows=10)
    assert harness.next_batch().num_rows == 10
    file.unlink()
    pq.write_table(table(100, 50), file, row_group_size=10)
    with pytest.raises(FileChangedError, match=r"a\.parquet"):
        harness.rows()


def test_no_rows_are_fine(tmp_path):
    pq.write_table(table(0), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"")
    assert read_all(FileSource(tmp_path, "parquet", Click)) == []
