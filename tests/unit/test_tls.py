"""Encrypted connections: what is changed or read on the way, who is refused, and where the certificate comes from."""

from __future__ import annotations

import contextlib
import datetime
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.control_server_kit import SECRET, Rig
from tests.unit.job_master_kit import SlotClient
from tidegate.core.clock import SystemClock
from tidegate.core.errors import ConfigurationError
from tidegate.core.ids import ChannelId, EdgeId, SlotId
from tidegate.core.options import Options
from tidegate.jobmanager import events as ev
from tidegate.protocol import messages as m
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.protocol.frames import BATCH, data_header
from tidegate.protocol.messages import SlotAddress
from tidegate.protocol.tls import TlsIdentity, identity_for, new_identity, read_identity
from tidegate.taskmanager.network.data_plane import DataPlane

IDENTITY = new_identity("job")
CHANNEL = ChannelId(EdgeId(0), 0, 1)
WAIT_S = 10.0


class Plane(DataPlane):
    """A data plane that keeps what it hears."""

    def __init__(self, slot: int, tls: TlsIdentity | None) -> None:
        super().__init__("127.0.0.1", SECRET, "job", 0, SlotId(slot), SystemClock(), 5_000, tls=tls)
        self.bodies: list[bytes] = []
        self.lost: list[str] = []
        self.on_frame = lambda peer, header, body: self.bodies.append(bytes(body))
        self.on_lost = lambda peer, reason, is_cut: self.lost.append(reason)


