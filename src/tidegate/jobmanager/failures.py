"""Failures: which of several reports is the root cause, and what the user reads. Pure.

When a process dies, others report failures too, often sooner: its peers lose their data connections, Spark ends the
stage. So reports have a rank, and before the JobMaster acts on a low one it waits a moment for a better one.
"""

from __future__ import annotations

import enum
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.core.durations import format_duration_ms
from tidegate.core.errors import (
    JobFailedError,
    JobFencedError,
    ModuleMissingError,
    SlotsUnavailableError,
    StateCompatibilityError,
    TargetLostError,
)
from tidegate.core.ids import OperatorId, SlotId
from tidegate.core.words import number_of
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.events import GangFault, SlotsCounted
from tidegate.protocol.messages import PeerLost, SlotAddress, TaskFailed


class FailureRank(enum.IntEnum):
    """How near a report is to the root cause; the lowest wins, and among equals the first."""

    CAUSE = 0
    """A task or a source failed, or a slot misbehaved: nothing else can explain it, so the JobMaster does not wait."""
    SLOT_LOST = 1
    SLOT_SILENT = 2
    TASK_ENDED = 3
    """A task reported that it failed but (not yet) why."""
    PEER_LOST = 4
    GANG_ENDED = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """One report: its rank, and the text that follows "job 'x' failed: "."""

    rank: FailureRank
    text: str
    error: type[JobFailedError] = JobFailedError
    """The exception that the user catches."""
    culprit: str = ""
    """Who failed with which error, to recognise the same failure in another attempt; empty: not known."""
    place: str = ""
    """The record at which it happened, if known."""
    reason: str = ""
    """The error alone: `ValueError: bad`."""
    permanent: bool = False
    """Whether no restart can help, whatever the restart strategy says."""
    is_environment: bool = False
    """Whether processes cannot be slots as the host runs them, or lack what the program needs. No restart helps, unless
    processes of an earlier attempt could."""
    is_start: bool = False
    """Whether it kept a process from becoming a slot."""
    guess: str = ""
    """What is shown after the text if the reason stays unknown."""
    is_cut: bool = False
    """Whether hosts cannot reach each other: a restart helps once they can, or on other hosts."""


class FailureCollector:
    """Keeps the report that is nearest to the root cause, and decides when to act on it."""

    SETTLE_MS = 300

    def __init__(self) -> None:
        self._best: Failure | None = None
        self._decide_at_ms = 0
        self._is_decided = False

    def add(self, failure: Failure, now_ms: int) -> None:
        """Take a report; it replaces the kept one only if it is nearer to the cause.

        Reports after the decision do not count: cancelled slots are lost too.
        """
        if self._best is None:
            self._decide_at_ms = now_ms + self.SETTLE_MS
        if self._best is None or (failure.rank < self._best.rank and not self._is_decided):
            self._best = failure

    @property
    def best(self) -> Failure | None:
        return self._best

    def decided(self, now_ms: int) -> Failure | None:
        """The failure to act on; None while there is none or a better report may still come."""
        if self._best is None:
            return None
        if self._best.rank is FailureRank.CAUSE or now_ms >= self._decide_at_ms:
            self._is_decided = True
        return self._best if self._is_decided else None


def slot_name(slot: SlotId, address: SlotAddress | None) -> str:
    """A slot with its process, if known: `slot 1 (pid 123 on host h)`."""
    return f"slot {slot}" if address is None else f"slot {slot} (pid {address.pid} on host {address.host})"


def task_failed(job_graph: JobGraph, report: TaskFailed) -> Failure:
    """The user's code (or an operator on their data) raised."""
    parallelism = 0
    if 0 <= report.vertex < len(job_graph.vertices):
        parallelism = job_graph.vertices[report.vertex].parallelism
    subtask = f" (subtask {report.subtask} of {parallelism})" if parallelism else ""
    raised = f" raised {report.reason}" if _is_exception(report.reason) else f": {report.reason}"
    lines = [f"operator {report.operator!r}{subtask}{raised}"]
    place = ", ".join(
        part for part in (report.position, f"record {report.record}" if report.record else "") if part
    )
    if place:
        lines.append(f"  at {place}")
    lines += _traceback_lines(report.reason, report.traceback)
    return Failure(
        FailureRank.CAUSE,
        "\n".join(lines),
        culprit=f"{report.operator}: {report.reason}",
        place=place,
        reason=report.reason,
        permanent=_is_a(report.reason, *_PERMANENT),
        is_environment=_is_a(report.reason, ModuleMissingError),
    )


