"""tidegate: exactly-once stateful streams in Python, on the Spark you already run."""

from tidegate.api.connected_streams import ConnectedStreams
from tidegate.api.environment import Environment
from tidegate.api.functions import (
    BroadcastContext,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
    TimerService,
)
from tidegate.api.job_client import JobClient
from tidegate.api.restart_strategies import RestartStrategies
from tidegate.api.sink import BlackholeSink, Sink
from tidegate.api.source import Source
from tidegate.api.state import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    PickleSerializer,
    ReducingState,
    StateAccessError,
    StateSerializer,
    StateTtl,
    UnionListState,
    ValueState,
)
from tidegate.api.streams import DataStream, KeyedStream
from tidegate.api.watermarks import WatermarkGenerator, WatermarkStrategy
from tidegate.connectors.datagen import DataGeneratorSource
from tidegate.connectors.files import FileSink, FileSource
from tidegate.connectors.socket import SocketSource
from tidegate.core.errors import (
    BadRecordError,
    CheckpointError,
    ConfigurationError,
    JobCanceledError,
    JobError,
    JobFailedError,
    ProgramError,
    SchemaError,
    SerializationError,
    SlotsUnavailableError,
    StateCompatibilityError,
    TidegateError,
)
from tidegate.core.states import JobStatus

__version__ = "0.1.0"

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BadRecordError",
    "BlackholeSink",
    "BroadcastContext",
    "BroadcastProcessFunction",
    "BroadcastState",
    "CheckpointError",
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
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "MapFunction",
    "MapState",
    "OnTimerContext",
    "OperatorListState",
    "OutputTag",
    "PickleSerializer",
    "ProcessContext",
    "ProcessFunction",
    "ProgramError",
    "ReduceFunction",
    "ReducingState",
    "RestartStrategies",
    "RuntimeContext",
    "SchemaError",
    "SerializationError",
    "Sink",
    "SlotsUnavailableError",
    "SocketSource",
    "Source",
    "StateAccessError",
    "StateCompatibilityError",
    "StateSerializer",
    "StateTtl",
    "TidegateError",
    "TimerService",
    "UnionListState",
    "ValueState",
    "WatermarkGenerator",
    "WatermarkStrategy",
]
