"""The contract of sinks: one suite that every sink passes, wherever it writes to.

Writers as `tidegate.api.sink` describes them: records once and in order, nothing unfinished taken for output, and
subtasks that do not disturb each other. Committers: what was made visible once stays so and is not made visible again,
whoever repeats the commit and whatever a consumer has done with it since.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.api.sink import (
    BlackholeSink,
    Committer,
    FunctionSink,
    Sink,
    SinkJob,
    SinkWriter,
    WriterContext,
)
from tidegate.connectors.files import FileSink
from tidegate.core.clock import ManualClock
from tidegate.core.errors import TidegateError
from tidegate.metrics.registry import TaskMetrics
from tidegate.program.driver_sinks import MAX_DRIVER_BACKLOG, CollectSink, PrintSink
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of
from tidegate.testing.subtasks import subtask_info


@dataclass
class Click:
    app: str
    n: int | None


CLICK = record_type_of(Click)


def clicks(start: int, stop: int) -> list[Click]:
    return [Click(f'app "{i % 3}", ☃', None if i % 4 == 0 else i) for i in range(start, stop)]


class Noted:
    """A user's function that keeps what it is called with, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, record: Click) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps([record.app, record.n]) + "\n")


@dataclass
class Job:
    """The sink of one job: its writers, and what the driver got from them."""

    sink: Sink
    sent: dict[int, list[Batch]] = field(default_factory=dict)
    taken: int = 1 << 30
    """How many batches of each subtask the driver has taken."""

    description = SinkJob("job", 0, 2)

    def end(self) -> None:
        self.sink.release(self.description, resumable=False)

    def writer(self, subtask: int = 0, parallelism: int = 2, attempt: int = 0) -> SinkWriter:
        return self._sink().create_writer(self._context(subtask, parallelism, attempt))

    def transaction(
        self, subtask: int = 0, parallelism: int = 2, attempt: int = 0, recovered: Sequence[Any] = ()
    ) -> tuple[SinkWriter, Committer]:
        context = replace(
            self._context(subtask, parallelism, attempt), checkpointed=True, recovered=tuple(recovered)
        )
        committer = self._sink().create_committer(context)
        return self._sink().create_writer(context), committer

    def _sink(self) -> Sink:
        sink: Sink = cloudpickle.loads(cloudpickle.dumps(self.sink))
        return sink

    def _context(self, subtask: int, parallelism: int, attempt: int) -> WriterContext:
        batches = self.sent.setdefault(subtask, [])
        return WriterContext(
            subtask=subtask_info("sink", subtask, parallelism, job_id="job", attempt=attempt),
            clock=ManualClock(),
            record_type=CLICK,
            counter=TaskMetrics(0, 0).counter,
            send_to_driver=batches.append,
            driver_backlog=lambda: max(0, len(batches) - self.taken),
        )

    def driver_rows(self) -> list[Click]:
        return [row for subtask in sorted(self.sent) for batch in self.sent[subtask] for row in batch.rows]


@dataclass
class Case:
    """A sink under test and how to see what was written."""

    make: Callable[[Path], Sink]
    written: Callable[[Path, Job], list[Click]] | None
    """The records that a reader can see now, by subtask; None: nothing can be seen."""
    hides_unfinished: bool = False
    consume: Callable[[Path], None] | None = None
    """Take away everything that is visible, as a consumer may; None: the sink has no transactions."""


def _in_files(folder: Path, job: Job) -> list[Click]:
    found: list[Click] = []
    for path in sorted(folder.glob("part-*")):
        if path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
        elif path.suffix == ".csv":
            rows = [
                {"app": r["app"], "n": int(r["n"]) if r["n"] else None}
                for r in csv.DictReader(path.read_text("utf-8").splitlines())
            ]
        else:
            rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        found += [Click(r["app"], r.get("n")) for r in rows]
    return found


def _consume_files(folder: Path) -> None:
    for path in folder.glob("part-*"):
        path.unlink()


