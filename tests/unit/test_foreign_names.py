"""Who writes Flink's or Spark's name is told ours; everything else about a missing attribute stays as Python has it."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from abc import ABC
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

import tidegate
from tidegate import (
    AggregatingState,
    Environment,
    JobFailedError,
    KeyedProcessFunction,
    ListState,
    MapState,
    ProcessContext,
    ProgramError,
    ReducingState,
    SerializationError,
    TumblingEventTimeWindows,
    ValueState,
    WatermarkStrategy,
)
from tidegate.api.keyed_streams import KeyedStream
from tidegate.api.streams import DataStream
from tidegate.api.window_joins import JoinedStreams
from tidegate.graph.blobs import dump_blob
from tidegate.program.foreign_names import INSTEAD, METHODS, OF_THE_PACKAGE


def stream() -> DataStream:
    return Environment(runtime="in-process").from_collection([("a", 1)], type=tuple[str, int])


def joined() -> JoinedStreams:
    one = stream()
    return one.join(one)


ASKED: list[tuple[Any, str, str]] = [
    (stream(), "keyBy", "DataStream has no 'keyBy'; in tidegate it is 'key_by'"),
    (stream(), "flatMap", "DataStream has no 'flatMap'; in tidegate it is 'flat_map'"),
    (stream(), "addSink", "DataStream has no 'addSink'; in tidegate it is 'sink_to(sink)'"),
    (stream(), "add_sink", "DataStream has no 'add_sink'; in tidegate it is 'sink_to(sink)'"),
    (
        stream(),
        "writeAsText",
        "DataStream has no 'writeAsText'; in tidegate it is 'sink_to(FileSink(directory, format=\"text\"))'",
    ),
    (stream(), "groupBy", "DataStream has no 'groupBy'; in tidegate it is 'key_by(\"app\")'"),
    (
        stream().key_by("f0"),
        "agg",
        "KeyedStream has no 'agg'; in tidegate it is 'aggregate(n=Count(), total=Sum(\"amount\"))'",
    ),
    (stream(), "max_by", "max_by() needs keys: call key_by(...).max_by(...)"),
    (stream().key_by("f0"), "maxBy", "KeyedStream has no 'maxBy'; in tidegate it is 'max_by'"),
    (stream().key_by("f0"), "cuont", "'KeyedStream' object has no attribute 'cuont'. Did you mean 'count'?"),
    (stream(), "intervalJoin", "DataStream has no 'intervalJoin'; in tidegate it is 'interval_join'"),
    (
        stream().key_by("f0"),
        "countWindow",
        "KeyedStream has no 'countWindow'; in tidegate it is 'count_window'",
    ),
    (stream().key_by("f0"), "addSink", "KeyedStream has no 'addSink'; in tidegate it is 'sink_to(sink)'"),
    (
        stream().key_by("f0").count_window(2),
        "allowedLateness",
        "WindowedStream has no 'allowedLateness'; in tidegate it is 'allowed_lateness'",
    ),
    (
        joined().where("f0"),
        "equalTo",
        "Where has no 'equalTo'; in tidegate it is 'equal_to'",
    ),
    (Environment(), "add_source", "Environment has no 'add_source'; in tidegate it is 'from_source(source)'"),
    (
        Environment(),
        "setParallelism",
        "Environment has no 'setParallelism'; in tidegate it is 'Environment(parallelism=...)'",
    ),
    (
        Environment,
        "get_execution_environment",
        "Environment has no 'get_execution_environment'; in tidegate it is 'Environment(...)'",
    ),
    (
        WatermarkStrategy,
        "for_bounded_out_of_orderness",
        (
            "WatermarkStrategy has no 'for_bounded_out_of_orderness'; in tidegate it is "
            "'bounded(out_of_orderness, timestamp)'"
        ),
    ),
    (
        WatermarkStrategy,
        "forMonotonousTimestamps",
        "WatermarkStrategy has no 'forMonotonousTimestamps'; in tidegate it is 'monotonous(timestamp)'",
    ),
    (
        WatermarkStrategy.bounded("1 s"),
        "withIdleness",
        "WatermarkStrategy has no 'withIdleness'; in tidegate it is 'with_idleness'",
    ),
]


@pytest.mark.parametrize(("asked", "name", "said"), ASKED, ids=[name for _, name, _ in ASKED])
def test_a_name_of_others_or_one_nearly_right_is_answered_with_ours(asked: Any, name: str, said: str) -> None:
    with pytest.raises(AttributeError) as missing:
        getattr(asked, name)
    assert str(missing.value) == said
    assert not hasattr(asked, name)


@pytest.mark.parametrize(("asked", "cls"), [(stream(), "DataStream"), (Environment(), "Environment")])
@pytest.mark.parametrize("name", ["nothing_like_it", "__keyBy__", "_keyBy"])
def test_what_is_no_name_of_flink_is_missing_as_ever(asked: Any, cls: str, name: str) -> None:
    with pytest.raises(AttributeError) as missing:
        getattr(asked, name)
    assert str(missing.value) == f"{cls!r} object has no attribute {name!r}"


def test_copies_and_pickles_are_equal() -> None:
    value = WatermarkStrategy.bounded("1 s", "ts").with_idleness("1 min")
    assert copy.copy(value) == copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value


def test_the_table_has_no_name_that_its_class_has() -> None:
    builders = (Environment, DataStream, KeyedStream, WatermarkStrategy)
    states = (ValueState, ListState, MapState, ReducingState, AggregatingState)
    classes: dict[str, Any] = {c.__name__: c for c in (*builders, *states)}
    assert INSTEAD.keys() == classes.keys()
    assert [n for cls, names in INSTEAD.items() for n in names if hasattr(classes[cls], n)] == []


def test_a_class_of_the_users_may_be_an_environment_and_abstract() -> None:
    class Tenants(Environment, ABC):
        pass

    assert Tenants(parallelism=3).options.parallelism == 3


# ---- states, methods, names of the package ----


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    ("state", "call", "said"),
    [
        (ValueState(int), "get", "ValueState has no 'get'; in tidegate it is 'value()'"),
        (ListState(int), "append", "ListState has no 'append'; in tidegate it is 'add(value)'"),
        (MapState(str, int), "set", "MapState has no 'set'; in tidegate it is 'put(key, value)'"),
    ],
)
def test_what_a_state_has_not_is_answered_with_ours(backend: str, state: Any, call: str, said: str) -> None:
    class Asks(KeyedProcessFunction):
        kept = state

        def process(self, value: Any, context: ProcessContext) -> Iterator[int]:
            getattr(self.kept, call)
            yield 1

    env = Environment(runtime="in-process", state_backend=backend)
    asked = env.from_collection([("a", 1)], type=tuple[str, int]).key_by("f0").process(Asks())
    with pytest.raises(JobFailedError, match=f"AttributeError: {re.escape(said)}"):
        list(asked.execute_and_collect())


def test_an_attribute_error_of_the_users_own_stays_what_it_is() -> None:
    stream_of_ints = Environment(runtime="in-process").from_sequence(1, 1)
    with pytest.raises(JobFailedError, match="'int' object has no attribute 'get'"):
        list(stream_of_ints.map(lambda n: n.get(), returns=int).execute_and_collect())


def test_a_method_of_another_name_is_named_where_the_class_is_defined() -> None:
    with pytest.raises(
        ProgramError, match=r"Wrong defines process_element\(\); in tidegate it is process\(\)"
    ):

        class Wrong(KeyedProcessFunction):
            def process_element(self, value: Any, context: Any) -> Iterator[int]:
                yield 1

    class Right(KeyedProcessFunction):
        def process(self, value: Any, context: Any) -> Iterator[int]:
            yield from self.process_element(value)

        def process_element(self, value: Any) -> Iterator[int]:
            yield 1

    class Later(Right):
        def process_element(self, value: Any) -> Iterator[int]:
            yield 2

    assert Later().process(1, None)
    assert "process_element" in METHODS


def test_a_name_that_is_imported_from_elsewhere_is_answered_by_the_import() -> None:
    with pytest.raises(ImportError, match="no 'StreamExecutionEnvironment'; in tidegate it is Environment"):
        from tidegate import StreamExecutionEnvironment  # type: ignore[attr-defined] # noqa: F401
    assert [name for name in OF_THE_PACKAGE if name in tidegate.__all__] == []


def test_what_is_advised_for_drop_rename_and_nulls_works() -> None:
    env = Environment(runtime="in-process")
    numbers = env.from_collection([{"old": 1, "rest": None}, {"old": 2, "rest": 5}])
    assert numbers.select(pl.exclude("rest")).record_type.names == ["old"]
    assert numbers.select(pl.all().exclude("old"), new=pl.col("old")).record_type.names == ["rest", "new"]
    assert list(numbers.filter(pl.col("rest").is_not_null()).execute_and_collect()) == [(2, 5)]
    filled = numbers.with_columns(pl.col("rest").fill_null(0))
    assert sorted(filled.execute_and_collect()) == [(1, 0), (2, 5)]


# ---- remedies ----


def timed() -> DataStream:
    env = Environment(runtime="in-process")
    clicks = env.from_collection([{"app": "a", "ts": 1}])
    return clicks.assign_timestamps_and_watermarks(WatermarkStrategy.bounded("1 s", "ts"))


def test_a_key_with_the_name_of_a_windows_time_is_told_to_be_renamed() -> None:
    windows = TumblingEventTimeWindows("10 s")
    counts = timed().key_by("app").window(windows).count()
    with pytest.raises(
        ProgramError, match=r"Rename the key before: with_columns\(earlier=pl.col\('window_start'\)\)"
    ):
        counts.key_by("window_start").window(windows).count()
    renamed = counts.with_columns(earlier=pl.col("window_start")).key_by("earlier").window(windows).count()
    assert renamed.record_type.names == ["earlier", "window_start", "window_end", "count"]


def test_bounds_that_leave_nothing_are_told_as_they_were_written() -> None:
    one = timed()
    joined_streams = one.key_by("app").interval_join(one.key_by("app"))
    with pytest.raises(
        ProgramError, match=r"between\(0, '0 s'\) with a bound excluded leaves nothing to meet"
    ):
        joined_streams.between(0, "0 s").lower_bound_exclusive().apply(lambda left, right: 1, returns=int)


def test_the_last_of_duplicates_is_advised_by_event_time() -> None:
    with pytest.raises(ProgramError, match="the values with the latest timestamps"):
        timed().key_by("app").deduplicate(within="1 s", keep="last")


@pytest.mark.parametrize("kind", ["an Environment", "a DataStream"])
def test_whoever_captures_the_driver_is_told_the_variable_that_he_wrote(kind: str) -> None:
    env = Environment(spark=threading.Lock(), runtime="in-process")  # as a session, it cannot be pickled
    captured: Any = env if kind == "an Environment" else env.from_sequence(1, 2)
    with pytest.raises(SerializationError) as caught:
        dump_blob(lambda n: captured, "map")
    text = str(caught.value)
    assert f"because of the captured variable 'captured' ({kind}), which exists in the driver alone" in text


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda s: s.map("f0"), r"For columns by name use select\('f0'\)"),
        (lambda s: s.filter("f1 > 1"), "Write a polars expression"),
        (lambda s: s.key_by(["f0", "f1"]), r"Write key_by\('f0', 'f1'\)"),
        (lambda s: s.key_by(pl.col("f0")), "Make it a column before"),
        (lambda s: s.key_by("f0").sum(["f1"]), "sum needs the name of one column, got a list"),
        (lambda s: s.key_by("f0").window("10 s"), r"such as TumblingEventTimeWindows\('10 s'\)"),
        (lambda s: s.sink_to("out.parquet"), r"sink_to\(FileSink\('out.parquet', format='parquet'\)\)"),
        (lambda s: list(s), r"stream.execute_and_collect\(\)"),
        (lambda s: s["f0"], r"select\('f0'\)"),
    ],
)
def test_common_mistakes_are_answered_with_what_to_write(mistake: Any, said: str) -> None:
    with pytest.raises((tidegate.TidegateError, TypeError), match=said):
        mistake(stream())
