"""Ownership of an output directory, from before the job's first file until the job's end.

A driver puts a mark with the job's id into the directory and then lists the directory again. If two drivers do this at
the same moment, at least one sees the other's mark, on every filesystem whose listings show earlier writes (local
disks, S3, GCS, ABFS, HDFS). Two drivers that continue from copies of one checkpoint directory, or from one checkpoint
without taking any themselves, have marks of the same name; `OutputDirectory.put_new` keeps these apart. Three actors
delete a mark: its driver at the job's end, the next driver of the same job, and a job that overwrites. Committers check
the mark of their driver before they publish, so a job that lost the directory publishes nothing more.

On a local disk a driver keeps its mark locked. The operating system drops the lock when the process ends for any
reason. So a new job can distinguish a live driver, whose directory it must not take, from a dead one, whose mark it
ignores. An object store has no such locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import socket
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
import pyarrow.fs as pa_fs

from tidegate.api.sink import SinkJob
from tidegate.connectors.files.output_directory import (
    FAILED,
    OutputDirectory,
    OutputDirectoryError,
    named_errors,
)
from tidegate.connectors.files.output_names import (
    OwnerName,
    is_bid,
    parse_hidden,
    parse_owner,
    parse_part,
    parse_published,
)
from tidegate.core.ids import ATTEMPTS_PER_DRIVER

_LOG = logging.getLogger(__name__)
_TRIES: Final = 5
_PAUSE_S: Final = 0.2


_held: Final[dict[str, int]] = {}
"""Descriptors that keep the marks of this process locked, by path."""


class _Mark(msgspec.Struct, frozen=True):
    """The contents of a mark, shown in error messages; no decision depends on them."""

    host: str
    pid: int
    since: str


def owner_of(job_id: str, attempt: int, append: bool) -> OwnerName:
    """The mark of the driver that runs an attempt."""
    return OwnerName(job_id, attempt - attempt % ATTEMPTS_PER_DRIVER, "appender" if append else "owner")


def take(directory: OutputDirectory, job: SinkJob, *, overwrite: bool, append: bool) -> None:
    """Take the directory for this driver, or raise; runs in the driver before the job starts."""
    with named_errors(lambda: f"cannot write to {directory.show()}"):
        mark = owner_of(job.job_id, job.attempt, append)
        if not _exists(directory):
            directory.create()
        found = _Found.look(directory, mark)
        if _bury_dead(directory, (*found.owners, mark), found):
            found = _Found.look(directory, mark)
        _refuse(directory, found, mark, job, overwrite)
        for other in found.owners if overwrite and not job.resuming else ():
            directory.delete(str(other))  # its committers publish nothing from now on
        found = _put(directory, mark, job.resuming)
        for older in found.of_this_job:
            directory.delete(str(older))
            _let_go(directory, older)
        if overwrite and not job.resuming:
            for name in (*found.parts, *found.hidden, *found.published):
                directory.delete(name)


def check(directory: OutputDirectory, job: SinkJob, *, overwrite: bool, append: bool) -> None:
    """Raise where `take` would, and change nothing."""
    with named_errors(lambda: f"cannot write to {directory.show()}"):
        if not _exists(directory):
            return
        mark = owner_of(job.job_id, job.attempt, append)
        found = _Found.look(directory, mark)
        left = {name for names in _left_by_dead(directory, found.owners, found).values() for name in names}
        if left:
            found = _Found([name for name in directory.names() if name not in left], mark)
        _refuse(directory, found, mark, job, overwrite)


def _exists(directory: OutputDirectory) -> bool:
    kind = directory.kind()
    if kind == pa_fs.FileType.File:
        raise OutputDirectoryError(f"{directory.show()} is a file. Name a directory to write to.")
    return bool(kind != pa_fs.FileType.NotFound)


def leave(directory: OutputDirectory, job: SinkJob, *, append: bool, resumable: bool) -> None:
    """Delete the mark at the job's end and, unless the job can be resumed, the job's hidden files.

    Hidden files of a later driver of the job stay: that driver may start at any moment.
    """
    mark = owner_of(job.job_id, job.attempt, append)
    try:
        with named_errors(lambda: f"cannot clean up {directory.show()}"):
            if not directory.exists(str(mark)):
                return  # another driver or another job has the directory
            for name in () if resumable else directory.names():
                hidden = parse_hidden(name)
                found = parse_published(name) if hidden is None else hidden.part
                if found and found.job == mark.job and found.attempt < mark.attempt + ATTEMPTS_PER_DRIVER:
                    directory.delete(name)
            directory.delete(str(mark))
    finally:
        _let_go(directory, mark)  # last: others take an unlocked mark for that of a dead driver


class _Found:
    """The directory's contents by kind, as seen by a driver that has or wants a mark."""

    def __init__(self, names: list[str], mark: OwnerName) -> None:
        self.parts: list[str] = []
        self.hidden: list[str] = []
        self.foreign: list[str] = []
        """The hidden files of other jobs."""
        self.last_attempts: dict[str, int] = {}
        """The highest attempt found in a name, by job."""
        self.unfinished: dict[str, list[str]] = {}
        """The hidden files that no checkpoint can cover, by job."""
        self.published: list[str] = []
        self.others: list[str] = []
        self.owners: list[OwnerName] = []
        """Marks of other jobs."""
        self.of_this_job: list[OwnerName] = []
        """Marks of other drivers of the job."""
        for name in names:
            owner = parse_owner(name)
            if owner is not None:
                if owner != mark:
                    (self.of_this_job if owner.job == mark.job else self.owners).append(owner)
            elif (part := parse_part(name)) is not None:
                self.parts.append(name)
                self._see(part.job, part.attempt)
            elif (hidden := parse_hidden(name)) is not None:
                self.hidden.append(name)
                self._see(hidden.part.job, hidden.part.attempt)
                if hidden.part.job != mark.job:
                    self.foreign.append(name)
                if hidden.stage == "inprogress":
                    self.unfinished.setdefault(hidden.part.job, []).append(name)
            elif (published := parse_published(name)) is not None:
                self.published.append(name)
                self._see(published.job, published.attempt)
            elif not is_bid(name):
                self.others.append(name)

    def _see(self, job: str, attempt: int) -> None:
        self.last_attempts[job] = max(attempt, self.last_attempts.get(job, 0))

    def rivals(self, mark: OwnerName, resuming: bool) -> list[OwnerName]:
        """Marks that exclude this one: those of later drivers of the job and, unless it appends, of other jobs.

        A resuming job tolerates other jobs that append.
        """
        later = [owner for owner in self.of_this_job if owner.attempt > mark.attempt]
        if not mark.is_exclusive:
            return later
        return later + [owner for owner in self.owners if owner.is_exclusive or not resuming]

    @classmethod
    def look(cls, directory: OutputDirectory, mark: OwnerName) -> _Found:
        return cls(directory.names(), mark)


