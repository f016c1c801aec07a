"""What the JobManager's storage thread does when another driver has the job, and when a deletion fails."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.unit.job_master_kit import job_graph
from tidegate.core.failpoints import injected
from tidegate.core.ids import AttemptNumber, JobId
from tidegate.core.options import Options
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.completed_checkpoint import AcknowledgedCheckpoint, CompletedCheckpoint
from tidegate.jobmanager.checkpoint.storage_orders import StorageOrders
from tidegate.jobmanager.failover import events as fe
from tidegate.jobmanager.job_claim import DriverClaim, claim_job
from tidegate.jobmanager.resume_point import beginning
from tidegate.snapshot.handles import (
    InFlightHandle,
    StateFile,
    SubtaskCheckpointMetrics,
    SubtaskSnapshot,
)
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.storage import StorageError

JOB = JobId("9c02")
NAME = job_graph(1).name
NONE: frozenset[str] = frozenset()


class FullDisk(FilesystemStorage):
    """Storage whose deletions fail while `broken` says so."""

    broken = False
    stuck = 0
    """A checkpoint that cannot be deleted."""

    def discard(self, checkpoint_id: int, keep: frozenset[str]) -> None:
        if self.broken or checkpoint_id == self.stuck:
            raise StorageError(f"cannot delete chk-{checkpoint_id}: injected")
        super().discard(checkpoint_id, keep)

    def sweep(self, keep: frozenset[str], before_checkpoint: int) -> list[str]:
        if self.broken:
            raise StorageError("cannot list: injected")
        return super().sweep(keep, before_checkpoint)


class Driver:
    """One driver of the job: its storage, its claim and its orders."""

    def __init__(self, root: Path, claim: DriverClaim | None = None) -> None:
        self.storage = FullDisk(str(root), JOB)
        self.storage.prepare()
        self.claim = claim or claim_job(self.storage, NAME, 0)
        self.first = self.claim.first_checkpoint_id
        self.orders = StorageOrders(self.storage, JOB, job_graph(1), claim=self.claim)

    def write(self, checkpoint_id: int) -> StateFile:
        writer = self.storage.writer(checkpoint_id, self.claim.first_attempt, "id-count", 0)
        return writer.write("state", b"state", "exclusive")

    def complete(self, checkpoint_id: int) -> object:
        file = self.write(checkpoint_id)
        metrics = SubtaskCheckpointMetrics()
        snapshots = (
            SubtaskSnapshot(0, 0, (), None),
            SubtaskSnapshot(1, 0, (), InFlightHandle(file, 1)),
        )
        attempt = AttemptNumber(self.claim.first_attempt)
        value = AcknowledgedCheckpoint(checkpoint_id, attempt, 1, 1, snapshots, (metrics, metrics), {}, False)
        return self.orders.perform(ce.WriteManifest(value))

    def files(self) -> set[str]:
        root = Path(self.storage.place.path)
        return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}


def resumed(root: Path) -> Driver:
    options = Options().with_keywords(
        checkpoint_interval="1 s", checkpoint_dir=str(root), resume=str(root / JOB)
    )
    begin = beginning(options.checked(), "pv")
    assert begin.claim is not None
    assert begin.first_attempt == begin.claim.first_attempt
    return Driver(root, begin.claim)


@pytest.mark.parametrize("order", ["complete", "discard", "sweep", "release"])
def test_a_driver_that_wakes_after_another_resumed_the_job_changes_nothing_and_says_who_has_it(
    tmp_path, order
):
    asleep = Driver(tmp_path)
    assert isinstance(asleep.complete(1), ce.ManifestWritten)
    other = resumed(tmp_path)
    assert isinstance(other.complete(other.first), ce.ManifestWritten)
    late = asleep.write(3)  # its slots do not know yet
    before = other.files()

    orders = {
        "discard": ce.DiscardCheckpoint(other.first, NONE, (late.path,)),
        "sweep": ce.Sweep(NONE, 9),
        "release": ce.ReleaseStorage(),
    }
    answer = asleep.complete(4) if order == "complete" else asleep.orders.perform(orders[order])

    assert isinstance(answer, ev.DriverFenced)
    assert "another driver has taken the job over" in answer.reason
    assert f"claims/a{other.claim.first_attempt}-" in answer.reason
    new = {"chk-4/a0-id~2dcount-0-state"} if order == "complete" else set()
    assert other.files() == before | new, "what slots write is swept by the driver that has the job"
    assert isinstance(other.complete(other.first + 1), ce.ManifestWritten)


def test_a_job_may_be_resumed_until_its_storage_is_seen_to_have_no_checkpoint(tmp_path):
    """So sinks keep what they have prepared where nobody knows whether a checkpoint relies on it."""
    driver = Driver(tmp_path)
    assert driver.orders.may_be_resumed
    driver.complete(1)
    driver.orders.perform(ce.ReleaseStorage())
    assert driver.orders.may_be_resumed
    driver.orders.perform(ce.DiscardCheckpoint(1, NONE))
    driver.orders.perform(ce.ReleaseStorage())
    assert not driver.orders.may_be_resumed


def test_a_fenced_driver_leaves_it_to_the_other_whether_the_job_is_resumed(tmp_path):
    """Its first manifest was not told to be complete, but the other driver may have found it."""
    asleep = Driver(tmp_path)
    other: list[Driver] = []
    with injected("checkpoint.after_manifest", lambda: other.append(resumed(tmp_path))):
        assert isinstance(asleep.complete(1), ev.DriverFenced)
    assert other[0].claim.inherited == (1,)
    asleep.orders.perform(ce.ReleaseStorage())
    assert asleep.orders.may_be_resumed


def test_a_manifest_that_cannot_be_deleted_again_may_be_resumed_from(tmp_path):
    driver = Driver(tmp_path)
    with injected("checkpoint.after_manifest", lambda: raising("the storage is away")):
        assert isinstance(driver.complete(1), ce.ManifestFailed)
    driver.storage.broken = True
    driver.orders.perform(ce.DiscardCheckpoint(1, NONE))
    driver.orders.perform(ce.ReleaseStorage())
    assert driver.orders.may_be_resumed


def test_the_newest_checkpoint_of_a_finished_job_goes_last_also_if_a_deletion_fails(tmp_path):
    """From an older one another driver would write again what was committed with the newest."""
    driver = Driver(tmp_path)
    for id in (1, 2, 3):
        driver.complete(id)
    driver.storage.stuck = 1
    driver.orders.perform(ce.DiscardCheckpoint(1, NONE))
    driver.orders.perform(ce.DiscardCheckpoint(2, NONE))
    assert driver.storage.completed() == [1, 3], "one that is stuck holds up nothing while the job runs"
    driver.orders.perform(ce.DiscardCheckpoint(3, NONE))
    driver.orders.perform(ce.ReleaseStorage())
    assert driver.storage.completed() == [1, 3]
    driver.storage.stuck = 0
    driver.orders.perform(ce.ReleaseStorage())
    assert driver.storage.completed() == []


def raising(words: str) -> None:
    raise StorageError(words)


def test_a_checkpoint_whose_manifest_appears_behind_another_drivers_claim_is_not_told_to_be_complete(
    tmp_path,
):
    asleep = Driver(tmp_path)
    asleep.complete(1)
    write_manifest = asleep.storage.write_manifest

    def stopped_in_the_middle(checkpoint_id: int, attempt: int, data: bytes) -> str:
        resumed(tmp_path)
        return write_manifest(checkpoint_id, attempt, data)

    asleep.storage.write_manifest = stopped_in_the_middle  # type: ignore[method-assign]
    assert isinstance(asleep.complete(2), ev.DriverFenced), "so no sink commits it"


def test_a_driver_that_resumes_sees_a_checkpoint_that_was_completed_before_its_claim(tmp_path, monkeypatch):
    first = Driver(tmp_path)
    first.complete(1)
    claim = claim_job

    def completes_one_more(*arguments: Any, **more: Any) -> DriverClaim:
        first.complete(2)
        return claim(*arguments, **more)

    monkeypatch.setattr("tidegate.jobmanager.resume_point.claim_job", completes_one_more)
    options = Options().with_keywords(
        checkpoint_interval="1 s", checkpoint_dir=str(tmp_path), resume=str(tmp_path / JOB)
    )
    begin = beginning(options.checked(), "pv")
    assert [c.checkpoint_id for c in begin.found] == [1, 2]
    assert begin.first_checkpoint_id == 1_000_000_001


def test_drivers_that_claim_a_job_at_the_same_moment_get_different_attempts(tmp_path):
    storage = FilesystemStorage(str(tmp_path), JOB)
    storage.prepare()
    attempts = [claim_job(storage, NAME, 1_000_000).first_attempt for _ in range(3)]
    assert attempts[0] == 1_000_000
    assert attempts[0] < attempts[1] < attempts[2]
    assert all(attempt % 1_000_000 == 0 for attempt in attempts)
    assert len(storage.claims()) == 1, "older claims go: the newest says it all"


def test_storage_that_is_away_fails_the_checkpoint_and_fences_nobody(tmp_path):
    driver = Driver(tmp_path)
    driver.complete(1)
    (tmp_path / JOB / "claims").rename(tmp_path / "away")
    answer = driver.complete(2)
    assert isinstance(answer, ce.ManifestFailed)
    assert "Mount the storage again" in answer.reason
    (tmp_path / "away").rename(tmp_path / JOB / "claims")
    assert isinstance(driver.complete(3), ce.ManifestWritten)


def test_a_deletion_that_failed_is_done_with_a_later_checkpoint_and_logged_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    driver = Driver(tmp_path)
    for id in (1, 2, 3):
        driver.complete(id)
    driver.storage.broken = True
    driver.orders.perform(ce.DiscardCheckpoint(1, NONE))
    driver.orders.perform(ce.DiscardCheckpoint(2, NONE))
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "checkpoint 1 could not be deleted" in warnings[0]
    driver.storage.broken = False
    driver.complete(4)
    driver.orders.perform(ce.DiscardCheckpoint(3, NONE))
    assert driver.storage.completed() == [4]
    assert not [f for f in driver.files() if f.startswith(("chk-1/", "chk-2/", "chk-3/"))]
    assert "deleted what could not be deleted before: checkpoint 2, checkpoint 1" in caplog.text


def test_a_sweep_leaves_the_files_of_a_checkpoint_that_could_not_be_deleted(tmp_path):
    """A driver that resumes the job finds that checkpoint: it must be whole, or gone."""
    driver = Driver(tmp_path)
    shared = driver.storage.writer(1, 0, "op", 0).write("state", b"x", "shared").path
    driver.complete(1)
    driver.complete(2)
    driver.storage.stuck = 1
    driver.orders.perform(ce.DiscardCheckpoint(1, NONE))
    driver.orders.perform(ce.Sweep(NONE, 2))
    assert driver.storage.completed() == [1, 2]
    assert shared in driver.files()
    driver.storage.stuck = 0
    driver.orders.perform(ce.Sweep(NONE, 2))
    assert driver.storage.completed() == [2]
    assert shared not in driver.files()


@pytest.mark.parametrize("mended", [True, False])
def test_what_could_not_be_deleted_is_tried_a_last_time_at_the_end_of_the_job(tmp_path, caplog, mended):
    driver = Driver(tmp_path)
    driver.complete(1)
    driver.storage.broken = True
    driver.orders.perform(ce.DiscardCheckpoint(1, NONE))
    driver.orders.perform(ce.Sweep(NONE, 2))
    driver.storage.broken = not mended
    driver.orders.perform(ce.ReleaseStorage())
    if mended:
        assert not (tmp_path / JOB).exists(), "nothing is left, not even empty directories"
    else:
        assert driver.storage.completed() == [1]
        assert "stays in" in caplog.text
        assert "delete it by hand" in caplog.text


def test_the_directory_of_a_job_with_a_checkpoint_stays_at_its_end(tmp_path):
    driver = Driver(tmp_path)
    driver.complete(1)
    driver.orders.perform(ce.ReleaseStorage())
    assert driver.storage.completed() == [1]
    assert len(driver.storage.claims()) == 1


def test_a_driver_whose_checkpoint_another_one_replaced_hears_of_that_one_and_not_of_damage(tmp_path):
    asleep = Driver(tmp_path)
    asleep.complete(1)
    read_manifest = asleep.storage.read_manifest

    def stopped_in_the_middle(checkpoint_id: int) -> bytes:
        other = resumed(tmp_path)
        other.complete(other.first)
        other.orders.perform(ce.DiscardCheckpoint(1, NONE))
        return read_manifest(checkpoint_id)

    asleep.storage.read_manifest = stopped_in_the_middle  # type: ignore[method-assign]
    found = CompletedCheckpoint(1, AttemptNumber(0), "chk-1", NONE)
    answer = asleep.orders.perform(fe.VerifyCheckpoint(found))
    assert isinstance(answer, ev.DriverFenced)


def test_a_claim_is_checked_and_storage_that_is_away_fences_nobody(tmp_path):
    driver = Driver(tmp_path)
    driver.complete(1)
    assert driver.orders.perform(fe.CheckClaim()) == fe.ClaimChecked()
    (tmp_path / JOB).rename(tmp_path / "away")
    assert driver.orders.perform(fe.CheckClaim()) == fe.ClaimChecked()
    (tmp_path / "away").rename(tmp_path / JOB)
    resumed(tmp_path)
    assert isinstance(driver.orders.perform(fe.CheckClaim()), ev.DriverFenced)
