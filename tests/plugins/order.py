"""Files that take long run first, so that the processes of a run (pytest-xdist) end at about the same time.

A process takes a file of tests at a time. The folders whose files take minutes come first; the many short files of the
others fill what is left. The order within a folder stays.
"""

from __future__ import annotations

import pytest

LONG_FILES = ("fault", "simulation", "event_time", "e2e", "spark")
"""Folders, the one with the longest files first."""


def rank(nodeid: str) -> int:
    """The place of a test's folder; those that are not named come last, together."""
    folder = nodeid.removeprefix("tests/").partition("/")[0]
    return LONG_FILES.index(folder) if folder in LONG_FILES else len(LONG_FILES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))
