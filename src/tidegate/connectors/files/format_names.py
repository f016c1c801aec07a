"""Which format is meant: by its name, by a format object, or by how the files are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.connectors.files.paths import path_name
from tidegate.connectors.files.splits import COMPRESSIONS
from tidegate.core.errors import ProgramError
from tidegate.formats import CsvFormat, JsonLinesFormat, ParquetFormat, TextFormat, TextLinesFormat

_FORMATS: dict[str, Callable[[], TextFormat | ParquetFormat]] = {
    "json": JsonLinesFormat,
    "csv": CsvFormat,
    "parquet": ParquetFormat,
    "text": TextLinesFormat,
}
_EXTENSIONS = {
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
    "parquet": "parquet",
    "pq": "parquet",
    "txt": "text",
}


def format_of(given: Any, paths: Sequence[str]) -> TextFormat | ParquetFormat:
    """The format that the user names or gives; if neither, the one that all these paths end with."""
    if isinstance(given, (TextFormat, ParquetFormat)):
        return given
    if isinstance(given, str) and given in _FORMATS:
        return _FORMATS[given]()
    if given is not None:
        raise ProgramError(
            f"there is no file format {given!r}. Use 'json', 'csv', 'parquet' or 'text', or a format object."
        )
    names = [path.lower().rsplit("/", 1)[-1].split(".") for path in paths]
    found = set()
    for parts in names:
        if len(parts) > 1 and parts[-1] in COMPRESSIONS:
            parts = parts[:-1]
        found.add(_EXTENSIONS.get(parts[-1]) if len(parts) > 1 else None)
    name = found.pop() if len(found) == 1 else None
    if name is None:
        raise ProgramError(
            f"the format of {path_name(paths[0])} cannot be told from its name. "
            f"Say format='json', 'csv', 'parquet' or 'text'."
        )
    return _FORMATS[name]()
