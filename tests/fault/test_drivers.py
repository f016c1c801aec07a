"""The driver dies, with the JobManager in it: the same program run again goes on from the latest checkpoint."""

from __future__ import annotations

import pytest

from tests.fault.storm import judge
from tests.fault.test_storms import PROGRAM
from tests.spark.standalone import Driver


@pytest.mark.spec("S1-7", "S0-1", "S0-32")
@pytest.mark.timeout(900)
def test_after_two_sigkills_of_the_driver_the_same_program_resumes_and_is_exact(tmp_path):
    storage = tmp_path / "home"
    storage.mkdir()
    before = None
    for i in range(3):
        directory = tmp_path / f"driver-{i}"
        directory.mkdir()
        arguments = ["resumed", "local[2]", str(storage), "latest"]
        with Driver(directory, *arguments, program=PROGRAM) as driver:
            said = driver.expect("running", 240)
            if before is None:
                assert said["restored"] == 0, "there was nothing to go on from"
            else:
                assert said["restored"] > before["restored"]
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
