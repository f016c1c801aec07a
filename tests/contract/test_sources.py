"""The contract of sources: one suite that every source passes, whatever it reads.

Splits, enumerator, readers, snapshot and restore, as `tidegate.api.source` describes them. A source is described by how
to make it and by the records that it must give; everything else is the same for all. Splits and the enumerator's state
cross every border as JSON, as on the wire and in a checkpoint.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.api.source import (
    Boundedness,
    Finished,
    Idle,
    ReaderContext,
    Source,
    SourceReader,
    SourceSplit,
)
from tidegate.connectors.datagen import DataGeneratorSource, sequence, uniform_int
from tidegate.connectors.files import FileSource
from tidegate.connectors.socket import SocketSource
from tidegate.core.clock import ManualClock
from tidegate.metrics.registry import TaskMetrics
from tidegate.program.sequences import CollectionSource, NumberSequenceSource
from tidegate.records.batch import Batch
from tidegate.testing.subtasks import subtask_info

PARALLELISMS = (1, 2, 3, 7)


@dataclass
class Case:
    """A source under test."""

    make: Callable[[], Source]
    expected: list[Any]
    """Its records, as tuples or bare values; of an unbounded source the first ones."""


@dataclass
class Click:
    app: str
    n: int


def _write_files(folder: Path, kind: str) -> list[tuple[str, int]]:
    folder.mkdir()
    records = [(f"app {i % 5} ☃", i) for i in range(400)]
    for f in range(4):
        part = records[100 * f : 100 * f + 100]
        if kind == "parquet":
            table = pa.table({"app": [a for a, _ in part], "n": [n for _, n in part]})
            pq.write_table(table, folder / f"{f}.parquet", row_group_size=30)
        elif kind == "csv":
            (folder / f"{f}.csv").write_text("app,n\n" + "".join(f"{a},{n}\n" for a, n in part))
        else:
            (folder / f"{f}.json").write_text("".join(f'{{"app":"{a}","n":{n}}}\n' for a, n in part))
    return records


def _write_texts(folder: Path) -> list[str]:
    folder.mkdir()
    lines = [f"line {i} ☃" for i in range(400)]
    for f in range(4):
        (folder / f"{f}.txt").write_text("".join(f"{line}\n" for line in lines[100 * f : 100 * f + 100]))
    return lines


CASES = [
    "collection", "collection of objects", "empty collection", "number sequence", "generator",
    "generator with a rate", "endless generator", "endless generator with a rate", "JSON lines", "CSV", "Parquet",
    "text lines", "watched JSON lines", "watched Parquet", "watched text lines", "socket",
]  # fmt: skip
BOUNDED = [c for c in CASES if not c.startswith(("endless", "watched", "socket"))]
RESETTABLE = [c for c in CASES if c != "socket"]


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    name: str = request.param
    if name == "socket":
        yield from _socket_case()
    else:
        yield _case(name, tmp_path)


def _case(name: str, tmp_path: Path) -> Case:
    fields = {"i": sequence(), "n": uniform_int(0, 9)}
    if name == "collection":
        return Case(
            lambda: CollectionSource([f"value {i}" for i in range(100)]), [f"value {i}" for i in range(100)]
        )
    if name == "collection of objects":
        values = [1, "a", None, 2.5, (1, 2)] * 10
        return Case(lambda: CollectionSource(values), values)
    if name == "empty collection":
        return Case(lambda: CollectionSource([], int), [])
    if name == "number sequence":
        return Case(lambda: NumberSequenceSource(-50, 349), list(range(-50, 350)))
    if "generator" in name:
        rate = 1000.0 if name.endswith("rate") else None
        count = None if name.startswith("endless") else 20_000 if rate is None else 2_000
        truth = DataGeneratorSource(fields=fields, count=30_000, seed=5).preview(8192)
        known = [tuple(r.values()) for r in truth.to_pylist()]
        make = lambda: DataGeneratorSource(fields=fields, count=count, rate=rate, seed=5)  # noqa: E731
        if count is not None:  # the records behind the first block are checked by their index alone
            known = [known[i] if i < len(known) else (i, None) for i in range(count)]
        return Case(make, known)
    folder = tmp_path / "files"
    watch = "1 s" if name.startswith("watched") else None
    if name.endswith("text lines"):
        texts = _write_texts(folder)
        return Case(lambda: FileSource(folder, "text", split_size=300, watch=watch), texts)
    kind = {"JSON lines": "json", "CSV": "csv", "Parquet": "parquet"}[name.removeprefix("watched ")]
    records = _write_files(folder, kind)
    return Case(lambda: FileSource(folder, kind, Click, split_size=600, watch=watch), records)


def _socket_case() -> Iterator[Case]:
    """A server that sends the same lines to everyone who connects."""
    lines = [f"line {i}" for i in range(300)]
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.sendall("\n".join(lines).encode())

    server = threading.Thread(target=serve, name="line server")
    server.start()
    try:
        yield Case(lambda: SocketSource("127.0.0.1", listener.getsockname()[1]), lines)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        server.join()


def for_each(*names: str) -> Any:
    return pytest.mark.parametrize("case", names, indirect=True)


# ---- a runtime for one source ----


class Run:
    """One enumerator and its readers; a job from its start or from a checkpoint."""

    def __init__(
        self,
        source: Source,
        parallelism: int,
        *,
        restored: tuple[Any, list[Any]] | None = None,
        batch_rows: int = 64,
    ) -> None:
        self.source: Source = cloudpickle.loads(cloudpickle.dumps(source))
        self.parallelism = parallelism
        self.clock = ManualClock()
        self.batch_rows = batch_rows
        self.woken = threading.Event()
        self.waiting: set[int] = set()
        self.ended: set[int] = set()
        self._outbox: list[Callable[[], None]] = []
        state, splits = restored if restored is not None else (None, [])
        self.enumerator = (
            self.source.create_enumerator(self)
            if restored is None
            else self.source.restore_enumerator(self, state)
        )
        self.enumerator.start()
        self._contexts = [self._reader_context(i) for i in range(parallelism)]
        self.readers: list[SourceReader] = [self.source.create_reader(c) for c in self._contexts]
        for i, split in enumerate(splits):
            self.readers[i % parallelism].add_splits([split])
        for reader in self.readers:
            reader.start()

    # EnumeratorContext

    def assign(self, splits: Any, subtask: int) -> None:
        assert 0 <= subtask < self.parallelism
        assert subtask not in self.ended, "splits behind the end"
        arrived = [_through_json(s, self.source.split_type) for s in splits]
        assert all(isinstance(s, SourceSplit) and s.id for s in arrived)
        self.waiting.discard(subtask)
        self._outbox.append(lambda: self.readers[subtask].add_splits(arrived))

    def no_more_splits(self, subtask: int) -> None:
        self.ended.add(subtask)
        self.waiting.discard(subtask)
        self._outbox.append(self.readers[subtask].no_more_splits)

    # ReaderContext

    def _reader_context(self, subtask: int) -> ReaderContext:
        def request_split() -> None:
            assert subtask not in self.waiting, "asked twice"
            self.waiting.add(subtask)
            self._outbox.append(lambda: self.enumerator.handle_split_request(subtask))

        def side_output(tag: str, batch: Batch) -> None:
            raise AssertionError(f"unexpected side output {tag}")

        return ReaderContext(
            subtask=subtask_info("source", subtask, self.parallelism),
            clock=self.clock,
            batch_rows=self.batch_rows,
            most_batch_rows=10 * self.batch_rows,
            request_split=request_split,
            wake=self.woken.set,
            counter=TaskMetrics(0, 0).counter,
            side_output=side_output,
        )

    # the runtime's side

    def set_batch_rows(self, rows: int) -> None:
        """What is behind the source has become faster or slower."""
        self.batch_rows = rows
        for context in self._contexts:
            context.batch_rows = rows

    def deliver(self) -> None:
        """Messages between enumerator and readers arrive between polls, never inside one."""
        while self._outbox:
            messages, self._outbox = self._outbox, []
            for message in messages:
                message()

    def poll(self, subtask: int) -> Batch | Idle | Finished:
        answer = self.readers[subtask].poll()
        if isinstance(answer, Batch):
            assert 1 <= answer.num_rows <= self.batch_rows
            assert answer.type == self.source.record_type
            assert answer.plain_columns.schema.equals(self.source.record_type.schema)
            answer.plain_columns.validate(full=True)
        else:
            assert isinstance(answer, (Idle, Finished))
        self.deliver()
        return answer

    def read(self, most: int | None = None, chooser: random.Random | None = None) -> list[Any]:
        """Poll the readers, in turn or at random, to the end or until there are `most` records."""
        rows: list[Any] = []
        reading = list(range(self.parallelism))
        idle_rounds = 0
        while reading and (most is None or len(rows) < most):
            progress = False
            wakes: list[int] = []
            for subtask in [chooser.choice(reading)] if chooser else list(reading):
                self.woken.clear()
                answer = self.poll(subtask)
                if isinstance(answer, Batch):
                    rows += [_plain(r) for r in answer.rows]
                    progress = True
                elif isinstance(answer, Finished):
                    assert subtask in self.ended, "finished without being told that nothing follows"
                    reading.remove(subtask)
                    progress = True
                elif answer.wake_at_ns is not None:
                    wakes.append(answer.wake_at_ns)
            if progress:
                idle_rounds = 0
                continue
            idle_rounds += 1
            assert idle_rounds < 5000, "nothing moves"
            if wakes:
                self.clock.advance_ns(max(0, min(wakes) - self.clock.monotonic_ns()))
            elif not chooser:
                self.woken.wait(0.05)
        return rows

    def checkpoint(self) -> tuple[Any, list[Any]]:
        self.deliver()
        state = json.loads(msgspec.json.encode(self.enumerator.snapshot()))
        splits = [s for reader in self.readers for s in reader.snapshot()]
        return state, [_through_json(s, self.source.split_type) for s in splits]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.enumerator.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def _through_json(value: Any, cls: type) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=cls)


def _plain(row: Any) -> Any:
    if isinstance(row, Click):
        return row.app, row.n
    return tuple(row) if hasattr(row, "_fields") else row


def _known(expected: list[Any], found: list[Any]) -> tuple[Counter[Any], Counter[Any]]:
    """Both as bags, records that are known by their index alone cut to it."""
    partly = {e[0] for e in expected if isinstance(e, tuple) and e[-1] is None}
    cut = [(f[0], None) if isinstance(f, tuple) and f[0] in partly else f for f in found]
    return Counter(expected), Counter(cut)


def assert_same(expected: list[Any], found: list[Any]) -> None:
    one, other = _known(expected, found)
    assert one == other


# ---- the contract ----


@for_each(*BOUNDED)
@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_bounded_sources_give_every_record_once_and_end(case, parallelism):
    source = case.make()
    assert source.boundedness is Boundedness.BOUNDED
    with Run(source, parallelism) as run:
        assert_same(case.expected, run.read())
        assert all(isinstance(run.poll(i), Finished) for i in range(parallelism)), "the end is the end"


@for_each(*BOUNDED)
def test_one_reader_gives_the_records_in_order(case):
    with Run(case.make(), 1) as run:
        found = run.read()
        assert [f[0] if isinstance(f, tuple) and len(f) == 2 else f for f in found] == [
            e[0] if isinstance(e, tuple) and len(e) == 2 else e for e in case.expected
        ]


@for_each(*BOUNDED)
def test_readers_that_are_polled_in_any_order_give_the_same_records(case):
    for seed in range(3):
        with Run(case.make(), 3, batch_rows=17) as run:
            assert_same(case.expected, run.read(chooser=random.Random(seed)))


@for_each(*RESETTABLE)
@pytest.mark.parametrize("new_parallelism", [2, 1, 3])
def test_a_restored_job_goes_on_with_the_next_record_at_any_parallelism(case, new_parallelism):
    """Checkpoints after 0, 1, 2... batches; together the records before and after it are exactly all."""
    bounded = case.make().boundedness is Boundedness.BOUNDED
    total = len(case.expected) if bounded else min(len(case.expected), 400)
    for cut in sorted({0, 1, total // 3, total // 2, total - 1, total}):
        with Run(case.make(), 2, batch_rows=23) as first:
            before = first.read(most=cut) if cut else []
            checkpoint = first.checkpoint()
        with Run(case.make(), new_parallelism, restored=checkpoint, batch_rows=500) as second:
            if bounded:
                assert_same(case.expected, before + second.read())
            else:
                _check_endless(case, before, second)


def _check_endless(case: Case, found: list[Any], run: Run) -> None:
    """Go on until the first records are all there; none may come twice, and none of files that ended may miss."""
    wanted, found = Counter(case.expected[:400]), list(found)
    while wanted - Counter(found):
        more = run.read(most=1)
        assert more
        found += more
    assert max(Counter(found).values()) == 1


@for_each(*BOUNDED)
def test_a_chain_of_many_restores_loses_nothing(case):
    rng = random.Random(11)
    found: list[Any] = []
    checkpoint = None
    for _ in range(12):
        with Run(
            case.make(), rng.choice((1, 2, 3)), restored=checkpoint, batch_rows=rng.choice((5, 50))
        ) as run:
            found += run.read(most=rng.randrange(1, max(2, len(case.expected) // 6)))
            checkpoint = run.checkpoint()
    with Run(case.make(), 2, restored=checkpoint) as run:
        found += run.read()
    assert_same(case.expected, found)


@for_each(*BOUNDED)
def test_batches_are_as_large_as_the_context_says_now_and_a_position_may_be_within_what_was_read(case):
    found = []
    with Run(case.make(), 2, batch_rows=50) as run:
        for rows in (1, 3, 50, 2, 7):
            run.set_batch_rows(rows)
            found += run.read(most=2 * rows)
        checkpoint = run.checkpoint()
        assert_same(case.expected, found + run.read())
    with Run(case.make(), 2, restored=checkpoint, batch_rows=9) as run:
        assert_same(case.expected, found + run.read())


@for_each(*BOUNDED)
def test_a_checkpoint_changes_nothing_and_can_be_used_twice(case):
    with Run(case.make(), 2, batch_rows=23) as run:
        before = run.read(most=len(case.expected) // 2)
        checkpoint = run.checkpoint()
        assert run.checkpoint() == checkpoint
        assert_same(case.expected, before + run.read())
    for _ in range(2):
        with Run(case.make(), 2, restored=checkpoint) as again:
            assert_same(case.expected, before + again.read())


@for_each(*BOUNDED)
def test_a_checkpoint_of_a_finished_job_holds_nothing_more(case):
    with Run(case.make(), 2) as run:
        run.read()
        checkpoint = run.checkpoint()
        assert checkpoint[1] == []
    with Run(case.make(), 3, restored=checkpoint) as again:
        assert again.read() == []


@for_each(*CASES)
def test_a_reader_says_idle_and_never_blocks_while_it_has_no_split(case):
    with Run(case.make(), 1) as run:
        answer = run.readers[0].poll()  # nobody answers its request yet
        assert isinstance(answer, Idle)
        assert answer.wake_at_ns is None
        assert run.waiting == {0}
        assert isinstance(run.readers[0].poll(), Idle)  # and it asks only once
        assert run.readers[0].snapshot() == []


@for_each(*CASES)
def test_a_source_describes_itself_and_travels(case):
    source = case.make()
    copy = cloudpickle.loads(cloudpickle.dumps(source))
    assert copy.record_type == source.record_type
    assert copy.describe() == source.describe() != ""
    assert "\n" not in source.describe()
    assert issubclass(source.split_type, SourceSplit)
    assert isinstance(source.resettable, bool)


@for_each(*CASES)
def test_readers_and_enumerators_can_be_closed_at_any_time(case):
    run = Run(case.make(), 2)
    run.close()
    run = Run(case.make(), 2, batch_rows=3)
    run.read(most=min(10, len(case.expected)))
    run.close()


@for_each(*(c for c in CASES if c.startswith(("endless", "watched"))))
def test_unbounded_sources_never_end(case):
    source = case.make()
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    with Run(source, 2) as run:
        found = run.read(most=400)
        if isinstance(source, FileSource):  # everything that is there now; then it waits for more
            assert_same(case.expected, found)
            for _ in range(5):
                run.enumerator.poll()
                run.deliver()
                assert all(isinstance(run.poll(i), Idle) for i in range(2))
            assert run.ended == set()


@for_each("socket")
def test_a_socket_gives_its_lines_once_to_one_reader_and_cannot_be_reset(case):
    source = case.make()
    assert source.resettable is False
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    with Run(source, 3) as run:
        assert run.read() == case.expected


@for_each("JSON lines", "Parquet", "generator")
def test_a_source_narrowed_to_some_columns_gives_those_of_every_record(case):
    source = case.make()
    last = source.record_type.names[-1]
    narrow = source.with_columns([last])
    assert narrow is not None
    assert narrow.record_type.names == [last]
    with Run(narrow, 2) as run, Run(case.make(), 2) as whole:
        assert Counter(r[0] for r in run.read()) == Counter(r[-1] for r in whole.read())
