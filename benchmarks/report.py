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

from benchmarks.cases import OURS, OURS_ON_ROCKSDB, OURS_WITHOUT_CHECKPOINTS

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HEADINGS = (
    *("Workload", "Engine", "Version", "Records/s", "CPU s per million", "p50 ms", "p99 ms", "Ratio"),
    *("Start-up s", "Setting"),
)
ROUND_KEYS = ("records", "seconds", "cpu_s", "startup_s", "load")
UNITS = {"ms": " ms", "s": " s", "mb": " MB", "percent": " %"}
Row = dict[str, Any]


def rows(series: list[tuple[str, str, list[dict[str, Any]]]]) -> list[Row]:
    """One row for each (workload, engine, rounds), with medians over the rounds and ratios within this run."""
    made = [_row(workload, engine, rounds) for workload, engine, rounds in series]
    add_ratios(made, made)
    add_checkpoint_costs(made)
    return made


def _row(workload: str, engine: str, rounds: list[dict[str, Any]]) -> Row:
    def middle(key: str, digits: int) -> float | None:
        values = [each[key] for each in rounds if key in each]
        return round(median(values), digits) if values else None

    return {
        "workload": workload,
        "engine": engine,
        "version": rounds[-1]["version"],
        # A workload that does not count records has none.
        "records_per_s": round(median(_rate(each) for each in rounds)) or None,
        "cpu_s_per_million": (
            round(median(each["cpu_s"] / each["records"] * 1e6 for each in rounds), 4)
            if all(each["records"] for each in rounds)
            else None
        ),
        "p50_ms": middle("p50_ms", 4),
        "p99_ms": middle("p99_ms", 4),
        "ratio": None,
        "ratio_rocksdb": None,
        "cpu_ratio": None,
        "startup_s": middle("startup_s", 2),
        "setting": rounds[-1].get("setting"),
        "extra": _medians([each.get("extra", {}) for each in rounds]),
        "rounds": [{key: each[key] for key in ROUND_KEYS} for each in rounds],
    }


def _rate(each: dict[str, Any]) -> float:
    rate: float = each["records"] / each["seconds"]
    return rate


def _medians(extras: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for extra in extras for name in extra)
    return {name: round(median(extra[name] for extra in extras if name in extra), 3) for name in names}


def add_ratios(measured: list[Row], ours_from: list[Row]) -> None:
    """Set `ratio` of each other row: how many times faster tidegate is (latency: how many times shorter its p99).

    `ratio_rocksdb` of a peer's row is the same for tidegate on the RocksDB backend, where that was measured.
    """
    ours = {row["workload"]: row for row in ours_from if row["engine"] == OURS}
    on_rocksdb = {row["workload"]: row for row in ours_from if row["engine"] == OURS_ON_ROCKSDB}
    for row in measured:
        own = ours.get(row["workload"])
        if own is None or row["engine"] == OURS:
            continue
        row["ratio"] = _ratio(own, row)
        if row["workload"] in on_rocksdb and row["engine"] != OURS_ON_ROCKSDB:
            row["ratio_rocksdb"] = _ratio(on_rocksdb[row["workload"]], row)
        if own["cpu_s_per_million"]:
            row["cpu_ratio"] = round(row["cpu_s_per_million"] / own["cpu_s_per_million"], 2)


def _ratio(own: Row, row: Row) -> float | None:
    if row["p99_ms"] is not None and own["p99_ms"]:
        return round(row["p99_ms"] / own["p99_ms"], 2)
    if row["records_per_s"] is None or own["records_per_s"] is None:
        return None
    return round(own["records_per_s"] / row["records_per_s"], 2)


def add_checkpoint_costs(measured: list[Row]) -> None:
    """Add to tidegate's rows how much slower it is with checkpoints: the median over pairs of neighbouring runs."""
    without = {row["workload"]: row for row in measured if row["engine"] == OURS_WITHOUT_CHECKPOINTS}
    for row in measured:
        if row["engine"] == OURS and row["workload"] in without:
            pairs = zip(row["rounds"], without[row["workload"]]["rounds"], strict=False)
            costs = [100 * (1 - _rate(with_them) / _rate(none)) for with_them, none in pairs]
            row["extra"] = {"checkpoints_cost_percent": round(median(costs), 1), **row["extra"]}


def store(measured: list[Row], complete: set[str], command: str) -> list[Path]:
    """Write the rows: workloads in `complete` into `latest.json` and the page, the others into `partial.json`.

    If only tidegate ran, its rows are compared with the peers' rows of `latest.json`.
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
    shown = Table(*HEADINGS[:-2], "Load", HEADINGS[-1])
    for row in measured:
        loads = [each["load"] for each in row["rounds"]]
        shown.add_row(*_cells(row), f"{min(loads)}–{max(loads)}", _setting(row))
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
        _ratios(row),
    ]


def _ratios(row: Row) -> str:
    if row["ratio"] is None:
        return ""
    if row["engine"].startswith(OURS):
        return format(row["ratio"], ".2f")
    rocksdb = row.get("ratio_rocksdb")
    return format(row["ratio"], ".1f") + ("" if rocksdb is None else f" (rocksdb {rocksdb:.1f})")


def _setting(row: Row) -> str:
    """The engine's setting, and other measured figures: `longest_sync_ms` is shown as `longest sync 3.1 ms`."""
    parts = [row["setting"]] if row["setting"] else []
    for name, value in (row.get("extra") or {}).items():
        words = name.split("_")
        unit = UNITS.get(words[-1], "")
        parts.append(" ".join([*(words[:-1] if unit else words), f"{value:,.6g}{unit}"]))
    return ", ".join(parts)


def page(measured: list[Row]) -> str:
    """The Markdown page."""
    lines = [
        "# Benchmarks",
        "",
        "`make bench` makes this page; do not edit it. All figures are medians. The engines of a workload take turns",
        "within each round.",
        "",
        "- **Records/s** counts from the first record read to the last result. Start-up is a separate column.",
        "- **Ratio** says how many times faster tidegate is than that engine in the same run (for latency: how many",
        "  times shorter its p99 is). In brackets: the same for tidegate on the RocksDB backend. In a row of tidegate",
        "  itself, it compares with the standard tidegate of that workload: on the heap backend, with checkpoints",
        "  where they are measured.",
        "- **CPU** is user plus system time of the engine's whole process tree, JVM included, from the job's",
        "  submission. It includes planning, deployment and worker start-up; the rate does not. For tidegate (except",
        "  for latency) it is the time of the slots' processes from the first read to the last result. So do not",
        "  compare CPU by ratio.",
        "",
        "`benchmarks/README.md` explains the workloads and the figures in the column Setting.",
        "",
        f"Machine: {os.cpu_count()} cores, {platform.machine()}, {platform.system()}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        "| " + " | ".join([*_cells(row), format(row["startup_s"], ".1f"), _setting(row)]) + " |"
        for row in measured
    ]
    lines += ["", "## Commands", "", "```"]
    lines += dict.fromkeys(f"{row['command']}    # {row['measured_at']}" for row in measured)
    return "\n".join([*lines, "```", ""])
