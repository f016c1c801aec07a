"""Resolves a format from its name, a format object, or the extension of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidegate.connectors.files.paths import path_name
from tidegate.connectors.files.splits import COMPRESSIONS
from tidegate.core.errors import ProgramError
from tidegate.core.words import either
from tidegate.formats import CsvFormat, JsonLinesFormat, ParquetFormat, TextFormat, TextLinesFormat

_FORMATS: Final = (JsonLinesFormat, CsvFormat, ParquetFormat, TextLinesFormat)
"""The formats that have a name; a new one is a line here."""
_BY_NAME: Final[dict[str, Callable[[], TextFormat | ParquetFormat]]] = {f.name: f for f in _FORMATS}
_BY_ENDING: Final = {ending: f.name for f in _FORMATS for ending in (f.extension, *f.other_extensions)}


def format_of(given: Any, paths: Sequence[str]) -> TextFormat | ParquetFormat:
    """The format that the user names or gives; if neither, the one that the extension of all paths names."""
    if isinstance(given, (TextFormat, ParquetFormat)):
        return given
    if isinstance(given, str) and given in _BY_NAME:
        return _BY_NAME[given]()
    names = either(map(repr, _BY_NAME))
    if given is not None:
        raise ProgramError(f"there is no file format {given!r}. Use {names}, or a format object.")
    found = {_BY_ENDING.get(_ending(path)) for path in paths}
    name = found.pop() if len(found) == 1 else None
    if name is None:
        raise ProgramError(
            f"the format of {path_name(paths[0])} cannot be derived from its name. Set format={names}."
        )
    return _BY_NAME[name]()


def _ending(path: str) -> str:
    """The extension of a file, without that of the compression; empty if there is none."""
    _, *endings = path.lower().rsplit("/", 1)[-1].split(".")
    if endings and endings[-1] in COMPRESSIONS:
        endings.pop()
    return endings[-1] if endings else ""
