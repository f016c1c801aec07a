"""A control server on a real port, and slots that speak with it."""

from __future__ import annotations

import logging
import queue
import socket

from tests.unit.job_master_kit import SlotClient
from tidegate.core.ids import AttemptNumber, SlotId
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.failover.events import OfAttempt
from tidegate.protocol import messages as m
from tidegate.protocol import refusals
from tidegate.protocol.handshake import new_secret
from tidegate.runtime import control_server
from tidegate.runtime.control_server import ControlServer

SECRET = new_secret()
WAIT_S = 10


class QueueHandler(logging.Handler):
    """Lets a test wait for a log record."""

    def __init__(self) -> None:
        super().__init__()
        self.records: queue.Queue[str] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.put(f"{record.levelname} {record.getMessage()}")


class Rig:
    """A control server whose handler answers every heartbeat with one of the same number."""

    def __init__(self, num_slots: int = 2, handshake_timeout_ms: int = 60_000, tls=None) -> None:
        self.events: queue.Queue[ev.Event] = queue.Queue()
        self.crashes: queue.Queue[BaseException] = queue.Queue()
        self.server = ControlServer("127.0.0.1", SECRET, "job", 3, num_slots, handshake_timeout_ms, tls=tls)
        self.server.start(self.handle, self.crashes.put)
        self.log = QueueHandler()
        for logger in (control_server.logger, refusals.logger):
            logger.addHandler(self.log)
        self.sockets: list[socket.socket] = []
        self.deploy = m.Deploy(b"", (), (), ())

    def handle(self, said: ev.Event | OfAttempt) -> None:
        event = said.event if isinstance(said, OfAttempt) else said
        if isinstance(event, (ev.MessageReceived, ev.MessageMalformed, ev.SlotDisconnected)):
            assert said == OfAttempt(AttemptNumber(3), event), "what a connection says is of its attempt"
        if isinstance(event, ev.Tick):
            return
        if isinstance(event, ev.GangStarted):
            self.server.send(SlotId(0), self.deploy)
        if isinstance(event, ev.CancelRequested):
            self.server.close()
        if isinstance(event, ev.CountingFailed):
            raise RuntimeError(event.error)
        if isinstance(event, ev.MessageReceived):
            if isinstance(event.message, m.SlotHeartbeat):
                self.server.send(event.slot, m.MasterHeartbeat(event.message.sequence))
            elif isinstance(event.message, m.SlotFinished):
                self.server.send(event.slot, m.Cancel("last word"))
                self.server.close_slot(event.slot)
        self.events.put(event)

    def next_event(self) -> ev.Event:
        return self.events.get(timeout=WAIT_S)

    def next_log(self) -> str:
        return self.log.records.get(timeout=WAIT_S)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S)
        self.sockets.append(connection)
        return connection

    def slot(self, slot: int, **hello: object) -> Slot:
        return Slot(self.connect(), SECRET, slot, **hello)

    def close(self) -> None:
        for connection in self.sockets:
            connection.close()
        self.server.stop()
        assert self.server.join(WAIT_S)
        for logger in (control_server.logger, refusals.logger):
            logger.removeHandler(self.log)


class Slot(SlotClient):
    """A slot that may speak with the control server of a rig."""

    def is_alive(self, rig: Rig) -> bool:
        """Whether a heartbeat goes there and comes back."""
        self.send(m.SlotHeartbeat(77))
        return self.next_message() == m.MasterHeartbeat(77) and isinstance(
            rig.next_event(), ev.MessageReceived
        )
