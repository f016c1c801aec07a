"""Bytes of a checkpoint after 1 % of the keys have changed, with tidegate: `--records` keys, one count each.

The source loads all keys, then waits. Each time the driver asks, it counts another 1 % of them, spread over all key
groups. The bytes of all checkpoints from then to the first that contains every change are compared with the full size
of the last checkpoint before. The changes begin when checkpoints write nothing more: merges of the load by the backend
are part of the load (`load_mb`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import protocol
import pyarrow as pa
from tidegate_many_keys import UserCounts
from tidegate_probe import ProbeSink, checkpoint_figures, environment, note_first_read, read_notes

import tidegate
from tidegate.api.known_splits import KnownSplitsSource, RequestingReader
from tidegate.api.source import Boundedness, Finished, Idle, ReaderContext, SourceReader, SourceSplit
from tidegate.records.batch import Batch
from tidegate.records.types import record_type_of

CHANGES = 30
ONE_IN = 100
CALM_CHECKPOINTS = 3
LOOK_EVERY_NS = 20_000_000
DEADLINE_S = 240.0
SCHEMA = pa.schema([pa.field("user_id", pa.int64(), nullable=False)])


class Share(NamedTuple):
    """Every `shares`-th key from the `share`-th on: `change` 0 is all of them, change k every key k modulo ONE_IN."""

    share: int
    shares: int
    change: int = 0
    position: int = 0

    def split(self) -> SourceSplit:
        """It as a split: a class of splits would have to be installed where the slots are."""
        return SourceSplit(id=" ".join(map(str, self)))

    @classmethod
    def of(cls, split: SourceSplit) -> Share:
        """It back from a split."""
        return cls(*map(int, split.id.split()))


class KeysSource(KnownSplitsSource):
    """All keys once, then 1 % of them each time that a file `change-<k>` appears."""

    def __init__(self, keys: int, folder: Path) -> None:
        super().__init__(record_type_of(SCHEMA))
        self._keys, self._folder = keys, folder

    @property
    def boundedness(self) -> Boundedness:
        """It ends after the last change."""
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
        return _KeysReader(context, self._type, self._keys, self._folder)


class _KeysReader(RequestingReader):
    def __init__(self, context: ReaderContext, type: Any, keys: int, folder: Path) -> None:
        super().__init__(context)
        self._type, self._keys, self._folder = type, keys, folder
        self._share: Share | None = None
        self._numbers: np.ndarray | None = None

    def poll(self) -> Batch | Idle | Finished:
        share = self._share
        if share is None:
            return self.out_of_splits()
        if self._numbers is None:
            if share.change and not (self._folder / f"change-{share.change}").exists():
                return Idle(self._context.clock.monotonic_ns() + LOOK_EVERY_NS)
            note_first_read(self._folder / f"source-{share.share}.json")
            self._numbers = self._numbers_of(share)
        numbers = self._numbers[share.position : share.position + self._context.batch_rows]
        if len(numbers):
            self._share = share._replace(position=share.position + len(numbers))
            columns = pa.record_batch([pa.array(user_ids(numbers))], schema=SCHEMA)
            return Batch(self._type, columns=columns)
        (self._folder / f"emitted-{share.change}-{share.share}").touch()
        self._numbers = None
        following = share._replace(change=share.change + 1, position=0)
        self._share = following if share.change < CHANGES else None
        return Idle(self._context.clock.monotonic_ns())

    def _numbers_of(self, share: Share) -> np.ndarray:
        if share.change == 0:
            return np.arange(share.share, self._keys, share.shares, dtype=np.int64)
        changed = np.arange(share.change, self._keys, ONE_IN, dtype=np.int64)
        return changed[share.share :: share.shares]

    def add_splits(self, splits: Sequence[Any]) -> None:
        super().add_splits(splits)
        (split,) = splits
        self._share = Share.of(split)

    def snapshot(self) -> list[Any]:
        return [] if self._share is None else [self._share.split()]


def user_ids(numbers: np.ndarray) -> np.ndarray:
    """Ids without any order, as in the data of `many_keys`."""
    # The finalizer of splitmix64: it permutes the numbers of 64 bits. A mere factor would leave few distinct gaps
    # between the sorted ids, which compress as no real ids do.
    mixed = numbers.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)


class Changes:
    """The driver's side: says when the next keys change, and reads off what the checkpoints have written."""

    def __init__(self, client: Any, folder: Path, parallelism: int) -> None:
        self._client, self._folder, self._parallelism = client, folder, parallelism

    def full(self) -> tuple[Any, int]:
        """The last checkpoint of the load of all keys, when several have written nothing; bytes of all of them."""
        self._covering(0)
        self._wait(self._is_calm)
        done = self._completed()
        return done[-1], sum(each.bytes_new for each in done)

    def _is_calm(self) -> bool:
        last = self._completed()[-CALM_CHECKPOINTS:]
        return len(last) == CALM_CHECKPOINTS and all(100 * each.bytes_new < each.bytes_full for each in last)

    def change(self, number: int) -> tuple[int, int]:
        """Let 1 % of the keys change: bytes written for it, and the full size before."""
        before = self._completed()[-1]
        (self._folder / f"change-{number}").touch()
        written = [each for each in self._covering(number) if each.checkpoint_id > before.checkpoint_id]
        return sum(each.bytes_new for each in written), before.bytes_full

    def _covering(self, change: int) -> list[Any]:
        """All completed checkpoints, up to the first that was triggered when a change had left the sources."""
        emitted = [self._folder / f"emitted-{change}-{share}" for share in range(self._parallelism)]
        self._wait(lambda: all(path.exists() for path in emitted))
        # Trigger times are milliseconds of the wall clock.
        since_ms = time.time_ns() // 1_000_000 + 1
        self._wait(lambda: self._completed()[-1:] and self._completed()[-1].triggered_ms > since_ms)
        done = self._completed()
        first = next(i for i, each in enumerate(done) if each.triggered_ms > since_ms)
        return done[: first + 1]

    def _completed(self) -> list[Any]:
        return [each for each in self._client.checkpoints().history if each.status == "completed"]

    def _wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if self._client.status().is_terminal:
                self._client.result()
                raise SystemExit("the job has ended by itself")
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {DEADLINE_S:g} s: {self._client.checkpoints()}")
            time.sleep(0.01)


