"""Diagnosis: whether a failure is likely to come again after a restart, in words for the user. Pure.

Nobody can know; but the same error at the same record in two attempts is no accident, and neither is a TypeError in the
program's own code.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass

from tidegate.core.ids import AttemptNumber
from tidegate.jobmanager.failures import Failure, FailureRank


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt and what it failed of."""

    attempt: AttemptNumber
    failure: Failure


def diagnose(failed: FailedAttempt, before: FailedAttempt | None) -> str:
    """One sentence about a failure, given that of the attempt before; empty if there is nothing to say."""
    failure = failed.failure
    if before is not None and failure.culprit and failure.culprit == before.failure.culprit:
        if failure.place and failure.place == before.failure.place:
            return (
                f"the same error as in attempt {before.attempt} at the same record: it will not "
                f"go away by restarting. Correct the program, or the record"
            )
        if not failure.place:
            return (
                f"the same error as in attempt {before.attempt}: it will hardly go away by restarting, unless its "
                f"cause is outside of the program"
            )
        return f"the same error as in attempt {before.attempt}, at another record"
    if _is_program_error(failure.reason):
        return (
            "it was raised by the program's own code without an outside cause: it will most likely come again "
            "at the same record"
        )
    if failure.rank in (
        FailureRank.SLOT_LOST,
        FailureRank.SLOT_SILENT,
        FailureRank.PEER_LOST,
        FailureRank.GANG_ENDED,
    ):
        return "a process or a connection was lost: a restart usually helps"
    return ""


def will_come_again(diagnosis: str) -> bool:
    """Whether a sentence of `diagnose` says that restarting is of no use."""
    return "go away by restarting" in diagnosis


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
