"""The I/O of checkpoints in the JobManager: manifests, deletion, verification.

The storage actions of a job are performed one after the other, in the order in which they come, where they may wait. A
deletion that fails is logged, once, and tried again with the later ones and at the end. Before anything is written or
deleted the driver's claim on the job is checked; once another driver has claimed it, nothing is done any more.
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
        """Without a `claim` no other driver can reach the storage, or nothing is written."""
        self._storage = storage
        self._job_id = job_id
        self._graph = job_graph
        self._allow_non_restored_state = allow_non_restored_state
        self._claim = claim
        self._fenced: ev.DriverFenced | None = None
        self.may_be_resumed = storage.outlives_driver
        """Whether another driver may go on from what is stored. It may, until the release has seen that nothing is: a
        manifest that was not told to be complete can have been written, and another driver can have found it."""
        self._newest = 0
        """The last checkpoint that was completed here."""
        self._undone: dict[int, Deletion] = {}
        """Deletions that failed, by checkpoint; of several sweeps the last. Nobody refers to these files again, so it
        is never too late to delete them."""

    def perform(self, order: StorageOrder) -> Answer | None:
        """Do it; returns the answer where there is one."""
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
                    self._refuse_if_fenced()  # then the other driver deleted what is missing
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
            # Who claims the job from here on finds the checkpoint; who did before may not have.
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
        """Whether nothing is left of what was complete: then the whole storage is away, or somebody deleted it all."""
        try:
            return not self._storage.completed()
        except StorageError:
            return True

    def _check_claim(self, *, to_read: bool = False) -> None:
        if self._claim is not None:
            self._claim.check(to_read=to_read)

    def _refuse_if_fenced(self) -> None:
        """Raise if another driver is seen to have the job; nothing if nobody can know."""
        try:
            self._check_claim(to_read=True)
        except FencedError:
            raise
        except StorageError as e:
            logger.debug("the claim on the job cannot be looked at: %s", e)

    # ---- deletion ----

    def _delete(self, order: Deletion) -> None:
        """Do it, and what could not be done before; what fails is kept for the next time.

        The newest checkpoint goes last, when the job has finished: an older one that stayed would be resumed from, and
        what was committed since would be written again. A sweep comes after checkpoints that could not be discarded:
        it deletes files that those still refer to.
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
                except Exception as e:  # noqa: BLE001 -- the next one tries again
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
        """Last of all: nothing comes behind it that could try again."""
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
    """What to answer when `perform` itself raised, which is a bug: the job must not wait for ever."""
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
