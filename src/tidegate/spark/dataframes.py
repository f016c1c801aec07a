"""Spark DataFrames as sources and as results, through Parquet files that both sides read."""

from __future__ import annotations

import inspect
import tempfile
import uuid
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType

from tidegate.connectors.files import FileSink, FileSource
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.options import Options
from tidegate.core.words import kind_of
from tidegate.records.types import RecordType
from tidegate.storage.locations import resolve


def new_staging_dir(options: Options) -> str:
    """A new directory for one DataFrame: under `spark.staging_dir`, or a temporary one on this machine."""
    if options.spark_staging_dir:
        return f"{options.spark_staging_dir.rstrip('/')}/tidegate-{uuid.uuid4().hex}"
    return tempfile.mkdtemp(prefix="tidegate-dataframe-")


def stage(dataframe: Any, options: Options) -> tuple[FileSource, str]:
    """Write a bounded DataFrame as Parquet; returns the source that reads it, and its location."""
    if not hasattr(dataframe, "isStreaming"):
        raise ProgramError(f"from_dataframe needs a Spark DataFrame, got {kind_of(dataframe)}")
    if dataframe.isStreaming:
        raise ProgramError("from_dataframe needs a bounded DataFrame; this one is streaming")
    schema = _arrow_schema(dataframe.schema)
    location = new_staging_dir(options)
    try:
        dataframe.write.mode("overwrite").option("compression", "zstd").parquet(location)
    except BaseException:
        remove_staging(location)
        raise
    return FileSource(location, format="parquet", schema=schema), location


class StagingSink(FileSink):
    """The sink that `to_dataframe` writes to."""

    def check_type(self, record_type: RecordType) -> None:
        """Refuse a column that Spark could not read, before the job runs."""
        super().check_type(record_type)
        _spark_schema(record_type.schema)


def staging_sink(location: str) -> FileSink:
    return StagingSink(location, format="parquet", overwrite=True)


def dataframe_of(spark: Any, location: str, record_type: RecordType) -> Any:
    """The files of `staging_sink` as a DataFrame, with the right schema even without records."""
    return spark.read.schema(_spark_schema(record_type.schema)).parquet(location)


_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
)
"""Spark's timestamps are instants; their Arrow columns must be in UTC (before Spark 4.3 they always were)."""


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a DataFrame as its staged files have them, instants in UTC."""
    fields = []
    for field in schema:
        try:
            arrow_type = to_arrow_type(field.dataType, **_IN_UTC)
        except PySparkException as e:
            raise _no_way_in(field) from e
        if any(name in field.dataType.simpleString() for name in _NOT_IN_FILES):
            raise _no_way_in(field)
        fields.append(pa.field(field.name, arrow_type, field.nullable))
    return pa.schema(fields)


_NOT_IN_FILES = ("interval", "variant", "time(")
"""Spark types that a Parquet file stores as another type, so that only Spark itself recognises them."""


def _no_way_in(field: StructField) -> SchemaError:
    return SchemaError(
        f"from_dataframe cannot read column {field.name!r}, a {field.dataType.simpleString()}. "
        f"Cast it to a number or text, or leave it out."
    )


def _spark_schema(schema: pa.Schema) -> StructType:
    """The columns of the staged files as Spark reads them; refuses a type that Spark would read as another one."""
    fields = []
    for field in schema:
        try:
            spark_type = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        except PySparkException as e:
            raise _no_way_out(field) from e
        if _is_misread(field.type):
            raise _no_way_out(field)
        fields.append(StructField(field.name, spark_type, field.nullable))
    return StructType(fields)


def _is_misread(t: pa.DataType) -> bool:
    if pa.types.is_duration(t):
        return bool(t.unit != "us")
    if pa.types.is_timestamp(t):
        return bool(t.unit == "ns")
    return pa.types.is_time(t) or any(_is_misread(t.field(i).type) for i in range(t.num_fields))


def _no_way_out(field: pa.Field) -> SchemaError:
    return SchemaError(
        f"to_dataframe cannot return column {field.name!r}: Spark does not read {field.type} from a file as it is. "
        f"Convert it before (times to microseconds, unsigned numbers to int64, times of day to text)."
    )


def remove_staging(location: str) -> None:
    """Delete a staging directory, if it is still there."""
    place = resolve(location)
    if place.filesystem.get_file_info(place.path).type is fs.FileType.Directory:
        place.filesystem.delete_dir(place.path)
