"""URIs in messages, without the credentials and options that a URI may carry (`s3://key:secret@bucket/dir?...`)."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_ANY_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")


def path_name(path: str) -> str:
    """A path or URI for messages and identities: a URI without user, password and query."""
    scheme = SCHEME.match(path)
    if scheme is None:
        return path
    return f"{scheme[0]}{_parts(path[scheme.end() :])[1]}"


def without_credentials(message: str, uri: str) -> str:
    """A library's message about a URI, with every URI in it, even a shortened one, as `path_name` writes it."""
    message = message.replace(uri, path_name(uri)) if uri else message
    shown = _ANY_URI.sub(lambda found: path_name(found[0]), message)
    for part in _secret_parts(uri):
        shown = shown.replace(part, "***")
    return shown


def _parts(rest: str) -> tuple[str, str, str]:
    """User info, place and query of the text after the scheme.

    A password may contain an unescaped slash or question mark: it reaches up to the last @ before the query.
    """
    head, _, query = rest.partition("?")
    port = head.partition("/")[0].partition(":")[2]
    if "@" not in head and "@" in query and port and not port.isdigit():
        user_info, _, rest = rest.rpartition("@")
        place, _, query = rest.partition("?")
        return user_info, place, query
    user_info, _, place = head.rpartition("@")
    return user_info, place, query


def _secret_parts(uri: str) -> list[str]:
    """The secrets that a library may quote alone: the user info and the query of a URI, and their pieces."""
    scheme = SCHEME.match(uri)
    user_info, _, query = _parts(uri[scheme.end() if scheme else 0 :])
    values = [pair.partition("=")[2] for pair in query.split("&")]
    parts = {user_info, query, *re.split("[:?]", user_info), *values}
    parts |= {unquote(part) for part in parts}
    return sorted((part for part in parts if len(part) > 3), key=len, reverse=True)
