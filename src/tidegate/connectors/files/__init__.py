"""Files as a source and a sink: JSON lines, CSV and Parquet, on any filesystem that pyarrow knows."""

from tidegate.connectors.files.bad_records import BadRecord
from tidegate.connectors.files.output_directory import OutputDirectoryError
from tidegate.connectors.files.paths import FileChangedError, InputFileError
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.files.source import FileSource

__all__ = [
    "BadRecord",
    "FileChangedError",
    "FileSink",
    "FileSource",
    "InputFileError",
    "OutputDirectoryError",
]
