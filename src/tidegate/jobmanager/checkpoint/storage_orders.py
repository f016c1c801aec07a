"""The I/O of checkpoints in the JobManager: manifests, deletion, verification.

The storage actions of a job are performed one after the other, in order, on a thread that may block. A deletion that
fails is logged once, and retried with later deletions and at the end. Before each write or deletion the driver's claim
on the job is checked; once another driver has claimed the job, nothing more is done.
"""

from __future__ import annotations

import logging
from typing import assert_never

from tidegate.core.errors import CheckpointError, StateCompatibilityError
from tidegate.core.failpoints import failpoint
from tidegate.core.ids import JobId
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.completed_checkpoint import AcknowledgedCheckpoint, CompletedCheckpoint
from tidegate.jobmanager.failover import events as fe
from tidegate.jobmanager.job_claim import DriverClaim
from tidegate.snapshot.assignment import assign
from tidegate.snapshot.manifest import ManifestError, decode_manifest
from tidegate.storage.memory import MemoryStorage
from tidegate.storage.storage import CheckpointStorage, CorruptFileError, FencedError, StorageError

logger = logging.getLogger(__name__)

StorageOrder = ce.StorageAction | fe.VerifyCheckpoint | fe.CheckClaim
Answer = ce.StorageAnswer | fe.Verification | fe.ClaimChecked | ev.DriverFenced
Deletion = ce.DiscardCheckpoint | ce.Sweep


