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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.kit import assert_still_works, collected, failure, in_process, numbers
from tidegate import (
    ConfigurationError,
    Environment,
    MapFunction,
    OutputTag,
    ProgramError,
    RuntimeContext,
    SchemaError,
)
from tidegate.core.errors import SerializationError, TidegateError
from tidegate.program.transformations import StreamRef

pytestmark = pytest.mark.timeout(60)


RUNTIMES = ("in-process, seed 0", "processes", "Spark")
also_on_spark = pytest.mark.parametrize("surviving_env", RUNTIMES, indirect=True)


@pytest.fixture
def env(surviving_env: Environment) -> Environment:
    return surviving_env


# ---- functions that raise ----


@also_on_spark
def test_a_function_that_raises_is_named_with_subtask_record_position_and_its_own_traceback(env):
    def reciprocal(n: int) -> float:
        return 1 / (n - 13)

    text = failure(lambda: collected(numbers(env).map(reciprocal, name="reciprocal of each", parallelism=1)))
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

    text = failure(lambda: collected(numbers(env).map(culprit, name="the culprit")))
    assert "operator 'the culprit' (subtask " in text
    for word in words:
        assert word in text
    assert "record 5" in text


def test_a_record_whose_repr_raises_is_still_blamed(env):
    records = env.from_collection([UnprintableRecord()], parallelism=1)
    text = failure(lambda: collected(records.map(lambda r: 1 / 0, name="divide")))
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
    text = failure(lambda: collected(numbers(env).map(Failing(where), name="failing")))
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

    text = failure(lambda: collected(numbers(make_env()).rebalance().map(end, name="deadly")))
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

    text = failure(lambda: collected(numbers(env).map(lies, name="lies")))
    assert "operator 'lies'" in text
    assert "wrong type" in text
    assert "int" in text
    assert "'4'" in text


def test_a_function_that_returns_none_where_a_record_is_expected(env):
    def forgets(n: int) -> Count:
        return Count("x", n) if n < 9 else None  # type: ignore[return-value]

    text = failure(lambda: collected(numbers(env).map(forgets, name="forgets", parallelism=1)))
    assert "operator 'forgets'" in text
    assert "NoneType" in text
    assert "record 9" in text


def test_a_field_of_the_wrong_type_is_blamed_on_the_function_that_made_it(env):
    def make(n: int) -> Count:
        return Count("x", "many" if n == 3 else n)  # type: ignore[arg-type]

    stream = numbers(env).map(make, name="makes it").filter(lambda c: True, name="passes it on")
    text = failure(lambda: collected(stream.key_by("n").count(name="counts it")))
    assert "operator 'makes it'" in text
    assert "column 'n' is int64 but got a str: 'many'" in text


def test_a_field_of_the_wrong_type_that_is_found_when_the_batch_is_sent(env):
    def make(n: int) -> Count:
        return Count("x", "many" if n == 15 else n)  # type: ignore[arg-type]

    stream = numbers(env).map(make, name="makes it", parallelism=1).rebalance().map(str, parallelism=2)
    text = failure(lambda: collected(stream))
    assert "makes it" in text
    assert "column 'n' is int64 but got a str: 'many'" in text
    assert "Traceback" not in text


def test_a_flat_map_that_returns_no_iterable(env):
    text = failure(lambda: collected(numbers(env).flat_map(lambda n: n, name="flat")))
    assert "operator 'flat'" in text
    assert "must return an iterable of records" in text


