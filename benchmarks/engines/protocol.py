"""What every runner shares: its arguments, CPU time of its process tree, and the one JSON line it ends with.

Standard library only, because each runner is started in its engine's own virtual environment.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import windows

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _process_started_ns() -> int:
    with open("/proc/self/stat") as file:
        started_ticks = int(file.read().rpartition(")")[2].split()[19])
    return (
        time.time_ns()
        - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        + started_ticks * 1_000_000_000 // _TICKS_PER_S
    )


_STARTED_NS = _process_started_ns()
# Workers whose parent has gone become children of this process, so that their CPU time is not lost.
_PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that the harness gives to every runner; a runner may ignore those it has no use for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="directory with parquet/ and json/")
    parser.add_argument("--records", type=int, required=True, help="records that the data holds")
    parser.add_argument("--format", choices=["json", "parquet"], default="json")
    parser.add_argument("--mode", choices=["each", "mini_batch"], default="each")
    parser.add_argument("--windows", choices=windows.KINDS, default="tumbling")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1, help="read the files that many times over")
    parser.add_argument("--checkpoint-interval", type=float, default=0.0, help="seconds; 0: no checkpoints")
    parser.add_argument("--state-backend", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--chain-length", type=int, default=1)
    parser.add_argument("--rate", type=int, default=10_000, help="records per second, for latency")
    parser.add_argument("--warmup-s", type=float, default=5.0, help="seconds not counted, for latency")
    parser.add_argument("--measure-s", type=float, default=20.0, help="seconds counted, for latency")
    return parser


def tree_cpu_s(root: int | None = None) -> float:
    """User plus system seconds so far of the process `root` (this one), its descendants, and those it reaped."""
    processes: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # After the command name: state, ppid, ... utime, stime, cutime, cstime at 11 to 14.
            processes[int(entry)] = (int(fields[1]), sum(int(field) for field in fields[11:15]))
    wanted = {root or os.getpid()}
    grown = True
    while grown:
        grown = False
        for pid, (parent, _) in processes.items():
            if parent in wanted and pid not in wanted:
                wanted.add(pid)
                grown = True
    return sum(processes[pid][1] for pid in wanted if pid in processes) / _TICKS_PER_S


def seconds_since_start(now_ns: int) -> float:
    """Seconds from this process's start to `now_ns` (of `time.time_ns`): an engine's start-up."""
    return (now_ns - _STARTED_NS) / 1e9


@contextlib.contextmanager
def files_of(args: argparse.Namespace) -> Iterator[Path]:
    """The directory of the data's files in `--format`; with `--repeat`, one with as many links to each of them."""
    directory: Path = args.data / args.format
    if args.repeat == 1:
        yield directory
        return
    # Beside the data: hard links do not cross filesystems, and not every reader follows symbolic ones.
    with tempfile.TemporaryDirectory(prefix="repeated-", dir=args.data) as folder:
        for number in range(args.repeat):
            for path in sorted(directory.glob("part-*")):
                os.link(path, Path(folder) / f"part-{number:03d}-{path.name}")
        yield Path(folder)


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` of the already sorted values lie (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(
    *,
    version: str,
    records: int,
    seconds: float,
    startup_s: float,
    cpu_s: float,
    check: dict[str, Any],
    **more: Any,
) -> None:
    """Print the result as the last line of standard output; `check` is compared by the harness with the truth."""
    result = {
        "version": version,
        "records": records,
        "seconds": round(seconds, 6),
        "startup_s": round(startup_s, 3),
        "cpu_s": round(cpu_s, 3),
        "check": check,
        **more,
    }
    print(json.dumps(result), flush=True)
