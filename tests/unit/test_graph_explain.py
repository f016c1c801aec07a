"""`explain` in its four formats."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any, NamedTuple

import polars as pl
import pytest

from tidegate import (
    CoMapFunction,
    Count,
    DataGeneratorSource,
    Environment,
    OutputTag,
    ProcessFunction,
    ProgramError,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.api.sink import BlackholeSink
from tidegate.connectors.datagen import sequence, uniform_int
from tidegate.graph.explain import explain, explain_running
from tidegate.graph.explain_layout import Box, Link, lay_out
from tidegate.graph.explain_plan import plan_of
from tidegate.graph.stream_graph import StreamGraph, build_stream_graph
from tidegate.metrics.snapshot import EventTime, JobMetrics, OperatorCounts, SubtaskMetrics, VertexMetrics


class Click(NamedTuple):
    app: str
    user: int


BAD = OutputTag("bad", str)


class Parse(ProcessFunction):
    def process(self, value: str, context: Any) -> Iterator[Click]:
        yield Click(value, 1)


class Join(CoMapFunction):
    def map1(self, value: Click) -> str:
        return value.app

    def map2(self, value: Any) -> str:
        return ""


def enrich(click: Click):  # type: ignore[no-untyped-def]  # no return hint is the point
    return {click}


def graph_of(env: Environment, name: str = "job") -> StreamGraph:
    program = env._program(name)
    return build_stream_graph(program.name, program.sinks, program.transformations, program.options)


def clicks_and_cities() -> StreamGraph:
    env = Environment(parallelism=4)
    lines = env.from_collection(["a"], name="lines", parallelism=1)
    parsed = lines.process(Parse(), side_outputs=(BAD,), name="parse", uid="parse-1")
    parsed.get_side_output(BAD).sink_to(BlackholeSink(), name="bad lines")
    good = parsed.filter(pl.col("user") > 0)
    good.key_by("app").count(emit="batch", name="views").print("pv")
    good.map(enrich).rebalance().sink_to(BlackholeSink(), name="nowhere")
    cities = env.from_collection([{"user": 1}], name="cities", parallelism=2, slot_sharing_group="slow")
    good.connect(cities).key_by("user", "user").map(Join(), name="join").sink_to(print)
    good.map(lambda c: 1, name="left over")
    return graph_of(env, "clicks & cities")


@pytest.fixture
def graph() -> StreamGraph:
    return clicks_and_cities()


class TestText:
    def test_names_the_slots_of_each_sharing_group_and_in_all(self, graph: StreamGraph) -> None:
        assert "6 slots needed (default 4, slow 2)" in explain(graph).splitlines()[0]

    def test_lists_every_operator_with_its_facts(self, graph: StreamGraph) -> None:
        text = explain(graph)
        assert "parse [process: Parse; uid parse-1; per record] : Click(app: string, user: int64)" in text
        assert "side output bad: str" in text
        assert "-> local count [aggregate: count per app, per batch, local; vectorised]" in text
        for node in graph.nodes:
            assert node.name in text

    def test_says_for_every_exchange_how_and_why(self, graph: StreamGraph) -> None:
        text = explain(graph)
        assert "=> task 1 by rebalance, not chained: parallelism 1 and 4 differ" in text
        assert "from local count by hash(app), not chained: hash(app) needs an exchange" in text
        assert "(input 1) by hash(user), not chained: 'join' has 2 inputs" in text

    def test_says_what_runs_per_record_and_what_on_columns(self, graph: StreamGraph) -> None:
        lines = explain(graph).splitlines()
        assert "your Python, per record: parse, map enrich, join, sink function print" in lines
        assert "vectorised: filter, local count, views" in lines

    def test_names_operators_that_are_not_run(self, graph: StreamGraph) -> None:
        assert "not run, because they lead to no sink: left over" in explain(graph)

    def test_warns_of_records_that_travel_as_pickles_with_the_remedy(self, graph: StreamGraph) -> None:
        assert (
            "slow: 'map enrich' sends records without a schema to 'nowhere', as pickled objects; "
            "give `enrich` a return type hint"
        ) in explain(graph)

    def test_does_not_warn_of_objects_that_stay_in_their_task(self) -> None:
        env = Environment()
        env.from_collection([Click("a", 1)]).map(enrich).sink_to(BlackholeSink())
        assert "slow" not in explain(graph_of(env))


@pytest.mark.parametrize("kind", ["filter", "source", "side output", "key"])
def test_the_remedy_names_the_operator_that_lost_the_schema(kind: str) -> None:
    env = Environment()
    stream = env.from_collection([Click("a", 1)])
    if kind == "filter":
        stream.map(enrich).filter(bool).rebalance().sink_to(BlackholeSink())
        remedy = "give `enrich` a return type hint"
    elif kind == "source":
        env.from_collection([1, "a"], name="mixed").rebalance().sink_to(BlackholeSink())
        remedy = "give the source 'mixed' a type"
    elif kind == "side output":
        tag: OutputTag[Any] = OutputTag("rest")
        out = stream.process(Parse(), side_outputs=(tag,)).get_side_output(tag)
        out.rebalance().sink_to(BlackholeSink())
        remedy = "give OutputTag('rest') a type"
    else:
        stream.key_by(enrich).count().sink_to(BlackholeSink())
        remedy = "keys for 'count' have no schema; give `enrich` a return type hint"
    assert remedy in explain(graph_of(env))


class TestJson:
    def test_has_the_documented_keys(self, graph: StreamGraph) -> None:
        plan = json.loads(explain(graph, "json"))
        assert list(plan) == [
            "version", "name", "slots", "tasks", "exchanges", "unused", "warnings", "state_backend",
            "checkpoints", "guarantees",
        ]  # fmt: skip
        assert plan["slots"] == {"total": 6, "by_group": {"default": 4, "slow": 2}}
        task = plan["tasks"][0]
        assert set(task) == {
            "id", "name", "parallelism", "max_parallelism", "slot_sharing_group", "operators", "calls",
            "queries",
        }  # fmt: skip
        assert set(task["operators"][0]) == {
            "id", "uid", "name", "kind", "detail", "runs", "output_type", "side_outputs", "states",
            "watermarks", "watermark",
        }  # fmt: skip
        assert set(plan["exchanges"][0]) == {
            "source_task", "source_operator", "tag", "target_task", "input", "partitioning", "record_type",
            "because", "pickled",
        }  # fmt: skip

    def test_positions_point_at_what_they_mean(self, graph: StreamGraph) -> None:
        plan = json.loads(explain(graph, "json"))
        tasks = plan["tasks"]
        assert [t["id"] for t in tasks] == list(range(len(tasks)))
        exchange = next(e for e in plan["exchanges"] if e["partitioning"] == "hash(app)")
        source = tasks[exchange["source_task"]]["operators"][exchange["source_operator"]]
        assert source["name"] == "local count"
        assert tasks[exchange["target_task"]]["operators"][0]["name"] == "views"
        parse = next(t for t in tasks if t["operators"][0]["name"] == "parse")
        side = next(c for c in parse["calls"] if c["tag"] == "bad")
        assert parse["operators"][side["target"]]["name"] == "bad lines"
        assert [e["pickled"] for e in plan["exchanges"]].count(True) == 1


class TestMermaid:
    def test_has_a_subgraph_per_task_and_a_labelled_arrow_per_exchange(self, graph: StreamGraph) -> None:
        plan = json.loads(explain(graph, "json"))
        lines = explain(graph, "mermaid").splitlines()
        assert "flowchart LR" in lines
        assert sum(line.startswith("  subgraph ") for line in lines) == len(plan["tasks"])
        assert sum("==>" in line for line in lines) == len(plan["exchanges"])

    def test_no_name_can_break_the_syntax(self) -> None:
        env = Environment()
        env.from_collection([1], name='a"]\nend <b> #1; (x)').sink_to(BlackholeSink())
        (node,) = [
            line for line in explain(graph_of(env, 'a "b"'), "mermaid").splitlines() if "t0o0[[" in line
        ]
        label = (
            node.strip().removeprefix('t0o0[["').removesuffix('"]]').replace("<br/><small>source</small>", "")
        )
        assert not set(label) & set('"<>[]()')


class TestSvg:
    def test_is_well_formed_and_shows_every_operator(self, graph: StreamGraph) -> None:
        root = ET.fromstring(explain(graph, "svg"))
        texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "clicks & cities" in texts
        assert {n.name for n in graph.nodes} <= set(texts)
        assert "hash(app)" in texts
        assert "rebalance (pickled)" in texts

    def test_needs_nothing_from_outside(self, graph: StreamGraph) -> None:
        svg = explain(graph, "svg").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "http" not in svg
        assert "<script" not in svg

    def test_no_name_can_break_the_markup(self) -> None:
        env = Environment()
        env.from_collection([1], name="</text><b> & \"'").sink_to(BlackholeSink())
        ET.fromstring(explain(graph_of(env, "<&>"), "svg"))


class TestQueries:
    @pytest.fixture
    def graph(self) -> StreamGraph:
        env = Environment()
        first = env.from_collection([Click("a", 1)], name="clicks").with_columns(
            pl.col("user") + 1, name="more"
        )
        second = first.select("user", name="users").filter(pl.col("user") > 1, name="some")
        second.with_columns(twice=pl.col("user") * 2, name="alone").sink_to(BlackholeSink(), name="end")
        return graph_of(env)

    def test_text_groups_the_operators_of_a_query(self, graph: StreamGraph) -> None:
        lines = [line.partition(" [")[0] for line in explain(graph).splitlines()[3:9]]
        assert lines == [
            "  clicks",
            "  -> one polars query of 2 operators:",
            "        more",
            "     -> users",
            "  -> some",
            "  -> alone",
        ]

    def test_json_has_the_positions_of_its_operators(self, graph: StreamGraph) -> None:
        (task,) = json.loads(explain(graph, "json"))["tasks"]
        assert [[task["operators"][i]["name"] for i in q] for q in task["queries"]] == [["more", "users"]]

    def test_mermaid_has_a_subgraph_for_it_inside_the_task(self, graph: StreamGraph) -> None:
        lines = [line.strip().partition("<br/>")[0] for line in explain(graph, "mermaid").splitlines()]
        at = lines.index('subgraph t0q1["one polars query"]')
        assert lines[at + 1 : at + 4] == ['t0o1["more', 't0o2["users', "end"]

    def test_svg_frames_its_operators_and_no_others(self, graph: StreamGraph) -> None:
        root = ET.fromstring(explain(graph, "svg"))
        boxes = {kind: [] for kind in ("query", "op")}
        for box in root.iter("{http://www.w3.org/2000/svg}rect"):
            if box.get("class") in boxes:
                top = float(box.get("y", 0))
                boxes[box.get("class", "")].append((top, top + float(box.get("height", 0))))
        ((top, bottom),) = boxes["query"]
        inside = [top < begin and end < bottom for begin, end in boxes["op"]]
        assert inside == [False, True, True, False, False, False]
        assert all(
            i or end <= top or begin >= bottom for i, (begin, end) in zip(inside, boxes["op"], strict=True)
        )
        texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
        assert texts.count("one polars query") == 1


@pytest.mark.parametrize("format", ["text", "json", "mermaid", "svg"])
@pytest.mark.parametrize("shape", ["one chain", "no chain", "fan", "ladder"])
def test_graphs_of_hundreds_of_operators_are_explained(format: str, shape: str) -> None:
    env = Environment(chaining=shape != "no chain")
    stream = env.from_collection([1])
    if shape == "fan":
        parts = [stream.map(abs, name=f"map {i}", returns=int).rebalance() for i in range(200)]
        parts[0].union(*parts[1:]).sink_to(BlackholeSink())
    elif shape == "ladder":
        rungs = [stream]
        for _ in range(100):
            rungs.append(rungs[-1].rebalance().map(abs, returns=int))
        rungs[0].union(*rungs[1:]).sink_to(BlackholeSink())
    else:
        for _ in range(250):
            stream = stream.map(abs, returns=int)
        stream.sink_to(BlackholeSink())
    assert explain(graph_of(env), format)


def test_an_unknown_format_is_refused_with_those_that_there_are(graph: StreamGraph) -> None:
    with pytest.raises(ProgramError, match="explain knows the formats text, json, mermaid, svg, not 'png'"):
        explain(graph, "png")


class TestLayout:
    def test_boxes_of_a_column_do_not_overlap_and_links_go_right(self) -> None:
        boxes = [Box(50 + 10 * (i % 3), 30 + 20 * (i % 4)) for i in range(30)]
        links = [Link(i, j, 10, 10, 40) for j in range(30) for i in range(j) if (i * 7 + j * 3) % 11 == 0]
        layout = lay_out(boxes, links, 20, 10)
        for i, (a, box) in enumerate(zip(layout.corners, boxes, strict=True)):
            assert 0 <= a.x <= layout.width - box.width
            assert 0 <= a.y <= layout.height - box.height
            for b, other in list(zip(layout.corners, boxes, strict=True))[i + 1 :]:
                apart = (
                    a.x + box.width <= b.x
                    or b.x + other.width <= a.x
                    or a.y + box.height <= b.y
                    or b.y + other.height <= a.y
                )
                assert apart
        for link, route in zip(links, layout.routes, strict=True):
            xs = [p.x for p in route]
            assert xs == sorted(xs)
            assert route[0].x == layout.corners[link.source].x + boxes[link.source].width
            assert route[-1].x == layout.corners[link.target].x

    def test_nothing_gives_nothing(self) -> None:
        assert lay_out([], [], 10, 10).width == 0


class TestEventTime:
    STRATEGY = WatermarkStrategy.bounded("5 s", "ts").with_idleness("1 min").with_alignment("shop", "30 s")
    WORDS = "timestamps from ts, at most 5 s out of order, idle after 1 min, at most 30 s ahead of group shop"

    def program(self, **options: Any) -> Environment:
        env = Environment(parallelism=1, **options)
        source = DataGeneratorSource(fields={"app": uniform_int(0, 3), "ts": sequence()}, count=50)
        late = env.from_source(source, self.STRATEGY, name="clicks").key_by("app")
        late.window(TumblingEventTimeWindows("1 s")).aggregate(n=Count(), name="per app").sink_to(
            BlackholeSink(), name="out"
        )
        rows = env.from_collection([{"ts": 1}], name="rows").filter(pl.col("ts") > 0, name="some")
        rows.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks("ts"), name="times").sink_to(
            BlackholeSink(), name="rest"
        )
        return env

    def test_every_format_has_the_strategy_where_event_time_begins(self) -> None:
        graph = graph_of(self.program())
        assert f"\n       watermarks: {self.WORDS}\n" in explain(graph)
        assert "\n       watermarks: timestamps from ts, no watermarks\n" in explain(graph)
        assert f"<small>watermarks: {self.WORDS}</small>" in explain(graph, "mermaid")
        texts = [t.text or "" for t in ET.fromstring(explain(graph, "svg")).iter() if t.tag.endswith("}text")]
        assert f"watermarks: {self.WORDS}" in " ".join(texts)
        tasks = json.loads(explain(graph, "json"))["tasks"]
        found = {o["name"]: o["watermarks"] for t in tasks for o in t["operators"] if o["watermarks"]}
        assert found.pop("times")["kind"] == "none"
        assert found == {
            "clicks": {
                "timestamps": "ts", "kind": "bounded", "out_of_orderness_ms": 5_000, "idleness_ms": 60_000,
                "alignment_group": "shop", "max_drift_ms": 30_000, "words": self.WORDS,
            }
        }  # fmt: skip

    def test_a_running_job_has_the_watermark_of_each_operator_and_what_holds_it(self) -> None:
        plan = plan_of(graph_of(self.program()))
        held = EventTime(watermark_ms=3_000, lag_ms=2_000, split="share 1 of 1", quiet_ms=40_000)
        waits = EventTime(watermark_ms=3_000, lag_ms=2_000, held_by=(0, 0))
        metrics = JobMetrics(
            name="job",
            status="RUNNING",
            elapsed_ms=1,
            vertices=tuple(
                VertexMetrics(
                    vertex=task.id,
                    name=task.name,
                    parallelism=1,
                    subtasks=(
                        SubtaskMetrics(
                            subtask=0,
                            time=(held, waits, EventTime())[task.id],
                            operators=tuple(
                                OperatorCounts(name=o.name, watermark_ms=None if task.id == 2 else 3_000)
                                for o in task.operators
                            ),
                        ),
                    ),
                )
                for task in plan.tasks
            ),
        )
        words = "clicks/share 1 of 1, without records for 40.0 s"
        text = explain_running(plan, metrics)
        assert text.count(f"       watermark 1970-01-01 00:00:03, 2.0 s behind, held by {words}\n") == 4
        assert text.count("       watermark none yet\n") == 2  # of `times` and what is behind it, not before
        assert "watermark 1970-01-01 00:00:03, 2.0 s behind" in explain_running(plan, metrics, "svg")
        operators = json.loads(explain_running(plan, metrics, "json"))["tasks"][1]["operators"]
        assert [o["watermark"] for o in operators] == [
            {"watermark_ms": 3_000, "lag_ms": 2_000, "idle": False, "held_by": words}
        ] * 2
        assert explain(graph_of(self.program())) == text_without(text, "       watermark ")

    def test_before_the_first_watermark_what_is_behind_says_that_there_is_none(self) -> None:
        plan = plan_of(graph_of(self.program()))
        quiet = SubtaskMetrics(subtask=0)
        vertices = tuple(
            VertexMetrics(vertex=t.id, name=t.name, parallelism=1, subtasks=(quiet,)) for t in plan.tasks
        )
        metrics = JobMetrics(name="job", status="RUNNING", elapsed_ms=1, vertices=vertices)
        tasks = json.loads(explain_running(plan, metrics, "json"))["tasks"]
        none_yet = {"watermark_ms": None, "lag_ms": 0, "idle": False, "held_by": ""}
        assert [o["watermark"] for o in tasks[1]["operators"]] == [none_yet, none_yet]
        assert tasks[2]["operators"][0]["watermark"] is None  # before the timestamps are assigned

    def test_the_client_of_a_job_shows_it(self) -> None:
        client = self.program(runtime="in-process").execute_async("shop")
        assert "watermarks: timestamps from ts" in client.explain()
        assert "watermark 1970" not in client.explain()
        client.result()
        assert client.explain().count("watermark at the end") == 6
        with pytest.raises(ProgramError, match="not 'png'"):
            client.explain("png")


def text_without(text: str, start: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(start))


# ---- without a sink, and in a notebook ----


def test_a_stream_without_a_sink_is_explained_as_if_it_were_collected() -> None:
    env = Environment(runtime="in-process")
    numbers = env.from_sequence(1, 3, name="numbers")
    texts = numbers.map(str, returns=str, name="texts")
    text = texts.explain()
    assert "texts [map" in text
    assert "-> collect [sink: collect to the driver]" in text
    assert env._nodes == [numbers._node, texts._node], "explaining adds nothing to the program"
    assert sorted(texts.execute_and_collect()) == ["1", "2", "3"]


def test_a_program_without_a_sink_is_explained_with_all_its_ends_and_a_word_about_it() -> None:
    env = Environment(runtime="in-process")
    numbers = env.from_sequence(1, 3, name="numbers")
    numbers.map(str, returns=str, name="texts")
    numbers.map(float, returns=float, name="floats")
    text = env.explain()
    assert "texts [map" in text
    assert "floats [map" in text
    assert text.count("-> ") >= 2
    assert "the program has no sink: it is shown as if its streams were collected" in text
    assert json.loads(env.explain("json"))["warnings"][0].startswith("the program has no sink")
    with pytest.raises(ProgramError, match="the program has no sink"):
        env.execute()


def test_an_environment_without_streams_is_refused_as_before() -> None:
    with pytest.raises(ProgramError, match="the program has no sink"):
        Environment().explain()


@pytest.mark.parametrize("format", ["text", "json", "mermaid", "svg"])
def test_a_notebook_shows_every_format_as_the_picture(format: str) -> None:
    env = Environment(runtime="in-process")
    env.from_sequence(1, 3).print()
    shown: Any = env.explain(format)
    assert isinstance(shown, str)
    assert shown._repr_html_() == env.explain("svg")


def test_the_picture_styles_nothing_else_on_the_page_of_a_notebook() -> None:
    env = Environment()
    env.from_sequence(1, 3).print()
    picture = env.explain("svg")
    (rules,) = re.findall(r"<style>(.*?)</style>", picture, re.DOTALL)
    selectors = re.findall(r"([^{}]+)\{[^{}]*\}", rules)
    assert selectors
    assert [s for s in selectors if not s.strip().startswith(".tidegate-plan ")] == []
    assert re.findall(r'\bid="(?!tidegate-)', picture) == []


def test_names_are_text_in_every_picture_and_table() -> None:
    evil = "<img src=x onerror=alert(1)>"
    env = Environment(runtime="in-process")
    env.from_sequence(1, 3, name=evil).key_by(lambda n: n % 2).map(str, name=f"{evil} 2").sink_to(
        list, name=evil
    )
    assert "<img" not in env.explain("svg")
    assert "<img" not in env.execute(evil)._repr_html_()


def test_a_notebook_shows_metrics_as_a_table() -> None:
    env = Environment(runtime="in-process")
    env.from_sequence(1, 3, name="<numbers>").sink_to(BlackholeSink(), name="out")
    table = env.execute("job")._repr_html_()
    assert table.startswith("<div><b>job &#x27;job&#x27; FINISHED, ")
    assert "&lt;numbers&gt;" in table
    assert "<numbers>" not in table
    assert table.count("<tr>") == 4, "the head, the task and its two operators"
