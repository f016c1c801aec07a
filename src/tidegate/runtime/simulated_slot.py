"""A slot of a simulated job: the real `Slot` with queues instead of sockets, and uploads that the scheduler chooses.

It may end as a real process does: by itself, by losing its JobManager, or killed in the middle of anything. After it
is killed inside a call (`ProcessKilled`, raised at a failpoint) it sends nothing more, whatever the call still does.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidegate.core.clock import ManualClock
from tidegate.core.ids import AttemptNumber, JobId, SlotId
from tidegate.core.options import Options
from tidegate.protocol import messages as m
from tidegate.protocol.frames import parse_data_header
from tidegate.taskmanager.slot import Slot
from tidegate.taskmanager.slot_process import SlotProcess

Frame = tuple[bytes, bytes]


class ProcessKilled(BaseException):
    """The current simulated process is killed; raised at a failpoint, caught only by the simulation."""


class Actor(Protocol):
    """A simulated process."""

    killed: bool


@dataclass
class World:
    """What all processes of a simulation share."""

    clock: ManualClock
    options: Options
    actor: Actor | None = None
    """The process whose code runs now."""


class SimulatedSlot:
    """One slot process of one attempt. The simulation calls one method for each event."""

    def __init__(
        self,
        id: SlotId,
        job_id: JobId,
        attempt: AttemptNumber,
        world: World,
        send_frame: Callable[[SlotId, SlotId, Frame], None],
    ) -> None:
        self.id = id
        self.attempt = attempt
        self.name = f"{attempt}.{id}" if attempt else str(id)
        self.inbox: deque[bytes] = deque()
        self.outbox: deque[bytes] = deque()
        self.ended = False
        """Whether the process is gone."""
        self.killed = False
        self.paused = False
        """Whether the process is stopped (SIGSTOP): it does nothing, and other processes do not know."""
        self.connected = True
        """Whether the JobManager keeps its connection."""
        self.doomed = False
        """Whether Spark is about to kill it."""
        self.uploads = uploads = SimulatedUploads(self.wake)
        self._world = world
        self._send_frame = send_frame
        self._stalled = False

        def make(deploy: m.Deploy) -> Slot:
            clock, options = world.clock, world.options
            return Slot(id, job_id, attempt, deploy, options, clock, self, self.say, self.wake, uploads)

        self._process = SlotProcess(make, uploads.finish, self.say, self._beat)
        self._beats = 0
        self._next_beat_ns = 0
        self.say(m.RegisterSlot(m.SlotAddress(id, "simulated", 0, 0), "simulated"))

    # ---- what the Slot uses ----

    def say(self, message: m.SlotMessage) -> None:
        if not self.killed and self.connected:
            self.outbox.append(m.encode_message(message))

    def send(self, peer: SlotId, header: bytes, body: object) -> None:
        if not self.killed:
            self._send_frame(self.id, peer, (header, bytes(memoryview(body))))  # type: ignore[arg-type]

    def wake(self) -> None:
        """Let the slot step again: there may be something to do."""
        self._stalled = False

    # ---- what can happen ----

    @property
    def slot(self) -> Slot | None:
        """Its tasks, after the deployment."""
        return self._process.slot

    @property
    def is_active(self) -> bool:
        """Whether its process is neither gone nor stopped."""
        return not self.ended and not self.paused

    @property
    def is_running(self) -> bool:
        return self.is_active and self._process.is_running

    def can_step(self) -> bool:
        """Whether a step may do something."""
        if not self.is_running or self.slot is None:
            return False
        if not self._stalled:
            return True
        wake = self.slot.next_wake_ns()
        return wake is not None and wake <= self._world.clock.monotonic_ns()

    def next_wake_ns(self) -> int | None:
        """When it wants to step even if nothing arrives."""
        return self.slot.next_wake_ns() if self.is_running and self.slot is not None else None

    # ---- what happens ----

    def beat_if_due(self, interval_ns: int) -> None:
        now_ns = self._world.clock.monotonic_ns()
        if self.is_active and now_ns >= self._next_beat_ns:
            self._next_beat_ns = now_ns + interval_ns
            self._beat()

    def take_step(self) -> str | None:
        """Let every task do a unit of work."""
        slot = self.slot
        assert slot is not None

        def step() -> None:
            self._stalled = not (slot.step() or slot.flush())
            self._close_if_failed()
            if slot.is_done:
                self._process.say_goodbye()

        self._run(step)
        return "nothing to do" if self._stalled else None

    def take_message(self) -> str:
        message = m.decode_master_message(self.inbox.popleft())
        self._stalled = False

        def receive() -> None:
            self._process.receive(message)
            if self._process.is_cancelled:
                self._process.say_goodbye()
            self._close_if_failed()

        self._run(receive)
        return type(message).__name__

    def take_frame(self, frame: Frame) -> str:
        raw, body = frame
        header = parse_data_header(raw)
        self._stalled = False
        slot = self.slot
        if slot is not None and self.is_running:
            self._run(lambda: slot.receive_frame(header, memoryview(body)))
        kind, channel, length, extra = header
        return f"kind {kind}, channel {'/'.join(map(str, channel))}, {length} bytes, extra {extra}"

    def take_upload(self) -> None:
        """Perform the next asynchronous part of a checkpoint."""
        work = self.uploads.waiting.popleft()
        self._run(work)

    def lose_peer(self, peer: SlotId) -> None:
        """The connection from a peer was reset."""
        if self.is_running:
            self._process.peer_lost(peer, "the connection was reset")

    def lose_control(self) -> None:
        """The slot notices that the JobManager is gone, and ends."""
        self.end()

    def end(self) -> None:
        """End the process in good order."""
        if not self.ended:
            self._run(self._process.close)
            self.ended = True

    def die(self) -> None:
        """Kill the process: from now on it sends, closes and finishes nothing."""
        self.killed = self.ended = True
        self.uploads.waiting.clear()
        with contextlib.suppress(BaseException):
            self._process.release()

    # ---- inside ----

    def _run(self, action: Callable[[], object]) -> None:
        """Run code of this process, which may be killed while it runs."""
        world = self._world
        before, world.actor = world.actor, self
        try:
            action()
        except ProcessKilled:
            assert self.killed
        finally:
            world.actor = before
        if self.killed:
            self.die()

    def _close_if_failed(self) -> None:
        if self.slot is not None and self.slot.failure is not None:
            self._process.close()

    def _beat(self) -> None:
        self._beats += 1
        self.say(m.SlotHeartbeat(self._beats, self._process.metrics()))


class SimulatedUploads:
    """The upload thread of a simulated slot: each upload runs when the scheduler chooses it."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.waiting: deque[Callable[[], None]] = deque()
        self._wake = wake

    def submit(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def post(self, then: Callable[[], None]) -> None:
        """Have the mailbox run this."""
        self.posted.append(then)
        self._wake()

    def finish(self) -> None:
        while self.waiting:
            self.waiting.popleft()()
