"""The slots of an attempt as the JobMaster sees them: who has registered, who lives, who has fallen silent. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tidegate.core.ids import SlotId, VertexId
from tidegate.protocol.messages import SlotAddress, SlotHeartbeat


class SlotState(enum.Enum):
    """The states of a slot, as the JobMaster knows them."""

    AWAITED = "awaited"
    REGISTERED = "registered"
    RUNNING = "running"
    FINISHED = "finished"
    LOST = "lost"


@dataclass(eq=False)
class SlotRecord:
    """A registered slot; owned by the JobMaster."""

    address: SlotAddress
    executor: str
    last_heard_ms: int
    state: SlotState = SlotState.REGISTERED
    silent: bool = False
    heartbeat: SlotHeartbeat | None = None

    @property
    def lives(self) -> bool:
        """Whether its process is connected and has not finished."""
        return self.state in (SlotState.REGISTERED, SlotState.RUNNING)

    def beat(self, heartbeat: SlotHeartbeat) -> None:
        """Keep the newest heartbeat; if it has no metrics, keep the metrics of the one before."""
        if self.heartbeat is not None and not heartbeat.metrics:
            heartbeat = msgspec.structs.replace(heartbeat, metrics=self.heartbeat.metrics)
        self.heartbeat = heartbeat


class SlotDescription(msgspec.Struct, frozen=True):
    """One line of the slot table that a user can read."""

    slot: SlotId
    state: SlotState
    subtasks: tuple[str, ...]
    """Each as `name (index/parallelism)`, index from 0."""
    host: str = ""
    port: int = 0
    pid: int = 0
    executor: str = ""
    stuck_ms: int = 0
    inside: str = ""


class SlotTable:
    """All slots of an attempt. Only the JobMaster changes it; any thread may call `metrics` and `describe`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots: dict[SlotId, SlotRecord] = {}

    def __iter__(self) -> Iterator[tuple[SlotId, SlotRecord]]:
        return iter(sorted(self._slots.items()))

    def get(self, slot: SlotId) -> SlotRecord | None:
        """A slot that has registered, whether it still lives or not."""
        return self._slots.get(slot)

    def add(self, slot: SlotId, record: SlotRecord) -> None:
        self._slots[slot] = record

    def missing(self) -> list[SlotId]:
        """Slots that have never registered."""
        return [SlotId(i) for i in range(self.size) if i not in self._slots]

    def living(self) -> list[SlotId]:
        """Slots that are connected and have not finished, in order."""
        return [slot for slot, record in self if record.lives]

    @property
    def all_live(self) -> bool:
        """Whether every slot of the attempt is connected."""
        return len(self.living()) == self.size

    @property
    def all_finished(self) -> bool:
        done = sum(record.state is SlotState.FINISHED for record in self._slots.values())
        return done == self.size

    @property
    def all_silent(self) -> bool:
        """Whether no slot is left that can hear a message."""
        return all(record.silent or not record.lives for record in self._slots.values())

    def forgive(self, now_ms: int) -> None:
        """Measure every silence from now: the driver itself was held up."""
        for record in self._slots.values():
            record.last_heard_ms = now_ms

    def newly_silent(self, now_ms: int, timeout_ms: int) -> list[tuple[SlotId, SlotRecord, int]]:
        """Living slots that have been silent for too long, and for how long; each is named once per silence."""
        found = []
        for slot, record in self:
            silent_ms = now_ms - record.last_heard_ms
            if record.lives and not record.silent and silent_ms >= timeout_ms:
                record.silent = True
                found.append((slot, record, silent_ms))
        return found

    def addresses(self) -> tuple[SlotAddress, ...]:
        """The addresses of all registered slots, in order."""
        return tuple(record.address for _, record in self)

    def metrics(self) -> list[tuple[VertexId, bytes]]:
        """The latest metrics of all subtasks with their vertices, encoded as the slots sent them."""
        beats = [record.heartbeat for record in list(self._slots.values())]
        return [entry for beat in beats if beat is not None for entry in beat.metrics]

    def describe(self, slot: SlotId, subtasks: tuple[str, ...]) -> SlotDescription:
        record = self._slots.get(slot)
        if record is None:
            return SlotDescription(slot, SlotState.AWAITED, subtasks)
        address, beat = record.address, record.heartbeat or SlotHeartbeat(0)
        return SlotDescription(
            slot,
            record.state,
            subtasks,
            address.host,
            address.port,
            address.pid,
            record.executor,
            beat.stuck_ms,
            beat.inside,
        )
