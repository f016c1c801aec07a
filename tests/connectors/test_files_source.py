"""FileSource on real files: every line once, wherever it is cut and restored; bad input named."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.connectors.reader_harness import EnumeratorHarness, ReaderHarness, all_splits, counted, read_all
from tidegate.api.functions import OutputTag
from tidegate.api.source import IDLE, Boundedness, Finished
from tidegate.connectors.files import BadRecord, FileChangedError, FileSource, InputFileError
from tidegate.connectors.files import source as source_module
from tidegate.core.errors import BadRecordError, ProgramError, SchemaError
from tidegate.formats import CsvFormat
from tidegate.formats.layout_reader import LayoutReader
from tidegate.records.batch import Batch


class Click(NamedTuple):
    app: str
    n: int


@dataclass(frozen=True)
class Wide:
    app: str
    n: int
    note: str | None = None


def lines_of(clicks: list[Click]) -> str:
    return "".join(json.dumps(c._asdict()) + "\n" for c in clicks)


def clicks(count: int, start: int = 0) -> list[Click]:
    return [Click(f"app-{i % 7}", i) for i in range(start, start + count)]


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few lines, so that small files have many."""
    monkeypatch.setattr(source_module, "_CHUNK_BYTES", 64)


# --- what is read ---


def test_lines_become_records_in_order(tmp_path):
    (tmp_path / "a.json").write_text(lines_of(clicks(10)))
    assert read_all(FileSource(tmp_path / "a.json", "json", Click)) == clicks(10)


def test_a_directory_a_glob_and_a_list_read_every_file_once(tmp_path):
    for i in range(4):
        folder = tmp_path / f"day={i % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{i}.json").write_text(lines_of(clicks(5, i * 5)))
    (tmp_path / "day=0" / "empty.json").write_text("")
    (tmp_path / "day=0" / "_SUCCESS").write_text("x")
    (tmp_path / "day=0" / ".hidden.json").write_text("x")
    (tmp_path / "day=0" / "f9.json.inprogress").write_text("x")
    (tmp_path / "_metadata").mkdir()
    (tmp_path / "_metadata" / "x.json").write_text("x")
    whole = counted(clicks(20))
    for path in (
        tmp_path,
        f"{tmp_path}/**/*.json",
        f"{tmp_path}/*/f?.json",
        f"{tmp_path}/day=[01]/*",
        [tmp_path / "day=0", tmp_path / "day=1", f"{tmp_path}/day=1/*.json"],
        f"file://{tmp_path}/day=*/f[!9].json",
    ):
        assert counted(read_all(FileSource(path, "json", Click))) == whole, path


def test_a_relative_path_is_resolved_where_the_program_runs(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text(lines_of(clicks(2)))
    monkeypatch.chdir(tmp_path)
    source = FileSource("a.json", schema=Click)
    monkeypatch.chdir("/")
    assert read_all(pickle.loads(pickle.dumps(source))) == clicks(2)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n \n"])
def test_byte_order_mark_and_line_ends_do_not_matter(tmp_path, end):
    text = lines_of(clicks(3)).encode().rstrip().replace(b"\n", end or b"\n")
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + text + end)
    assert read_all(FileSource(tmp_path, "json", Click)) == clicks(3)


def test_other_filesystems_are_read_by_object(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(lines_of(clicks(1000)))
    filesystem = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    source = FileSource("in/*.json", "json", Click, filesystem=filesystem, split_size="1 KiB")
    assert len(all_splits(source)) > 5
    assert counted(read_all(source)) == counted(clicks(1000))


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gz", "zst"])
def test_compressed_files_are_one_split_and_restore_anywhere(tmp_path, small_chunks, compress):
    ending = "gz" if compress is gzip.compress else "zst"
    text = lines_of(clicks(40)).encode()
    (tmp_path / f"a.json.{ending}").write_bytes(compress(text[:300]) + compress(text[300:]))
    source = FileSource(f"{tmp_path}/a.json.{ending}", schema=Click, split_size="100 B")
    assert len(all_splits(source)) == 1
    for stop in range(0, 40, 3):
        harness = ReaderHarness(source, all_splits(source), batch_rows=1)
        first = [harness.next_batch().rows[0] for _ in range(stop)]
        assert first + harness.restart(source).rows() == clicks(40)


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-20], lambda d: b"no gzip", lambda d: d[:30] + b"zzzz" + d[34:]]
)
def test_a_damaged_compressed_file_is_named(tmp_path, damage):
    data = gzip.compress(random.Random(1).randbytes(10_000).hex().encode())
    (tmp_path / "a.json.gz").write_bytes(damage(data))
    with pytest.raises(InputFileError, match=r"a\.json\.gz cannot be read at byte"):
        read_all(FileSource(tmp_path / "a.json.gz", "json", Click))


