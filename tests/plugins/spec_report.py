"""Which rows of the specification are shown by a passing test: the mark `spec` and the `--spec-report`.

A row is shown when at least one test that carries its id passed in this run and none failed. An id that is
not in rows.toml stops the run at collection, before any test. In a run of several processes (pytest-xdist) the
workers collect the marks and hand them over when they end; the process that distributes the tests reports.
"""

from __future__ import annotations

import difflib
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

ROWS_FILE = Path(__file__).parent.parent / "spec" / "rows.toml"
TITLE_WIDTH = 100
HANDED_OVER = "tidegate_spec"
"""The key of what a worker hands over."""


def load_rows(path: Path = ROWS_FILE) -> dict[str, str]:
    """The title of each row by its id, in the order of the specification."""
    with path.open("rb") as file:
        return {row["id"]: row["title"] for row in tomllib.load(file)["row"]}


def nearest_id(wrong: str, ids: Iterable[str]) -> str:
    """The id most like a mistyped one: the longest common beginning first, then general likeness."""
    normal = wrong.strip().upper().replace("_", "-")

    def likeness(known: str) -> tuple[int, float]:
        beginning = takewhile(lambda pair: pair[0] == pair[1], zip(normal, known, strict=False))
        return len(list(beginning)), difflib.SequenceMatcher(None, normal, known).ratio()

    return max(ids, key=likeness)


@dataclass
class Evidence:
    """What the marked tests of one row did in this run, by test name without parameters."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    not_run: set[str] = field(default_factory=set)

    @property
    def is_shown(self) -> bool:
        return bool(self.passed) and not self.failed


def report_lines(rows: Mapping[str, str], evidence: Mapping[str, Evidence]) -> Iterator[str]:
    """The report: two groups of rows, then the line with the total."""
    shown = [row for row in rows if row in evidence and evidence[row].is_shown]
    missing = [row for row in rows if row not in shown]
    for heading, group in (("shown", shown), ("not shown", missing)):
        yield f"{heading}:"
        for row in group:
            title = rows[row]
            yield f"  {row:<6} {title if len(title) <= TITLE_WIDTH else title[: TITLE_WIDTH - 1] + '…'}"
            found = evidence.get(row, Evidence())
            for outcome, names in (
                ("passed", found.passed),
                ("FAILED", found.failed),
                ("did not run", found.not_run - found.passed - found.failed),
            ):
                for name in sorted(names):
                    yield f"         {outcome}: {name}"
    yield f"spec: {len(shown)} of {len(rows)} rows shown"


class SpecReport:
    """Collects the outcomes of marked tests; one per pytest run."""

    def __init__(self, rows: Mapping[str, str]) -> None:
        self.rows = rows
        self.ids_of_test: dict[str, list[str]] = {}
        self.problems: list[str] = []
        self.phases: defaultdict[str, list[pytest.TestReport]] = defaultdict(list)
        self.finished = False

    @pytest.hookimpl(tryfirst=True)  # before -m and -k deselect: a wrong id is refused wherever it stands
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        problems = self.problems
        for item in items:
            ids: list[str] = []
            for mark in item.iter_markers("spec"):
                if not mark.args or mark.kwargs:
                    problems.append(f'{item.nodeid}: the mark spec takes one or more row ids: spec("S3-16")')
                ids.extend(str(id_) for id_ in mark.args)
            problems.extend(
                f"{item.nodeid}: no row {wrong!r} in the specification. "
                f"Did you mean {nearest_id(wrong, self.rows)!r}?"
                for wrong in ids
                if wrong not in self.rows
            )
            if ids:
                self.ids_of_test[item.nodeid] = ids
        if problems and is_worker(config):
            items.clear()  # told when this process ends; it cannot stop the others
        elif problems:
            raise pytest.UsageError("\n".join(problems))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.phases[report.nodeid].append(report)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        self.finished = exitstatus not in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR)
        if is_worker(session.config):
            session.config.workeroutput[HANDED_OVER] = (self.ids_of_test, self.problems)  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        ids_of_test, problems = getattr(node, "workeroutput", {}).get(HANDED_OVER, ({}, ()))
        self.ids_of_test.update(ids_of_test)
        if problems:
            raise pytest.UsageError("\n".join(problems))

    def evidence(self) -> dict[str, Evidence]:
        """What was seen of each marked row."""
        found: defaultdict[str, Evidence] = defaultdict(Evidence)
        for nodeid, ids in self.ids_of_test.items():
            phases = self.phases.get(nodeid, [])
            name = nodeid.partition("[")[0]
            for row in ids:
                if any(phase.failed for phase in phases):
                    found[row].failed.add(name)
                elif any(p.when == "call" and p.passed and not hasattr(p, "wasxfail") for p in phases):
                    found[row].passed.add(name)
                else:
                    found[row].not_run.add(name)
        return found


def is_worker(config: pytest.Config) -> bool:
    """Whether this process runs tests that another one distributes."""
    return hasattr(config, "workerinput")


REPORT = pytest.StashKey[SpecReport]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spec-report",
        action="store_true",
        help="end with the list of specification rows, each shown or not shown by a passing test",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spec(*ids): the rows of the specification that this test observes")
    config.stash[REPORT] = report = SpecReport(load_rows())
    config.pluginmanager.register(report, "spec-report-collector")


def pytest_unconfigure(config: pytest.Config) -> None:
    # Not in pytest_terminal_summary: pytest prints its own totals after that, and ours is the last line.
    report = config.stash.get(REPORT, None)
    if report is None or not report.finished or is_worker(config) or not config.getoption("--spec-report"):
        return
    writer = config.get_terminal_writer()
    writer.sep("=", "specification")
    for line in report_lines(report.rows, report.evidence()):
        writer.line(line)
