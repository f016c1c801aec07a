"""Locations of files: turns paths, URIs and globs into a filesystem and a sorted list of files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs

from tidegate.core.errors import TidegateError
from tidegate.core.uris import SCHEME, without_credentials
from tidegate.storage.locations import absolute as absolute
from tidegate.storage.locations import filesystem_of
from tidegate.storage.locations import path_name as path_name

_GLOB = re.compile(r"[*?\[]")
_QUERY = re.compile(r"\?\w+=[^/]*$")
_IN_PROGRESS = (".inprogress", ".tmp", ".temp", ".part", ".partial", ".crdownload", "._copying_", ".crc")


class InputFileError(TidegateError):
    """A file cannot be found, opened or read; the message names it and says what to do."""


class FileChangedError(InputFileError):
    """A file is not what it was when it was listed: shorter, longer or replaced."""


class FoundFile(NamedTuple):
    """A file as the listing saw it."""

    path: str
    size: int
    mtime_ns: int


class Location(NamedTuple):
    """A filesystem, the paths or globs to look for on it, and the scheme that messages put before a path."""

    filesystem: Any
    patterns: tuple[str, ...]
    scheme: str
    base: str | None = None
    """Directories below it may be columns; None: those below each path, up to the path's first wildcard."""

    def below(self, path: str) -> str:
        """The part of a file's path whose directories may be columns.

        >>> Location(None, ("/data/year=2024/in", "/logs/*/dt=*/*.json"), "").below("/data/year=2024/in/day=3/a.json")
        'day=3/a.json'
        """
        bases = map(_plain_part, self.patterns) if self.base is None else (self.base,)
        starts = [len(base) + 1 for base in bases if path == base or path.startswith(f"{base}/")]
        return path[min(starts, default=0) :] or path.rpartition("/")[2]

    def with_base(self, base: str) -> Location:
        """This location with `base` set; every path must be below it."""
        for pattern in self.patterns:
            if pattern.rstrip("/") != base and not pattern.startswith(f"{base}/"):
                raise InputFileError(
                    f"{self.show(pattern)} is not below the base_path {self.show(base or '/')}. Name one above it"
                )
        return self._replace(base=base)

    def show(self, path: str) -> str:
        """A path as the user would write it, without the credentials of the URI."""
        return f"{self.scheme}{path}"

    @property
    def is_local(self) -> bool:
        """Whether this is the machine's own filesystem."""
        return isinstance(self.filesystem, pa_fs.LocalFileSystem)


def locate(paths: Sequence[str], filesystem: Any = None) -> Location:
    """The location of some paths, URIs or globs; they must all be on the same filesystem."""
    if filesystem is not None:
        return Location(filesystem, tuple(paths), "")
    found: Location | None = None
    patterns: list[str] = []
    for path in paths:
        one = _locate_one(path)
        if found is not None and not found.filesystem.equals(one.filesystem):
            raise InputFileError(
                f"{path_name(path)} is on another filesystem than {path_name(paths[0])}. "
                f"Read them with two sources and union the streams."
            )
        found = found or one
        patterns += one.patterns
    if found is None:
        raise InputFileError("no path is given: name a file, a directory or a glob")
    return found._replace(patterns=tuple(patterns))


def _locate_one(path: str) -> Location:
    scheme = SCHEME.match(path)
    if scheme is None or scheme[1].lower() == "file":
        local = absolute(path if scheme is None else unquote(path[scheme.end() :]))
        return Location(pa_fs.LocalFileSystem(), (local,), "")
    query = _QUERY.search(path)
    plain, options = (path[: query.start()], query[0]) if query else (path, "")
    # "?" and "[" mean something else in a URI: only the part before the first wildcard is parsed as one.
    wildcard = _GLOB.search(plain, scheme.end())
    cut = plain.rfind("/", scheme.end(), wildcard.start()) if wildcard else len(plain)
    if cut < 0:
        raise InputFileError(f"{path_name(path)}: a wildcard cannot stand before the first / of a URI")
    try:
        filesystem, base = filesystem_of(plain[:cut] + options)
    except (pa.ArrowException, OSError, ValueError) as e:
        # The message may repeat the URI, and the URI may have a password; so no `from e` either.
        message = without_credentials(str(e), path)
        raise InputFileError(f"cannot use {path_name(path)}: {message}") from None
    return Location(filesystem, (base + plain[cut:],), scheme[0])


