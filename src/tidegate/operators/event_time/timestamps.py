"""Timestamps of a batch, as its `WatermarkStrategy` defines them; vectorised for columns and expressions.

Values that are probably a mistake (seconds instead of milliseconds, times before 1970 or after 9999) cause one warning
per subtask, which shows the first one. A value so large that adding a window to it would overflow is an error.
"""

from __future__ import annotations

import datetime
import logging
from operator import index
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.watermarks import WatermarkStrategy, is_time
from tidegate.core.errors import SchemaError
from tidegate.core.words import kind_of
from tidegate.operators.columns.frames import Inputs, to_arrow
from tidegate.operators.failures import OperatorError
from tidegate.records.batch import Batch
from tidegate.records.types import brief

logger = logging.getLogger(__name__)

_YEAR_9999: Final = 253_402_300_799_999
_LIMIT: Final = 1 << 61
_SECONDS: Final = range(100_000_000, 100_000_000_000)
"""As milliseconds these are early 1970 to 1973, as seconds 1973 and later."""
_STAMP: Final = "__tidegate_timestamp__"
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


class TimestampAssigner:
    """Finds the timestamps of batches. One per subtask; mailbox thread only."""

    def __init__(self, strategy: WatermarkStrategy, operator: str) -> None:
        self._strategy = strategy
        self._operator = operator
        self._warned = False
        self._inputs: Inputs | None = None
        """The columns that an expression reads; known with the first batch."""

    def assign(self, batch: Batch) -> tuple[Batch | None, Batch | None]:
        """The records with their timestamps, and the records without one; None where there are no such records.

        Raises `OperatorError` for a missing timestamp if there is no side output for it.
        """
        stamps = self._timestamps(batch)
        if not stamps.null_count:
            self._look_at(stamps, batch)
            return batch.with_timestamps(stamps), None
        if self._strategy.missing is None:
            raise self._missing(batch, stamps)
        has = stamps.is_valid()
        missing = batch.with_timestamps(None).filter(pc.invert(has))
        if missing.num_rows == batch.num_rows:
            return None, missing
        self._look_at(stamps, batch)
        return batch.with_timestamps(stamps).filter(has), missing

    def _timestamps(self, batch: Batch) -> pa.Int64Array:
        stamp = self._strategy.timestamp
        if stamp is None:
            return pa.nulls(batch.num_rows, pa.int64()) if batch.timestamps is None else batch.timestamps
        if isinstance(stamp, str):
            return self._converted(batch.columns.column(stamp), batch)
        if isinstance(stamp, pl.Expr):
            if self._inputs is None:
                self._inputs = Inputs((stamp,), batch.type.schema)
            frame = self._inputs.frame(batch.columns).with_columns(stamp.alias(_STAMP))
            return self._converted(to_arrow(frame.get_column(_STAMP)), batch)
        values: list[int | None] = []
        record: Any = None
        try:
            for record in batch.rows:
                values.append(_milliseconds_of(stamp(record)))
        except BaseException as e:
            at = "" if batch.origin is None else batch.origin.at(len(values))
            raise OperatorError(self._operator, at, brief(record)) from e
        try:
            return pa.array(values, pa.int64())
        except OverflowError:
            row = next(i for i, v in enumerate(values) if v is not None and abs(v) > _LIMIT)
            refused = self._no_time(batch, row, values[row])
        raise refused

    def _converted(self, column: pa.Array, batch: Batch) -> pa.Int64Array:
        try:
            return milliseconds(column)
        except pa.ArrowInvalid:
            row = next(row for row in range(len(column)) if not _is_convertible(column.slice(row, 1)))
            value = column.cast(pa.int64(), safe=False) if pa.types.is_timestamp(column.type) else column
            refused = self._no_time(batch, row, value[row])
        raise refused

    def _look_at(self, stamps: pa.Int64Array, batch: Batch) -> None:
        ends = pc.min_max(stamps)
        least, most = ends["min"].as_py(), ends["max"].as_py()
        if least < -_LIMIT or most > _LIMIT:
            value = least if least < -_LIMIT else most
            raise self._no_time(batch, pc.index(stamps, value).as_py(), value)
        if not self._warned and any(_doubt(end) for end in (least, most)):
            self._warned = True
            row, value = next(
                (row, v) for row, v in enumerate(stamps.to_pylist()) if v is not None and _doubt(v)
            )
            logger.warning(
                "operator %r: timestamp %d of %s: %s It is used as it is; this is said once",
                self._operator,
                value,
                _where(batch, row),
                _doubt(value),
            )

    def _missing(self, batch: Batch, stamps: pa.Int64Array) -> OperatorError:
        row = pc.index(stamps.is_null(), True).as_py()
        return self._refused(
            batch,
            row,
            "the record has no timestamp. Give every record one, or send such records to a side output with "
            "WatermarkStrategy.with_missing_timestamps(tag)",
        )

    def _no_time(self, batch: Batch, row: int, value: Any) -> OperatorError:
        return self._refused(batch, row, f"timestamp {value} is no time in milliseconds since 1970-01-01 UTC")

    def _refused(self, batch: Batch, row: int, reason: str) -> OperatorError:
        at = "" if batch.origin is None else batch.origin.at(row)
        try:
            record = brief(batch.slice(row, 1).rows[0])
        except (SchemaError, OverflowError):  # a time that Python cannot hold
            record = ""
        error = OperatorError(self._operator, at, record)
        error.__cause__ = SchemaError(reason)
        return error


def _doubt(timestamp_ms: int) -> str:
    """What is probably wrong with a timestamp; empty if nothing is.

    >>> _doubt(1_750_000_000), _doubt(1_750_000_000_000)
    ('it looks like seconds; timestamps are milliseconds.', '')
    """
    if timestamp_ms < 0:
        return "it is before 1970."
    if timestamp_ms > _YEAR_9999:
        return "it is after the year 9999; are these microseconds or nanoseconds?"
    return "it looks like seconds; timestamps are milliseconds." if timestamp_ms in _SECONDS else ""


def milliseconds(column: pa.Array) -> pa.Int64Array:
    """A column of whole numbers, timestamps or dates as milliseconds since 1970-01-01 UTC.

    Finer units are rounded down; a timestamp without a time zone is taken as UTC.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if not is_time(kind):
        raise SchemaError(f"timestamps must be whole numbers, timestamps or dates, got {kind}")
    if kind == pa.int64():
        return column
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("ms"))
    elif kind.unit != "ms":
        if kind.unit in ("us", "ns"):
            column = pc.floor_temporal(column, unit="millisecond")
        column = column.cast(pa.timestamp("ms", kind.tz))
    return column.view(pa.int64())


def _is_convertible(column: pa.Array) -> bool:
    try:
        milliseconds(column)
    except pa.ArrowInvalid:
        return False
    return True


def _milliseconds_of(value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return (aware - _EPOCH) // _MILLISECOND
    if hasattr(value, "__index__") and not isinstance(value, bool):  # numpy's whole numbers, too
        return index(value)
    raise SchemaError(
        f"the timestamp function returned {kind_of(value)}: {brief(value)}. It must return whole milliseconds "
        f"since 1970-01-01 UTC, or a datetime"
    )


def _where(batch: Batch, row: int) -> str:
    return "a record" if batch.origin is None else batch.origin.at(row)
