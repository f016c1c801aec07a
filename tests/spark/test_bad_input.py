"""Bad programs, bad functions, bad data: each ends with one clear error that names the operator, and nothing hangs.

Every case runs in one thread and on Spark. After each failure on Spark the same session runs a good job.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.kit import Noting, assert_still_works, bag, in_process
from tidegate import (
    BadRecordError,
    ConfigurationError,
    DataStream,
    Environment,
    JobFailedError,
    MapFunction,
    OutputTag,
    ProgramError,
    RuntimeContext,
    SchemaError,
)
from tidegate.api.sequences import CollectionSource
from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.api.source import EnumeratorContext, ReaderContext, SourceReader, SplitEnumerator
from tidegate.api.transformations import StreamRef
from tidegate.connectors.files import FileSource
from tidegate.connectors.files.paths import InputFileError
from tidegate.core.errors import SerializationError, TidegateError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["in-process", "Spark"])
def env(request: pytest.FixtureRequest) -> Iterator[Environment]:
    if request.param == "in-process":
        yield in_process()
        return
    make_env = request.getfixturevalue("make_env")
    yield make_env()
    assert_still_works(make_env())


def failure(run: Callable[[], Any]) -> str:
    """Run a job that must fail; return what the user reads, once it is what every such message must be."""
    with pytest.raises(JobFailedError) as caught:
        run()
    text = str(caught.value)
    for word in ("org.apache.spark", "py4j", "mapInArrow", "tidegate/taskmanager", "tidegate/operators"):
        assert word not in text, text
    assert text.count("Traceback (most recent call last)") <= 1, text
    assert len(text.splitlines()) < 40, text
    return text


def run(stream: DataStream) -> list[Any]:
    return list(stream.execute_and_collect())


def numbers(env: Environment, n: int = 20) -> DataStream:
    return env.from_collection(list(range(n)), type=int, parallelism=1, name="numbers")


# ---- functions that raise ----


def test_a_function_that_raises_is_named_with_subtask_record_position_and_its_own_traceback(env):
    def reciprocal(n: int) -> float:
        return 1 / (n - 13)

    text = failure(lambda: run(numbers(env).map(reciprocal, name="reciprocal of each", parallelism=1)))
    assert text.startswith(
        "job 'job' failed: operator 'reciprocal of each' (subtask 0 of 1) raised ZeroDivisionError"
    )
    assert "value 13 of collection" in text
    assert "record 13" in text
    assert text.count("return 1 / (n - 13)") == 1
    assert text.count("test_bad_input.py") == 1
    assert "in reciprocal" in text


class NotPicklable(Exception):
    def __init__(self, words: str, lock: Any) -> None:
        super().__init__(words)
        self.lock = lock

    def __reduce__(self) -> Any:
        raise TypeError("never")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words for it")

    __repr__ = __str__


class UnprintableRecord:
    def __repr__(self) -> str:
        raise RuntimeError("no words for it")


def recurse(n: int) -> int:
    return recurse(n + 1)


def _raise(error: BaseException) -> Any:
    raise error


RAISING: dict[str, tuple[Callable[[int], Any], list[str]]] = {
    "MemoryError": (lambda n: _raise(MemoryError("64 GiB")), ["MemoryError: 64 GiB"]),
    "RecursionError": (recurse, ["RecursionError", "Previous line repeated"]),
    "an exception that cannot be pickled": (
        lambda n: _raise(NotPicklable("bad luck", threading.Lock())),
        ["NotPicklable: bad luck"],
    ),
    "an exception whose str raises": (lambda n: _raise(Unprintable()), ["Unprintable"]),
    "an exception of several lines": (
        lambda n: _raise(ValueError("one\ntwo\nthree")),
        ["ValueError: one", "three"],
    ),
    "an exception without a message": (lambda n: _raise(KeyError()), ["KeyError"]),
    "a group of exceptions": (
        lambda n: _raise(ExceptionGroup("both", [ValueError("a"), TypeError("b")])),
        ["ExceptionGroup: both"],
    ),
    "sys.exit": (lambda n: sys.exit(3), ["the function called sys.exit(3)"]),
    "KeyboardInterrupt": (lambda n: _raise(KeyboardInterrupt()), ["KeyboardInterrupt"]),
    "StopIteration": (lambda n: next(iter([])), ["StopIteration"]),
    "a cause behind it": (lambda n: _raise_from(), ["RuntimeError: outer"]),
}


def _raise_from() -> None:
    try:
        raise ValueError("inner")
    except ValueError as e:
        raise RuntimeError("outer") from e


@pytest.mark.parametrize("what", RAISING)
def test_whatever_a_function_raises_is_reported_with_its_name(env, what):
    function, words = RAISING[what]

    def culprit(n: int) -> Any:
        return function(n) if n == 5 else n

    text = failure(lambda: run(numbers(env).map(culprit, name="the culprit")))
    assert "operator 'the culprit' (subtask " in text
    for word in words:
        assert word in text
    assert "record 5" in text


def test_a_record_whose_repr_raises_is_still_blamed(env):
    records = env.from_collection([UnprintableRecord()], parallelism=1)
    text = failure(lambda: run(records.map(lambda r: 1 / 0, name="divide")))
    assert "operator 'divide'" in text
    assert "whose repr raises RuntimeError" in text


class Failing(MapFunction):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, context: RuntimeContext) -> None:
        if self.where == "open":
            raise OSError("cannot open")

    def map(self, value: int) -> int:
        if self.where == "map":
            raise OSError("cannot map")
        return value

    def close(self) -> None:
        if self.where in ("close", "map"):
            raise OSError("cannot close")


@pytest.mark.parametrize("where", ["open", "map", "close"])
def test_a_function_that_raises_in_open_map_or_close(env, where):
    text = failure(lambda: run(numbers(env).map(Failing(where), name="failing")))
    assert "operator 'failing' (subtask " in text
    assert f"OSError: cannot {where}" in text


# ---- functions that end their process: only on Spark ----


@pytest.mark.parametrize("how", ["os._exit", "SIGKILL", "abort"])
def test_a_function_that_ends_its_process_fails_the_job_and_only_that(make_env, how):
    def end(n: int) -> int:
        if n == 7:
            if how == "os._exit":
                os._exit(9)
            os.kill(os.getpid(), signal.SIGKILL if how == "SIGKILL" else signal.SIGABRT)
        return n

    text = failure(lambda: run(numbers(make_env()).rebalance().map(end, name="deadly")))
    assert "deadly" in text
    assert re.search(r"slot \d \(pid \d+ on host [\d.]+\) ended without a word", text)
    assert_still_works(make_env())


# ---- wrong results ----


@dataclass
class Count:
    word: str
    n: int


def test_a_function_that_returns_the_wrong_type(env):
    def lies(n: int) -> int:
        return str(n) if n == 4 else n  # type: ignore[return-value]

    text = failure(lambda: run(numbers(env).map(lies, name="lies")))
    assert "operator 'lies'" in text
    assert "wrong type" in text
    assert "int" in text
    assert "'4'" in text


def test_a_function_that_returns_none_where_a_record_is_expected(env):
    def forgets(n: int) -> Count:
        return Count("x", n) if n < 9 else None  # type: ignore[return-value]

    text = failure(lambda: run(numbers(env).map(forgets, name="forgets", parallelism=1)))
    assert "operator 'forgets'" in text
    assert "NoneType" in text
    assert "record 9" in text


def test_a_field_of_the_wrong_type_is_blamed_on_the_function_that_made_it(env):
    def make(n: int) -> Count:
        return Count("x", "many" if n == 3 else n)  # type: ignore[arg-type]

    stream = numbers(env).map(make, name="makes it").filter(lambda c: True, name="passes it on")
    text = failure(lambda: run(stream.key_by("n").count(name="counts it")))
    assert "operator 'makes it'" in text
    assert "column 'n' is int64 but got a str: 'many'" in text


def test_a_field_of_the_wrong_type_that_is_found_when_the_batch_is_sent(env):
    def make(n: int) -> Count:
        return Count("x", "many" if n == 15 else n)  # type: ignore[arg-type]

    stream = numbers(env).map(make, name="makes it", parallelism=1).rebalance().map(str, parallelism=2)
    text = failure(lambda: run(stream))
    assert "makes it" in text
    assert "column 'n' is int64 but got a str: 'many'" in text
    assert "Traceback" not in text


def test_a_flat_map_that_returns_no_iterable(env):
    text = failure(lambda: run(numbers(env).flat_map(lambda n: n, name="flat")))
    assert "operator 'flat'" in text
    assert "must return an iterable of records" in text


def test_a_batch_function_that_returns_another_schema_or_no_batch(env):
    def renames(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.rename_columns(["other"])

    text = failure(lambda: run(numbers(env).map_batches(renames, name="renames")))
    assert "operator 'renames'" in text
    assert "'value' missing" in text
    assert "'other' not declared" in text
    text = failure(lambda: run(numbers(env).map_batches(lambda b: b.to_pylist(), name="lists")))
    assert "operator 'lists'" in text
    assert "expected a pyarrow.RecordBatch" in text


def test_an_object_that_cannot_leave_its_process(env):
    stream = (
        numbers(env)
        .map(lambda n: threading.Lock(), name="locks")
        .rebalance()
        .map(lambda lock: 1, parallelism=2)
    )
    text = failure(lambda: run(stream))
    assert "operator 'locks'" in text
    assert "cannot leave its process" in text


def test_a_side_output_that_is_not_declared(env):
    tag = OutputTag("late", int)
    text = failure(lambda: run(numbers(env).process(lambda n, context: context.output(tag, n), name="sides")))
    assert "operator 'sides'" in text
    assert "side output 'late' is not declared" in text


# ---- keys and partitionings ----


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_function_that_raises(env, parallelism):
    keyed = numbers(env).key_by(lambda n: 1 // (n - 3))
    text = failure(lambda: run(keyed.reduce(lambda a, b: a + b, name="adds", parallelism=parallelism)))
    assert "operator 'adds'" in text
    assert "ZeroDivisionError" in text
    assert text.count("1 // (n - 3)") == 1


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_that_cannot_be_hashed(env, parallelism):
    text = failure(
        lambda: run(numbers(env).key_by(lambda n: [n]).count(name="counts", parallelism=parallelism))
    )
    assert "operator 'counts'" in text
    assert "list" in text


@pytest.mark.parametrize("returned", [-1, 2, None, "0", 1.0])
def test_a_custom_partitioning_out_of_range(env, returned):
    stream = numbers(env).partition_custom(lambda key, subtasks: returned, "value")
    text = failure(lambda: run(stream.map(str, name="text", parallelism=2)))
    assert "operator 'text'" in text
    assert f"returned {returned!r} for key 0" in text
    assert "from 0 to 1" in text


def test_a_custom_partitioning_that_raises_or_whose_key_raises(env):
    stream = numbers(env).partition_custom(lambda key, subtasks: 1 // key, "value")
    text = failure(lambda: run(stream.map(str, name="text", parallelism=2)))
    assert "operator 'text'" in text
    assert "ZeroDivisionError" in text
    stream = numbers(env).partition_custom(lambda key, subtasks: 0, lambda n: 1 // n)
    text = failure(lambda: run(stream.map(str, name="text", parallelism=2)))
    assert "operator 'text'" in text
    assert text.count("1 // n") == 1


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
    text = failure(lambda: run(env.from_source(BadSource(where), name="broken source")))
    assert "'broken source'" in text
    assert f"OSError: the disk is gone in {where}" in text


def test_an_enumerator_that_calls_sys_exit(env):
    text = failure(lambda: run(env.from_source(BadSource("start", SystemExit), name="broken source")))
    assert "'broken source'" in text


def test_a_reader_that_returns_nonsense(env):
    text = failure(lambda: run(env.from_source(BadSource("poll returns nonsense"), name="broken source")))
    assert "'broken source'" in text
    assert "must return a Batch, Idle or Finished" in text


class BadSink(Sink):
    def __init__(self, where: str) -> None:
        self.where = where

    def create_writer(self, context: WriterContext) -> SinkWriter:
        self.fail("create_writer")
        return BadWriter(self)

    def prepare(self, parallelism: int) -> None:
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


def test_a_bad_line_fails_the_job_with_file_line_and_reason(env, tmp_path):
    write_lines(tmp_path)
    text = failure(lambda: run(env.from_source(FileSource(tmp_path, "json", Count), name="words")))
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
    text = failure(lambda: run(env.from_source(FileSource(missing, "json", Count), name="words")))
    assert f"source 'words' cannot be read: {missing} does not exist" in text
    assert "Traceback" not in text
    with pytest.raises(InputFileError, match=r"missing\.json does not exist"):
        env.from_source(FileSource(missing, "json"))  # must look at the file to find the schema


def test_a_parquet_file_of_another_schema_is_named(env, tmp_path):
    pq.write_table(pa.table({"word": ["a"], "n": ["one"]}), tmp_path / "words.parquet")
    text = failure(lambda: run(env.from_source(FileSource(tmp_path, "parquet", Count), name="words")))
    assert "operator 'words'" in text or "source 'words'" in text
    assert "words.parquet" in text
    assert "n" in text


def test_a_file_that_is_no_parquet_is_named(env, tmp_path):
    (tmp_path / "words.parquet").write_text("nonsense")
    text = failure(lambda: run(env.from_source(FileSource(tmp_path, "parquet", Count), name="words")))
    assert "source 'words'" in text
    assert "words.parquet" in text


# ---- refused before anything runs ----


def test_types_that_do_not_fit_are_refused_while_the_program_is_written():
    env = in_process()
    with pytest.raises(SchemaError, match="from_collection: .*int.*'x'"):
        env.from_collection([1, "x"], type=int)
    with pytest.raises(ProgramError, match="union needs streams of one type: 'a' has int, 'b' has str"):
        env.from_collection([1], name="a").union(env.from_collection(["x"], name="b"))
    with pytest.raises(TidegateError, match="key_by names column 'nope', but the records have value"):
        env.from_collection([1]).key_by("nope")


def test_a_function_that_cannot_travel_is_named_with_the_culprit(env):
    lock = threading.Lock()
    stream = numbers(env).map(lambda n: n if lock else 0, name="guarded")
    with pytest.raises(SerializationError) as caught:
        run(stream)
    text = str(caught.value)
    assert "operator 'guarded'" in text
    assert "the captured variable 'lock'" in text
    assert "open()" in text


def test_a_cycle_is_refused():
    env = in_process()
    first = env.from_sequence(1, 3).map(lambda n: n, name="first")
    second = first.map(lambda n: n, name="second")
    first._node.inputs = ((StreamRef(second._node),),)
    second.sink_to(lambda n: None)
    with pytest.raises(ProgramError, match=r"cycle through operator '(first|second)'"):
        env.execute()


def test_no_sink_two_uids_and_a_mistyped_option_are_refused():
    env = in_process()
    numbers(env).map(lambda n: n)
    with pytest.raises(ProgramError, match="no sink"):
        env.execute()
    env = in_process()
    numbers(env).map(lambda n: n, name="a", uid="x").map(lambda n: n, name="b", uid="x").print()
    with pytest.raises(ProgramError, match="'a' and 'b' both have the uid 'x'"):
        env.execute()
    with pytest.raises(ConfigurationError, match="'paralelism'.*Did you mean parallelism"):
        Environment(paralelism=2)
    with pytest.raises(ProgramError, match="unknown setting 'paralelism'"):
        numbers(in_process()).map(lambda n: n, paralelism=2)


# ---- what is printed ----

SCRIPT = """
from __future__ import annotations
import datetime
from dataclasses import dataclass
from tidegate import Environment

@dataclass
class Visit:
    who: str
    when: datetime.date

def age_in_days(visit: Visit) -> int:
    return (datetime.date(2024, 1, 1) - visit.when).days // len(visit.who)

if __name__ == "__main__":
    env = Environment(parallelism=2)
    day = datetime.date(2023, 12, 1)
    visits = env.from_collection([Visit("a", day), Visit("", day)], parallelism=1)
    visits.rebalance().map(age_in_days).sink_to(print, name="out")
    env.execute()
"""


def test_a_script_that_fails_prints_the_users_traceback_once_and_no_page_of_sparks(tmp_path):
    script = tmp_path / "visits.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    shown = done.stdout + done.stderr
    assert "operator 'map age_in_days' (subtask " in shown
    assert shown.count("days // len(visit.who)") == 1
    assert shown.count("ZeroDivisionError") <= 2  # in the first line, and at the end of the traceback
    assert "Visit(who='', when=datetime.date(2023, 12, 1))" in shown
    for word in ("org.apache.spark", "Py4J", "\tat ", "pyspark/worker.py", "Caused by"):
        assert word not in shown
    assert len(shown.splitlines()) < 45, shown
    assert list(tmp_path.iterdir()) == [script]
