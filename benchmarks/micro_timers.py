"""A million pending timers: what registering, firing, a snapshot and a restore cost, on each state backend.

    python benchmarks/micro_timers.py [--timers 1000000] [--backend heap]

CPU time of this process. One key per timer. The timers are for 1,000 different times (windows of many keys), or all
differ. The last line puts the same keys into one plain dict; it shows how fast the machine is at the moment.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate import Environment
from tidegate.core.clock import SystemClock
from tidegate.core.ids import JobId
from tidegate.core.key_groups import KeyGroupRange
from tidegate.records.types import record_type_of
from tidegate.snapshot.handles import KeyedStateHandle
from tidegate.state.backend import BackendContext, KeyedStateBackend
from tidegate.state.backends import make_backend
from tidegate.state.timers import TimerService
from tidegate.storage.filesystem import FilesystemStorage


def cpu(action: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the seconds."""
    start = time.process_time()
    result = action()
    return result, time.process_time() - start


class Run:
    """One backend after the other, with checkpoints in a directory."""

    def __init__(self, kind: str, directory: str) -> None:
        self.kind = kind
        self.directory = Path(directory)
        self.storage = FilesystemStorage(str(self.directory / "checkpoints"), JobId("0" * 32), sync=False)
        self.made = 0

    def backend(self, restore: KeyedStateHandle | None = None) -> KeyedStateBackend:
        self.made += 1
        local = self.directory / f"local-{self.made}"
        local.mkdir()
        groups = KeyGroupRange(0, 127)
        context = BackendContext(
            "timers",
            0,
            self.made,
            record_type_of(str),
            groups,
            128,
            SystemClock(),
            Environment(state_backend=self.kind).options,
            lambda: str(local),
        )
        made = make_backend(context)
        if restore is not None:
            made.restore([restore], self.storage)
        return made

    def checkpoint(
        self, backend: KeyedStateBackend, timers: TimerService, checkpoint_id: int
    ) -> tuple[KeyedStateHandle, float, float]:
        """The handle, the synchronous and the asynchronous seconds."""

        def freeze() -> Any:
            timers.snapshot()
            return backend.snapshot(checkpoint_id)

        part, synchronous = cpu(freeze)
        writer = self.storage.writer(checkpoint_id, 0, "timers", 0)
        handle, asynchronous = cpu(lambda: part(writer))
        backend.checkpoint_completed(checkpoint_id)
        return handle, synchronous, asynchronous


def register(timers: TimerService, keys: list[str], times: list[int]) -> None:
    one = timers.register_event_time
    for key, at in zip(keys, times, strict=True):
        one(key, at)


def measure(run: Run, label: str, keys: list[str], times: list[int]) -> None:
    count = len(keys)
    backend = run.backend()
    timers = TimerService(backend)
    _, registering = cpu(lambda: register(timers, keys, times))
    whole, sync_ms, async_ms = run.checkpoint(backend, timers, 1)
    timers.register_event_times(keys[:1000], [10**12] * 1000)
    few, few_ms, _ = run.checkpoint(backend, timers, 2)
    fired, firing = cpu(lambda: sum(1 for _ in timers.due_event_time(10**11)))
    assert fired == count
    _, gone_ms, _ = run.checkpoint(backend, timers, 3)
    _, together = cpu(lambda: timers.register_event_times(keys, times))
    backend.close()
    restored, restoring = cpu(lambda: TimerService(run.backend(whole)))
    assert restored.pending == count
    print(
        f"{run.kind}, {label}: register {1e9 * registering / count:.0f} ns "
        f"(many at once {1e9 * together / count:.0f}), "
        f"fire {1e9 * firing / count:.0f} ns; snapshot of all {1e3 * sync_ms:.0f} ms + {1e3 * async_ms:.0f} ms "
        f"asynchronous, {whole.bytes_new / 1e6:.1f} MB; of 1,000 new ones {1e3 * few_ms:.1f} ms, "
        f"{few.bytes_new / 1e3:.0f} kB; after all have fired {1e3 * gone_ms:.0f} ms; restore {1e3 * restoring:.0f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--backend", choices=["heap", "rocksdb"])
    arguments = parser.parse_args()
    count: int = arguments.timers
    pa.array(["the first list makes pyarrow import pandas"])
    chance = random.Random(1)
    keys = [f"user-{i}" for i in range(count)]
    for kind in [arguments.backend] if arguments.backend else ["heap", "rocksdb"]:
        few_times = [chance.randrange(1000) * 1000 for _ in range(count)]
        for label, times in (
            ("1,000 times", few_times),
            ("all times differ", chance.sample(range(10 * count), count)),
        ):
            with tempfile.TemporaryDirectory() as directory:
                measure(Run(kind, directory), label, keys, times)
    plain: dict[str, tuple[int, None]] = {}

    def fill() -> None:
        for key, at in zip(keys, times, strict=True):
            plain[key] = (at, None)

    print(f"a plain dict of tuples: {1e9 * cpu(fill)[1] / count:.0f} ns per key")


if __name__ == "__main__":
    main()
