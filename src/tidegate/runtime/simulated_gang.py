"""The slots of one attempt and the network between them, as a simulated Spark starts and ends them.

When a slot dies, some of the frames that it had sent may still arrive; then its peers see the loss. Spark ends the gang
at any later time: the JobManager may learn that before, after or without learning of the lost slot, and slots that
Spark has cancelled may run on for a while.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tidegate.core.ids import AttemptNumber, JobId, SlotId
from tidegate.jobmanager import events as ev
from tidegate.protocol import messages as m
from tidegate.runtime.simulated_slot import Frame, SimulatedSlot, World

Step = Callable[[], str | None]


class Choice(NamedTuple):
    """Something that could happen now; `happen` returns a detail for the trace."""

    name: str
    happen: Step


class SimulatedGang:
    """One attempt's processes. `post` gets the events for the JobManager, `hear` the messages of slots."""

    def __init__(
        self,
        job_id: JobId,
        attempt: AttemptNumber,
        slots: int,
        world: World,
        rng: random.Random,
        post: Callable[[ev.Event], None],
        hear: Callable[[SimulatedSlot, m.SlotMessage], None],
    ) -> None:
        self.attempt = attempt
        self.job_id = job_id
        self.ended = False
        """Whether the host has reported its end."""
        self._ending: str | None = None
        self._rng = rng
        self._post = post
        self._hear = hear
        self._buried: set[SlotId] = set()
        self._broken: set[tuple[SlotId, SlotId]] = set()
        self._frames: dict[tuple[SlotId, SlotId], deque[Frame | None]] = {}
        self.slots = {
            SlotId(i): SimulatedSlot(SlotId(i), job_id, attempt, world, self._send_frame)
            for i in range(slots)
        }

    @property
    def lives(self) -> bool:
        """Whether one of its processes exists, or the JobManager has yet to notice the end of one."""
        return any(not s.ended or s.connected for s in self.slots.values())

    def choices(self) -> Iterator[Choice]:
        for slot in self.slots.values():
            yield from self._slot_choices(slot)
        for (source, target), queue in self._frames.items():
            slot = self.slots[target]
            if queue and (slot.slot is not None or queue[0] is None) and slot.is_active:
                yield Choice(f"frame {source}->{slot.name}", partial(self._take_frame, source, slot, queue))
        if self._ending is not None:
            yield Choice("gang ends", self._end)

    def _slot_choices(self, slot: SimulatedSlot) -> Iterator[Choice]:
        if slot.killed and slot.connected and not slot.outbox:
            yield Choice(f"disconnect {slot.name}", partial(self._disconnect, slot))
        if slot.outbox and slot.connected:
            yield Choice(f"message from {slot.name}", partial(self._take_message, slot))
        if not slot.is_active:
            return
        if slot.inbox:
            yield Choice(f"message to {slot.name}", slot.take_message)
        elif not slot.connected:
            yield Choice(f"control lost {slot.name}", partial(_no_detail, slot.lose_control))
        if slot.can_step():
            yield Choice(f"step {slot.name}", slot.take_step)
        if slot.uploads.waiting:
            yield Choice(f"upload {slot.name}", partial(_no_detail, slot.take_upload))
        if slot.doomed:
            yield Choice(f"kill {slot.name}", partial(_no_detail, partial(self.kill, slot)))

    # ---- the JobManager and Spark ----

    def send(self, slot: SlotId, message: m.MasterMessage) -> None:
        """Deliver a message of the JobManager; dropped if the slot is gone."""
        found = self.slots.get(slot)
        if found is not None and found.connected and not found.ended:
            found.inbox.append(m.encode_message(message))

    def disconnect_all(self) -> None:
        """The JobManager has closed its connections, or is dead."""
        for slot in self.slots.values():
            slot.connected = False
            slot.outbox.clear()

    def cancel(self, *, gently: bool) -> None:
        """Have Spark end it: at once and in good order, or with a kill at any later time."""
        for slot in self.slots.values():
            if gently:
                slot.end()
            elif not slot.ended:
                slot.doomed = True
        if not gently and not self.ended:
            self._ending = self._ending or "the stage was cancelled"

    def look(self) -> None:
        """After every event: clean up after slots that were killed, and report when all have ended."""
        for slot in self.slots.values():
            if slot.killed and slot.id not in self._buried:
                self._bury(slot)
        if not self.ended and all(s.ended for s in self.slots.values()):
            killed = any(s.killed for s in self.slots.values())
            if not killed:
                self.ended = True
                self._ending = None
                self._post(ev.GangEnded(None))
            elif self._ending is None:
                self._ending = "a task of the stage was lost"

    def close(self) -> None:
        for slot in self.slots.values():
            slot.end()

    # ---- faults ----

    def kill(self, slot: SimulatedSlot) -> None:
        """Kill a process; what it had not sent yet is lost."""
        if not slot.ended:
            slot.die()

    def _bury(self, slot: SimulatedSlot) -> None:
        self._buried.add(slot.id)
        kept = self._rng.randint(0, len(slot.outbox))
        while len(slot.outbox) > kept:
            slot.outbox.pop()
        slot.inbox.clear()
        for peer in self.slots.values():
            if peer is not slot:
                self.break_frames(slot.id, peer.id)
                self._frames.pop((peer.id, slot.id), None)
        if self._rng.random() < 0.5:
            # When one task is gone, Spark sooner or later ends the others too.
            self._ending = self._ending or "a task of the stage was lost"

    def cut_control(self, slot: SimulatedSlot) -> None:
        """Break the control connection: the JobManager sees that at once, the slot later."""
        if slot.connected:
            slot.outbox.clear()
            self._disconnect(slot)

    def break_frames(self, source: SlotId, target: SlotId) -> None:
        """Lose what one slot sends to another, from some point on and for ever; the other sees that."""
        if (source, target) in self._broken:
            return
        self._broken.add((source, target))
        queue = self._frames.setdefault((source, target), deque())
        keep = self._rng.randint(0, len(queue))
        while len(queue) > keep:
            queue.pop()
        queue.append(None)

    # ---- what happens ----

    def _send_frame(self, source: SlotId, target: SlotId, frame: Frame) -> None:
        if (source, target) not in self._broken and not self.slots[target].ended:
            self._frames.setdefault((source, target), deque()).append(frame)

    def _take_frame(self, source: SlotId, slot: SimulatedSlot, queue: deque[Frame | None]) -> str | None:
        frame = queue[0]
        if frame is not None:
            queue.popleft()
            return slot.take_frame(frame)
        self._frames[source, slot.id] = deque()
        slot.lose_peer(source)
        return "lost"

    def _take_message(self, slot: SimulatedSlot) -> str:
        message = m.decode_slot_message(slot.outbox.popleft())
        self._hear(slot, message)
        if isinstance(message, m.SlotFinished):
            slot.end()
        return type(message).__name__

    def _disconnect(self, slot: SimulatedSlot) -> None:
        slot.connected = False
        self._post(ev.SlotDisconnected(slot.id, "the connection was closed by the other side"))

    def _end(self) -> None:
        reason, self._ending = self._ending, None
        self.ended = True
        for slot in self.slots.values():
            if not slot.ended:
                slot.doomed = True
        self._post(ev.GangEnded(reason))


def _no_detail(happen: Callable[[], None]) -> None:
    happen()
