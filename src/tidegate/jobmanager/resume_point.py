"""Where a job goes on: the checkpoints of an earlier run that the option `resume` names."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

from tidegate.core.errors import CheckpointError, StateCompatibilityError
from tidegate.core.ids import AttemptNumber, JobId, new_job_id
from tidegate.core.options import Options
from tidegate.core.recovery_options import LATEST, LATEST_OR_NEW
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.checkpoint.completed_checkpoint import CompletedCheckpoint, checkpoint_of
from tidegate.jobmanager.checkpoint.storage_orders import StorageOrders
from tidegate.jobmanager.fallback import must_refuse, refusal
from tidegate.jobmanager.job_claim import DriverClaim, claim_job, next_driver, random_token
from tidegate.snapshot.assignment import assign
from tidegate.storage.checkpoint_search import Found, StoredCheckpoint, find_at, find_latest, read_all
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.job_storage import make_storage
from tidegate.storage.locations import absolute, path_name, resolve
from tidegate.storage.storage import CheckpointStorage, MissingDirectoryError, StorageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """What a job begins with: its id, storage and claim, and the checkpoints of an earlier run, if it resumes one."""

    job_id: JobId
    storage: CheckpointStorage | None = None
    """None: the job neither takes nor restores checkpoints."""
    found: tuple[CompletedCheckpoint, ...] = ()
    first_checkpoint_id: int = 1
    first_attempt: AttemptNumber = AttemptNumber(0)  # noqa: RUF009 -- a number
    claim: DriverClaim | None = None
    """Fences other drivers of the job; None: it writes no checkpoints, or only where no other driver can reach them."""

    @property
    def is_resumed(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return bool(self.found)

    def storage_orders(self, job_graph: JobGraph, options: Options) -> StorageOrders | None:
        """What performs the storage actions of the job."""
        if self.storage is None:
            return None
        return StorageOrders(
            self.storage,
            self.job_id,
            job_graph,
            allow_non_restored_state=options.allow_non_restored_state,
            claim=self.claim,
        )

    def abandon(self) -> None:
        """Remove everything of a new job that is not started after all; what cannot be removed stays."""
        if self.claim is not None:
            try:
                self.claim.release()
            except StorageError as e:
                logger.debug("the directory of job %s stays: %s", self.job_id, e)


@dataclass(frozen=True)
class Prospect:
    """What a job will begin with if nothing changes until it is claimed. Other drivers of the job do not notice."""

    options: Options
    job_name: str
    job_graph: JobGraph | None
    job_id: JobId
    storage: CheckpointStorage | None = None
    found: StoredCheckpoint | None = None

    @property
    def is_resumed(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.found is not None

    @property
    def may_fence(self) -> bool:
        """Whether another driver has claimed the job: it may still run, and `take` ends it."""
        if not isinstance(self.storage, FilesystemStorage) or not self.options.checkpoint_interval:
            return False
        return bool(self.storage.claims())

    @property
    def next_attempt(self) -> AttemptNumber:
        """The lowest number that no attempt of the job has had."""
        if not isinstance(self.storage, FilesystemStorage):
            return AttemptNumber(0)
        last = -1 if self.found is None else self.found.manifest.attempt
        return AttemptNumber(next_driver(max(self.storage.last_used()[1], last)))

    def take(self, new_token: Callable[[], str] = random_token) -> Beginning:
        """Claim the job, and begin with what is complete then, also what was completed since the search."""
        if not isinstance(self.storage, FilesystemStorage):
            return Beginning(self.job_id, self.storage)
        return _take(self, self.storage, new_token)


def beginning(options: Options, job_name: str, job_graph: JobGraph | None = None) -> Beginning:
    """Find what the options ask for and take it; called in the driver before a job starts."""
    return prospect(options, job_name, job_graph).take()


def prospect(options: Options, job_name: str, job_graph: JobGraph | None = None) -> Prospect:
    """Find what the options ask for. Reads the checkpoint storage and changes nothing.

    If a job to be resumed has no checkpoint, only `resume="latest-or-new"` makes it a new one, and only if the storage
    could be read; otherwise this raises `CheckpointError`, or the `StorageError` that says why it could not be read. A
    checkpoint that does not fit `job_graph` raises `StateCompatibilityError`.
    """
    if not options.resume:
        return _new_job(options, job_name, job_graph, new_job_id())
    found = _find(options, job_name)
    report = found.report()
    if report:
        logger.warning("%s", report)
    if found.checkpoint is None:
        if options.resume != LATEST_OR_NEW or found.unusable:
            raise CheckpointError(_nothing_to_resume(options, job_name, report))
        return _new_job(options, job_name, job_graph, _id_of_name(options, job_name))
    _refuse_fallback(options, job_name, job_graph, found)
    if options.resume not in (LATEST, LATEST_OR_NEW):
        _refuse_older(found.checkpoint)
    _refuse_other_programs(found.checkpoint, job_graph, options)
    storage = found.checkpoint.storage
    assert isinstance(storage, FilesystemStorage), "only that is found by a path"
    # A directory that was copied under another name is still that job's.
    job_id = found.checkpoint.manifest.job_id
    return Prospect(options, job_name, job_graph, job_id, storage, found.checkpoint)


def _new_job(options: Options, job_name: str, job_graph: JobGraph | None, job_id: JobId) -> Prospect:
    """A job without a checkpoint; if other drivers share its id, they may complete one before we claim it."""
    if not options.checkpoint_interval:
        return Prospect(options, job_name, job_graph, new_job_id())
    return Prospect(options, job_name, job_graph, job_id, make_storage(options, job_id))


def _may_go_on(found: int, completed: Sequence[int], *, claimed: bool) -> bool:
    """Whether the checkpoint that was found still exists, or one that the job has completed since.

    A driver that ran until the claim may have replaced it by newer ones. A job that takes no checkpoints claims
    nothing, and reads exactly the one that was named.
    """
    return found in completed or (claimed and any(id > found for id in completed))


def _take(prospect: Prospect, storage: FilesystemStorage, new_token: Callable[[], str]) -> Beginning:
    options, job_name, job_graph = prospect.options, prospect.job_name, prospect.job_graph
    if options.checkpoint_interval:
        storage.prepare()
    attempt = prospect.next_attempt
    claim = None
    if options.checkpoint_interval:
        is_permanent = storage.job_id == _id_of_name(options, job_name)
        claim = claim_job(storage, job_name, attempt, is_permanent=is_permanent, new_token=new_token)
        attempt = AttemptNumber(claim.first_attempt)
    completed = storage.completed() if claim is None else claim.inherited
    found = prospect.found
    if found is not None and not _may_go_on(
        found.manifest.checkpoint_id, completed, claimed=claim is not None
    ):
        raise CheckpointError(
            f"{found.path} was there a moment ago and is gone. Is the storage mounted? Has another driver of the job "
            f"replaced it? Run the program again"
        )
    checkpoints, unreadable = read_all(storage, completed)
    if unreadable and claim is not None:
        claim.check(to_read=True)  # another driver may have deleted them
    if checkpoints:
        newest = checkpoints[-1]
        _refuse_fallback(options, job_name, job_graph, Found(newest, tuple(unreadable)))
        _refuse_other_programs(newest, job_graph, options)
        # A warning like its counterpart below, so that a plain script shows it.
        logger.warning("%s", _going_on(job_name, newest, claimed=claim is not None))
    elif unreadable:
        raise CheckpointError(_nothing_to_resume(options, job_name, Found(None, tuple(unreadable)).report()))
    elif options.resume:
        where = path_name(options.checkpoint_dir)
        before = (
            ". It was started here before, and has finished or has ended before its first checkpoint. If it has "
            f"finished, its output is written again: resume={LATEST} refuses that"
        )
        logger.warning(
            "no checkpoint of job %r below %s: it starts from the beginning%s",
            job_name,
            where,
            before if attempt else "",
        )
    return Beginning(
        checkpoints[-1].manifest.job_id if checkpoints else prospect.job_id,
        storage,
        # A job that takes no checkpoints itself must not delete these.
        tuple(checkpoint_of(c.manifest, c.manifest_path, external=claim is None) for c in checkpoints),
        1 if claim is None else claim.first_checkpoint_id,
        attempt,
        claim,
    )


def _find(options: Options, job_name: str) -> Found:
    if options.resume not in (LATEST, LATEST_OR_NEW):
        return find_at(options.resume, contents=False)
    try:
        return find_latest(options.checkpoint_dir, job_name, contents=False)
    except MissingDirectoryError as e:
        if options.resume == LATEST_OR_NEW and resolve(options.checkpoint_dir).is_object_store:
            return Found(None)  # an object store has no empty directories
        raise MissingDirectoryError(
            f"job {job_name!r} cannot resume from {options.resume}: there is no checkpoint directory "
            f"{path_name(options.checkpoint_dir)}, so nobody can know whether the job has a checkpoint. Mount it; if "
            f"this is the first run, create the directory"
            + ("" if options.resume == LATEST_OR_NEW else f" and set resume={LATEST_OR_NEW}")
        ) from e


def _id_of_name(options: Options, job_name: str) -> JobId:
    """The id of the job that `latest-or-new` makes; two drivers that find nothing at the same moment get the same id.

    So the claims in its directory fence one of them even before the first checkpoint. With another checkpoint
    directory it is another job: both may write to one output.
    """
    place = resolve(absolute(options.checkpoint_dir))
    where = os.path.realpath(place.path) if place.is_local else place.show().rstrip("/")
    return JobId(hashlib.sha256(f"{where}\n{job_name}".encode()).hexdigest()[:16])


def _nothing_to_resume(options: Options, job_name: str, report: str) -> str:
    text = f"job {job_name!r} cannot resume from {path_name(options.resume)}: there is no checkpoint"
    if report:
        return f"{text} that can be used. {report}"
    if options.resume == LATEST:
        return (
            f"{text} of a job of this name below {path_name(options.checkpoint_dir)}. If this is its first run, set "
            f"resume={LATEST_OR_NEW}, which starts from the beginning where there is none; else check checkpoint.dir, "
            f"the name of the job, and whether the storage is mounted"
        )
    meant = get_close_matches(options.resume, [LATEST, LATEST_OR_NEW], 1)
    return f"{text} that can be used. " + (f'Did you mean "{meant[0]}"?' if meant else "Check the path.")


def _going_on(job_name: str, checkpoint: StoredCheckpoint, *, claimed: bool) -> str:
    """The log line for a job that is resumed."""
    completed = datetime.fromtimestamp(checkpoint.manifest.completed_ms / 1000, UTC)
    others = ". Another driver that still runs it will end with an error" if claimed else ""
    return (
        f"job {job_name!r} goes on from {checkpoint.path}, completed {completed:%Y-%m-%d %H:%M:%S}Z{others}"
    )


def _refuse_fallback(options: Options, job_name: str, job_graph: JobGraph | None, found: Found) -> None:
    """Refuse to go on from a checkpoint if a newer one is damaged that a sink may have committed."""
    if not found.passed_over or found.checkpoint is None or job_graph is None:
        return
    if not must_refuse(job_graph, options):
        return
    verified = found.verified()
    if verified.checkpoint is None:
        raise CheckpointError(_nothing_to_resume(options, job_name, verified.report()))
    damaged = Found(None, verified.passed_over).report()
    refused = refusal(job_graph, damaged, older=verified.checkpoint.path)
    raise CheckpointError(f"job {job_name!r} cannot resume from {path_name(options.resume)}: {refused}")


def _refuse_older(checkpoint: StoredCheckpoint) -> None:
    """Going on from an older checkpoint would delete files that the newer ones share with it."""
    newer = [id for id in checkpoint.storage.completed() if id > checkpoint.manifest.checkpoint_id]
    if newer:
        raise CheckpointError(
            f"{checkpoint.path} is not the newest checkpoint of its job: {', '.join(map(str, newer))} came later and "
            f"would be lost. Resume from the newest, or copy the job's directory, delete the later checkpoints from "
            f"the copy and resume there"
        )


def _refuse_other_programs(
    checkpoint: StoredCheckpoint, job_graph: JobGraph | None, options: Options
) -> None:
    if job_graph is None:
        return
    try:
        assign(
            checkpoint.manifest,
            job_graph.vertices,
            job_graph.edges,
            allow_non_restored_state=options.allow_non_restored_state,
        )
    except StateCompatibilityError as e:
        raise StateCompatibilityError(
            f"job {job_graph.name!r} cannot resume from {checkpoint.path}: {e}"
        ) from None
