"""Lines from a socket: real connections on loopback ports that the system chooses."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.connectors.reading import SourceRun
from tidegate.api.source import FINISHED, Boundedness, Idle
from tidegate.connectors.socket import _MAX_WAITING_CHUNKS, SocketSource, SourceUnavailableError
from tidegate.core.errors import BadRecordError, ProgramError
from tidegate.records.batch import Batch

DEADLINE_S = 20


class Reading:
    """A reader of a socket source, polled when it wakes."""

    def __init__(self, source: SocketSource, parallelism: int = 1, batch_rows: int = 65536) -> None:
        self._woken = threading.Event()
        self.run = SourceRun(source, parallelism, batch_rows=batch_rows, wake=self._woken.set)
        assert isinstance(self.run.poll(), Idle)  # it asks for its split

    def next(self) -> object:
        """The next answer that is not Idle."""
        while True:
            self._woken.clear()
            answer = self.run.poll()
            if not isinstance(answer, Idle):
                return answer
            assert self._woken.wait(DEADLINE_S), "the reader did not wake"

    def lines(self, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            answer = self.next()
            assert isinstance(answer, Batch), answer
            found += answer.rows
        return found

    def to_end(self) -> list[str]:
        found: list[str] = []
        while isinstance(answer := self.next(), Batch):
            found += answer.rows
        assert answer is FINISHED
        return found


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(DEADLINE_S)
        yield listening


@pytest.fixture
def read(server: socket.socket) -> Iterator[Callable[..., tuple[Reading, socket.socket]]]:
    """Starts a reader; gives it and the server's end. At the end no thread and no descriptor may be left."""
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    opened: list[tuple[Reading, socket.socket]] = []

    def start(batch_rows: int = 65536, **options: object) -> tuple[Reading, socket.socket]:
        source = SocketSource("127.0.0.1", server.getsockname()[1], **options)
        reading = Reading(source, batch_rows=batch_rows)
        peer, _ = server.accept()
        peer.settimeout(DEADLINE_S)
        opened.append((reading, peer))
        return reading, peer

    yield start
    for reading, peer in opened:
        reading.run.close()
        reading.run.close()  # closing twice does no harm
        peer.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_lines_arrive_as_they_are_sent_until_the_peer_closes(read):
    reading, peer = read()
    peer.sendall(b"one\ntwo\nthr")
    assert reading.lines(2) == ["one", "two"]
    peer.sendall("ee\r\n\nfünf".encode())
    peer.shutdown(socket.SHUT_WR)
    assert reading.to_end() == ["three", "", "fünf"]
    assert reading.next() is FINISHED
    assert reading.run.checkpoint()[1] == []


def test_source_says_that_it_cannot_go_back_and_counts_lines_for_messages(read):
    reading, peer = read()
    source = reading.run.source
    assert not source.resettable
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    peer.sendall(b"a\nb\nc\n")
    assert reading.lines(3) == ["a", "b", "c"]
    assert [split.position for split in reading.run.readers[0].snapshot()] == [3]
    peer.sendall(b"d\n")
    batch = reading.next()
    assert batch.origin.at(0) == f"line 4 of {source.address}"
    assert reading.run.readers[0].last_split == source.address
    assert reading.run.readers[0].reading() == [source.address]


def test_lines_are_cut_at_a_delimiter_of_several_characters_even_across_packets(read):
    reading, peer = read(delimiter="--")
    for part in (b"a-", b"-b-c", b"--", b"d\r\n--"):
        peer.sendall(part)
    peer.shutdown(socket.SHUT_WR)
    assert reading.to_end() == ["a", "b-c", "d\r\n"]


def test_batches_are_no_larger_than_the_runtime_wants(read):
    reading, peer = read(batch_rows=3)
    peer.sendall(b"".join(b"%d\n" % i for i in range(10)))
    peer.shutdown(socket.SHUT_WR)
    sizes = []
    while isinstance(answer := reading.next(), Batch):
        sizes.append(len(answer))
    assert sum(sizes) == 10
    assert max(sizes) == 3


def test_other_readers_of_a_parallel_job_finish_at_once(server):
    reading = Reading(SocketSource("127.0.0.1", server.getsockname()[1]), parallelism=2)
    assert isinstance(reading.run.poll(1), Idle)
    assert reading.run.poll(1) is FINISHED
    reading.run.close()


def test_bytes_that_are_no_text_fail_with_the_line_after_the_lines_before_it(read):
    reading, peer = read()
    peer.sendall(b"good\nbad \xff here\nnever\n")
    assert reading.lines(1) == ["good"]
    with pytest.raises(BadRecordError, match=r"line 2 from 127\.0\.0\.1:\d+ is not utf-8: .* at byte 4"):
        reading.next()


