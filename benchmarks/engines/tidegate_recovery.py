"""Recovery from `kill -9` of one worker with tidegate: `--records` keys with 1 KiB of state each (102,400: 100 MiB).

Records arrive at `--rate`, by the wall clock, also during an outage. A worker is killed KILLS times, each time after a
checkpoint of the attempt. The runner measures the time to the first new record: one that had not reached the sink
before the kill. The time includes records that are processed again before it. Every record carries its number, from
which the sink knows the count that its key must have: a lost or repeated record would give another count.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import protocol
import pyarrow as pa
from tidegate_probe import checkpoint_figures, environment

import tidegate
from tidegate import JobStatus, ProcessContext, ProcessFunction, ValueState
from tidegate.api.known_splits import KnownSplitsSource, RequestingReader
from tidegate.api.sink import Sink, SinkWriter, WriterContext
from tidegate.api.source import Boundedness, Finished, Idle, ReaderContext, SourceReader, SourceSplit
from tidegate.core.states import ExecutionState
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of

KILLS = 10
STATE_BYTES = 1024
TICK_NS = 1_000_000
LOOK_EVERY_S = 0.002
DEADLINE_S = 240.0
RESTARTS = {"restart_strategy": "fixed-delay", "restart_delay": "200 ms", "restart_attempts": 1000}
"""The default's first delay, each time: it would grow with failures that come so soon after each other."""
SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("number", "key")])


class Share(NamedTuple):
    """Every `shares`-th record from the `share`-th on; `began_ns` is when the first arrived (0: not yet)."""

    share: int
    shares: int
    position: int = 0
    began_ns: int = 0

    def split(self) -> SourceSplit:
        """It as a split: a class of splits would have to be installed where the slots are."""
        return SourceSplit(id=" ".join(map(str, self)))

    @classmethod
    def of(cls, split: SourceSplit) -> Share:
        """It back from a split."""
        return cls(*map(int, split.id.split()))


class Arrivals(KnownSplitsSource):
    """All keys at once, then one record after the other in turn, until the file `end` is there."""

    def __init__(self, keys: int, rate: int, folder: Path) -> None:
        super().__init__(record_type_of(SCHEMA))
        self.keys, self.rate, self.folder = keys, rate, folder

    @property
    def boundedness(self) -> Boundedness:
        """It ends."""
        return Boundedness.BOUNDED

    @property
    def on_request(self) -> bool:
        """Every reader has its own share."""
        return False

    def splits(self, parallelism: int) -> Sequence[SourceSplit]:
        """One for each reader."""
        return [Share(i, parallelism).split() for i in range(parallelism)]

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """A reader of one share."""
        return _ArrivalsReader(context, self)


class _ArrivalsReader(RequestingReader):
    def __init__(self, context: ReaderContext, source: Arrivals) -> None:
        super().__init__(context)
        self._source = source
        self._share: Share | None = None

    def poll(self) -> Batch | Idle | Finished:
        share = self._share
        if share is None:
            return self.out_of_splits()
        now_ns = time.time_ns()
        if not share.began_ns:
            share = self._share = share._replace(began_ns=now_ns)
        source = self._source
        arrived = source.keys + (now_ns - share.began_ns) * source.rate // 1_000_000_000
        mine = (arrived - share.share) // share.shares
        stop = min(mine, share.position + self._context.batch_rows)
        if stop > share.position:
            numbers = np.arange(share.position, stop, dtype=np.int64) * share.shares + share.share
            self._share = share._replace(position=stop)
            columns = [pa.array(numbers), pa.array(numbers % source.keys)]
            return Batch(self._type, columns=pa.record_batch(columns, schema=SCHEMA))
        if (source.folder / "end").exists():
            self._share = None
            return self.out_of_splits()
        return Idle(self._context.clock.monotonic_ns() + TICK_NS)

    @property
    def _type(self) -> Any:
        return self._source.record_type

    def add_splits(self, splits: Sequence[Any]) -> None:
        super().add_splits(splits)
        (split,) = splits
        self._share = Share.of(split)

    def snapshot(self) -> list[Any]:
        return [] if self._share is None else [self._share.split()]