class StorageOrders:
    """Performs storage actions. All calls of `perform` come from one thread."""

    def __init__(
        self,
        storage: CheckpointStorage,
        job_id: JobId,
        job_graph: JobGraph,
        *,
        allow_non_restored_state: bool = False,
        claim: DriverClaim | None = None,
    ) -> None:
        """`claim` is None if no other driver can reach the storage, or if nothing is written."""
        self._storage = storage
        self._job_id = job_id
        self._graph = job_graph
        self._allow_non_restored_state = allow_non_restored_state
        self._claim = claim
        self._fenced: ev.DriverFenced | None = None
        self.may_be_resumed = storage.outlives_driver
        """Whether another driver may resume the job from what is stored. True until the release finds the storage
        empty: a manifest may have been written without an answer, and another driver may have found it."""
        self._newest = 0
        """The last checkpoint that was completed here."""
        self._undone: dict[int, Deletion] = {}
        """Deletions that failed, by checkpoint; of several sweeps the last. No checkpoint will refer to these files
        again, so it is never too late to delete them."""

    def perform(self, order: StorageOrder) -> Answer | None:
        """Perform an order; returns its answer, if it has one."""
        if self._fenced is not None:
            return self._fenced
        try:
            return self._perform(order)
        except FencedError as e:
            self._fenced = ev.DriverFenced(str(e))
            return self._fenced

    def _perform(self, order: StorageOrder) -> Answer | None:
        match order:
            case ce.StoreAttachments(_, attachments):
                if isinstance(self._storage, MemoryStorage):
                    self._storage.accept(attachments)
            case ce.WriteManifest(checkpoint):
                return self._write(checkpoint)
            case ce.DiscardCheckpoint() | ce.Sweep():
                self._delete(order)
            case ce.ReleaseStorage():
                self._release()
            case fe.VerifyCheckpoint(checkpoint):
                answer = self._verify(checkpoint)
                if not isinstance(answer, fe.CheckpointVerified):
                    self._refuse_if_fenced()  # if so, the other driver deleted what is missing
                return answer
            case fe.CheckClaim():
                self._refuse_if_fenced()
                return fe.ClaimChecked()
            case _:
                assert_never(order)
        return None

    def _write(self, checkpoint: AcknowledgedCheckpoint) -> ce.StorageAnswer:
        id = checkpoint.checkpoint_id
        try:
            failpoint("checkpoint.before_manifest")
            data = checkpoint.manifest(self._job_id, self._graph).encode()
            self._check_claim()
            path = self._storage.write_manifest(id, checkpoint.attempt, data)
            failpoint("checkpoint.after_manifest")
            # A driver that claims the job from here on finds the checkpoint; one that did earlier may not have.
            self._check_claim()
        except FencedError:
            raise
        except Exception as e:  # noqa: BLE001 -- the checkpoint fails, not the job
            return ce.ManifestFailed(id, str(e) or type(e).__name__)
        self._newest = id
        return ce.ManifestWritten(id, path)

    def _verify(self, checkpoint: CompletedCheckpoint) -> fe.Verification:
        id = checkpoint.checkpoint_id
        storage = self._storage
        try:
            self._check_claim(to_read=True)
            manifest = decode_manifest(storage.read_manifest(id), checkpoint.path or f"checkpoint {id}")
            damage = storage.damage(manifest.files)
            if damage:
                return fe.CheckpointDamaged(id, tuple(damage))
            restore = assign(
                manifest,
                self._graph.vertices,
                self._graph.edges,
                allow_non_restored_state=self._allow_non_restored_state,
            )
            if restore.left_behind:
                logger.warning(
                    "checkpoint %d has state of operators that the job does not have; it is left behind: %s",
                    id,
                    ", ".join(restore.left_behind),
                )
        except StateCompatibilityError as e:
            return fe.CheckpointIncompatible(id, str(e))
        except FencedError:
            raise
        except (ManifestError, CorruptFileError, CheckpointError) as e:
            if self._is_empty():
                return fe.CheckpointUnavailable(
                    id, f"{e} None of the job's checkpoints is there any more: is the storage mounted?"
                )
            return fe.CheckpointDamaged(id, (str(e),))
        except Exception as e:  # noqa: BLE001 -- the storage cannot be reached
            return fe.CheckpointUnavailable(id, str(e) or type(e).__name__)
        return fe.CheckpointVerified(id, restore)

    def _is_empty(self) -> bool:
        """Whether no completed checkpoint is left: the storage is not mounted, or all were deleted."""
        try:
            return not self._storage.completed()
        except StorageError:
            return True

    def _check_claim(self, *, to_read: bool = False) -> None:
        if self._claim is not None:
            self._claim.check(to_read=to_read)

    def _refuse_if_fenced(self) -> None:
        """Raise if another driver is known to have the job; an unreadable claim is ignored."""
        try:
            self._check_claim(to_read=True)
        except FencedError:
            raise
        except StorageError as e:
            logger.debug("the claim on the job cannot be looked at: %s", e)

    # ---- deletion ----

    def _delete(self, order: Deletion) -> None:
        """Perform a deletion and retry the failed ones; what fails is kept for the next time.

        The newest checkpoint is deleted last, when the job has finished: if an older one stayed, a later run would
        resume from it and write again what was committed since. A sweep comes after all discards that failed, because
        it deletes files that those checkpoints still refer to.
        """
        before, self._undone = self._undone, {}
        error: Exception | None = None
        is_last = isinstance(order, ce.Sweep) or order.checkpoint_id >= self._newest
        for deletion in (*before.values(), order) if is_last else (order, *before.values()):
            if error is None:
                try:
                    self._check_claim()
                    self._do_delete(deletion)
                    continue
                except FencedError:
                    raise
                except Exception as e:  # noqa: BLE001 -- the next deletion retries it
                    error = e
            self._undone[_key(deletion)] = deletion
        if error is not None:
            log = logger.debug if before else logger.warning
            log(
                "%s could not be deleted from the checkpoint storage, which is tried again with later checkpoints: %s",
                _what(order),
                error,
            )
        elif before:
            logger.info("deleted what could not be deleted before: %s", _what(*before.values()))

    def _do_delete(self, order: Deletion) -> None:
        match order:
            case ce.DiscardCheckpoint(checkpoint_id, keep, delete):
                self._storage.discard(checkpoint_id, keep)
                if delete:
                    self._storage.delete(delete)
            case ce.Sweep(keep, before_checkpoint):
                swept = self._storage.sweep(keep, before_checkpoint)
                if swept:
                    logger.info(
                        "removed %d files that earlier checkpoints and attempts left behind", len(swept)
                    )
            case _:
                assert_never(order)

    def _release(self) -> None:
        """The last order: retries the failed deletions once more, then releases the claim."""
        if self._undone:
            _, last = self._undone.popitem()
            self._delete(last)
        if self._undone:
            logger.warning(
                "%s could not be deleted from the checkpoint storage and stays in %s: delete it by hand",
                _what(*self._undone.values()),
                self._storage.show(""),
            )
        elif self._claim is not None:
            try:
                self.may_be_resumed = not self._claim.release()
            except FencedError:
                raise
            except StorageError as e:
                logger.debug("the job's checkpoint directory stays: %s", e)


_SWEEP = -1


def _key(deletion: Deletion) -> int:
    return deletion.checkpoint_id if isinstance(deletion, ce.DiscardCheckpoint) else _SWEEP


def _what(*deletions: Deletion) -> str:
    named = [f"checkpoint {d.checkpoint_id}" for d in deletions if isinstance(d, ce.DiscardCheckpoint)]
    if len(named) < len(deletions):
        named.append("what earlier checkpoints and attempts left behind")
    return ", ".join(named)


def answer_to_crash(order: StorageOrder, error: Exception) -> Answer | None:
    """The answer after `perform` itself raised, which is a bug: the job must not wait for ever."""
    match order:
        case ce.WriteManifest(checkpoint) | ce.StoreAttachments(checkpoint):
            id = checkpoint if isinstance(checkpoint, int) else checkpoint.checkpoint_id
            return ce.ManifestFailed(id, str(error) or type(error).__name__)
        case fe.VerifyCheckpoint(checkpoint):
            return fe.CheckpointUnavailable(checkpoint.checkpoint_id, str(error) or type(error).__name__)
        case fe.CheckClaim():
            return fe.ClaimChecked()
        case ce.DiscardCheckpoint() | ce.Sweep() | ce.ReleaseStorage():
            return None
        case _:
            assert_never(order)
