"""Strangers at the ports of a running job: refused and logged, and the job ends with its exact result.

The job waits half-way for a file to appear, so that every attack finds it running.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.spark.kit import Noting, assert_still_works, bag, wait_until
from tidegate import JobStatus, MapFunction, RuntimeContext
from tidegate.api.source import Idle, ReaderContext, SourceReader
from tidegate.core.clock import SystemClock
from tidegate.core.ids import ChannelId, EdgeId, SlotId
from tidegate.program.sequences import CollectionSource
from tidegate.protocol.frames import BATCH, CREDIT, DATA_HEADER, data_header
from tidegate.protocol.handshake import MAGIC, ClientHandshake, Hello
from tidegate.protocol.messages import RegisterSlot, SlotAddress, encode_message
from tidegate.taskmanager.network.data_plane import MAX_STRANGERS, DataPlane

pytestmark = pytest.mark.timeout(90)

N = 400
HANDSHAKE_MS = 700


class GatedSource(CollectionSource):
    """Numbers, the second half of them only once the file is there."""

    def __init__(self, gate: Path) -> None:
        super().__init__(list(range(N)), int)
        self.gate = str(gate)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        reader = super().create_reader(context)
        poll, polls = reader.poll, [0]

        def gated() -> Any:
            polls[0] += 1
            if polls[0] > 5 and not os.path.exists(self.gate):
                return Idle(context.clock.monotonic_ns() + 20_000_000)
            return poll()

        reader.poll = gated  # type: ignore[method-assign]
        return reader


class KeepingLogs(MapFunction):
    """Notes what its process logs; it is in every slot."""

    def __init__(self, note: Noting) -> None:
        self.note = note

    def open(self, context: RuntimeContext) -> None:
        note = self.note

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                note(record.getMessage())

        self.handler = Handler()
        logging.getLogger("tidegate").addHandler(self.handler)

    def map(self, value: int) -> int:
        return value

    def close(self) -> None:
        logging.getLogger("tidegate").removeHandler(self.handler)


class Victim:
    """A running job, its ports and its logs."""

    def __init__(self, make_env: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.gate = folder / "gate"
        self.results, self.slot_logs = Noting(folder / "results"), Noting(folder / "logs")
        self.caplog = caplog
        env = make_env(batch_rows=10, handshake_timeout=HANDSHAKE_MS)
        numbers = env.from_source(GatedSource(self.gate)).map(KeepingLogs(self.slot_logs))
        numbers.key_by("value").count().map(tuple).sink_to(self.results)
        self.client = env.execute_async("victim")
        wait_until(lambda: self.client.status() is JobStatus.RUNNING, "the job runs")
        wait_until(lambda: len(self.results.lines()) >= 20, "the first records are there")

    @property
    def secret(self) -> bytes:
        return self.client._runner._server._secret  # type: ignore[no-any-return]

    @property
    def control_port(self) -> tuple[str, int]:
        return "127.0.0.1", self.client._runner._server.port

    def data_ports(self) -> list[tuple[str, int]]:
        master = self.client._runner.driver.job.master
        return [(a.host, a.port) for a in master._slots.addresses()]

    def ports(self) -> dict[str, tuple[str, int]]:
        data = {f"data {i}": port for i, port in enumerate(self.data_ports())}
        assert len(data) == 2
        return {"control": self.control_port, **data}

    def logged(self) -> str:
        return "\n".join([*(r.getMessage() for r in self.caplog.records), *self.slot_logs.lines()])

    def finish(self) -> None:
        """Let the job go on; its result must be exact."""
        assert self.client.status() is JobStatus.RUNNING
        self.gate.touch()
        self.client.result(timeout_s=60)
        assert bag(self.results.read()) == bag((n, 1) for n in range(N))

    def close(self) -> None:
        self.client.cancel()


on_spark = pytest.mark.parametrize("victim", ["Spark"], indirect=True)


@pytest.fixture
def victim(request, env_of, tmp_path, caplog) -> Iterator[Victim]:
    caplog.set_level(logging.WARNING, logger="tidegate")
    made = Victim(functools.partial(env_of, getattr(request, "param", "processes")), tmp_path, caplog)
    yield made
    made.close()


def connect(address: tuple[str, int]) -> socket.socket:
    stranger = socket.create_connection(address, timeout=20)
    stranger.settimeout(20)
    return stranger


def assert_refused(stranger: socket.socket) -> bytes:
    """The other side closes without a word but its greeting; returns what it had said."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := stranger.recv(4096):
            said += data
    stranger.close()
    assert len(said) <= len(MAGIC) + 16, "more than a greeting"
    return said


