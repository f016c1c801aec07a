"""Both sides prove the job's secret; whoever cannot is refused, whatever it sends."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import AuthenticationError
from tidegate.core.ids import AttemptNumber, JobId
from tidegate.core.options import Options
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.protocol.handshake import (
    GREETING_BYTES,
    MAGIC,
    MAX_HELLO_BYTES,
    ClientHandshake,
    Hello,
    ServerHandshake,
    new_secret,
)

SECRET = b"s" * 32
HELLO = Hello("control", "job", 3, 1)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def shake(server: ServerHandshake, client: ClientHandshake, size: int = 10_000) -> None:
    answer = b"".join(client.feed(piece) for piece in pieces(server.greeting, size))
    proof = b"".join(server.feed(piece) for piece in pieces(answer, size))
    for piece in pieces(proof, size):
        client.feed(piece)


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_both_sides_know_each_other_however_the_bytes_are_cut(size):
    server, client = ServerHandshake(SECRET, "job", 3), ClientHandshake(SECRET, HELLO)
    shake(server, client, size)
    assert server.hello == HELLO
    assert client.done
    assert server.rest == client.rest == b""


def test_bytes_behind_the_handshake_are_kept_for_the_protocol_that_follows():
    server, client = ServerHandshake(SECRET, "job", 3), ClientHandshake(SECRET, HELLO)
    proof = server.feed(client.feed(server.greeting) + b"first message")
    assert server.rest == b"first message"
    client.feed(proof + b"first answer")
    assert client.rest == b"first answer"


def test_a_client_without_the_secret_is_refused():
    server, client = ServerHandshake(SECRET, "job", 3), ClientHandshake(new_secret(), HELLO)
    with pytest.raises(AuthenticationError, match="does not hold the job's secret"):
        shake(server, client)
    assert server.hello is None


def test_a_server_without_the_secret_is_refused():
    client = ClientHandshake(SECRET, HELLO)
    server = ServerHandshake(SECRET, "job", 3)
    client.feed(server.greeting)
    with pytest.raises(AuthenticationError, match="server does not hold"):
        client.feed(b"\0" * 32)
    assert not client.done


@pytest.mark.parametrize(("job", "attempt"), [("job", 4), ("job", 2), ("other", 3)])
def test_a_zombie_of_another_attempt_or_job_is_refused(job, attempt):
    server, client = ServerHandshake(SECRET, job, attempt), ClientHandshake(SECRET, HELLO)
    with pytest.raises(AuthenticationError, match="belongs to job job attempt 3"):
        shake(server, client)
    assert server.hello is None


def test_an_answer_cannot_be_replayed_to_another_connection():
    server, client = ServerHandshake(SECRET, "job", 3), ClientHandshake(SECRET, HELLO)
    answer = client.feed(server.greeting)
    with pytest.raises(AuthenticationError):
        ServerHandshake(SECRET, "job", 3).feed(answer)


def test_the_servers_proof_cannot_be_made_from_the_clients():
    server, client = ServerHandshake(SECRET, "job", 3), ClientHandshake(SECRET, HELLO)
    answer = client.feed(server.greeting)
    with pytest.raises(AuthenticationError):
        client.feed(answer[-32:])


@pytest.mark.parametrize("position", range(0, 90, 7))
def test_one_changed_bit_anywhere_is_refused(position):
    server, client = ServerHandshake(SECRET, "job", 3), ClientHandshake(SECRET, HELLO)
    answer = bytearray(client.feed(server.greeting))
    position %= len(answer)
    if position in (len(MAGIC), len(MAGIC) + 1):  # the length: the server would wait for more
        return
    answer[position] ^= 1
    with pytest.raises(AuthenticationError):
        server.feed(bytes(answer))


def test_a_hello_of_the_wrong_form_is_refused_though_the_secret_is_right():
    server = ServerHandshake(SECRET, "job", 3)
    client = ClientHandshake(SECRET, HELLO)
    client._hello = msgspec.msgpack.encode({"role": "admin", "job": "job", "attempt": 3, "slot": 1})
    with pytest.raises(AuthenticationError, match="malformed"):
        server.feed(client.feed(server.greeting))


def test_a_long_hello_is_refused_before_it_is_read():
    with pytest.raises(AuthenticationError, match=f"at most {MAX_HELLO_BYTES}"):
        ServerHandshake(SECRET, "job", 3).feed(MAGIC + b"\xff\xff")


def test_another_protocol_is_refused_at_its_first_wrong_byte():
    for first in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", MAGIC[:-1] + b"\x02"):
        with pytest.raises(AuthenticationError, match="does not speak tidegate"):
            ServerHandshake(SECRET, "job", 3).feed(first)


@given(st.binary(min_size=1, max_size=700))
def test_garbage_never_gets_in(data):
    for start in (b"", MAGIC):
        server = ServerHandshake(SECRET, "job", 3)
        with contextlib.suppress(AuthenticationError):
            assert server.feed(start + data) == b""
        assert server.hello is None


@given(st.binary(min_size=GREETING_BYTES, max_size=200))
def test_a_client_is_not_fooled_by_garbage(data):
    client = ClientHandshake(SECRET, HELLO)
    with contextlib.suppress(AuthenticationError):
        client.feed(data)
        client.feed(data)
    assert not client.done


def test_the_secret_is_never_shown():
    secret = b"do-not-show-me-" + b"x" * 17
    options = Options().with_keywords(parallelism=2, job_name="x")
    bootstrap = SlotBootstrap(
        JobId("j"), "pv", AttemptNumber(1), secret, "127.0.0.1", 9, 2, options.as_dict()
    )
    shown = [repr(bootstrap), str(bootstrap), f"{bootstrap}", str(bootstrap.__rich_repr__())]
    assert not any("show-me" in text for text in shown)
    again = SlotBootstrap.decode(bootstrap.encode())
    assert again == bootstrap
    assert Options().with_values(again.options, "the driver") == options
