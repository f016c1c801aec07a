"""A live Flink for comparisons: the same cases as jobs of its DataStream API, all in one JVM.

apache-flink is in an environment of its own, which is made now if it is not there yet; that takes minutes.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines.flink_java import compiled
from benchmarks.environments import python_of
from tests.event_time import reference as ref
from tests.event_time.jobs import Branch, Case, Click, Found

HERE = Path(__file__).parent


@dataclass(frozen=True)
class JoinCase:
    """Two streams without late records, and the bounds of several joins of them."""

    left: list[Click]
    right: list[Click]
    delay: int
    bounds: tuple[tuple[int, int], ...]
    seed: int


def run_flink(folder: Path, cases: dict[str, Case | JoinCase]) -> dict[str, list[list[str]]]:
    """What Flink finds in each of the cases: lines of words, in no order."""
    return _run("FlinkWindows.java", folder, {f"{name}.case": _lines(case) for name, case in cases.items()})


def run_scripts(folder: Path, scripts: dict[str, list[str]]) -> dict[str, list[list[str]]]:
    """The same for scripts of joins; see FlinkJoins.java for their lines."""
    return _run("FlinkJoins.java", folder, {f"{name}.script": lines for name, lines in scripts.items()})


def _run(program: str, folder: Path, files: dict[str, list[str]]) -> dict[str, list[list[str]]]:
    for file, lines in files.items():
        (folder / file).write_text("\n".join(lines) + "\n")
    (libraries,) = (python_of("flink").parent.parent / "lib").glob("python*/site-packages")
    classes = folder / "classes"
    classes.mkdir()
    done = subprocess.run(
        [*compiled(HERE / program, classes, libraries), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    found = {(folder / file).stem: (folder / file).with_suffix(".found").read_text() for file in files}
    return {name: [line.split(" ") for line in text.splitlines()] for name, text in found.items()}


def _lines(case: Case | JoinCase) -> list[str]:
    lines = [f"delay {case.delay}"]
    if isinstance(case, JoinCase):
        lines += [f"join {number} {lower} {upper}" for number, (lower, upper) in enumerate(case.bounds)]
        sides = {"left": case.left, "right": case.right}
    else:
        lines += [_windows(number, branch) for number, branch in enumerate(case.branches)]
        sides = {"left": case.events}
    return lines + [f"{side} {e.key} {e.ts} {e.value}" for side, events in sides.items() for e in events]


def _windows(number: int, branch: Branch) -> str:
    w, when = branch.windows, branch.when
    assert when.kind in ("end", "count"), "the others differ from Flink's, see docs/design/0007-event-time.md"
    count, purging = (when.number, when.purging) if when.kind == "count" else (0, False)
    words = (number, w.kind, w.size, w.slide, w.offset, branch.lateness, count, str(purging).lower())
    return f"windows {' '.join(map(str, words))}"


def as_found(case: Case, lines: list[list[str]]) -> Counter[Found]:
    """Flink's panes and late records as our job tells its own."""
    found: Counter[Found] = Counter()
    for kind, number, key, *rest in lines:
        if kind == "pane":
            start, end, values = rest
            compute = ref.RESULTS[case.branches[int(number)].what]
            result = compute(tuple(int(value) for value in values.split(",")))
            found[Found(int(number), key, int(start), int(end), str(result))] += 1
        else:
            assert kind == "late", kind
            ts, value = rest
            found[Found(int(number), key, -1, int(ts), value)] += 1
    return found
