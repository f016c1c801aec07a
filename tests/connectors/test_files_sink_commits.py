"""FileSink with checkpoints: whatever crashes and whatever consumers take away, each file is published once.

On a local disk and on an S3 endpoint; the committer itself, without a job around it. Long because every crash point is
held against every consumer, with the kit that plays both.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.connectors.reader_harness import Metric
from tidegate import Environment
from tidegate.api.sink import Committer, SinkJob, SinkWriter, WriterContext
from tidegate.connectors.files import (
    FileSink,
    OutputDirectoryError,
    output_directory,
    output_owner,
    publication,
)
from tidegate.connectors.files.output_directory import OutputDirectory, rename_new
from tidegate.connectors.files.output_names import PartName, parse_owner, parse_part
from tidegate.connectors.files.paths import locate
from tidegate.connectors.files.publication import PendingFile, PublishedNote, decode_notes, encode_note
from tidegate.core.clock import ManualClock
from tidegate.core.errors import JobFailedError, TargetLostError
from tidegate.core.failpoints import injected
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of
from tidegate.testing.subtasks import subtask_info

pytest_plugins = ["tests.plugins.s3_endpoint"]


class Count(NamedTuple):
    app: str
    n: int


COUNT = record_type_of(Count)


@dataclass
class Output:
    """An output directory, its job and the consumer that takes files away."""

    uri: str
    sink_options: dict[str, Any] = field(default_factory=dict)
    retained: int = 1
    taken: list[int] = field(default_factory=list)
    """The numbers in the files that the consumer took."""

    def __post_init__(self) -> None:
        self.sink = FileSink(self.uri, "json", **self.sink_options)
        self.files = OutputDirectory(locate([self.sink.directory]))

    def prepare(self, job: str = "job", attempt: int = 0, resuming: bool = False) -> SinkJob:
        made = SinkJob(job, attempt, 2, resuming)
        self.sink.prepare(made)
        return made

    def subtask(
        self, attempt: int = 0, recovered: Any = (), subtask: int = 0, parallelism: int = 2, job: str = "job"
    ) -> tuple[SinkWriter, Committer]:
        """A writer and a committer, as the runtime makes them."""
        context = WriterContext(
            subtask=subtask_info("to files", subtask, parallelism, job_id=job, attempt=attempt),
            clock=ManualClock(),
            record_type=COUNT,
            counter=lambda name: Metric(),
            send_to_driver=lambda batch: None,
            driver_backlog=lambda: 0,
            checkpointed=True,
            recovered=tuple(recovered),
            checkpoints_retained=self.retained,
        )
        committer = self.sink.create_committer(context)
        return self.sink.create_writer(context), committer

    def visible(self) -> list[str]:
        return [name for name in self.files.names() if not name.startswith(".")]

    def hidden(self, ending: str) -> list[str]:
        return [name for name in self.files.names() if name.startswith(".") and name.endswith(ending)]

    def numbers(self, name: str) -> list[int]:
        return [json.loads(line)["n"] for line in (self.files.read(name) or b"").splitlines()]

    def consume(self, *which: int) -> None:
        """Take the visible files with these numbers in them; all, if none is said."""
        for name in self.visible():
            found = self.numbers(name)
            if not which or set(found) <= set(which):
                self.taken += found
                self.files.delete(name)

    def published(self) -> list[int]:
        """Everything that ever was output, as far as the consumer and the directory know."""
        return sorted(self.taken + [n for name in self.visible() for n in self.numbers(name)])


@pytest.fixture(params=["local", "s3"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    made = Output(request.getfixturevalue("s3_bucket") if request.param == "s3" else str(tmp_path / "out"))
    made.prepare()
    return made


@pytest.fixture
def local(tmp_path: Path) -> Output:
    made = Output(str(tmp_path / "out"))
    made.prepare()
    return made


def write(writer: SinkWriter, *numbers: int) -> None:
    for n in numbers:
        writer.write(Batch(COUNT, rows=[Count("a", n)]))


def prepared(writer: SinkWriter) -> Any:
    work: list[Any] = []
    found = writer.prepare_commit(work.append)
    for do in work:
        do()
    return found


# ---- the life of a file ----


def test_nothing_is_visible_before_the_commit(output):
    output.sink.roll_size_bytes = 1
    writer, committer = output.subtask()
    write(writer, 1, 2)
    pending = prepared(writer)
    assert [p.name for p in pending] == [str(PartName("job", 0, 0, i, "json")) for i in range(2)]
    assert output.hidden(".pending") == sorted(p.part.hidden("pending") for p in pending)
    assert output.visible() == []
    write(writer, 3)
    committer.commit(pending)
    assert output.published() == [1, 2]
    committer.commit(pending)  # once more changes nothing
    writer.flush(end_of_input=True)
    assert output.published() == [1, 2]
    committer.commit(prepared(writer))
    assert output.published() == [1, 2, 3]
    assert len(output.visible()) == 3


def test_a_checkpoint_without_records_has_nothing_to_commit(local):
    writer, _ = local.subtask()
    assert prepared(writer) == []
    assert local.hidden("pending") + local.visible() == []


def test_the_next_attempt_keeps_what_a_checkpoint_covers_and_removes_the_rest(output):
    first, _ = output.subtask()
    write(first, 1)
    covered = prepared(first)
    write(first, 99)
    prepared(first)  # of a checkpoint that never completed
    write(first, 98)
    second, committer = output.subtask(1, covered)
    committer.commit(covered)
    write(second, 2)
    committer.commit(prepared(second))
    assert output.published() == [1, 2]
    assert output.hidden("pending") == []
    first.close()
    assert output.hidden("inprogress") == []


def test_a_zombie_of_an_older_attempt_neither_replaces_nor_publishes(output):
    zombie, zombie_committer = output.subtask()
    write(zombie, 1)
    covered = prepared(zombie)
    current, committer = output.subtask(1, covered)
    committer.commit(covered)
    zombie_committer.commit(covered)  # it wakes up in the middle of its commit
    write(zombie, 99)
    write(current, 2)
    prepared(zombie)
    committer.commit(prepared(current))
    assert output.published() == [1, 2]


def test_a_recovered_file_and_a_new_one_never_get_the_same_name(local):
    """A listing may miss a file that another subtask is just renaming, so no number comes from a listing."""
    first, _ = local.subtask()
    write(first, 1)
    covered = prepared(first)
    second, committer = local.subtask(1, covered)
    hidden = Path(local.uri) / covered[0].part.hidden("pending")
    hidden.rename(f"{local.uri}.moving")
    write(second, 2)
    Path(f"{local.uri}.moving").rename(hidden)
    committer.commit(covered)
    committer.commit(prepared(second))
    assert local.published() == [1, 2]


def test_a_commit_never_replaces_a_visible_file(output):
    writer, committer = output.subtask()
    write(writer, 1)
    pending = prepared(writer)
    output.files.put(pending[0].name, b"of somebody else")
    with pytest.raises(
        OutputDirectoryError, match=r"there is another file part-job.*not replaced\. Move that"
    ):
        committer.commit(pending)
    assert output.files.read(pending[0].name) == b"of somebody else"
    output.files.delete(pending[0].name)
    committer.commit(pending)
    assert output.published() == [1]


@pytest.mark.parametrize("atomic", [True, False])
def test_a_rename_does_not_replace_and_says_whether_name_or_file_is_wrong(tmp_path, monkeypatch, atomic):
    if not atomic:
        monkeypatch.setattr(output_directory, "_renameat2", None)
    else:
        assert output_directory._renameat2 is not None, "Linux can"
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        rename_new(str(tmp_path / "a"), str(tmp_path / "b"))
    with pytest.raises(FileNotFoundError):
        rename_new(str(tmp_path / "c"), str(tmp_path / "d"))
    rename_new(str(tmp_path / "a"), str(tmp_path / "c"))
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"b": "b", "c": "a"}


# ---- consumers and crashes ----


def test_a_consumer_may_take_visible_files_away(output):
    writer, committer = output.subtask()
    write(writer, 1)
    covered = prepared(writer)
    committer.commit(covered)
    output.consume()
    for attempt in (1, 2):  # the second does not find what the first subtask noted, but what the recovery did
        _, committer = output.subtask(attempt, covered, subtask=1)
        committer.commit(covered)
    assert output.published() == [1]


def test_a_hidden_file_that_is_gone_before_it_was_published_is_a_loud_loss(output):
    writer, committer = output.subtask()
    write(writer, 1)
    committer.commit(prepared(writer))
    output.consume()
    write(writer, 2)
    pending = prepared(writer)
    output.files.delete(pending[0].part.hidden("pending"))
    for attempt in (0, 1):
        _, committer = output.subtask(attempt, pending)
        with pytest.raises(
            OutputDirectoryError, match=r"is gone: its records are part of a completed.*1 such"
        ):
            committer.commit(pending)


class Crash(BaseException):
    pass


def crash_after(steps: int) -> Callable[[], None]:
    passed = itertools.count(1)

    def act() -> None:
        if next(passed) == steps:
            raise Crash

    return act


def commit_until(committers: list[tuple[Committer, Any]], point: str) -> None:
    """Commit, and crash where it is said."""
    name, _, count = point.partition(" ")
    with pytest.MonkeyPatch.context() as patch:
        try:
            if name == "not":
                raise Crash
            if name == "copied":
                patch.setattr(OutputDirectory, "move_new", _copies_only)
            for committer, share in committers:
                if name in ("sink.publish.noted", "sink.publish.moved"):
                    with injected(name, crash_after(int(count))):
                        committer.commit(share)
                else:
                    committer.commit(share)
        except Crash:
            pass


def _copies_only(self: OutputDirectory, source: str, target: str) -> None:
    data = self.read(source)
    assert data is not None
    self.put(target, data)
    raise Crash


POINTS = ["not", "sink.publish.noted 1", "sink.publish.moved 1", "sink.publish.moved 2", "whole"]
TAKEN: list[tuple[int, ...] | None] = [None, (1,), (2,), ()]
"""What a consumer takes: nothing, one of the two files, all."""


def histories(
    output: Callable[[], Output], points: list[str], *taken: list[tuple[int, ...] | None]
) -> Iterator[str]:
    """Every order of crashes and consumers over an attempt and its recoveries; yields what went wrong.

    `taken`: what the consumer may take after the attempt, after its first recovery, and so on.
    """
    for history in itertools.product(*(list(itertools.product(points, some)) for some in taken)):
        one = output()
        one.sink.roll_size_bytes = 1
        writer, committer = one.subtask(parallelism=1)
        write(writer, 1, 2)
        covered = prepared(writer)
        committers = [(committer, covered)]
        for attempt, (point, taken) in enumerate([*history, ("whole", ()), ("whole", None)], 1):
            commit_until(committers, point)
            if taken is not None:
                one.consume(*taken)
            shares = [covered[i::2] for i in range(2)]
            committers = [(one.subtask(attempt, covered, i)[1], share) for i, share in enumerate(shares)]
        for committer, share in committers:
            committer.commit(share)
        if one.published() != [1, 2]:
            yield f"{history}: {one.published()}"


def test_every_order_of_crashes_and_consumers_publishes_each_file_once(tmp_path, monkeypatch):
    monkeypatch.setattr(OutputDirectory, "sync", lambda self, name="": None)  # no power failure here
    monkeypatch.setattr("os.fdatasync", lambda descriptor: None)
    made = itertools.count()

    def output() -> Output:
        one = Output(str(tmp_path / str(next(made))))
        one.prepare()
        return one

    assert list(histories(output, POINTS, TAKEN, TAKEN[:2])) == []
    assert next(made) == len(POINTS) ** 2 * len(TAKEN) * 2, "all of them were tried"


def test_every_crash_and_consumer_on_an_object_store(s3_bucket):
    made = itertools.count()
    uri, _, query = s3_bucket.partition("?")

    def output() -> Output:
        one = Output(f"{uri}/{next(made)}?{query}")
        one.prepare()
        return one

    assert list(histories(output, POINTS[2:3], [()])) == []
    wrong = list(histories(output, ["copied"], [None, ()]))
    assert [w.rpartition(": ")[2] for w in wrong] == ["[1, 1, 2]"], (
        "copied, consumed, and not deleted when it crashed: nobody can tell, so the file comes again, under its name"
    )


def test_notes_are_kept_while_a_retained_checkpoint_may_need_them_and_no_longer(output):
    output.retained = 2
    writer, committer = output.subtask()
    write(writer, 1)
    first = prepared(writer)
    committer.commit(first)
    assert output.hidden(".published") == [".tidegate-job-0-0.published"]
    output.consume()
    writer, committer = output.subtask(1, first)
    committer.commit(first)
    write(writer, 2)
    second = prepared(writer)
    committer.commit(second)
    output.consume()
    # The newer checkpoint turns out to be damaged: the one before it is restored.
    writer, committer = output.subtask(2, first, subtask=1)
    committer.commit(first)
    for n in (3, 4):
        assert ".tidegate-job-0-0.published" in output.hidden(".published")
        write(writer, n)
        committer.commit(prepared(writer))
    assert output.hidden(".published") == [".tidegate-job-2-1.published"]
    assert output.published() == [1, 2, 3, 4]


def test_the_notes_of_a_subtask_are_one_small_file(output, monkeypatch):
    monkeypatch.setattr(publication, "_MOST_LINES", 5)
    writer, committer = output.subtask()
    for n in range(12):
        write(writer, n)
        committer.commit(prepared(writer))
        (name,) = output.hidden(".published")
        notes = output.files.read(name) or b""
        assert notes.count(b"\n") <= 5
        assert decode_notes(notes) == PublishedNote(n + 1)


GOLDEN = (
    b'{"format":"tidegate-published-1","below":12,"recovered":["part-9c02-0003-000000001-000007.json"]} '
    b"sha256-128:8ce38000fc1a511e626a500a54373b89\n"
    b'{"format":"tidegate-published-1","below":15,"recovered":[]} sha256-128:cc547f41495610844a3b6166a36da374\n'
)


def test_notes_are_read_as_they_were_written_and_damaged_ones_say_nothing():
    first, second = PublishedNote(12, (str(PartName("9c02", 3, 1, 7, "json")),)), PublishedNote(15)
    assert encode_note(first) + encode_note(second) == GOLDEN
    assert decode_notes(GOLDEN) == PublishedNote(15, first.recovered)
    whole = GOLDEN.index(b"\n")
    for i in range(len(GOLDEN)):
        cut = decode_notes(GOLDEN[:i])
        assert cut == (PublishedNote(0) if i < whole else first if i < len(GOLDEN) - 1 else first | second)
        flipped = decode_notes(GOLDEN[:i] + bytes([GOLDEN[i] ^ 1]) + GOLDEN[i + 1 :])
        assert flipped in (second if i < whole else first, PublishedNote(0), first | second)


# ---- whose the directory is ----


def test_a_directory_that_a_job_has_taken_is_refused_to_others_until_that_job_ends(output):
    first = SinkJob("job")
    with pytest.raises(
        OutputDirectoryError, match=r"in use: job job, process \d+ on .* \.tidegate-job-0\.owner"
    ):
        output.prepare("other")
    assert output.hidden("owner") == [".tidegate-job-0.owner"], "and nothing of the other is left"
    output.sink.release(first, resumable=False)
    assert output.files.names() == []
    output.prepare("other")


def test_of_jobs_that_come_at_the_same_moment_at_most_one_gets_the_directory(tmp_path):
    for overwrite in (False, True):
        directory = tmp_path / str(overwrite)
        outputs = [Output(str(directory), {"overwrite": overwrite}) for _ in range(4)]
        outputs[0].files.create()
        start = threading.Barrier(4)
        won: list[int] = []

        def take(i: int, outputs: Any = outputs, start: Any = start, won: Any = won) -> None:
            start.wait()
            try:
                outputs[i].prepare(f"job{i}")
            except OutputDirectoryError:
                return
            won.append(i)

        threads = [threading.Thread(target=take, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        marks = outputs[0].hidden("owner")
        winners = [f".tidegate-job{i}-0.owner" for i in won]
        assert len(marks) <= 1
        if overwrite:  # then a later one may have taken it from an earlier one, which will find its mark gone
            assert set(marks) <= set(winners)
        else:
            assert marks == winners


@pytest.mark.parametrize("options", [{}, {"overwrite": True}], ids=str)
@pytest.mark.parametrize("has_files", [False, True])
def test_who_wants_the_directory_of_a_job_that_is_at_work_is_told_so(local, options, has_files):
    """Also where it has visible files: to empty it, or to overwrite it, would be bad advice."""
    if has_files:
        (Path(local.uri) / "part-job-0000-000000000-000000.json").write_text("{}")
    with pytest.raises(OutputDirectoryError, match=r"in use: job job.*and it is running\. Name another"):
        Output(local.uri, options).prepare("other")
    assert local.hidden("owner") == [".tidegate-job-0.owner"]


DIES = """
import os, sys
from tidegate import FileSink
from tidegate.api.sink import SinkJob
FileSink(sys.argv[1]).prepare(SinkJob("dead"))
open(f"{sys.argv[1]}/.part-dead-0000-000000000-000000.json.inprogress", "w").close()
os.kill(os.getpid(), 9)
"""


def test_the_mark_of_a_driver_that_was_killed_is_in_nobodys_way_but_its_pending_files_are(tmp_path, caplog):
    """So a program that died before its first checkpoint can be started again."""
    out = tmp_path / "out"
    assert subprocess.run([sys.executable, "-c", DIES, str(out)], timeout=60).returncode == -9
    assert len(list(out.iterdir())) == 2
    pending = out / ".part-dead-0000-000000000-000001.json.pending"
    pending.touch()
    with pytest.raises(OutputDirectoryError, match="hidden files of another job"):
        Output(str(out)).prepare()
    pending.unlink()
    Output(str(out)).prepare()
    assert [p.name for p in out.iterdir()] == [".tidegate-job-0.owner"]
    assert "the driver of job dead died without releasing" in caplog.text


def test_a_job_that_lost_its_directory_to_one_that_overwrites_publishes_nothing_more(output, monkeypatch):
    monkeypatch.setattr(output_owner, "_life", lambda directory, mark: "unknown")
    writer, committer = output.subtask()
    write(writer, 1)
    pending = prepared(writer)
    other = Output(output.uri, {"overwrite": True})
    other.prepare("other")
    with pytest.raises(TargetLostError, match=r"may not write to .* any more: its mark .* is gone"):
        committer.commit(pending)
    with pytest.raises(OutputDirectoryError, match="belongs to another job now"):
        output.prepare(attempt=1_000_000, resuming=True)
    assert other.published() == []


def test_a_resumed_job_takes_its_directory_over_and_its_old_driver_is_out(output):
    writer, committer = output.subtask()
    write(writer, 1)
    covered = prepared(writer)
    output.prepare(attempt=1_000_000, resuming=True)
    with pytest.raises(TargetLostError, match="another driver has taken the job"):
        committer.commit(covered)
    _, committer = output.subtask(1_000_000, covered)
    committer.commit(covered)
    output.sink.release(
        SinkJob("job"), resumable=False
    )  # the old one ends and leaves the new one's files alone
    assert output.hidden("owner") == [".tidegate-job-1000000.owner"]
    assert output.hidden("published") == [".tidegate-job-1000000-0.published"]
    assert output.published() == [1]


def test_a_driver_that_is_slow_to_leave_deletes_nothing_of_its_successor(output, monkeypatch):
    """It has seen its mark, then is stopped, and the next driver begins."""
    names, hidden = OutputDirectory.names, []

    def begin_another(directory: OutputDirectory) -> list[str]:
        monkeypatch.setattr(OutputDirectory, "names", names)
        output.prepare(attempt=1_000_000)
        writer, committer = output.subtask(1_000_000, parallelism=1)
        write(writer, 1)
        committer.commit(prepared(writer))
        write(writer, 2)
        prepared(writer)
        hidden.extend([*output.hidden("pending"), *output.hidden("published")])
        return names(directory)

    writer, _ = output.subtask()
    write(writer, 99)
    prepared(writer)
    monkeypatch.setattr(OutputDirectory, "names", begin_another)
    output.sink.release(SinkJob("job"), resumable=False)
    assert len(hidden) == 2
    assert [*output.hidden("pending"), *output.hidden("published")] == hidden


def test_a_driver_holds_its_mark_until_it_is_gone(local, monkeypatch):
    delete, lives = OutputDirectory.delete, []

    def look(directory: OutputDirectory, name: str) -> None:
        lives.append(output_owner._life(directory, parse_owner(name)))
        delete(directory, name)

    monkeypatch.setattr(OutputDirectory, "delete", look)
    local.sink.release(SinkJob("job"), resumable=False)
    assert lives == ["alive"]


def test_what_a_job_may_go_on_from_stays_at_its_end_and_is_in_nobodys_way_twice(output):
    writer, committer = output.subtask()
    write(writer, 1)
    committer.commit(prepared(writer))
    write(writer, 2)
    pending = prepared(writer)
    output.consume()
    output.sink.release(SinkJob("job"), resumable=True)
    assert output.hidden("owner") == []
    with pytest.raises(OutputDirectoryError, match="hidden files of another job"):
        output.prepare("other")
    output.prepare(attempt=1_000_000, resuming=True)
    _, committer = output.subtask(1_000_000, pending)
    committer.commit(pending)
    output.consume()
    output.sink.release(SinkJob("job", 1_000_000), resumable=True)
    assert output.hidden("published"), "it may be resumed once more"
    output.prepare("other")
    assert output.published() == [1, 2]


def test_the_next_driver_of_a_job_that_has_no_checkpoint_yet_takes_the_directory_over(output):
    """Drivers that find no checkpoint may have one job id; the claim on the job says which of them goes on."""
    writer, committer = output.subtask()
    write(writer, 99)
    pending = prepared(writer)
    output.prepare(attempt=1_000_000)
    with pytest.raises(TargetLostError, match="another driver has taken the job"):
        committer.commit(pending)
    writer, committer = output.subtask(1_000_000, parallelism=1)
    assert output.hidden("pending") == [], "what its predecessor hid is nobody's"
    write(writer, 1)
    committer.commit(prepared(writer))
    assert output.published() == [1]


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("resuming", [False, True])
def test_a_driver_that_wakes_late_does_not_take_the_directory_from_its_successor(tmp_path, append, resuming):
    """It claimed the job, was stopped before it came here, and another one has claimed the job since."""
    output = Output(str(tmp_path / "out"), {"append": append})
    output.prepare(attempt=2_000_000, resuming=resuming)
    (mark,) = output.files.names()
    with pytest.raises(OutputDirectoryError, match="belongs to a later driver of this job"):
        output.prepare(attempt=1_000_000, resuming=resuming)
    assert output.files.names() == [mark]


@pytest.mark.parametrize("append", [False, True])
def test_a_job_whose_attempts_begin_again_is_refused_where_names_would_be_used_twice(tmp_path, append):
    """As when the checkpoint directory was emptied, which counts the drivers of a job."""
    output = Output(str(tmp_path / "out"), {"append": append})
    output.sink.prepare(SinkJob("job", 1_000_000))
    writer, committer = output.subtask(1_000_000)
    write(writer, 1)
    committer.commit(prepared(writer))
    output.sink.release(SinkJob("job", 1_000_000), resumable=False)
    with pytest.raises(
        OutputDirectoryError, match=r"attempt 1000000, and it begins with attempt 0: names would"
    ):
        output.prepare()
    assert output.hidden("r") == []
    if append:
        output.prepare(attempt=2_000_000)


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("ending", ["at work", "stopped", "died"])
def test_two_drivers_that_go_on_from_copies_of_one_checkpoint_directory_do_not_share_an_output(
    tmp_path, ending, append
):
    """Their drivers are counted in two places, so their attempts have the same numbers, and so would their files."""
    output = Output(str(tmp_path / "out"), {"append": append})
    first = output.prepare(attempt=1_000_000, resuming=True)
    with pytest.raises(OutputDirectoryError, match=r"in use by this job already.* a copy of"):
        output.prepare(attempt=1_000_000, resuming=True)
    writer, committer = output.subtask(1_000_000)
    write(writer, 1)
    committer.commit(prepared(writer))
    write(writer, 2)
    pending = prepared(writer)
    if ending == "stopped":
        output.sink.release(first, resumable=True)
    elif ending == "died":
        output_owner._let_go(output.files, output_owner.owner_of("job", 1_000_000, append))
    with pytest.raises(OutputDirectoryError, match=r"names would be used twice\. .* a copy of"):
        output.prepare(attempt=1_000_000, resuming=True)
    output.prepare(attempt=2_000_000, resuming=True)
    output.subtask(2_000_000, pending)[1].commit(pending)
    assert output.published() == [1, 2], "what the first one wrote is as it was"


CALLS = ("put", "names", "exists", "delete")
MARK = ".tidegate-9c02-0.owner"


def puts_stopped_at(directory: OutputDirectory, at: int, other: OutputDirectory) -> tuple[list[str], bool]:
    """Two put the same name, one of them stopped before one of its calls until the other is done; who has put it."""
    won: list[str] = []
    calls = 0

    def put(by: str, to: OutputDirectory) -> None:
        with contextlib.suppress(FileExistsError):
            to.put_new(MARK, by.encode())
            won.append(by)

    def stopping(call: Any) -> Any:
        def called(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                put("other", other)
            return call(*args)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(directory, name, stopping(getattr(directory, name)))
        put("stopped", directory)
    return won, calls >= at


def test_of_two_that_put_the_same_mark_on_an_object_store_at_most_one_does_whichever_is_stopped_where(
    s3_bucket,
):
    uri, _, query = s3_bucket.partition("?")
    at, ends = 1, set()
    while True:
        here, there = (Output(f"{uri}/{at}?{query}").files for _ in range(2))
        won, was_stopped = puts_stopped_at(here, at, there)
        if not was_stopped:
            break
        assert len(won) <= 1, f"stopped at call {at}"
        assert here.names() == [MARK] * len(won), "no bid stays"
        assert (here.read(MARK) or b"").decode() == "".join(won)
        ends.update(won)
        at += 1
    assert at > 4
    assert ends == {"other", "stopped"}


def test_of_copies_of_a_job_that_start_at_the_same_moment_on_an_object_store_one_gets_the_directory(
    s3_bucket,
):
    """They go on from the same checkpoint, so their marks have the same name."""
    outputs = [Output(s3_bucket) for _ in range(3)]
    start = threading.Barrier(len(outputs))
    won: list[Output] = []
    refused: list[str] = []

    def take(output: Output) -> None:
        start.wait()
        try:
            output.prepare(attempt=1_000_000, resuming=True)
            won.append(output)
        except OutputDirectoryError as e:
            refused.append(str(e))

    threads = [threading.Thread(target=take, args=(output,)) for output in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) <= 1, "they would write the same files"
    assert len(won) + len(refused) == len(outputs)
    assert outputs[0].files.names() == [".tidegate-job-1000000.owner"] * len(won)


def test_a_bid_that_a_dead_driver_left_is_named_and_stops_no_other_job(s3_bucket, monkeypatch):
    monkeypatch.setattr(output_owner, "_PAUSE_S", 0.0)
    output = Output(s3_bucket)
    output.files.create()
    output.files.put(".tidegate-job-0.owner.00c0ffee00c0ffee.bid", b"")
    with pytest.raises(
        OutputDirectoryError, match=r"at the same moment.*delete .*\.owner\.00c0ffee00c0ffee\.bid"
    ):
        output.prepare()
    output.prepare("other")


def test_two_sinks_of_a_job_cannot_have_one_directory_under_two_names(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    Output(str(tmp_path / "out")).prepare()
    with pytest.raises(OutputDirectoryError, match=r"in use by this job already.*a directory of its own"):
        Output(str(tmp_path / "link")).prepare()


def broken(n: int) -> int:
    return n // 0


def numbers_to_files(out: Path, **options: Any) -> Environment:
    env = Environment(runtime="in-process", parallelism=2, **options)
    env.from_collection(range(100), type=int).sink_to(FileSink(out), uid="files")
    return env


def test_a_program_that_is_started_twice_at_once_is_refused_the_second_time(tmp_path):
    out = tmp_path / "out"
    first = numbers_to_files(out, checkpoint_interval="10 ms").execute_async("numbers")
    with pytest.raises(OutputDirectoryError, match=f"in use: job {first.job_id}"):
        numbers_to_files(out, checkpoint_interval="10 ms").execute("numbers")
    first.result()
    found = sorted(
        json.loads(line)["value"] for p in out.glob("part-*") for line in p.read_text().splitlines()
    )
    assert found == list(range(100))
    assert not list(out.glob(".*")), "nothing hidden is left at the end"


def test_a_job_whose_directory_was_taken_fails_and_does_not_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(output_owner, "_life", lambda directory, mark: "unknown")
    out = tmp_path / "out"
    job = numbers_to_files(out, checkpoint_interval="10 ms", restart_strategy="fixed-delay").execute_async(
        "numbers"
    )
    Output(str(out), {"overwrite": True}).prepare("other")
    with pytest.raises(JobFailedError, match=r"TargetLostError: job .* may not write to .* any more"):
        job.result()
    assert job.overview().restarts == 0
    assert [p.name for p in out.iterdir() if not p.name.startswith(".part")] == [".tidegate-other-0.owner"]


def test_a_job_that_fails_or_is_cancelled_or_does_not_start_gives_the_directory_back(tmp_path):
    out = tmp_path / "out"
    env = Environment(runtime="in-process", restart_strategy="none")
    env.from_collection([1], type=int).map(broken).sink_to(FileSink(out))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        env.execute("broken")
    assert list(out.iterdir()) == []
    numbers_to_files(out).execute_async("numbers").cancel()
    assert list(out.iterdir()) == []
    env = numbers_to_files(out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    env.from_collection([1], type=int).sink_to(FileSink(tmp_path / "full"))
    with pytest.raises(OutputDirectoryError, match="is not empty"):
        env.execute("numbers")
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(("resume", "claims"), [("", 0), ("latest-or-new", 1)])
def test_a_job_that_its_sink_refuses_leaves_nothing_in_the_checkpoint_directory(tmp_path, resume, claims):
    """But the claim of a job that has its id by its name: the next run must have other attempts."""
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "out"
    checkpoints.mkdir()
    out.mkdir()
    (out / "thesis.txt").touch()
    for _ in range(3):
        env = numbers_to_files(
            out, checkpoint_interval="10 ms", checkpoint_dir=str(checkpoints), resume=resume
        )
        with pytest.raises(OutputDirectoryError, match="is not empty"):
            env.execute("numbers")
    assert len(list(checkpoints.iterdir())) == claims
    assert len([p for p in checkpoints.rglob("claims/a*") if not p.suffix]) == claims


# ---- names from a checkpoint are not trusted ----


@pytest.mark.parametrize(
    "name", ["../victim", "/etc/passwd", "x.json", "", "part-job-0000-000000000-000000.json/x"]
)
def test_a_name_that_is_none_of_ours_cannot_be_a_committable(name):
    with pytest.raises(ValueError, match="is not the name of a part file"):
        PendingFile(name)


def test_a_file_of_another_job_is_not_published(local):
    foreign = PartName("other", 0, 0, 0, "json")
    local.files.put(foreign.hidden("pending"), b"secret")
    _, committer = local.subtask()
    with pytest.raises(OutputDirectoryError, match=r"it is a file of job other, but this is job job"):
        committer.commit([PendingFile(str(foreign))])
    assert local.visible() == []


def test_names_sort_as_a_subtask_wrote_them():
    written = [
        PartName("9c02", subtask, attempt, number, "csv")
        for subtask in (0, 9, 10)
        for attempt in (0, 2, 10, 1_000_000, 10_000_000)
        for number in (0, 9, 10, 100_000)
    ]
    assert sorted(map(str, written)) == [str(part) for part in written]
    assert [parse_part(str(part)) for part in written] == written