# --- exactly once, wherever it is cut ---


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_any_order_of_splits_and_any_restore_points_give_every_line_once(
    tmp_path_factory, monkeypatch, kind, data
):
    directory = tmp_path_factory.mktemp("files")
    counts = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=3))
    ends = data.draw(st.sampled_from(["\n", "\r\n"]))
    last = data.draw(st.booleans())
    expected: list[Wide] = []
    bad = 0
    for f, count in enumerate(counts):
        text = "app,n,note" + ends if kind == "csv" else ""
        for i in range(count):
            record = Wide(f"app-{i % 3}", f * 1000 + i, "é" * data.draw(st.integers(0, 40)) or None)
            shape = data.draw(st.sampled_from(["good", "good", "good", "bad", "blank"]))
            if shape == "bad":
                text += f"bad {f * 1000 + i}{ends}"
                bad += 1
                continue
            if shape == "blank":
                text += ends
            expected.append(record)
            if kind == "json":
                text += json.dumps(vars_of(record), ensure_ascii=False) + ends
            else:
                text += f"{record.app},{record.n},{record.note or ''}{ends}"
        if not last:
            text = text.removesuffix(ends)
        (directory / f"f{f}.{kind}").write_text(text, newline="")
    monkeypatch.setattr(source_module, "_CHUNK_BYTES", data.draw(st.integers(1, 500)))
    source = FileSource(
        directory,
        kind,
        Wide,
        split_size=data.draw(st.integers(1, 2000)),
        on_bad_record="side:bad",
    )
    splits = data.draw(st.permutations(all_splits(source)))
    harness = ReaderHarness(source, splits, batch_rows=data.draw(st.integers(1, 7)))
    rows = []
    while True:
        if data.draw(st.booleans()):
            harness = harness.restart(source)
            monkeypatch.setattr(source_module, "_CHUNK_BYTES", data.draw(st.integers(1, 500)))
        batch = harness.poll()
        if isinstance(batch, Batch):
            rows += batch.rows
        elif isinstance(batch, Finished):
            break
    assert harness.reader.snapshot() == []
    assert counted(rows) == counted(expected)
    assert harness.metrics["bad_records"].value == bad
    assert len({r.text for r in harness.side["bad"]}) == len(harness.side["bad"]) == bad
    for record in harness.side["bad"]:
        named = Path(record.file).read_bytes().split(b"\n")[record.line - 1]
        assert named.decode().strip() == record.text


def vars_of(record: Wide) -> dict[str, object]:
    return {"app": record.app, "n": record.n, "note": record.note}


def test_the_position_is_that_of_the_next_record(tmp_path, small_chunks):
    (tmp_path / "a.json").write_text(lines_of(clicks(20)))
    source = FileSource(tmp_path, "json", Click)
    harness = ReaderHarness(source, all_splits(source), batch_rows=3)
    seen = 0
    text = (tmp_path / "a.json").read_bytes()
    while (batch := harness.next_batch()) is not None:
        seen += batch.num_rows
        for split in harness.reader.snapshot():
            assert text[: split.position].count(b"\n") == seen


