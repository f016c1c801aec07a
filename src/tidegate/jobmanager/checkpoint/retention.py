"""CompletedCheckpoints: which checkpoints are retained, and which files are no longer needed. Pure.

Files are reference-counted: one is deleted with the last checkpoint that refers to it. Pending checkpoints may build on
any completed one that their slots know of. Two rules make deletion safe for them:

- files that a subtask has acknowledged count as referenced (`hold`);
- a checkpoint that is no longer retained is deleted only after every checkpoint that was pending then has ended.

Owned by the CheckpointCoordinator; `retained` may be read from any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.jobmanager.checkpoint.completed_checkpoint import CompletedCheckpoint
from tidegate.jobmanager.checkpoint.events import DiscardCheckpoint
from tidegate.snapshot.handles import SubtaskSnapshot
from tidegate.storage.layout import parse_path


@dataclass(eq=False)
class _Leaving:
    """A checkpoint that is deleted when all these pending ones have ended."""

    checkpoint: CompletedCheckpoint
    awaits: set[int]


class CompletedCheckpoints:
    """The completed checkpoints of a job, across its attempts."""

    def __init__(self, retained: int, found: Iterable[CompletedCheckpoint] = ()) -> None:
        """`found`: checkpoints of an earlier run, which this job now owns."""
        self._limit = retained
        self._retained: tuple[CompletedCheckpoint, ...] = ()
        self._leaving: list[_Leaving] = []
        self._references: Counter[str] = Counter()
        self._held: dict[int, set[str]] = {}
        self._not_ours: set[str] = set()
        self.damaged: dict[int, tuple[str, ...]] = {}
        """Checkpoints that failed their verification, and why."""
        for checkpoint in sorted(found, key=lambda c: c.checkpoint_id):
            self._take(checkpoint)

    @property
    def retained(self) -> tuple[CompletedCheckpoint, ...]:
        """The retained checkpoints, oldest first, including those found to be damaged."""
        return self._retained

    @property
    def latest_id(self) -> int:
        """The highest id; 0 if there is no checkpoint."""
        return self._retained[-1].checkpoint_id if self._retained else 0

    def usable(self) -> CompletedCheckpoint | None:
        """The newest checkpoint that is not known to be damaged."""
        sound = [c for c in self._retained if c.checkpoint_id not in self.damaged]
        return sound[-1] if sound else None

    def live_paths(self) -> frozenset[str]:
        """Every file that a checkpoint refers to, completed or pending."""
        return frozenset(self._references)

    def lost_files(self, checkpoint_id: int, snapshot: SubtaskSnapshot) -> list[str]:
        """Files of earlier checkpoints that a subtask builds on although they are deleted, or about to be.

        A slot may get a barrier before the notification of a newer checkpoint, and build on one that is gone.
        """
        return [
            file.path
            for file in snapshot.files()
            if file.path not in self._references
            and (writer := writer_of(file.path)) is not None
            and writer != checkpoint_id
        ]

    def hold(self, checkpoint_id: int, snapshot: SubtaskSnapshot) -> None:
        """Keep the files that a subtask acknowledged for a pending checkpoint."""
        held = self._held.setdefault(checkpoint_id, set())
        new = {file.path for file in snapshot.files()} - held
        held |= new
        self._references.update(new)

    def add(self, checkpoint: CompletedCheckpoint, pending: Iterable[int]) -> list[DiscardCheckpoint]:
        """A checkpoint is complete: retain it, and discard damaged ones and the oldest beyond the limit."""
        self._take(checkpoint)
        self._drop_references(self._held.pop(checkpoint.checkpoint_id, set()))
        sound = [c for c in self._retained if c.checkpoint_id not in self.damaged]
        kept = sound[-self._limit :]
        kept_ids = {c.checkpoint_id for c in kept}
        dropped = [c for c in self._retained if c.checkpoint_id not in kept_ids]
        self._retained = tuple(kept)
        self._leaving += [_Leaving(c, set(pending)) for c in dropped]
        return self._ended(checkpoint.checkpoint_id)

    def abort(self, checkpoint_id: int) -> list[DiscardCheckpoint]:
        """A pending checkpoint was aborted: discard everything that was written for it."""
        unreferenced = self._drop_references(self._held.pop(checkpoint_id, set()))
        own = DiscardCheckpoint(checkpoint_id, self.live_paths(), unreferenced)
        return [own, *self._ended(checkpoint_id)]

    def mark_damaged(self, checkpoint_id: int, reasons: tuple[str, ...]) -> None:
        """Never restore this one; it is discarded when the next one is complete."""
        self.damaged[checkpoint_id] = reasons

    def clear(self) -> list[DiscardCheckpoint]:
        """Discard all. No checkpoint may be pending."""
        self._leaving += [_Leaving(c, set()) for c in self._retained]
        self._retained = ()
        return self._discard_left()

    def _take(self, checkpoint: CompletedCheckpoint) -> None:
        paths = checkpoint.files
        self._references.update(paths)
        if checkpoint.external:
            self._not_ours |= paths
        self._retained = (*self._retained, checkpoint)

    def _ended(self, checkpoint_id: int) -> list[DiscardCheckpoint]:
        for leaving in self._leaving:
            leaving.awaits.discard(checkpoint_id)
        return self._discard_left()

    def _discard_left(self) -> list[DiscardCheckpoint]:
        done = [leaving.checkpoint for leaving in self._leaving if not leaving.awaits]
        self._leaving = [leaving for leaving in self._leaving if leaving.awaits]
        actions = []
        for checkpoint in done:
            self.damaged.pop(checkpoint.checkpoint_id, None)
            unreferenced = self._drop_references(checkpoint.files)
            if not checkpoint.external:
                actions.append(DiscardCheckpoint(checkpoint.checkpoint_id, self.live_paths(), unreferenced))
        return actions

    def _drop_references(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Drop one reference to each; returns our files that have none left."""
        gone = []
        for path in paths:
            self._references[path] -= 1
            if self._references[path] <= 0:
                del self._references[path]
                if path not in self._not_ours:
                    gone.append(path)
        return tuple(sorted(gone))


def writer_of(path: str) -> int | None:
    """The checkpoint that a file was written for, by its name; None if the name does not tell."""
    stored = parse_path(path)
    return None if stored is None else stored.checkpoint_id
