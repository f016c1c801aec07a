"""The steps of one checkpoint on a real Spark, out of the logs of the JobManager and of all slots."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fault.kit import HoldingSink, WaitingFor, max_parallelism_for, running, until
from tests.spark.checkpoints import QUICK, later_checkpoint, newest_completed, stored
from tests.spark.trace import Trace, Traced
from tidegate import ProcessContext, ProcessFunction, ValueState
from tidegate.testing.scripted_source import Pause, ScriptedSource

pytestmark = pytest.mark.timeout(600)


class Late(Traced):
    """The same, but it waits with one record."""

    def __init__(self, trace: Trace, gate: WaitingFor) -> None:
        super().__init__(trace)
        self.gate = gate

    def map(self, value: int) -> int:
        read = int(super().map(value))
        if value == 10:
            self.gate.wait()
        return read


class Sum(ProcessFunction):
    total = ValueState(int, default=0)

    def process(self, value: int, context: ProcessContext) -> Iterator[int]:
        logging.getLogger(Trace.LOGGER).debug("summed %s %d", context.current_key, value)
        self.total.update(self.total.value() + value)
        yield self.total.value()


def parity(n: int) -> str:
    return "odd" if n % 2 else "even"


# Forwarding comes before the snapshot and the upload is asynchronous: D1 of the specification decides so.
@pytest.mark.spec("S0-16", "S0-35", "S0-36", "S0-38", "S3-35")
def test_the_steps_of_a_checkpoint_of_two_sources_two_sums_and_two_sinks(make_env, tmp_path, caplog):
    """The barrier goes on before the snapshot is taken, and nothing is processed between the two."""
    caplog.set_level(logging.DEBUG, logger="tidegate.jobmanager.driver")
    source = ScriptedSource(
        [
            [1, 2, 3, 4, Pause("behind"), 6, 8, Pause("end 0")],
            [1, 2, 3, 4, Pause("late"), 10, Pause("new"), 12, Pause("end 1")],
        ],
        tmp_path / "script",
    )
    trace, late, sink = (
        Trace(tmp_path / "trace"),
        WaitingFor(tmp_path / "late"),
        HoldingSink(tmp_path / "out"),
    )
    env = make_env(
        checkpoint_dir=str(tmp_path / "chk"),
        max_parallelism=max_parallelism_for(["even", "odd"], 2),
        **{**QUICK, "checkpoint_interval": "1 s"},
    )
    numbers = env.from_source(source, uid="source").map(Late(trace, late), returns=int)
    sums = numbers.key_by(parity, returns=str).process(Sum(), returns=int, uid="sums")
    sums.rebalance().sink_to(sink, uid="out")
    with running(env, "steps") as client:
        until(client, lambda: len(sink.noted()) == 8, "eight records")
        later_checkpoint(client, "a checkpoint before")
        source.release("late")
        until(client, late.is_awaited, "source 1 to be late")
        stuck = trace.process_that_wrote("read 10")

        def pending() -> Any:
            newest = client.checkpoints().history[-1]
            # What the late slot has not begun, it begins after 10.
            waits = newest.status == "pending" and not trace.has_begun(newest.checkpoint_id, stuck)
            return newest.checkpoint_id if waits and newest.subtasks else None

        id = until(client, pending, "a checkpoint that waits for source 1")
        source.release("behind")
        source.release("new")
        until(client, lambda: source.has_reached("end 0"), "6 and 8 to be sent")
        late.open()
        until(client, lambda: len(sink.noted()) == 12, "all records")
        until(client, lambda: newest_completed(client) >= id, "the checkpoint")
        statistics = next(c for c in client.checkpoints().history if c.checkpoint_id == id)
        taken = stored(tmp_path / "chk", statistics) if newest_completed(client) == id else None
        source.release("end 0")
        source.release("end 1")
        client.result(180)
    assert statistics.status == "completed"
    assert taken is None or taken.positions("source") == {0: 4, 1: 5}
    steps = trace.read(id)
    by_subtask = {subtask: [s for s in steps if s.subtask == subtask] for _, _, subtask, _, _ in steps}
    assert sorted(by_subtask) == [(v, i) for v in range(3) for i in range(2)]
    taking = ["processing stopped", "barrier forwarded", "snapshot", "processing resumed", "acknowledged"]
    for (vertex, index), found in by_subtask.items():
        whats = [s.what for s in found]
        if vertex == 0:
            assert whats == ["triggered", *taking], "a message of the JobManager, no barrier"
            assert found[2].detail == str([(0, index, 0), (0, index, 1)]), "to all partitions"
        else:
            expected = ["barrier received", "barrier received", *taking]
            assert whats == (expected if vertex == 1 else [w for w in expected if w != "barrier forwarded"])
            assert {s.detail for s in found[:2]} == {str((vertex - 1, p, index)) for p in range(2)}
    # The JobManager begins it and completes it: last, when everybody has acknowledged.
    said = [(r.created, r.getMessage()) for r in caplog.records if f"checkpoint_id={id}," in r.getMessage()]
    assert [text.split(": ")[1].split("(")[0] for _, text in said] == [
        *["TriggerCheckpoint"] * 2,
        *["NotifyCheckpointComplete"] * 2,
    ]
    assert said[0][0] <= min(s.at for s in steps)
    assert said[2][0] >= max(s.at for s in steps if s.what == "acknowledged")
    # In the slot of the even sum: nothing is processed while it is stopped, and what waited comes before what is new.
    (process,) = {s.process for s in by_subtask[1, 0]}
    lines = [line.split(" ", 2)[2] for line in trace.lines(process)]
    is_stopped = False
    for line in lines:
        assert not (is_stopped and line.startswith(("read", "summed"))), line
        if "processing stopped" in line or "processing resumed" in line:
            is_stopped = "stopped" in line
    own = f"checkpoint {id}: subtask 0 of vertex 1: "
    shown = [line.removeprefix(own) for line in lines if line.startswith((own, "summed even"))]
    first = shown.index("barrier received on (0, 0, 0)")
    assert [line.split(" [")[0] for line in shown[first : first + 7]] == [
        "barrier received on (0, 0, 0)",
        "summed even 10",
        "barrier received on (0, 1, 0)",
        "processing stopped",
        "barrier forwarded to",
        "snapshot of",
        "processing resumed",
    ]
    behind = [line for line in shown[shown.index("processing resumed") :] if line.startswith("summed")]
    assert behind == ["summed even 6", "summed even 8", "summed even 12"]
