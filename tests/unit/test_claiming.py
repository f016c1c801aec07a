"""Two drivers of one job: one stops between any two steps on the storage, another takes over, the first wakes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import pytest

from tests.unit.job_master_kit import job_graph
from tidegate.core.failpoints import injected
from tidegate.core.ids import AttemptNumber
from tidegate.core.options import Options
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.completed_checkpoint import AcknowledgedCheckpoint
from tidegate.jobmanager.checkpoint.storage_orders import StorageOrders
from tidegate.jobmanager.job_claim import claim_job, next_driver
from tidegate.jobmanager.resume_point import Beginning, beginning
from tidegate.snapshot.handles import InFlightHandle, SubtaskCheckpointMetrics, SubtaskSnapshot
from tidegate.storage.checkpoint_search import find_at, find_latest
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.storage import CorruptFileError, FencedError, StorageError

pytest_plugins = ["tests.plugins.s3_endpoint"]

GRAPH = job_graph(1)
STEPS = ("storage.write", "storage.read", "storage.list", "storage.delete", "checkpoint.after_manifest")
NONE: frozenset[str] = frozenset()


def begin(root: str, resume: str = "latest-or-new") -> Beginning:
    if "://" not in root:
        os.makedirs(root, exist_ok=True)
    options = Options().with_keywords(
        checkpoint_interval="1 s", checkpoint_dir=root, resume=resume, checkpoint_fsync=False
    )
    return beginning(options.checked(), GRAPH.name, GRAPH)


class Driver:
    """A driver that begins with what the storage has; `acted_on` is the newest checkpoint that its sinks rely on."""

    def __init__(self, root: str) -> None:
        made = begin(root)
        assert isinstance(made.storage, FilesystemStorage)
        assert made.claim is not None
        self.storage, self.attempt, self.next_id = made.storage, made.first_attempt, made.first_checkpoint_id
        self.acted_on = made.found[-1].checkpoint_id if made.found else 0
        self.orders = StorageOrders(made.storage, made.job_id, GRAPH, claim=made.claim)
        self.is_fenced = False

    def complete(self) -> object:
        """Its slots write and acknowledge, then the manifest is ordered; sinks commit only what is told complete."""
        id, self.next_id = self.next_id, self.next_id + 1
        file = self.storage.writer(id, self.attempt, "id-count", 0).write("state", b"state", "exclusive")
        parts = (SubtaskSnapshot(0, 0, (), None), SubtaskSnapshot(1, 0, (), InFlightHandle(file, 1)))
        metrics = SubtaskCheckpointMetrics()
        attempt = AttemptNumber(self.attempt)
        value = AcknowledgedCheckpoint(id, attempt, 1, 1, parts, (metrics, metrics), {}, False)
        answer = self.perform(ce.WriteManifest(value))
        if isinstance(answer, ce.ManifestWritten):
            self.acted_on = id
        return answer

    def perform(self, order: ce.StorageAction) -> object:
        answer = self.orders.perform(order)
        self.is_fenced = isinstance(answer, ev.DriverFenced)
        return answer


@dataclass
class Stop:
    """Calls `meanwhile` at one step of what runs inside, and counts the steps."""

    at: int
    meanwhile: Callable[[], None]
    steps: int = 0
    is_inside: bool = False

    def __call__(self) -> None:
        if self.is_inside:
            return
        self.steps += 1
        if self.steps == self.at:
            self.is_inside = True
            self.meanwhile()
            self.is_inside = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in STEPS:
                stack.enter_context(injected(name, self))
            yield


def complete(driver: Driver) -> None:
    driver.complete()


def discard_an_aborted_one(driver: Driver) -> None:
    """It was never complete: its files go."""
    driver.storage.writer(driver.next_id, driver.attempt, "id-count", 0).write("state", b"state", "exclusive")
    driver.perform(ce.DiscardCheckpoint(driver.next_id, NONE))
    driver.next_id += 1


def complete_and_discard_the_oldest(driver: Driver) -> None:
    oldest = driver.storage.completed()[0]
    if isinstance(driver.complete(), ce.ManifestWritten):
        driver.perform(ce.DiscardCheckpoint(oldest, NONE))


def sweep(driver: Driver) -> None:
    keep = frozenset(f"chk-{i}/a{driver.attempt}-id~2dcount-0-state" for i in driver.storage.completed())
    driver.perform(ce.Sweep(keep, driver.next_id))


DOES = [complete, discard_an_aborted_one, complete_and_discard_the_oldest, sweep]


def newest(root: str) -> int:
    """The newest checkpoint that a later driver would go on from, whole."""
    found = find_latest(root, GRAPH.name).checkpoint
    return 0 if found is None else found.manifest.checkpoint_id


def wakes_after_a_takeover(root: str, at: int, does: Callable[[Driver], None], others_do: bool) -> bool:
    """Stop a driver at one step of `does` while another takes over; False if there are fewer steps."""
    asleep = Driver(root)
    asleep.complete()
    asleep.complete()
    other: list[Driver] = []

    def take_over() -> None:
        other.append(Driver(root))
        assert other[0].acted_on >= asleep.acted_on, "what sinks have committed is never taken back"
        if others_do:
            assert isinstance(other[0].complete(), ce.ManifestWritten)
            assert isinstance(other[0].complete(), ce.ManifestWritten)

    stop = Stop(at, take_over)
    with stop.listening():
        does(asleep)
    if not other:
        return False
    assert newest(root) == other[0].acted_on, "what the first one wrote too late counts for nobody"
    assert isinstance(asleep.complete(), ev.DriverFenced), "at the latest with its next step it learns it"
    assert isinstance(other[0].complete(), ce.ManifestWritten), "which disturbs the other in nothing"
    assert newest(root) == other[0].acted_on
    other[0].perform(ce.Sweep(NONE, other[0].next_id))
    assert other[0].storage.completed() == other[0].storage.with_manifest(), "void manifests are swept"
    return True


@pytest.mark.parametrize("others_do", [True, False], ids=["goes on", "ends before its first checkpoint"])
@pytest.mark.parametrize("does", DOES)
def test_a_driver_that_wakes_between_any_two_steps_after_another_took_over_changes_nothing(
    tmp_path, does, others_do
):
    at = 1
    while wakes_after_a_takeover(str(tmp_path / str(at)), at, does, others_do):
        at += 1
    assert at > 2, "it was stopped at several steps"


def test_on_an_object_store_too_a_driver_that_wakes_after_another_took_over_changes_nothing(s3_bucket):
    at = 1
    place, query = s3_bucket.split("?")
    while wakes_after_a_takeover(f"{place}/{at}?{query}", at, complete, others_do=True):
        at += 1
    assert at > 3, "it was stopped at several steps"


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_of_two_drivers_that_begin_at_once_at_most_one_goes_on_and_from_what_the_other_acted_on(
    tmp_path, has_checkpoint
):
    """One is stopped at any step of its beginning; the other begins meanwhile, and perhaps completes something."""
    at, stopped = 1, True
    while stopped:
        for completes in (True, False):
            root = str(tmp_path / f"{at}-{completes}")
            if has_checkpoint:
                Driver(root).complete()
            drivers: list[Driver] = []

            def begin_too(
                root: str = root, completes: bool = completes, drivers: list[Driver] = drivers
            ) -> None:
                drivers.append(Driver(root))
                if completes:
                    assert isinstance(drivers[0].complete(), ce.ManifestWritten)

            stop = Stop(at, begin_too)
            with stop.listening(), contextlib.suppress(FencedError):
                drivers.append(Driver(root))
            stopped = stop.steps >= at
            if not stopped:
                break
            assert len({d.storage.job_id for d in drivers}) == 1, "they are drivers of one job"
            assert len({d.attempt for d in drivers}) == len(drivers)
            answers = [driver.complete() for driver in drivers]
            alive = [d for d, a in zip(drivers, answers, strict=True) if isinstance(a, ce.ManifestWritten)]
            assert len(alive) == 1
            assert newest(root) == alive[0].acted_on
            if completes and drivers[0] is not alive[0]:
                assert drivers[0].acted_on in alive[0].storage.completed(), "the one goes on from the other's"
        at += 1
    assert at > 5, "it was stopped at several steps"


@pytest.mark.parametrize("store", ["local", "s3"])
def test_drivers_that_begin_from_nothing_on_many_threads_are_one_job_and_one_goes_on(
    request, tmp_path, store
):
    root, together = str(tmp_path) if store == "local" else request.getfixturevalue("s3_bucket"), Barrier(6)

    def started(_: int) -> Driver | None:
        together.wait()
        try:
            return Driver(root)
        except FencedError:
            return None

    with ThreadPoolExecutor(6) as pool:
        drivers = [d for d in pool.map(started, range(6)) if d is not None]
    assert len({d.storage.job_id for d in drivers}) == 1
    assert len({d.attempt for d in drivers}) == len(drivers)
    assert sum(isinstance(d.complete(), ce.ManifestWritten) for d in drivers) == 1


def test_drivers_that_collide_take_different_numbers_next(tmp_path):
    storage = FilesystemStorage(str(tmp_path), "9c02")
    others = []

    def collide() -> None:
        others.append(claim_job(FilesystemStorage(str(tmp_path), "9c02"), "pv"))

    stop = Stop(2, collide)  # its claim is written, and it has not looked yet
    with stop.listening():
        mine = claim_job(storage, "pv")
    assert 0 < others[0].first_attempt < mine.first_attempt, "the number that both wrote is nobody's"


def test_claims_that_a_killed_driver_had_not_removed_yet_are_removed_by_the_next(tmp_path):
    def killed() -> None:
        raise KeyboardInterrupt

    at, storage = 1, FilesystemStorage(str(tmp_path), "9c02")
    claim_job(storage, "pv")
    while True:
        stop, attempt = Stop(at, killed), next_driver(storage.last_used()[1])
        with contextlib.suppress(KeyboardInterrupt), injected("storage.delete", stop):
            claim_job(storage, "pv", attempt)
        claim_job(storage, "pv", next_driver(attempt))
        assert len(list(tmp_path.rglob("claims/*"))) == 2, "a claim and its inheritance"
        if stop.steps < at:
            break
        at += 1
    assert at > 2


def test_a_job_of_another_name_or_in_another_directory_has_another_id(tmp_path):
    ids = {Driver(str(tmp_path / name)).storage.job_id for name in "ab"}
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert Driver(str(tmp_path / "link")).storage.job_id in ids
    assert len(ids) == 2


def test_the_next_run_of_a_finished_job_has_attempts_and_checkpoints_of_its_own(tmp_path):
    first = Driver(str(tmp_path))
    first.complete()
    first.perform(ce.DiscardCheckpoint(1, NONE))
    first.perform(ce.ReleaseStorage())
    again = Driver(str(tmp_path))
    assert (again.storage.job_id, again.acted_on) == (first.storage.job_id, 0)
    assert again.attempt > first.attempt
    assert again.next_id > first.next_id


def test_a_manifest_that_appears_when_the_job_has_ended_in_another_driver_does_not_count(s3_bucket):
    asleep = Driver(s3_bucket)
    asleep.complete()

    def take_over_and_finish() -> None:
        other = Driver(s3_bucket)
        other.complete()
        for id in other.storage.completed():
            other.perform(ce.DiscardCheckpoint(id, NONE))
        other.perform(ce.ReleaseStorage())

    stop = Stop(3, take_over_and_finish)  # state, list, manifest
    with stop.listening():
        assert isinstance(asleep.complete(), ev.DriverFenced)
    assert asleep.storage.with_manifest() == [2]
    assert newest(s3_bucket) == 0
    found = find_at(f"{s3_bucket.split('?')[0]}/{asleep.storage.job_id}/chk-2?{s3_bucket.split('?')[1]}")
    assert found.checkpoint is None
    assert "chk-2/_metadata does not count: its driver wrote it after another one had taken" in found.report()


def test_a_damaged_inheritance_is_named_and_nothing_is_guessed(tmp_path):
    driver = Driver(str(tmp_path))
    driver.complete()
    [path] = Path(driver.storage.place.path).glob("claims/*.json")
    data = path.read_bytes()
    for damaged in (data.replace(b"[]", b"[7]"), data[:-3], b"", data.replace(b'n":1', b'n":9')):
        path.write_bytes(damaged)
        with pytest.raises(
            CorruptFileError, match=r"claims/a0-\w+\.json is damaged: .* which checkpoints of the job"
        ):
            begin(str(tmp_path), "latest")
    options = Options().with_keywords(
        checkpoint_interval="1 s", checkpoint_dir=str(tmp_path), resume="latest-or-new"
    )
    assert not beginning(options.checked(), "another").is_resumed, "a job of another name does not mind"
    path.write_bytes(data)
    assert begin(str(tmp_path), "latest").is_resumed


def test_the_inheritance_is_written_as_documented(tmp_path):
    driver = Driver(str(tmp_path))
    driver.complete()
    Driver(str(tmp_path))
    [path] = Path(driver.storage.place.path).glob("claims/*.json")
    assert path.name.startswith("a1000000-")
    assert path.read_bytes() == (
        b'{"format":"tidegate-inheritance","version":1,"checksum":"sha256-128:75b26527997f464da5f4e76ba938276f",'
        b'"inheritance":{"job_name":"pv","driver":1,"checkpoints":[1]}}'
    )


def test_storage_that_fails_at_any_step_of_a_beginning_is_no_new_job(tmp_path):
    Driver(str(tmp_path)).complete()

    def fail() -> None:
        raise StorageError("cannot be reached: injected")

    at = 1
    while True:
        stop = Stop(at, fail)
        with stop.listening(), contextlib.suppress(StorageError):
            assert begin(str(tmp_path)).is_resumed
        if stop.steps < at:
            break
        at += 1
    assert at > 5, "it failed at several steps"
    assert begin(str(tmp_path)).is_resumed, "and the next one goes on"