class Wire:
    """What carries the bytes from one data plane to the other: reads all of them, and may change one."""

    def __init__(self, target: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target = target
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.port: int = self._listener.getsockname()[1]
        self.seen = bytearray()
        self.flip_at: int | None = None
        """The byte from the client to the server, counted from now on, that is changed."""

    def carry(self) -> None:
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                self._selector.register(client, selectors.EVENT_READ, (server, True))
                self._selector.register(server, selectors.EVENT_READ, (client, False))
                continue
            other, is_from_client = key.data
            try:
                data = bytearray(key.fileobj.recv(1 << 16))
                if is_from_client and data and self.flip_at is not None:
                    if self.flip_at < len(data):
                        data[self.flip_at] ^= 1
                    self.flip_at = None if self.flip_at < len(data) else self.flip_at - len(data)
                self.seen += data
                if data:
                    other.sendall(data)
                    continue
            except OSError:
                pass
            self._selector.unregister(key.fileobj)
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
            if key.data:
                key.data[0].close()
        self._selector.close()


@contextlib.contextmanager
def connected(
    low_tls: TlsIdentity | None, high_tls: TlsIdentity | None
) -> Iterator[tuple[Plane, Plane, Wire]]:
    low, high = Plane(0, low_tls), Plane(1, high_tls)
    wire = Wire(high.port)
    try:
        high.connect({SlotId(0): SlotAddress(SlotId(0), "127.0.0.1", low.port, os.getpid())})
        low.connect({SlotId(1): SlotAddress(SlotId(1), "127.0.0.1", wire.port, os.getpid())})
        yield low, high, wire
    finally:
        low.close()
        high.close()
        wire.close()


def until(condition: Callable[[], object], low: Plane, high: Plane, wire: Wire) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {WAIT_S} s"
        low.poll(0.001)
        wire.carry()
        high.poll(0.001)


def send(plane: Plane, peer: int, body: bytes) -> None:
    plane.send(SlotId(peer), data_header(BATCH, CHANNEL, len(body), 0), body)


def test_a_byte_that_is_changed_on_the_way_never_becomes_a_record():
    with connected(IDENTITY, IDENTITY) as (low, high, wire):
        until(lambda: low.is_connected and high.is_connected, low, high, wire)
        send(low, 1, b"before")
        until(lambda: high.bodies, low, high, wire)
        wire.flip_at = 150_000
        for _ in range(4):
            send(low, 1, b"x" * 70_000)
        until(lambda: high.lost, low, high, wire)
        assert high.bodies[0] == b"before"
        assert set(high.bodies[1:]) <= {b"x" * 70_000}
        assert len(high.bodies) < 5
        assert "BAD_RECORD_MAC" in high.lost[0]


def test_without_tls_such_a_byte_arrives():
    """Why it is there: nothing else would notice."""
    with connected(None, None) as (low, high, wire):
        until(lambda: low.is_connected and high.is_connected, low, high, wire)
        wire.flip_at = 1_000
        send(low, 1, b"x" * 70_000)
        until(lambda: high.bodies, low, high, wire)
        assert high.bodies != [b"x" * 70_000]


@pytest.mark.parametrize("tls", [None, IDENTITY], ids=["plain", "tls"])
def test_what_goes_over_an_encrypted_connection_cannot_be_read(tls):
    with connected(tls, tls) as (low, high, wire):
        send(low, 1, b"a password in a record")
        send(high, 0, b"another one, the other way")
        until(lambda: high.bodies and low.bodies, low, high, wire)
        assert (b"password" in wire.seen) == (tls is None)
        assert (b"another one" in wire.seen) == (tls is None)


def test_a_server_with_another_certificate_is_refused_even_if_it_knows_the_secret():
    with connected(IDENTITY, new_identity("job")) as (low, high, wire):
        send(low, 1, b"for the right one only")
        until(lambda: low.lost, low, high, wire)
        assert "does not speak TLS with this job's certificate: CERTIFICATE_VERIFY_FAILED" in low.lost[0]
        assert not high.bodies


def test_a_peer_that_was_not_told_to_encrypt_is_refused():
    with connected(None, IDENTITY) as (low, high, wire):
        send(low, 1, b"in the clear")
        time.sleep(0.05)
        for _ in range(50):
            low.poll(0.001)
            wire.carry()
            high.poll(0.001)
        assert not high.bodies


@pytest.fixture
def encrypted_rig() -> Iterator[Rig]:
    made = Rig(tls=IDENTITY)
    yield made
    made.close()


def encrypted_slot(rig: Rig, slot: int) -> SlotClient:
    connection = IDENTITY.client_context().wrap_socket(rig.connect())
    rig.sockets.append(connection)
    return SlotClient(connection, SECRET, slot)


def test_the_control_port_speaks_tls_with_messages_of_any_size_both_ways(encrypted_rig):
    slot = encrypted_slot(encrypted_rig, 1)
    large = m.CollectedBatch("op", 0, 1, os.urandom(3_000_000))
    slot.send(m.SlotHeartbeat(1), large, m.SlotHeartbeat(2))
    assert [slot.next_message() for _ in range(2)] == [m.MasterHeartbeat(1), m.MasterHeartbeat(2)]
    events = [encrypted_rig.next_event() for _ in range(3)]
    assert events[1] == ev.MessageReceived(SlotId(1), large)
    other = encrypted_slot(encrypted_rig, 0)
    deploy = encrypted_rig.deploy = m.Deploy(os.urandom(5_000_000), (), (), ())
    encrypted_rig.server.post(ev.GangStarted())  # the rig deploys slot 0 then
    assert other.next_message() == deploy


def test_a_stranger_who_speaks_no_tls_is_refused_at_the_control_port(encrypted_rig):
    stranger = encrypted_rig.connect()
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert "does not speak TLS with this job's certificate: HTTP_REQUEST" in encrypted_rig.next_log()
    slot = encrypted_slot(encrypted_rig, 0)
    slot.send(m.SlotHeartbeat(5))
    assert slot.next_message() == m.MasterHeartbeat(5)


def test_strangers_who_say_nothing_cost_no_time_and_are_refused_when_theirs_is_over():
    rig = Rig(handshake_timeout_ms=300, tls=IDENTITY)
    try:
        started = time.process_time()
        for _ in range(5):
            rig.connect()
        assert "did not prove itself within 300 ms" in rig.next_log()
        assert time.process_time() - started < 0.2, "it waits, it does not spin"
    finally:
        rig.close()


def test_a_client_without_the_certificate_does_not_trust_the_control_port(encrypted_rig):
    with pytest.raises(ssl.SSLCertVerificationError):
        new_identity("job").client_context().wrap_socket(encrypted_rig.connect())


@pytest.mark.parametrize(
    ("tls", "bind_host", "is_encrypted"),
    [
        ("auto", "127.0.0.1", False),
        ("auto", "localhost", False),
        ("auto", "::1", False),
        ("auto", "0.0.0.0", True),
        ("auto", "192.0.2.7", True),
        ("on", "127.0.0.1", True),
        ("off", "0.0.0.0", False),
    ],
)
def test_what_leaves_the_host_is_encrypted_unless_told_otherwise(tls, bind_host, is_encrypted):
    options = Options().with_keywords(tls=tls)
    assert (identity_for(options, "job", bind_host) is not None) == is_encrypted


def test_a_users_own_certificate_is_taken_and_one_that_cannot_be_used_is_refused(tmp_path):
    certificate, key, other = tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "other.pem"
    certificate.write_bytes(IDENTITY.certificate)
    key.write_bytes(IDENTITY.key)
    other.write_bytes(new_identity("x").key)

    def identity(**options: object) -> TlsIdentity | None:
        return identity_for(Options().with_keywords(**options), "job", "0.0.0.0")

    assert identity(tls_certificate=str(certificate), tls_key=str(key)) == IDENTITY
    with pytest.raises(ConfigurationError, match=r"network\.tls_key is missing"):
        identity(tls_certificate=str(certificate))
    with pytest.raises(ConfigurationError, match=r"network\.tls_certificate is missing"):
        identity(tls_key=str(key))
    with pytest.raises(ConfigurationError, match=r"cannot be used: .*KEY_VALUES_MISMATCH"):
        identity(tls_certificate=str(certificate), tls_key=str(other))
    with pytest.raises(ConfigurationError, match=r"cannot be used: .*No such file"):
        identity(tls_certificate=str(tmp_path / "none"), tls_key=str(key))


class Signed:
    """A key and a certificate for it, signed by an authority or by itself."""

    def __init__(
        self, name: str, by: Signed | None = None, *, days: int = 1, usage: x509.ObjectIdentifier
    ) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name((by or self).name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - datetime.timedelta(days=10))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .sign((by or self).key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self, pass_phrase: bytes = b"") -> bytes:
        protection = (
            serialization.BestAvailableEncryption(pass_phrase)
            if pass_phrase
            else serialization.NoEncryption()
        )
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
        )


