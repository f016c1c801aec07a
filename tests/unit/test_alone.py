"""Tests marked `alone`: nothing else runs meanwhile, in none of the run's processes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.plugins.alone import Room

ROOT = Path(__file__).parents[2]


class Guest:
    """A thread that goes into the room, says so, and stays until it is told to leave."""

    def __init__(self, room: Room, *, alone: bool) -> None:
        self.is_inside, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(room, alone), daemon=True)
        self._thread.start()

    def _stay(self, room: Room, alone: bool) -> None:
        with room.entered(alone=alone):
            self.is_inside.set()
            self._leave.wait(30)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(30)


def test_many_are_in_the_room_together(tmp_path: Path):
    room = Room(tmp_path)
    with room.entered(alone=False), room.entered(alone=False):
        pass


def test_one_alone_waits_for_those_inside_and_those_who_come_later_wait_for_it(tmp_path: Path):
    room = Room(tmp_path)
    with room.entered(alone=False):
        alone = Guest(room, alone=True)
        assert not alone.is_inside.wait(0.1), "somebody is inside"
        later = Guest(room, alone=False)
        assert not later.is_inside.wait(0.1), "one waits to be alone"
    assert alone.is_inside.wait(30)
    assert not later.is_inside.wait(0.1)
    alone.leave()
    assert later.is_inside.wait(30)
    later.leave()


def test_in_two_processes_a_marked_test_overlaps_no_other(pytester: pytest.Pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    source = """
        import json, time, pytest

        @pytest.fixture(autouse=True)
        def noted(request):
            begun = time.monotonic()
            yield
            line = json.dumps([request.node.name, begun, time.monotonic()])
            with open("{notes}", "a") as file:
                file.write(line + "\\n")

        @pytest.mark.parametrize("n", range(5))
        def test_with_others(n):
            time.sleep(0.02)

        @pytest.mark.alone
        def test_alone():
            time.sleep(0.1)
    """
    notes = pytester.path / "notes"
    pytester.makepyfile(
        test_one=source.replace("{notes}", str(notes)), test_two=source.replace("{notes}", str(notes))
    )
    result = pytester.runpytest_subprocess("-p", "tests.plugins.alone", "-n", "2", "--dist", "loadfile")
    assert result.ret == 0
    result.assert_outcomes(passed=12)
    spans = [json.loads(line) for line in notes.read_text("utf-8").splitlines()]
    alone = [span for span in spans if span[0] == "test_alone"]
    assert len(alone) == 2
    for one in alone:
        meanwhile = [s[0] for s in spans if s is not one and s[1] < one[2] and one[1] < s[2]]
        assert meanwhile == []
