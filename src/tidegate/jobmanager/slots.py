"""The slots of an attempt as the JobMaster sees them, and the table of them that a user can read."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from tidegate.core.ids import SlotId
from tidegate.protocol.messages import SlotAddress, SlotHeartbeat


class SlotState(enum.Enum):
    """Where a slot stands."""

    AWAITED = "awaited"
    REGISTERED = "registered"
    RUNNING = "running"
    FINISHED = "finished"
    LOST = "lost"


@dataclass(eq=False)
class Slot:
    """A registered slot; owned by the JobMaster."""

    address: SlotAddress
    executor: str
    last_heard_ms: int
    state: SlotState = SlotState.REGISTERED
    silent: bool = False
    heartbeat: SlotHeartbeat | None = None

    @property
    def lives(self) -> bool:
        """Whether its process is connected and has not said that it is done."""
        return self.state in (SlotState.REGISTERED, SlotState.RUNNING)

    def beat(self, heartbeat: SlotHeartbeat) -> None:
        """Keep the newest heartbeat; one without metrics leaves the metrics that are there."""
        if self.heartbeat is not None and not heartbeat.metrics:
            heartbeat = msgspec.structs.replace(heartbeat, metrics=self.heartbeat.metrics)
        self.heartbeat = heartbeat


class SlotDescription(msgspec.Struct, frozen=True):
    """One line of the slot table."""

    slot: SlotId
    state: SlotState
    host: str
    port: int
    pid: int
    executor: str
    subtasks: tuple[str, ...]
    """Each as `name (index/parallelism)`, index from 0."""
    stuck_ms: int = 0
    inside: str = ""
