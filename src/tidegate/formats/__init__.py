"""File formats, which turn records into bytes and back: JSON lines, CSV, Parquet and plain lines of text."""

from tidegate.formats.csv import CsvFormat
from tidegate.formats.format import FormatWriter, TextFormat
from tidegate.formats.json_lines import JsonLinesFormat
from tidegate.formats.lines import LineDecoder, LineTable, OpenValues
from tidegate.formats.parquet import ParquetFormat
from tidegate.formats.text_lines import TextLinesFormat

__all__ = [
    "CsvFormat",
    "FormatWriter",
    "JsonLinesFormat",
    "LineDecoder",
    "LineTable",
    "OpenValues",
    "ParquetFormat",
    "TextFormat",
    "TextLinesFormat",
]
