"""Kill storms on real processes: whatever dies, the output is every record once, and never more than a checkpoint's.

On a quiet machine of two cores a recovery takes about two seconds; the limits are for a busy one.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.fault.kit import PROGRAM
from tests.fault.storm import Outcome, Storm
from tests.plugins.seeds import seed_base
from tests.spark.standalone import Driver, python_without_tidegate, spark_home_in

logger = logging.getLogger(__name__)

MIXED = {"one": 4, "all": 4, "_exit": 1, "exit": 1, "raise": 1, "in restore": 2, "zombie": 1}


def check(outcome: Outcome, kills: int) -> None:
    assert outcome.processes_killed >= kills
    assert outcome.recoveries >= len(outcome.faults)
    assert outcome.polls_per_s >= 20, outcome.line()


@pytest.mark.spec("S0-31", "S0-4")
@pytest.mark.timeout(1800)
def test_twenty_kills_of_python_workers_lose_and_repeat_nothing(spark, tmp_path):
    check(Storm(spark, tmp_path, seed=seed_base()).run(20, MIXED, deadline_s=1500), 20)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (2, {}),
        (3, {"state_backend": "rocksdb"}),
        (4, {"checkpoint_unaligned": True}),
        (5, {"checkpoint_interval": "50 ms", "checkpoint_max_concurrent": 3}),
    ],
)
def test_a_hundred_kills_of_python_workers(spark, tmp_path, seed, options):
    check(Storm(spark, tmp_path, seed=seed, **options).run(100, MIXED, deadline_s=7000), 100)


def storm_in_a_driver(tmp_path: Path, kills: int, seed: int, deadline_s: float) -> dict[str, Any]:
    """A storm on two executors of two slots, in a process of its own."""
    directory = tmp_path / "driver"
    directory.mkdir()
    settings = {
        "CLUSTER_PYTHON": str(python_without_tidegate(tmp_path)),
        "SPARK_HOME": str(spark_home_in(directory)),
    }
    arguments = ["storm", "local-cluster[2,2,1024]", str(tmp_path / "storm"), str(kills), str(seed)]
    with Driver(directory, *arguments, env=settings, program=PROGRAM) as driver:
        said = driver.expect("survived", deadline_s)
        assert driver.wait() == 0, driver.errors()
    logger.warning("%s", said["line"])
    return said


@pytest.mark.timeout(1800)
def test_ten_kills_of_workers_and_executors_lose_and_repeat_nothing(tmp_path):
    said = storm_in_a_driver(tmp_path, 10, seed=seed_base(), deadline_s=1500)
    assert said["kills"] >= 10
    assert said["polls_per_s"] >= 20
    assert said["faults"]["executor"] >= 1


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_hundred_kills_of_workers_and_executors(tmp_path):
    assert storm_in_a_driver(tmp_path, 100, seed=2, deadline_s=7000)["kills"] >= 100