def _in_function(folder: Path, job: Job) -> list[Click]:
    path = folder / "notes"
    return (
        [Click(*json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    )


def _in_driver(folder: Path, job: Job) -> list[Click]:
    return job.driver_rows()


CASES: dict[str, Case] = {
    "JSON files": Case(lambda d: FileSink(d, "json"), _in_files, True, _consume_files),
    "CSV files": Case(lambda d: FileSink(d, "csv"), _in_files, True, _consume_files),
    "Parquet files": Case(lambda d: FileSink(d, "parquet"), _in_files, True, _consume_files),
    "small JSON files": Case(lambda d: FileSink(d, "json", roll_size=200), _in_files, False, _consume_files),
    "print": Case(lambda d: PrintSink("clicks"), _in_driver),
    "collect": Case(lambda d: CollectSink(), _in_driver),
    "function": Case(lambda d: FunctionSink(Noted(d / "notes")), _in_function),
    "blackhole": Case(lambda d: BlackholeSink(), None),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def job(case: Case, tmp_path: Path) -> Job:
    made = Job(case.make(tmp_path))
    made.sink.check_type(CLICK)
    made.sink.prepare(made.description)
    return made


def batch(records: list[Click]) -> Batch:
    return Batch(CLICK, rows=records)


def finish(writer: SinkWriter) -> None:
    writer.flush(True)
    writer.close()


def test_every_record_is_written_once_and_in_order(case, job, tmp_path):
    writer = job.writer()
    for i in range(10):
        assert writer.is_ready()
        writer.write(batch(clicks(10 * i, 10 * i + 10)))
    finish(writer)
    if case.written:
        assert case.written(tmp_path, job) == clicks(0, 100)


def test_flushes_in_between_change_nothing(case, job, tmp_path):
    writer = job.writer()
    for i in range(5):
        writer.write(batch(clicks(10 * i, 10 * i + 10)))
        writer.flush(False)
        writer.flush(False)
    finish(writer)
    if case.written:
        assert case.written(tmp_path, job) == clicks(0, 50)


def test_columns_dictionaries_and_slices_are_written_like_rows(case, job, tmp_path):
    writer = job.writer()
    columns = CLICK.to_columns(clicks(0, 30))
    writer.write(Batch(CLICK, columns=columns).slice(0, 10))
    encoded = pa.record_batch({"app": columns.column("app").dictionary_encode(), "n": columns.column("n")})
    writer.write(Batch(CLICK, columns=encoded).slice(10, 10))
    writer.write(batch(clicks(0, 30)).slice(20, 10))
    finish(writer)
    if case.written:
        assert case.written(tmp_path, job) == clicks(0, 30)


def test_subtasks_do_not_disturb_each_other(case, job, tmp_path):
    writers = [job.writer(i) for i in range(2)]
    for i in range(4):
        for k, writer in enumerate(writers):
            writer.write(batch(clicks(100 * k + 10 * i, 100 * k + 10 * i + 10)))
    for writer in writers:
        finish(writer)
    if case.written:
        expected = clicks(0, 40) + clicks(100, 140)
        found = case.written(tmp_path, job)
        assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_no_records_make_no_output(case, job, tmp_path):
    finish(job.writer())
    closed_only = job.writer(1)
    closed_only.close()
    if case.written:
        assert case.written(tmp_path, job) == []
    job.end()
    assert list(tmp_path.iterdir()) == []


def test_what_is_unfinished_when_the_writer_is_closed_is_no_output(case, job, tmp_path):
    writer = job.writer()
    writer.write(batch(clicks(0, 20)))
    if case.hides_unfinished:
        assert case.written is not None
        assert case.written(tmp_path, job) == []
    writer.close()
    job.end()
    if case.hides_unfinished:
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", [c for c in CASES if "files" in c], indirect=True)
def test_a_later_attempt_writes_beside_what_an_earlier_one_finished(case, job, tmp_path):
    first = job.writer(attempt=0)
    first.write(batch(clicks(0, 20)))
    finish(first)
    second = job.writer(attempt=1)
    second.write(batch(clicks(20, 40)))
    finish(second)
    assert case.written is not None
    assert case.written(tmp_path, job) == clicks(0, 40)


TRANSACTIONAL = [name for name, case in CASES.items() if case.consume]


def prepared(writer: SinkWriter) -> list[Any]:
    """What a checkpoint holds of it, as a later attempt reads it."""
    work: list[Callable[[], None]] = []
    found = writer.prepare_commit(work.append)
    for do in work:
        do()
    return [msgspec.json.decode(msgspec.json.encode(one), type=type(one)) for one in found]


@pytest.mark.parametrize("case", TRANSACTIONAL, indirect=True)
def test_committables_are_invisible_until_they_are_committed_and_committed_once(case, job, tmp_path):
    writer, committer = job.transaction()
    writer.write(batch(clicks(0, 20)))
    found = prepared(writer)
    assert {type(one) for one in found} == {job.sink.committable_type}
    assert case.written(tmp_path, job) == []
    for _ in range(2):
        committer.commit(found)
        assert case.written(tmp_path, job) == clicks(0, 20)
    assert prepared(writer) == []


@pytest.mark.parametrize("case", TRANSACTIONAL, indirect=True)
@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_a_recovery_with_another_parallelism_commits_once_what_the_checkpoint_holds(
    case, job, tmp_path, committed, consumed
):
    found = []
    for subtask in range(2):
        writer, committer = job.transaction(subtask)
        writer.write(batch(clicks(100 * subtask, 100 * subtask + 20)))
        mine = prepared(writer)
        found += mine
        writer.write(batch(clicks(500, 520)))  # which no checkpoint has
        if committed:
            committer.commit(mine)
    seen = case.written(tmp_path, job)
    assert len(seen) == (40 if committed else 0)
    if consumed:
        case.consume(tmp_path)
    else:
        seen = []
    for attempt in (1, 2):
        for subtask in range(3):
            writer, committer = job.transaction(subtask, 3, attempt, found)
            committer.commit(found[subtask::3])
            writer.write(batch(clicks(600, 601)))
    everything = seen + case.written(tmp_path, job)
    assert sorted(map(repr, everything)) == sorted(map(repr, clicks(0, 20) + clicks(100, 120)))


@pytest.mark.parametrize("case", TRANSACTIONAL, indirect=True)
def test_a_target_that_a_job_has_prepared_is_refused_to_another_until_it_is_released(case, job):
    for refuse in (job.sink.check_target, job.sink.prepare):
        with pytest.raises(TidegateError, match="job job"):
            refuse(SinkJob("other"))
    job.end()
    job.sink.check_target(SinkJob("another"))  # which takes nothing
    job.sink.prepare(SinkJob("other"))


@pytest.mark.parametrize("case", TRANSACTIONAL, indirect=True)
def test_a_committable_that_somebody_has_changed_is_not_followed(case, job, tmp_path):
    job_folder = tmp_path / "job"
    made = Job(case.make(job_folder))
    made.sink.prepare(made.description)
    writer, committer = made.transaction()
    writer.write(batch(clicks(0, 20)))
    text = msgspec.json.encode(prepared(writer)[0])
    (tmp_path / "victim").write_text("precious")
    for name in ("../victim", str(tmp_path / "victim"), "victim"):
        forged = re.sub(rb'":"[^"]*"', b'":"' + name.encode() + b'"', text)
        assert forged != text
        with pytest.raises((msgspec.ValidationError, TidegateError)):
            committer.commit([msgspec.json.decode(forged, type=made.sink.committable_type)])
    assert (tmp_path / "victim").read_text() == "precious"
    assert case.written(job_folder, made) == []


def test_a_sink_describes_itself_in_one_line_and_travels(case, job):
    copy = cloudpickle.loads(cloudpickle.dumps(job.sink))
    assert copy.describe() == job.sink.describe() != ""
    assert "\n" not in job.sink.describe()


@pytest.mark.parametrize("sink", [PrintSink(), CollectSink()], ids=["print", "collect"])
def test_sinks_to_the_driver_are_not_ready_while_it_is_behind(sink):
    job = Job(sink, taken=0)
    writer = job.writer()
    for _ in range(MAX_DRIVER_BACKLOG):
        assert writer.is_ready()
        writer.write(batch(clicks(0, 1)))
    assert not writer.is_ready()
    job.taken = 1
    assert writer.is_ready()
    finish(writer)


def test_print_with_a_limit_sends_no_more_and_never_waits():
    job = Job(PrintSink(limit=15), taken=0)
    writer = job.writer()
    for i in range(10):
        writer.write(batch(clicks(10 * i, 10 * i + 10)))
    assert job.driver_rows() == clicks(0, 15)
    assert writer.is_ready()
    finish(writer)
