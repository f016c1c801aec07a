"""The fluent API: what each call makes, and what is refused while the program is written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tidegate import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    Environment,
    MapFunction,
    OutputTag,
    ProgramError,
    SchemaError,
    Sum,
    TidegateError,
)
from tidegate.api.sink import BlackholeSink, FunctionSink, Sink
from tidegate.program.driver_sinks import PrintSink
from tidegate.program.operations import ApplyFunction, RollingAggregate, RollingReduce, WriteSink
from tidegate.records.types import RecordType


@dataclass
class Click:
    app: str
    user: int
    price: float
    at: dt.datetime
    tags: list[str]


CLICK = Click("a", 1, 0.5, dt.datetime(2026, 1, 1), [])  # noqa: DTZ001 - times without a zone are what is declared


def clicks(**options: Any) -> DataStream:
    return Environment(**options).from_collection([CLICK], name="clicks")


def objects() -> DataStream:
    return clicks().map(lambda c: {c}, name="sets")


def identity(value: Click) -> Click:
    return value


class ToText(MapFunction):
    def map(self, value: Any) -> str:
        return str(value)


class Two(CoMapFunction):
    def map1(self, value: Any) -> int:
        return 1

    def map2(self, value: Any) -> int:
        return 2


class TwoTypes(CoMapFunction):
    def map1(self, value: Any) -> int:
        return 1

    def map2(self, value: Any) -> str:
        return ""


class TwoLists(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> list[int]:
        return [1]

    def flat_map2(self, value: Any) -> list[int]:
        return [2]


class TwoProcesses(CoProcessFunction):
    def process1(self, value: Any, context: Any) -> list[int]:
        return [1]

    def process2(self, value: Any, context: Any) -> list[int]:
        return [2]


class NumbersOnly(Sink):
    def create_writer(self, context: Any) -> Any:
        raise NotImplementedError

    def check_type(self, record_type: RecordType) -> None:
        raise SchemaError(f"a sink of numbers cannot write {record_type.describe()}")


REST: OutputTag[str] = OutputTag("rest", str)

MISUSES: list[tuple[str, Callable[[DataStream], Any], str]] = [
    ("map of no function", lambda s: s.map(5), "map needs a callable or a MapFunction, got an int: 5"),
    ("map of a class", lambda s: s.map(ToText), "map got the class ToText; give it an instance: ToText()"),
    ("map of another kind", lambda s: s.map(Two()), "map needs a callable or a MapFunction, got a Two"),
    ("map to text", lambda s: s.map(repr, returns="str"), "returns='str' is text; give the type itself"),
    ("flat_map", lambda s: s.flat_map(None), "flat_map needs a callable or a FlatMapFunction"),
    ("filter", lambda s: s.filter("app"), "filter needs a callable or a FilterFunction, got a str: 'app'"),
    ("process", lambda s: s.process(ToText()), "process needs a callable or a ProcessFunction"),
    ("map_batches", lambda s: s.map_batches(3), "map_batches needs a callable, got 3"),
    ("map_batches of objects", lambda s: objects().map_batches(abs), "map_batches needs columns, but 'sets'"),
    ("filter of objects", lambda s: objects().filter(pl.col("a") > 1), "filter(expression) needs columns"),
    ("select of objects", lambda s: objects().select("a"), "select needs columns, but 'sets' gives Python objects"),
    ("select of nothing", lambda s: s.select(), "select needs at least one column name or polars expression"),
    ("select of a number", lambda s: s.select("app", 5), "select takes column names and polars expressions, got 5"),
    ("select of an unknown column", lambda s: s.select("ap"), "does not fit Click("),
    ("filter of an unknown column", lambda s: s.filter(pl.col("ap") > 1), "does not fit Click("),
    ("filter by a number", lambda s: s.filter(pl.col("user") + 1), "does not fit Click("),
    ("with_columns of a bad type", lambda s: s.with_columns(pl.col("app") + pl.lit([1])), "does not fit Click("),
    ("select of a total", lambda s: s.select(pl.col("user").sum()), 'select: col("user").sum() is not computed'),
    ("select of no column", lambda s: s.select(pl.col(pl.Binary)), "chooses none of the columns app, user, price"),
    ("select of nothing", lambda s: s.select(pl.col(pl.Int8) * 2), "chooses none of the columns app, user, price"),
    ("select of two of a name", lambda s: s.select("app", pl.all()), "two columns named 'app'"),
    ("select of a constant", lambda s: s.select(pl.lit(1)), "one value per batch, not one per record"),
    ("key of nothing", lambda s: s.key_by(), "key_by needs at least one column name, or a function"),
    ("key of a number", lambda s: s.key_by(5), 'key_by takes column names (key_by("a", "b")) or one function, got 5'),
    ("key of two functions", lambda s: s.key_by(abs, abs), "or one function, got (<built-in function abs>"),
    ("key of an unknown column", lambda s: s.key_by("ap"), "key_by names column 'ap', but the records have app,"),
    ("key of a list", lambda s: s.key_by("tags"), "a key cannot be a list<item: string not null>"),
    ("key columns of objects", lambda s: objects().key_by("a"), "key_by('a') needs columns, but the records are"),
    ("union of no stream", lambda s: s.union(5), "union needs streams, got an int: 5"),
    ("union of two types", lambda s: s.union(s.select("app")), "union needs streams of one type: 'clicks' has Click("),
    ("union of two environments", lambda s: s.union(clicks()), "union needs streams of one environment"),
    ("connect of no stream", lambda s: s.connect(5), "connect needs a stream, got an int: 5"),
    ("connect of two environments", lambda s: s.connect(clicks()), "connect needs streams of one environment"),
    ("co-map of a function", lambda s: s.connect(s).map(abs), "connect().map needs a CoMapFunction, got"),
    ("co-flat-map of a co-map", lambda s: s.connect(s).flat_map(Two()), "needs a CoFlatMapFunction"),
    ("co-map of two types", lambda s: s.connect(s).map(TwoTypes()), "TwoTypes.map1 gives int but map2 gives str"),
    ("one keyed stream", lambda s: s.key_by("app").connect(s).map(Two()), "both streams keyed or neither"),
    (
        "keys that cannot meet",
        lambda s: s.connect(s).key_by("app", "user").map(Two()),
        "connected streams need keys of one type: app is string, user is int64",
    ),
    ("unknown side output", lambda s: s.get_side_output(REST), "'clicks' has no side output 'rest' (declared: none)"),
    ("side output of a union", lambda s: s.union(s).get_side_output(REST), "get_side_output belongs to an operator"),
    (
        "side output twice",
        lambda s: s.process(divmod, side_outputs=(REST, REST)),
        "declares the side output 'rest' twice",
    ),
    ("side output by name", lambda s: s.process(divmod, side_outputs=("rest",)), "takes OutputTags, got a str"),
    ("nameless tag", lambda s: OutputTag(""), "an OutputTag needs a name"),
    ("custom of no function", lambda s: s.partition_custom("app", "app"), "partition_custom needs a callable"),
    ("partition_custom of no key", lambda s: s.partition_custom(divmod), "partition_custom needs at least one column"),
    ("sink of nothing", lambda s: s.sink_to(5), "sink_to needs a Sink or a callable, got an int: 5"),
    ("sink class", lambda s: s.sink_to(BlackholeSink), "sink_to got the class BlackholeSink; give it an instance"),
    ("sink that cannot write this", lambda s: s.sink_to(NumbersOnly()), "a sink of numbers cannot write Click("),
    ("negative limit", lambda s: PrintSink(limit=-1), "limit must not be negative, got -1"),
    ("sum of text", lambda s: s.key_by("user").sum("app"), "sum('app'): the column is string, but must be"),
    ("sum of times", lambda s: s.key_by("user").sum("at"), "sum('at'): the column is timestamp[us], but must be"),
    ("min of lists", lambda s: s.key_by("user").min("tags"), "min('tags'): the column is list<"),
    ("sum of an unknown column", lambda s: s.key_by("user").sum("x"), "sum names column 'x', but the records have"),
    ("sum of objects", lambda s: objects().key_by(len).sum("x"), "sum('x') needs columns, but the records are"),
    ("result named as the key", lambda s: s.key_by("app").count(output="app"), "'app' has the name of a key column"),
    ("emit", lambda s: s.key_by("app").count(emit="late"), 'emit is "each" or "batch", got \'late\''),
    ("reduce of no function", lambda s: s.key_by("app").reduce(1), "reduce needs a callable or a ReduceFunction"),
    ("unknown setting", lambda s: s.map(identity, paralelism=2), "unknown setting 'paralelism'; there are max_"),
    ("no uid", lambda s: s.uid(""), "a uid is a text that is not empty, got ''"),
    ("uid of a number", lambda s: s.uid(5), "a uid is a text that is not empty, got 5"),
    ("no name", lambda s: s.name(""), "a name is a text that is not empty"),
    ("no group", lambda s: s.slot_sharing_group(None), "a slot-sharing group is a text that is not empty, got None"),
    ("no parallelism", lambda s: s.set_parallelism(0), "'clicks': parallelism must be a number from 1 to 32768, got 0"),
    ("parallelism of text", lambda s: s.set_parallelism("2"), "parallelism must be a number from 1 to 32768, got '2'"),
    ("parallelism of a bool", lambda s: s.set_parallelism(True), "parallelism must be a number"),
    ("too wide", lambda s: s.set_max_parallelism(40_000), "max parallelism must be a number from 1 to 32768"),
    ("setting of a key", lambda s: s.key_by("app").name("x"), "name belongs to an operator, but this stream is not"),
    ("setting of a union", lambda s: s.union(s).uid("x"), "uid belongs to an operator, but this stream is not"),
    ("setting of a partitioning", lambda s: s.rebalance().set_parallelism(2), "set_parallelism belongs to an operator"),
]  # fmt: skip


@pytest.mark.parametrize(("misuse", "message"), [m[1:] for m in MISUSES], ids=[m[0] for m in MISUSES])
def test_misuse_is_refused_while_the_program_is_written(
    misuse: Callable[[DataStream], Any], message: str
) -> None:
    with pytest.raises((ProgramError, SchemaError)) as caught:
        misuse(clicks())
    assert message in str(caught.value)
    assert isinstance(caught.value, TidegateError)


def test_a_refused_setting_changes_nothing_upstream() -> None:
    stream = clicks()
    with pytest.raises(ProgramError):
        stream.key_by("app").name("x")
    assert stream._node.name == "clicks"


class TestResultTypes:
    def test_map_takes_the_return_hint_or_what_it_is_told(self) -> None:
        assert clicks().map(identity).record_type.describe().startswith("Click(")
        assert clicks().map(ToText()).record_type.describe() == "str"
        assert clicks().map(lambda c: c.user, returns=int).record_type.describe() == "int"
        assert clicks().map(lambda c: c.user).record_type.is_object

    def test_filters_keep_the_type(self) -> None:
        stream = clicks()
        assert stream.filter(bool).record_type == stream.record_type
        assert stream.filter(pl.col("user") > 0).record_type == stream.record_type

    def test_expressions_give_rows_with_the_types_that_polars_finds(self) -> None:
        selected = clicks().select(
            "app", (pl.col("user") * 2.5).alias("x"), pl.col("at").dt.date().alias("day")
        )
        assert selected.record_type.describe() == "Row(app: string?, x: double?, day: date32[day]?)"
        wider = clicks().with_columns(pl.col("app").str.len_chars().alias("length"))
        assert wider.record_type.names == ["app", "user", "price", "at", "tags", "length"]
        assert wider.record_type.schema.field("tags").type == clicks().record_type.schema.field("tags").type
        made = clicks().with_columns(pl.col("tags").list.head(1))
        assert made.record_type.schema.field("tags").type == pa.list_(pa.string())

    def test_map_batches_keeps_the_type_unless_told(self) -> None:
        stream = clicks()
        assert stream.map_batches(lambda b: b).record_type == stream.record_type
        schema = pa.schema([("n", pa.int64())])
        assert stream.map_batches(lambda b: b, returns=schema).record_type.describe() == "Row(n: int64?)"

    @pytest.mark.parametrize(
        ("aggregate", "description"),
        [
            (lambda k: k.count(), "Row(app: string, count: int64)"),
            (lambda k: k.count(output="n"), "Row(app: string, n: int64)"),
            (lambda k: k.sum("user"), "Row(app: string, sum_user: int64?)"),
            (lambda k: k.sum("price"), "Row(app: string, sum_price: double?)"),
            (lambda k: k.min("user"), "Row(app: string, min_user: int64?)"),
            (lambda k: k.max("at", output="last"), "Row(app: string, last: timestamp[us]?)"),
        ],
    )
    def test_aggregates_give_the_key_and_the_result(
        self, aggregate: Callable[[Any], DataStream], description: str
    ) -> None:
        for mini_batch in (False, True):
            keyed = clicks(mini_batch=mini_batch).key_by("app")
            assert aggregate(keyed).record_type.describe() == description

    def test_a_key_function_gives_the_column_key(self) -> None:
        def parity(click: Click) -> int:
            return click.user % 2

        def place(click: Click) -> tuple[str, int]:
            return click.app, click.user

        assert clicks().key_by(parity).count().record_type.describe() == "Row(key: int64, count: int64)"
        assert (
            clicks().key_by(place).count().record_type.describe()
            == "Row(f0: string, f1: int64, count: int64)"
        )
        assert clicks().key_by(lambda c: c.app).count().record_type.is_object
        assert clicks().key_by(lambda c: c.app, returns=str).count().record_type.names == ["key", "count"]

    def test_reduce_keeps_the_type(self) -> None:
        stream = clicks()
        assert stream.key_by("app").reduce(lambda a, b: b).record_type == stream.record_type

    def test_co_functions_give_one_type(self) -> None:
        both = clicks()
        assert both.connect(both).map(Two()).record_type.describe() == "int"
        assert both.connect(both).flat_map(TwoLists()).record_type.describe() == "int"
        stream = both.connect(both).key_by("app", ("app",)).process(TwoProcesses(), side_outputs=(REST,))
        assert stream.record_type.describe() == "int"
        assert stream.get_side_output(REST).record_type.describe() == "str"
        assert both.connect(both).map(TwoTypes(), returns=object).record_type.is_object

    def test_a_process_function_declares_its_side_outputs(self) -> None:
        stream = clicks().process(lambda v, c: [v], returns=Click, side_outputs=REST)  # one tag alone is fine
        assert stream.get_side_output(REST).record_type.describe() == "str"


class TestOperations:
    def test_each_call_adds_one_operator_with_a_readable_name(self) -> None:
        stream = clicks()
        stream.map(identity).flat_map(ToText().map).filter(bool).sink_to(print)
        names = [n.name for n in stream._env._nodes]
        assert names == [
            "clicks",
            "map identity",
            "flat_map ToText.map",
            "filter bool",
            "sink function print",
        ]

    def test_keyed_functions_know_their_key(self) -> None:
        operation = clicks().key_by("app", "user").map(identity)._node.operation
        assert isinstance(operation, ApplyFunction)
        assert operation.key is not None
        assert operation.key.columns == ("app", "user")
        assert clicks().map(identity)._node.operation.key is None  # type: ignore[attr-defined]

    def test_emit_follows_the_option_unless_said(self) -> None:
        def emitted(stream: DataStream, emit: Any = None) -> str:
            operation = stream.key_by(lambda c: c.app).count(emit=emit)._node.operation
            assert isinstance(operation, RollingAggregate)
            return operation.emit

        assert emitted(clicks()) == "each"
        assert emitted(clicks(), "batch") == "batch"
        assert emitted(clicks(mini_batch=True)) == "batch"
        assert emitted(clicks(mini_batch=True), "each") == "each"
        reduced = clicks(mini_batch=True).key_by("app").reduce(lambda a, b: b)._node.operation
        assert isinstance(reduced, RollingReduce)
        assert reduced.emit == "batch"

    def test_mini_batches_aggregate_before_the_exchange(self) -> None:
        stream = clicks()
        merged = stream.key_by("app").sum("user", emit="batch", uid="s")
        ((ref,),) = merged._node.inputs
        local = ref.upstream.operation
        assert isinstance(local, RollingAggregate)
        assert (local.stage, local.aggregates) == ("local", (("sum_user", Sum("user")),))
        merge = merged._node.operation
        assert isinstance(merge, RollingAggregate)
        assert (merge.stage, merge.aggregates) == ("merge", local.aggregates)
        assert ref.upstream.output_type == merged.record_type
        assert (merged._node.uid, ref.upstream.uid) == ("s", None)

    def test_sinks_are_objects_or_functions(self) -> None:
        written: list[Any] = []
        operation = clicks().sink_to(written.append)._node.operation
        assert isinstance(operation, WriteSink)
        assert isinstance(operation.sink, FunctionSink)
        printed = clicks().print("p")._node.operation
        assert isinstance(printed, WriteSink)
        assert printed.sink.describe() == "print, prefix p"

    def test_settings_are_keyword_arguments_or_calls(self) -> None:
        by_keyword = clicks().map(
            identity, uid="u", name="n", parallelism=2, max_parallelism=64, slot_sharing_group="g"
        )
        by_call = clicks().map(identity).uid("u").name("n").set_parallelism(2).set_max_parallelism(64)
        by_call = by_call.slot_sharing_group("g")
        for stream in (by_keyword, by_call):
            node = stream._node
            settings = (node.uid, node.name, node.parallelism, node.max_parallelism, node.slot_sharing_group)
            assert settings == ("u", "n", 2, 64, "g")

    def test_a_stream_may_be_used_any_number_of_times(self) -> None:
        stream = clicks()
        stream.print()
        stream.print()
        assert len(stream._env._sinks) == 2


# ---- what a user sees of them ----


def test_repr_of_a_stream_names_its_operator_and_its_type():
    numbers = Environment(runtime="in-process").from_sequence(1, 3, name="numbers")
    assert repr(numbers) == "<DataStream of 'numbers': int>"
    assert repr(numbers.key_by("value")) == "<KeyedStream of 'numbers': int>"


def test_every_public_name_is_there():
    import tidegate

    assert [name for name in tidegate.__all__ if not hasattr(tidegate, name)] == []
    assert tidegate.__all__ == sorted(tidegate.__all__)


def test_several_print_sinks_are_told_apart_by_their_identifiers() -> None:
    env = Environment(runtime="in-process")
    numbers = env.from_collection([1, 2])
    numbers.print("first")
    numbers.print(sink_identifier="second")
    numbers.print()
    assert [s.name for s in env._program(None).sinks] == ["print first", "print second", "print"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("window", r"window\(\) needs keys: call key_by\(...\).window\(...\), or window_all\(...\)"),
        ("count_window", r"or count_window_all\(...\) for the whole stream"),
        ("interval_join", r"call key_by\(...\).interval_join\(...\)$"),
    ],
)
def test_what_needs_keys_says_so_on_a_stream_without_them(name: str, message: str) -> None:
    stream = Environment(runtime="in-process").from_sequence(1, 3)
    with pytest.raises(ProgramError, match=message):
        getattr(stream, name)
    assert not hasattr(stream, name)
    with pytest.raises(AttributeError, match="'DataStream' object has no attribute 'windwo'"):
        stream.windwo  # type: ignore[attr-defined]  # noqa: B018
