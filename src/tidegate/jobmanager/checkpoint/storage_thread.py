"""The thread of the JobManager that does the I/O of checkpoints: manifests, deletion, verification.

It performs the storage actions of a job one after the other, in the order in which they come, and posts the answers.
A deletion that fails is logged and forgotten: the next `Sweep` finds what is left.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from tidegate.core.errors import CheckpointError, StateCompatibilityError
from tidegate.core.failpoints import failpoint
from tidegate.core.ids import JobId
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.completed_checkpoint import AcknowledgedCheckpoint, CompletedCheckpoint
from tidegate.jobmanager.failover import events as fe
from tidegate.snapshot.assignment import assign
from tidegate.snapshot.manifest import ManifestError, decode_manifest
from tidegate.storage.memory import MemoryStorage
from tidegate.storage.storage import CheckpointStorage, CorruptFileError, StorageError

logger = logging.getLogger(__name__)

StorageOrder = ce.StorageAction | fe.VerifyCheckpoint
Answer = ce.StorageAnswer | fe.Verification


class StorageOrders:
    """Performs storage actions, wherever it is called: on a `StorageThread`, or by a simulation."""

    def __init__(
        self,
        storage: CheckpointStorage,
        job_id: JobId,
        job_graph: JobGraph,
        *,
        allow_non_restored_state: bool = False,
    ) -> None:
        self._storage = storage
        self._job_id = job_id
        self._graph = job_graph
        self._allow_non_restored_state = allow_non_restored_state

    def perform(self, order: StorageOrder) -> Answer | None:
        """Do it; returns the answer where there is one."""
        match order:
            case ce.StoreAttachments(_, attachments):
                if isinstance(self._storage, MemoryStorage):
                    self._storage.accept(attachments)
            case ce.WriteManifest(checkpoint):
                return self._write(checkpoint)
            case ce.DiscardCheckpoint(checkpoint_id, keep, delete):
                self._quietly(
                    f"checkpoint {checkpoint_id}", lambda: self._discard(checkpoint_id, keep, delete)
                )
            case ce.Sweep(keep, before_checkpoint):
                self._quietly("what is left behind", lambda: self._sweep(keep, before_checkpoint))
            case fe.VerifyCheckpoint(checkpoint):
                return self._verify(checkpoint)
        return None

    def _write(self, checkpoint: AcknowledgedCheckpoint) -> ce.StorageAnswer:
        id = checkpoint.checkpoint_id
        try:
            failpoint("checkpoint.before_manifest")
            data = checkpoint.manifest(self._job_id, self._graph).encode()
            path = self._storage.write_manifest(id, checkpoint.attempt, data)
            failpoint("checkpoint.after_manifest")
        except Exception as e:  # noqa: BLE001 -- the checkpoint fails, not the job
            return ce.ManifestFailed(id, str(e) or type(e).__name__)
        return ce.ManifestWritten(id, path)

    def _verify(self, checkpoint: CompletedCheckpoint) -> fe.Verification:
        id = checkpoint.checkpoint_id
        storage = self._storage
        try:
            manifest = decode_manifest(storage.read_manifest(id), checkpoint.path or f"checkpoint {id}")
            damage = storage.damage(manifest.files)
            if damage:
                return fe.CheckpointDamaged(id, tuple(damage))
            restore = assign(
                manifest, self._graph.vertices, allow_non_restored_state=self._allow_non_restored_state
            )
            if restore.left_behind:
                logger.warning(
                    "checkpoint %d has state of operators that the job does not have; it is left behind: %s",
                    id,
                    ", ".join(restore.left_behind),
                )
        except StateCompatibilityError as e:
            return fe.CheckpointIncompatible(id, str(e))
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

    def _discard(self, checkpoint_id: int, keep: frozenset[str], delete: tuple[str, ...]) -> None:
        self._storage.discard(checkpoint_id, keep)
        if delete:
            self._storage.delete(delete)

    def _sweep(self, keep: frozenset[str], before_checkpoint: int) -> None:
        swept = self._storage.sweep(keep, before_checkpoint)
        if swept:
            logger.info("removed %d files that earlier checkpoints and attempts left behind", len(swept))

    def _quietly(self, what: str, delete: Callable[[], None]) -> None:
        try:
            delete()
        except Exception as e:  # noqa: BLE001 -- the next sweep tries again
            logger.warning("%s could not be deleted from the checkpoint storage: %s", what, e)


class StorageThread:
    """Runs `StorageOrders` on a thread of its own. `do` and `stop` may come from any thread."""

    def __init__(self, orders: StorageOrders, post: Callable[[Answer], None]) -> None:
        self._orders = orders
        self._post = post
        self._queue: queue.SimpleQueue[StorageOrder | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tidegate-storage", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def do(self, order: StorageOrder) -> None:
        """Perform this, behind what was ordered before."""
        self._queue.put(order)

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish what was ordered, then end."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the checkpoint storage does not answer; what is to be deleted there may stay")

    def _run(self) -> None:
        while (order := self._queue.get()) is not None:
            try:
                answer = self._orders.perform(order)
            except Exception as e:
                logger.exception("%s failed", type(order).__name__)
                answer = _failed(order, e)
            if answer is not None:
                self._post(answer)


def _failed(order: StorageOrder, error: Exception) -> Answer | None:
    match order:
        case ce.WriteManifest(checkpoint) | ce.StoreAttachments(checkpoint):
            id = checkpoint if isinstance(checkpoint, int) else checkpoint.checkpoint_id
            return ce.ManifestFailed(id, str(error) or type(error).__name__)
        case fe.VerifyCheckpoint(checkpoint):
            return fe.CheckpointUnavailable(checkpoint.checkpoint_id, str(error) or type(error).__name__)
    return None
