"""Which driver may run a job: the one with the newest claim in the job's checkpoint directory.

A driver claims a job before it looks for the checkpoint to go on from, and proves that its claim is still the newest
before it makes a checkpoint complete or deletes anything. So one that was stopped (SIGSTOP, a paused machine) and wakes
after another driver has taken the job over finds that out at its next step, and ends.

The claim is looked at before a manifest is written and again behind it, before anybody hears that the checkpoint is
complete. A claim that is not there at the second look came after the manifest, so whoever made it finds that
checkpoint: what sinks commit is never taken back. What is left is a driver that stops between a look and the deletion
or the manifest behind it: filesystems and object stores offer no "delete if". Such a manifest is older than those of
the driver that took over, and such a deletion concerns checkpoints that were old when the claim was made.
"""

from __future__ import annotations

import os
from typing import Final

from tidegate.core.errors import CheckpointError
from tidegate.core.ids import ATTEMPTS_PER_DRIVER
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.layout import Claim, claim_path
from tidegate.storage.storage import FencedError, StorageError

_TRIES: Final = 10


class DriverClaim:
    """The claim of this driver on a job. Any thread; every call does I/O."""

    def __init__(self, storage: FilesystemStorage, claim: Claim) -> None:
        self._storage = storage
        self._claim = claim

    @property
    def first_attempt(self) -> int:
        """The number of the driver's first attempt."""
        return self._claim.attempt

    def check(self, *, to_read: bool = False) -> None:
        """Return if the claim is the newest; `FencedError` if it is not, `StorageError` if nobody can know.

        `to_read`: a claim that is gone is no obstacle, what is to be read will say what is wrong.
        """
        claims = self._storage.claims()
        mine = self._storage.show(claim_path(self._claim))
        if claims and claims[-1] > self._claim:
            newest = self._storage.show(claim_path(claims[-1]))
            raise FencedError(
                f"another driver has taken the job over: its claim {newest} is newer than {mine}, which is this "
                f"driver's. This driver writes, deletes and commits nothing any more; the job goes on in the other. "
                f"If that is not what you want, stop the other and run the program again with resume=latest"
            )
        if self._claim not in claims and not to_read:
            raise StorageError(
                f"{mine} is gone, and with it the proof that this driver may run the job. Mount the storage again; "
                f"if the job's directory was deleted, start the job anew"
            )


def claim_job(storage: FilesystemStorage, attempt: int = 0) -> DriverClaim:
    """Claim a job: from now on every other driver of it is fenced.

    `attempt` is the lowest number that no attempt of the job has had. If another driver claims the same number at the
    same moment the next multiple is tried.
    """
    for _ in range(_TRIES):
        claim = Claim(attempt, os.urandom(4).hex())
        storage.add_claim(claim)
        claims = storage.claims()
        if claims and claims[-1] == claim and not any(c.attempt == attempt for c in claims[:-1]):
            for older in claims[:-1]:
                storage.remove_claim(older)
            return DriverClaim(storage, claim)
        storage.remove_claim(claim)
        attempt = next_driver(max([attempt, *(c.attempt for c in claims)]))
    raise CheckpointError(
        f"the job below {storage.show('')} cannot be claimed: other drivers claim it at the same moment. Start it once"
    )


def next_driver(attempt: int) -> int:
    """The first attempt of the driver that comes after the one of this attempt.

    >>> next_driver(-1), next_driver(0), next_driver(1_000_003)
    (0, 1000000, 2000000)
    """
    return (attempt // ATTEMPTS_PER_DRIVER + 1) * ATTEMPTS_PER_DRIVER
