"""The layout of a checkpoint directory: the only place that formats or parses a path.

    <checkpoint.dir>/<job id>/
        chk-42/_metadata                       the manifest
        chk-42/a0-<operator>-0-<name>          exclusive files
        shared/c42-a0-<operator>-0-<name>      shared files
        claims/a1000000-<8 hex digits>         a driver runs the job; only the driver with the highest may
        claims/a1000000-<8 hex digits>.json    which checkpoints of earlier drivers count since then

Paths are relative to the job's directory. `a0` is the attempt that wrote a file, `0` before the name is the subtask. In
operators and names every byte except letters, digits, `_` and `.` (in names also `-`) is written as `~` and two
hexadecimal digits, and a long name is cut and gets a hash; so no state name can lead out of the directory.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, NamedTuple

Scope = Literal["exclusive", "shared"]

SHARED_DIRECTORY: Final = "shared"
CLAIMS_DIRECTORY: Final = "claims"
MANIFEST: Final = "_metadata"

_INHERITANCE: Final = ".json"
_MAX_NAME_BYTES: Final = 120
_NUMBER: Final = "(0|[1-9][0-9]{0,17})"
_FILE: Final = rf"a{_NUMBER}-[A-Za-z0-9_.~]+-{_NUMBER}-[A-Za-z0-9_.~-]+"
_DIRECTORY = re.compile(rf"chk-{_NUMBER}")
_EXCLUSIVE = re.compile(rf"chk-{_NUMBER}/{_FILE}")
_SHARED = re.compile(rf"{SHARED_DIRECTORY}/c{_NUMBER}-{_FILE}")
_MANIFEST = re.compile(rf"chk-{_NUMBER}/{MANIFEST}")
_CLAIM = re.compile(rf"{CLAIMS_DIRECTORY}/a{_NUMBER}-([0-9a-f]{{8}})")
_TEMPORARY = re.compile(r"(.*/)\.([^/]+)\.[0-9a-f]{8}\.tmp")
_JOB_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_.-]")


class StoredPath(NamedTuple):
    """The parts of a path: the checkpoint and the attempt that wrote it, and how long it lives."""

    checkpoint_id: int
    attempt: int | None
    """None for the manifest, whose content names it."""
    kind: Literal["exclusive", "shared", "manifest"]
    temporary: bool
    """Whether the file still has its temporary name: it is being written, or its writer died."""


class Claim(NamedTuple):
    """A driver's claim to run the job, with attempts from this number on. The greatest is the newest."""

    attempt: int
    token: str
    """8 hexadecimal digits: two drivers that claim the same number at the same moment write different files."""


def claim_path(claim: Claim) -> str:
    """The empty file that is the claim.

    >>> claim_path(Claim(1000000, "00c0ffee"))
    'claims/a1000000-00c0ffee'
    """
    return f"{CLAIMS_DIRECTORY}/a{claim.attempt}-{claim.token}"


def inheritance_path(claim: Claim) -> str:
    """The file that names the checkpoints that the driver with this claim took over.

    >>> inheritance_path(Claim(1000000, "00c0ffee"))
    'claims/a1000000-00c0ffee.json'
    """
    return f"{claim_path(claim)}{_INHERITANCE}"


def parse_inheritance(path: str) -> Claim | None:
    """The claim of an inheritance file's path, or None."""
    return parse_claim(path.removesuffix(_INHERITANCE)) if path.endswith(_INHERITANCE) else None


def parse_claim(path: str) -> Claim | None:
    """The claim of a path, or None."""
    match = _CLAIM.fullmatch(path)
    return Claim(int(match[1]), match[2]) if match else None


def checkpoint_directory(checkpoint_id: int) -> str:
    return f"chk-{checkpoint_id}"


def manifest_path(checkpoint_id: int) -> str:
    """The file that makes a checkpoint complete."""
    return f"{checkpoint_directory(checkpoint_id)}/{MANIFEST}"


def file_path(checkpoint_id: int, attempt: int, operator: str, subtask: int, name: str, scope: Scope) -> str:
    """The path of a state file; different arguments give different paths.

    >>> file_path(42, 0, "5f1d", 3, "seen apps.parquet", "exclusive")
    'chk-42/a0-5f1d-3-seen~20apps.parquet'
    >>> file_path(42, 0, "5f1d", 3, "../base", "shared")
    'shared/c42-a0-5f1d-3-..~2fbase'
    """
    file = f"a{attempt}-{_safe(operator).replace('-', '~2d')}-{subtask}-{_safe(name)}"
    if scope == "exclusive":
        return f"{checkpoint_directory(checkpoint_id)}/{file}"
    return f"{SHARED_DIRECTORY}/c{checkpoint_id}-{file}"


def temporary_path(path: str, token: str) -> str:
    """A hidden name beside `path`; `token` has 8 hexadecimal digits."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.{token}.tmp"


def parse_path(path: str) -> StoredPath | None:
    """The parts of a path, or None if the storage never writes such a name."""
    temporary = _TEMPORARY.fullmatch(path)
    plain = path if temporary is None else temporary[1] + temporary[2]
    if match := _MANIFEST.fullmatch(plain):
        return StoredPath(int(match[1]), None, "manifest", temporary is not None)
    if match := _EXCLUSIVE.fullmatch(plain):
        return StoredPath(int(match[1]), int(match[2]), "exclusive", temporary is not None)
    if match := _SHARED.fullmatch(plain):
        return StoredPath(int(match[1]), int(match[2]), "shared", temporary is not None)
    return None


def is_state_file(path: str) -> bool:
    """Whether a handle may have this path: a foreign manifest must not make us touch other files."""
    parsed = parse_path(path)
    return parsed is not None and parsed.kind != "manifest" and not parsed.temporary


def parse_checkpoint_directory(name: str) -> int | None:
    """The checkpoint id in a directory's name, or None."""
    match = _DIRECTORY.fullmatch(name)
    return int(match[1]) if match else None


def is_job_id(name: str) -> bool:
    """Whether a job's directory may have this name."""
    return _JOB_ID.fullmatch(name) is not None


def split_location(location: str) -> tuple[str, str, int | None] | None:
    """(checkpoint.dir, job id, checkpoint or None) from the path of a checkpoint, a manifest, or a job's directory.

    >>> split_location("s3://lake/checkpoints/9c02/chk-42/_metadata")
    ('s3://lake/checkpoints', '9c02', 42)
    >>> split_location("checkpoints/9c02")
    ('checkpoints', '9c02', None)
    """
    parts = location.rstrip("/").split("/")
    if parts[-1] == MANIFEST:
        parts.pop()
        if not parts or parse_checkpoint_directory(parts[-1]) is None:
            return None
    checkpoint_id = parse_checkpoint_directory(parts[-1])
    if checkpoint_id is not None:
        parts.pop()
    if len(parts) < 2 or not is_job_id(parts[-1]):
        return None
    return "/".join(parts[:-1]) or "/", parts[-1], checkpoint_id


def _safe(text: str) -> str:
    written = _UNSAFE.sub(lambda m: b"~%02x" % m[0][0], text.encode("utf-8", "surrogatepass")).decode("ascii")
    if not written:
        return "~"
    if len(written) <= _MAX_NAME_BYTES:
        return written
    # Keep the end of the name: it says the format.
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{written[: _MAX_NAME_BYTES - 36]}~~{digest}~~{written[-16:]}"
