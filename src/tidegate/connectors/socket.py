"""Lines of text from a TCP server: for demonstrations and tests, never exactly-once (a socket cannot go back).

A thread of the reader connects, receives and cuts lines. It stops receiving while too many lines wait for the job, so
TCP itself slows the peer down. `close` wakes that thread wherever it waits; only a hanging name look-up cannot be
interrupted.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidegate.api.known_splits import KnownSplitsSource, RequestingReader
from tidegate.api.source import IDLE, Boundedness, Finished, Idle, ReaderContext, SourceReader, SourceSplit
from tidegate.core.durations import parse_duration_ms, parse_size_bytes
from tidegate.core.errors import BadRecordError, ProgramError, TidegateError
from tidegate.core.identity import Identity
from tidegate.protocol.liveness import probe_when_idle
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import record_type_of

_RECEIVE_BYTES = 1 << 16
_MAX_WAITING_CHUNKS = 16
_CLOSE_TIMEOUT_S = 5.0
_PROBE_MS = 30_000
_PROBES = 5
"""TCP keep-alive notices a server whose host is gone; without it the server would only seem quiet."""


class SourceUnavailableError(TidegateError):
    """The server of a source cannot be reached, or broke the connection; names host and port."""


class SocketSplit(SourceSplit, frozen=True, kw_only=True):
    """The one connection; the position is for messages only, a reader cannot return to it."""

    position: int = 0


class SocketSource(KnownSplitsSource[str]):
    """Reads lines from `host:port` until the peer closes; one reader, whatever the parallelism.

    A refused connection is tried `retries` more times, `retry_delay` apart. A line longer than `max_line_bytes` fails
    the job, and so do bytes that are not text in `encoding`, unless `invalid="replace"` replaces them by U+FFFD. With
    the delimiter "\\n", a "\\r" before it is dropped. The last line needs no delimiter.

    >>> SocketSource("example.org", 9999).describe()
    'lines from example.org:9999'
    """

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED  # still, it ends when the peer closes
    resettable = False
    split_type = SocketSplit
    on_request = False

    def __init__(
        self,
        host: str,
        port: int,
        delimiter: str = "\n",
        *,
        encoding: str = "utf-8",
        invalid: str = "fail",
        max_line_bytes: int | str = "1 MiB",
        retries: int = 0,
        retry_delay: int | str = "500 ms",
        connect_timeout: int | str = "10 s",
    ) -> None:
        if not 0 < port < 65536:
            raise ProgramError(f"socket source: port must be from 1 to 65535, got {port}.")
        if invalid not in ("fail", "replace"):
            raise ProgramError(f"socket source: invalid must be 'fail' or 'replace', got {invalid!r}.")
        if retries < 0:
            raise ProgramError(f"socket source: retries must not be negative, got {retries}.")
        try:
            cut = delimiter.encode(encoding)
            plain = "\n".encode(encoding) == b"\n"
        except (LookupError, UnicodeError) as e:
            raise ProgramError(f"socket source: delimiter {delimiter!r} in {encoding!r}: {e}.") from e
        if not cut or not plain:
            raise ProgramError(
                f"socket source: cannot cut at {delimiter!r} in {encoding!r}: "
                "the delimiter must not be empty and the encoding must contain ASCII, as UTF-8 does."
            )
        try:
            self._max_line_bytes = parse_size_bytes(max_line_bytes)
            self._retry_delay_ms = parse_duration_ms(retry_delay)
            self._connect_timeout_ms = parse_duration_ms(connect_timeout)
        except ValueError as e:
            raise ProgramError(f"socket source: {e}") from e
        self._host, self._port = host, port
        self._delimiter, self._encoding, self._invalid = cut, encoding, invalid
        self._retries = retries
        super().__init__(record_type_of(str))

    def splits(self, parallelism: int) -> list[SourceSplit]:
        """One split, the connection, for the first reader; the other readers end at once."""
        return [SocketSplit(id=self.address)]

    def create_reader(self, context: ReaderContext) -> SourceReader[str]:
        return _SocketReader(context, self)

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def describe(self) -> str:
        return f"lines from {self.address}"

    def identity(self) -> Identity:
        return "socket", self._host, self._port


class _SocketReader(RequestingReader[str]):
    """Polled by the mailbox thread; the receiver's thread does what could block."""

    last_split = ""

    def __init__(self, context: ReaderContext, source: SocketSource) -> None:
        super().__init__(context)
        self._source = source
        self._type = source.record_type
        self._split: SocketSplit | None = None
        self._lines_read = 0
        self._receiver: _Receiver | None = None

    def poll(self) -> Batch[str] | Idle | Finished:
        """Return the received lines; after the last one raise the receiver's error, or finish."""
        if self._receiver is None or self._split is None:
            return self.out_of_splits()
        lines, ended = self._receiver.take(self._context.batch_rows)
        if lines:
            start = self._split.position + self._lines_read
            self._lines_read += len(lines)
            self.last_split = self._split.id
            return Batch(self._type, rows=lines, origin=Origin(self._split.id, start + 1, "line"))
        if not ended:
            return IDLE
        if self._receiver.error is not None:
            raise self._receiver.error
        self._split = None
        return self.out_of_splits()

    def add_splits(self, splits: Sequence[Any]) -> None:
        super().add_splits(splits)
        (self._split,) = splits
        self._receiver = _Receiver(self._source, self._context.wake)

    def snapshot(self) -> list[Any]:
        if self._split is None:
            return []
        return [msgspec.structs.replace(self._split, position=self._split.position + self._lines_read)]

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()


