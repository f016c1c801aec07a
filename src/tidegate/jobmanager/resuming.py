"""Where a job goes on: the checkpoints of an earlier run that the option `resume` names."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

from tidegate.core.errors import CheckpointError, StateCompatibilityError
from tidegate.core.ids import AttemptNumber, JobId, new_job_id
from tidegate.core.options import Options
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.checkpoint.completed_checkpoint import CompletedCheckpoint, checkpoint_of
from tidegate.jobmanager.claiming import DriverClaim, claim_job, next_driver
from tidegate.snapshot.assignment import assign
from tidegate.snapshot.manifest import Manifest, ManifestError, decode_manifest
from tidegate.storage import layout
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.finding import Found, find_at, find_latest, job_ids
from tidegate.storage.opening import make_storage
from tidegate.storage.storage import CheckpointStorage, CorruptFileError, StorageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """Who a job is and what it has: a new one, or one that goes on in the place of a job that died."""

    job_id: JobId
    storage: CheckpointStorage | None = None
    """None: the job neither takes nor restores checkpoints."""
    found: tuple[CompletedCheckpoint, ...] = ()
    first_checkpoint_id: int = 1
    first_attempt: AttemptNumber = AttemptNumber(0)  # noqa: RUF009 -- a number
    claim: DriverClaim | None = None
    """What fences other drivers of the job; None: it writes nothing, or where no other driver could reach."""

    @property
    def is_resumed(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return bool(self.found)


def beginning(options: Options, job_name: str, job_graph: JobGraph | None = None) -> Beginning:
    """Find what the options ask for. Reads the checkpoint storage; called in the driver before a job starts.

    `resume="latest"` without any checkpoint of the job's name is a new job, and that is logged. A path without a
    checkpoint is a `CheckpointError`; one that does not fit `job_graph` is a `StateCompatibilityError`, before anything
    is claimed or started.
    """
    if not options.resume:
        return _new_job(options)
    found = (
        _latest(options, job_name) if options.resume == "latest" else find_at(options.resume, contents=False)
    )
    report = found.report()
    if report:
        logger.warning("%s", report)
    if found.checkpoint is None:
        if options.resume != "latest" or found.unusable:
            mistyped = get_close_matches(options.resume, ["latest"])
            advice = 'Did you mean "latest"?' if mistyped else "Check the path."
            raise CheckpointError(
                f"job {job_name!r} cannot resume from {options.resume}: there is no checkpoint that can be used. "
                f"{report or advice}"
            )
        logger.warning(
            "no checkpoint of job %r below %s: it starts from the beginning", job_name, options.checkpoint_dir
        )
        return _new_job(options)
    manifest, storage = found.checkpoint.manifest, found.checkpoint.storage
    if options.resume != "latest":
        _refuse_older(storage, manifest.checkpoint_id, found.checkpoint.path)
    if job_graph is not None:
        _refuse_other_programs(manifest, job_graph, options, found.checkpoint.path)
    first_attempt = next_driver(max(storage.last_used()[1], manifest.attempt))
    claim = None
    if options.checkpoint_interval:
        claim = _claim(storage, first_attempt)
    # Behind the claim: what another driver completed before it belongs to the job, what it completes now does not.
    checkpoints = _all_of(storage, external=claim is None)
    last_checkpoint = max([storage.last_used()[0], *(c.checkpoint_id for c in checkpoints)])
    # A warning like its counterpart above, so that a plain script shows it.
    logger.warning("%s", _going_on(job_name, found.checkpoint.path, manifest.completed_ms, claim is not None))
    return Beginning(
        manifest.job_id,
        storage,
        checkpoints,
        last_checkpoint + 1,
        AttemptNumber(first_attempt if claim is None else claim.first_attempt),
        claim,
    )


def _going_on(job_name: str, path: str, completed_ms: int, claimed: bool) -> str:
    """What a user reads when a job is resumed."""
    completed = datetime.fromtimestamp(completed_ms / 1000, UTC)
    others = ". Another driver that still runs it will end with an error" if claimed else ""
    return f"job {job_name!r} goes on from {path}, completed {completed:%Y-%m-%d %H:%M:%S}Z{others}"


def _new_job(options: Options) -> Beginning:
    job_id = new_job_id()
    if not options.checkpoint_interval:
        return Beginning(job_id)
    storage = make_storage(options, job_id)
    return Beginning(job_id, storage, claim=_claim(storage, 0))


def _claim(storage: CheckpointStorage, first_attempt: int) -> DriverClaim | None:
    """Fence every other driver of the job. The claim also tells the next driver which attempts there may have been."""
    if not isinstance(storage, FilesystemStorage):
        return None
    storage.prepare()
    return claim_job(storage, first_attempt)


def _latest(options: Options, job_name: str) -> Found:
    try:
        job_ids(options.checkpoint_dir)
    except StorageError:
        return Found(None)  # nothing was ever written there; what else is wrong with it shows at once
    return find_latest(options.checkpoint_dir, job_name, contents=False)


def _refuse_older(storage: CheckpointStorage, checkpoint_id: int, path: str) -> None:
    """Going on from an older checkpoint would delete files that the newer ones share with it."""
    newer = [id for id in storage.completed() if id > checkpoint_id]
    if newer:
        raise CheckpointError(
            f"{path} is not the newest checkpoint of its job: {', '.join(map(str, newer))} came later and would be "
            f"lost. Resume from the newest, or copy the job's directory, delete the later checkpoints from the copy "
            f"and resume there"
        )


def _refuse_other_programs(manifest: Manifest, job_graph: JobGraph, options: Options, path: str) -> None:
    try:
        assign(
            manifest,
            job_graph.vertices,
            job_graph.edges,
            allow_non_restored_state=options.allow_non_restored_state,
        )
    except StateCompatibilityError as e:
        raise StateCompatibilityError(f"job {job_graph.name!r} cannot resume from {path}: {e}") from None


def _all_of(storage: CheckpointStorage, *, external: bool) -> tuple[CompletedCheckpoint, ...]:
    """Every readable checkpoint of the job: the newest is taken, the others if it is damaged.

    `external`: the job takes no checkpoints itself and so must not delete these.
    """
    found = []
    for id in storage.completed():
        path = storage.show(layout.manifest_path(id))
        try:
            manifest = decode_manifest(storage.read_manifest(id), path)
        except (ManifestError, CorruptFileError):
            continue  # reported already
        found.append(checkpoint_of(manifest, path, external=external))
    return tuple(found)
