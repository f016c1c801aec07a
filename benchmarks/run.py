"""Run tidegate and its peers on the same data, interleaved, and write medians and ratios.

    python benchmarks/run.py                             everything, three rounds
    python benchmarks/run.py --only tidegate             only tidegate, compared with the peers' last figures
    python benchmarks/run.py --workload pv_json --rounds 1

A workload that all its engines have run is replaced in `benchmarks/results/latest.json` and `docs/benchmarks.md`;
other measurements go to `benchmarks/results/partial.json`. Each runner is a subprocess that ends with one line of
JSON (`engines/protocol.py`); its `check` must agree with what the data generator knows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import data, events, report
from benchmarks.cases import CASES, ENGINES, FAMILIES, WORKLOADS, Case, Engine
from benchmarks.engines import python_chain, stateful_function
from benchmarks.environments import EnvironmentFailed, python_of

RUNNERS = Path(__file__).parent / "engines"
DEFAULT_RECORDS = 10_000_000
DEFAULT_ROUNDS = 3
TIMEOUT_S = 600
Say = Callable[[str], None]


class RunFailed(Exception):
    """One runner failed; the message is for the user."""


@dataclass
class Series:
    """The rounds of one engine in one case."""

    case: Case
    engine: Engine
    rounds: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None


def dataset(case: Case, records: int) -> Path:
    """The directory of the records that a case reads, made now if necessary."""
    if case.data == "clicks":
        return data.clicks(records).directory
    if case.data == "events":
        return events.events(records).directory
    return data.visits(records).directory if case.data == "visits" else data.ROOT


def truth(case: Case, records: int, repeats: int) -> dict[str, Any]:
    """The valid content of a runner's `check` in that case."""
    if case.data == "visits":
        visits = data.visits(records)
        return {"records": visits.records, "keys": visits.keys}
    if case.data == "events":
        found = events.events(records)
        kind = case.arguments[case.arguments.index("--windows") + 1]
        return {"records": found.records, **found.truth[kind]}
    if case.data == "":
        return {"keys": records}
    if case.script == "latency":
        return {}
    clicks = data.clicks(records)
    known: dict[str, Any] = {"records": clicks.records * repeats, "apps": clicks.apps}
    known["top_count"] = clicks.top_count * repeats
    if case.workload == "python_chain":
        once = _stored(
            clicks.directory / "python-chain-truth.json",
            lambda: python_chain.truth(python_chain.read_clicks(clicks.json_lines)),
        )
        known |= {name: number * repeats for name, number in once.items()}  # both are sums over the records
    if case.workload == "stateful_function":
        known |= _stored(
            clicks.directory / "stateful-function-truth.json",
            lambda: stateful_function.truth(stateful_function.read_visits(clicks.json_lines)),
        )
    return known


def _stored(path: Path, find: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Values that take long to compute are computed once."""
    if not path.exists():
        path.write_text(json.dumps(find()))
    found: dict[str, int] = json.loads(path.read_text())
    return found


def run_once(case: Case, engine: Engine, asked: int) -> dict[str, Any]:
    """Run one engine once; its result, checked, with the machine's load before it."""
    script = RUNNERS / f"{engine.prefix}_{case.script}.py"
    if not script.exists():
        raise RunFailed(f"no runner {script.name}")
    records, repeats = case.records_for(engine, asked), case.repeats_of(engine)
    directory = dataset(case, records)
    command = [str(python_of(engine.environment)), str(script), "--data", str(directory)]
    command += ["--records", str(records), "--repeat", str(repeats), *case.arguments, *engine.arguments]
    load = os.getloadavg()[0]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"not finished after {TIMEOUT_S} s") from error
        finally:
            # The runner's own process group contains all processes that the engine left, and no others.
            _kill_group(process.pid)
            process.wait()
            for left in directory.glob("repeated-*"):
                shutil.rmtree(left, ignore_errors=True)
        errors.seek(0)
        tail = errors.read()[-1500:]
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise RunFailed(f"ended with {process.returncode}: {tail.strip()}")
    result: dict[str, Any] = json.loads(lines[-1])
    known = truth(case, records, repeats)
    wrong = {key: value for key, value in result["check"].items() if key in known and known[key] != value}
    if wrong:
        raise RunFailed(f"wrong result: {wrong}, but the data says {known}")
    return result | {"load": round(load, 2)}


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def measure(series: list[Series], rounds: int, asked: int, say: Say, done: Callable[[], None]) -> None:
    """Fill the series: all cases and engines of a workload in turn, then again, so that noise affects all equally."""
    for workload in dict.fromkeys(each.case.workload for each in series):
        for number in range(1, rounds + 1):
            for each in series:
                last = each.case.rounds(rounds)
                if each.case.workload != workload or number > last:
                    continue
                say(f"{each.case.name} · {each.engine.name} · round {number} of {last}")
                if each.failure is None:
                    try:
                        each.rounds.append(run_once(each.case, each.engine, asked))
                    except (RunFailed, EnvironmentFailed) as error:
                        each.failure = str(error)
                done()


def main() -> int:
    """Measure the requested workloads; return 1 if an engine failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"engines, comma-separated, of {', '.join(FAMILIES)}")
    parser.add_argument(
        "--workload", default="", help=f"workloads, comma-separated, of {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--records", type=int, default=DEFAULT_RECORDS)
    args = parser.parse_args()
    families = _chosen(parser, "--only", args.only, FAMILIES)
    workloads = _chosen(parser, "--workload", args.workload, WORKLOADS)
    series = [
        Series(case, ENGINES[name])
        for case in CASES
        if case.workload in workloads
        for name in case.engines
        if ENGINES[name].family in families
    ]
    console = Console() if sys.stdout.isatty() else Console(width=160)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("data", total=sum(each.case.rounds(args.rounds) for each in series))
        read = [each for each in series if each.case.data]
        for directory in {
            dataset(each.case, each.case.records_for(each.engine, args.records)) for each in read
        }:
            data.warm(directory)

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(text)

        measure(series, args.rounds, args.records, say, lambda: progress.advance(task))
    rows = report.rows([(each.case.name, each.engine.name, each.rounds) for each in series if each.rounds])
    failures = [each for each in series if each.failure]
    complete: set[str] = set()
    if not args.only and args.records == DEFAULT_RECORDS:
        complete = {each.case.name for each in series} - {each.case.name for each in failures}
    written = report.store(rows, complete, " ".join(["python benchmarks/run.py", *sys.argv[1:]]))
    console.print(report.table(rows))
    console.print("written:", *(str(path.name) for path in written))
    for each in failures:
        console.print(f"[red]{each.case.name} · {each.engine.name}: {each.failure}", soft_wrap=True)
    return 1 if failures else 0


def _chosen(
    parser: argparse.ArgumentParser, option: str, text: str, known: tuple[str, ...]
) -> tuple[str, ...]:
    chosen = tuple(name for name in text.split(",") if name) or known
    for name in chosen:
        if name not in known:
            parser.error(f"{option}: unknown {name!r}; known are {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
