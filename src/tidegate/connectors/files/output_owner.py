"""Whose an output directory is, from before the job's first file until its end.

A driver puts a mark with the job's id into the directory and looks again: of two that come at the same moment at least
one sees the other, on every filesystem whose listings show what was written before (local disks, S3, GCS, ABFS, HDFS).
Two drivers whose marks have the same name (they go on from copies of one checkpoint directory, or from one checkpoint
without taking any themselves) meet in `OutputDirectory.put_new`.
A mark is taken away by its driver at the job's end, by the next driver of the same job, and by a job that overwrites;
committers look at the mark of their driver before they publish, so whoever lost the directory publishes nothing more.

On a local disk a driver keeps its mark locked, and the system drops the lock when the process ends, however it ends. So
there a new job can tell a driver that lives, from which nobody takes the directory, from one that died, whose mark
counts for nothing. On an object store nobody can tell.
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
    BID,
    FAILED,
    OutputDirectory,
    OutputDirectoryError,
    named_errors,
)
from tidegate.connectors.files.output_names import (
    OwnerName,
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
    """What a mark says to whoever finds it; nothing is decided by it."""

    host: str
    pid: int
    since: str


def owner_of(job_id: str, attempt: int, append: bool) -> OwnerName:
    """The mark of the driver that runs an attempt."""
    return OwnerName(job_id, attempt - attempt % ATTEMPTS_PER_DRIVER, "appender" if append else "owner")


def take(directory: OutputDirectory, job: SinkJob, *, overwrite: bool, append: bool) -> None:
    """Make the directory this driver's, or refuse; in the driver, before the job starts."""
    with named_errors(lambda: f"cannot write to {directory.show()}"):
        mark = owner_of(job.job_id, job.attempt, append)
        if not _exists(directory):
            directory.create()
        found = _Found.look(directory, mark)
        if _bury_dead(directory, (*found.owners, mark), found):
            found = _Found.look(directory, mark)
        _refuse(directory, found, mark, job, overwrite)
        for other in found.owners if overwrite and not job.resuming else ():
            directory.delete(str(other))  # from now on its committers publish nothing
        found = _put(directory, mark, job.resuming)
        for older in found.of_this_job:
            directory.delete(str(older))
            _let_go(directory, older)
        if overwrite and not job.resuming:
            for name in (*found.parts, *found.hidden, *found.published):
                directory.delete(name)


def check(directory: OutputDirectory, job: SinkJob, *, overwrite: bool, append: bool) -> None:
    """Refuse what `take` would refuse, and change nothing."""
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
    """Take the mark away at the job's end, and what the job has hidden here, unless somebody may go on from it.

    Not what a later driver of the job has hidden: it may begin at any moment.
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
        _let_go(directory, mark)  # not before: a mark that nobody holds is taken for that of a dead driver


class _Found:
    """What is in the directory, by kind, as seen by a driver that has or wants a mark."""

    def __init__(self, names: list[str], mark: OwnerName) -> None:
        self.parts: list[str] = []
        self.hidden: list[str] = []
        self.foreign: list[str] = []
        """Those of `hidden` that are of other jobs."""
        self.last_attempts: dict[str, int] = {}
        """The highest attempt that a name has, by job."""
        self.unfinished: dict[str, list[str]] = {}
        """Those of `hidden` that no checkpoint can cover, by job."""
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
            elif not name.endswith(BID):
                self.others.append(name)

    def _see(self, job: str, attempt: int) -> None:
        self.last_attempts[job] = max(attempt, self.last_attempts.get(job, 0))

    def rivals(self, mark: OwnerName, resuming: bool) -> list[OwnerName]:
        """Marks beside which this one cannot be: of a later driver of the job, of another job.

        Of other jobs only those of owners, where the job was here before; none, if it appends.
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
        # What is there is the job's own, or was added by jobs that append; but it may have lost the directory.
        if rivals:
            raise OutputDirectoryError(
                f"{directory.show()} belongs to another job now: {_describe(directory, rivals[0])}. What this job "
                f"wrote there may be gone. Name another directory and start without resume, or stop the other job"
            )
        return
    for rival in rivals:
        if _life(directory, rival) == "alive":  # whatever else is there: nothing may be removed now
            raise OutputDirectoryError(
                f"{directory.show()} is in use: {_describe(directory, rival)}, and it is at work. Name another "
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
        "If that job is at work, name another directory or set append=True. If it died, run it again with resume, or "
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
    """Raise if the directory has files of an attempt of this job whose number another attempt will have."""
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
    """Put the mark beside no rival's, and return what is in the directory since."""
    data = msgspec.json.encode(
        _Mark(socket.gethostname(), os.getpid(), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z")
    )
    rivals: list[OwnerName] = []
    bid = ""
    for _ in range(_TRIES):
        try:
            directory.put_new(str(mark), data)
            _hold(directory, mark)
        except FileExistsError as e:
            if str(e.filename).endswith(BID):
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
        f"{directory.show()} cannot be taken: another driver takes it at the same moment{other}. Start the program "
        f"once{died}"
    )


# ---- who lives ----


def _hold(directory: OutputDirectory, mark: OwnerName) -> None:
    """Lock the mark for as long as this process lives."""
    if not directory.is_local:
        return
    for path, descriptor in list(_held.items()):
        if not os.fstat(descriptor).st_nlink and _held.pop(path, None) is not None:
            os.close(descriptor)  # another job or driver has taken it away
    path = directory.join(str(mark))
    with contextlib.suppress(FileNotFoundError):  # taken away at once: the caller looks
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a filesystem without locks: nobody can tell who lives
            os.close(descriptor)
        else:
            _held[path] = descriptor


def _let_go(directory: OutputDirectory, mark: OwnerName) -> None:
    descriptor = _held.pop(directory.join(str(mark)), None)
    if descriptor is not None:
        os.close(descriptor)


def _life(directory: OutputDirectory, mark: OwnerName) -> Literal["alive", "dead", "unknown"]:
    """Whether the driver of a mark lives, as far as its lock tells."""
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
    """Marks of drivers that died, each with the names of it and of what the driver left half-written.

    Their pending files are not among them: a checkpoint may cover those.
    """
    return {
        mark: [str(mark), *found.unfinished.get(mark.job, [])]
        for mark in marks
        if _life(directory, mark) == "dead"
    }


def _bury_dead(directory: OutputDirectory, marks: Iterable[OwnerName], found: _Found) -> int:
    """Take away what drivers that died left; returns how many such drivers there were."""
    dead = _left_by_dead(directory, marks, found)
    for mark, names in dead.items():
        for name in names:
            directory.delete(name)
        _LOG.warning(
            "the driver of job %s died without a word to %s: its mark and %d unfinished files are removed",
            mark.job,
            directory.show(),
            len(names) - 1,
        )
    return len(dead)


def _describe(directory: OutputDirectory, owner: OwnerName) -> str:
    """Who a mark is of, in words."""
    try:
        mark = msgspec.json.decode(directory.read(str(owner)) or b"", type=_Mark)
        where = f", process {mark.pid} on {mark.host} since {mark.since},"
    except (msgspec.MsgspecError, *FAILED):
        where = ""
    return f"job {owner.job}{where} has its mark {owner} there"
