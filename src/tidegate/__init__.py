"""tidegate: exactly-once stateful streams in Python, on the Spark you already run."""

from tidegate.api.environment import Environment
from tidegate.api.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from tidegate.api.job_client import JobClient
from tidegate.api.streams import ConnectedStreams, DataStream, KeyedStream
from tidegate.core.errors import (
    BadRecordError,
    ConfigurationError,
    JobCanceledError,
    JobError,
    JobFailedError,
    ProgramError,
    SchemaError,
    SlotsUnavailableError,
    TidegateError,
)
from tidegate.core.states import JobStatus

__version__ = "0.1.0"

__all__ = [
    "BadRecordError",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConfigurationError",
    "ConnectedStreams",
    "DataStream",
    "Environment",
    "FilterFunction",
    "FlatMapFunction",
    "JobCanceledError",
    "JobClient",
    "JobError",
    "JobFailedError",
    "JobStatus",
    "KeyedStream",
    "MapFunction",
    "OutputTag",
    "ProcessContext",
    "ProcessFunction",
    "ProgramError",
    "ReduceFunction",
    "RuntimeContext",
    "SchemaError",
    "SlotsUnavailableError",
    "TidegateError",
]
