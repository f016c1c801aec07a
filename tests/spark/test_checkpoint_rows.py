"""What a checkpoint does step by step on a real Spark: its messages, files, metrics, and what it costs."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.word_count import TEXT, words
from tests.fault.kit import (
    HoldingSink,
    hold_next,
    kill,
    pids,
    running,
    until,
    until_completed,
    until_restarted,
)
from tests.fault.stored import completed, number
from tests.fault.tap import APPS, TapSource, app_of
from tests.spark.checkpoints import QUICK, later_checkpoint, newest_completed, stored
from tests.spark.latency import NoteLatency, NoteSizes, bystander
from tests.spark.trace import Trace, Traced
from tidegate import FileSink, ProcessContext, ProcessFunction, ValueState
from tidegate.connectors.datagen import DataGeneratorSource, created_at_ns, sequence
from tidegate.core.key_groups import key_group_for_hash, subtask_for_key_group
from tidegate.jobmanager.checkpoint.coordinator import CheckpointCoordinator
from tidegate.keys.hashing import hash_value
from tidegate.protocol import messages as m
from tidegate.testing.scripted_source import Pause, ScriptedSource

pytestmark = pytest.mark.timeout(600)

log = logging.getLogger(__name__)


# ---- state: used, stored and restored, dealt out anew ----


def word_counts(env: Any, source: ScriptedSource, sink: HoldingSink) -> None:
    """The example's program over a script."""
    lines = env.from_source(source, uid="source").set_parallelism(1)
    lines.flat_map(words, uid="words").key_by("value").count(uid="count").sink_to(sink, uid="out")


