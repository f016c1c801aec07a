"""Maps names of Flink, Spark, polars and pandas to ours.

Using one raises an AttributeError (an ImportError for names of the package) that names our equivalent or says what to
do instead. Most names differ only by their case (`keyBy`), which needs no table. Only classes that build programs
define `__getattr__`, because it makes instances slower to read. A wrong name on a state is translated when the error of
the user's function is reported (`translated`).
"""

from __future__ import annotations

import re
from abc import ABCMeta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NoReturn


class Advice(str):
    """What to do if we have no single equivalent name."""


_COLLECT = "list(stream.execute_and_collect())"
_FILES = 'sink_to(FileSink(directory, format="{}"))'
_READ = 'from_source(FileSource(path, "{}", schema))'
_SORT = Advice(
    "a stream has no end to sort up to. Sort where one is known: window(...).process(...) for the records of a window, "
    "TopN in window(...).aggregate(...), or the collected results"
)
_LIMIT = Advice(
    "a stream is not cut by number. Take the first results with itertools.islice(stream.execute_and_collect(), n), or "
    "end the source (DataGeneratorSource(count=n))"
)
_SHOW = Advice("print() prints every record in the driver; execute_and_collect() gives them to the program")
_AVERAGE = 'aggregate(mean=Avg("price"))'
_DISTINCT = "key_by(...).deduplicate(within=...)"
_OWN_STATE = "process(function) with a KeyedProcessFunction that declares ValueState, ListState or MapState"
_TRANSFORM = Advice("call your function with the stream: function(stream)")
_ONE_NAME = 'window(TumblingEventTimeWindows("10 s"))'

