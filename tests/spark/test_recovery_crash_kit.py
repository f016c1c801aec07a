"""The crash kit does what it says: it finds a program that recovers wrongly, and passes one that does not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidegate import FileSink, MapFunction
from tidegate.core.errors import ProgramError
from tidegate.testing import RecoveryMismatch, check_recovery

pytestmark = pytest.mark.timeout(600)


class Reading(NamedTuple):
    sensor: str
    value: int


# A sensor is in one partition, so that its running sums do not depend on which partition is read first.
READINGS = [[Reading(f"s{p}-{n % 5}", n) for n in range(200)] for p in range(2)]


def sums(env: Any, readings: Any, out: Path) -> None:
    readings.key_by("sensor").sum("value", uid="sum").sink_to(FileSink(out / "sums"), uid="out")


class Numbered(MapFunction):
    """Keeps its count where no checkpoint can see it."""

    def __init__(self) -> None:
        self.count = 0

    def map(self, reading: Reading) -> Reading:
        self.count += 1
        return Reading(reading.sensor, self.count)


def numbered(env: Any, readings: Any, out: Path) -> None:
    readings.map(Numbered(), returns=Reading).sink_to(FileSink(out / "numbered"), uid="out")


def last_sums(directory: Path) -> dict[str, int]:
    """Only the last sum of each sensor."""
    found: dict[str, int] = {}
    for path in directory.rglob("part-*"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found[row["sensor"]] = max(found.get(row["sensor"], 0), row["sum_value"])
    return found


def test_a_program_with_its_state_in_checkpoints_gives_the_same_output_with_two_killed_processes(
    spark, tmp_path
):
    report = check_recovery(sums, READINGS, tmp_path, crashes=2, spark=spark, timeout_s=240, parallelism=2)
    assert report.restarts == 2
    assert report.checkpoints >= 2
    assert report.output.total() == 400


def test_a_program_that_keeps_its_state_to_itself_is_found_out(spark, tmp_path):
    with pytest.raises(RecoveryMismatch, match=r"with 1 crash .* Missing: \d+, such as .* Too much: \d+"):
        check_recovery(
            numbered, READINGS, tmp_path, crashes=1, how="raise", spark=spark, timeout_s=240, parallelism=1
        )


def test_what_is_compared_may_be_chosen(spark, tmp_path):
    report = check_recovery(
        sums,
        READINGS,
        tmp_path,
        crashes=1,
        how="_exit",
        read=last_sums,
        spark=spark,
        timeout_s=240,
        parallelism=2,
    )
    truth: Counter[str] = Counter()
    for reading in (r for partition in READINGS for r in partition):
        truth[reading.sensor] += reading.value
    assert report.output == truth


def test_more_crashes_than_records_are_refused(tmp_path):
    with pytest.raises(ProgramError, match="from 1 to 199 crashes"):
        check_recovery(sums, READINGS, tmp_path, crashes=200)