def list_files(location: Location, *, may_be_empty: bool = False) -> list[FoundFile]:
    """All files that match the patterns, sorted by path, each once.

    A directory stands for all files below it. Names that start with `.` or `_` and unfinished files (`.inprogress`,
    `.tmp`, ...) are left out, unless a pattern names them in full.
    """
    found: dict[str, FoundFile] = {}
    for pattern in location.patterns:
        files = _expand(location, pattern, may_be_empty)
        if not files and not may_be_empty:
            raise InputFileError(
                f"no file matches {location.show(pattern)}. Check the path, "
                f"or wait for files to come with watch='1 s'."
            )
        found.update((f.path, f) for f in files)
    return [found[path] for path in sorted(found)]


def _plain_part(pattern: str) -> str:
    """The directory before a pattern's first wildcard, or the whole pattern; without a trailing slash."""
    wildcard = _GLOB.search(pattern)
    return (pattern if wildcard is None else pattern[: pattern.rfind("/", 0, wildcard.start())]).rstrip("/")


def _expand(location: Location, pattern: str, may_be_empty: bool) -> list[FoundFile]:
    filesystem = location.filesystem
    wildcard = _GLOB.search(pattern)
    if wildcard is None:
        info = _info(location, pattern)
        if info.type == pa_fs.FileType.File:
            return [_found(info)]
        if info.type == pa_fs.FileType.NotFound:
            if may_be_empty:
                raise InputFileError(
                    f"cannot watch {location.show(pattern)}: it does not exist. Create the directory."
                )
            raise InputFileError(f"{location.show(pattern)} does not exist. Check the path.")
        base, matches, recursive = pattern, None, True
    else:
        base = _plain_part(pattern) or "/"
        rest = pattern[len(base.rstrip("/")) + 1 :]
        matches = re.compile(_glob_regex(rest))
        recursive = "/" in rest or "**" in rest
        if _info(location, base).type != pa_fs.FileType.Directory:
            if may_be_empty:
                raise InputFileError(
                    f"cannot watch {location.show(pattern)}: there is no {location.show(base)}"
                )
            return []
    try:
        infos = filesystem.get_file_info(pa_fs.FileSelector(base, recursive=recursive))
    except (pa.ArrowException, OSError) as e:
        raise InputFileError(f"cannot list {location.show(base)}: {e}") from e
    prefix = len(base.rstrip("/")) + 1
    result = []
    for info in infos:
        relative = info.path[prefix:]
        if info.type != pa_fs.FileType.File or _is_hidden(relative):
            continue
        if matches is None or matches.fullmatch(relative):
            result.append(_found(info))
    return result


def file_info(location: Location, path: str) -> FoundFile | None:
    """The file as it is now, or None if it is gone."""
    info = _info(location, path)
    return _found(info) if info.type == pa_fs.FileType.File else None


def check_unchanged(location: Location, expected: FoundFile) -> None:
    """Raise `FileChangedError` if the file has changed since it was listed."""
    now = file_info(location, expected.path)
    name = location.show(expected.path)
    advice = "Files must not change once they are there: write under another name, then rename."
    if now is None:
        raise FileChangedError(f"{name} is gone since it was listed with {expected.size} bytes. {advice}")
    if now.size != expected.size:
        raise FileChangedError(
            f"{name} has {now.size} bytes but had {expected.size} when it was listed. {advice}"
        )
    if now.mtime_ns != expected.mtime_ns:
        raise FileChangedError(f"{name} was replaced or rewritten since it was listed. {advice}")


def _info(location: Location, path: str) -> Any:
    try:
        return location.filesystem.get_file_info(path)
    except (pa.ArrowException, OSError) as e:
        raise InputFileError(f"cannot look at {location.show(path)}: {e}") from e


def _found(info: Any) -> FoundFile:
    return FoundFile(info.path, int(info.size or 0), -1 if info.mtime_ns is None else int(info.mtime_ns))


def _is_hidden(relative: str) -> bool:
    *directories, name = relative.split("/")
    if name.startswith((".", "_")) or name.lower().endswith(_IN_PROGRESS):
        return True
    # A directory `_dt=1` is a column, as for Spark.
    return any(d.startswith(".") or (d.startswith("_") and "=" not in d) for d in directories)


def _glob_regex(pattern: str) -> str:
    """A regular expression for a glob: `*` and `?` stay inside a name, `**` crosses directories."""
    out, i = [], 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out.append("(?:.*/)?")
            i += 3
        elif pattern.startswith("**", i):
            out.append(".*")
            i += 2
        elif pattern[i] == "*":
            out.append("[^/]*")
            i += 1
        elif pattern[i] == "?":
            out.append("[^/]")
            i += 1
        elif pattern[i] == "[" and (close := pattern.find("]", i + 2)) > 0:
            inside = pattern[i + 1 : close].replace("\\", "\\\\")
            out.append("[" + ("^" + inside[1:] if inside[0] in "!^" else inside) + "]")
            i = close + 1
        else:
            out.append(re.escape(pattern[i]))
            i += 1
    return "".join(out)