class Profiles(ProcessFunction):
    """Counts the records of a key and keeps bytes for it, which it compares each time."""

    visits = ValueState(int, default=0)
    profile = ValueState(bytes)

    def process(self, record: Any, context: ProcessContext) -> list[tuple[int, int]]:
        """Called for each record."""
        visits = self.visits.value() + 1
        self.visits.update(visits)
        expected = random.Random(record.key).randbytes(STATE_BYTES)
        if visits == 1:
            self.profile.update(expected)
        elif self.profile.value() != expected:
            return [(record.number, -1)]
        return [(record.number, visits)]


class Noted(Sink):
    """Notes of every batch its time, its highest number and how many counts are wrong: a file per subtask, attempt."""

    def __init__(self, folder: Path, keys: int) -> None:
        self._folder, self._keys = folder, keys

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer per subtask."""
        notes = self._folder / f"sink-{context.attempt}-{context.subtask_index}.txt"
        return _NotedWriter(notes, self._keys)


class _NotedWriter(SinkWriter):
    def __init__(self, notes: Path, keys: int) -> None:
        # Unbuffered, a line with one call: what was noted before a kill can be read, and no half of a line.
        self._file = notes.open("ab", buffering=0)
        self._keys = keys

    def write(self, batch: Batch) -> None:
        rows = batch.rows
        wrong = sum(visits != number // self._keys + 1 for number, visits in rows)
        self._file.write(b"%d %d %d\n" % (time.time_ns(), max(number for number, _ in rows), wrong))

    def close(self) -> None:
        self._file.close()


class Storm:
    """The driver's side: kills, waits, and takes the times of what follows (to LOOK_EVERY_S)."""

    def __init__(self, client: Any, folder: Path, keys: int) -> None:
        self._client, self._folder, self._keys = client, folder, keys

    def wait(self, condition: Callable[[], Any], what: str, every_s: float = LOOK_EVERY_S) -> Any:
        """The value of the condition, once it is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            if self._client.status().is_terminal:
                self._client.result()
                raise SystemExit(f"the job has ended while waiting: {what}")
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {DEADLINE_S:g} s: {what}. {self._client.overview()}")
            time.sleep(every_s)
        return found

    def until_checkpoint(self) -> None:
        """Wait for a checkpoint of this attempt that holds all of the state."""
        attempt = self._client.overview().attempt

        def is_there() -> bool:
            latest = self._client.checkpoints().latest_completed
            return (
                latest is not None
                and latest.attempt == attempt
                and latest.bytes_full >= self._keys * STATE_BYTES
            )

        self.wait(is_there, f"a checkpoint of attempt {attempt} with {self._keys * STATE_BYTES} bytes")

    def kill(self, slot: int) -> dict[str, float]:
        """Kill a slot's process; seconds from then to the first new record, and those of the parts on the way."""
        client = self._client
        attempt = client.overview().attempt
        pid = client.slots()[slot].pid
        at: dict[str, int] = {"killed": time.time_ns()}
        os.kill(pid, signal.SIGKILL)

        def note(event: str, condition: Callable[[], Any]) -> None:
            self.wait(condition, f"{event} after attempt {attempt}")
            at[event] = time.time_ns()

        note("noticed", lambda: client.status() is not JobStatus.RUNNING or self._attempt() > attempt)
        note("stopped", lambda: client.status() is JobStatus.RESTARTING or self._attempt() > attempt)
        note("begun", lambda: self._attempt() > attempt)
        note("slots_there", lambda: all(each.pid for each in client.slots()))
        note("restored", self._all_running)
        # Only what the old attempt had delivered counts as known, also what it did after the kill.
        known = self.highest(attempt)
        at["new_record"] = self.wait(lambda: self._first_above(attempt, known), "a new record")
        parts = list(at.items())
        took = {after: max(0, t - before) / 1e9 for (_, before), (after, t) in itertools.pairwise(parts)}
        return took | {"total": (at["new_record"] - at["killed"]) / 1e9}

    def highest(self, attempt: int) -> int:
        """The highest number that had reached the sinks by the end of this attempt."""
        return max(number for each in range(attempt + 1) for _, number, _ in self.lines(each))

    def lines(self, attempt: int | None = None) -> list[tuple[int, int, int]]:
        """What the sinks have noted, of all attempts or of one: time, highest number, wrong counts."""
        which = "*" if attempt is None else str(attempt)
        texts = [path.read_text() for path in self._folder.glob(f"sink-{which}-*.txt")]
        # A line that is being written has no end yet.
        whole = [line for text in texts for line in text.split("\n")[:-1]]
        return [tuple(map(int, line.split())) for line in whole]  # type: ignore[misc]

    def _all_running(self) -> bool:
        """Whether every subtask has its state back and takes records."""
        return all(each.state is ExecutionState.RUNNING for each in self._client.execution_graph().subtasks())

    def _attempt(self) -> int:
        attempt: int = self._client.overview().attempt
        return attempt

    def _first_above(self, attempt: int, known: int) -> int | None:
        """When a later attempt (the next one, unless that has failed as well) gave the first new record."""
        later = [line for each in range(attempt + 1, self._attempt() + 1) for line in self.lines(each)]
        return min((at_ns for at_ns, number, _ in later if number > known), default=None)