INSTEAD: Final[dict[str, dict[str, str]]] = {
    "Environment": {
        "add_source": "from_source(source)",
        "add_jars": Advice("there are no jars: connectors are Python packages"),
        "close": Advice(
            "there is nothing to close: a job that execute_async() started is ended by its client's cancel()"
        ),
        "create_data_frame": "from_collection([...])",
        "disable_operator_chaining": "Environment(chaining=False)",
        "enable_checkpointing": 'Environment(checkpoint_interval="1 s")',
        "from_data": "from_collection([...])",
        "from_elements": "from_collection([...])",
        "from_files": _READ.format("json"),
        "from_iterable": "from_collection([...])",
        "from_kafka": Advice("there is no Kafka connector yet"),
        "from_list": "from_collection([...])",
        "from_pandas": "from_collection(dataframe)",
        "from_polars": "from_collection(dataframe)",
        "from_text": _READ.format("text"),
        "generate_sequence": "from_sequence(start, end)",
        "get_checkpoint_config": "options, set with Environment(checkpoint_interval=..., checkpoint_dir=...)",
        "get_config": "options",
        "get_execution_plan": "explain()",
        "get_execution_environment": "Environment(...)",
        "get_parallelism": "options.parallelism",
        "parallelize": "from_collection([...])",
        "read": _READ.format("json"),
        "read_csv": _READ.format("csv"),
        "read_json": _READ.format("json"),
        "read_parquet": _READ.format("parquet"),
        "read_stream": _READ.format("json"),
        "read_text_file": "from_source(FileSource(...))",
        "run": "execute()",
        "set_buffer_timeout": "Environment(buffer_timeout=...)",
        "set_max_parallelism": "Environment(max_parallelism=...)",
        "set_parallelism": "Environment(parallelism=...)",
        "set_restart_strategy": "Environment(restart_strategy=...)",
        "set_runtime_mode": Advice("a bounded program ends by itself, with the same operators"),
        "set_state_backend": 'Environment(state_backend="rocksdb")',
        "set_stream_time_characteristic": "a WatermarkStrategy where the stream begins",
        "socket_text_stream": "from_source(SocketSource(...))",
        "sql": Advice("there is no SQL; select(), filter() and with_columns() take polars expressions"),
        "start": "execute_async()",
        "stop": "cancel() of the client that execute_async() returns",
        "submit": "execute_async()",
        "text_file": _READ.format("text"),
    },
    "DataStream": {
        "add_sink": "sink_to(sink)",
        "agg": 'key_by(...).aggregate(n=Count(), total=Sum("amount")), or window(...).aggregate(...)',
        "apply": Advice(
            "map(function) takes a function of one record, map_batches(function) one of an Arrow batch, "
            "window(...).process(function) one of the records of a window"
        ),
        "apply_in_pandas": "map_batches(function)",
        "assign": "with_columns(total=pl.col(...) * 2)",
        "cache": Advice("a stream is not stored: use the same stream in several places, it is computed once"),
        "coalesce": "set_parallelism(n) on the operator that follows",
        "collect": _COLLECT,
        "collect_list": "window(...).process(function), which gets the records of the window",
        "columns": "record_type.names",
        "count_by_key": "key_by(...).count()",
        "describe": "record_type",
        "distinct": _DISTINCT,
        "drop": 'select(pl.exclude("name"))',
        "drop_duplicates": _DISTINCT,
        "drop_nulls": 'filter(pl.col("name").is_not_null())',
        "dropna": 'filter(pl.col("name").is_not_null())',
        "dtypes": "record_type.schema",
        "execute": Advice(
            "the environment executes: env.execute() runs all sinks, stream.execute_and_collect() one stream"
        ),
        "explode": "flat_map(function)",
        "fill_null": 'with_columns(pl.col("name").fill_null(0))',
        "fillna": 'with_columns(pl.col("name").fill_null(0))',
        "flat_map_with_state": _OWN_STATE,
        "for_each": "sink_to(function)",
        "foreach": "sink_to(function)",
        "foreach_batch": "sink_to(sink) with a Sink of your own, whose writer gets batches",
        "get_type": "record_type",
        "global": "global_",
        "group_by": 'key_by("app")',
        "head": _LIMIT,
        "iterrows": "execute_and_collect()",
        "join_asof": 'key_by(...).interval_join(...).between("-5 s", 0)',
        "limit": _LIMIT,
        "map_groups_with_state": _OWN_STATE,
        "map_partitions": "map_batches(function)",
        "map_with_state": _OWN_STATE,
        "merge": "union(other) for one stream after the other's records, join(other) for pairs",
        "order_by": _SORT,
        "persist": Advice(
            "a stream is not stored: use the same stream in several places, it is computed once"
        ),
        "pipe": _TRANSFORM,
        "pivot": Advice(
            "columns are fixed when the program is written: make one with with_columns(...) for each value"
        ),
        "print_schema": "record_type",
        "project": "select(...)",
        "reduce_by_key": "key_by(...).reduce(function)",
        "rename": 'select(pl.all().exclude("old"), new=pl.col("old"))',
        "repartition": "rebalance(), or key_by(...) for records of one key together",
        "resample": _ONE_NAME,
        "returns": "returns=... in the call that takes the function",
        "rolling": 'window(SlidingEventTimeWindows("10 s", "1 s"))',
        "schema": "record_type",
        "session_window": 'window(EventTimeSessionWindows("10 s"))',
        "show": _SHOW,
        "sliding_window": 'window(SlidingEventTimeWindows("10 s", "1 s"))',
        "sort": _SORT,
        "sort_by": _SORT,
        "start": "env.execute_async()",
        "take": _LIMIT,
        "time_window": _ONE_NAME,
        "time_window_all": 'window_all(TumblingEventTimeWindows("10 s"))',
        "to_arrow": Advice(f"collect the rows with {_COLLECT}, or write Parquet files with FileSink"),
        "to_dict": _COLLECT,
        "to_list": _COLLECT,
        "to_pandas": "pandas.DataFrame(stream.execute_and_collect()), or to_dataframe().toPandas() on Spark",
        "to_polars": "polars.DataFrame([row.as_dict() for row in stream.execute_and_collect()])",
        "transform": _TRANSFORM,
        "transform_with_state": _OWN_STATE,
        "tumble": _ONE_NAME,
        "tumbling_window": _ONE_NAME,
        "union_all": "union(other)",
        "unnest": 'with_columns(pl.col("struct").struct.field("name"))',
        "unique": _DISTINCT,
        "where": "filter(...)",
        "with_column": "with_columns(...)",
        "with_watermark": "assign_timestamps_and_watermarks(WatermarkStrategy.bounded(delay, timestamp))",
        "write": _FILES.format("parquet"),
        "write_as_csv": _FILES.format("csv"),
        "write_as_text": _FILES.format("text"),
        "write_csv": _FILES.format("csv"),
        "write_json": _FILES.format("json"),
        "write_parquet": _FILES.format("parquet"),
        "write_stream": "sink_to(sink)",
    },
    "KeyedStream": {
        "agg": 'aggregate(n=Count(), total=Sum("amount"))',
        "average": _AVERAGE,
        "avg": _AVERAGE,
        "mean": _AVERAGE,
    },
    "WatermarkStrategy": {
        "for_bounded_out_of_orderness": "bounded(out_of_orderness, timestamp)",
        "for_generator": "periodic(generator, timestamp)",
        "for_monotonous_timestamps": "monotonous(timestamp)",
        "with_timestamp_assigner": "the argument timestamp, as in WatermarkStrategy.bounded(delay, timestamp)",
        "with_watermark_alignment": "with_alignment(group, max_drift)",
    },
    "ValueState": {
        "add": "update(value)",
        "get": "value()",
        "put": "update(value)",
        "set": "update(value)",
    },
    "ListState": {
        "append": "add(value)",
        "extend": "add_all(values)",
        "set": "update(values)",
        "value": "get()",
    },
    "MapState": {
        "delete": "remove(key)",
        "entries": "items()",
        "pop": "get(key) and remove(key)",
        "put_all": "put(key, value) for each",
        "set": "put(key, value)",
        "update": "put(key, value)",
        "value": "get(key)",
    },
    "ReducingState": {"update": "add(value)", "value": "get()"},
    "AggregatingState": {"update": "add(value)", "value": "get()"},
}
"""Our class to the foreign name in snake case to our equivalent."""

