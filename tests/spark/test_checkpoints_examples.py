"""The worked examples of the specification, with exactly its numbers, on a real Spark; read from the stored files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fault.kit import (
    HoldingSink,
    WaitingFor,
    kill,
    max_parallelism_for,
    pids,
    running,
    stopped,
    until,
    until_completed,
    until_restarted,
)
from tests.fault.stored import Stored, completed, number
from tests.spark.checkpoints import QUICK
from tests.spark.trace import Trace, Traced
from tidegate import CoFlatMapFunction
from tidegate.api.state import OperatorListState
from tidegate.testing.scripted_source import Pause, ScriptedSource

pytestmark = pytest.mark.timeout(600)


class Word(NamedTuple):
    key: str
    amount: int


class Click(NamedTuple):
    app: str
    views: int


def stored_at(root: Path, positions: dict[int, int]) -> Stored | None:
    """The newest completed checkpoint whose source `source` is at these positions."""
    for found in reversed(completed(root)):
        if found.positions("source") == positions:
            return found
    return None


def has_acknowledged(client: Any, checkpoint_id: int, subtask: tuple[int, int]) -> bool:
    """Whether a subtask (vertex, index) has met the barrier of this checkpoint and stored its part."""
    return any(
        (s.vertex, s.subtask) == subtask
        for c in client.checkpoints().history
        if c.checkpoint_id == checkpoint_id
        for s in c.subtasks
    )


def totals(stored: Stored, uid: str) -> dict[str, int]:
    """Sums and counts by key, out of the stored files."""
    return {
        key: value["sum"] if "sum" in value else number(value) for key, value in stored.keyed(uid).items()
    }


def last(pairs: list[Any]) -> dict[str, int]:
    """The highest running total of each key."""
    found: dict[str, int] = {}
    for key, total in pairs:
        found[key] = max(total, found.get(key, 0))
    return found


@pytest.mark.spec("S0-25", "S0-26", "S0-1", "S0-5", "S0-27", "S0-32", "S2-6")
def test_map_with_state_stores_position_3_and_b5_c1_and_replays_exactly_the_three_records_behind(
    make_env, tmp_path
):
    before = [Word("b", 2), Word("b", 3), Word("c", 1)]
    after = [Word("a", 2), Word("a", 2), Word("c", 2)]
    source = ScriptedSource([[*before, Pause("barrier"), *after, Pause("crash")]], tmp_path / "script")
    sink = HoldingSink(tmp_path / "out")
    env = make_env(
        parallelism=3,
        max_parallelism=max_parallelism_for("abc", 3),
        checkpoint_dir=str(tmp_path / "chk"),
        **QUICK,
    )
    words = env.from_source(source, uid="source").set_parallelism(1)
    words.key_by("key").sum("amount", uid="map").sink_to(sink, uid="out")
    with running(env, "mapWithState") as client:
        until(client, lambda: len(sink.noted()) == 3, "three records")
        until(client, lambda: stored_at(tmp_path / "chk", {0: 3}), "a checkpoint at position 3")
        sink.hold()
        source.release("barrier")
        until(client, lambda: len(sink.noted()) == 6, "six records")
        stored = completed(tmp_path / "chk")[-1]
        assert stored.positions("source") == {0: 3}
        assert totals(stored, "map") == {"b": 5, "c": 1}, "and a is 0: it has no state yet"
        assert stored.keyed_by_subtask("map") == {0: set(), 1: {"b"}, 2: {"c"}}
        live = last(sink.noted())
        assert live == {"a": 4, "b": 5, "c": 3} != totals(stored, "map")
        victims = pids(client)
        assert kill(victims[1])
        until_restarted(client)
        assert client.overview().restored_checkpoint == stored.id
        assert all(file.exists() for file in stored.files()), "the files outlive the process"
        until(client, lambda: len(sink.noted(attempt=1)) == 3, "the replay")
        assert victims[1] not in pids(client)
        source.release("crash")
        client.result(180)
    # The function saw six records and then the three behind the barrier, and never the barrier.
    assert sorted(sink.noted(attempt=0)) == [("a", 2), ("a", 4), ("b", 2), ("b", 5), ("c", 1), ("c", 3)]
    assert sorted(sink.noted(attempt=1)) == [("a", 2), ("a", 4), ("c", 3)]
    assert last(sink.noted()) == live


class Number(NamedTuple):
    parity: str
    n: int


def parity(n: int) -> Number:
    return Number("odd" if n % 2 else "even", n)


@pytest.mark.spec("S3-32", "S3-33", "S0-4", "S0-34")
def test_odd_and_even_store_5_6_9_and_record_6_is_processed_twice_and_counted_once(make_env, tmp_path):
    source = ScriptedSource(
        [[1, 2, 3, 4, 5, Pause("barrier"), 6, 7, 8, Pause("crash"), 9, 10]], tmp_path / "script"
    )
    sink = HoldingSink(tmp_path / "out")
    env = make_env(
        checkpoint_dir=str(tmp_path / "chk"),
        max_parallelism=max_parallelism_for(["even", "odd"], 2),
        **QUICK,
    )
    numbers = env.from_source(source, uid="source").set_parallelism(1).map(parity)
    numbers.set_parallelism(1).key_by("parity").sum("n", uid="sums").sink_to(sink)
    with running(env, "odd and even") as client:
        until(client, lambda: stored_at(tmp_path / "chk", {0: 5}), "a checkpoint at 5")
        until(client, lambda: len(sink.noted()) == 5, "five records")
        sink.hold()
        stored = completed(tmp_path / "chk")[-1]
        source.release("barrier")
        until(client, lambda: len(sink.noted()) == 8, "a crash past record 6")
        stored = completed(tmp_path / "chk")[-1]
        sums = totals(stored, "sums")
        assert (stored.positions("source")[0], sums["even"], sums["odd"]) == (5, 6, 9)
        kill(pids(client)[0])
        until_restarted(client)
        assert client.overview().restored_checkpoint == stored.id
        source.release("crash")
        client.result(180)
    assert ("even", 12) in sink.noted(attempt=0), "2 + 4 + 6 before the crash"
    assert ("even", 12) in sink.noted(attempt=1), "and again after it: 12, not 18"
    assert last(sink.noted()) == {"even": 2 + 4 + 6 + 8 + 10, "odd": 1 + 3 + 5 + 7 + 9}


@pytest.mark.spec("S4-5", "S4-6", "S4-7", "S0-29")
def test_page_views_resume_from_offset_1000_with_50000_and_10000_not_from_1100(make_env, tmp_path):
    # The seed's numbers are 1000 records and 60000 views, so a record stands for several views.
    until_1000 = [Click("app1", 100)] * 500 + [Click("app2", 20)] * 500
    until_1100 = [Click("app1", 1)] * 80 + [Click("app2", 1)] * 20
    source = ScriptedSource(
        [[*until_1000, Pause("chk-100"), *until_1100, Pause("crash")]], tmp_path / "script"
    )
    sink = HoldingSink(tmp_path / "out", passing=99)
    env = make_env(parallelism=1, checkpoint_dir=str(tmp_path / "chk"), **QUICK)
    clicks = env.from_source(source, uid="source")
    clicks.key_by("app").sum("views", uid="pv").sink_to(sink, uid="out")
    with running(env, "page views") as client:
        until_completed(client, 99)
        # Checkpoint 100 has its barrier behind record 1000; it is not written while the next 100 are processed.
        until(client, lambda: has_acknowledged(client, 100, (0, 0)), "the barrier of checkpoint 100")
        source.release("chk-100")
        until(client, lambda: len(sink.noted()) == 1100, "offset 1100")
        assert last(sink.noted()) == {"app1": 50080, "app2": 10020}
        assert client.checkpoints().completed == 99, "no handle, no completion"
        sink.let_pass(100)
        until_completed(client, 100)
        stored = completed(tmp_path / "chk")[-1]
        assert stored.directory.name == "chk-100"
        assert stored.positions("source") == {0: 1000}
        assert totals(stored, "pv") == {"app1": 50000, "app2": 10000}, "nothing of 1001 to 1100 leaked in"
        kill(pids(client)[0])
        until_restarted(client)
        assert client.overview().restored_checkpoint == 100
        until(client, lambda: len(sink.noted(attempt=1)) == 100, "the replay of 100 records")
        source.release("crash")
        client.result(180)
    assert last(sink.noted()) == {"app1": 50080, "app2": 10020}
    assert len(sink.noted(attempt=1)) == 80 + 20
    assert min(total for app, total in sink.noted(attempt=1) if app == "app1") == 50001


def app_of(line: str) -> str:
    return line.split()[0]


def is_page_view(app: str) -> bool:
    return app != "other"


@pytest.mark.spec("S4-12", "S3-36", "S0-3", "S0-4", "S4-13", "S4-8", "S0-37", "S1-2", "S1-1")
@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
def test_two_partitions_store_12005_views_of_app1_aligned_and_12050_at_least_once(make_env, tmp_path, mode):
    part0 = ["app0 x"] * 4000 + ["app1 x"] * 6000
    part1 = ["app0 x"] * 4000 + ["app1 x"] * 6005
    behind = ["app1 x"] * 45 + ["other x"] * 150  # 10006 to 10200
    assert (len(part0), len(part1), len(part1) + len(behind)) == (10000, 10005, 10200)
    source = ScriptedSource(
        [[*part0, Pause("end 0")], [*part1, Pause("barrier"), *behind, Pause("end 1")]], tmp_path / "script"
    )
    sink = HoldingSink(tmp_path / "out", passing=98)
    env = make_env(
        checkpoint_dir=str(tmp_path / "chk"),
        checkpoint_mode=mode,
        max_parallelism=max_parallelism_for(["app0", "app1"], 2),
        **QUICK,
    )
    apps = env.from_source(source, uid="source").map(app_of, uid="TaskA")
    pv = apps.filter(is_page_view).key_by(lambda app: app, returns=str).count(uid="TaskB")
    pv.sink_to(sink, uid="out")
    with running(env, f"two partitions {mode}") as client:
        until_completed(client, 98)
        until(client, lambda: len(sink.noted()) == 10000 + 10005, "all records up to the barriers")
        sink.let_pass(99, subtask=0)
        until(client, lambda: len(client.checkpoints().history[-1].subtasks) == 3, "all but TaskB1")
        slot0 = pids(client)[0]
        with stopped(slot0):  # TaskA0 is two seconds late for checkpoint 100
            begun = time.monotonic()
            sink.let_pass(100)
            sink.let_pass(100, subtask=0)
            until(client, lambda: has_acknowledged(client, 100, (0, 1)), "the barrier of checkpoint 100")
            source.release("barrier")
            until(client, lambda: source.has_reached("end 1"), "offset 10200 of partition 1")
            if mode == "at_least_once":
                until(client, lambda: len(sink.noted()) == 10000 + 10200 - 150, "what follows the barrier")
            until(client, lambda: time.monotonic() - begun > 2, "two seconds")
        until_completed(client, 100)
        chk = completed(tmp_path / "chk")[-1]
        assert chk.directory.name == "chk-100"
        assert chk.positions("source") == {0: 10000, 1: 10005}
        stored = {key: number(value) for key, value in chk.keyed("TaskB").items()}
        assert stored == {"app0": 8000, "app1": 12005 if mode == "exactly_once" else 12050}
        assert chk.keyed_by_subtask("TaskB") == {0: {"app0"}, 1: {"app1"}}
        assert chk.operator("TaskA")["subtasks"] == [], "map and keyBy have no state: nothing is stored"
        statistics = client.checkpoints().latest_completed
        assert sorted((s.vertex, s.subtask) for s in statistics.subtasks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        (b1,) = (s for s in statistics.subtasks if (s.vertex, s.subtask) == (1, 1))
        assert b1.metrics.aligned_records == (45 if mode == "exactly_once" else 0), "buffered, or not"
        kill(pids(client)[1])
        until_restarted(client)
        assert client.overview().restored_checkpoint == 100
        source.release("end 0")
        source.release("end 1")
        client.result(180)
    truth = {"app0": 8000, "app1": 12005 + 45}
    twice = 0 if mode == "exactly_once" else 45
    assert last(sink.noted(attempt=1)) == {"app1": truth["app1"] + twice}, (
        "45 too many, and only at least once"
    )
    assert last(sink.noted())["app0"] == truth["app0"], "exact in both"


class Seen(CoFlatMapFunction):
    """Passes numbers and letters on, and keeps what it saw."""

    seen = OperatorListState(str)

    def flat_map1(self, value: str) -> Iterator[str]:
        self.seen.add(value)
        yield value

    def flat_map2(self, value: str) -> Iterator[str]:
        self.seen.add(value)
        yield value


class LateLetter(Traced):
    def __init__(self, trace: Trace, gate: WaitingFor) -> None:
        super().__init__(trace)
        self.gate = gate

    def map(self, letter: str) -> str:
        super().map(letter)
        if letter == "c":
            self.gate.wait()
        return letter


@pytest.mark.spec("S4-11", "S0-37", "S1-2")
def test_numbers_behind_the_barrier_wait_for_the_letters_and_come_first_after_it(make_env, tmp_path):
    numbers = ScriptedSource([["8", "9", Pause("1"), "1", "2", "3", Pause("end")]], tmp_path / "numbers")
    # In a slot of its own, so that a slow letter holds up nobody else.
    letters = ScriptedSource(
        [[], ["a", "b", Pause("c"), "c", Pause("d"), "d", "e"]], tmp_path / "letters", type=str
    )
    trace, late = Trace(tmp_path / "trace"), WaitingFor(tmp_path / "late")
    sink = HoldingSink(tmp_path / "out")
    env = make_env(checkpoint_dir=str(tmp_path / "chk"), **{**QUICK, "checkpoint_interval": "1 s"})
    left = env.from_source(numbers, uid="source", name="numbers").set_parallelism(1)
    right = env.from_source(letters, uid="letters", name="letters").map(LateLetter(trace, late), returns=str)
    both = left.connect(right).flat_map(Seen(), returns=str, uid="both").set_parallelism(1)
    both.sink_to(sink).set_parallelism(1)
    with running(env, "numbers and letters") as client:
        until(client, lambda: len(sink.noted()) == 4, "8, 9, a, b")
        # The next one is a second away: one that has begun in the slot of c could not end before c does.
        before = client.checkpoints().completed
        until(client, lambda: client.checkpoints().completed > before, "a checkpoint")
        letters.release("c")
        until(client, late.is_awaited, "the slow letter")
        stuck = trace.process_that_wrote("read c")

        def waiting() -> Any:
            newest = client.checkpoints().history[-1]
            has_numbers = any("numbers" in subtask.name for subtask in newest.subtasks)
            waits = newest.status == "pending" and has_numbers
            # What the slow slot has not begun, it begins after c.
            return newest if waits and not trace.has_begun(newest.checkpoint_id, stuck) else None

        pending = until(client, waiting, "a checkpoint that has the numbers and waits for the letters")
        sink.hold()
        numbers.release("1")
        letters.release("d")
        until(client, lambda: numbers.has_reached("end"), "1, 2 and 3 to be sent")
        assert len(sink.noted()) == 4, "they wait"
        sink.let_pass(1 << 30)
        late.open()

        def done() -> Any:
            found = [h for h in client.checkpoints().history if h.checkpoint_id == pending.checkpoint_id]
            return found[0] if found and found[0].status == "completed" else None

        statistics = until(client, done, "the checkpoint")
        until(client, lambda: len(sink.noted()) == 10, "all records")
        numbers.release("end")
        client.result(180)
    noted = sink.noted()
    assert sorted(noted[:4]) == ["8", "9", "a", "b"]
    assert noted[4:] == ["c", "1", "2", "3", "d", "e"], "c, then what waited, then what follows"
    assert sum(s.metrics.aligned_records for s in statistics.subtasks) == 3
    assert statistics.alignment_ms > 0