SERVER = x509.ExtendedKeyUsageOID.SERVER_AUTH


@pytest.fixture
def read(tmp_path) -> Callable[[bytes, bytes], TlsIdentity]:
    def write_and_read(certificate: bytes, key: bytes) -> TlsIdentity:
        (tmp_path / "c.pem").write_bytes(certificate)
        (tmp_path / "k.pem").write_bytes(key)
        return read_identity(str(tmp_path / "c.pem"), str(tmp_path / "k.pem"))

    return write_and_read


def shake(client: TlsIdentity, server: TlsIdentity) -> None:
    """A handshake of two processes; raises what the client raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = client.client_context().wrap_bio(to_client, to_server)
    called = server.server_context().wrap_bio(to_server, to_client, server_side=True)
    for end in (calling, called, calling):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert calling.version() == "TLSv1.3"


def test_with_a_chain_of_certificates_only_the_jobs_own_is_trusted(read):
    authority = Signed("authority", usage=SERVER)
    ours, theirs = Signed("job", authority, usage=SERVER), Signed("other", authority, usage=SERVER)
    job = read(b"a remark\n" + ours.pem + authority.pem, ours.key_pem())
    other = TlsIdentity(theirs.pem + authority.pem, theirs.key_pem())
    shake(job, job)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(job, other)


def test_a_certificate_that_runs_out_while_the_job_runs_is_trusted_all_the_same(read):
    """A restart after its last day makes new connections with it."""
    expired = Signed("job", days=-5, usage=SERVER)
    job = read(expired.pem, expired.key_pem())
    shake(job, job)


def test_a_certificate_that_is_not_for_servers_is_refused_where_it_is_read(read):
    for_clients = Signed("job", usage=x509.ExtendedKeyUsageOID.CLIENT_AUTH)
    with pytest.raises(ConfigurationError, match=r"cannot be used: .*unsuitable certificate purpose"):
        read(for_clients.pem, for_clients.key_pem())


def test_a_key_with_a_pass_phrase_is_refused_and_nobody_is_asked_for_it(read):
    """OpenSSL would ask at the terminal, and the driver would wait there."""
    signed = Signed("job", usage=SERVER)
    with pytest.raises(ConfigurationError, match=r"cannot be used: \[SSL\].*the key without a pass phrase"):
        read(signed.pem, signed.key_pem(b"secret"))


def test_the_key_is_in_no_repr():
    bootstrap = SlotBootstrap("j", "name", 0, b"s", "h", 1, 1, {}, IDENTITY)  # type: ignore[arg-type]
    shown = f"{IDENTITY!r} {bootstrap!r} {IDENTITY.__rich_repr__()} {bootstrap.__rich_repr__()}"
    assert "PRIVATE KEY" not in shown
    assert SlotBootstrap.decode(bootstrap.encode()).tls == IDENTITY