def test_lines_of_one_layout_are_restored_and_named_as_all_others(tmp_path, monkeypatch):
    """Chunks that are read by the lines' layout, chunks with a bad line that are not, and restores in both."""
    monkeypatch.setattr(source_module, "_CHUNK_BYTES", 128 << 10)
    by_layout = []
    read = LayoutReader.read
    monkeypatch.setattr(LayoutReader, "read", lambda *a: by_layout.append(read(*a)) or by_layout[-1])
    lines = lines_of(clicks(120_000)).encode().splitlines(keepends=True)
    bad = {31_000: b'{"app": "x", "n": "1"}\n', 90_001: b"oops\n", 90_002: b'{"app": "x", "n": 01}\n'}
    for at, text in bad.items():
        lines[at] = text
    file = tmp_path / "a.json"
    file.write_bytes(b"".join(lines))
    source = FileSource(tmp_path, "json", Click, on_bad_record="side:bad", split_size="1 GiB")
    harness = ReaderHarness(source, all_splits(source), batch_rows=3000)
    offsets = [0, *itertools.accumulate(map(len, lines))]
    expected = [c for i, c in enumerate(clicks(120_000)) if i not in bad]
    rows: list[Click] = []
    for count in itertools.count():
        if count in (11, 30):
            harness = harness.restart(source)
        batch = harness.next_batch()
        if batch is None:
            break
        rows += batch.rows
        for split in harness.reader.snapshot():
            at = offsets.index(split.position)
            assert at - sum(b < at for b in bad) == len(rows)
    assert rows == expected
    assert [(b.file, b.line, b.text) for b in harness.side["bad"]] == [
        (str(file), at + 1, text.decode().strip()) for at, text in bad.items()
    ]
    assert sum(arrays is not None for arrays in by_layout) > 5


def test_one_more_split_is_asked_for_while_one_is_read(tmp_path):
    (tmp_path / "a.json").write_text(lines_of(clicks(100)))
    source = FileSource(tmp_path, "json", Click, split_size="1 KiB")
    splits = all_splits(source)
    harness = ReaderHarness(source, no_more=False)
    assert harness.requests == 1
    assert harness.poll() == IDLE
    assert harness.requests == 1
    harness.reader.add_splits([splits[0]])
    assert isinstance(harness.poll(), Batch)
    assert harness.requests == 2
    harness.reader.no_more_splits()
    assert isinstance(harness.poll(), Finished)
    assert harness.requests == 2


# --- bad records ---


BAD = '{"app":"a","n":1}\n{"app":"b","n":"two"}\n{"app":"c","n":3}\nnot json\n'