OF_THE_PACKAGE: Final[dict[str, str]] = {
    "CheckpointingMode": 'Environment(checkpoint_mode="exactly_once")',
    "Configuration": 'Environment(parallelism=2, ...), or Environment(config="job.yaml")',
    "Duration": 'a text such as "10 s", or a number of milliseconds',
    "EventTimeSessionWindow": "EventTimeSessionWindows",
    "ListStateDescriptor": "ListState(int), declared in the class of the function",
    "MapStateDescriptor": "MapState(str, int), declared in the class of the function",
    "ProcessAllWindowFunction": "ProcessWindowFunction",
    "RichFilterFunction": "FilterFunction",
    "RichFlatMapFunction": "FlatMapFunction",
    "RichMapFunction": "MapFunction",
    "RuntimeExecutionMode": 'Environment(runtime="spark") or "in-process"',
    "SessionWindows": "EventTimeSessionWindows or ProcessingTimeSessionWindows",
    "SinkFunction": "stream.sink_to(function), or a class derived from Sink",
    "SlidingWindows": "SlidingEventTimeWindows or SlidingProcessingTimeWindows",
    "SourceFunction": "a class derived from Source",
    "SparkSession": "Environment(spark=session)",
    "Stream": "DataStream",
    "StreamExecutionEnvironment": "Environment",
    "StreamTableEnvironment": "Environment",
    "Time": 'a text such as "10 s", or a number of milliseconds',
    "TumblingWindows": "TumblingEventTimeWindows or TumblingProcessingTimeWindows",
    "Types": "Python's own types: returns=int, returns=tuple[str, int]",
    "ValueStateDescriptor": "ValueState(int), declared in the class of the function",
    "Window": "TimeWindow",
    "col": "polars.col",
    "lit": "polars.lit",
}
"""Foreign names of the package: our equivalent, or where to import it from."""

METHODS: Final[dict[str, str]] = {
    "flatMap": "flat_map",
    "onTimer": "on_timer",
    "processBroadcastElement": "process_broadcast",
    "processElement": "process",
    "processElement1": "process1",
    "processElement2": "process2",
    "process_broadcast_element": "process_broadcast",
    "process_element": "process",
    "process_element1": "process1",
    "process_element2": "process2",
}
"""Methods of function classes in Flink to ours."""


def package_name(name: str) -> ImportError | AttributeError:
    """The error for a name that `tidegate` does not have: an ImportError, which an import statement shows."""
    instead = OF_THE_PACKAGE.get(name)
    if instead is None:
        return AttributeError(f"module 'tidegate' has no attribute {name!r}", name=name)
    return ImportError(f"tidegate has no {name!r}; in tidegate it is {instead}", name=name)


def translated(error: BaseException) -> BaseException:
    """Replace the AttributeError of a foreign name on a state with one that names ours; keep any other error."""
    obj = getattr(error, "obj", None)
    if not isinstance(error, AttributeError) or obj is None or not error.name:
        return error
    for cls in type(obj).__mro__:
        if error.name in INSTEAD.get(cls.__name__, ()) and cls.__module__.startswith("tidegate."):
            return missing_attribute(cls, error.name)
    return error


def missing_attribute(cls: type, name: str, *, among: type | None = None) -> AttributeError:
    """The error for an attribute that a class does not have; it proposes ours for a foreign or misspelt name.

    `among` is the class that may have our name, if it is another one.

    >>> missing_attribute(dict, "fromKeys")
    AttributeError("'dict' object has no attribute 'fromKeys'. Did you mean 'fromkeys'?")
    """
    missing = f"{cls.__name__!r} object has no attribute {name!r}"
    # Passing the name stops Python's own proposals, which could be private names.
    if name.startswith("_"):
        return AttributeError(missing, name=name)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    tables = [INSTEAD[c.__name__] for c in cls.__mro__ if c.__name__ in INSTEAD]
    found = snake != name and hasattr(among or cls, snake)
    instead = snake if found else _looked_up(tables, snake)
    if instead is not None:
        answer = f": {instead}" if isinstance(instead, Advice) else f"; in tidegate it is {instead!r}"
        return AttributeError(f"{cls.__name__} has no {name!r}{answer}", name=name)
    near = get_close_matches(name, [n for n in dir(cls) if not n.startswith("_")], n=1)
    return AttributeError(f"{missing}. Did you mean {near[0]!r}?" if near else missing, name=name)


def _looked_up(tables: list[dict[str, str]], name: str) -> str | None:
    """Our name; also matches words written without underscores, as in pandas (`groupby`)."""
    squashed = name.replace("_", "")
    for table in tables:
        for known, instead in table.items():
            if known.replace("_", "") == squashed:
                return instead
    return None


class NamesOfClass(ABCMeta):
    """The metaclass for Flink's class methods: `WatermarkStrategy.forMonotonousTimestamps()`.

    It derives from ABCMeta, so that a user's subclass may also be abstract.
    """

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            raise missing_attribute(cls, name)


class FlinkNames:
    """Gives instances a `__getattr__` that names our equivalent of a foreign name."""

    if not TYPE_CHECKING:  # a type checker shall see that there is no such method

        def __getattr__(self, name: str) -> NoReturn:
            # Uses only the class: an instance that is being unpickled has no attributes yet.
            raise missing_attribute(type(self), name)
