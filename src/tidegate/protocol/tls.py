"""TLS for control and data connections: one certificate per job; all processes of the job trust only this one.

The driver makes the certificate (or reads the user's) and sends it with its key to the slots, in the bootstrap, beside
the job's secret. A client accepts exactly this certificate from a server, so a man in the middle would need the key.
The handshake inside the connection then identifies the client (`protocol/handshake.py`). The certificate is trusted
because the driver sent it: its dates and its issuer do not matter, and a job may outlive it.

A `TlsSocket` imitates a plain non-blocking socket: it raises `BlockingIOError`, it has `sendmsg`, and `recv` leaves no
decrypted bytes behind, which the kernel could not announce.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.core.errors import AuthenticationError, ConfigurationError
from tidegate.core.options import Options
from tidegate.protocol.ports import is_loopback

_RECORD_BYTES = 16 << 10
"""The most that a TLS record holds; smaller pieces are joined up to it."""
_WOULD_BLOCK = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
_VALID_FOR = datetime.timedelta(days=3650)
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which `ssl` has no name."""
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class TlsIdentity(msgspec.Struct, frozen=True):
    """The certificate and the private key of a job, as PEM. `repr` hides the key, like the job's secret."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "TlsIdentity(...)"

    def __rich_repr__(self) -> list[Any]:
        return []

    def server_context(self) -> ssl.SSLContext:
        """The context for the accepting side of connections."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        with _as_file(self.certificate) as certificate, _as_file(self.key) as key:
            context.load_cert_chain(certificate, key, password="")  # without one OpenSSL asks at the terminal
        return _of_ours(context)

    def client_context(self) -> ssl.SSLContext:
        """The context for the connecting side: trusts this one certificate, whatever the server's address is.

        In a file with a chain that is the first one. The others are authorities, which also sign for strangers.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        own = _CERTIFICATE.search(self.certificate)
        if own is None:
            raise ValueError("no BEGIN CERTIFICATE is in it")
        context.load_verify_locations(cadata=own[0].decode("ascii"))
        return _of_ours(context)


def identity_for(options: Options, job: str, bind_host: str) -> TlsIdentity | None:
    """The identity of a job whose control port binds to this address; None: no encryption."""
    if options.tls == "off" or (options.tls == "auto" and is_loopback(bind_host)):
        return None
    certificate, key = options.tls_certificate, options.tls_key
    if bool(certificate) != bool(key):
        missing, given = ("network.tls_key", certificate) if certificate else ("network.tls_certificate", key)
        raise ConfigurationError(f"{missing} is missing: {given} alone is not enough. Set both, or neither.")
    return read_identity(certificate, key) if certificate else new_identity(job)


def new_identity(job: str) -> TlsIdentity:
    """A new key with a self-signed certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"tidegate {job}"[:64])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return TlsIdentity(
        certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )


def read_identity(certificate: str, key: str) -> TlsIdentity:
    """The user's own certificate and key, from PEM files; raises `ConfigurationError` if they cannot be used."""
    try:
        identity = TlsIdentity(Path(certificate).read_bytes(), Path(key).read_bytes())
        _shake_alone(identity)
    except (OSError, ValueError) as e:  # an SSLError is an OSError
        raise ConfigurationError(
            f"network.tls_certificate {certificate} and network.tls_key {key} cannot be used: {e}. They must be PEM "
            f"files that belong together, the key without a pass phrase."
        ) from e
    return identity


class TlsSocket(ssl.SSLSocket):
    """A connected socket with TLS. It can send and receive only after `shake` has returned True."""

    def shake(self) -> bool:
        """Continue the TLS handshake, and return whether it is done; raises `AuthenticationError` if it fails."""
        try:
            self.do_handshake()
        except _WOULD_BLOCK:
            return False
        except ssl.SSLError as e:
            reason = e.reason or str(e)
            raise AuthenticationError(
                f"the peer does not speak TLS with this job's certificate: {reason}"
            ) from e
        return True

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Like a plain socket's `recv`; also returns the rest of the last record, as far as it fits."""
        try:
            data = super().recv(buflen, flags)
        except _WOULD_BLOCK as e:
            raise BlockingIOError from e
        while data and (more := min(self.pending(), buflen - len(data))):
            data += super().recv(more, flags)
        return data

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Like a plain socket's `recv_into`; `pending` says how much of the last record is left."""
        try:
            return super().recv_into(buffer, nbytes, flags)
        except _WOULD_BLOCK as e:
            raise BlockingIOError from e

    def send(self, data: Any, flags: int = 0) -> int:
        """Like a plain socket's `send`; after an error the caller must repeat the same bytes, and may add more."""
        try:
            return super().send(data, flags)
        except _WOULD_BLOCK as e:
            raise BlockingIOError from e

    def sendmsg(self, buffers: Sequence[memoryview], *args: Any) -> int:  # type: ignore[override]
        """Send the first buffer, or several small ones joined in one record."""
        head = buffers[0]
        if head.nbytes >= _RECORD_BYTES or len(buffers) == 1:
            return self.send(head)
        joined = bytearray()
        for buffer in buffers:
            joined += buffer[: _RECORD_BYTES - len(joined)]
            if len(joined) == _RECORD_BYTES:
                break
        return self.send(joined)

    def shutdown(self, how: int) -> None:
        """Shut one direction down and leave the other open. The frames inside distinguish an end from a cut."""
        socket.socket.shutdown(self, how)


def _of_ours(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = TlsSocket
    return context


def _shake_alone(identity: TlsIdentity) -> None:
    """Run the handshake of two processes with this identity in memory; raises what it raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = identity.client_context().wrap_bio(to_client, to_server)
    server = identity.server_context().wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path to bytes that stay in memory: `load_cert_chain` takes only paths, and a key must not be on disk."""
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