def main() -> None:
    """Run and report."""
    args = protocol.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tidegate-") as folder:
        notes = Path(folder)
        env = environment(args, notes, mini_batch=True)
        keys = env.from_source(KeysSource(args.records, notes), name="keys")
        keys.key_by("user_id").count().sink_to(ProbeSink(notes, UserCounts))
        client = env.execute_async("increment")
        changes = Changes(client, notes, args.parallelism)
        full, loaded = changes.full()
        measured = [changes.change(number) for number in range(1, CHANGES + 1)]
        client.result()
        seen = read_notes(notes)
    percent = [100 * written / whole for written, whole in measured]
    changed = sum(len(range(k, args.records, ONE_IN)) for k in range(1, CHANGES + 1))
    found = {key: sum(s[key] for s in seen.sinks) for key in ("records", "keys")}
    if found["records"] != args.records + changed:
        raise SystemExit(f"counted {found['records']} records, not {args.records + changed}")
    protocol.report(
        version=tidegate.__version__,
        records=0,
        seconds=(seen.last_ns - seen.first_ns) / 1e9,
        startup_s=protocol.seconds_since_start(seen.first_ns),
        cpu_s=seen.cpu_s,
        check={"keys": found["keys"]},
        setting=f"{args.state_backend} backend, 1 % of the keys changed, {CHANGES} times",
        extra={
            "full_mb": round(full.bytes_full / 1e6, 1),
            "load_mb": round(loaded / 1e6, 1),
            "increment_percent": round(median(percent), 2),
            "largest_increment_percent": round(max(percent), 2),
            **checkpoint_figures(client),
        },
    )


if __name__ == "__main__":
    main()
