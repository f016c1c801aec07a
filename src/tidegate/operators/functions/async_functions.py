"""Async I/O: requests run on an event loop in a thread of their own, results are emitted by the mailbox thread.

    waiting   rows of the input that are not requested yet (at most `capacity` requests run at a time)
    queue     requested rows, and the watermarks between them, in the order of the input
    done      requests that the loop's thread has answered (a deque: no lock)

In order, the operator emits the answered head of the queue. Unordered, it emits whatever is answered before the first
watermark. So no record passes a watermark, in either direction. A snapshot has the rows of the queue and those that
wait, without answers, so after a restore the requests are made again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from tidegate.api.async_io import ApplyAsync, AsyncFunction
from tidegate.api.state import OperatorListState
from tidegate.core.errors import ProgramError, SchemaError
from tidegate.core.words import kind_of
from tidegate.operators.failures import OperatorError
from tidegate.operators.functions.row_operator import RowOperator, records_of
from tidegate.operators.functions.stamped_results import stamps
from tidegate.records.batch import Batch, Origin
from tidegate.records.types import brief
from tidegate.state.copies import Copier, itself, row_copier

ROWS: Final = "in_flight"
TIMES: Final = "in_flight_times"


class _Request:
    """A requested record. The loop's thread writes `answer` or `failure`, then puts it on `done`."""

    __slots__ = ("answer", "answered", "at", "failure", "row", "timestamp_ms")

    def __init__(self, row: Any, timestamp_ms: int | None, at: str) -> None:
        self.row = row
        self.timestamp_ms = timestamp_ms
        self.at = at
        self.answered = False
        self.answer: list[Any] = []
        self.failure: BaseException | None = None


