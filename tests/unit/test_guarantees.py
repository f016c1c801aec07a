"""What the planner says about each sink: the weakest of source, checkpoints and sink decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate import Environment, FileSink, RestartStrategies, SocketSource
from tidegate.api.sink import BlackholeSink
from tidegate.graph.explain import explain
from tidegate.graph.guarantees import Guarantee, describe_checkpoints, guarantees
from tidegate.graph.stream_graph import StreamGraph, build_stream_graph

ON = {"checkpoint_interval": "1 s"}


def graph_of(env: Environment) -> StreamGraph:
    program = env._program("job")
    return build_stream_graph(program.name, program.sinks, program.transformations, program.options)


def told(env: Environment) -> dict[str, str]:
    return {g.sink: f"{g.level}: {g.because}" for g in guarantees(graph_of(env))}


def pipeline(source: str, sink: str, tmp_path: Path, **options: Any) -> dict[str, str]:
    env = Environment(**options)
    if source == "socket":
        stream = env.from_source(SocketSource("127.0.0.1", 9), name="lines")
    else:
        stream = env.from_collection(["a"], name="lines")
    if sink == "files":
        stream.sink_to(FileSink(tmp_path / "out", "text"), name="out")
    else:
        stream.print().name("out")
    return told(env)


@pytest.mark.parametrize(
    ("source", "sink", "expected"),
    [
        (
            "collection",
            "files",
            "exactly-once: sources can be reset, output is committed with the checkpoints",
        ),
        ("collection", "print", "at-least-once: print repeats records after a recovery"),
        ("socket", "files", "at-most-once: source `lines` cannot be reset"),
        ("socket", "print", "at-most-once: source `lines` cannot be reset"),
    ],
)
def test_level_is_the_weakest_of_source_and_sink(source: str, sink: str, expected: str, tmp_path: Path):
    assert pipeline(source, sink, tmp_path, **ON) == {"out": expected}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ON, "exactly-once"),
        ({**ON, "checkpoint_unaligned": True}, "exactly-once"),
        ({**ON, "restart_strategy": "none"}, "exactly-once"),
        ({**ON, "checkpoint_mode": "at_least_once"}, "at-least-once: checkpoint.mode is at_least_once"),
        ({"checkpoint_mode": "at_most_once"}, "at-most-once: checkpoint.mode is at_most_once"),
        ({}, "at-most-once: there are no checkpoints, so the rest is missing after a failure"),
        (
            {"restart_strategy": RestartStrategies.fixed_delay(3, "1 s")},
            "at-least-once: there are no checkpoints, so a restart repeats everything",
        ),
    ],
)
def test_same_pipeline_is_as_good_as_its_checkpoints(options: dict[str, Any], expected: str, tmp_path: Path):
    assert pipeline("collection", "files", tmp_path, **options)["out"].startswith(expected)


def test_restart_without_checkpoints_cannot_bring_back_what_a_socket_gave(tmp_path: Path):
    options = {"restart_strategy": RestartStrategies.fixed_delay(3, "1 s")}
    assert pipeline("socket", "print", tmp_path, **options) == {
        "out": "at-most-once: source `lines` cannot be reset, and there are no checkpoints"
    }


def test_each_sink_is_judged_by_the_sources_that_lead_to_it(tmp_path: Path):
    env = Environment(**ON)
    lines = env.from_source(SocketSource("127.0.0.1", 9), name="lines")
    words = env.from_collection(["a"], name="words")
    lines.sink_to(FileSink(tmp_path / "lines", "text"), name="of lines")
    words.sink_to(FileSink(tmp_path / "words", "text"), name="of words")
    lines.union(words).filter(bool).sink_to(FileSink(tmp_path / "both", "text"), name="of both")
    lines.union(words).print().name("shown")
    found = told(env)
    assert found["of lines"] == found["of both"] == "at-most-once: source `lines` cannot be reset"
    assert found["of words"].startswith("exactly-once")
    assert found["shown"] == (
        "at-most-once: source `lines` cannot be reset; what comes from source `words` may be repeated: "
        "print repeats records after a recovery"
    )


def test_sinks_without_transactions_say_in_their_own_words_what_they_repeat():
    env = Environment(**ON)
    numbers = env.from_sequence(1, 3)
    numbers.sink_to(len, name="call")
    numbers.sink_to(BlackholeSink(), name="nowhere")
    assert told(env) == {
        "call": "at-least-once: `len` is called again for records that are replayed",
        "nowhere": "at-least-once: nowhere writes without transactions, so it repeats records after a recovery",
    }


def test_plan_says_how_checkpoints_are_taken_and_what_each_sink_guarantees(tmp_path: Path):
    env = Environment(checkpoint_interval="1 s", checkpoint_dir="s3://key:secret@lake/chk?region=eu-west-1")
    env.from_sequence(1, 3).print().name("shown")
    lines = explain(graph_of(env)).splitlines()
    at = lines.index("checkpoints: every 1 s, exactly_once, in s3://lake/chk")
    assert lines[at + 1] == "  sink 'shown' is at-least-once: print repeats records after a recovery"
    plan = json.loads(explain(graph_of(env), "json"))
    assert plan["checkpoints"] == "every 1 s, exactly_once, in s3://lake/chk"
    assert plan["guarantees"] == [
        {"sink": "shown", "level": "at-least-once", "because": "print repeats records after a recovery"}
    ]
    assert Guarantee(**plan["guarantees"][0]) == guarantees(graph_of(env))[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {**ON, "checkpoint_unaligned": True, "checkpoint_dir": "/chk"},
            "every 1 s, exactly_once (unaligned), in /chk",
        ),
        (
            {**ON, "checkpoint_alignment_timeout": "50 ms", "checkpoint_dir": "/chk"},
            "every 1 s, exactly_once (unaligned after 50 ms), in /chk",
        ),
        ({"checkpoint_mode": "at_most_once"}, "off: a failure ends the job"),
        (
            {"checkpoint_mode": "at_most_once", "restart_strategy": "fixed-delay"},
            "off: after a failure the job goes on without what was under way",
        ),
        ({"restart_strategy": "fixed-delay"}, "off: after a failure the job starts from the beginning"),
    ],
)
def test_checkpoints_are_described_in_one_line(options: dict[str, Any], words: str):
    assert describe_checkpoints(Environment(**options).options) == words
