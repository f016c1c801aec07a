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
from tidegate.api.restart_strategies import RestartStrategies
from tidegate.api.sink import BlackholeSink, Sink
from tidegate.api.source import Source
from tidegate.api.streams import ConnectedStreams, DataStream, KeyedStream
from tidegate.connectors.datagen import DataGeneratorSource
from tidegate.connectors.files import FileSink, FileSource
from tidegate.connectors.socket import SocketSource
from tidegate.core.errors import (
    BadRecordError,
    ConfigurationError,
    JobCanceledError,
    JobError,
    JobFailedError,
    ProgramError,
    SchemaError,
    SerializationError,
    SlotsUnavailableError,
    TidegateError,
)
from tidegate.core.states import JobStatus

__version__ = "0.1.0"

__all__ = [
    "BadRecordError",
    "BlackholeSink",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConfigurationError",
    "ConnectedStreams",
    "DataGeneratorSource",
    "DataStream",
    "Environment",
    "FileSink",
    "FileSource",
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
    "RestartStrategies",
    "RuntimeContext",
    "SchemaError",
    "SerializationError",
    "Sink",
    "SlotsUnavailableError",
    "SocketSource",
    "Source",
    "TidegateError",
]
