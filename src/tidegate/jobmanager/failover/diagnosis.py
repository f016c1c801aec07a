"""Diagnosis: whether a failure is likely to come again after a restart, in words for the user. Pure.

It is a guess: the same error at the same record in two attempts is no accident, and neither is a TypeError in the
program's own code.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.core.ids import AttemptNumber
from tidegate.jobmanager.failures import Failure, FailureRank


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt and its failure."""

    attempt: AttemptNumber
    failure: Failure


class Diagnosis(NamedTuple):
    """What is likely about a failure."""

    words: str = ""
    """One sentence for the user; empty if there is nothing to say."""
    will_come_again: bool = False
    """Whether restarting is useless, as far as two attempts can tell."""


def diagnose(failed: FailedAttempt, before: FailedAttempt | None) -> Diagnosis:
    """The diagnosis of a failure, given that of the attempt before."""
    failure = failed.failure
    if before is not None and failure.culprit and failure.culprit == before.failure.culprit:
        if failure.place and failure.place == before.failure.place:
            return Diagnosis(
                f"the same error as in attempt {before.attempt} at the same record: it will not "
                f"go away by restarting. Correct the program, or the record",
                will_come_again=True,
            )
        if not failure.place:
            return Diagnosis(
                f"the same error as in attempt {before.attempt}: it will hardly go away by restarting, unless its "
                f"cause is outside of the program",
                will_come_again=True,
            )
        return Diagnosis(f"the same error as in attempt {before.attempt}, at another record")
    if _is_program_error(failure.reason):
        return Diagnosis(
            "it was raised by the program's own code without an outside cause: it will most likely come again "
            "at the same record"
        )
    if failure.is_environment:
        return Diagnosis("the processes of Spark's executors cannot run it as they are installed")
    if failure.is_cut:
        return Diagnosis(
            "hosts cannot reach each other: a restart helps once they can, or on other hosts. Check the network and "
            "its firewalls"
        )
    if failure.rank in (
        FailureRank.SLOT_LOST,
        FailureRank.SLOT_SILENT,
        FailureRank.PEER_LOST,
        FailureRank.GANG_ENDED,
    ):
        return Diagnosis("a process or a connection was lost: a restart usually helps")
    return Diagnosis()


class FailedStarts:
    """Recognises an environment in which no attempt can start: all fail alike before all tasks have ever run.

    Once all tasks have run, the environment works, and later failures may pass: one host may lack a module or a port,
    and the next attempt gets other hosts. Spark's own error counts only while no slot has ever registered: later it
    tells what happened to the tasks, not why.
    """

    MOST = 3

    def __init__(self) -> None:
        self._came_up = False
        self._ran = False
        self._culprit = ""
        self._count = 0

    def attempt_ended(self, failure: Failure, *, came_up: bool, ran: bool) -> str | None:
        """Why to give up the job; None: do not. `came_up`: any slot has registered; `ran`: all tasks have run."""
        self._came_up, self._ran = self._came_up or came_up, self._ran or ran
        has_gang_ended = failure.rank is FailureRank.GANG_ENDED
        if failure.is_environment and not (self._came_up if has_gang_ended else self._ran):
            return "no attempt can succeed in this environment"
        if self._ran or not (failure.is_start or (has_gang_ended and not self._came_up)):
            self._count = 0
            return None
        self._count = self._count + 1 if failure.culprit and failure.culprit == self._culprit else 1
        self._culprit = failure.culprit
        if self._count < self.MOST:
            return None
        return f"{self._count} attempts in a row ended like this before the job had ever run"


def _is_program_error(reason: str) -> bool:
    """Whether a reason is a built-in exception that no disk, network or memory can cause."""
    match = re.match(r"(\w+)(:|$)", reason)
    kind = None if match is None else getattr(builtins, match[1], None)
    return (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and kind is not Exception
        and not issubclass(kind, (OSError, MemoryError, RuntimeError))
    )