def test_a_batch_function_that_returns_another_schema_or_no_batch(env):
    def renames(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.rename_columns(["other"])

    text = failure(lambda: collected(numbers(env).map_batches(renames, name="renames")))
    assert "operator 'renames'" in text
    assert "'value' missing" in text
    assert "'other' not declared" in text
    text = failure(lambda: collected(numbers(env).map_batches(lambda b: b.to_pylist(), name="lists")))
    assert "operator 'lists'" in text
    assert "expected a pyarrow.RecordBatch" in text


@also_on_spark
def test_an_object_that_cannot_leave_its_process(env):
    stream = (
        numbers(env)
        .map(lambda n: threading.Lock(), name="locks")
        .rebalance()
        .map(lambda lock: 1, parallelism=2)
    )
    text = failure(lambda: collected(stream))
    assert "operator 'locks'" in text
    assert "cannot leave its process" in text


def test_a_side_output_that_is_not_declared(env):
    tag = OutputTag("late", int)
    text = failure(
        lambda: collected(numbers(env).process(lambda n, context: context.output(tag, n), name="sides"))
    )
    assert "operator 'sides'" in text
    assert "side output 'late' is not declared" in text


# ---- keys and partitionings ----


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_function_that_raises(env, parallelism):
    keyed = numbers(env).key_by(lambda n: 1 // (n - 3))
    text = failure(lambda: collected(keyed.reduce(lambda a, b: a + b, name="adds", parallelism=parallelism)))
    assert "operator 'adds'" in text
    assert "ZeroDivisionError" in text
    assert text.count("1 // (n - 3)") == 1


def test_a_key_function_that_raises_stop_iteration_loses_no_record_in_silence(env):
    def key(n: int) -> Any:
        return next(iter([])) if n == 3 else n

    for stream in (
        numbers(env).key_by(key).count(name="counts"),
        numbers(env).partition_custom(lambda k, subtasks: 0, key).map(str, name="counts", parallelism=2),
    ):
        text = failure(lambda stream=stream: collected(stream))
        assert "operator 'counts'" in text
        assert "StopIteration" in text


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_that_cannot_be_hashed(env, parallelism):
    text = failure(
        lambda: collected(numbers(env).key_by(lambda n: [n]).count(name="counts", parallelism=parallelism))
    )
    assert "operator 'counts'" in text
    assert "list" in text


@pytest.mark.parametrize("returned", [-1, 2, None, "0", 1.0])
def test_a_custom_partitioning_out_of_range(env, returned):
    stream = numbers(env).partition_custom(lambda key, subtasks: returned, "value")
    text = failure(lambda: collected(stream.map(str, name="text", parallelism=2)))
    assert "operator 'text'" in text
    assert f"returned {returned!r} for key 0" in text
    assert "from 0 to 1" in text


def test_a_custom_partitioning_that_raises_or_whose_key_raises(env):
    stream = numbers(env).partition_custom(lambda key, subtasks: 1 // key, "value")
    text = failure(lambda: collected(stream.map(str, name="text", parallelism=2)))
    assert "operator 'text'" in text
    assert "ZeroDivisionError" in text
    stream = numbers(env).partition_custom(lambda key, subtasks: 0, lambda n: 1 // n)
    text = failure(lambda: collected(stream.map(str, name="text", parallelism=2)))
    assert "operator 'text'" in text
    assert text.count("1 // n") == 1


# ---- refused before anything runs ----


def test_types_that_do_not_fit_are_refused_while_the_program_is_written():
    env = in_process()
    with pytest.raises(SchemaError, match=r"from_collection: .*int.*'x'"):
        env.from_collection([1, "x"], type=int)
    with pytest.raises(ProgramError, match="union needs streams of one type: 'a' has int, 'b' has str"):
        env.from_collection([1], name="a").union(env.from_collection(["x"], name="b"))
    with pytest.raises(TidegateError, match="key_by names column 'nope', but the records have value"):
        env.from_collection([1]).key_by("nope")


def test_a_function_that_cannot_travel_is_named_with_the_culprit(env):
    lock = threading.Lock()
    stream = numbers(env).map(lambda n: n if lock else 0, name="guarded")
    with pytest.raises(SerializationError) as caught:
        collected(stream)
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
    with pytest.raises(ConfigurationError, match=r"'paralelism'.*Did you mean parallelism"):
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