def _refuse(
    directory: OutputDirectory, found: _Found, mark: OwnerName, job: SinkJob, overwrite: bool
) -> None:
    """Raise unless the directory may be taken."""
    _refuse_used_names(directory, found.last_attempts.get(mark.job, -1), job, overwrite)
    rivals = found.rivals(mark, job.resuming)
    if rivals and rivals[0].job == mark.job:
        raise OutputDirectoryError(
            f"{directory.show()} belongs to a later driver of this job: {_describe(directory, rivals[0])}. Leave "
            f"the job to that one, or stop it and start this program again"
        )
    if not mark.is_exclusive:
        return
    if job.resuming:
        # The files are the job's own, or of jobs that append; but another job may have taken the directory.
        if rivals:
            raise OutputDirectoryError(
                f"{directory.show()} belongs to another job now: {_describe(directory, rivals[0])}. What this job "
                f"wrote there may be gone. Name another directory and start without resume, or stop the other job"
            )
        return
    for rival in rivals:
        if _life(directory, rival) == "alive":  # even with overwrite: nothing may be deleted now
            raise OutputDirectoryError(
                f"{directory.show()} is in use: {_describe(directory, rival)}, and it is running. Name another "
                f"directory, set append=True, or stop that job first"
            )
    if found.others or (found.parts and not overwrite):
        name = directory.show((found.others or found.parts)[0])
        advice = (
            "overwrite=True removes part files only: empty the directory yourself, or name another."
            if overwrite
            else "Empty it, name another, or set overwrite=True or append=True."
        )
        raise OutputDirectoryError(f"{directory.show()} is not empty (it has {name}). {advice}")
    if overwrite:
        return
    advice = (
        "If that job is running, name another directory or set append=True. If it died, run it again with resume, or "
        "set overwrite=True, which deletes what it wrote"
    )
    if rivals:
        raise OutputDirectoryError(
            f"{directory.show()} is in use: {_describe(directory, rivals[0])}. {advice}"
        )
    if found.foreign:
        raise OutputDirectoryError(
            f"{directory.show()} has {len(found.foreign)} hidden files of another job, such as {found.foreign[0]}. "
            f"{advice}"
        )


