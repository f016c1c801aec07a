"""Where a job goes on: the checkpoints of an earlier run that the option `resume` names."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from tidegate.core.errors import CheckpointError
from tidegate.core.ids import AttemptNumber, JobId, new_job_id
from tidegate.core.options import Options
from tidegate.jobmanager.checkpoint.completed_checkpoint import CompletedCheckpoint, checkpoint_of
from tidegate.snapshot.manifest import ManifestError, decode_manifest
from tidegate.storage import layout
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.finding import Found, find_at, find_latest, job_ids
from tidegate.storage.opening import make_storage
from tidegate.storage.storage import CheckpointStorage, CorruptFileError, StorageError

logger = logging.getLogger(__name__)


ATTEMPTS_PER_DRIVER: Final = 1_000_000
"""A driver that resumes begins with the next multiple, so that no attempt of a driver that died has the same number:
its processes may still write, and the number is what keeps their files apart from ours."""


@dataclass(frozen=True)
class Beginning:
    """Who a job is and what it has: a new one, or one that goes on in the place of a job that died."""

    job_id: JobId
    storage: CheckpointStorage | None = None
    """None: the job neither takes nor restores checkpoints."""
    found: tuple[CompletedCheckpoint, ...] = ()
    first_checkpoint_id: int = 1
    first_attempt: AttemptNumber = AttemptNumber(0)  # noqa: RUF009 -- a number

    @property
    def is_resumed(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return bool(self.found)


def beginning(options: Options, job_name: str) -> Beginning:
    """Find what the options ask for. Reads the checkpoint storage; called in the driver before a job starts.

    `resume="latest"` without any checkpoint of the job's name is a new job, and that is logged. A path without a
    checkpoint is a `CheckpointError`.
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
            raise CheckpointError(
                f"job {job_name!r} cannot resume from {options.resume}: there is no checkpoint that can be used. "
                f"{report or 'Check the path.'}"
            )
        logger.warning(
            "no checkpoint of job %r below %s: it starts from the beginning", job_name, options.checkpoint_dir
        )
        return _new_job(options)
    manifest, storage = found.checkpoint.manifest, found.checkpoint.storage
    if options.resume != "latest":
        _refuse_older(storage, manifest.checkpoint_id, found.checkpoint.path)
    if options.checkpoint_interval:
        _prepare(storage)
    last_checkpoint, last_attempt = storage.last_used()
    first_attempt = (max(last_attempt, manifest.attempt) // ATTEMPTS_PER_DRIVER + 1) * ATTEMPTS_PER_DRIVER
    if options.checkpoint_interval:
        _claim(storage, first_attempt)
    logger.info("job %r goes on from %s", job_name, found.checkpoint.path)
    return Beginning(
        manifest.job_id,
        storage,
        _all_of(storage, external=not options.checkpoint_interval),
        max(last_checkpoint, manifest.checkpoint_id) + 1,
        AttemptNumber(first_attempt),
    )


def _new_job(options: Options) -> Beginning:
    job_id = new_job_id()
    if not options.checkpoint_interval:
        return Beginning(job_id)
    storage = make_storage(options, job_id)
    _prepare(storage)
    return Beginning(job_id, storage)


def _prepare(storage: CheckpointStorage) -> None:
    if isinstance(storage, FilesystemStorage):
        storage.prepare()


def _claim(storage: CheckpointStorage, first_attempt: int) -> None:
    """Leave a trace of the attempts to come: if this driver dies before they do, the next one must not repeat them.

    It is a file of checkpoint 0, which there never is: the first sweep behind a checkpoint of this driver, whose
    manifest is then the trace, removes it.
    """
    storage.writer(0, first_attempt, "driver", 0).write("claim", b"", "exclusive")


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
