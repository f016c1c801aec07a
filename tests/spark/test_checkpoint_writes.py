"""How a subtask writes its part of a checkpoint, on a real Spark: frozen at the barrier, written in four stages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fault.kit import ALL, HoldingSink, running, until
from tests.spark.checkpoints import QUICK, stored
from tests.spark.trace import Trace, Traced
from tidegate import ProcessContext, ProcessFunction, ValueState
from tidegate.testing.scripted_source import Pause, ScriptedSource

pytestmark = pytest.mark.timeout(600)


class Remember(ProcessFunction):
    """Changes the very object that is its state."""

    seen = ValueState(list[int], default=[])

    def process(self, value: int, context: ProcessContext) -> Iterator[int]:
        seen = self.seen.value()
        seen.append(value)
        self.seen.update(seen)
        yield len(seen)


@pytest.mark.spec("S1-4")
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_what_changes_after_the_synchronous_part_is_not_in_the_snapshot_which_is_written_in_four_stages(
    make_env, tmp_path, backend
):
    source = ScriptedSource(
        [[Pause("start"), 1, 2, 3, Pause("changes"), 4, 5, Pause("end")]], tmp_path / "script"
    )
    trace = Trace(tmp_path / "trace")
    early, late = HoldingSink(tmp_path / "early", passing=0), HoldingSink(tmp_path / "late")
    env = make_env(
        parallelism=1,
        state_backend=backend,
        checkpoint_dir=str(tmp_path / "chk"),
        **{
            **QUICK,
            "checkpoint_interval": "200 ms",
            "checkpoint_retained": 1000,
            "checkpoint_keep_on_finish": True,
        },
    )
    numbers = env.from_source(source, uid="source").map(Traced(trace), returns=int)
    numbers.sink_to(early, uid="early")  # its upload comes first in the slot, and the test holds it
    remembered = numbers.key_by(lambda n: "all", returns=str).process(Remember(), returns=int, uid="remember")
    remembered.sink_to(late, uid="late")
    with running(env, "written") as client:

        def frozen(id: int) -> bool:
            return any(s.what == "snapshot" and s.subtask == (1, 0) for s in trace.read(id))

        # The first checkpoint has no record, and waits; so the second one is the first to have them.
        until(client, lambda: frozen(1), "the first checkpoint")
        source.release("start")
        until(client, lambda: late.noted() == [1, 2, 3], "three records")
        early.let_pass(1)
        id = 2
        until(client, lambda: frozen(id), "the synchronous part of the second one")
        source.release("changes")
        until(client, lambda: len(late.noted()) == 5, "the state to change")
        early.let_pass(ALL)

        def complete() -> Any:
            return next((c for c in client.checkpoints().history if c.checkpoint_id == id), None)

        until(client, lambda: complete().status == "completed", "the checkpoint")
        statistics = complete()
        taken = stored(tmp_path / "chk", statistics)
        source.release("end")
        client.result(180)
    assert taken.positions("source") == {0: 3}
    if backend == "heap":  # RocksDB's files are not for outsiders
        assert taken.keyed("remember") == {"all": [1, 2, 3]}
    by_vertex = {s.vertex: s.metrics for s in statistics.subtasks}
    assert by_vertex[1].sync_ms > 0
    assert by_vertex[1].async_ms > 0
    operator = taken.operator("remember")["id"]
    process = next(s.process for s in trace.read(id) if s.subtask == (1, 0))
    lines = [line.split(" ", 2)[2] for line in trace.lines(process)]
    begin = f"write of checkpoint {id}: operator {operator} subtask 0: "
    stages = [line.removeprefix(begin) for line in lines if line.startswith(begin)]
    kinds = [stage.split(" ")[:2] for stage in stages]
    assert [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]] == [
        ["1", "open"],
        ["2", "state"],
        ["3", "metadata"],
        ["4", "close,"],
    ]
    handle = taken.operator("remember")["subtasks"][0]["keyed"]
    files = {file["path"]: file["size"] for file in handle["files"]}
    told = [re.fullmatch(r"2 state in (\S+), (\d+) bytes", stage) for stage in stages[1:-2]]
    written = {t[1]: int(t[2]) for t in told if t}
    assert len(written) == len(told) >= 1
    assert written.items() <= files.items(), "the rest is shared with earlier checkpoints"
    if backend == "heap":  # the file says by itself what is in it
        described = pq.read_schema(next((tmp_path / "chk").rglob(min(written)))).metadata
        assert described[b"tidegate.state"] == b"seen"
    assert [state["name"] for state in handle["states"]] == ["seen"]
    assert "'seen (value of " in stages[-2]
    assert stages[-1] == f"4 close, {len(files)} files are durable"
    own = f"checkpoint {id}: subtask 0 of vertex 1: "
    order = [lines.index(line) for line in lines if line in ("read 4", "read 5", begin + stages[0])]
    assert lines.index("read 5") < lines.index(begin + "1 open"), "written while the job goes on"
    snapshot = next(i for i, line in enumerate(lines) if line.startswith(own + "snapshot"))
    assert snapshot < min(order), "frozen before"
    assert lines.index(own + "acknowledged") > lines.index(begin + stages[-1]), "durable first"
