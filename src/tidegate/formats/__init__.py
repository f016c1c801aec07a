"""How records become bytes and bytes records: JSON lines, CSV and Parquet, strictly by a schema."""

from tidegate.formats.csv import CsvFormat
from tidegate.formats.format import FormatWriter, TextFormat
from tidegate.formats.json_lines import JsonLinesFormat
from tidegate.formats.parquet import ParquetFormat

__all__ = ["CsvFormat", "FormatWriter", "JsonLinesFormat", "ParquetFormat", "TextFormat"]
