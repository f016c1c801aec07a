"""The same program on every kind of Spark: local, local-cluster, a real standalone cluster, Spark Connect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.driver import pairs_summed
from tests.spark.kit import wait_until
from tests.spark.standalone import Cluster, Driver, python_without_tidegate, spark_home_in

pytestmark = pytest.mark.timeout(600)


def expected() -> list[list[int]]:
    sums: Counter[int] = Counter()
    for n in range(1, 10_001):
        if n % 3 == 0:
            sums[n % 7] += n
    return [list(pair) for pair in sorted(sums.items())]


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of the executors: without tidegate, so that the package must come with the job."""
    return str(python_without_tidegate(tmp_path_factory.mktemp("bare")))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        made.add_worker()
        made.add_worker()
        made.await_workers()
        yield made


def directory_for(tmp_path: Path) -> Path:
    made = tmp_path / "driver"
    made.mkdir()
    return made


def left_behind(directory: Path) -> list[str]:
    return sorted(p.name for p in (directory / "tmp").glob("*tidegate*"))


def executors(slots: list[dict[str, Any]]) -> Counter[str]:
    return Counter(s["executor"] for s in slots)


def check_answers(driver: Driver) -> list[dict[str, Any]]:
    """What every cluster must say; returns where the job of five operators ran."""
    assert driver.expect("answer")["rows"] == expected()
    slots: list[dict[str, Any]] = driver.expect("slots")["slots"]
    assert driver.expect("answer")["rows"] == expected()
    assert driver.wait() == 0, driver.errors()
    assert left_behind(driver.directory) == []
    return slots


@pytest.mark.spec("S3-1")
def test_a_program_runs_on_a_local_master(make_env):
    assert [list(pair) for pair in pairs_summed(make_env(parallelism=4))] == expected()
    assert [list(pair) for pair in pairs_summed(make_env(parallelism=1))] == expected()


@pytest.mark.spec("S3-1", "S3-8")
def test_the_same_program_runs_on_local_cluster_with_two_slots_in_each_of_two_executors(
    tmp_path, bare_python
):
    directory = directory_for(tmp_path)
    settings = {"CLUSTER_PYTHON": bare_python, "SPARK_HOME": str(spark_home_in(directory))}
    with Driver(directory, "answer", "local-cluster[2,2,1024]", env=settings) as driver:
        slots = check_answers(driver)
    assert sorted(executors(slots).values()) == [2, 2]
    assert len({s["pid"] for s in slots}) == 4


@pytest.mark.spec("S3-1", "S3-8")
def test_the_same_program_runs_on_a_standalone_cluster_that_has_no_tidegate_installed(
    tmp_path, cluster, bare_python
):
    directory = directory_for(tmp_path)
    with Driver(directory, "answer", cluster.url, env={"CLUSTER_PYTHON": bare_python}) as driver:
        slots = check_answers(driver)
    assert sorted(executors(slots).values()) == [2, 2]


@pytest.mark.spec("S3-10")
def test_after_the_loss_of_a_worker_a_job_waits_until_another_one_brings_the_slots(
    tmp_path, cluster, bare_python
):
    cluster.add_worker()
    cluster.add_worker()
    cluster.await_workers()
    directory = directory_for(tmp_path)
    with Driver(directory, "lose_a_worker", cluster.url, env={"CLUSTER_PYTHON": bare_python}) as driver:
        running = driver.expect("running")
        assert running["available"] == 8
        assert sorted(executors(running["slots"]).values()) == [2, 2, 2, 2]
        cluster.kill_worker(0)
        failed = driver.expect("failed", deadline_s=30)["error"]
        assert "the process of slot" in failed
        assert "ended without a word while running" in failed
        waiting = driver.expect("waiting")
        assert "needs 8 slots but Spark offers 6" in waiting["text"]
        assert waiting["after_s"] < 5
        driver.tell("are you?")
        assert driver.expect("still waiting")["status"] == "WAITING_FOR_SLOTS"
        cluster.add_worker()
        driver.tell("more")
        finished = driver.expect("finished")
        assert finished["subtasks"] == 8
        assert finished["records"] == 1000
        assert sorted(executors(finished["slots"]).values()) == [2, 2, 2, 2]
        assert driver.wait() == 0


def test_a_job_runs_through_spark_connect_to_its_end_to_its_cancellation_and_to_its_failure(
    tmp_path, bare_python
):
    directory = directory_for(tmp_path)
    settings = {"PYSPARK_PYTHON": bare_python}
    with Driver(directory, "connect", "connect:local[4]", env=settings) as driver:
        assert driver.expect("answer")["rows"] == expected()
        alive = driver.expect("long-lived")
        assert alive["status"] == "RUNNING"
        assert alive["records"] >= 100
        assert driver.expect("cancelled")["after_s"] < 5
        stuck = driver.expect("cancelled")
        assert stuck["after_s"] < 7
        wait_until(
            lambda: not any(map(psutil.pid_exists, stuck["pids"])), "processes stuck in user code are gone", 5
        )
        assert "ZeroDivisionError" in driver.expect("failed")["error"]
        assert driver.expect("dataframe")["total"] == 9900
        waiting = driver.expect("waiting")
        assert "needs 6 slots and 0 have started so far" in waiting["text"]
        assert waiting["after_s"] < 6
        assert driver.expect("cancelled")["after_s"] < 10
        assert driver.expect("answer")["rows"] == expected()
        assert driver.wait() == 0, driver.errors()
    assert left_behind(directory) == []


@pytest.mark.spec("S3-8")
def test_four_slots_are_needed_and_three_are_refused_with_both_numbers(tmp_path):
    with Driver(directory_for(tmp_path), "wait_for_slots", "local[3]") as driver:
        waiting = driver.expect("waiting")
        assert "needs 4 slots but Spark offers 3" in waiting["text"]
        assert waiting["after_s"] < 5
        assert waiting["status"] == "WAITING_FOR_SLOTS"
        failed = driver.expect("failed")
        assert "it needs 4 slots but Spark offers 3 after 6 s (slots.wait_timeout)" in failed["error"]
        assert "Add executors, or lower the parallelism" in failed["error"]
        assert 6 <= failed["after_s"] < 12
        driver.expect("with three")
        assert driver.wait() == 0


def test_when_the_driver_is_killed_its_workers_go_too_even_those_stuck_in_user_code(tmp_path):
    with Driver(directory_for(tmp_path), "run_until_killed", "local[4]") as driver:
        pids = driver.expect("running")["pids"]
        children = psutil.Process(driver.process.pid).children(recursive=True)
        assert all(map(psutil.pid_exists, pids))
        driver.kill()
        wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the slots' processes are gone", 8)
        wait_until(lambda: not any(c.is_running() for c in children), "Spark is gone", 20)
