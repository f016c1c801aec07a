"""From rounds to rows: medians, ratios, `results/latest.json` and `docs/benchmarks.md`."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.cases import OURS

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HEADINGS = (
    *("Workload", "Engine", "Version", "Records/s", "CPU s per million", "p50 ms", "p99 ms", "Ratio"),
    *("Start-up s", "Setting"),
)
ROUND_KEYS = ("records", "seconds", "cpu_s", "startup_s", "load")
Row = dict[str, Any]


def rows(series: list[tuple[str, str, list[dict[str, Any]]]]) -> list[Row]:
    """One row for each (workload, engine, rounds), with medians over the rounds and ratios within this run."""
    made = [_row(workload, engine, rounds) for workload, engine, rounds in series]
    add_ratios(made, made)
    return made


def _row(workload: str, engine: str, rounds: list[dict[str, Any]]) -> Row:
    def middle(key: str, digits: int) -> float | None:
        values = [each[key] for each in rounds if key in each]
        return round(median(values), digits) if values else None

    return {
        "workload": workload,
        "engine": engine,
        "version": rounds[-1]["version"],
        "records_per_s": round(median(each["records"] / each["seconds"] for each in rounds)),
        "cpu_s_per_million": round(median(each["cpu_s"] / each["records"] * 1e6 for each in rounds), 4),
        "p50_ms": middle("p50_ms", 4),
        "p99_ms": middle("p99_ms", 4),
        "ratio": None,
        "cpu_ratio": None,
        "startup_s": middle("startup_s", 2),
        "setting": rounds[-1].get("setting"),
        "rounds": [{key: each[key] for key in ROUND_KEYS} for each in rounds],
    }


def add_ratios(measured: list[Row], ours_from: list[Row]) -> None:
    """Set `ratio` of each peer's row: how many times faster ours is (latency: how many times shorter its p99)."""
    ours = {row["workload"]: row for row in ours_from if row["engine"] == OURS}
    for row in measured:
        own = ours.get(row["workload"])
        if own is None or row["engine"] == OURS:
            continue
        if row["p99_ms"] is not None and own["p99_ms"]:
            row["ratio"] = round(row["p99_ms"] / own["p99_ms"], 2)
        else:
            row["ratio"] = round(own["records_per_s"] / row["records_per_s"], 2)
        if own["cpu_s_per_million"]:
            row["cpu_ratio"] = round(row["cpu_s_per_million"] / own["cpu_s_per_million"], 2)


def store(measured: list[Row], complete: set[str], command: str) -> list[Path]:
    """Write the rows: workloads in `complete` into `latest.json` and the page, the others into `partial.json`.

    Ours alone is put beside the peers' rows of `latest.json`, with ratios to those.
    """
    RESULTS.mkdir(exist_ok=True)
    latest, partial = RESULTS / "latest.json", RESULTS / "partial.json"
    at = datetime.now(UTC).isoformat(timespec="seconds")
    measured = [row | {"measured_at": at, "command": command} for row in measured]
    before: list[Row] = json.loads(latest.read_text()) if latest.exists() else []
    written = []
    if complete:
        whole = [row for row in measured if row["workload"] in complete]
        merged = [row for row in before if row["workload"] not in complete] + whole
        latest.write_text(json.dumps(merged, indent=1) + "\n")
        PAGE.write_text(page(merged))
        written += [latest, PAGE]
    rest = [row for row in measured if row["workload"] not in complete]
    if rest:
        known = {(row["workload"], row["engine"]) for row in rest}
        workloads = {row["workload"] for row in rest}
        peers = [row for row in before if row["workload"] in workloads]
        peers = [row for row in peers if (row["workload"], row["engine"]) not in known]
        add_ratios(peers, rest)
        partial.write_text(json.dumps(rest + peers, indent=1) + "\n")
        written.append(partial)
    return written


def table(measured: list[Row]) -> Table:
    """The rows for the terminal."""
    shown = Table(*HEADINGS[:-2], "Load")
    for row in measured:
        loads = [each["load"] for each in row["rounds"]]
        shown.add_row(*_cells(row), f"{min(loads)}–{max(loads)}")
    return shown


def _cells(row: Row) -> list[str]:
    def text(value: Any, form: str = "") -> str:
        return "" if value is None else format(value, form)

    return [
        row["workload"],
        row["engine"],
        row["version"],
        text(row["records_per_s"], ",") if row["p99_ms"] is None else "",
        text(row["cpu_s_per_million"], ".3f"),
        text(row["p50_ms"], ".3f"),
        text(row["p99_ms"], ".3f"),
        text(row["ratio"], ".1f"),
    ]


def page(measured: list[Row]) -> str:
    """The Markdown page."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`; do not edit. Medians; the engines of a workload take turns within each round.",
        "A rate counts from the first record read to the last result; start-up is given apart. `ratio` is how many",
        "times tidegate is faster than that engine in the same run (for latency: how many times shorter its p99 is).",
        "CPU is user plus system time of the engine's whole process tree, JVM included, from the job's submission:",
        "planning, deployment and worker start-up are in it, though not in the rate. tidegate's own (but for latency)",
        "is that of the slots' processes from the first read to the last result, so CPU must not be compared by ratio.",
        "",
        f"Machine: {os.cpu_count()} cores, {platform.machine()}, {platform.system()}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        "| " + " | ".join([*_cells(row), format(row["startup_s"], ".1f"), row["setting"] or ""]) + " |"
        for row in measured
    ]
    lines += ["", "## Commands", "", "```"]
    lines += dict.fromkeys(f"{row['command']}    # {row['measured_at']}" for row in measured)
    return "\n".join([*lines, "```", ""])
