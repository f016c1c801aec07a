"""A whole job in one thread: the real JobMaster, slots, channels and operators on simulated transports and time.

Everything that happens (a message arrives, a frame arrives, a slot takes a step, time passes) is an event that a seeded
scheduler chooses: one seed, one order. Messages and frames are encoded and decoded as on a real wire.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from tidegate.core.clock import ManualClock
from tidegate.core.errors import JobCanceledError, JobFailedError
from tidegate.core.ids import AttemptNumber, JobId, OperatorId, SlotId
from tidegate.core.options import Options
from tidegate.core.states import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.source_coordinator import make_coordinators
from tidegate.metrics.snapshot import JobMetrics, SubtaskMetrics, VertexMetrics
from tidegate.protocol import messages as m
from tidegate.protocol.frames import parse_data_header
from tidegate.taskmanager.slot import Slot

_TICK_NS = 50_000_000
_EVENT_NS = 1_000


class Simulation:
    """One attempt of a job. `run_one_event` until `status` is terminal; `trace` tells what happened."""

    def __init__(
        self, job_graph: JobGraph, options: Options, seed: int = 0, available_slots: int | None = None
    ) -> None:
        self.clock = ManualClock(start_ms=1)
        self.job_graph = job_graph
        self.master = JobMaster(JobId("simulated"), AttemptNumber(0), job_graph, options)
        self.message = ""
        self.error: type[JobFailedError] = JobFailedError
        self.collected: dict[OperatorId, deque[ev.DeliverCollected]] = {}
        self.consumers: dict[OperatorId, Callable[[ev.DeliverCollected], None]] = {}
        """Who takes the batches of a sink at once (print sinks)."""
        self.waiting: list[str] = []
        self.trace: list[str] = []
        self._options = options
        self._random = random.Random(seed)
        self._available = available_slots
        self._coordinators = {c.operator: c for c in make_coordinators(job_graph, self.clock)}
        self.records_expected = {c.operator: c.records_expected for c in self._coordinators.values()}
        """How many records each source will give, where it knows."""
        self._slots: dict[SlotId, _SimulatedSlot] = {}
        self._events: deque[ev.Event] = deque()
        self._frames: dict[tuple[SlotId, SlotId], deque[tuple[bytes, bytes]]] = {}
        self._next_tick_ns = 0
        self._gang_ended = False
        self._post(ev.SubmissionRequested())

    @property
    def status(self) -> JobStatus:
        """Where the job stands."""
        return self.master.status

    def cancel(self, reason: str = "cancelled by its client") -> None:
        """Ask the JobMaster to stop the job."""
        self._post(ev.CancelRequested(reason))

    def run(self) -> JobStatus:
        """Run to the end."""
        while not self.status.is_terminal:
            self.run_one_event()
        return self.status

    def run_one_event(self) -> None:
        """Let one thing happen, chosen by the seed among all that could; if none could, let time pass."""
        choices = self._choices()
        if choices:
            name, action = choices[self._random.randrange(len(choices))]
            self.clock.advance_ns(_EVENT_NS)
            detail = action()
            self.trace.append(name if detail is None else f"{name}: {detail}")
        else:
            self._let_time_pass()
        self._tick_if_due()

    def close(self) -> None:
        """Release files and threads of readers, writers and enumerators."""
        for slot in list(self._slots.values()):
            slot.end()
        for coordinator in self._coordinators.values():
            coordinator.close()

    # ---- what can happen ----

    def _choices(self) -> list[tuple[str, Callable[[], str | None]]]:
        """What could happen now: a name and a call that makes it happen and returns a detail for the trace."""
        choices: list[tuple[str, Callable[[], str | None]]] = []
        if self._events:
            choices.append(("event", self._take_event))
        for slot in self._slots.values():
            if slot.outbox:
                choices.append((f"message from {slot.id}", functools.partial(self._take_message, slot)))
            if slot.inbox:
                choices.append((f"message to {slot.id}", slot.take_message))
            if slot.can_step():
                choices.append((f"step {slot.id}", slot.take_step))
        for (source, target), queue in self._frames.items():
            slot = self._slots[target]
            if queue and slot.slot is not None:
                choices.append((f"frame {source}->{target}", functools.partial(slot.take_frame, queue)))
        return choices

    def _let_time_pass(self) -> None:
        now = self.clock.monotonic_ns()
        wakes = [w for s in self._slots.values() if (w := s.next_wake_ns()) is not None]
        target = min([self._next_tick_ns, *wakes])
        self.clock.advance_ns(max(0, target - now) + 1)

    def _tick_if_due(self) -> None:
        if self.clock.monotonic_ns() < self._next_tick_ns:
            return
        self._next_tick_ns = self.clock.monotonic_ns() + _TICK_NS
        for slot in self._slots.values():
            slot.beat()
        for coordinator in self._coordinators.values():
            for event in coordinator.poll_if_due():
                self._handle(event)
        self._handle(ev.Tick())

    # ---- the JobManager's side ----

    def _post(self, event: ev.Event) -> None:
        self._events.append(event)

    def _take_event(self) -> str:
        event = self._events.popleft()
        self._handle(event)
        return type(event).__name__

    def _handle(self, event: ev.Event) -> None:
        for action in self.master.handle(event, self.clock.monotonic_ns() // 1_000_000):
            self._perform(action)

    def _perform(self, action: ev.Action) -> None:
        match action:
            case ev.StartEnumerators():
                for coordinator in self._coordinators.values():
                    self._events.extend(coordinator.start())
            case ev.AskEnumerator(operator, subtask):
                self._events.extend(self._coordinators[operator].request_split(subtask))
            case ev.CountSlots():
                self._post(ev.SlotsCounted(self._available))
            case ev.StartGang(slots):
                for i in range(slots):
                    self._start_slot(SlotId(i))
                self._post(ev.GangStarted())
            case ev.SendToSlot(slot, message):
                self._slots[slot].inbox.append(m.encode_message(message))
            case ev.CloseSlot(slot):
                self._slots[slot].end()
            case ev.CancelGang():
                for simulated in self._slots.values():
                    simulated.end()
            case ev.DeliverCollected():
                self.collected.setdefault(action.operator, deque()).append(action)
                consume = self.consumers.get(action.operator)
                if consume is not None and (batch := self.take_collected(action.operator)) is not None:
                    consume(batch)
            case ev.ReportWaiting(text):
                self.waiting.append(text)
            case ev.EndJob(_, message, error):
                self.message = message
                self.error = error
        self._check_gang()

    def _check_gang(self) -> None:
        if self._slots and not self._gang_ended and all(s.ended for s in self._slots.values()):
            self._gang_ended = True
            self._post(ev.GangEnded(None))

    def _start_slot(self, id: SlotId) -> None:
        slot = _SimulatedSlot(id, self._options, self.clock, self._send_frame)
        self._slots[id] = slot
        slot.say(m.RegisterSlot(m.SlotAddress(id, "simulated", 0, 0), "simulated"))

    def _take_message(self, slot: _SimulatedSlot) -> str:
        message = m.decode_slot_message(slot.outbox.popleft())
        self._handle(ev.MessageReceived(slot.id, message))
        if isinstance(message, m.SlotFinished):
            slot.end()
            self._check_gang()
        return type(message).__name__

    def _send_frame(self, source: SlotId, target: SlotId, header: bytes, body: bytes) -> None:
        self._frames.setdefault((source, target), deque()).append((header, body))

    def take_collected(self, operator: OperatorId) -> ev.DeliverCollected | None:
        """The next batch that a sink sent to the driver, acknowledged; None if there is none now."""
        queue = self.collected.get(operator)
        if not queue:
            return None
        batch = queue.popleft()
        self._post(ev.CollectedConsumed(batch.operator, batch.subtask, batch.sequence))
        return batch


class _SimulatedSlot:
    """A slot with queues instead of sockets."""

    def __init__(
        self,
        id: SlotId,
        options: Options,
        clock: ManualClock,
        send_frame: Callable[[SlotId, SlotId, bytes, bytes], None],
    ) -> None:
        self.id = id
        self.inbox: deque[bytes] = deque()
        self.outbox: deque[bytes] = deque()
        self.slot: Slot | None = None
        self.ended = False
        self._options = options
        self._clock = clock
        self._send_frame = send_frame
        self._stalled = False
        self._said_goodbye = False
        self._beats = 0
        self.uploads = _SimulatedUploads(self.wake)

    def say(self, message: m.SlotMessage) -> None:
        self.outbox.append(m.encode_message(message))

    def send(self, peer: SlotId, header: bytes, body: object) -> None:
        self._send_frame(self.id, peer, header, bytes(memoryview(body)))  # type: ignore[arg-type]

    def beat(self) -> None:
        if not self.ended:
            self._beats += 1
            metrics = () if self.slot is None else self.slot.metrics()
            self.say(m.SlotHeartbeat(self._beats, metrics))

    def wake(self) -> None:
        self._stalled = False

    def can_step(self) -> bool:
        slot = self.slot
        if slot is None or self.ended or self._said_goodbye:
            return False
        wake = slot.next_wake_ns()
        return not self._stalled or (wake is not None and wake <= self._clock.monotonic_ns())

    def next_wake_ns(self) -> int | None:
        return None if self.slot is None or self.ended or self._said_goodbye else self.slot.next_wake_ns()

    def take_step(self) -> str | None:
        assert self.slot is not None
        self._stalled = not (self.slot.step() or self.slot.flush())
        if self.slot.is_done:
            self._goodbye()
        return "nothing to do" if self._stalled else None

    def take_message(self) -> str:
        self._stalled = False
        message = m.decode_master_message(self.inbox.popleft())
        if isinstance(message, m.Deploy):
            self.slot = Slot(
                self.id,
                "simulated",
                0,
                message,
                self._options,
                self._clock,
                self,
                self.say,
                self.wake,
                self.uploads,
            )
            if self.slot.failure is None:
                self.slot.open()
        elif isinstance(message, m.Cancel):
            self._goodbye()
        elif self.slot is not None and not isinstance(message, m.MasterHeartbeat):
            self.slot.receive_message(message)
        return type(message).__name__

    def take_frame(self, queue: deque[tuple[bytes, bytes]]) -> str:
        raw, body = queue.popleft()
        header = parse_data_header(raw)
        self._stalled = False
        if self.slot is not None and not self.ended and not self._said_goodbye:
            self.slot.receive_frame(header, memoryview(body))
        kind, channel, length, extra = header
        return f"kind {kind}, channel {'/'.join(map(str, channel))}, {length} bytes, extra {extra}"

    def end(self) -> None:
        """The process is gone."""
        if not self.ended:
            self.ended = True
            if self.slot is not None and not self._said_goodbye:
                self.slot.close()

    def _goodbye(self) -> None:
        if not self._said_goodbye:
            self._said_goodbye = True
            if self.slot is not None:
                self.slot.close()
            self.beat()  # with the final numbers
            self.say(m.SlotFinished())


class _SimulatedUploads:
    """Uploads that happen when the scheduler chooses."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.waiting: deque[Callable[[], None]] = deque()
        self._wake = wake

    def submit(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def post(self, then: Callable[[], None]) -> None:
        self.posted.append(then)
        self._wake()


class InProcessClient:
    """The `JobClient` of a simulated job. The job moves only while one of the calls waits for it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self.simulation.master.job_id

    @property
    def job_name(self) -> str:
        """The job's name."""
        return self.simulation.job_graph.name

    def status(self) -> JobStatus:
        """Where the job stands now."""
        return self.simulation.status

    def cancel(self, timeout_s: float = 10.0) -> None:
        """Stop the job."""
        if not self.status().is_terminal:
            self.simulation.cancel()
            self.simulation.run()
        self.simulation.close()

    def result(self, timeout_s: float | None = None) -> JobMetrics:
        """Run to the end; return the final metrics, or raise the job's error."""
        self.simulation.run()
        return self._final()

    def _final(self) -> JobMetrics:
        self.simulation.close()
        if self.status() is JobStatus.FAILED:
            raise self.simulation.error(self.simulation.message)
        if self.status() is JobStatus.CANCELED:
            raise JobCanceledError(self.simulation.message)
        return self.metrics()

    def metrics(self) -> JobMetrics:
        """The latest metrics that the slots reported."""
        simulation = self.simulation
        found: dict[int, list[SubtaskMetrics]] = {}
        for vertex, data in simulation.master.subtask_metrics():
            found.setdefault(vertex, []).append(msgspec.msgpack.decode(data, type=SubtaskMetrics))
        vertices = tuple(
            VertexMetrics(
                vertex=v.id,
                name=v.name,
                parallelism=v.parallelism,
                subtasks=tuple(sorted(found.get(v.id, ()), key=lambda s: s.subtask)),
                records_expected=simulation.records_expected.get(v.operators[0].id),
            )
            for v in simulation.job_graph.vertices
        )
        return JobMetrics(
            name=self.job_name,
            status=self.status().name,
            elapsed_ms=simulation.clock.now_ms(),
            vertices=vertices,
            job_id=self.job_id,
        )

    def collected_batches(self, operator: OperatorId) -> Iterator[ev.DeliverCollected]:
        """The batches that a sink sends to the driver, while the job runs on behind them."""
        simulation = self.simulation
        try:
            while True:
                batch = simulation.take_collected(operator)
                if batch is not None:
                    yield batch
                elif simulation.status.is_terminal:
                    break
                else:
                    simulation.run_one_event()
            self._final()
        finally:
            if not simulation.status.is_terminal:
                self.cancel()
