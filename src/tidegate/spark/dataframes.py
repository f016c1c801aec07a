"""Spark DataFrames in and out, through Parquet files that both sides read: in as a source, out as a result."""

from __future__ import annotations

import tempfile
import uuid
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tidegate.connectors.files import FileSink, FileSource
from tidegate.core.errors import ProgramError
from tidegate.core.options import Options
from tidegate.records.types import RecordType


def new_staging_dir(options: Options) -> str:
    """A directory of its own for one DataFrame: under `spark.staging_dir`, or a temporary one on this machine."""
    if options.spark_staging_dir:
        return f"{options.spark_staging_dir.rstrip('/')}/tidegate-{uuid.uuid4().hex}"
    return tempfile.mkdtemp(prefix="tidegate-dataframe-")


def stage(dataframe: Any, options: Options) -> tuple[FileSource, str]:
    """Write a bounded DataFrame as Parquet and give the source that reads it, with its location."""
    if not hasattr(dataframe, "isStreaming"):
        raise ProgramError(f"from_dataframe needs a Spark DataFrame, got a {type(dataframe).__name__}")
    if dataframe.isStreaming:
        raise ProgramError("from_dataframe needs a bounded DataFrame; this one is streaming")
    location = new_staging_dir(options)
    schema = to_arrow_schema(dataframe.schema)
    dataframe.write.mode("overwrite").option("compression", "zstd").parquet(location)
    return FileSource(location, format="parquet", schema=pa.schema(list(schema))), location


def staging_sink(location: str) -> FileSink:
    """The sink that `to_dataframe` writes to."""
    return FileSink(location, format="parquet", overwrite=True)


def dataframe_of(spark: Any, location: str, record_type: RecordType) -> Any:
    """The files of `staging_sink` as a DataFrame; of the right schema even if there is no record."""
    return spark.read.schema(from_arrow_schema(record_type.schema)).parquet(location)


def remove_staging(location: str) -> None:
    """Delete a staging directory, if it is still there."""
    filesystem, path = (
        fs.FileSystem.from_uri(location) if "://" in location else (fs.LocalFileSystem(), location)
    )
    if filesystem.get_file_info(path).type is fs.FileType.Directory:
        filesystem.delete_dir(path)
