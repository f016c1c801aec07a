"""Which driver may run a job: the one with the newest claim in the job's checkpoint directory.

A driver that was stopped (SIGSTOP, a paused machine) may wake between any two of its steps, after another driver has
taken over the job. Filesystems and object stores offer no "write if the claim is still mine", so each side writes what
it does before it reads what the other one does:

- A driver that takes over a job (1) writes its claim, (2) lists the completed checkpoints, (3) writes this list, its
  *inheritance*, (4) checks that its claim is still the newest. Only then it begins: it discards what no checkpoint
  covers, commits, restores.
- A driver that completes a checkpoint (1) reads the claims, (2) writes the manifest, (3) reads the claims again, and
  only then notifies the slots. If (3) finds no newer claim, a driver that takes over later will list the manifest. If
  it finds one, nobody has acted on the checkpoint. Either the other driver has listed it and goes on from it; or it
  has not: then the checkpoint is not in the inheritance, and no driver uses it.

Ids of checkpoints and numbers of attempts come from the claim (`core.ids`), so no two drivers write or delete a file of
the same name. A late deletion by a stopped driver can only hit its own checkpoints which it had replaced or given up
before it read the claims; the newest one that it reported as complete is never among them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from tidegate.core.errors import CheckpointError
from tidegate.core.ids import ATTEMPTS_PER_DRIVER, driver_of_attempt, first_checkpoint_of
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.inheritance import Inheritance
from tidegate.storage.layout import Claim, claim_path
from tidegate.storage.storage import FencedError, StorageError

_TRIES: Final = 10


class DriverClaim:
    """The claim of this driver on a job. Any thread; every call does I/O."""

    def __init__(
        self,
        storage: FilesystemStorage,
        claim: Claim,
        inherited: tuple[int, ...] = (),
        *,
        is_permanent: bool = False,
    ) -> None:
        self._storage = storage
        self._claim = claim
        self.inherited = inherited
        """The checkpoints that were complete when the job was claimed, ascending; some may be damaged."""
        self.outlives_the_job = is_permanent or claim.attempt > 0
        """Whether the claim must stay when the job has ended and nothing else is left. It must if an earlier driver may
        still write (its late manifest must not pass for the job's newest), or if the next run has the same job id (its
        attempts must have other numbers)."""

    @property
    def first_attempt(self) -> int:
        return self._claim.attempt

    @property
    def first_checkpoint_id(self) -> int:
        """The id of the driver's first checkpoint; its ids are never used by another driver of the job."""
        return first_checkpoint_of(self._claim.attempt)

    def check(self, *, to_read: bool = False) -> None:
        """Return if the claim is the newest; raise `FencedError` if it is not, `StorageError` if that is unknown.

        `to_read`: accept that the claim is gone; reading the checkpoint itself will tell what is wrong.
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
                f"if the job's directory was deleted, start the job again"
            )

    def release(self) -> bool:
        """Remove the job's directories if it has no checkpoint, and the claim if it need not stay; False if it has one.

        Called when the job has ended, or is not started after all. Raises as `check` does.
        """
        self.check()
        return self._storage.remove_if_unused(claims=not self.outlives_the_job)


def random_token() -> str:
    """The token of a claim, by chance; a simulation has it from its seed."""
    return os.urandom(4).hex()


def claim_job(
    storage: FilesystemStorage,
    job_name: str,
    attempt: int = 0,
    *,
    is_permanent: bool = False,
    new_token: Callable[[], str] = random_token,
) -> DriverClaim:
    """Claim a job and inherit its completed checkpoints; from now on every other driver of the job is fenced.

    `attempt` is the lowest number that no attempt of the job has had. Raises `FencedError` if a third driver has
    claimed the job meanwhile.
    """
    claim = _newest_claim(storage, attempt, new_token)
    inherited = tuple(storage.completed())
    storage.write_inheritance(claim, Inheritance(job_name, driver_of_attempt(claim.attempt), inherited))
    made = DriverClaim(storage, claim, inherited, is_permanent=is_permanent)
    made.check()
    for older in storage.claims():
        if older < claim:
            storage.remove_claim(older)
    return made


def _newest_claim(storage: FilesystemStorage, attempt: int, new_token: Callable[[], str]) -> Claim:
    """Write a claim that is the newest and the only one of its number."""
    for _ in range(_TRIES):
        claim = Claim(attempt, new_token())
        storage.add_claim(claim)
        claims = storage.claims()
        same = [c for c in claims if c.attempt == attempt]
        if claims[-1:] == same == [claim]:
            return claim
        storage.remove_claim(claim)
        # Drivers that collided here see each other's claims, so they take different numbers next.
        attempt = next_driver(max([attempt, *(c.attempt for c in claims)]))
        attempt += ATTEMPTS_PER_DRIVER * sum(c < claim for c in same)
    raise CheckpointError(
        f"the job below {storage.show('')} cannot be claimed: other drivers claim it at the same moment. Start it once"
    )


def next_driver(attempt: int) -> int:
    """The first attempt of the driver after the one that this attempt belongs to.

    >>> next_driver(-1), next_driver(0), next_driver(1_000_003)
    (0, 1000000, 2000000)
    """
    return (driver_of_attempt(attempt) + 1) * ATTEMPTS_PER_DRIVER
