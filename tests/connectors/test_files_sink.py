"""FileSink on real directories: complete files only, what was there is safe, and all of it reads back."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

from tests.connectors.reader_harness import Metric, read_all
from tidegate.api.sink import SinkJob, SinkWriter, WriterContext
from tidegate.connectors.files import FileSink, FileSource, OutputDirectoryError
from tidegate.connectors.files.output_names import PartName
from tidegate.connectors.files.paths import locate
from tidegate.core.clock import ManualClock
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.formats import CsvFormat, ParquetFormat
from tidegate.records.batch import Batch
from tidegate.records.types import RecordType, record_type_of
from tidegate.storage.locations import resolve
from tidegate.testing.subtasks import subtask_info


class Count(NamedTuple):
    app: str
    n: int


COUNT = record_type_of(Count)


def part(subtask: int = 0, number: int = 0, kind: str = "json", attempt: int = 0, job: str = "job") -> str:
    return str(PartName(job, subtask, attempt, number, kind))


def prepare(sink: FileSink, job: str = "job", attempt: int = 0, resuming: bool = False) -> SinkJob:
    made = SinkJob(job, attempt, 2, resuming)
    sink.prepare(made)
    return made


def mark(sink: FileSink, job: str = "job", attempt: int = 0) -> None:
    """What `prepare` leaves, without its checks: most tests are about writers alone."""
    if os.path.isdir(sink.directory):
        kind = "appender" if sink.append else "owner"
        (Path(sink.directory) / f".tidegate-{job}-{attempt - attempt % 1_000_000}.{kind}").touch()


def writer(
    sink: FileSink, subtask: int = 0, record_type: RecordType = COUNT, attempt: int = 0, job: str = "job"
) -> SinkWriter:
    context = WriterContext(
        subtask=subtask_info("to files", subtask, 2, job_id=job, attempt=attempt),
        clock=ManualClock(),
        record_type=record_type,
        counter=lambda name: Metric(),
        send_to_driver=lambda batch: None,
        driver_backlog=lambda: 0,
    )
    mark(sink, job, attempt)
    return pickle.loads(pickle.dumps(sink)).create_writer(context)


def batch(*rows: Any, record_type: RecordType = COUNT) -> Batch:
    return Batch(record_type, rows=list(rows))


def names(directory: Path) -> list[str]:
    """Without the mark."""
    return sorted(n for n in os.listdir(directory) if not n.endswith((".owner", ".appender", ".published")))


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_what_is_written_is_read_back(tmp_path, kind):
    sink = FileSink(tmp_path / "out", kind)
    sink.check_type(COUNT)
    prepare(sink)
    expected = []
    for subtask in range(2):
        one = writer(sink, subtask)
        for i in range(50):
            rows = [Count(f"app {subtask} é", i), Count('quoted "x", y', -i)]
            one.write(batch(*rows))
            expected += rows
        one.write(batch())
        assert one.is_ready()
        one.flush(end_of_input=True)
        one.close()
    assert names(tmp_path / "out") == [part(0, 0, kind), part(1, 0, kind)]
    assert read_all(FileSource(tmp_path / "out", kind, Count)) == expected


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_a_file_is_hidden_until_it_is_complete(tmp_path, kind):
    one = writer(FileSink(tmp_path, kind))
    one.write(batch(Count("a", 1)))
    one.flush(end_of_input=False)
    assert names(tmp_path) == [f".{part(0, 0, kind)}.inprogress"]
    assert read_all_or_none(tmp_path, kind) == []
    one.flush(end_of_input=True)
    assert names(tmp_path) == [part(0, 0, kind)]
    one.close()
    assert names(tmp_path) == [part(0, 0, kind)]


def read_all_or_none(directory: Path, kind: str) -> list[Any]:
    (directory / f"empty.{kind}").touch()
    try:
        return read_all(FileSource(directory, kind, Count))
    finally:
        (directory / f"empty.{kind}").unlink()


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_closing_without_the_end_leaves_nothing(tmp_path, kind):
    one = writer(FileSink(tmp_path, kind))
    one.write(batch(Count("a", 1)))
    one.close()
    assert names(tmp_path) == []


def test_no_records_make_no_file(tmp_path):
    one = writer(FileSink(tmp_path))
    one.flush(end_of_input=True)
    one.close()
    assert names(tmp_path) == []


def test_files_roll_by_size(tmp_path):
    one = writer(FileSink(tmp_path, roll_size="10 KiB"))
    for i in range(100):
        one.write(batch(*(Count("x" * 100, i * 10 + k) for k in range(10))))
    one.flush(end_of_input=True)
    one.close()
    assert names(tmp_path) == [part(0, n) for n in range(len(names(tmp_path)))]
    assert len(names(tmp_path)) > 5
    rows = read_all(FileSource(tmp_path, "json", Count))
    assert sorted(r.n for r in rows) == list(range(1000))


def test_row_groups_are_filled_before_they_are_written(tmp_path):
    one = writer(FileSink(tmp_path, ParquetFormat(compression="zstd", row_group_rows=100)))
    for i in range(25):
        one.write(batch(*(Count("x", i * 10 + k) for k in range(10))))
    one.flush(end_of_input=True)
    metadata = pq.ParquetFile(tmp_path / part(kind="parquet")).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [100, 100, 50]
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_dictionary_columns_are_written_as_plain_strings(tmp_path):
    columns = pa.record_batch({"app": pa.array(["x", "y", "x"]).dictionary_encode(), "n": [1, 2, 3]})
    for kind in ("json", "csv", "parquet"):
        (tmp_path / kind).mkdir()
        one = writer(FileSink(tmp_path / kind, kind))
        one.write(Batch(COUNT, columns=columns))
        one.flush(end_of_input=True)
        assert [r.app for r in read_all(FileSource(tmp_path / kind, kind, Count))] == ["x", "y", "x"]


def test_scalars_have_one_column(tmp_path):
    number = record_type_of(int)
    one = writer(FileSink(tmp_path), record_type=number)
    one.write(batch(1, 2, record_type=number))
    one.flush(end_of_input=True)
    assert (tmp_path / part()).read_text() == '{"value":1}\n{"value":2}\n'


def test_csv_has_a_header_in_every_file_or_none(tmp_path):
    for header, first in ((True, '"app","n"'), (False, '"a",1')):
        directory = tmp_path / str(header)
        directory.mkdir()
        one = writer(FileSink(directory, CsvFormat(header=header), roll_size=1))
        one.write(batch(Count("a", 1)))
        one.write(batch(Count("a", 1)))
        one.flush(end_of_input=True)
        assert [(directory / n).read_text().splitlines()[0] for n in names(directory)] == [first, first]


# --- the directory ---


def test_the_directory_is_created(tmp_path):
    prepare(FileSink(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_with_files_is_refused(tmp_path):
    (tmp_path / part()).write_text("{}")
    with pytest.raises(OutputDirectoryError, match=r"is not empty \(it has .*part-job.*\).*overwrite=True"):
        prepare(FileSink(tmp_path), "other")
    assert os.listdir(tmp_path) == [part()]


def test_overwrite_removes_part_files_and_nothing_else(tmp_path):
    (tmp_path / part(3, 7)).write_text("{}")
    (tmp_path / f".{part(3, 8)}.pending").write_text("{}")
    (tmp_path / ".tidegate-job-0-3.published").write_text("{}")
    sink = FileSink(tmp_path, overwrite=True)
    job = prepare(sink, "new")
    assert os.listdir(tmp_path) == [".tidegate-new-0.owner"]
    sink.release(job, resumable=False)
    (tmp_path / part(3, 7)).write_text("{}")
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(OutputDirectoryError, match=r"thesis\.txt.*removes part files only"):
        prepare(FileSink(tmp_path, overwrite=True), "newer")
    assert names(tmp_path) == [part(3, 7), "thesis.txt"]


def test_append_keeps_what_is_there(tmp_path):
    (tmp_path / part(0, 9, job="old")).write_text("old")
    (tmp_path / "thesis.txt").write_text("precious")
    sink = FileSink(tmp_path, append=True)
    prepare(sink)
    one = writer(sink)
    one.write(batch(Count("a", 1)))
    one.flush(end_of_input=True)
    assert names(tmp_path) == sorted([part(0, 9, job="old"), part(), "thesis.txt"])
    assert (tmp_path / part(0, 9, job="old")).read_text() == "old"


def test_a_second_attempt_never_writes_over_the_first(tmp_path):
    sink = FileSink(tmp_path)
    prepare(sink)
    for attempt in range(2):
        one = writer(sink, attempt=attempt)
        one.write(batch(Count("a", attempt)))
        one.flush(end_of_input=True)
    assert [json.loads((tmp_path / n).read_text())["n"] for n in names(tmp_path)] == [0, 1]


def test_a_job_without_checkpoints_that_is_resumed_twice_adds_files_and_replaces_none(tmp_path):
    """Its attempts have the same numbers each time: there is no claim that counts its drivers."""
    for run in range(2):
        one = writer(FileSink(tmp_path), attempt=1_000_000)
        one.write(batch(Count("a", run)))
        one.flush(end_of_input=True)
    assert [json.loads((tmp_path / n).read_text())["n"] for n in names(tmp_path)] == [0, 1]


@pytest.mark.parametrize("stage", ["inprogress", "pending"])
def test_hidden_files_of_another_job_are_refused_unless_it_is_said_what_to_do(tmp_path, stage):
    hidden = f".{part(job='dead')}.{stage}"
    (tmp_path / hidden).write_text("half")
    with pytest.raises(
        OutputDirectoryError, match=r"1 hidden files of another job, such as \.part-dead-.*append="
    ):
        prepare(FileSink(tmp_path))
    assert os.listdir(tmp_path) == [hidden]
    appending = FileSink(tmp_path, append=True)
    job = prepare(appending)
    assert names(tmp_path) == [hidden], "nobody can tell whether that job is at work"
    appending.release(job, resumable=False)
    prepare(FileSink(tmp_path, overwrite=True), "another")
    assert names(tmp_path) == []


def test_a_zombie_whose_file_a_newer_attempt_removed_closes_without_an_error(tmp_path):
    zombie = writer(FileSink(tmp_path))
    zombie.write(batch(Count("a", 1)))
    writer(FileSink(tmp_path), attempt=1)
    assert names(tmp_path) == []
    zombie.close()


def test_two_jobs_append_to_one_directory_at_the_same_time(tmp_path):
    sink = FileSink(tmp_path, append=True)
    writers = {}
    for job in ("9c02", "77aa"):
        prepare(sink, job)
        writers[job] = writer(sink, job=job)
        writers[job].write(batch(Count(job, 1)))
    restarted = writer(sink, job="77aa", attempt=1)
    assert names(tmp_path) == [f".{part(job='9c02')}.inprogress"], "it removed what its own job left"
    restarted.write(batch(Count("77aa", 2)))
    for one in (writers["9c02"], restarted):
        one.flush(end_of_input=True)
    assert names(tmp_path) == [part(job="77aa", attempt=1), part(job="9c02")]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputDirectoryError, match="out is a file"):
        prepare(FileSink(tmp_path / "out"))
    with pytest.raises(OutputDirectoryError, match="cannot write to"):
        prepare(FileSink(tmp_path / "out" / "below"))


def test_a_directory_that_vanishes_is_named(tmp_path):
    one = writer(FileSink(tmp_path / "gone"))
    with pytest.raises(OutputDirectoryError, match=r"operator 'to files' cannot write .*gone"):
        one.write(batch(Count("a", 1)))
    one.close()


# --- types and arguments ---


def test_objects_are_refused_with_the_reason():
    with pytest.raises(SchemaError, match="they have no columns"):
        FileSink("out").check_type(record_type_of(object))


def test_csv_refuses_nested_columns_by_name():
    nested = record_type_of(tuple[int, list[int]])
    with pytest.raises(SchemaError, match="column 'f1' is list"):
        FileSink("out", "csv").check_type(nested)
    FileSink("out", "json").check_type(nested)
    FileSink("out", "parquet").check_type(nested)


def test_a_value_that_the_format_cannot_hold_names_the_operator(tmp_path):
    one = writer(FileSink(tmp_path, "csv"))
    one.write(batch(Count("a\nb", 1)))
    with pytest.raises(SchemaError, match="operator 'to files' cannot write: column 'app' has a value"):
        one.flush(end_of_input=True)
    one.close()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "xml"}, "no file format 'xml'"),
        ({"roll_size": "big"}, "roll_size='big'"),
        ({"overwrite": True, "append": True}, "not both"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ProgramError, match=message):
        FileSink("out", **arguments)


def test_the_plan_names_the_directory():
    assert FileSink("/data/out", "csv").describe() == "csv files in /data/out"


@pytest.mark.parametrize("options", ["", "&allow_delayed_open=false"])
def test_a_small_file_on_s3_is_one_request_as_in_checkpoint_storage(options):
    uri = f"s3://key:word@lake/out?region=eu-west-1{options}"
    found = locate([uri]).filesystem
    assert found.equals(resolve(uri).filesystem)
    assert found.equals(pa_fs.FileSystem.from_uri(uri)[0]) == bool(options), "what the user says counts"