def test_fail_names_file_line_reason_and_text(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(lines_of(clicks(1000)) + BAD)
    with pytest.raises(BadRecordError) as caught:
        read_all(FileSource(file, "json", Click, split_size="2 KiB"))
    message = str(caught.value)
    assert f"line 1002 of {file} is not a record: field 'n': Expected `int`, got `str`" in message
    assert """{"app":"b","n":"two"}""" in message
    assert "on_bad_record='skip'" in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_fail_shows_only_the_beginning_of_a_long_line(tmp_path):
    (tmp_path / "a.json").write_text("x" * 10_000)
    with pytest.raises(BadRecordError) as caught:
        read_all(FileSource(tmp_path, "json", Click))
    assert len(str(caught.value)) < 500


def test_skip_counts(tmp_path):
    (tmp_path / "a.json").write_text(BAD)
    source = FileSource(tmp_path, "json", Click, on_bad_record="skip")
    harness = ReaderHarness(source, all_splits(source))
    assert harness.rows() == [Click("a", 1), Click("c", 3)]
    assert harness.metrics["bad_records"].value == 2
    assert harness.side == {}


def test_side_output_gets_file_line_reason_and_text(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(BAD)
    source = FileSource(tmp_path, "json", Click, on_bad_record=OutputTag("broken", BadRecord))
    harness = ReaderHarness(source, all_splits(source))
    assert harness.rows() == [Click("a", 1), Click("c", 3)]
    two, four = harness.side["broken"]
    assert two == BadRecord(str(file), 2, "field 'n': Expected `int`, got `str`", '{"app":"b","n":"two"}')
    assert (four.line, four.text) == (4, "not json")


def test_a_file_of_bad_lines_alone_lets_the_task_breathe_between_chunks(tmp_path, small_chunks):
    (tmp_path / "a.json").write_text("nonsense\n" * 100)
    source = FileSource(tmp_path, "json", Click, on_bad_record="skip")
    harness = ReaderHarness(source, all_splits(source))
    answer = harness.poll()
    assert answer.wake_at_ns is not None
    assert harness.metrics["bad_records"].value < 100
    assert harness.next_batch() is None
    assert harness.metrics["bad_records"].value == 100


def test_text_that_is_not_utf8_goes_to_the_side_output_escaped(tmp_path):
    (tmp_path / "a.json").write_bytes(b'{"app":"\xff","n":1}\n')
    source = FileSource(tmp_path, "json", Click, on_bad_record="side:bad")
    harness = ReaderHarness(source, all_splits(source))
    assert harness.rows() == []
    assert harness.side["bad"][0].text == '{"app":"\\xff","n":1}'


@pytest.mark.parametrize("policy", ["ignore", "side:", None, 5])
def test_an_unknown_policy_is_refused(policy):
    with pytest.raises(ProgramError, match="on_bad_record cannot be"):
        FileSource("x.json", on_bad_record=policy)


def test_a_line_without_end_is_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(b"x" * 1_000_000)
    with pytest.raises(InputFileError, match="line of more than 1024 bytes"):
        read_all(FileSource(tmp_path, "json", Click, max_line_size="1 KiB"))


# --- files that are not there, or change ---


def start(source: FileSource) -> EnumeratorHarness:
    harness = EnumeratorHarness(source)
    harness.enumerator.start()
    return harness


def test_a_missing_file_and_an_empty_glob_are_named(tmp_path):
    with pytest.raises(InputFileError, match=r"nothing\.json does not exist"):
        start(FileSource(tmp_path / "nothing.json", "json", Click))
    with pytest.raises(InputFileError, match=r"no file matches .*\*\.json"):
        start(FileSource(f"{tmp_path}/*.json", "json", Click))
    with pytest.raises(InputFileError, match=r"no file matches .*no/\*"):
        start(FileSource(f"{tmp_path}/no/*", "json", Click))
    with pytest.raises(InputFileError, match="no file matches"):
        start(FileSource(tmp_path, "json", Click))
    with pytest.raises(InputFileError, match=r"nothing\.json does not exist"):
        _ = FileSource(tmp_path / "nothing.json").record_type


def test_an_unknown_filesystem_is_named_without_its_password():
    with pytest.raises(InputFileError, match=r"cannot use foo://host/a\*") as caught:
        start(FileSource("foo://user:secret@host/a*", "json", Click))
    assert "secret" not in str(caught.value)
    assert "secret" not in FileSource("s3://user:secret@host/a*", "json", Click).describe()


def test_zero_length_files_are_fine(tmp_path):
    (tmp_path / "a.json").write_text("")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "c.csv").write_text("")
    assert read_all(FileSource([tmp_path / "a.json", tmp_path / "b.json.gz"], "json", Click)) == []
    assert read_all(FileSource(tmp_path / "c.csv", "csv", Click)) == []


def change_truncate(file: Path) -> None:
    os.truncate(file, 100)


def change_append(file: Path) -> None:
    with file.open("a") as f:
        f.write(lines_of(clicks(1)))


def change_replace(file: Path) -> None:
    stat = file.stat()
    file.write_bytes(file.read_bytes().replace(b"app", b"APP"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))


@pytest.mark.parametrize("change", [change_truncate, change_append, change_replace, os.remove])
@pytest.mark.parametrize("when", ["before", "while", "restored"])
def test_a_file_that_changes_is_named(tmp_path, small_chunks, change, when):
    file = tmp_path / "a.json"
    file.write_text(lines_of(clicks(100)))
    source = FileSource(tmp_path, "json", Click)
    harness = ReaderHarness(source, all_splits(source), batch_rows=1)
    if when != "before":
        assert harness.next_batch().rows == clicks(1)
    change(file)
    if when == "restored":
        harness = harness.restart(source)
    with pytest.raises(FileChangedError, match=r"a\.json"):
        harness.rows()


# --- schema ---


def test_the_schema_is_inferred_once_and_travels_with_the_source(tmp_path):
    (tmp_path / "a.json").write_text(lines_of(clicks(3)))
    source = pickle.loads(pickle.dumps(FileSource(tmp_path / "a.json")))
    (tmp_path / "a.json").write_text('{"other":1}\n')
    assert source.record_type.schema == pa.schema({"app": pa.string(), "n": pa.int64()})


def test_a_schema_that_cannot_be_inferred_says_so(tmp_path):
    (tmp_path / "a.json").write_text("[]\n")
    with pytest.raises(SchemaError, match=r"a\.json: no line .* Give FileSource a schema"):
        _ = FileSource(tmp_path / "a.json").record_type
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputFileError, match=r"nothing in .* yet"):
        _ = FileSource(tmp_path / "empty", "json", watch="1 s").record_type