def _refuse_used_names(directory: OutputDirectory, last_attempt: int, job: SinkJob, overwrite: bool) -> None:
    """Raise if the directory has files of this job whose attempt numbers this run would use again."""
    if last_attempt < job.attempt or not (job.claimed if job.resuming else not overwrite):
        return
    why = (
        "Another driver has gone on from this job's checkpoints, or from a copy of them, and has written here: this "
        "one would write the same output again. Resume from the checkpoints of that driver, or name another directory"
        if job.resuming
        else "Was the checkpoint directory emptied? Name another directory, or give the job another name"
    )
    raise OutputDirectoryError(
        f"{directory.show()} has files of this job's attempt {last_attempt}, and it begins with attempt "
        f"{job.attempt}: names would be used twice. {why}"
    )


def _put(directory: OutputDirectory, mark: OwnerName, resuming: bool) -> _Found:
    """Write the mark, retract it if a rival has one too, and return the directory's contents afterwards."""
    data = msgspec.json.encode(
        _Mark(socket.gethostname(), os.getpid(), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z")
    )
    rivals: list[OwnerName] = []
    bid = ""
    for _ in range(_TRIES):
        try:
            directory.put_new(str(mark), data)
            _hold(directory, mark)
            bid = ""
        except FileExistsError as e:
            if is_bid(str(e.filename)):
                bid = directory.show(e.filename)
                time.sleep(random.uniform(0, _PAUSE_S))
                continue
            raise OutputDirectoryError(
                f"{directory.show()} is in use by this job already: {_describe(directory, mark)}. If that is another "
                f"sink of the job, give each a directory of its own; if it is a driver that goes on from a copy of the "
                f"job's checkpoints, name another directory; if it is one that died, delete "
                f"{directory.show(str(mark))}"
            ) from None
        found = _Found.look(directory, mark)
        rivals = found.rivals(mark, resuming)
        if not rivals and directory.exists(str(mark)):
            return found
        directory.delete(str(mark))
        _let_go(directory, mark)
        time.sleep(random.uniform(0, _PAUSE_S))
        if _Found.look(directory, mark).rivals(mark, resuming):
            break
    other = f" ({_describe(directory, rivals[0])})" if rivals else ""
    died = f". If nobody does, a driver died while it did: delete {bid}" if bid else ""
    raise OutputDirectoryError(
        f"{directory.show()} cannot be taken: another driver is taking it at the same moment{other}. Start the program "
        f"once{died}"
    )


# ---- liveness of drivers ----


def _hold(directory: OutputDirectory, mark: OwnerName) -> None:
    """Lock the mark until `_let_go` or the end of this process."""
    if not directory.is_local:
        return
    for path, descriptor in list(_held.items()):
        if not os.fstat(descriptor).st_nlink and _held.pop(path, None) is not None:
            os.close(descriptor)  # another job or driver has deleted the mark
    path = directory.join(str(mark))
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: the caller checks
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a filesystem without locks: liveness stays unknown
            os.close(descriptor)
        else:
            _held[path] = descriptor


def _let_go(directory: OutputDirectory, mark: OwnerName) -> None:
    descriptor = _held.pop(directory.join(str(mark)), None)
    if descriptor is not None:
        os.close(descriptor)


def _life(directory: OutputDirectory, mark: OwnerName) -> Literal["alive", "dead", "unknown"]:
    """Whether the driver of a mark lives, judged by the mark's lock."""
    if not directory.is_local:
        return "unknown"
    try:
        descriptor = os.open(directory.join(str(mark)), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return "unknown"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "alive"
    except OSError:
        return "unknown"
    finally:
        os.close(descriptor)
    return "dead"


def _left_by_dead(
    directory: OutputDirectory, marks: Iterable[OwnerName], found: _Found
) -> dict[OwnerName, list[str]]:
    """The marks of dead drivers, each with the names to delete: the mark and the files left half-written.

    Their pending files stay: a checkpoint may cover those.
    """
    return {
        mark: [str(mark), *found.unfinished.get(mark.job, [])]
        for mark in marks
        if _life(directory, mark) == "dead"
    }


def _bury_dead(directory: OutputDirectory, marks: Iterable[OwnerName], found: _Found) -> int:
    """Delete what dead drivers left, and return how many dead drivers there were."""
    dead = _left_by_dead(directory, marks, found)
    for mark, names in dead.items():
        for name in names:
            directory.delete(name)
        _LOG.warning(
            "the driver of job %s died without releasing %s: removed its mark and %d unfinished files",
            mark.job,
            directory.show(),
            len(names) - 1,
        )
    return len(dead)


def _describe(directory: OutputDirectory, owner: OwnerName) -> str:
    """The owner of a mark, for error messages."""
    try:
        mark = msgspec.json.decode(directory.read(str(owner)) or b"", type=_Mark)
        where = f", process {mark.pid} on {mark.host} since {mark.since},"
    except (msgspec.MsgspecError, *FAILED):
        where = ""
    return f"job {owner.job}{where} has its mark {owner} there"
