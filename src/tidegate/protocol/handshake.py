"""The handshake of every connection: both sides prove that they hold the job's secret, without showing it.

1. The server sends `MAGIC` and a nonce.
2. The client sends `MAGIC`, its hello (who it is), a nonce and an HMAC over both nonces and the hello.
3. The server checks and answers with its own HMAC, so the client knows the server too.

Pure: bytes in, bytes out. Any other bytes raise `AuthenticationError`, and the caller closes the connection. HMACs are
compared in constant time, and the secret leaves the process only inside an HMAC.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from typing import Literal

import msgspec

from tidegate.core.errors import AuthenticationError

MAGIC = b"TIDEGATE\x01"
NONCE_BYTES = 16
MAC_BYTES = 32
MAX_HELLO_BYTES = 512
_LENGTH = struct.Struct("<H")
GREETING_BYTES = len(MAGIC) + NONCE_BYTES


class Hello(msgspec.Struct, frozen=True):
    """Which slot connects, for which purpose, job and attempt."""

    role: Literal["control", "data"]
    job: str
    attempt: int
    slot: int


def new_secret() -> bytes:
    return secrets.token_bytes(32)


def _mac(secret: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes, hello: bytes) -> bytes:
    return hmac.new(secret, side + server_nonce + client_nonce + hello, hashlib.sha256).digest()


class ServerHandshake:
    """The accepting side. Send `greeting` first, then `feed` received bytes until `hello` is set."""

    def __init__(self, secret: bytes, job: str, attempt: int, nonce: bytes | None = None) -> None:
        self._secret = secret
        self._expected = (job, attempt)
        self._nonce = nonce or secrets.token_bytes(NONCE_BYTES)
        self._buffer = bytearray()
        self.greeting = MAGIC + self._nonce
        self.hello: Hello | None = None
        self.rest = b""
        """Bytes received after the handshake, for the protocol that follows."""

    def feed(self, data: bytes) -> bytes:
        """Take received bytes; return bytes to send (empty until the client has proved itself)."""
        self._buffer += data
        head = bytes(self._buffer[: len(MAGIC)])
        if head != MAGIC[: len(head)]:
            raise AuthenticationError(f"the peer does not speak tidegate (it began with {head!r})")
        start = len(MAGIC) + _LENGTH.size
        if len(self._buffer) < start:
            return b""
        (length,) = _LENGTH.unpack_from(self._buffer, len(MAGIC))
        if length > MAX_HELLO_BYTES:
            raise AuthenticationError(
                f"the peer's hello is {length} bytes long, at most {MAX_HELLO_BYTES} are allowed"
            )
        end = start + length + NONCE_BYTES + MAC_BYTES
        if len(self._buffer) < end:
            return b""
        raw = bytes(self._buffer[start : start + length])
        nonce = bytes(self._buffer[start + length : start + length + NONCE_BYTES])
        mac = bytes(self._buffer[end - MAC_BYTES : end])
        if not hmac.compare_digest(mac, _mac(self._secret, b"client", self._nonce, nonce, raw)):
            raise AuthenticationError("the peer does not hold the job's secret")
        try:
            hello = msgspec.msgpack.decode(raw, type=Hello)
        except msgspec.MsgspecError as e:
            raise AuthenticationError(f"the peer's hello is malformed: {e}") from e
        if (hello.job, hello.attempt) != self._expected:
            raise AuthenticationError(
                f"the peer belongs to job {hello.job} attempt {hello.attempt}, "
                f"this is job {self._expected[0]} attempt {self._expected[1]}"
            )
        self.hello = hello
        self.rest = bytes(self._buffer[end:])
        return _mac(self._secret, b"server", self._nonce, nonce, raw)


class ClientHandshake:
    """The connecting side. `feed` received bytes until `done`: then the server has proved itself."""

    def __init__(self, secret: bytes, hello: Hello, nonce: bytes | None = None) -> None:
        self._secret = secret
        self._hello = msgspec.msgpack.encode(hello)
        self._nonce = nonce or secrets.token_bytes(NONCE_BYTES)
        self._server_nonce: bytes | None = None
        self._buffer = bytearray()
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Take received bytes; return bytes to send."""
        self._buffer += data
        if self._server_nonce is None:
            if len(self._buffer) < GREETING_BYTES:
                return b""
            if bytes(self._buffer[: len(MAGIC)]) != MAGIC:
                raise AuthenticationError("the server does not speak tidegate")
            self._server_nonce = bytes(self._buffer[len(MAGIC) : GREETING_BYTES])
            del self._buffer[:GREETING_BYTES]
            mac = _mac(self._secret, b"client", self._server_nonce, self._nonce, self._hello)
            return MAGIC + _LENGTH.pack(len(self._hello)) + self._hello + self._nonce + mac
        if not self.done and len(self._buffer) >= MAC_BYTES:
            mac = bytes(self._buffer[:MAC_BYTES])
            expected = _mac(self._secret, b"server", self._server_nonce, self._nonce, self._hello)
            if not hmac.compare_digest(mac, expected):
                raise AuthenticationError("the server does not hold the job's secret")
            self.done = True
            self.rest = bytes(self._buffer[MAC_BYTES:])
        return b""
