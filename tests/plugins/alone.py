"""Tests that measure time have the machine to themselves, though the others run in several processes (pytest-xdist).

A test marked `alone` waits until no other test of this run is under way, and none begins before it has ended. In a run
of one process nothing changes. The waiting counts for no test's time limit.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

FOLDER = "tidegate_alone"
"""The key under which a worker is told the folder of the locks."""


class Room:
    """Many may be in it together, or one alone. The door is held by who waits, so that one alone gets in too."""

    def __init__(self, folder: Path) -> None:
        self._door = folder / "door"
        self._room = folder / "room"

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        """Be in the room for as long as the block lasts; a process that dies has left it."""
        with self._room.open("w") as room:
            with self._door.open("w") as door:
                _lock(door, fcntl.LOCK_EX)
                _lock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield


def _lock(file: IO[str], how: int) -> None:
    fcntl.flock(file.fileno(), how)  # until the file is closed


class Locks:
    """In the process that distributes the tests: makes the locks, tells the workers where."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="tidegate-tests-")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[FOLDER] = self._folder

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class Turns:
    """In a worker: lets its tests wait for their turn."""

    def __init__(self, room: Room) -> None:
        self._room = room

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the time limit
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._room.entered(alone=item.get_closest_marker("alone") is not None):
            return (yield)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: measures time, so no other test runs meanwhile")
    told = getattr(config, "workerinput", {}).get(FOLDER)
    if told is not None:
        config.pluginmanager.register(Turns(Room(Path(told))), "alone-turns")
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Locks(), "alone-locks")
