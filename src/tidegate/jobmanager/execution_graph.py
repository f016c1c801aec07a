"""ExecutionGraph: every subtask of one attempt of a job, its state and the slot that it runs in.

Only the `JobMaster` makes and changes it; pure. Another thread may read a description: states are single attributes,
and a description is a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import OperatorId, SlotId, SubtaskId, VertexId
from tidegate.core.states import EXECUTION_TRANSITIONS, ExecutionState, StateMachine
from tidegate.graph.job_graph import JobGraph, JobVertex
from tidegate.protocol.messages import SubtaskDeployment

_E = ExecutionState


@dataclass(eq=False)
class Execution:
    """One attempt of one subtask."""

    id: SubtaskId
    vertex: JobVertex
    slot: SlotId
    machine: StateMachine[ExecutionState]

    @property
    def state(self) -> ExecutionState:
        return self.machine.state


class SubtaskDescription(msgspec.Struct, frozen=True):
    """A subtask as data."""

    vertex: VertexId
    name: str
    subtask: int
    parallelism: int
    slot: SlotId
    state: ExecutionState
    history: tuple[ExecutionState, ...]


class VertexDescription(msgspec.Struct, frozen=True):
    """A chain of operators and its subtasks, as data."""

    vertex: VertexId
    name: str
    operators: tuple[str, ...]
    slot_sharing_group: str
    parallelism: int
    subtasks: tuple[SubtaskDescription, ...]


class EdgeDescription(msgspec.Struct, frozen=True):
    """An exchange between two chains."""

    source: VertexId
    target: VertexId
    partitioning: str


class ExecutionGraphDescription(msgspec.Struct, frozen=True):
    """The whole graph as data, at one moment: for the JobClient, tests and displays."""

    job_name: str
    slots_needed: int
    vertices: tuple[VertexDescription, ...]
    edges: tuple[EdgeDescription, ...]

    def subtasks(self) -> list[SubtaskDescription]:
        return [s for v in self.vertices for s in v.subtasks]


class ExecutionGraph:
    """The parallel form of a JobGraph.

    Placement: each slot-sharing group has a range of consecutive slots, in the order in which the groups first appear.
    In a group of P slots, subtask i of a vertex with parallelism p runs in the group's slot `i * P // p`, so vertices
    of equal parallelism meet slot by slot and smaller ones are spread.
    """

    def __init__(self, job_graph: JobGraph) -> None:
        self.job_graph = job_graph
        offsets: dict[str, int] = {}
        sizes = job_graph.slots_by_group()
        self.slots_needed = 0
        for group, size in sizes.items():
            offsets[group] = self.slots_needed
            self.slots_needed += size
        self._executions: list[list[Execution]] = [
            [
                Execution(
                    SubtaskId(vertex.id, i),
                    vertex,
                    SlotId(
                        offsets[vertex.slot_sharing_group]
                        + i * sizes[vertex.slot_sharing_group] // vertex.parallelism
                    ),
                    StateMachine(
                        f"subtask {i} of {vertex.parallelism} of {vertex.name!r}",
                        _E.CREATED,
                        EXECUTION_TRANSITIONS,
                    ),
                )
                for i in range(vertex.parallelism)
            ]
            for vertex in job_graph.vertices
        ]
        self._vertex_of: dict[OperatorId, JobVertex] = {
            operator.id: vertex for vertex in job_graph.vertices for operator in vertex.operators
        }
        self._in_slot: dict[SlotId, list[Execution]] = {SlotId(s): [] for s in range(self.slots_needed)}
        for execution in self:
            self._in_slot[execution.slot].append(execution)

    def __iter__(self) -> Iterator[Execution]:
        return (execution for row in self._executions for execution in row)

    def placement(self) -> tuple[tuple[SlotId, ...], ...]:
        """The slot of every subtask, as in `Deploy.placement`."""
        return tuple(tuple(execution.slot for execution in row) for row in self._executions)

    def deployments(self, slot: SlotId) -> tuple[SubtaskDeployment, ...]:
        """The subtasks of one slot, as in `Deploy.subtasks`."""
        return tuple(SubtaskDeployment(e.id.vertex, e.id.index) for e in self._in_slot[slot])

    def operator_names(self, slot: SlotId) -> list[str]:
        """The names of all operators that run in a slot, each once, for messages."""
        names = (operator.name for e in self._in_slot[slot] for operator in e.vertex.operators)
        return list(dict.fromkeys(names))

    def operator_name(self, operator: OperatorId) -> str:
        """The name of an operator of the job, for messages."""
        return next(o.name for o in self._vertex_of[operator].operators if o.id == operator)

    def subtask_names(self, slot: SlotId) -> tuple[str, ...]:
        """The subtasks of a slot as `name (index/parallelism)`, for tables."""
        return tuple(f"{e.vertex.name} ({e.id.index}/{e.vertex.parallelism})" for e in self._in_slot[slot])

    def find(self, vertex: int, subtask: int) -> Execution | None:
        """A subtask, or None if it does not exist (a slot may name any)."""
        if 0 <= vertex < len(self._executions) and 0 <= subtask < len(self._executions[vertex]):
            return self._executions[vertex][subtask]
        return None

    def find_operator(self, operator: OperatorId, subtask: int) -> Execution | None:
        """The subtask that an operator's instance runs in, or None."""
        vertex = self._vertex_of.get(operator)
        return None if vertex is None else self.find(vertex.id, subtask)

    def report(self, slot: SlotId, vertex: int, subtask: int, state: ExecutionState) -> Execution:
        """Take a state that a slot reports; a repeated one changes nothing.

        Raises `ProtocolError` for a subtask that is not in that slot, `IllegalTransitionError` for a transition that
        the table does not have; both change nothing.
        """
        execution = self.find(vertex, subtask)
        if execution is None or execution.slot != slot:
            raise ProtocolError(f"it reports on subtask {subtask} of vertex {vertex}, which it does not run")
        if execution.state is not state:
            execution.machine.to(state)
        return execution

    def all_to(self, state: ExecutionState) -> None:
        """Move every subtask to the next state, for the states before deployment."""
        for execution in self:
            execution.machine.to(state)

    def slot_lost(self, slot: SlotId) -> None:
        """Fail the subtasks of a slot whose process is gone, except those that had ended."""
        for execution in self._in_slot[slot]:
            if execution.machine.can(_E.FAILED):
                execution.machine.to(_E.FAILED)

    def close(self) -> None:
        """Cancel every subtask that has not ended: the job has."""
        for execution in self:
            if execution.machine.can(_E.CANCELED):
                execution.machine.to(_E.CANCELED)

    def unfinished(self, slot: SlotId) -> list[Execution]:
        """The subtasks of a slot that have not ended."""
        return [e for e in self._in_slot[slot] if not e.state.is_terminal]

    @property
    def all_running(self) -> bool:
        return all(e.state is _E.RUNNING for e in self)

    @property
    def all_finished(self) -> bool:
        """Whether every subtask reached its end by itself, neither failed nor cancelled."""
        return all(e.state is _E.FINISHED for e in self)

    def describe(self) -> ExecutionGraphDescription:
        return ExecutionGraphDescription(
            self.job_graph.name,
            self.slots_needed,
            tuple(_describe_vertex(row) for row in self._executions),
            tuple(EdgeDescription(e.source, e.target, e.partitioning) for e in self.job_graph.edges),
        )


def _describe_vertex(row: list[Execution]) -> VertexDescription:
    vertex = row[0].vertex
    return VertexDescription(
        vertex.id,
        vertex.name,
        tuple(operator.name for operator in vertex.operators),
        vertex.slot_sharing_group,
        vertex.parallelism,
        tuple(
            SubtaskDescription(
                vertex.id,
                vertex.name,
                e.id.index,
                vertex.parallelism,
                e.slot,
                e.state,
                tuple(e.machine.history),
            )
            for e in row
        ),
    )