class _Closed(Exception):
    """The reader was closed while its thread worked."""


class _Receiver:
    """The thread that receives. The mailbox thread calls `take` and `close`; `_changed` guards the shared state."""

    def __init__(self, source: SocketSource, wake: Callable[[], None]) -> None:
        self._source = source
        self._wake = wake
        self.error: TidegateError | None = None
        self._changed = threading.Condition()
        self._chunks: deque[list[str]] = deque()
        self._ended = False
        self._closing = False
        self._line = 0
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"socket {source.address}", daemon=True)
        self._thread.start()

    def take(self, most: int) -> tuple[list[str], bool]:
        """Up to `most` lines, and whether these are the last."""
        with self._changed:
            lines: list[str] = []
            while self._chunks and len(lines) < most:
                chunk = self._chunks.popleft()
                room = most - len(lines)
                if len(chunk) > room:
                    self._chunks.appendleft(chunk[room:])
                    chunk = chunk[:room]
                lines += chunk
            self._changed.notify()
            return lines, self._ended and not self._chunks

    def close(self) -> None:
        """Wake the thread and wait until it ends; idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify()
        os.write(self._stop_write, b"x")
        self._thread.join(_CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():  # else it hangs in a name look-up and will still use the pipe
            os.close(self._stop_read)
            os.close(self._stop_write)

    def _run(self) -> None:
        address = self._source.address
        try:
            with self._connect() as connection:
                self._receive(connection)
        except _Closed:
            return
        except TidegateError as e:
            self.error = e
        except OSError as e:
            self.error = SourceUnavailableError(
                f"the connection to {address} broke after {self._line} lines: {e.strerror or e}. "
                "Data that was sent but not received is lost."
            )
        except Exception as e:  # noqa: BLE001 - the reader must learn of any end of this thread
            self.error = SourceUnavailableError(f"cannot read from {address}: {type(e).__name__}: {e}.")
        with self._changed:
            self._ended = True
        self._wake()

    def _connect(self) -> socket.socket:
        source = self._source
        reason = ""
        for attempt in range(1 + source._retries):
            if attempt:
                self._wait(None, 0, source._retry_delay_ms)
            try:
                return self._connect_once()
            except OSError as e:
                reason = e.strerror or str(e)
        raise SourceUnavailableError(
            f"cannot connect to {source.address}: {reason} (tried {1 + source._retries} times). "
            "Start the server first, or set retries and retry_delay."
        )

    def _connect_once(self) -> socket.socket:
        host, port = self._source._host, self._source._port
        reason: OSError = OSError("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setblocking(False)
                connection.connect_ex(address)
                if not self._wait(connection, selectors.EVENT_WRITE, self._source._connect_timeout_ms):
                    raise TimeoutError("timed out")
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                probe_when_idle(connection, _PROBE_MS, _PROBES)
                return connection
            except OSError as e:
                connection.close()
                reason = e
            except BaseException:
                connection.close()
                raise
        raise reason

    def _wait(self, connection: socket.socket | None, events: int, timeout_ms: int | None) -> bool:
        """Whether the connection became ready in time; raises `_Closed` when the reader closes."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stop_read, selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection, events)
            ready = selector.select(None if timeout_ms is None else timeout_ms / 1000)
        if any(key.fileobj == self._stop_read for key, _ in ready):
            raise _Closed
        return bool(ready)

    def _receive(self, connection: socket.socket) -> None:
        delimiter, rest = self._source._delimiter, b""
        scanned = 0
        while True:
            try:
                data = connection.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                self._wait(connection, selectors.EVENT_READ, None)
                continue
            if not data:
                break
            rest += data
            # Search only the new bytes, and a delimiter that straddles the border.
            if rest.rfind(delimiter, max(0, scanned - len(delimiter) + 1)) >= 0:
                *lines, rest = rest.split(delimiter)
                self._post(lines)
            scanned = len(rest)
            self._check_length(rest)
        if rest:
            self._post([rest])

    def _check_length(self, line: bytes) -> None:
        if len(line) > self._source._max_line_bytes:
            raise BadRecordError(
                f"line {self._line + 1} from {self._source.address} is longer than "
                f"{self._source._max_line_bytes} bytes. Raise max_line_bytes, or check the delimiter."
            )

    def _post(self, lines: list[bytes]) -> None:
        """Decode and count the lines, and hand them over; the lines before a bad one still get through."""
        texts: list[str] = []
        try:
            for line in lines:
                self._check_length(line)
                texts.append(self._decode(line))
                self._line += 1
        finally:
            if texts:
                self._hand_over(texts)

    def _decode(self, line: bytes) -> str:
        source = self._source
        if source._delimiter == b"\n" and line.endswith(b"\r"):
            line = line[:-1]
        try:
            return line.decode(source._encoding, "strict" if source._invalid == "fail" else "replace")
        except UnicodeDecodeError as e:
            raise BadRecordError(
                f"line {self._line + 1} from {source.address} is not {source._encoding}: "
                f"{e.reason} at byte {e.start} of {line[:60]!r}. "
                "Set encoding, or invalid='replace' to read U+FFFD instead."
            ) from e

    def _hand_over(self, texts: list[str]) -> None:
        with self._changed:
            while len(self._chunks) >= _MAX_WAITING_CHUNKS and not self._closing:
                self._changed.wait()
            if self._closing:
                raise _Closed
            self._chunks.append(texts)
        self._wake()
