"""Failpoints: named places at which tests make the system fail. An inactive one costs the test of an empty dictionary.

    failpoint("checkpoint.sync")               # in the code: a name in NAMES
    with injected("checkpoint.sync", crash):   # in a test: called there each time

A test checks that every name is used in the code and exercised by some test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

NAMES: Final = frozenset(
    {
        "checkpoint.sync",
        "checkpoint.async.before_write",
        "checkpoint.async.after_write",
        "checkpoint.before_manifest",
        "checkpoint.after_manifest",
        "storage.write",
        "storage.read",
        "storage.list",
        "storage.delete",
        "restore.before_open",
        "sink.prepare",
        "sink.commit.before",
        "sink.commit.after",
        "sink.publish.noted",
        "sink.publish.moved",
    }
)

_active: dict[str, Callable[[], None]] = {}


def failpoint(name: str) -> None:
    """Run the action that a test has injected at this place, if any."""
    if _active:
        action = _active.get(name)
        if action is not None:
            action()


@contextlib.contextmanager
def injected(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` whenever this process passes the failpoint."""
    if name not in NAMES:
        raise ValueError(f"there is no failpoint {name!r}; known: {', '.join(sorted(NAMES))}")
    before = _active.get(name)
    _active[name] = action
    try:
        yield
    finally:
        if before is None:
            _active.pop(name, None)
        else:
            _active[name] = before
