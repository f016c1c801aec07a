"""The names of a `FileSink`'s files; the only place that formats or parses one.

| name                                                   | what it is                                            |
|--------------------------------------------------------|-------------------------------------------------------|
| `part-<job>-<subtask>-<attempt>-<number>.<format>`     | a visible file                                        |
| `.part-….inprogress`, `.part-….pending`                | the same file while it is written, and until its      |
|                                                        | checkpoint is complete                                |
| `.tidegate-<job>-<attempt>.owner`, `….appender`        | a driver of the job writes here, alone or not         |
| `.tidegate-….owner.<token>.bid`, `….appender.…`        | a driver wants to put that mark on an object store    |
| `.tidegate-<job>-<attempt>-<subtask>.published`        | what a subtask has published                          |

A file's name is unique by construction: a job's id is random, no two attempts of a job have the same number (whichever
driver runs them), and a subtask counts its files from 0 in each attempt. So a writer need not list the directory to
find a free name. Numbers have leading zeros, so that the files of a subtask sort in the order of writing.
"""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple

_JOB = r"(?P<job>[A-Za-z0-9_][A-Za-z0-9_.-]*)"
_FILE = rf"part-{_JOB}-(?P<subtask>\d{{4,}})-(?P<attempt>\d{{9,}})-(?P<number>\d{{6,}})\.(?P<extension>\w+)"
_PART = re.compile(_FILE)
_HIDDEN = re.compile(rf"\.(?P<part>{_FILE})\.(?P<stage>inprogress|pending)")
_OWNER = re.compile(rf"\.tidegate-{_JOB}-(?P<attempt>\d+)\.(?P<kind>owner|appender)")
_BID = re.compile(rf"{_OWNER.pattern}\.[0-9a-f]{{16}}\.bid")
_PUBLISHED = re.compile(
    rf"\.tidegate-{_JOB}-(?P<attempt>\d+)-(?P<subtask>\d+)\.published(?P<unfinished>\.tmp)?"
)

Stage = Literal["inprogress", "pending"]


class PartName(NamedTuple):
    """The parts of a visible file's name.

    >>> str(PartName("9c02f8b1a7d3e654", 3, 1_000_002, 12, "parquet"))
    'part-9c02f8b1a7d3e654-0003-001000002-000012.parquet'
    """

    job: str
    subtask: int
    attempt: int
    number: int
    extension: str

    def __str__(self) -> str:
        return f"part-{self.job}-{self.subtask:04}-{self.attempt:09}-{self.number:06}.{self.extension}"

    def hidden(self, stage: Stage) -> str:
        """The name of the file before it is visible."""
        return f".{self}.{stage}"


class HiddenName(NamedTuple):
    """The name of a file that is not visible yet."""

    part: PartName
    stage: str


class OwnerName(NamedTuple):
    """The name of a driver's mark; `attempt` is the first attempt of that driver."""

    job: str
    attempt: int
    kind: str

    def __str__(self) -> str:
        return f".tidegate-{self.job}-{self.attempt}.{self.kind}"

    @property
    def is_exclusive(self) -> bool:
        """Whether no other job may write here."""
        return self.kind == "owner"


class PublishedName(NamedTuple):
    """The name of a subtask's notes about what it has published."""

    job: str
    attempt: int
    subtask: int

    def __str__(self) -> str:
        return f".tidegate-{self.job}-{self.attempt}-{self.subtask}.published"


def parse_part(name: str) -> PartName | None:
    """The parts of a visible file's name, or None if the sink did not make the file.

    >>> parse_part("part-9c02f8b1a7d3e654-0003-001000002-000012.parquet").attempt
    1000002
    >>> parse_part("../part-9c02-0000-000000000-000000.json"), parse_part("part-0.json")
    (None, None)
    """
    match = _PART.fullmatch(name)
    return None if match is None else _part(match)


def parse_hidden(name: str) -> HiddenName | None:
    """The parts of a hidden file's name, or None."""
    match = _HIDDEN.fullmatch(name)
    return None if match is None else HiddenName(_part(match), match["stage"])


def parse_owner(name: str) -> OwnerName | None:
    """The parts of the name of a driver's mark, or None."""
    match = _OWNER.fullmatch(name)
    return None if match is None else OwnerName(match["job"], int(match["attempt"]), match["kind"])


def bid_for(name: str) -> str:
    """A new name for a bid for the mark with this name."""
    return f"{name}.{os.urandom(8).hex()}.bid"


def is_bid(name: str) -> bool:
    """Whether a driver made the file to announce that it wants to put a mark.

    >>> is_bid(bid_for(str(OwnerName("9c02", 1, "owner")))), is_bid("auctions.bid")
    (True, False)
    """
    return _BID.fullmatch(name) is not None


def parse_published(name: str) -> PublishedName | None:
    """The parts of the name of a file of notes, also of a half-written one, or None."""
    match = _PUBLISHED.fullmatch(name)
    return (
        None if match is None else PublishedName(match["job"], int(match["attempt"]), int(match["subtask"]))
    )


def _part(match: re.Match[str]) -> PartName:
    return PartName(
        match["job"], int(match["subtask"]), int(match["attempt"]), int(match["number"]), match["extension"]
    )
