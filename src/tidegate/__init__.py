"""tidegate: exactly-once stateful streams in Python, on the Spark you already run."""

import importlib
from typing import TYPE_CHECKING, Any

from tidegate.aggregates.aggregate import Aggregate, Kernel
from tidegate.aggregates.best_by import MaxBy, MinBy
from tidegate.aggregates.count import Count
from tidegate.aggregates.distinct import CountDistinct
from tidegate.aggregates.edges import First, Last
from tidegate.aggregates.extremes import Max, Min
from tidegate.aggregates.mean import Avg
from tidegate.aggregates.sum import Sum
from tidegate.aggregates.top_n import TopN
from tidegate.api.async_io import AsyncFunction, AsyncRetry
from tidegate.api.column_cuts import SessionGap, Slices
from tidegate.api.connected_streams import ConnectedStreams
from tidegate.api.environment import Environment
from tidegate.api.evictors import CountEvictor, Evictor, EvictorContext, TimeEvictor, TimestampedValue
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
from tidegate.api.joins import (
    IntervalJoinedStreams,
    IntervalJoinStreams,
    JoinContext,
    JoinFunction,
    ProcessJoinFunction,
)
from tidegate.api.keyed_streams import KeyedStream
from tidegate.api.restart_strategies import RestartStrategies
from tidegate.api.sink import BlackholeSink, Committer, Sink, SinkJob, SinkWriter, WriterContext
from tidegate.api.source import (
    Boundedness,
    EnumeratorContext,
    Finished,
    Idle,
    ReaderContext,
    Source,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from tidegate.api.state import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    KeyedState,
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
from tidegate.api.streams import DataStream, DataStreamSink
from tidegate.api.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    OnMergeContext,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from tidegate.api.watermarks import WatermarkGenerator, WatermarkStrategy
from tidegate.api.window_functions import ProcessWindowFunction, WindowContext
from tidegate.api.window_joins import (
    CoGroupFunction,
    JoinedStreams,
    WindowCoGroupedStreams,
    WindowJoinedStreams,
)
from tidegate.api.windowed_streams import WindowedStream
from tidegate.api.windows import (
    CumulativeEventTimeWindows,
    CumulativeProcessingTimeWindows,
    EventTimeSessionWindows,
    GlobalWindow,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from tidegate.connectors.datagen import DataGeneratorSource
from tidegate.connectors.files import FileSink, FileSource
from tidegate.connectors.socket import SocketSource
from tidegate.core.clock import Clock
from tidegate.core.errors import (
    BadRecordError,
    CheckpointError,
    ConfigurationError,
    JobCanceledError,
    JobError,
    JobFailedError,
    JobFencedError,
    ProgramError,
    SchemaError,
    SerializationError,
    SlotsUnavailableError,
    StateCompatibilityError,
    TidegateError,
)
from tidegate.core.states import JobStatus
from tidegate.metrics.snapshot import (
    CatchUp,
    EventTime,
    JobMetrics,
    OperatorCounts,
    SubtaskMetrics,
    VertexMetrics,
)
from tidegate.program.foreign_names import package_name
from tidegate.records.batch import Batch, Origin
from tidegate.records.rows import Row
from tidegate.records.types import RecordType, record_type_of

if TYPE_CHECKING:
    from tidegate.jobmanager.checkpoint.statistics import (
        CheckpointsOverview,
        CheckpointStatistics,
        SubtaskCheckpointStatistics,
    )
    from tidegate.jobmanager.failover.job import JobOverview
    from tidegate.snapshot.handles import SubtaskCheckpointMetrics

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "AggregatingState",
    "AsyncFunction",
    "AsyncRetry",
    "Avg",
    "BadRecordError",
    "Batch",
    "BlackholeSink",
    "Boundedness",
    "BroadcastContext",
    "BroadcastProcessFunction",
    "BroadcastState",
    "CatchUp",
    "CheckpointError",
    "CheckpointStatistics",
    "CheckpointsOverview",
    "Clock",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "Committer",
    "ConfigurationError",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "Count",
    "CountDistinct",
    "CountEvictor",
    "CountTrigger",
    "CumulativeEventTimeWindows",
    "CumulativeProcessingTimeWindows",
    "DataGeneratorSource",
    "DataStream",
    "DataStreamSink",
    "EnumeratorContext",
    "Environment",
    "EventTime",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "EvictorContext",
    "FileSink",
    "FileSource",
    "FilterFunction",
    "Finished",
    "First",
    "FlatMapFunction",
    "GlobalWindow",
    "GlobalWindows",
    "Idle",
    "IntervalJoinStreams",
    "IntervalJoinedStreams",
    "JobCanceledError",
    "JobClient",
    "JobError",
    "JobFailedError",
    "JobFencedError",
    "JobMetrics",
    "JobOverview",
    "JobStatus",
    "JoinContext",
    "JoinFunction",
    "JoinedStreams",
    "Kernel",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedState",
    "KeyedStream",
    "Last",
    "ListState",
    "MapFunction",
    "MapState",
    "Max",
    "MaxBy",
    "Min",
    "MinBy",
    "OnMergeContext",
    "OnTimerContext",
    "OperatorCounts",
    "OperatorListState",
    "Origin",
    "OutputTag",
    "PickleSerializer",
    "ProcessContext",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "ProgramError",
    "PurgingTrigger",
    "ReaderContext",
    "RecordType",
    "ReduceFunction",
    "ReducingState",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "SchemaError",
    "SerializationError",
    "SessionGap",
    "Sink",
    "SinkJob",
    "SinkWriter",
    "Slices",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SlotsUnavailableError",
    "SocketSource",
    "Source",
    "SourceReader",
    "SourceSplit",
    "SplitEnumerator",
    "StateAccessError",
    "StateCompatibilityError",
    "StateSerializer",
    "StateTtl",
    "SubtaskCheckpointMetrics",
    "SubtaskCheckpointStatistics",
    "SubtaskMetrics",
    "Sum",
    "TidegateError",
    "TimeEvictor",
    "TimeWindow",
    "TimerService",
    "TimestampedValue",
    "TopN",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "UnionListState",
    "ValueState",
    "VertexMetrics",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "WindowAssigner",
    "WindowCoGroupedStreams",
    "WindowContext",
    "WindowJoinedStreams",
    "WindowedStream",
    "WriterContext",
    "record_type_of",
]

_RESULTS = {
    "CheckpointStatistics": "tidegate.jobmanager.checkpoint.statistics",
    "CheckpointsOverview": "tidegate.jobmanager.checkpoint.statistics",
    "JobOverview": "tidegate.jobmanager.failover.job",
    "SubtaskCheckpointMetrics": "tidegate.snapshot.handles",
    "SubtaskCheckpointStatistics": "tidegate.jobmanager.checkpoint.statistics",
}
"""What a `JobClient` returns: of the JobManager, which a program that is only written does not load."""


def __getattr__(name: str) -> Any:
    if name in _RESULTS:
        return getattr(importlib.import_module(_RESULTS[name]), name)
    raise package_name(name)