def enumerator_failed(job_graph: JobGraph, operator: OperatorId, reason: str, traceback: str) -> Failure:
    """The source could not find its splits."""
    names = (o.name for v in job_graph.vertices for o in v.operators if o.id == operator)
    first = f"source {next(names, operator)!r} cannot be read: {reason}"
    return Failure(
        FailureRank.CAUSE,
        "\n".join([first, *_traceback_lines(reason, traceback)]),
        culprit=f"{operator}: {reason}",
        reason=reason,
        permanent=_is_a(reason, *_PERMANENT),
    )


def slot_unusable(name: str, reason: str) -> Failure:
    """A process started and cannot be a slot."""
    culprit = re.sub(r"\d+", "", reason)  # attempts get other slots, hosts and processes
    return Failure(
        FailureRank.CAUSE, f"{name} cannot come up: {reason}", culprit=culprit, reason=reason, is_start=True
    )


def slot_lost(name: str, operators: list[str]) -> Failure:
    """A process ended before it reported that it had finished."""
    return Failure(
        FailureRank.SLOT_LOST,
        f"the process of {name} ended without a word{_running(operators)}",
        guess="; it was killed (out of memory, perhaps) or called os._exit",
    )


def slot_silent(name: str, silent_ms: int, operators: list[str], inside: str) -> Failure:
    """A process still holds its connection but has sent nothing for too long."""
    last = f"; when last heard it was inside {inside!r}" if inside else ""
    return Failure(
        FailureRank.SLOT_SILENT,
        f"{name} has been silent for {silent_ms / 1000:.3g} s{_running(operators)}{last}",
        guess="; its process is stopped or cut off",
    )


def task_ended(operator: str, subtask: int, parallelism: int) -> Failure:
    """A task reported the state FAILED without a reason."""
    return Failure(
        FailureRank.TASK_ENDED, f"operator {operator!r} (subtask {subtask} of {parallelism}) failed"
    )


def peer_lost(reporter: str, peer: str, report: PeerLost) -> Failure:
    """A data connection broke though both processes seem to live."""
    return Failure(
        FailureRank.PEER_LOST,
        f"{reporter} lost its data connection to {peer}: {report.reason}",
        is_cut=report.is_cut,
    )


def gang_ended(error: str | None, fault: GangFault) -> Failure:
    """Spark ended the tasks; its own message, cut to the first lines, when there is no better report."""
    if error is None:
        return Failure(FailureRank.GANG_ENDED, "Spark's tasks returned before the job had finished")
    lines = [line for line in error.strip().splitlines() if not line.lstrip().startswith("at ")][:12]
    return Failure(
        FailureRank.GANG_ENDED,
        "Spark ended the job's tasks: " + "\n  ".join(lines),
        # Without the ids of tasks and executors, and ports. Executors may be lost again and again, each by itself.
        culprit="" if fault is GangFault.EXECUTOR_LOST else re.sub(r"\d+", "", lines[0] if lines else ""),
        is_environment=fault is GangFault.ENVIRONMENT,
    )


def protocol_broken(name: str, detail: str) -> Failure:
    """A slot does what no slot of this version does."""
    return Failure(FailureRank.CAUSE, f"{name} broke the protocol: {detail}")


def checkpoints_failed(reason: str, culprit: str = "") -> Failure:
    """More checkpoints in a row have failed than the job tolerates."""
    return Failure(FailureRank.CAUSE, reason, culprit=culprit)


def driver_fenced(reason: str) -> Failure:
    """Another driver runs the job: whatever this one did would be done twice."""
    return Failure(FailureRank.CAUSE, reason, JobFencedError, permanent=True)