def test_bytes_that_are_no_text_can_be_replaced(read):
    reading, peer = read(invalid="replace")
    peer.sendall(b"bad \xff here\n")
    assert reading.lines(1) == ["bad � here"]


def test_other_encodings_are_read(read):
    reading, peer = read(encoding="latin-1")
    peer.sendall("fünf\n".encode("latin-1"))
    assert reading.lines(1) == ["fünf"]


@pytest.mark.parametrize("sent", [b"short\n" + b"x" * 101, b"short\n" + b"x" * 101 + b"\nnext\n"])
def test_line_over_the_limit_fails_whether_or_not_it_ends(read, sent):
    reading, peer = read(max_line_bytes=100)
    peer.sendall(sent)
    assert reading.lines(1) == ["short"]
    with pytest.raises(BadRecordError, match=r"line 2 .* is longer than 100 bytes"):
        reading.next()


def test_line_of_exactly_the_limit_passes(read):
    reading, peer = read(max_line_bytes=100)
    peer.sendall(b"x" * 100 + b"\n")
    assert reading.lines(1) == ["x" * 100]


def refused_port() -> tuple[socket.socket, int]:
    """A port that is taken but not listening: connections are refused."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    return holder, holder.getsockname()[1]


def test_refused_connection_fails_with_host_port_and_the_number_of_tries():
    holder, port = refused_port()
    with holder:
        reading = Reading(SocketSource("127.0.0.1", port, retries=2, retry_delay="1 ms"))
        with pytest.raises(SourceUnavailableError) as refused:
            reading.next()
        reading.run.close()
    assert f"cannot connect to 127.0.0.1:{port}: Connection refused (tried 3 times)" in str(refused.value)


def test_retries_wait_for_a_server_that_starts_later():
    holder, port = refused_port()
    with holder:
        reading = Reading(SocketSource("127.0.0.1", port, retries=100_000, retry_delay="1 ms"))
        holder.listen()
        holder.settimeout(DEADLINE_S)
        peer, _ = holder.accept()
        with peer:
            peer.sendall(b"at last\n")
        assert reading.to_end() == ["at last"]
        reading.run.close()


def test_reader_closes_while_it_waits_for_the_next_try():
    holder, port = refused_port()
    before = threading.active_count()
    with holder:
        reading = Reading(SocketSource("127.0.0.1", port, retries=1, retry_delay="1 h"))
        reading.run.close()
    assert threading.active_count() == before


def test_reader_closes_while_the_peer_is_silent(read):
    reading, peer = read()
    reading.run.close()
    assert peer.recv(1) == b""  # and the fixture looks for threads and descriptors


def test_unread_lines_hold_the_peer_back_and_do_not_keep_the_reader_from_closing(read):
    reading, peer = read()
    receiver = reading.run.readers[0]._receiver
    peer.setblocking(False)
    line = b"x" * 99 + b"\n"
    sent = 0
    while sent < 1 << 30:
        try:
            sent += peer.send(line * 1000)
        except BlockingIOError:
            if len(receiver._chunks) == _MAX_WAITING_CHUNKS:
                break  # the socket is full and so is the queue: the pressure has reached us
    assert sent < 1 << 28
    assert len(receiver._chunks) == _MAX_WAITING_CHUNKS
    assert len(reading.lines(10)) >= 10


def test_connection_that_breaks_is_an_error_and_not_an_end(read):
    reading, peer = read()
    peer.sendall(b"one\n")
    assert reading.lines(1) == ["one"]
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()  # with the option above: a reset
    with pytest.raises(
        SourceUnavailableError, match=r"127\.0\.0\.1:\d+ broke after 1 lines: Connection reset"
    ):
        reading.next()


def test_unknown_host_is_named():
    reading = Reading(SocketSource("no-such-host.invalid", 9999))
    with pytest.raises(SourceUnavailableError, match=r"cannot connect to no-such-host\.invalid:9999"):
        reading.next()
    reading.run.close()


def test_a_name_that_cannot_be_a_host_is_an_error_and_not_an_endless_wait():
    host = "h" * 64  # longer than any part of a host's name
    reading = Reading(SocketSource(host, 9999))
    with pytest.raises(SourceUnavailableError, match=f"cannot read from {host}:9999: UnicodeError"):
        reading.next()
    reading.run.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 0}, "port must be from 1 to 65535"),
        ({"delimiter": ""}, "must not be empty"),
        ({"encoding": "utf-16"}, "must contain ASCII"),
        ({"encoding": "klingon"}, "klingon"),
        ({"invalid": "ignore"}, "'fail' or 'replace'"),
        ({"retries": -1}, "retries"),
        ({"retry_delay": "soon"}, "soon"),
    ],
)
def test_socket_source_that_makes_no_sense_is_refused(options, words):
    with pytest.raises(ProgramError, match=words):
        SocketSource(**{"host": "localhost", "port": 9999, **options})
