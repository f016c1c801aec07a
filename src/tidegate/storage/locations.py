"""Locations: turns a path or URI into a pyarrow filesystem and a path on it. `core.uris` shows them in messages."""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs

from tidegate.core.uris import SCHEME, path_name, without_credentials

__all__ = ["SCHEME", "Place", "absolute", "filesystem_of", "path_name", "resolve", "split_query"]

_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})


class Place(NamedTuple):
    """A directory or file: its filesystem, its path there, and the scheme that messages put before the path."""

    filesystem: Any
    path: str
    scheme: str

    @property
    def is_local(self) -> bool:
        """Whether this is the machine's own filesystem."""
        return isinstance(self.filesystem, pa_fs.LocalFileSystem)

    @property
    def is_object_store(self) -> bool:
        """Whether a file appears whole when its stream is closed, and directories need not be created."""
        return self.filesystem.type_name in _OBJECT_STORES

    def show(self, below: str = "") -> str:
        """The place, or a path below it, as the user would write it, without credentials."""
        return f"{self.scheme}{self.join(below)}"

    def join(self, below: str) -> str:
        return f"{self.path.rstrip('/')}/{below}" if below else self.path


def absolute(path: str) -> str:
    """A URI unchanged, a path made absolute: slots have another working directory."""
    return path if SCHEME.match(path) else os.path.abspath(os.path.expanduser(path))


def split_query(location: str) -> tuple[str, str]:
    """A URI without its options, and the options with their `?`; a plain path has none."""
    if SCHEME.match(location) is None or location.lower().startswith("file://"):
        return location, ""
    plain, mark, query = location.partition("?")
    return plain, mark + query


def resolve(location: str) -> Place:
    """The filesystem and path of a path or URI. Raises `ValueError` with a reason that names no credentials."""
    scheme = SCHEME.match(location)
    if scheme is None or scheme[1].lower() == "file":
        local = location if scheme is None else unquote(location[scheme.end() :])
        return Place(pa_fs.LocalFileSystem(), absolute(local), "")
    try:
        filesystem, path = filesystem_of(location)
    except (pa.ArrowException, OSError, ValueError) as e:
        # The message may repeat the URI, and the URI may have a password; so no `from e` either.
        raise ValueError(without_credentials(str(e), location)) from None
    return Place(filesystem, path, scheme[0])


def filesystem_of(uri: str) -> tuple[Any, str]:
    """The filesystem of a URI and the path there; raises what pyarrow raises, which may repeat the URI."""
    if uri.startswith("s3://") and "allow_delayed_open" not in uri:
        # With it a small file takes one request instead of the three of a multipart upload.
        try:
            return pa_fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true")
        except pa.ArrowInvalid:
            pass  # an older Arrow does not know the option, or the URI is wrong: the call below raises
    return pa_fs.FileSystem.from_uri(uri)