def counting_failed(error: str) -> Failure:
    """The host cannot say how many slots there are."""
    return Failure(FailureRank.CAUSE, f"Spark cannot be asked for its slots: {error}")


def waiting_text(
    job: str, needed: int, counted: SlotsCounted, timeout_ms: int, unreachable: Sequence[str]
) -> str:
    """What the user reads while slots are missing. `unreachable`: silent slots of the previous attempt."""
    offered, remedy = _offer(needed, counted, unreachable)
    return (
        f"job {job!r} needs {number_of(needed, 'slot')} but Spark offers {offered}; "
        f"waiting up to {format_duration_ms(timeout_ms)}. {remedy}"
    )


def starting_text(job: str, needed: int, came: int, timeout_ms: int) -> str:
    """What the user reads while Spark is slow to start the slots."""
    return (
        f"job {job!r} needs {number_of(needed, 'slot')} and {came} have started so far: Spark is slow to start its "
        f"tasks; waiting up to {format_duration_ms(timeout_ms)}. If this lasts, see Spark's log, add executors, or "
        f"lower the parallelism"
    )


def slots_unavailable(
    needed: int, counted: SlotsCounted, waited_ms: int, unreachable: Sequence[str]
) -> Failure:
    """Spark did not offer enough slots in time."""
    offered, remedy = _offer(needed, counted, unreachable)
    offers = "did not say how many it offers" if counted.available is None else f"offers {offered}"
    return Failure(
        FailureRank.CAUSE,
        f"it needs {number_of(needed, 'slot')} but Spark {offers} after {format_duration_ms(waited_ms)} "
        f"(slots.wait_timeout). {remedy}",
        SlotsUnavailableError,
    )


def slots_missing(needed: int, missing: list[SlotId], waited_ms: int) -> Failure:
    """Spark started the gang, but not all of its processes registered."""
    shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
    return Failure(
        FailureRank.CAUSE,
        f"it needs {number_of(needed, 'slot')} but only {needed - len(missing)} have registered within "
        f"{format_duration_ms(waited_ms)}; missing: {shown}. Check that Spark has free cores, and that its "
        f"executors can reach the driver's control port",
        SlotsUnavailableError,
    )


def _offer(needed: int, counted: SlotsCounted, unreachable: Sequence[str]) -> tuple[str, str]:
    """How many slots the job can have, and what to do. Slots that others hold are named only if all would be enough."""
    available, own = counted.available or 0, counted.own
    if available < needed:
        return str(available), "Add executors, or lower the parallelism"
    others = counted.busy - own
    held = [f"other jobs hold {others}"] if others or not own else []
    if own:
        held.append(f"tasks of an earlier attempt of this one that have not ended hold {own}")
    offered = f"{available - counted.busy} ({' and '.join(held)} of its {available})"
    if own and unreachable:
        return offered, (
            f"Of that attempt {', '.join(unreachable)} did not answer: if the host is cut off, Spark keeps its slots "
            f"until it takes the host for lost (spark.network.timeout). Heal the host or its network, or add executors"
        )
    return offered, "End other jobs, add executors, or lower the parallelism"


def _running(operators: list[str]) -> str:
    return f" while running {', '.join(map(repr, operators))}" if operators else ""


def _is_exception(reason: str) -> bool:
    """Whether a reason is an exception's own line (`ValueError: bad`), not our text."""
    return re.match(r"[^\W\d][\w.]*(:|$)", reason) is not None


_PERMANENT = (StateCompatibilityError, TargetLostError)
"""Every attempt would fail in the same way: stored state does not fit, or the output belongs to another job."""


def _is_a(reason: str, *errors: type[Exception]) -> bool:
    """Whether a reason is the line of one of these errors."""
    names = "|".join(error.__name__ for error in errors)
    return re.match(rf"(\w+\.)*({names})\b", reason) is not None


def _traceback_lines(reason: str, traceback: str) -> list[str]:
    """The traceback, indented, unless it repeats the reason."""
    text = traceback.strip("\n")
    if not text.strip() or text.strip() == reason.strip() or reason.strip().endswith(text.strip()):
        return []
    return [textwrap.indent(text, "  ")]
