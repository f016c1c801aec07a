"""Sources and sinks in running jobs: files, sockets, generators; print, collect, files, functions."""

from __future__ import annotations

import contextlib
import gc
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest

from tests.spark.kit import Noting, assert_still_works, bag, by_key, in_process, wait_until
from tidegate import DataStream, Environment, JobCanceledError, JobFailedError, JobStatus
from tidegate.api.sink import BlackholeSink
from tidegate.connectors.datagen import DataGeneratorSource, sequence, uniform_int, zipf_choice
from tidegate.connectors.files import FileSink, FileSource
from tidegate.connectors.socket import SocketSource

pytestmark = pytest.mark.timeout(90)
FORMATS = ["json", "csv", "parquet"]


RUNTIMES = ("in-process, seed 0", "processes")
also_on_spark = pytest.mark.parametrize("env", [*RUNTIMES, "Spark"], indirect=True)


@pytest.fixture(params=RUNTIMES)
def env(request: pytest.FixtureRequest, env_of: Callable[..., Environment]) -> Environment:
    return env_of(request.param)


@pytest.fixture
def make_env(make_process_env: Callable[..., Environment]) -> Callable[..., Environment]:
    return make_process_env


@dataclass(frozen=True)
class Click:
    app: str
    n: int
    price: float | None


def clicks(start: int, stop: int) -> list[Click]:
    return [Click(f"app {i % 7} ☃", i, None if i % 5 == 0 else i / 4) for i in range(start, stop)]


def write_file(path: Path, records: list[Click], kind: str) -> None:
    """With Arrow's own writers, not ours; renamed when complete."""
    table = pa.table({f: [getattr(r, f) for r in records] for f in ("app", "n", "price")})
    hidden = path.with_name(f".{path.name}")
    if kind == "json":
        lines = [str(row).replace("None", "null").replace("'", '"') for row in table.to_pylist()]
        hidden.write_text("".join(f"{line}\n" for line in lines))
    elif kind == "csv":
        pa_csv.write_csv(table, hidden)
    else:
        pq.write_table(table, hidden, row_group_size=20)
    hidden.rename(path)


def read_file(path: Path) -> list[Click]:
    """With Arrow's own readers."""
    if path.suffix == ".json":
        table = pa_json.read_json(path)
    elif path.suffix == ".csv":
        types = {"app": pa.string(), "n": pa.int64(), "price": pa.float64()}
        table = pa_csv.read_csv(path, convert_options=pa_csv.ConvertOptions(column_types=types))
    else:
        table = pq.read_table(path)
    return [Click(**row) for row in table.select(["app", "n", "price"]).to_pylist()]


def visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))


# ---- files ----


@also_on_spark
@pytest.mark.parametrize("kind", FORMATS)
def test_files_in_and_out_hold_every_record_once(env, tmp_path, kind):
    (tmp_path / "in").mkdir()
    for i in range(5):
        write_file(tmp_path / "in" / f"{i}.{kind}", clicks(100 * i, 100 * i + 100), kind)
    source = FileSource(tmp_path / "in", kind, Click, split_size=700)
    env.from_source(source).rebalance().filter(lambda c: True).sink_to(FileSink(tmp_path / "out", kind))
    env.execute()
    parts = visible(tmp_path / "out")
    (job,) = {p.name.split("-")[1] for p in parts}
    assert [p.name for p in parts] == [f"part-{job}-000{i}-000000000-000000.{kind}" for i in (0, 1)]
    assert bag(r for p in parts for r in read_file(p)) == bag(clicks(0, 500))
    assert [p for p in (tmp_path / "out").iterdir() if p.name.startswith(".")] == []


