"""A job's checkpoints and restarts as lines of the live display, and as parts of a line in a log.

Pure: the overviews of the job and the time in, text out. Only `Recovery.of` asks the client.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from rich.text import Text

from tidegate.api.job_client import JobClient
from tidegate.core.ids import attempt_name
from tidegate.core.words import printable
from tidegate.jobmanager.checkpoint.statistics import CheckpointsOverview, CheckpointStatistics
from tidegate.jobmanager.failover.job import JobOverview
from tidegate.metrics.quantities import brief_duration, brief_size

_FAILED = re.compile(r"^job (['\"]).*?\1 failed: ")
"""The beginning of every such message; it is left out, because the display names the job already."""
_MOST_IN_A_LINE = 200
"""Characters of an error in a log; a terminal cuts at its width."""


class Recovery(NamedTuple):
    """A job's checkpoints and restarts at a wall-clock time in milliseconds."""

    job: JobOverview
    checkpoints: CheckpointsOverview
    now_ms: int

    @classmethod
    def of(cls, client: JobClient) -> Recovery:
        return cls(client.overview(), client.checkpoints(), time.time_ns() // 1_000_000)


def recovery_lines(recovery: Recovery) -> list[Text]:
    """Up to four lines, cut at the terminal's width: checkpoints, a failed one, restarts, the last error."""
    lines = []
    checkpoints = checkpoint_words(recovery)
    if checkpoints:
        lines.append(Text(checkpoints, no_wrap=True, overflow="ellipsis"))
    failed = failed_checkpoint(recovery.checkpoints)
    if failed is not None:
        words = f"checkpoint {failed.checkpoint_id} failed: {one_line(failed.reason)}"
        lines.append(Text(words, style="yellow", no_wrap=True, overflow="ellipsis"))
    restarts = restart_words(recovery.job)
    if restarts:
        lines.append(Text(restarts, style="yellow", no_wrap=True, overflow="ellipsis"))
    if recovery.job.last_error:
        lines.append(Text(error_words(recovery.job), style="red", no_wrap=True, overflow="ellipsis"))
    return lines


def recovery_parts(recovery: Recovery) -> list[str]:
    """The same information as parts of one line of a log."""
    parts = [checkpoint_words(recovery)]
    failed = failed_checkpoint(recovery.checkpoints)
    if failed is not None:
        parts.append(f"checkpoint {failed.checkpoint_id} failed: {_cut(one_line(failed.reason))}")
    parts.append(restart_words(recovery.job))
    if recovery.job.last_error:
        parts.append(_cut(error_words(recovery.job)))
    return [part for part in parts if part]


def checkpoint_words(recovery: Recovery) -> str:
    """The number of checkpoints and the last one; empty before the first trigger.

    >>> from tidegate.core.states import JobStatus
    >>> job = JobOverview(JobStatus.RUNNING, attempt=0, restarts=0, restart_strategy="none")
    >>> last = CheckpointStatistics(7, 0, "completed", 60_000, 35, 4, ())
    >>> checkpoint_words(Recovery(job, CheckpointsOverview(7, 6, 1, latest_completed=last), 60_535))
    '6 checkpoints, 1 failed; the last: 7, 500 ms ago, took 35 ms, 0 B'
    """
    counts = recovery.checkpoints
    if not counts.triggered:
        return ""
    failed = f", {counts.failed} failed" if counts.failed else ""
    last = counts.latest_completed
    if last is None:
        return f"no checkpoint yet{failed}"
    words = f"{counts.completed} checkpoint{'s' if counts.completed != 1 else ''}{failed}; the last: "
    words += f"{last.checkpoint_id}, "
    if not recovery.job.status.is_terminal:
        age_ms = max(0, recovery.now_ms - last.triggered_ms - last.end_to_end_ms)
        words += f"{brief_duration(age_ms)} ago, "
    words += f"took {brief_duration(last.end_to_end_ms)}, {brief_size(last.bytes_full)}"
    if last.bytes_new != last.bytes_full:
        words += f" ({brief_size(last.bytes_new)} new)"
    return words


def failed_checkpoint(checkpoints: CheckpointsOverview) -> CheckpointStatistics | None:
    """The last failed checkpoint, if none has completed after it."""
    failed, completed = checkpoints.latest_failed, checkpoints.latest_completed
    if failed is None or (completed is not None and completed.checkpoint_id > failed.checkpoint_id):
        return None
    return failed


def restart_words(job: JobOverview) -> str:
    """How often the job was restarted, and from which checkpoint; empty if it was neither restarted nor resumed.

    >>> from tidegate.core.states import JobStatus
    >>> restart_words(JobOverview(JobStatus.RUNNING, attempt=2, restarts=2, restart_strategy="", restored_checkpoint=7))
    '2 restarts, attempt 2 continues from checkpoint 7'
    >>> restart_words(JobOverview(JobStatus.RUNNING, 1_000_000, restarts=0, restart_strategy="", restored_checkpoint=7))
    'driver 2, attempt 0 continues from checkpoint 7'
    """
    begun = attempt_name(job.attempt)
    if job.restored_checkpoint is not None:
        begun += f" continues from checkpoint {job.restored_checkpoint}"
    if not job.restarts:
        return "" if job.restored_checkpoint is None else begun
    return f"{job.restarts} restart{'s' if job.restarts != 1 else ''}, {begun}"


def error_words(job: JobOverview) -> str:
    """The last error in one line, with the attempt that it ended."""
    attempt = "" if job.last_error_attempt is None else f" ({attempt_name(job.last_error_attempt)})"
    return f"last error{attempt}: {_FAILED.sub('', one_line(job.last_error))}"


def one_line(text: str) -> str:
    """The first line of an error, without control characters.

    >>> one_line("ValueError: no\\x1b[2J\\n  at line 3")
    'ValueError: no\N{REPLACEMENT CHARACTER}[2J'
    """
    return printable(text.strip().partition("\n")[0])


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_IN_A_LINE else f"{text[: _MOST_IN_A_LINE - 1]}…"