class AsyncOperator(RowOperator):
    """Makes a request for every record and emits the answers. Mailbox thread, except for what runs on the loop."""

    operation: ApplyAsync
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    def open(self) -> None:
        """Open the function, start the loop, and restore the records that were in flight."""
        super().open()
        function = self.operation.function
        self._many = isinstance(function, AsyncFunction)
        self._copy_row: Copier = row_copier(self.input_types[0]) or itself
        self._invoke = function.invoke if isinstance(function, AsyncFunction) else function
        self._waiting: deque[_Request] = deque()
        self._queue: deque[_Request | int] = deque()
        self._asked = 0
        self._done: deque[_Request] = deque()
        self._last_watermark: int | None = None
        self._is_idle_soon = False
        """Whether the input is idle; this is passed on when no request is left."""
        self._lists: tuple[OperatorListState[Any], OperatorListState[Any]] | None = None
        self._pending = self.context.gauge("async_requests")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"async {self.name}", daemon=True)
        self._thread.start()
        self._restore()

    def _restore(self) -> None:
        if self.input_types[0].is_object:
            if self.context.options.checkpoint_interval:
                raise self._untyped()
            return
        states = self.context.states
        row_type: Any = self.input_types[0]
        rows = states.operator_state(OperatorListState(row_type, name=ROWS))
        times = states.operator_state(OperatorListState(int | None, name=TIMES))
        assert isinstance(rows, OperatorListState)
        assert isinstance(times, OperatorListState)
        self._lists = rows, times
        for row, timestamp_ms in zip(rows.get(), times.get(), strict=True):
            self._waiting.append(_Request(row, timestamp_ms, ""))

    def start(self) -> None:
        """Make the requests for restored records."""
        self._ask()

    # ---- input ----

    def is_ready(self) -> bool:
        """Whether all records are requested; else the input waits."""
        return not self._waiting

    def process(self, batch: Batch, input_index: int) -> None:
        """Take the records; make as many requests as `capacity` allows."""
        times: Iterable[int | None]
        times = [None] * batch.num_rows if batch.timestamps is None else batch.timestamps.to_pylist()
        for i, (row, timestamp_ms) in enumerate(zip(self.rows(batch), times, strict=True)):
            self._waiting.append(_Request(row, timestamp_ms, _position(batch.origin, i)))
        self._ask()

    def process_watermark(self, watermark_ms: int) -> None:
        """Queue the watermark after the records before it."""
        if self._last_watermark is not None and watermark_ms <= self._last_watermark:
            return
        self._last_watermark = watermark_ms
        if self._waiting:  # `is_ready` keeps batches back, not watermarks
            self._waiting.append(_Request(_WATERMARK, watermark_ms, ""))
        else:
            self._queue.append(watermark_ms)
        self._emit_answered()

    def process_status(self, idle: bool) -> None:
        """Pass idleness on when the last answer is emitted: before that the clock downstream must wait for it."""
        if idle and not self.is_settled:
            self._is_idle_soon = True
        elif self._is_idle_soon:
            self._is_idle_soon = False
        else:
            self.context.emit_status(idle)

    @property
    def is_settled(self) -> bool:
        """Whether no record waits for an answer."""
        return not self._waiting and not self._queue

    def _ask(self) -> None:
        while self._waiting and self._asked < self.operation.capacity:
            request = self._waiting.popleft()
            if request.row is _WATERMARK:
                assert request.timestamp_ms is not None
                self._queue.append(request.timestamp_ms)
                continue
            self._queue.append(request)
            self._asked += 1
            assert self._loop is not None
            asyncio.run_coroutine_threadsafe(self._answer(request), self._loop)
        while self._waiting and self._waiting[0].row is _WATERMARK:
            mark = self._waiting.popleft().timestamp_ms
            assert mark is not None
            self._queue.append(mark)
        self._pending.set(self._asked + len(self._waiting))

    # ---- on the loop ----

    async def _answer(self, request: _Request) -> None:
        try:
            request.answer = await self._in_time(request.row)
        except BaseException as e:  # noqa: BLE001 - the mailbox thread raises it
            request.failure = e
        self._done.append(request)
        self.context.wake()

    async def _in_time(self, row: Any) -> list[Any]:
        limit = asyncio.timeout(self.operation.timeout_ms / 1000)
        try:
            async with limit:
                return await self._attempts(row)
        except TimeoutError as e:
            if limit.expired():
                return self._on_timeout(row, e)
            raise  # the user's own: the timeout of a request, say

    async def _attempts(self, row: Any) -> list[Any]:
        """The function's answer for a record. One of the wrong kind is not retried: it would come again."""
        answer = await self._answer_of(row)
        return list(records_of(answer)) if self._many else [answer]

    async def _answer_of(self, row: Any) -> Any:
        retry, copy_row = self.operation.retry, self._copy_row
        attempt = 1
        while True:
            made: Any = None
            try:
                # A copy: checkpoints and the next attempt need the row unchanged.
                made = self._invoke(copy_row(row))
                if isinstance(made, Coroutine):
                    return await made
            except Exception as e:
                if retry is None or attempt >= retry.attempts or not isinstance(e, retry.on):
                    raise
                await asyncio.sleep(retry.delay_ms(attempt) / 1000)
                attempt += 1
                continue
            raise ProgramError(
                f"the async function returned {kind_of(made)}, not a coroutine. Define it with async def"
            )

    def _on_timeout(self, row: Any, error: TimeoutError) -> list[Any]:
        function = self.operation.function
        if isinstance(function, AsyncFunction):
            return list(records_of(function.timeout(self._copy_row(row))))
        raise TimeoutError(
            f"no answer within {self.operation.timeout_ms} ms. Raise the timeout, add a retry, or use an AsyncFunction "
            f"with a timeout(value) method"
        ) from error

    # ---- output ----

    @property
    def next_processing_time_ms(self) -> int | None:
        """At once, if requests are answered."""
        return 0 if self._done else None

    def on_processing_time(self, now_ms: int) -> None:
        """Emit what is answered, and make more requests."""
        while self._done:
            request = self._done.popleft()
            request.answered = True
            self._asked -= 1
            if request.failure is not None:
                raise OperatorError(self.name, request.at, brief(request.row)) from request.failure
        self._emit_answered()
        self._ask()
        self._emit_answered()  # a watermark after the last of them
        if self._is_idle_soon and self.is_settled:
            self._is_idle_soon = False
            self.context.emit_status(True)

    def _emit_answered(self) -> None:
        out: list[Any] = []
        times: list[int | None] = []
        if self.operation.ordered:
            queue = self._queue
            while queue:
                head = queue[0]
                if isinstance(head, int):
                    self._send(out, times)
                    self._forward(head)
                elif head.answered:
                    _take(head, out, times)
                else:
                    break
                queue.popleft()
        else:
            self._take_unordered(out, times)
        self._send(out, times)

    def _take_unordered(self, out: list[Any], times: list[int | None]) -> None:
        left: deque[_Request | int] = deque()
        queue = self._queue
        while queue:
            head = queue[0]
            if isinstance(head, int):
                if left:
                    break
                self._send(out, times)
                self._forward(head)
            elif head.answered:
                _take(head, out, times)
            else:
                left.append(head)
            queue.popleft()
        queue.extendleft(reversed(left))

    def _send(self, out: list[Any], times: list[int | None]) -> None:
        if out:
            self.emit_results(list(out), timestamps=stamps(times))
            out.clear()
            times.clear()

    def _forward(self, watermark_ms: int) -> None:
        self.clock_ms = watermark_ms
        self.context.emit_watermark(watermark_ms)

    # ---- checkpoints, end ----

    def snapshot(self, checkpoint_id: int) -> None:
        """Store the records whose answers are not emitted yet."""
        if self._lists is None:
            raise self._untyped()
        requests = [r for r in (*self._queue, *self._waiting) if isinstance(r, _Request)]
        requests = [r for r in requests if r.row is not _WATERMARK]
        self._lists[0].update([r.row for r in requests])
        self._lists[1].update([r.timestamp_ms for r in requests])

    def _untyped(self) -> SchemaError:
        return SchemaError(
            f"operator {self.name!r} asks for Python objects without a schema, which cannot be in a checkpoint. Give "
            f"its input a type: a return type hint before it, or returns="
        )

    def close(self) -> None:
        """Cancel pending requests, stop the loop, close the function."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).add_done_callback(
                lambda _: loop.call_soon_threadsafe(loop.stop)
            )
            thread.join(_STOP_S)
            if not thread.is_alive():
                loop.close()
        super().close()


_STOP_S: Final = 5.0
_WATERMARK: Final = object()
"""Stands for a row: a watermark that waits after rows."""


def _take(request: _Request, out: list[Any], times: list[int | None]) -> None:
    out.extend(request.answer)
    times.extend([request.timestamp_ms] * len(request.answer))


def _position(origin: Origin | None, row: int) -> str:
    return "" if origin is None else origin.at(row)


async def _cancel_all() -> None:
    tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
