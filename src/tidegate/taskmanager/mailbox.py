"""The mailbox loop of a slot on Spark: the one thread that owns its tasks, their state and their data sockets."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from collections.abc import Iterator

import pyarrow as pa

from tidegate.core.allocator import keep_freed_memory
from tidegate.core.clock import SystemClock
from tidegate.core.errors import ConfigurationError
from tidegate.core.ids import SlotId, SubtaskId
from tidegate.core.options import Options
from tidegate.protocol import messages as m
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.protocol.frames import DataHeader
from tidegate.protocol.handshake import Hello
from tidegate.taskmanager.control_connection import ControlClient, ControlLost
from tidegate.taskmanager.driver_log import DriverLog
from tidegate.taskmanager.network.data_plane import DataPlane, PeerUnreachable
from tidegate.taskmanager.slot import Slot
from tidegate.taskmanager.slot_process import SlotProcess
from tidegate.taskmanager.upload_thread import UploadThread

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 1.0
_GOODBYE_S = 10.0


def run_slot(bootstrap: SlotBootstrap, slot_id: SlotId, executor: str, *, own_process: bool = False) -> None:
    """Be a slot of one job attempt until it ends. Called in the Spark task's own thread.

    `own_process`: only the slot logs in this process, so warnings are its own and are sent to the driver.

    Returns normally when the job finished, failed or was cancelled (the JobManager knows which); raises only if the
    JobManager cannot be reached, so that Spark ends the task.
    """
    keep_freed_memory()
    pa.set_cpu_count(1)
    pa.array([0])  # now, not while records wait: Arrow imports modules when it first meets a list
    options = Options().with_values(bootstrap.options, "the driver")
    hello = Hello("control", bootstrap.job_id, bootstrap.attempt, slot_id)
    control = ControlClient(
        bootstrap.control_host, bootstrap.control_port, bootstrap.secret, hello, options, bootstrap.tls
    )
    # `network.bind_host` is an address of the JobManager's machine, or stands for all addresses. Data ports bind to
    # all, or to the address from which this slot reaches the JobManager, which is also the one that its peers get.
    everywhere = options.bind_host in ("0.0.0.0", "::")
    try:
        data = DataPlane(
            options.bind_host if everywhere else control.local_host,
            bootstrap.secret,
            bootstrap.job_id,
            bootstrap.attempt,
            slot_id,
            SystemClock(),
            options.handshake_timeout,
            link_ms=options.link_timeout,
            ports=options.data_ports,
            tls=bootstrap.tls,
        )
    except (ConfigurationError, OSError) as e:
        control.start()
        control.send(m.SlotUnusable(str(e)))
        control.close()
        return
    try:
        address = m.SlotAddress(slot_id, control.local_host, data.port, os.getpid())
        _Mailbox(bootstrap, slot_id, options, control, data).run(address, executor, own_process)
    finally:
        control.close()
        data.close()


class _Mailbox:
    def __init__(
        self,
        bootstrap: SlotBootstrap,
        slot_id: SlotId,
        options: Options,
        control: ControlClient,
        data: DataPlane,
    ) -> None:
        self._bootstrap = bootstrap
        self._slot_id = slot_id
        self._control = control
        self._data = data
        self._clock = clock = SystemClock()
        uploads = UploadThread(data.wake)

        def make(deploy: m.Deploy) -> Slot:
            job_id, attempt = bootstrap.job_id, bootstrap.attempt
            return Slot(
                slot_id, job_id, attempt, deploy, options, clock, data, control.send, data.wake, uploads
            )

        self._process = SlotProcess(make, uploads.close, control.send, control.beat)
        self._step_since = 0.0
        control.on_arrival = data.wake
        control.metrics = self._process.metrics
        control.activity = self._activity
        data.on_frame = self._on_frame
        data.on_lost = self._on_lost

    def run(self, address: m.SlotAddress, executor: str, own_process: bool) -> None:
        self._control.start()
        self._control.send(m.RegisterSlot(address, executor))
        log_to_driver = DriverLog(self._control.send, self._current, self._clock)
        with log_to_driver if own_process else contextlib.nullcontext():
            self._run()
        self._process.say_goodbye()

    def _run(self) -> None:
        try:
            deploy = self._wait_for_deploy()
            slot = self._process.slot
            if (
                deploy is not None
                and slot is not None
                and slot.failure is None
                and self._connect(slot, deploy)
            ):
                with _collecting_rarely():
                    self._loop(slot)
        except ControlLost:
            raise
        except BaseException as e:
            if self._process.slot is None:
                raise
            self._process.slot.fail(e)
        finally:
            self._process.close()
        if self._process.slot is not None and self._process.slot.failure is not None:
            self._wait_for_cancel()

    def _connect(self, slot: Slot, deploy: m.Deploy) -> bool:
        """Connect with all peers before the first record; a peer that cannot be reached is reported to the JobManager.

        Until the handshake of a connection is done, both its ends must poll: a first step in user code may take longer
        than the peer waits for the proof (`network.handshake_timeout`).
        """
        self._step_since = 0.0
        addresses = {a.slot: a for a in deploy.addresses}
        try:
            self._data.connect({peer: addresses[peer] for peer in slot.peers()})
        except PeerUnreachable as e:
            self._control.send(m.PeerLost(e.peer, e.reason, is_cut=True))
            self._wait_for_cancel()
            return False
        while not self._data.is_connected and self._control.cancel_requested is None:
            self._raise_if_lost()
            self._data.poll(_LONGEST_WAIT_S)
        return True

    def _wait_for_deploy(self) -> m.Deploy | None:
        """The deployment, after its tasks are open; None: the slot was cancelled before."""
        while True:
            while self._control.inbox:
                message = self._control.inbox.popleft()
                self._step_since = time.monotonic()
                self._process.receive(message)
                if isinstance(message, m.Deploy):
                    return message
                if self._process.is_cancelled:
                    return None
            self._raise_if_lost()
            self._data.wait_for_wake(_LONGEST_WAIT_S)

    def _loop(self, slot: Slot) -> None:
        control, data, clock = self._control, self._data, self._clock
        inbox = control.inbox
        shut = False
        while True:
            while inbox:
                self._process.receive(inbox.popleft())
                if self._process.is_cancelled:
                    return
            self._raise_if_lost()
            self._step_since = time.monotonic()
            moved = slot.step() or slot.flush()
            self._step_since = 0.0
            if slot.failure is not None:
                return
            if slot.is_done:
                if not shut:
                    data.shut()
                    shut = True
                if data.is_quiet:
                    return
            if moved:
                data.poll(0)
                continue
            wake_ns = slot.next_wake_ns()
            wait_s = _LONGEST_WAIT_S
            if wake_ns is not None:
                wait_s = min(wait_s, (wake_ns - clock.monotonic_ns()) / 1e9)
            data.poll(max(0.0, wait_s))

    def _wait_for_cancel(self) -> None:
        """After a failure the JobManager cancels every slot: wait for that, so that it learns the cause first."""
        deadline = time.monotonic() + _GOODBYE_S
        while self._control.cancel_requested is None and time.monotonic() < deadline:
            self._raise_if_lost()
            self._data.poll(0.1)

    def _on_frame(self, peer: SlotId, header: DataHeader, body: memoryview) -> None:
        if self._process.slot is not None:
            self._process.slot.receive_frame(header, body)

    def _on_lost(self, peer: SlotId, reason: str, is_cut: bool) -> None:
        self._process.peer_lost(peer, reason, is_cut=is_cut)

    def _raise_if_lost(self) -> None:
        if self._control.lost is not None:
            raise ControlLost(
                f"slot {self._slot_id} of job {self._bootstrap.job_id} ends itself: {self._control.lost}"
            )

    def _current(self) -> SubtaskId | None:
        slot = self._process.slot
        return None if slot is None or slot.current is None else slot.current.id

    def _activity(self) -> tuple[int, str]:
        since, slot = self._step_since, self._process.slot
        if not since or slot is None:
            return 0, ""
        task = slot.current
        return int((time.monotonic() - since) * 1000), "" if task is None else task.name


@contextlib.contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Run the cycle collector after 100,000 new objects, not after 700: rows are many and have no cycles.

    This makes per-record Python 1.8 times as fast (figures in benchmarks/log.md).
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
