"""Where subtasks are placed, and how their states move."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job_master_kit import edge, job_graph, vertex
from tidegate.core.errors import IllegalTransitionError, ProtocolError
from tidegate.core.ids import OperatorId, SlotId
from tidegate.core.states import ExecutionState as E
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.execution_graph import ExecutionGraph


def graph_of(*vertices: tuple[int, str]) -> ExecutionGraph:
    made = tuple(vertex(i, [f"v{i}"], p, group) for i, (p, group) in enumerate(vertices))
    return ExecutionGraph(JobGraph("job", made, ()))


def test_equal_parallelism_meets_slot_by_slot():
    graph = graph_of((3, "default"), (3, "default"))
    assert graph.slots_needed == 3
    assert graph.placement() == ((0, 1, 2), (0, 1, 2))


def test_a_smaller_vertex_is_spread_over_the_slots_of_its_group():
    assert graph_of((4, "default"), (2, "default"), (1, "default")).placement() == (
        (0, 1, 2, 3),
        (0, 2),
        (0,),
    )


def test_sharing_groups_have_consecutive_ranges_in_the_order_of_their_first_vertex():
    graph = graph_of((2, "red"), (3, "blue"), (4, "red"))
    assert graph.slots_needed == 7
    assert graph.placement() == ((0, 2), (4, 5, 6), (0, 1, 2, 3))


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc")), min_size=1, max_size=6))
def test_every_slot_has_work_and_no_slot_runs_a_vertex_twice_where_it_need_not(vertices):
    graph = graph_of(*vertices)
    used = {slot for row in graph.placement() for slot in row}
    assert used == set(range(graph.slots_needed))
    for row in graph.placement():
        assert len(set(row)) == len(row)
    deployed = [(d.vertex, d.subtask, s) for s in used for d in graph.deployments(SlotId(s))]
    assert sorted(deployed) == sorted(
        (v, i, slot) for v, row in enumerate(graph.placement()) for i, slot in enumerate(row)
    )


def test_a_report_moves_a_subtask_and_a_repeated_one_changes_nothing():
    graph = ExecutionGraph(job_graph())
    graph.all_to(E.SCHEDULED)
    graph.all_to(E.DEPLOYING)
    for _ in range(2):
        execution = graph.report(SlotId(1), 0, 1, E.INITIALIZING)
    assert execution.machine.history == [E.CREATED, E.SCHEDULED, E.DEPLOYING, E.INITIALIZING]


@pytest.mark.parametrize(("vertex_id", "subtask"), [(0, 0), (0, 2), (2, 1), (-1, 1), (0, -1)])
def test_a_report_on_a_subtask_of_another_slot_is_refused(vertex_id, subtask):
    graph = ExecutionGraph(job_graph())
    with pytest.raises(ProtocolError, match="does not run"):
        graph.report(SlotId(1), vertex_id, subtask, E.FAILED)
    assert {e.state for e in graph} == {E.CREATED}


def test_an_illegal_step_is_refused_and_changes_nothing():
    graph = ExecutionGraph(job_graph())
    with pytest.raises(IllegalTransitionError, match="subtask 1 of 2 of 'numbers -> parse'"):
        graph.report(SlotId(1), 0, 1, E.RUNNING)
    assert {e.state for e in graph} == {E.CREATED}


def test_a_lost_slot_fails_what_it_ran_and_the_end_cancels_the_rest():
    graph = ExecutionGraph(job_graph())
    graph.slot_lost(SlotId(1))
    assert len(graph.unfinished(SlotId(0))) == 2
    graph.close()
    assert [s.state for s in graph.describe().subtasks()] == [E.CANCELED, E.FAILED, E.CANCELED, E.FAILED]
    assert not graph.all_finished


def test_an_operator_is_found_by_its_id():
    graph = ExecutionGraph(job_graph())
    execution = graph.find_operator(OperatorId("id-sink"), 1)
    assert execution is not None
    assert (execution.id.vertex, execution.slot) == (1, 1)
    assert graph.find_operator(OperatorId("id-sink"), 2) is None
    assert graph.find_operator(OperatorId("id-unknown"), 0) is None


def test_the_graph_can_be_described_as_data():
    description = ExecutionGraph(
        JobGraph("pv", (vertex(0, ["numbers"], 2), vertex(1, ["count", "sink"], 1)), (edge(0, 0, 1),))
    ).describe()
    plain = msgspec.to_builtins(description)
    assert plain["slots_needed"] == 2
    assert [v["operators"] for v in plain["vertices"]] == [("numbers",), ("count", "sink")]
    assert [
        (s["name"], s["subtask"], s["slot"], s["state"]) for v in plain["vertices"] for s in v["subtasks"]
    ] == [
        ("numbers", 0, 0, "created"),
        ("numbers", 1, 1, "created"),
        ("count -> sink", 0, 0, "created"),
    ]
    assert plain["edges"] == ({"source": 0, "target": 1, "partitioning": "hash"},)