def highest(pairs: list[Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for word, count in pairs:
        found[word] = max(found[word], count)
    return found


LINES = TEXT.splitlines()
TRUTH = Counter(word for line in LINES for word in words(line))


@pytest.mark.spec("S4-2", "S2-3")
def test_the_same_line_twice_gives_the_same_words_but_other_counts(make_env, tmp_path):
    source = ScriptedSource([[*LINES, *LINES]], tmp_path / "script")
    stateless, counted = HoldingSink(tmp_path / "words"), HoldingSink(tmp_path / "counts")
    env = make_env(parallelism=1)
    found = env.from_source(source).flat_map(words)
    found.sink_to(stateless)
    found.key_by("value").count().sink_to(counted)
    env.execute("twice")
    first, second = stateless.noted()[: TRUTH.total()], stateless.noted()[TRUTH.total() :]
    assert first == second, "without state the same input gives the same output"
    first, second = counted.noted()[: TRUTH.total()], counted.noted()[TRUTH.total() :]
    assert [word for word, _ in first] == [word for word, _ in second]
    assert not set(first) & set(second), "a count knows what came before"
    assert second == [(word, count + TRUTH[word]) for word, count in first]


@pytest.mark.spec("S2-2", "S2-3")
def test_word_count_goes_on_with_its_counts_when_a_process_is_killed(make_env, tmp_path):
    source = ScriptedSource(
        [[*LINES[:4], Pause("stored"), *LINES[4:6], Pause("kill"), LINES[6]]], tmp_path / "script"
    )
    sink = HoldingSink(tmp_path / "out")
    env = make_env(checkpoint_dir=str(tmp_path / "chk"), **QUICK)
    word_counts(env, source, sink)
    with running(env, "word count") as client:
        half = Counter(word for line in LINES[:4] for word in words(line))
        until(client, lambda: len(sink.noted()) == half.total(), "four lines")
        taken = stored(tmp_path / "chk", later_checkpoint(client, "a checkpoint behind four lines"))
        assert {word: number(count) for word, count in taken.keyed("count").items()} == half, (
            "the count is the state"
        )
        sink.hold()
        source.release("stored")
        until(client, lambda: source.has_reached("kill"), "two more lines")
        kill(pids(client)[0])
        until_restarted(client)
        source.release("kill")
        client.result(180)
    assert highest(sink.noted(attempt=1)) <= TRUTH
    assert highest(sink.noted()) == TRUTH
    rest = sum(len(list(words(line))) for line in LINES[4:])
    assert len(sink.noted(attempt=1)) <= rest, "what the checkpoint holds is not counted again"


@pytest.mark.spec("S2-3")
def test_stored_counts_are_dealt_out_over_more_and_over_fewer_subtasks(make_env, tmp_path):
    def job(name: str, parallelism: int, **options: Any) -> tuple[Any, ScriptedSource, HoldingSink]:
        source = ScriptedSource([[*LINES, Pause("1"), *LINES, Pause("2"), *LINES]], tmp_path / name)
        sink = HoldingSink(tmp_path / f"out {name}")
        env = make_env(
            parallelism=parallelism,
            max_parallelism=16,
            checkpoint_dir=str(tmp_path / "chk"),
            **{**QUICK, **options},
        )
        word_counts(env, source, sink)
        return env, source, sink

    resume: dict[str, str] = {}
    for times, (name, parallelism) in enumerate([("two", 2), ("three", 3), ("one", 1)], 1):
        env, source, sink = job(name, parallelism, **resume)
        for marker in range(1, times):
            source.release(str(marker))
        with running(env, name) as client:
            until(client, lambda sink=sink: len(sink.noted()) == TRUTH.total(), f"the text, {name}")
            expected = Counter({word: times * count for word, count in TRUTH.items()})
            assert highest(sink.noted()) == expected, "each subtask goes on with the counts of its words"
            if times == 3:
                client.result(180)
                break
            taken = stored(tmp_path / "chk", later_checkpoint(client, "a checkpoint"))
            by_subtask = taken.keyed_by_subtask("count")
            assert len([keys for keys in by_subtask.values() if keys]) == parallelism
            assert sum(map(len, by_subtask.values())) == len(TRUTH), "every word in one subtask"
            client.cancel(60)
        resume = {"resume": str(completed(tmp_path / "chk")[-1].directory / "_metadata")}


# ---- acknowledgements ----


class Received(NamedTuple):
    """An acknowledgement as it came, and what was on the disk at that moment."""

    message: m.AcknowledgeCheckpoint
    wire_bytes: int
    missing: list[str]
    at: float


@pytest.fixture
def acknowledgements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Received]:
    """Every acknowledgement that the JobManager of this process gets, noted before it is handled."""
    seen: list[Received] = []
    handle = CheckpointCoordinator._on_message

    def note(self: CheckpointCoordinator, slot: Any, message: Any, now_ms: int) -> None:
        if isinstance(message, m.AcknowledgeCheckpoint):
            files = m.decode_snapshot(message.snapshot).files()
            missing = [f.path for f in files if not is_whole(tmp_path / "chk", f)]
            seen.append(Received(message, len(m.encode_message(message)), missing, time.time()))
        handle(self, slot, message, now_ms)

    monkeypatch.setattr(CheckpointCoordinator, "_on_message", note)
    return seen


def is_whole(root: Path, file: Any) -> bool:
    """Whether a state file is there under its name with all its bytes."""
    for path in root.glob(f"*/{file.path}"):
        data = path.read_bytes()
        return (
            len(data) == file.size and file.checksum == f"sha256-128:{hashlib.sha256(data).hexdigest()[:32]}"
        )
    return False


class Word(NamedTuple):
    key: str
    n: int


@pytest.mark.spec("S1-3", "S1-5")
def test_an_acknowledgement_has_addresses_of_files_that_are_whole_and_never_state(
    make_env, tmp_path, acknowledgements
):
    keys = 30_000
    records = [Word(f"secret-{n:06}", n) for n in range(keys)]
    source = ScriptedSource([[*records, Pause("end")]], tmp_path / "script")
    sink = HoldingSink(tmp_path / "out")
    env = make_env(checkpoint_dir=str(tmp_path / "chk"), **{**QUICK, "checkpoint_fsync": True})
    read = env.from_source(source, uid="source").set_parallelism(1)
    read.key_by("key").sum("n", uid="sums").sink_to(sink, uid="out")
    with running(env, "large state") as client:
        until(client, lambda: source.has_reached("end"), "all records to be read")
        until(client, lambda: len(sink.noted()) == keys, "all records")
        large = later_checkpoint(client, "a checkpoint of everything")
        before = hold_next(client, sink)
        held = until(
            client,
            lambda: next(
                (
                    c
                    for c in client.checkpoints().history
                    if c.checkpoint_id > before and c.status == "pending" and len(c.subtasks) == 1
                ),
                None,
            ),
            "a checkpoint whose sinks are not written",
        )
        began = time.time()
        until(client, lambda: time.time() - began > 0.3, "300 ms of an upload that does not end")
        early = [a.message for a in acknowledgements if a.message.checkpoint_id == held.checkpoint_id]
        assert {a.vertex for a in early} == {0}, "the sinks' subtasks say nothing before their upload is done"
        sink.let_pass(1 << 30)
        until_completed(client, client.checkpoints().completed + 1)
        late = next(c for c in client.checkpoints().history if c.checkpoint_id == held.checkpoint_id)
        source.release("end")
        client.result(180)
    assert late.status == "completed"
    assert late.async_ms > 300 > late.sync_ms, "the wait is a part of the asynchronous time"
    assert {path for a in acknowledgements for path in a.missing} == set(), (
        "what is acknowledged can be read at that moment"
    )
    of_large = [a for a in acknowledgements if a.message.checkpoint_id == large.checkpoint_id]
    handles = [
        operator.keyed
        for a in of_large
        for operator in m.decode_snapshot(a.message.snapshot).operators
        if operator.keyed is not None
    ]
    assert len(handles) == 2
    assert sum(handle.bytes_full for handle in handles) == large.bytes_full > 100_000
    assert max(a.wire_bytes for a in of_large) < 4_000 + 300 * sum(len(h.files) for h in handles)
    assert sum(a.wire_bytes for a in of_large) < large.bytes_full / 10
    assert not any(b"secret-" in m.encode_message(a.message) for a in acknowledgements)
    assert not any(a.message.attachments for a in acknowledgements)


# ---- order on channels ----


def partition_and_app(tick: Any) -> int:
    return int(tick.partition * APPS + tick.app)


@pytest.mark.spec("S0-35")
def test_on_every_channel_exactly_what_was_sent_before_the_barrier_is_before_it(make_env, tmp_path):
    groups = 16
    source = TapSource(tmp_path / "tap", partitions=2)
    sink = HoldingSink(tmp_path / "out")
    env = make_env(
        max_parallelism=groups, checkpoint_dir=str(tmp_path / "chk"), checkpoint_retained=50, **QUICK
    )
    read = env.from_source(source, uid="source")
    read.key_by(partition_and_app, returns=int).count(uid="count").sink_to(sink, uid="out")
    with running(env, "order") as client:
        until_completed(client, 30)
        client.cancel(60)
    checked: Counter[tuple[int, int]] = Counter()
    between = set()
    for checkpoint in completed(tmp_path / "chk"):
        positions = checkpoint.positions("source")
        between.add(tuple(sorted(positions.items())))
        found = {key: number(count) for key, count in checkpoint.keyed("count").items()}
        for partition, position in positions.items():
            expected = Counter(app_of(partition, n) for n in range(position))
            for app in range(APPS):
                key = partition * APPS + app
                group = key_group_for_hash(hash_value(key), groups)
                channel = (partition, subtask_for_key_group(group, 2, groups))
                assert found.get(key, 0) == expected[app], (checkpoint.id, channel, app)
                checked[channel] += 1
    assert set(checked) == {(0, 0), (0, 1), (1, 0), (1, 1)}, "all four channels"
    assert len(between) > 10, "the barriers cut a stream that flows"


# ---- RocksDB ----


@pytest.mark.spec("S1-6")
def test_with_two_inputs_on_rocksdb_the_next_checkpoint_uploads_only_files_that_are_new(make_env, tmp_path):
    first = [Word(f"{n * 7919:012}-{n}", n) for n in range(20_000)]
    few = [Word(f"few-{n}", n) for n in range(50)]
    left = ScriptedSource([[*first[::2], Pause("few 0"), *few, Pause("end 0")]], tmp_path / "left")
    right = ScriptedSource([[*first[1::2], Pause("few 1"), *few, Pause("end 1")]], tmp_path / "right")
    trace = Trace(tmp_path / "trace")
    sink = HoldingSink(tmp_path / "out")
    env = make_env(
        parallelism=1,
        state_backend="rocksdb",
        checkpoint_retained=50,
        checkpoint_dir=str(tmp_path / "chk"),
        **QUICK,
    )
    one = env.from_source(left, uid="left", name="left").map(Traced(trace), returns=Word)
    two = env.from_source(right, uid="right", name="right")  # in the same slot
    one.union(two).key_by("key").sum("n", uid="sums").sink_to(sink, uid="out")
    with running(env, "incremental") as client:
        until(client, lambda: len(sink.noted()) == len(first), "the first records")
        later_checkpoint(client, "a checkpoint of everything")
        sink.hold()

        def waiting() -> Any:
            newest = client.checkpoints().history[-1]
            return newest if newest.status == "pending" and len(newest.subtasks) == 2 else None

        full = until(client, waiting, "one more, which both sources have passed").checkpoint_id
        left.release("few 0")
        right.release("few 1")
        until(client, lambda: len(sink.noted()) == len(first) + 2 * len(few), "few more")
        sink.let_pass(1 << 30)
        until(client, lambda: newest_completed(client) > full, "the next one")
        found = {c.checkpoint_id: c for c in client.checkpoints().history if c.status == "completed"}
        increment = found[full + 1]
        before, after = (
            {str(f): f.stat().st_size for f in stored(tmp_path / "chk", found[id]).files()}
            for id in (full, full + 1)
        )
        left.release("end 0")
        right.release("end 1")
        client.result(180)
    new = after.keys() - before.keys()
    assert 0 < increment.bytes_new == sum(after[name] for name in new)
    assert increment.bytes_new < increment.bytes_full / 5, (increment.bytes_new, increment.bytes_full)
    kept = after.keys() & before.keys()
    assert sum(after[name] for name in kept) > increment.bytes_full / 2, (
        "the large files are only referred to"
    )
    of_sums = [e for e in trace.read(increment.checkpoint_id) if e.subtask == (2, 0)]
    assert [e.what for e in of_sums][:3] == ["barrier received", "barrier received", "processing stopped"]
    assert len({e.detail for e in of_sums[:2]}) == 2, "the barriers of both inputs"
    assert any(e.what == "snapshot" and e.at > of_sums[1].at for e in of_sums)


class Blob(NamedTuple):
    key: int
    text: str


class Keep(ProcessFunction):
    """Keeps the text of each key; gives the number of letters that it had kept before."""

    kept = ValueState(str, default="")

    def process(self, value: Blob, context: ProcessContext) -> Iterator[tuple[int, bool]]:
        yield value.key, self.kept.value() == value.text
        self.kept.update(value.text)


def blob(n: int) -> Blob:
    """About 2 KiB for a key that no compression makes small."""
    digests = (hashlib.sha512(f"{n % BLOBS} {i}".encode()).hexdigest() for i in range(16))
    return Blob(n % BLOBS, "".join(digests))


BLOBS = 20_000


@pytest.mark.spec("S2-7")
def test_state_that_is_larger_than_the_memory_of_rocksdb_is_kept_on_disk(make_env, tmp_path):
    limit = 8 << 20
    sink = HoldingSink(tmp_path / "out")
    env = make_env(
        parallelism=1,
        state_backend="rocksdb",
        rocksdb_memory=limit,
        checkpoint_dir=str(tmp_path / "chk"),
        **{**QUICK, "checkpoint_interval": "500 ms"},
    )
    numbers = env.from_sequence(0, 2 * BLOBS - 1).map(blob, returns=Blob)
    numbers.key_by("key").process(Keep(), returns=tuple[int, bool], uid="keep").sink_to(sink)
    with running(env, "larger than memory") as client:
        client.result(180)
    final = client.checkpoints().latest_completed
    assert final.final
    assert final.bytes_full > 2 * limit, f"the state has {final.bytes_full} bytes"
    noted = sink.noted()
    assert noted[:BLOBS] == [(n, False) for n in range(BLOBS)]
    assert noted[BLOBS:] == [(n, True) for n in range(BLOBS)], "all of it is read again, from the disk"


# ---- latency ----


class Visit(NamedTuple):
    n: int
    sent: int
    visits: int


class CountVisits(ProcessFunction):
    """One record in, one out, at once."""

    seen = ValueState(int, default=0)

    def process(self, value: Any, context: ProcessContext) -> Iterator[Visit]:
        self.seen.update(self.seen.value() + 1)
        yield Visit(value.n, value.sent, self.seen.value())


def one_of_ten(record: Any) -> int:
    return int(record.n % 10)


@pytest.mark.alone
@pytest.mark.spec("S0-40", "S2-4")
def test_records_pass_one_by_one_in_milliseconds_while_exactly_once_checkpoints_come_every_second(
    make_env, tmp_path
):
    rate, count = 200, 1000
    note, sizes = NoteLatency(tmp_path), NoteSizes(tmp_path)
    env = make_env(
        buffer_timeout=0,
        checkpoint_interval="1 s",
        checkpoint_mode="exactly_once",
        checkpoint_dir=str(tmp_path / "chk"),
    )
    source = DataGeneratorSource(fields={"n": sequence(), "sent": created_at_ns()}, rate=rate, count=count)
    visits = env.from_source(source).key_by(one_of_ten, returns=int).process(CountVisits(), returns=Visit)
    visits.map_batches(sizes, returns=Visit).sink_to(note)
    visits.sink_to(FileSink(tmp_path / "files"), uid="files")
    with bystander(tmp_path) as machine:
        client = env.execute_async("latency with checkpoints")
        client.result(120)

    settled = [ms for n, ms in note.read().items() if n >= rate]
    found = machine.check(settled, sizes.read(), rate)
    checkpoints = [c for c in client.checkpoints().history if not c.final]
    took = [c.end_to_end_ms for c in checkpoints]
    log.info("latency ms %s", found)
    log.info("checkpoints ms %s", took)
    rows = [
        json.loads(line)
        for f in sorted((tmp_path / "files").glob("part-*"))
        for line in f.read_text().splitlines()
    ]
    assert Counter((r["n"] % 10, r["visits"]) for r in rows) == Counter(
        (key, visit) for key in range(10) for visit in range(1, count // 10 + 1)
    ), "exactly once"
    assert {c.status for c in checkpoints} == {"completed"}
    assert len(checkpoints) >= 4
    times = [c.triggered_ms for c in checkpoints]
    assert times[-1] - times[0] < (len(times) - 1) * 1000 + 500, "each second one, none is late"
    assert max(took) < 1000
    assert max(c.bytes_full for c in checkpoints) < 100_000