def say(address: tuple[str, int], data: bytes) -> None:
    stranger = connect(address)
    with contextlib.suppress(ConnectionError):
        stranger.sendall(data)
    assert_refused(stranger)


def handshake_as(address: tuple[str, int], secret: bytes, hello: Hello) -> tuple[socket.socket, bool]:
    """The whole handshake; whether the other side proved itself in turn."""
    stranger = connect(address)
    handshake = ClientHandshake(secret, hello)
    with contextlib.suppress(ConnectionError):
        while not handshake.done and (data := stranger.recv(4096)):
            stranger.sendall(handshake.feed(data))
    return stranger, handshake.done


# ---- attacks: each is made on every port; the words are those of the log ----


def garbage(address: tuple[str, int], victim: Victim) -> None:
    say(address, os.urandom(2000))


def http(address: tuple[str, int], victim: Victim) -> None:
    say(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def nothing_and_gone(address: tuple[str, int], victim: Victim) -> None:
    connect(address).close()


def half_a_handshake(address: tuple[str, int], victim: Victim) -> None:
    say(address, MAGIC + struct.pack("<H", 40) + b"half")  # and silence


def silence(address: tuple[str, int], victim: Victim) -> None:
    say(address, b"")


def wrong_secret(address: tuple[str, int], victim: Victim) -> None:
    role = "control" if address == victim.control_port else "data"
    hello = Hello(role, victim.client.job_id, 0, 1)  # type: ignore[arg-type]
    stranger, done = handshake_as(address, bytes(32), hello)
    assert not done
    assert_refused(stranger)


def another_job(address: tuple[str, int], victim: Victim) -> None:
    role = "control" if address == victim.control_port else "data"
    stranger, done = handshake_as(address, victim.secret, Hello(role, "another", 0, 1))  # type: ignore[arg-type]
    assert not done
    assert_refused(stranger)


def an_old_attempt(address: tuple[str, int], victim: Victim) -> None:
    role = "control" if address == victim.control_port else "data"
    hello = Hello(role, victim.client.job_id, 17, 1)  # type: ignore[arg-type]
    stranger, done = handshake_as(address, victim.secret, hello)
    assert not done
    assert_refused(stranger)


def oversize_hello(address: tuple[str, int], victim: Victim) -> None:
    say(address, MAGIC + struct.pack("<H", 65535) + bytes(3000))


def one_byte_at_a_time(address: tuple[str, int], victim: Victim) -> None:
    """Just slow enough never to finish, and never silent."""
    stranger = connect(address)
    stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    started = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for byte in MAGIC + struct.pack("<H", 500) + bytes(500):
            stranger.sendall(bytes([byte]))
            stranger.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                while stranger.recv(100):
                    pass
                break
    assert time.monotonic() - started < 15
    stranger.close()


ATTACKS: dict[str, tuple[Callable[[tuple[str, int], Victim], None], str]] = {
    "random bytes": (garbage, "does not speak tidegate"),
    "an HTTP request": (http, "does not speak tidegate (it began with b'GET / HTT"),
    "a connection that is closed at once": (nothing_and_gone, "before"),
    "half a handshake, then silence": (half_a_handshake, "prove itself"),
    "silence": (silence, "prove itself"),
    "the wrong secret": (wrong_secret, "does not hold the job's secret"),
    "another job's peer": (another_job, "belongs to job another attempt 0"),
    "a peer of another attempt": (an_old_attempt, "attempt 17"),
    "a hello of absurd length": (oversize_hello, "hello is 65535 bytes long"),
    "one byte at a time": (one_byte_at_a_time, "prove itself"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_strangers_are_refused_and_logged_and_the_job_does_not_notice(victim, attack):
    perform, words = ATTACKS[attack]
    for address in victim.ports().values():
        perform(address, victim)
    wait_until(
        lambda: victim.logged().count(words) >= 3, f"all three ports logged {words!r}:\n{victim.logged()}"
    )
    victim.finish()


def test_two_hundred_strangers_at_once_at_every_port(victim):
    strangers = [connect(address) for address in victim.ports().values() for _ in range(200)]
    for i, stranger in enumerate(strangers):
        with contextlib.suppress(ConnectionError):
            stranger.sendall((b"", MAGIC, b"nonsense")[i % 3])
    for stranger in strangers:
        assert_refused(stranger)
    for port in ("the control port", "the data port of slot 0", "the data port of slot 1"):
        lines = [line for line in victim.logged().splitlines() if f" to {port}" in line]
        assert "refused a connection from 127.0.0.1:" in lines[0]
        assert len(lines) < 20, "200 refusals are a few kinds and a number"
    victim.finish()
    assert "more connections to the control port" in victim.logged()


def test_a_crowd_at_the_control_port_does_not_keep_the_slots_out(make_env):
    env = make_env(parallelism=4)
    env.from_sequence(1, 100).key_by("value").count().sink_to(lambda record: None)
    client = env.execute_async()
    over = threading.Event()

    def push() -> None:
        strangers: list[socket.socket] = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                strangers.append(
                    socket.create_connection(("127.0.0.1", client._runner._server.port), timeout=5)
                )
            if len(strangers) > 100:
                strangers.pop(0).close()
        for stranger in strangers:
            stranger.close()

    crowd = [threading.Thread(target=push) for _ in range(3)]
    for thread in crowd:
        thread.start()
    try:
        assert client.result(timeout_s=60).status == "FINISHED"
    finally:
        over.set()
        for thread in crowd:
            thread.join()


def test_a_crowd_at_a_data_port_does_not_keep_a_peer_out():
    plane = DataPlane("127.0.0.1", bytes(32), "job", 0, SlotId(1), SystemClock(), 60_000)
    frames: list[tuple[int, bytes]] = []
    plane.on_frame = lambda peer, header, body: frames.append((peer, bytes(body)))
    plane.on_lost = lambda *args: None
    plane.expected = {SlotId(0)}
    strangers: list[socket.socket] = []
    try:
        for _ in range(3 * MAX_STRANGERS):
            strangers.append(connect(("127.0.0.1", plane.port)))
            wait_until(lambda: plane.poll(0.01), "the stranger is noticed")
        peer = DataPlane("127.0.0.1", bytes(32), "job", 0, SlotId(0), SystemClock(), 60_000)
        peer.on_frame = peer.on_lost = lambda *args: None
        peer.connect({SlotId(1): SlotAddress(SlotId(1), "127.0.0.1", plane.port, 0)})
        peer.send(SlotId(1), data_header(BATCH, ChannelId(EdgeId(0), 0, 0), 5, 0), b"hello")
        wait_until(lambda: (plane.poll(0.01), peer.poll(0.01), frames)[-1], "the peer's frame arrives")
        assert frames == [(0, b"hello")]
        peer.close()
    finally:
        for stranger in strangers:
            stranger.close()
        plane.close()


@on_spark
def test_a_peer_with_the_secret_cannot_take_the_place_of_a_slot(victim):
    job = victim.client.job_id
    stranger, done = handshake_as(victim.control_port, victim.secret, Hello("control", job, 0, 1))
    assert not done
    assert_refused(stranger)
    for slot, role in ((99, "control"), (0, "data")):
        stranger, done = handshake_as(victim.control_port, victim.secret, Hello(role, job, 0, slot))
        assert not done
        assert_refused(stranger)
    assert "slot 1 is connected already" in victim.logged()
    assert "there is no slot 99" in victim.logged()
    # A data port checks who it is behind the handshake.
    for own, pretended in ((0, 1), (1, 0), (0, 99)):
        stranger, _ = handshake_as(victim.data_ports()[own], victim.secret, Hello("data", job, 0, pretended))
        with contextlib.suppress(ConnectionError):
            stranger.sendall(DATA_HEADER.pack(BATCH, 0, 0, 0, 5, 0) + b"hello")
            stranger.sendall(DATA_HEADER.pack(CREDIT, 0, 0, 1, 0, 1000))
            while stranger.recv(4096):
                pass
        stranger.close()
    wait_until(lambda: "slot 99 has no channel" in victim.logged(), "the unknown slot is refused")
    assert "connected twice" in victim.logged()
    victim.finish()


def test_the_control_port_takes_no_orders_before_the_handshake(victim):
    message = encode_message(RegisterSlot(SlotAddress(0, "127.0.0.1", 1, 1), "me"))  # type: ignore[arg-type]
    say(victim.control_port, struct.pack("<I", len(message)) + message)
    say(victim.control_port, struct.pack("<I", 2**32 - 1) + b"x" * 1000)
    victim.finish()


# ---- the secret ----


def forms_of(secret: bytes) -> list[bytes]:
    encoded = [secret.hex(), base64.b64encode(secret).decode().rstrip("="), repr(secret)[2:-1]]
    return [secret, secret[:16], secret[16:], *(e.encode() for e in encoded), secret.hex().upper().encode()]


@on_spark
def test_the_secret_is_in_no_log_command_line_environment_or_repr(victim, capfd):
    forms = forms_of(victim.secret)

    def assert_clean(data: bytes, where: str) -> None:
        assert not any(form in data for form in forms), f"the secret is in {where}"

    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    assert len(processes) > 3  # the JVM, the daemon, the slots
    for process in processes:
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # a process that ended meanwhile
                assert_clean(Path(f"/proc/{process.pid}/{name}").read_bytes(), f"{name} of {process.pid}")
    runner = victim.client._runner
    for thing in (
        victim.client,
        runner,
        runner._server,
        runner._gang,
        runner._gang._bootstrap(0),
        runner._gang._host,
        runner.driver,
        runner.driver.job.master,
    ):
        assert_clean(repr(thing).encode(), f"the repr of {type(thing).__name__}")
    assert_clean(repr(runner._gang._bootstrap(0).__rich_repr__()).encode(), "what rich shows")
    wrong_secret(victim.control_port, victim)
    wrong_secret(victim.data_ports()[0], victim)
    wait_until(lambda: victim.logged().count("does not hold") >= 2, "both refusals are logged")
    victim.finish()
    assert_clean(victim.logged().encode(), "the logs")
    assert_clean(msgspec.json.encode(victim.client.metrics()), "the metrics")
    shown = capfd.readouterr()
    assert_clean((shown.out + shown.err).encode(), "the terminal")


def test_every_job_has_a_secret_of_its_own(make_env):
    clients = [_started(make_env()) for _ in range(2)]
    secrets = {client._runner._server._secret for client in clients}
    for client in clients:
        client.result(timeout_s=60)
    assert len(secrets) == 2
    assert all(len(secret) == 32 for secret in secrets)
    assert_still_works(make_env())


def _started(env: Any) -> Any:
    env.from_sequence(1, 10).sink_to(lambda n: None)
    return env.execute_async()


@on_spark
def test_ports_are_on_the_loopback_of_a_local_master_only(victim):
    me = psutil.Process()
    ports = {port for _, port in victim.ports().values()}
    listening = [
        c.laddr
        for p in [me, *me.children(recursive=True)]
        for c in p.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port in ports
    ]
    assert {a.port for a in listening} == ports
    assert {a.ip for a in listening} == {"127.0.0.1"}
    victim.finish()