def test_with_columns_reads_only_those_in_the_given_order(tmp_path):
    (tmp_path / "a.json").write_text('{"app":"x","n":1}\n{"app":"y","n":"not checked"}\n')
    narrow = FileSource(tmp_path, "json", Click).with_columns(["app"])
    assert [tuple(r) for r in read_all(narrow)] == [("x",), ("y",)]
    (tmp_path / "a.json").write_text(lines_of(clicks(2)))
    turned = FileSource(tmp_path, "json", Click).with_columns(["n", "app"])
    assert [tuple(r) for r in read_all(turned)] == [(0, "app-0"), (1, "app-1")]
    assert read_all(turned)[1].app == "app-1"
    assert len(read_all(turned.with_columns([]))) == 2
    with pytest.raises(SchemaError, match="'x', but the records have n, app"):
        turned.with_columns(["x"])


def test_csv_columns_are_found_in_each_file_by_its_own_header(tmp_path):
    (tmp_path / "a.csv").write_text("app;n\nx;1\n")
    (tmp_path / "b.csv").write_text('"n";extra;"app"\n2;z;y\n')
    source = FileSource(tmp_path, CsvFormat(delimiter=";"), Click)
    assert read_all(source) == [Click("x", 1), Click("y", 2)]
    assert [tuple(r) for r in read_all(source.with_columns(["n"]))] == [(1,), (2,)]
    (tmp_path / "c.csv").write_text("app;m\nx;1\n")
    with pytest.raises(SchemaError, match=r"c\.csv: there is no column 'n'; the columns are app, m"):
        read_all(source)


def test_csv_without_header_takes_columns_in_order(tmp_path):
    (tmp_path / "a.csv").write_text("x,1\ny,2\n")
    source = FileSource(tmp_path, CsvFormat(header=False), Click)
    assert read_all(source) == [Click("x", 1), Click("y", 2)]
    assert [tuple(r) for r in read_all(source.with_columns(["n"]))] == [(1,), (2,)]


def test_lines_of_text_are_strings_the_empty_ones_too(tmp_path, small_chunks):
    lines = [f"line {i}" if i % 3 else "" for i in range(50)]
    (tmp_path / "a.txt").write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
    for source in (FileSource(tmp_path / "a.txt"), FileSource(tmp_path / "*", "text", split_size=40)):
        assert source.record_type.describe() == "str"
        assert counted(read_all(source)) == counted(lines)


