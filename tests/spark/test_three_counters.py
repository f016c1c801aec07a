"""The analogy of beads and rubber bands: three counters of different speeds go on from the totals at the last band."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.spark.kit import wait_until
from tidegate import FileSink
from tidegate.testing.crash_kit import read_output
from tidegate.testing.scripted_source import Crash, Pause, ScriptedSource


class Bead(NamedTuple):
    counter: str
    number: int


def beads(counter: str, at_band: int, in_all: int, *behind: Any) -> list[Any]:
    """What one of them counts: the band comes behind so many beads."""
    numbered = [Bead(counter, n) for n in range(1, in_all + 1)]
    return [
        *numbered[:at_band],
        Pause(f"band of {counter}"),
        numbered[at_band],
        *behind,
        *numbered[at_band + 1 :],
    ]


@pytest.mark.timeout(240)
@pytest.mark.spec("S0-24")
def test_three_counters_at_different_speeds_go_on_from_the_totals_at_the_last_band(
    make_env: Any, tmp_path: Path
):
    totals = {"slow": 2, "steady": 30, "fast": 500}
    source = ScriptedSource(
        [beads("slow", 2, 9), beads("steady", 30, 90, Crash()), beads("fast", 500, 900)],
        tmp_path / "beads",
        type=Bead,
    )
    env = make_env(
        parallelism=3,
        checkpoint_interval="100 ms",
        checkpoint_dir=str(tmp_path / "checkpoints"),
        restart_strategy="fixed-delay",
        restart_delay="10 ms",
    )
    counted = env.from_source(source, uid="beads").key_by("counter").count(uid="count")
    counted.sink_to(FileSink(tmp_path / "out"), uid="out")
    client = env.execute_async()
    try:
        bands = [f"band of {counter}" for counter in totals]
        wait_until(lambda: all(map(source.has_reached, bands)), "all three at the band", 90)
        done = client.checkpoints().triggered
        wait_until(lambda: client.checkpoints().completed > done, "a band", 60)
        # What is recorded is what each has counted, whatever its speed: the output up to here.
        wait_until(
            lambda: len(read_output(tmp_path / "out")) == sum(totals.values()), "the recorded totals", 60
        )
        for band in bands:
            source.release(band)
        client.result(120)
        assert client.overview().restarts == 1
    finally:
        if not client.status().is_terminal:
            client.cancel(30)
    found = sorted(line for _, line in read_output(tmp_path / "out"))
    ends = {"slow": 9, "steady": 90, "fast": 900}
    truth = [f'{{"counter":"{c}","count":{n}}}' for c, end in ends.items() for n in range(1, end + 1)]
    assert [line.replace(" ", "") for line in found] == sorted(truth)
