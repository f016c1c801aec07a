"""What the tests of the JobManager share: small JobGraphs, and a master whose time and slots the test moves."""

from __future__ import annotations

import socket

from tidegate.core.ids import AttemptNumber, EdgeId, JobId, OperatorId, SlotId, VertexId
from tidegate.core.options import Options
from tidegate.core.states import ExecutionState, JobStatus
from tidegate.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorSpec
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.job_master import JobMaster
from tidegate.protocol import messages as m
from tidegate.protocol.frames import ControlDecoder, control_frame
from tidegate.protocol.handshake import ClientHandshake, Hello


def operator(name: str, kind: str = "map") -> OperatorSpec:
    id = OperatorId(f"id-{name}")
    return OperatorSpec(id, None, name, kind, "", "int", b"", is_source=kind == "source")


def vertex(id: int, names: list[str], parallelism: int, group: str = "default") -> JobVertex:
    kinds = {"numbers": "source", "sink": "sink"}
    operators = tuple(operator(name, kinds.get(name, "map")) for name in names)
    return JobVertex(VertexId(id), " -> ".join(names), operators, (), parallelism, 128, group)


def edge(id: int, source: int, target: int) -> JobEdge:
    return JobEdge(EdgeId(id), VertexId(source), 0, None, VertexId(target), 0, "hash", False, b"")


def job_graph(parallelism: int = 2) -> JobGraph:
    """Two chains: 'numbers -> parse' and 'count -> sink', with one exchange between."""
    return JobGraph(
        "pv",
        (vertex(0, ["numbers", "parse"], parallelism), vertex(1, ["count", "sink"], parallelism)),
        (edge(0, 0, 1),),
    )


def address(slot: int) -> m.SlotAddress:
    return m.SlotAddress(SlotId(slot), f"host{slot}", 7000 + slot, 100 + slot)


def registration(slot: int) -> ev.MessageReceived:
    return ev.MessageReceived(SlotId(slot), m.RegisterSlot(address(slot), f"executor {slot}"))


class MasterKit:
    """A JobMaster and a clock; `do` hands it events and keeps every action."""

    def __init__(self, parallelism: int = 2, **options: object) -> None:
        self.graph = job_graph(parallelism)
        self.options = Options().with_keywords(**options)
        self.master = JobMaster(JobId("job"), AttemptNumber(0), self.graph, self.options)
        self.now_ms = 1_000
        self.actions: list[ev.Action | ev.AttemptEnded] = []
        self.moves: list[JobStatus] = []

    @property
    def slots(self) -> range:
        return range(self.master.graph.slots_needed)

    def do(self, *events: ev.Event) -> list[ev.Action | ev.AttemptEnded]:
        """What the master wants done, without its moves, which are kept in `moves`."""
        new: list[ev.Action | ev.AttemptEnded] = []
        for event in events:
            for result in self.master.handle(event, self.now_ms):
                if isinstance(result, ev.AttemptMoved):
                    self.moves.append(result.status)
                else:
                    new.append(result)
        self.actions += new
        return new

    def say(self, slot: int, *messages: m.SlotMessage) -> list[ev.Action | ev.AttemptEnded]:
        return self.do(*(ev.MessageReceived(SlotId(slot), message) for message in messages))

    def pass_ms(self, duration_ms: int, *, beating: bool = True) -> list[ev.Action | ev.AttemptEnded]:
        """Let time pass in ticks of 100 ms; living slots send heartbeats unless told otherwise."""
        new: list[ev.Action | ev.AttemptEnded] = []
        for _ in range(duration_ms // 100):
            self.now_ms += 100
            if beating:
                for slot in self.slots:
                    new += self.say(slot, m.SlotHeartbeat(1))
            new += self.do(ev.Tick())
        return new

    def to_waiting(self) -> MasterKit:
        self.do(ev.SubmissionRequested())
        return self

    def to_starting(self) -> MasterKit:
        self.to_waiting()
        self.do(ev.SlotsCounted(len(self.slots)), ev.GangStarted())
        return self

    def to_running(self) -> MasterKit:
        self.to_starting()
        self.do(*(registration(slot) for slot in self.slots))
        for slot in self.slots:
            self.states(slot, ExecutionState.INITIALIZING, ExecutionState.RUNNING)
        return self

    def states(self, slot: int, *states: ExecutionState) -> list[ev.Action | ev.AttemptEnded]:
        """All subtasks of a slot report these states, one after the other."""
        new: list[ev.Action | ev.AttemptEnded] = []
        for d in self.master.graph.deployments(SlotId(slot)):
            for state in states:
                new += self.say(slot, m.TaskStateChanged(d.vertex, d.subtask, state))
        return new

    def finish_slot(self, slot: int) -> list[ev.Action | ev.AttemptEnded]:
        return self.states(slot, ExecutionState.FINISHED) + self.say(slot, m.SlotFinished())

    def ends(self) -> list[ev.AttemptEnded]:
        return [a for a in self.actions if isinstance(a, ev.AttemptEnded)]

    def sent(self, kind: type, slot: int | None = None) -> list[ev.SendToSlot]:
        sends = [a for a in self.actions if isinstance(a, ev.SendToSlot) and isinstance(a.message, kind)]
        return [a for a in sends if slot is None or a.slot == slot]

    def failed_task(self, slot: int = 1, reason: str = "ValueError: bad") -> m.TaskFailed:
        return m.TaskFailed(
            VertexId(0), slot, "parse", reason, "Traceback (most recent call last):\n  x\n" + reason
        )


class SlotClient:
    """The slot's end of a control connection, blocking."""

    def __init__(
        self,
        connection: socket.socket,
        secret: bytes,
        slot: int,
        *,
        role: str = "control",
        job: str = "job",
        attempt: int = 3,
    ) -> None:
        self.socket = connection
        self.decoder = ControlDecoder()
        self.received: list[m.MasterMessage] = []
        handshake = ClientHandshake(secret, Hello(role, job, attempt, slot))  # type: ignore[arg-type]
        while not handshake.done:
            data = connection.recv(4096)
            if not data:
                raise ConnectionRefusedError
            connection.sendall(handshake.feed(data))

    def send(self, *messages: m.SlotMessage) -> None:
        self.socket.sendall(b"".join(control_frame(m.encode_message(message)) for message in messages))

    def next_message(self) -> m.MasterMessage:
        while not self.received:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.received += [m.decode_master_message(body) for body in self.decoder.feed(data)]
        return self.received.pop(0)
