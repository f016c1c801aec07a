"""What the driver of a job acts on: slots, their gang, enumerators, storage, collected results.

No call waits. Answers are posted to the driver as events, in their order: those of an attempt inside `OfAttempt`, and
`PortClosed` as the last word of a port. The two sides of each port are in `tidegate.runtime`: threads and sockets, or
queues that a seed chooses from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from tidegate.core.ids import AttemptNumber, OperatorId, SlotId
from tidegate.jobmanager.checkpoint.storage_orders import StorageOrder
from tidegate.jobmanager.events import DeliverCollected
from tidegate.jobmanager.failover.events import JobEvent
from tidegate.protocol.messages import MasterMessage

PortName = Literal["enumerators", "gang", "storage"]


@dataclass(frozen=True, slots=True)
class PortClosed:
    """The answer to `close`: everything that was ordered before is done, and nothing of the port is left."""

    port: PortName


DriverEvent = JobEvent | PortClosed


class Slots(Protocol):
    """The control connections of the slots of one attempt."""

    def begin_attempt(self, attempt: AttemptNumber) -> None:
        """From now on take slots of this attempt alone; connections of earlier ones end without an event."""
        ...

    def end_attempt(self) -> None:
        """Close all connections without an event, and take no slot until the next attempt."""
        ...

    def send(self, slot: SlotId, message: MasterMessage) -> None:
        """Send a message; to a slot that is gone: drop it."""
        ...

    def close_slot(self, slot: SlotId) -> None:
        """Close a connection once everything for it is sent, without an event."""
        ...

    def close(self) -> None:
        """The job has ended: as `end_attempt`, and nobody can connect any more. Has no answer."""
        ...


class Gang(Protocol):
    """The processes of one attempt after the other."""

    def count_slots(self, attempt: AttemptNumber) -> None:
        """Answered by `SlotsCounted` or `CountingFailed`."""
        ...

    def start(self, attempt: AttemptNumber, slots: int) -> None:
        """Start this many slots, all or none; answered by `GangStarted` and, in the end, `GangEnded`."""
        ...

    def cancel(self, attempt: AttemptNumber) -> None:
        """End the processes; answered by `GangEnded`."""
        ...

    def close(self) -> None:
        """Release everything; answered by `PortClosed`."""
        ...


class Enumerators(Protocol):
    """The split enumerators of one attempt after the other; they may do slow I/O."""

    def begin(self, attempt: AttemptNumber, restored: Mapping[OperatorId, bytes] | None) -> None:
        """Make the enumerators of an attempt from these states.

        None: from where those of the attempt before were when they were stopped. If nobody knows, `EnumeratorFailed`.
        """
        ...

    def start(self) -> None:
        """Start them."""
        ...

    def request_split(self, operator: OperatorId, subtask: int) -> None:
        """A reader is out of splits; answered by the enumerator, if it has something to say."""
        ...

    def snapshot(self, checkpoint_id: int) -> None:
        """Take the state of all, after what they were asked before; answered by an `EnumeratorAnswer`."""
        ...

    def stop(self) -> None:
        """The attempt has ended: note where they are and close them. What they were asked before is dropped."""
        ...

    def close(self) -> None:
        """As `stop`; answered by `PortClosed`."""
        ...


class Storage(Protocol):
    """The checkpoint storage: orders are done one after the other."""

    @property
    def may_be_resumed(self) -> bool:
        """Whether another driver may go on from what is stored."""
        ...

    def perform(self, order: StorageOrder) -> None:
        """Answered as `StorageOrders.perform` answers."""
        ...

    def close(self) -> None:
        """Do what was ordered before, then end; answered by `PortClosed`."""
        ...


class Collected(Protocol):
    """Where records go that sinks send to the program in the driver."""

    def deliver(self, attempt: AttemptNumber, batch: DeliverCollected) -> None:
        """Hand a batch over; answered by `CollectedConsumed` when the program has taken it."""
        ...

    def end(self, error: Exception | None) -> None:
        """Nothing follows; the program gets the error after the last batch."""
        ...


@dataclass(frozen=True)
class Ports:
    """All that one driver acts on."""

    slots: Slots
    gang: Gang
    enumerators: Enumerators
    storage: Storage | None
    """None: the job neither takes nor restores checkpoints."""
    collected: Collected
