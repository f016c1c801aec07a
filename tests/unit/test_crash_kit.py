"""The crash kit on the in-process runtime: any number of crashes, every way to crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidegate import FileSink
from tidegate.testing import check_recovery


class Reading(NamedTuple):
    sensor: str
    value: int


READINGS = [Reading(f"s{n % 3}", n) for n in range(60)]


def sums(env: Any, readings: Any, out: Path) -> None:
    readings.key_by("sensor").sum("value", uid="sum").sink_to(FileSink(out / "sums"), uid="out")


@pytest.mark.parametrize("how", ["kill", "raise"])
@pytest.mark.parametrize("crashes", [1, 3, 4, 12])
def test_a_program_survives_as_many_crashes_as_are_asked_for(tmp_path: Path, crashes: int, how: Any) -> None:
    report = check_recovery(sums, [READINGS], tmp_path, crashes=crashes, how=how, runtime="in-process")
    assert (report.crashes, report.restarts) == (crashes, crashes)
    assert report.output.total() == len(READINGS)


@pytest.mark.parametrize("strategy", ["exponential-delay", "failure-rate", "fixed-delay"])
def test_it_does_so_with_every_strategy(tmp_path: Path, strategy: str) -> None:
    report = check_recovery(
        sums, [READINGS], tmp_path, crashes=5, runtime="in-process", restart_strategy=strategy
    )
    assert report.restarts == 5
