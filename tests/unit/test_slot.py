"""A slot: what it does not repeat for subtasks that had finished before a restore, and whom its warnings name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.program_kit import graph_of
from tidegate import Environment, MapFunction, RuntimeContext, WatermarkStrategy
from tidegate.core.clock import ManualClock
from tidegate.core.ids import SlotId, SubtaskId, VertexId
from tidegate.graph.chaining import build_job_graph
from tidegate.program.sequences import NumberSequenceSource
from tidegate.protocol import messages as m
from tidegate.records.elements import MAX_WATERMARK, MIN_TIMESTAMP
from tidegate.runtime.simulated_slot import SimulatedUploads
from tidegate.snapshot.assignment import SubtaskRestore, encode_restore
from tidegate.storage.job_storage import encode_storage
from tidegate.storage.memory import MemoryStorage
from tidegate.taskmanager.slot import Slot


class Life(MapFunction[int, int]):
    """Asks at every station of its life."""

    def open(self, context: RuntimeContext) -> None:
        stations["open"] = current()

    def map(self, value: int) -> int:
        return value

    def close(self) -> None:
        stations["close"] = current()


stations: dict[str, Any] = {}
slots: list[Slot] = []


def current() -> Any:
    """The subtask that a warning of this moment would name."""
    task = slots[-1].current
    return None if task is None else task.id


def said_by_a_slot(*, finished: bool) -> list[m.SlotMessage]:
    """What a slot with one subtask says, restored from a checkpoint."""
    env = Environment(parallelism=1, checkpoint_interval="1 s", checkpoint_dir="/nowhere")
    strategy = WatermarkStrategy.monotonous(lambda n: n).with_alignment("group", "1 s")
    numbers = env.from_source(NumberSequenceSource(1, 2), strategy)
    numbers.map(Life()).print()
    graph = build_job_graph(graph_of(env))
    restore = SubtaskRestore(VertexId(0), 0, finished=finished)
    deploy = m.Deploy(
        graph.encode(),
        (m.SubtaskDeployment(VertexId(0), 0),),
        ((SlotId(0),),),
        (m.SlotAddress(SlotId(0), "here", 0, 0),),
        (encode_restore(restore),),
        encode_storage(MemoryStorage()),
    )
    said: list[m.SlotMessage] = []
    network: Any = None
    slot = Slot(
        SlotId(0),
        "job",
        1,
        deploy,
        env.options,
        ManualClock(),
        network,
        said.append,
        lambda: None,
        SimulatedUploads(lambda: None),
    )
    slots.append(slot)
    slot.open()
    for _ in range(5):
        slot.step()
    assert slot.failure is None
    slot.close()
    return said


@pytest.mark.parametrize("finished", [True, False])
def test_a_subtask_that_had_finished_reads_nothing_again_and_waits_for_the_final_checkpoint(finished):
    kinds = {type(message) for message in said_by_a_slot(finished=finished)}
    assert (m.TaskDrained in kinds) == finished
    assert (m.RequestSplit in kinds) != finished


@pytest.mark.parametrize(("finished", "reported"), [(True, MAX_WATERMARK), (False, MIN_TIMESTAMP)])
def test_a_source_that_had_finished_holds_up_no_other_of_its_group(finished, reported):
    reports = [r for r in said_by_a_slot(finished=finished) if isinstance(r, m.ReportWatermark)]
    assert [(r.group, r.watermark_ms) for r in reports] == [("group", reported)]


def test_a_warning_names_its_subtask_when_operators_are_opened_and_closed_too():
    said_by_a_slot(finished=False)
    assert stations == dict.fromkeys(("open", "close"), SubtaskId(VertexId(0), 0))
    assert slots[-1].current is None