def test_dictionary_columns_are_encoded_and_read_alike(tmp_path):
    (tmp_path / "a.json").write_text(lines_of(clicks(20)))
    source = FileSource(tmp_path, "json", Click, dictionary_columns=["app"])
    harness = ReaderHarness(source, all_splits(source))
    batch = harness.next_batch()
    assert pa.types.is_dictionary(batch.columns.column("app").type)
    assert batch.rows == clicks(20)
    with pytest.raises(SchemaError, match="'n', which is int64"):
        FileSource(tmp_path, "json", Click, dictionary_columns=["n"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": []}, "needs a path"),
        ({"path": "x.bin"}, "cannot be derived from its name"),
        ({"path": "x", "format": "xml"}, "no file format 'xml'"),
        ({"path": "x.json", "watch": "soon"}, "watch='soon'"),
        ({"path": "x.json", "split_size": 0}, "split_size=0"),
        ({"path": "x.parquet", "on_bad_record": "skip"}, "no bad records to pass over"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ProgramError, match=message):
        FileSource(**arguments)


def test_a_schema_without_columns_is_refused():
    with pytest.raises(SchemaError, match="needs a schema with columns"):
        FileSource("x.json", schema=object)


# --- where a batch came from ---


def test_batches_know_their_first_line(tmp_path, small_chunks):
    file = tmp_path / "a.csv"
    file.write_text("app,n\n" + "".join(f"{c.app},{c.n}\n" for c in clicks(50)))
    source = FileSource(file, "csv", Click)
    harness = ReaderHarness(source, all_splits(source), batch_rows=3)
    for batch in harness.batches():
        assert batch.origin.at(0) == f"line {batch.rows[0].n + 2} of {file}"


def test_batches_from_the_middle_of_a_file_count_from_a_byte(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(lines_of(clicks(100)))
    source = FileSource(file, "json", Click, split_size="1 KiB")
    harness = ReaderHarness(source, all_splits(source)[1:])
    batch = harness.next_batch()
    offset = len(lines_of(clicks(batch.rows[0].n)))
    assert batch.origin.at(1) == f"record 2 of {file} from byte {offset}"


# --- the enumerator ---


def test_every_reader_gets_splits_until_there_are_none(tmp_path):
    (tmp_path / "a.json").write_text(lines_of(clicks(100)))
    harness = EnumeratorHarness(FileSource(tmp_path, "json", Click, split_size="500 B"), 2)
    harness.enumerator.start()
    for i in range(20):
        harness.enumerator.handle_split_request(i % 2)
    assert harness.told_no_more == {0, 1}
    assert abs(len(harness.assigned[0]) - len(harness.assigned[1])) <= 1


def test_a_bounded_enumerator_restores_what_is_left(tmp_path):
    (tmp_path / "a.json").write_text(lines_of(clicks(100)))
    source = FileSource(tmp_path, "json", Click, split_size="500 B")
    splits = all_splits(source)
    harness = EnumeratorHarness(source)
    harness.enumerator.start()
    harness.enumerator.handle_split_request(0)
    state = harness.enumerator.snapshot()
    (tmp_path / "late.json").write_text(lines_of(clicks(1)))
    again = EnumeratorHarness(source, state=state)
    again.enumerator.start()
    for _ in splits:
        again.enumerator.handle_split_request(0)
    assert again.assigned[0] == splits[1:]


def test_watching_finds_each_new_file_once(tmp_path, caplog):
    source = FileSource(tmp_path, "json", Click, watch="1 s")
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    harness = EnumeratorHarness(source, 2)
    assert harness.enumerator.poll_interval_ms == 1000
    harness.enumerator.start()
    harness.enumerator.handle_split_request(1)
    harness.enumerator.handle_split_request(0)
    assert harness.assigned == {}
    (tmp_path / "a.json").write_text(lines_of(clicks(1)))
    (tmp_path / ".b.json").write_text("x")
    (tmp_path / "c.json.tmp").write_text("x")
    (tmp_path / "d.json").write_text("")
    harness.enumerator.poll()
    assert [s.path for s in harness.assigned[1]] == [str(tmp_path / "a.json")]
    harness.enumerator.poll()
    assert list(harness.assigned) == [1]

    (tmp_path / ".b.json").rename(tmp_path / "b.json")
    (tmp_path / "d.json").write_text(lines_of(clicks(1)))
    restored = EnumeratorHarness(source, 2, state=harness.enumerator.snapshot())
    restored.enumerator.handle_split_request(0)
    restored.enumerator.start()
    restored.enumerator.handle_split_request(0)
    assert [os.path.basename(s.path) for s in restored.assigned[0]] == ["b.json", "d.json"]
    assert restored.told_no_more == set()

    (tmp_path / "b.json").write_text(lines_of(clicks(2)))
    restored.enumerator.poll()
    restored.enumerator.poll()
    assert caplog.text.count("b.json changed after it was read") == 1
    assert len(restored.assigned[0]) == 2


def test_watching_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputFileError, match="cannot watch"):
        start(FileSource(tmp_path / "no", "json", Click, watch="1 s"))
    with pytest.raises(InputFileError, match="cannot watch"):
        start(FileSource(f"{tmp_path}/no/*.json", "json", Click, watch="1 s"))