def test_a_schema_is_inferred_and_compressed_files_are_read(env, tmp_path):
    text = "".join(f'{{"app":"a{i % 3}","n":{i}}}\n' for i in range(200))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    counted = env.from_source(FileSource(tmp_path / "*.json.gz")).key_by("app").count()
    assert {k: v[-1] for k, v in by_key(counted.execute_and_collect()).items()} == {
        "a0": 67,
        "a1": 67,
        "a2": 66,
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_new_files_of_a_watched_directory_are_read_while_the_job_runs(make_env, tmp_path, kind):
    folder, env = tmp_path / "in", make_env()
    folder.mkdir()
    write_file(folder / f"0.{kind}", clicks(0, 10), kind)
    note = Noting(tmp_path / "notes")
    source = FileSource(folder, kind, Click, watch="50 ms")
    env.from_source(source).map(lambda c: c.n).sink_to(note)
    client = env.execute_async()
    try:
        for i in range(1, 4):
            wait_until(lambda i=i: len(note.lines()) >= 10 * i, f"{10 * i} records are there")
            (folder / f".{i}.{kind}.tmp").write_text("never read: hidden")
            write_file(folder / f"{i}.{kind}", clicks(10 * i, 10 * i + 10), kind)
        wait_until(lambda: len(note.lines()) >= 40, "40 records are there")
        assert client.status() is JobStatus.RUNNING
    finally:
        client.cancel()
    assert client.status() is JobStatus.CANCELED
    assert bag(note.read()) == bag(range(40))
    with pytest.raises(JobCanceledError, match="cancelled by its client"):
        client.result()


@pytest.mark.parametrize("kind", FORMATS)
def test_parts_are_visible_only_when_they_are_finished(make_env, tmp_path, kind):
    out, env = tmp_path / "out", make_env()
    endless = DataGeneratorSource(fields={"n": sequence()}, rate=2000)
    numbers = env.from_source(endless)
    seen = Noting(tmp_path / "seen")
    numbers.filter(lambda r: r.n % 500 == 0).map(lambda r: r.n).sink_to(seen)
    numbers.sink_to(FileSink(out, kind))
    client = env.execute_async()
    try:
        wait_until(lambda: len(seen.lines()) >= 3 and list(out.glob(".part-*")), "records were written")
        assert visible(out) == []
    finally:
        client.cancel()
    assert list(out.iterdir()) == []  # unfinished output is nobody's output


def test_parts_roll_and_each_is_complete_when_it_appears(make_env, tmp_path):
    out, env = tmp_path / "out", make_env(parallelism=1, batch_rows=100)
    endless = DataGeneratorSource(fields={"n": sequence()}, rate=20_000)
    env.from_source(endless).sink_to(FileSink(out, "json", roll_size="2 KiB"))
    client = env.execute_async()
    try:
        wait_until(lambda: out.exists() and len(visible(out)) >= 5, "five parts are there")
        parts = sorted(visible(out), key=lambda p: int(p.stem.rpartition("-")[2]))
        lines = [line for p in parts for line in p.read_text().splitlines()]
    finally:
        client.cancel()
    assert lines == [f'{{"n":{i}}}' for i in range(len(lines))]


def test_a_directory_that_is_not_empty_is_refused_before_anything_runs(env, tmp_path):
    (tmp_path / "precious.txt").write_text("keep me")
    env.from_sequence(1, 3).sink_to(FileSink(tmp_path))
    with pytest.raises(Exception, match="is not empty"):
        env.execute()
    assert [p.name for p in tmp_path.iterdir()] == ["precious.txt"]


# ---- sockets ----


class LineServer:
    """Sends lines to whoever connects; a test says when."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.peer: socket.socket | None = None

    def accept(self) -> None:
        self.listener.settimeout(30)
        self.peer, _ = self.listener.accept()

    def send(self, text: str) -> None:
        assert self.peer is not None
        self.peer.sendall(text.encode())

    def close(self) -> None:
        for s in (self.peer, self.listener):
            if s is not None:
                s.close()


@pytest.fixture
def server() -> Iterator[LineServer]:
    made = LineServer()
    yield made
    made.close()


@pytest.mark.parametrize("runtime", ["processes", "Spark"])
def test_socket_lines_arrive_as_they_are_sent_and_the_job_ends_with_the_connection(
    env_of, runtime, server, tmp_path
):
    env, note = env_of(runtime), Noting(tmp_path)
    words = env.from_source(SocketSource("127.0.0.1", server.port)).flat_map(str.split, returns=str)
    words.key_by("value").count().map(tuple).sink_to(note)
    client = env.execute_async()
    server.accept()
    server.send("to be or\nnot to")
    wait_until(lambda: len(note.lines()) == 3, "the first line is counted")
    assert bag(note.read()) == bag([("to", 1), ("be", 1), ("or", 1)])
    server.send(" be\r\nlast line")
    server.close()
    client.result(timeout_s=30)
    assert {k: max(v) for k, v in by_key(note.read()).items()} == {
        "to": 2, "be": 2, "or": 1, "not": 1, "last": 1, "line": 1,
    }  # fmt: skip


def test_a_socket_that_nobody_serves_fails_the_job_with_host_and_port(make_env, server):
    server.close()
    with pytest.raises(JobFailedError, match=f"cannot connect to 127.0.0.1:{server.port}"):
        list(make_env().from_source(SocketSource("127.0.0.1", server.port)).execute_and_collect())


def test_cancel_closes_the_socket(make_env, server):
    env = make_env()
    env.from_source(SocketSource("127.0.0.1", server.port)).sink_to(BlackholeSink())
    client = env.execute_async()
    server.accept()
    server.send("line\n")
    started = time.monotonic()
    client.cancel()
    assert time.monotonic() - started < 5
    assert server.peer is not None
    server.peer.settimeout(10)
    with contextlib.suppress(ConnectionResetError):  # so it is where a line was not read any more
        assert server.peer.recv(10) == b""


# ---- the generator ----


def generated(env: Environment, seed: int, **settings: Any) -> DataStream:
    fields = {"i": sequence(), "app": zipf_choice(["a", "b", "c"]), "n": uniform_int(0, 1000)}
    return env.from_source(DataGeneratorSource(fields=fields, seed=seed, **settings))


def test_one_seed_gives_the_same_records_at_every_parallelism_and_on_spark(make_spark_env):
    runs = [
        sorted(map(tuple, generated(env, seed, count=3000).execute_and_collect()))
        for env, seed in (
            (in_process(parallelism=1), 7),
            (in_process(parallelism=3, batch_rows=100), 7),
            (make_spark_env(parallelism=2), 7),
            (make_spark_env(parallelism=2), 8),
        )
    ]
    assert runs[0] == runs[1] == runs[2]
    assert runs[2] != runs[3]
    assert [r[0] for r in runs[0]] == list(range(3000))


def test_a_bounded_rate_takes_its_time(make_env):
    started = time.monotonic()
    rows = list(generated(make_env(), 1, count=300, rate=400).execute_and_collect())
    assert time.monotonic() - started >= 299 / 400
    assert sorted(r.i for r in rows) == list(range(300))


def test_a_rate_on_the_manual_clock_is_exact():
    env = in_process(parallelism=3)
    generated(env, 1, count=1001, rate=10).sink_to(BlackholeSink())
    started = time.monotonic()
    metrics = env.execute()
    assert 100_000 <= metrics.elapsed_ms < 101_000
    assert time.monotonic() - started < 30


def test_an_unbounded_generator_goes_on_until_it_is_cancelled(make_env):
    env = make_env()
    generated(env, 1).key_by("app").count(emit="batch").sink_to(BlackholeSink())
    client = env.execute_async()

    def records_read() -> int:
        return sum(
            s.operators[0].records_out
            for v in client.metrics().vertices[:1]
            for s in v.subtasks
            if s.operators
        )

    first = wait_until(records_read, "records are read")
    wait_until(lambda: records_read() > first + 100_000, "and more of them")
    started = time.monotonic()
    client.cancel()
    assert time.monotonic() - started < 5
    assert client.status() is JobStatus.CANCELED


# ---- sinks in the driver ----


@also_on_spark
def test_print_writes_prefix_subtask_and_record_to_the_drivers_output(env, capsys):
    env.from_collection(["tide", "gate"], parallelism=1).print("words")
    env.from_sequence(1, 2, parallelism=1).map(lambda n: (n, None)).print()
    env.execute()
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split(">")[0] in ("words:0", "words:1", "0", "1") for line in lines)
    assert bag(line.split("> ")[1] for line in lines) == bag(["tide", "gate", "(1, None)", "(2, None)"])


def test_collect_gives_the_first_results_before_the_source_ends(make_env):
    results = generated(make_env(), 1, rate=500).map(lambda r: r.i).execute_and_collect()
    seen = [next(results) for _ in range(50)]
    assert len(set(seen)) == 50
    results.close()  # type: ignore[attr-defined]
    assert_still_works(make_env())


@pytest.mark.parametrize("runtime", ["processes", "Spark"])
def test_closing_the_iterator_early_cancels_the_job(env_of, runtime, tmp_path):
    note = Noting(tmp_path)
    results = generated(env_of(runtime), 1, rate=1000).map(Tracking(note)).execute_and_collect()
    next(results)
    started = time.monotonic()
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 5
    assert bag(note.read()) == {"closed": 2}


def test_closing_the_iterator_before_its_first_record_cancels_the_job_too(make_env):
    results = generated(make_env(), 1, rate=1000).execute_and_collect()
    results.close()  # type: ignore[attr-defined]
    wait_until(lambda: not _job_threads(), "no thread of the job is left")


def test_dropping_the_iterator_cancels_the_job(make_env):
    results = generated(make_env(), 1, rate=1000).execute_and_collect()
    next(results)
    del results
    gc.collect()
    wait_until(lambda: not _job_threads(), "no thread of the job is left")
    unread = generated(make_env(), 1, rate=1000).execute_and_collect()
    assert _job_threads()
    del unread
    gc.collect()
    wait_until(lambda: not _job_threads(), "no thread of the job is left")


def test_results_read_by_for_loops_with_a_break(make_env):
    for _ in range(2):
        for n in generated(make_env(), 1, rate=2000).map(lambda r: r.i).execute_and_collect():
            if n >= 20:
                break
        gc.collect()
        wait_until(lambda: not _job_threads(), "no thread of the job is left")


def test_a_program_that_takes_its_results_slowly_holds_the_job_back(make_env):
    env = make_env(batch_rows=100)
    results = generated(env, 1, count=100_000).map(lambda r: r.i).execute_and_collect()
    first = [next(results) for _ in range(10)]
    rest = list(results)
    assert sorted(first + rest) == list(range(100_000))


@also_on_spark
def test_a_job_that_fails_gives_its_results_first_and_then_the_error(env):
    def check(n: int) -> int:
        if n == 60:
            raise ValueError("sixty")
        return n

    env.options = env.options.with_values({"execution.batch_rows": 10}, "the test")
    results = env.from_sequence(1, 100, parallelism=1).map(check, parallelism=1).execute_and_collect()
    seen = []
    with pytest.raises(JobFailedError, match="sixty"):
        seen.extend(results)
    with pytest.raises(StopIteration):
        next(results)


class Tracking:
    """Stands for a map function; notes when it is closed."""

    def __new__(cls, note: Noting) -> Any:
        from tidegate import MapFunction

        class Function(MapFunction):
            def map(self, value: Any) -> Any:
                return value

            def close(self) -> None:
                note("closed")

        return Function()


def _job_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tidegate")]


# ---- the others ----


def test_blackhole_and_function_sinks(env, tmp_path):
    note = Noting(tmp_path)
    numbers = env.from_sequence(1, 100)
    numbers.sink_to(BlackholeSink(), name="nowhere")
    numbers.sink_to(note, name="notes")
    metrics = env.execute()
    assert bag(note.read()) == bag(range(1, 101))
    written = {o.name: o.records_in for v in metrics.vertices for o in v.operators()}
    assert written["nowhere"] == written["notes"] == 100


def test_an_environment_can_run_several_jobs_one_after_the_other(env, tmp_path):
    for i in range(3):
        note = Noting(tmp_path / str(i))
        env.from_sequence(1, 10).map(lambda n, i=i: n * i, returns=int).sink_to(note)
        env.execute(f"job {i}")
        assert bag(note.read()) == bag(n * i for n in range(1, 11))


def test_two_jobs_at_once_share_the_session(make_spark_env, tmp_path):
    notes, clients = [], []
    for i in range(2):
        env, note = make_spark_env(), Noting(tmp_path / str(i))
        env.from_sequence(1, 1000).map(lambda n, i=i: n * (i + 1), returns=int).sink_to(note)
        clients.append(env.execute_async(f"job {i}"))
        notes.append(note)
    for client in clients:
        assert client.result(timeout_s=60).status == "FINISHED"
    assert bag(notes[0].read()) == bag(range(1, 1001))
    assert bag(notes[1].read()) == bag(range(2, 2001, 2))
