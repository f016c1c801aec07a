"""Ports: what the driver of a job acts on (slots, their gang, enumerators, storage, collected results).

No call blocks. Ports answer by posting events to the driver, in order: those of an attempt inside `OfAttempt`, and
`PortClosed` as the last one of a port. `tidegate.runtime` implements each port twice: with threads and sockets, and
with queues that a seed chooses from.
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
    """The answer to `close`: all earlier orders are done, and nothing of the port is left."""

    port: PortName


DriverEvent = JobEvent | PortClosed


class Slots(Protocol):
    """The control connections of the slots of one attempt."""

    def begin_attempt(self, attempt: AttemptNumber) -> None:
        """From now on accept slots of this attempt only; close connections of earlier ones without an event."""
        ...

    def end_attempt(self) -> None:
        """Close all connections without an event, and accept no slot until the next attempt."""
        ...

    def send(self, slot: SlotId, message: MasterMessage) -> None:
        """Send a message; to a slot that is gone: drop it."""
        ...

    def close_slot(self, slot: SlotId) -> None:
        """Close a connection after everything for it is sent, without an event."""
        ...

    def close(self) -> None:
        """As `end_attempt`, for good: the job has ended. Has no answer."""
        ...


class Gang(Protocol):
    """The processes of one attempt after the other."""

    def count_slots(self, attempt: AttemptNumber) -> None:
        """Answered by `SlotsCounted` or `CountingFailed`."""
        ...

    def start(self, attempt: AttemptNumber, slots: int) -> None:
        """Start this many slots, all or none; answered by `GangStarted` and, at the end, `GangEnded`."""
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

        None: from the states that those of the previous attempt had when they were stopped. If these are not known,
        the answer is `EnumeratorFailed`.
        """
        ...

    def start(self) -> None: ...

    def request_split(self, operator: OperatorId, subtask: int) -> None:
        """A reader has no splits left; the enumerator may answer, now or later."""
        ...

    def snapshot(self, checkpoint_id: int) -> None:
        """Take the states of all, after all earlier requests; answered by an `EnumeratorAnswer`."""
        ...

    def stop(self) -> None:
        """The attempt has ended: keep their states and close them. Requests that are still queued are dropped."""
        ...

    def close(self) -> None:
        """As `stop`; answered by `PortClosed`."""
        ...


class Storage(Protocol):
    """The checkpoint storage: orders are done one after the other."""

    @property
    def may_be_resumed(self) -> bool:
        """Whether another driver may resume the job from what is stored."""
        ...

    def perform(self, order: StorageOrder) -> None:
        """Answered as `StorageOrders.perform` answers."""
        ...

    def close(self) -> None:
        """Perform all earlier orders, then end; answered by `PortClosed`."""
        ...


class Collected(Protocol):
    """Receives the records that sinks send to the program in the driver."""

    def deliver(self, attempt: AttemptNumber, batch: DeliverCollected) -> None:
        """Hand a batch over; answered by `CollectedConsumed` when the program has taken it."""
        ...

    def end(self, error: Exception | None) -> None:
        """No batch follows; the program gets the error after the last batch."""
        ...


@dataclass(frozen=True)
class Ports:
    """The ports of one driver."""

    slots: Slots
    gang: Gang
    enumerators: Enumerators
    storage: Storage | None
    """None: the job neither takes nor restores checkpoints."""
    collected: Collected
