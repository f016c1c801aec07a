"""SlotProcess: the life of a slot, from its deployment to its last message. A mailbox loop drives it.

1. `Deploy`: the tasks are made and opened. The loop steps them.
2. A task fails: the loop closes the process and waits for `Cancel`, so that the JobManager learns the cause first.
3. All tasks are done, or `Cancel` has come: pending uploads are finished and the tasks are closed. The last heartbeat
   has the final metrics, and `SlotFinished` is the last message.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core.ids import SlotId, VertexId
from tidegate.protocol import messages as m
from tidegate.taskmanager.slot import Slot


class SlotProcess:
    """One slot of one attempt. All calls but `metrics` come from the thread of its loop."""

    def __init__(
        self,
        make: Callable[[m.Deploy], Slot],
        finish_uploads: Callable[[], None],
        send: Callable[[m.SlotMessage], None],
        beat: Callable[[], None],
    ) -> None:
        self.slot: Slot | None = None
        self.is_cancelled = False
        self._make = make
        self._finish_uploads = finish_uploads
        self._send = send
        self._beat = beat
        self._is_closed = False
        self._has_said_goodbye = False

    @property
    def is_running(self) -> bool:
        """Whether it has tasks that are open."""
        return self.slot is not None and not self._is_closed

    def receive(self, message: m.MasterMessage) -> None:
        match message:
            case m.Deploy():
                if self.slot is None:
                    self.slot = self._make(message)
                    if self.slot.failure is None:
                        self.slot.open()
            case m.Cancel():
                self.is_cancelled = True
            case m.MasterHeartbeat():
                pass
            case _:
                if self.slot is not None and self.is_running:
                    self.slot.receive_message(message)

    def peer_lost(self, peer: SlotId, reason: str, *, is_cut: bool = False) -> None:
        """A data connection ended; if data is lost with it, notify the JobManager."""
        if self.slot is not None and self.is_running and self.slot.needs(peer):
            self._send(m.PeerLost(peer, reason, is_cut))

    def close(self) -> None:
        """Finish pending uploads, then close the tasks."""
        if self.slot is not None and self.is_running:
            self._finish_uploads()
            self._is_closed = True
            self.slot.close()

    def say_goodbye(self) -> None:
        """Close, and send the last messages; once."""
        if not self._has_said_goodbye:
            self._has_said_goodbye = True
            self.close()
            self._beat()
            self._send(m.SlotFinished())

    def release(self) -> None:
        """The process was killed: release what its memory held, and do nothing else."""
        if self.slot is not None and self.is_running:
            self._is_closed = True
            self.slot.release()

    def metrics(self) -> tuple[tuple[VertexId, bytes], ...]:
        """The metrics of all tasks, encoded. Any thread."""
        return () if self.slot is None else self.slot.metrics()