def main() -> None:
    """Run and report."""
    parser = protocol.arguments(__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as name:
        folder = Path(name)
        env = environment(args, folder, **RESTARTS)
        records = env.from_source(Arrivals(args.records, args.rate, folder), name="arrivals")
        counted = records.key_by("key").process(Profiles(), returns=tuple[int, int])
        counted.sink_to(Noted(folder, args.records))
        client = env.execute_async("recovery")
        storm = Storm(client, folder, args.records)
        storm.wait(storm.lines, "the first record")
        first_ns = min(at_ns for at_ns, _, _ in storm.lines())
        recoveries = []
        for number in range(args.kills):
            storm.until_checkpoint()
            # Not always directly after a checkpoint: spread over the interval.
            time.sleep(args.checkpoint_interval * number / args.kills)
            recoveries.append(storm.kill(number % args.parallelism))
        # Once more through all keys: this shows whether a recovery has lost something.
        last = client.overview().attempt
        enough = storm.highest(last) + args.records
        storm.wait(
            lambda: max(number for _, number, _ in storm.lines(last)) >= enough,
            f"record {enough}",
            every_s=0.25,
        )
        (folder / "end").touch()
        client.result()
        lines = storm.lines()
    wrong = sum(each for _, _, each in lines)
    if wrong:
        raise SystemExit(f"{wrong} counts are wrong after {args.kills} kills")
    middle = {part: median(each[part] for each in recoveries) for part in recoveries[0]}
    spark_s = median(each["stopped"] + each["slots_there"] for each in recoveries)
    protocol.report(
        version=tidegate.__version__,
        records=0,
        seconds=(max(at_ns for at_ns, _, _ in lines) - first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(first_ns),
        cpu_s=0.0,
        check={"wrong": wrong},
        setting=f"{args.state_backend} backend, median of {args.kills} kills",
        extra={
            "first_new_record_s": round(middle["total"], 3),
            "longest_s": round(max(each["total"] for each in recoveries), 3),
            "of_it_spark_s": round(spark_s, 3),
            "noticing_s": round(middle["noticed"], 3),
            "delay_s": round(middle["begun"], 3),
            "restoring_s": round(middle["restored"], 3),
            "catching_up_s": round(middle["new_record"], 3),
            "restarts": client.overview().restarts,
            "state_mb": round(args.records * STATE_BYTES / 1e6, 1),
            **checkpoint_figures(client),
        },
    )


if __name__ == "__main__":
    main()
