"""The driver dies, with the JobManager in it: the same program run again goes on from the latest checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from tests.fault.kit import PROGRAM, stopped
from tests.fault.storm import judge
from tests.fault.tap import TapSource
from tests.spark.kit import wait_until
from tests.spark.standalone import Cluster, Driver, python_without_tidegate
from tidegate.core.ids import CHECKPOINTS_PER_DRIVER

pytest_plugins = ["tests.plugins.s3_endpoint"]


def stored_ids(directory: Path) -> set[int]:
    """The checkpoints that have a manifest below a checkpoint directory."""
    return {int(path.parent.name[4:]) for path in directory.glob("*/chk-*/_metadata")}


@pytest.mark.spec("S1-7", "S0-1", "S0-32")
@pytest.mark.timeout(900)
def test_after_two_sigkills_of_the_driver_the_same_program_resumes_and_is_exact(tmp_path):
    storage = tmp_path / "home"
    storage.mkdir()
    before = None
    for i in range(3):
        directory = tmp_path / f"driver-{i}"
        directory.mkdir()
        arguments = ["resumed", "local[2]", str(storage), "latest-or-new"]
        with Driver(directory, *arguments, program=PROGRAM) as driver:
            said = driver.expect("running", 240)
            if before is None:
                assert said["restored"] is None, "there was nothing to go on from"
            else:
                assert said["restored"] > (before["restored"] or 0)
                assert said["attempt"] > before["attempt"], (
                    "so that nothing of a dead driver's slots is taken for ours"
                )
                assert said["job_id"] == before["job_id"]
            before = said
            if i < 2:
                driver.kill()
            else:
                driver.tell("close")
                end = driver.expect("finished", 240)["end"]
                assert driver.wait(60) == 0, driver.errors()
    assert judge(storage, 2, end) == 2 * end


@pytest.mark.timeout(900)
def test_a_stopped_driver_that_wakes_after_another_resumed_the_job_ends_and_takes_nothing_from_it(tmp_path):
    storage, first, second = (tmp_path / name for name in ("home", "first", "second"))
    for directory in (storage, first, second):
        directory.mkdir()
    arguments = ["resumed", "local[2]", str(storage), "latest-or-new"]
    with (
        Driver(first, *arguments, program=PROGRAM) as asleep,
        Driver(second, "idle", program=PROGRAM) as other,
    ):
        before = asleep.expect("running", 240)
        asleep.tell("wait")
        with stopped(asleep.process.pid):
            other.tell(" ".join(arguments[1:]))
            after = other.expect("running", 240)
            assert after["job_id"] == before["job_id"]
        error = asleep.expect("fenced", 120)["error"]
        assert "another driver has taken the job over" in error
        assert f"claims/a{after['attempt']}-" in error
        assert asleep.wait(60) == 0, asleep.errors()
        other.tell("close")
        end = other.expect("finished", 240)["end"]
        assert other.wait(60) == 0, other.errors()
    assert judge(storage, 2, end) == 2 * end


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_driver_that_stops_between_its_look_at_the_claims_and_its_manifest_writes_nothing_that_counts(
    tmp_path,
):
    storage, first, second = (tmp_path / name for name in ("home", "first", "second"))
    for directory in (storage, first, second):
        directory.mkdir()
    arguments = ["resumed", "local[2]", str(storage), "latest-or-new"]
    with (
        Driver(first, *arguments, program=PROGRAM) as asleep,
        Driver(second, "idle", program=PROGRAM) as other,
    ):
        before = asleep.expect("running", 240)
        asleep.tell("stop")
        pid = asleep.process.pid
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "a stopped driver", 120)
        completed = {id for id in stored_ids(storage / "chk") if id < CHECKPOINTS_PER_DRIVER}
        other.tell(" ".join(arguments[1:]))
        after = other.expect("running", 240)
        assert (after["job_id"], after["restored"]) == (before["job_id"], max(completed))
        os.kill(pid, signal.SIGCONT)
        assert "another driver has taken the job over" in asleep.expect("fenced", 120)["error"]
        assert asleep.wait(60) == 0, asleep.errors()
        other.tell("close")
        end = other.expect("finished", 240)["end"]
        assert other.wait(60) == 0, other.errors()
    assert judge(storage, 2, end) == 2 * end


@pytest.mark.timeout(900)
def test_two_drivers_that_are_started_from_nothing_at_once_are_one_job_and_write_one_output(tmp_path):
    home, first, second = (tmp_path / name for name in ("home", "first", "second"))
    for directory in (home, home / "chk", first, second):
        directory.mkdir()
    with (
        Driver(first, "beside", "local[2]", str(home), program=PROGRAM) as one,
        Driver(second, "beside", "local[2]", str(home), program=PROGRAM) as two,
    ):
        for driver in (one, two):
            driver.expect("ready", 240)
        for driver in (one, two):
            driver.tell("go")
        said = [(driver.expect("started", 240)["attempt"], driver) for driver in (one, two)]
        (low, loser), (high, winner) = sorted(said, key=lambda pair: pair[0])
        assert low < high
        assert "another driver has taken the job over" in loser.expect("fenced", 240)["error"]
        end = TapSource(home / "tap", 2).close()
        winner.expect("finished", 240)
        for driver in (one, two):
            assert driver.wait(60) == 0, driver.errors()
    assert judge(home, 2, end) == 2 * end


@pytest.mark.spec("S2-8")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_checkpoint_is_restored_where_there_is_nothing_of_the_process_that_wrote_it(
    tmp_path, s3_bucket, backend
):
    """Checkpoints are objects behind an endpoint: another driver, address and directory, and its first files gone."""
    home = tmp_path / "home"  # the tap and the output, which are the outside world
    home.mkdir()
    arguments = ["resumed", "local[2]", str(home), "latest-or-new", s3_bucket, backend]
    hosts = {"first": "127.0.0.1", "second": "127.0.0.2"}
    said = {}
    for name, address in hosts.items():
        directory = tmp_path / name
        directory.mkdir()
        with Driver(directory, *arguments, program=PROGRAM, env={"SPARK_LOCAL_IP": address}) as driver:
            said[name] = driver.expect("running", 240)
            if name == "first":
                used = list((directory / "tmp").glob("tidegate-state-*"))
                assert bool(used) == (backend == "rocksdb"), "the state had working files of its own"
                driver.kill()
            else:
                driver.tell("close")
                end = driver.expect("finished", 240)["end"]
                assert driver.wait(60) == 0, driver.errors()
        if name == "first":
            shutil.rmtree(directory)
    assert said["second"]["job_id"] == said["first"]["job_id"]
    assert said["second"]["restored"] > 0
    assert os.listdir(home / "ticks"), "there was output"
    assert judge(home, 2, end) == 2 * end


@pytest.mark.spec("S2-8")
@pytest.mark.timeout(900)
def test_a_job_whose_machine_is_lost_goes_on_from_its_checkpoint_on_another_one(tmp_path, s3_bucket):
    """A worker of Spark with an address and directories of its own, all gone before there is another one."""
    home, driving, first, second = (tmp_path / name for name in ("home", "driver", "first", "second"))
    for directory in (home, driving, tmp_path / "cluster"):
        directory.mkdir()
    settings = {"CLUSTER_PYTHON": str(python_without_tidegate(tmp_path))}
    arguments = ["moved", str(home), s3_bucket, "rocksdb"]
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.add_worker(machine=first, address="127.0.0.2")
        cluster.await_workers()
        arguments.insert(1, cluster.url)
        with Driver(driving, *arguments, env=settings, program=PROGRAM) as driver:
            (executor,) = driver.expect("running", 120)["executors"]
            assert list(first.glob("worker-0/app-*/*")), "it runs on that machine"
            assert list(first.rglob("tidegate-state-*")), "and so are the files of its state"
            cluster.kill_worker(0)
            shutil.rmtree(first)
            cluster.add_worker(machine=second, address="127.0.0.3")
            driver.tell("the machine is gone")
            said = driver.expect("moved", 240)
            (other,) = said["executors"]
            assert other != executor
            assert list(second.glob("worker-1/app-*/*")), "it runs on the other machine"
            assert not first.exists(), "with nothing of the first"
            assert said["restored"] > 0
            driver.tell("close")
            end = driver.expect("finished", 240)["end"]
            assert driver.wait(60) == 0, driver.errors()
    assert judge(home, 2, end) == 2 * end
