"""`WatermarkStrategy`: where a stream's event times come from, and how far they are complete.

A watermark T is a promise: no record with a timestamp at or before T follows. A tight watermark emits results early but
makes more records late; a loose one waits longer. In terms of older Flink, `periodic` is an
`AssignerWithPeriodicWatermarks` and `punctuated` an `AssignerWithPunctuatedWatermarks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

import polars as pl
import pyarrow as pa

from tidegate.api.functions import OutputTag, function_name
from tidegate.core.durations import Duration, format_duration_ms, parse_duration_ms
from tidegate.core.errors import ProgramError
from tidegate.program.expressions import expression_result_type
from tidegate.program.foreign_names import FlinkNames, NamesOfClass
from tidegate.program.signatures import check_arguments
from tidegate.records.type_variables import AnyRecordIn
from tidegate.records.types import RecordType

TimestampOf = str | pl.Expr | Callable[[Any], Any]
"""A column, a polars expression, or a function of the record: milliseconds since 1970 (UTC), or a time."""


class WatermarkGenerator(ABC, Generic[AnyRecordIn]):
    """Decides, from the records of one split, how far event time has advanced. Derive your own from it.

    Each split of a source has its own generator, made by the strategy's factory; one thread calls it. Its attributes
    are not in checkpoints: after a recovery there is a new generator, but the watermark does not go back.
    """

    @abstractmethod
    def on_event(self, event: AnyRecordIn, timestamp_ms: int) -> int | None:
        """Look at a record. A returned number is a watermark, which is sent at once (punctuated); None sends none."""

    def on_periodic(self) -> int | None:
        """Return the current watermark, or None if it has not changed. Called every `watermark.interval`."""
        return None


class _Punctuated(WatermarkGenerator):
    def __init__(self, function: Callable[[Any, int], int | None]) -> None:
        self._function = function

    def on_event(self, event: Any, timestamp_ms: int) -> int | None:
        return self._function(event, timestamp_ms)


@dataclass(frozen=True)
class WatermarkAlignment:
    """Sources of one group do not run ahead of the slowest by more than `max_drift_ms`."""

    group: str
    max_drift_ms: int


@dataclass(frozen=True)
class WatermarkStrategy(FlinkNames, metaclass=NamesOfClass):
    """How records get their event time, and the stream its watermarks. The class methods below make one.

    >>> WatermarkStrategy.bounded("2 s", "ts").with_idleness("1 min").describe()
    'timestamps from ts, at most 2 s out of order, idle after 1 min'
    """

    timestamp: TimestampOf | None
    kind: Literal["bounded", "generator", "none"]
    out_of_orderness_ms: int = 0
    generator: Callable[[], WatermarkGenerator] | None = None
    idleness_ms: int | None = None
    alignment: WatermarkAlignment | None = None
    missing: OutputTag[Any] | None = None

    @classmethod
    def bounded(cls, out_of_orderness: Duration, timestamp: TimestampOf | None = None) -> WatermarkStrategy:
        """A record arrives at most this much later than one with a higher timestamp.

        `timestamp` is a column, a polars expression, or a function of the record; None: the source provides it.
        """
        delay_ms = _duration("bounded", "out_of_orderness", out_of_orderness, least=0)
        return cls(_checked(timestamp), "bounded", delay_ms)

    @classmethod
    def monotonous(cls, timestamp: TimestampOf | None = None) -> WatermarkStrategy:
        """Timestamps never decrease within a split."""
        return cls(_checked(timestamp), "bounded")

    @classmethod
    def periodic(
        cls, generator: Callable[[], WatermarkGenerator], timestamp: TimestampOf | None = None
    ) -> WatermarkStrategy:
        """Use your own `WatermarkGenerator`; `generator` is called to make one for each split."""
        if not callable(generator):
            raise ProgramError(
                f"WatermarkStrategy.periodic needs a class or function that makes a WatermarkGenerator, got "
                f"{generator!r}"
            )
        return cls(_checked(timestamp), "generator", generator=generator)

    @classmethod
    def punctuated(
        cls, function: Callable[[Any, int], int | None], timestamp: TimestampOf | None = None
    ) -> WatermarkStrategy:
        """`function(record, timestamp_ms)` returns a watermark, which is sent after the record, or None."""
        if not callable(function):
            raise ProgramError(
                f"WatermarkStrategy.punctuated needs a function of a record and its timestamp, got {function!r}"
            )
        check_arguments(
            function, ("record", "timestamp_ms"), f"WatermarkStrategy.punctuated: {function_name(function)}"
        )
        return cls(_checked(timestamp), "generator", generator=lambda: _Punctuated(function))

    @classmethod
    def no_watermarks(cls, timestamp: TimestampOf | None = None) -> WatermarkStrategy:
        """Timestamps without watermarks: event time does not advance until the end of input."""
        return cls(_checked(timestamp), "none")

    def with_idleness(self, timeout: Duration) -> WatermarkStrategy:
        """A split without records for this long no longer holds event time back, until its next record."""
        return replace(self, idleness_ms=_duration("with_idleness", "timeout", timeout, least=1))

    def with_alignment(self, group: str, max_drift: Duration) -> WatermarkStrategy:
        """A source whose watermark is ahead of the slowest of its group by more than `max_drift` waits."""
        if not group:
            raise ProgramError("with_alignment needs the name of a group, got an empty one")
        drift_ms = _duration("with_alignment", "max_drift", max_drift, least=0)
        return replace(self, alignment=WatermarkAlignment(group, drift_ms))

    def with_missing_timestamps(self, tag: OutputTag[Any]) -> WatermarkStrategy:
        """Send records without a timestamp to this side output. Without it, they fail the job."""
        if not isinstance(tag, OutputTag):
            raise ProgramError(f"with_missing_timestamps needs an OutputTag, got {tag!r}")
        return replace(self, missing=tag)

    # ---- for the planner ----

    @property
    def reads_rows(self) -> bool:
        """Whether the user's Python is called for each record."""
        return self.kind == "generator" or (
            self.timestamp is not None and not isinstance(self.timestamp, (str, pl.Expr))
        )

    def required_columns(self) -> frozenset[str] | None:
        """The columns that it reads; None: all."""
        if self.reads_rows:
            return None
        if self.timestamp is None:
            return frozenset()
        if isinstance(self.timestamp, str):
            return frozenset([self.timestamp])
        assert isinstance(self.timestamp, pl.Expr)
        if self.timestamp.meta.has_multiple_outputs():
            return None
        return frozenset(self.timestamp.meta.root_names())

    def check_type(self, record_type: RecordType, where: str) -> None:
        """Refuse a timestamp column or expression that the stream does not have, or that is not a time."""
        stamp = self.timestamp
        if stamp is None or not isinstance(stamp, (str, pl.Expr)):
            return
        if record_type.is_object:
            raise ProgramError(
                f"{where}: timestamps from {self.timestamp_words()} need columns, but the records are Python objects "
                f"without a schema. Use a function of the record instead"
            )
        if isinstance(stamp, str):
            if stamp not in record_type.schema.names:
                raise ProgramError(
                    f"{where}: there is no column {stamp!r} to take timestamps from in {record_type.describe()}"
                )
            kind = record_type.schema.field(stamp).type
        else:
            kinds = expression_result_type(record_type, "select", (stamp,)).schema.types
            if len(kinds) != 1:
                raise ProgramError(
                    f"{where}: timestamps from {self.timestamp_words()} are {len(kinds)} columns; they must be one. "
                    f"Name the column"
                )
            (kind,) = kinds
        if not is_time(kind):
            raise ProgramError(
                f"{where}: timestamps from {self.timestamp_words()} are {kind}; they must be whole numbers (of "
                f"milliseconds since 1970-01-01 UTC), timestamps or dates. Cast the column, or use an expression"
            )

    def describe(self) -> str:
        """A few words for the plan."""
        parts = [f"timestamps from {self.timestamp_words()}"]
        if self.kind == "bounded":
            parts.append(
                f"at most {format_duration_ms(self.out_of_orderness_ms)} out of order"
                if self.out_of_orderness_ms
                else "in order"
            )
        else:
            parts.append("no watermarks" if self.kind == "none" else "watermarks by the program")
        if self.idleness_ms is not None:
            parts.append(f"idle after {format_duration_ms(self.idleness_ms)}")
        if self.alignment is not None:
            drift = format_duration_ms(self.alignment.max_drift_ms)
            parts.append(f"at most {drift} ahead of group {self.alignment.group}")
        return ", ".join(parts)

    def timestamp_words(self) -> str:
        """Where the timestamps come from, in words."""
        if self.timestamp is None:
            return "the source"
        if isinstance(self.timestamp, (str, pl.Expr)):
            return str(self.timestamp)
        return f"{function_name(self.timestamp)}()"


def is_time(kind: pa.DataType) -> bool:
    """Whether values of this Arrow type can be event times."""
    t = pa.types
    return bool(t.is_integer(kind) or t.is_timestamp(kind) or t.is_date(kind))


def _checked(timestamp: Any) -> Any:
    if timestamp is None or isinstance(timestamp, (str, pl.Expr)):
        return timestamp
    if callable(timestamp):
        check_arguments(timestamp, ("record",), f"WatermarkStrategy: {function_name(timestamp)}")
        return timestamp
    raise ProgramError(
        f"timestamps come from a column name, a polars expression or a function of the record, got {timestamp!r}"
    )


def _duration(method: str, what: str, value: Any, *, least: int) -> int:
    try:
        ms = parse_duration_ms(value)
    except ValueError as e:
        raise ProgramError(f"WatermarkStrategy.{method}: {what}={value!r}: {e}") from e
    if ms < least:
        raise ProgramError(f"WatermarkStrategy.{method}: {what} must be at least {least} ms, got {value!r}")
    return ms
