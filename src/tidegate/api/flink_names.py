"""Flink's and Spark's names for what is called otherwise here: whoever writes one is told ours, in an AttributeError.

Most differ by their case alone (`keyBy`), which needs no table. Only classes that build programs have this: instances
of a class with a `__getattr__` are slower to read, so functions and their states have not.
"""

from __future__ import annotations

import re
from abc import ABCMeta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NoReturn

INSTEAD: Final[dict[str, dict[str, str]]] = {
    "Environment": {
        "add_source": "from_source(source)",
        "disable_operator_chaining": "Environment(chaining=False)",
        "enable_checkpointing": 'Environment(checkpoint_interval="1 s")',
        "from_data": "from_collection([...])",
        "from_elements": "from_collection([...])",
        "generate_sequence": "from_sequence(start, end)",
        "get_config": "options",
        "get_execution_plan": "explain()",
        "get_execution_environment": "Environment(...)",
        "get_parallelism": "options.parallelism",
        "read_text_file": "from_source(FileSource(...))",
        "set_buffer_timeout": "Environment(buffer_timeout=...)",
        "set_max_parallelism": "Environment(max_parallelism=...)",
        "set_parallelism": "Environment(parallelism=...)",
        "set_restart_strategy": "Environment(restart_strategy=...)",
        "set_state_backend": 'Environment(state_backend="rocksdb")',
        "socket_text_stream": "from_source(SocketSource(...))",
    },
    "DataStream": {
        "add_sink": "sink_to(sink)",
        "agg": 'count(), sum("amount"), ... of a keyed stream, or window(...).aggregate(...) for several at once',
        "get_type": "record_type",
        "global": "global_",
        "group_by": 'key_by("app")',
        "project": "select(...)",
        "returns": "returns=... in the call that takes the function",
        "time_window": 'window(TumblingEventTimeWindows("10 s"))',
        "time_window_all": 'window_all(TumblingEventTimeWindows("10 s"))',
        "where": "filter(...)",
        "with_column": "with_columns(...)",
        "write_as_csv": 'sink_to(FileSink(directory, format="csv"))',
        "write_as_text": 'sink_to(FileSink(directory, format="text"))',
        "write_stream": "sink_to(sink)",
    },
    "KeyedStream": {
        "aggregate": 'count(), sum("amount"), ..., or window(...).aggregate(...) for several at once',
    },
    "WatermarkStrategy": {
        "for_bounded_out_of_orderness": "bounded(out_of_orderness, timestamp)",
        "for_generator": "periodic(generator, timestamp)",
        "for_monotonous_timestamps": "monotonous(timestamp)",
        "with_timestamp_assigner": "the argument timestamp, as in WatermarkStrategy.bounded(delay, timestamp)",
        "with_watermark_alignment": "with_alignment(group, max_drift)",
    },
}
"""By our class, then by the name in snake case."""


def missing_attribute(cls: type, name: str, *, among: type | None = None) -> AttributeError:
    """The error for an attribute that a class does not have, with ours if the name is another's or nearly right.

    `among`: the class that may have ours, if it is another.

    >>> missing_attribute(dict, "fromKeys")
    AttributeError("'dict' object has no attribute 'fromKeys'. Did you mean 'fromkeys'?")
    """
    missing = f"{cls.__name__!r} object has no attribute {name!r}"
    # With the name, Python makes no proposals of its own, which could be private ones.
    if name.startswith("_"):
        return AttributeError(missing, name=name)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    tables = [INSTEAD[c.__name__] for c in cls.__mro__ if c.__name__ in INSTEAD]
    found = snake != name and hasattr(among or cls, snake)
    instead = snake if found else next((t[snake] for t in tables if snake in t), None)
    if instead is not None:
        return AttributeError(f"{cls.__name__} has no {name!r}; in tidegate it is {instead!r}", name=name)
    near = get_close_matches(name, [n for n in dir(cls) if not n.startswith("_")], n=1)
    return AttributeError(f"{missing}. Did you mean {near[0]!r}?" if near else missing, name=name)


class NamesOfClass(ABCMeta):
    """The metaclass of what Flink makes by calls of the class: `WatermarkStrategy.forMonotonousTimestamps()`.

    Python's own for abstract classes, so that a user's class may be both.
    """

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            raise missing_attribute(cls, name)


class FlinkNames:
    """For classes whose instances name ours when one of Flink's names is asked for."""

    if not TYPE_CHECKING:  # a type checker is to see that there is no such method

        def __getattr__(self, name: str) -> NoReturn:
            # Of the class alone: an instance that is being unpickled has nothing yet.
            raise missing_attribute(type(self), name)
