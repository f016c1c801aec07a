"""Sources, sinks and files that are bad: the operator, the file and the line are named, and nothing hangs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.kit import Noting, bag, collected, failure, numbers
from tidegate import Environment, OutputTag
from tidegate.api.sink import Sink, SinkJob, SinkWriter, WriterContext
from tidegate.api.source import EnumeratorContext, ReaderContext, SourceReader, SplitEnumerator
from tidegate.connectors.files import FileSource
from tidegate.connectors.files.paths import InputFileError
from tidegate.program.sequences import CollectionSource

pytestmark = pytest.mark.timeout(60)


RUNTIMES = ("in-process, seed 0", "processes", "Spark")
also_on_spark = pytest.mark.parametrize("surviving_env", RUNTIMES, indirect=True)


@pytest.fixture
def env(surviving_env: Environment) -> Environment:
    return surviving_env


@dataclass
class Count:
    word: str
    n: int


# ---- sources and sinks of the user ----


class BadSource(CollectionSource):
    """Raises where it is told to."""

    def __init__(self, where: str, error: type[BaseException] = OSError) -> None:
        super().__init__([1, 2, 3], int)
        self.where = where
        self.error = error

    def fail(self, where: str) -> None:
        if where == self.where:
            raise self.error(f"the disk is gone in {where}")

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        self.fail("create_enumerator")
        enumerator = super().create_enumerator(context)
        request = enumerator.handle_split_request

        def start() -> None:
            self.fail("start")

        def handle(subtask: int) -> None:
            self.fail("handle_split_request")
            request(subtask)

        enumerator.start, enumerator.handle_split_request = start, handle  # type: ignore[method-assign]
        return enumerator

    def create_reader(self, context: ReaderContext) -> SourceReader:
        self.fail("create_reader")
        reader = super().create_reader(context)
        poll, close = reader.poll, reader.close

        def bad_poll() -> Any:
            if self.where == "poll returns nonsense":
                return [1, 2]
            self.fail("poll")
            return poll()

        def bad_close() -> None:
            close()
            self.fail("reader close")

        reader.poll, reader.close = bad_poll, bad_close  # type: ignore[method-assign]
        return reader


@pytest.mark.parametrize(
    "where",
    ["create_enumerator", "start", "handle_split_request", "create_reader", "poll", "reader close"],
)
def test_a_source_that_raises(env, where):
    text = failure(lambda: collected(env.from_source(BadSource(where), name="broken source")))
    assert "'broken source'" in text
    assert f"OSError: the disk is gone in {where}" in text


@also_on_spark
def test_an_enumerator_that_calls_sys_exit(env):
    text = failure(lambda: collected(env.from_source(BadSource("start", SystemExit), name="broken source")))
    assert "'broken source'" in text


@also_on_spark
def test_a_reader_that_returns_nonsense(env):
    text = failure(
        lambda: collected(env.from_source(BadSource("poll returns nonsense"), name="broken source"))
    )
    assert "'broken source'" in text
    assert "must return a Batch, Idle or Finished" in text


class BadSink(Sink):
    def __init__(self, where: str) -> None:
        self.where = where

    def create_writer(self, context: WriterContext) -> SinkWriter:
        self.fail("create_writer")
        return BadWriter(self)

    def prepare(self, job: SinkJob) -> None:
        self.fail("prepare")

    def fail(self, where: str) -> None:
        if where == self.where:
            raise OSError(f"the disk is full in {where}")


class BadWriter(SinkWriter):
    def __init__(self, sink: BadSink) -> None:
        self.sink = sink

    def write(self, batch: Any) -> None:
        self.sink.fail("write")

    def flush(self, end_of_input: bool) -> None:
        self.sink.fail("flush")

    def is_ready(self) -> bool:
        self.sink.fail("is_ready")
        return True

    def close(self) -> None:
        self.sink.fail("close")


@pytest.mark.parametrize("where", ["create_writer", "write", "flush", "is_ready", "close"])
def test_a_sink_that_raises(env, where):
    numbers(env).sink_to(BadSink(where), name="broken sink")
    text = failure(env.execute)
    assert "operator 'broken sink' (subtask " in text
    assert f"OSError: the disk is full in {where}" in text


def test_a_sink_that_cannot_be_prepared_fails_before_anything_runs(env):
    numbers(env).sink_to(BadSink("prepare"), name="broken sink")
    with pytest.raises(OSError, match="the disk is full in prepare"):
        env.execute()


@also_on_spark
def test_a_function_sink_that_raises_names_the_record(env):
    numbers(env).sink_to(lambda n: 1 // (n - 6), name="function sink")
    text = failure(env.execute)
    assert "operator 'function sink'" in text
    assert "value 6 of collection" in text
    assert "record 6" in text


# ---- files ----


def write_lines(folder: Path) -> None:
    lines = [f'{{"word":"w{i}","n":{i}}}' for i in range(20)]
    lines[7] = '{"word":"w7","n":"seven"}'
    lines[12] = '{"word": nonsense'
    (folder / "words.json").write_text("\n".join(lines) + "\n")


GOOD_NUMBERS = [i for i in range(20) if i not in (7, 12)]


@also_on_spark
def test_a_bad_line_fails_the_job_with_file_line_and_reason(env, tmp_path):
    write_lines(tmp_path)
    text = failure(lambda: collected(env.from_source(FileSource(tmp_path, "json", Count), name="words")))
    assert "operator 'words'" in text
    assert f"line 8 of {tmp_path / 'words.json'} is not a record" in text
    assert "seven" in text
    assert "on_bad_record='skip'" in text
    assert "Traceback" not in text


def test_bad_lines_are_skipped_and_counted(env, tmp_path):
    write_lines(tmp_path)
    note = Noting(tmp_path / "notes")
    source = FileSource(tmp_path / "words.json", "json", Count, on_bad_record="skip")
    env.from_source(source, name="words").map(lambda c: c.n).sink_to(note)
    metrics = env.execute()
    assert bag(note.read()) == bag(GOOD_NUMBERS)
    counters = [s.counters for v in metrics.vertices for s in v.subtasks]
    assert sum(c.get("bad_records", 0) for c in counters) == 2


def test_bad_lines_go_to_a_side_output_with_file_line_and_text(env, tmp_path):
    write_lines(tmp_path)
    bad = OutputTag("bad")
    note, good = Noting(tmp_path / "notes"), Noting(tmp_path / "good")
    words = env.from_source(FileSource(tmp_path / "words.json", "json", Count, on_bad_record=bad))
    words.get_side_output(bad).rebalance().map(lambda b: (os.path.basename(b.file), b.line, b.text)).sink_to(
        note
    )
    words.map(lambda c: c.n).sink_to(good)
    env.execute()
    assert sorted(note.read()) == [
        ("words.json", 8, '{"word":"w7","n":"seven"}'),
        ("words.json", 13, '{"word": nonsense'),
    ]
    assert bag(good.read()) == bag(GOOD_NUMBERS)


def test_a_missing_file_is_named(env, tmp_path):
    missing = tmp_path / "missing.json"
    text = failure(lambda: collected(env.from_source(FileSource(missing, "json", Count), name="words")))
    assert f"source 'words' cannot be read: {missing} does not exist" in text
    assert "Traceback" not in text
    with pytest.raises(InputFileError, match=r"missing\.json does not exist"):
        env.from_source(FileSource(missing, "json"))  # must look at the file to find the schema


def test_a_parquet_file_of_another_schema_is_named(env, tmp_path):
    pq.write_table(pa.table({"word": ["a"], "n": ["one"]}), tmp_path / "words.parquet")
    text = failure(lambda: collected(env.from_source(FileSource(tmp_path, "parquet", Count), name="words")))
    assert "operator 'words'" in text or "source 'words'" in text
    assert "words.parquet" in text
    assert "n" in text


def test_a_file_that_is_no_parquet_is_named(env, tmp_path):
    (tmp_path / "words.parquet").write_text("nonsense")
    text = failure(lambda: collected(env.from_source(FileSource(tmp_path, "parquet", Count), name="words")))
    assert "source 'words'" in text
    assert "words.parquet" in text
