"""Who writes Flink's or Spark's name is told ours; everything else about a missing attribute stays as Python has it."""

from __future__ import annotations

import copy
import pickle
from abc import ABC
from typing import Any

import pytest

from tidegate import Environment, WatermarkStrategy
from tidegate.api.flink_names import INSTEAD
from tidegate.api.keyed_streams import KeyedStream
from tidegate.api.streams import DataStream
from tidegate.api.window_joins import JoinedStreams


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
        "aggregate",
        (
            "KeyedStream has no 'aggregate'; in tidegate it is "
            "'count(), sum(\"amount\"), ..., or window(...).aggregate(...) for several at once'"
        ),
    ),
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
    classes = {c.__name__: c for c in (Environment, DataStream, KeyedStream, WatermarkStrategy)}
    assert INSTEAD.keys() == classes.keys()
    assert [n for cls, names in INSTEAD.items() for n in names if hasattr(classes[cls], n)] == []


def test_a_class_of_the_users_may_be_an_environment_and_abstract() -> None:
    class Tenants(Environment, ABC):
        pass

    assert Tenants(parallelism=3).options.parallelism == 3
