"""Every script in `examples/`, run as its reader would run it: as a program, on a real Spark."""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.e2e.running import EXAMPLES, Finished, run_program

pytestmark = pytest.mark.timeout(300)  # the first that wants what was printed waits for all of them


def run_example(name: str, workspace: Path, *words: str) -> Finished:
    done = run_program([sys.executable, EXAMPLES / name, *words], workspace)
    assert done.code == 0, done.out + done.err
    return done


TOGETHER = {
    "connect_rules.py": (),
    "interval_join.py": (),
    "async_lookup.py": (),
    "side_outputs.py": (),
    "deduplicate.py": ("--state.backend=rocksdb",),
}
"""Scripts with their words: they run one after the other in one process, where their Spark is started once."""
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, runpy, sys
for sys.argv in json.loads(sys.argv[1]):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            assert not end.code, (sys.argv, end)
    print(json.dumps(printed.getvalue()))
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each of those scripts prints."""
    scripts = json.dumps([[str(EXAMPLES / name), *words] for name, words in TOGETHER.items()])
    workspace = tmp_path_factory.mktemp("together")
    done = run_program([sys.executable, "-c", ONE_AFTER_THE_OTHER, scripts], workspace, timeout_s=280)
    assert done.code == 0, done.out + done.err
    texts = [json.loads(line) for line in done.out.splitlines()]
    return {name: text.splitlines() for name, text in zip(TOGETHER, texts, strict=True)}


def test_every_example_is_run_by_a_test():
    tests = "".join(
        Path(__file__).with_name(f).read_text(encoding="utf-8")
        for f in ("test_examples.py", "test_submit.py")
    )
    assert [script.name for script in EXAMPLES.glob("*.py") if f'"{script.name}"' not in tests] == []


@pytest.mark.spec("S3-1")
def test_pv_count_runs_inside_spark_and_its_counts_equal_the_truth(tmp_path: Path):
    records, out = 200_000, tmp_path / "out"
    done = run_example("pv_count.py", tmp_path, "--records", str(records), "--out", str(out))
    lines = done.out.splitlines()
    assert lines[0] == "job 'pv count': 2 tasks, 2 slots needed (default 2)"
    assert lines[-1].endswith("equal to the truth")
    assert "NOT" not in lines[-1]
    assert any("pv count FINISHED" in line and "100%" in line for line in lines)
    assert any("  sink 'files' is exactly-once: " in line for line in lines)
    assert any("pv count FINISHED" in line and "checkpoint" in line for line in lines)
    # One result per click, counted here by hand: for every app the counts 1, 2, 3, ... and nothing else.
    counts: dict[str, list[int]] = {}
    for file in out.glob("part-*.json"):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            counts.setdefault(row["app_id"], []).append(row["count"])
    assert sum(map(len, counts.values())) == records
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
    # Spark is silent, but for a line of the Java machine; ours appears where the start takes long.
    known = ("incubator modules", "have started so far")
    assert [line for line in done.err.splitlines() if not any(part in line for part in known)] == []


@pytest.fixture
def pv_count() -> SimpleNamespace:
    """The functions of the example; `globals` is where they look each other up."""
    functions = runpy.run_path(str(EXAMPLES / "pv_count.py"), run_name="pv_count")
    return SimpleNamespace(**functions, globals=functions["count_clicks"].__globals__)


def test_truth_of_pv_count_is_what_the_generator_gives(pv_count: SimpleNamespace):
    import numpy as np

    for records in (1, 8191, 8192, 20_000):
        apps = pv_count.click(np.arange(records), np.random.default_rng(0))["app_id"]
        assert pv_count.true_counts(records) == Counter(apps.tolist())


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (lambda lines: lines, 0),
        (lambda lines: lines[:-1], 1),
        (lambda lines: [*lines, '{"app_id":"app-0999","count":5000}'], 1),
        (lambda lines: [line.replace('"count":1}', '"count":2}') for line in lines], 1),
        (lambda lines: [lines[0], *lines], 1),
    ],
    ids=["untouched", "a result lost", "a result too many", "counts changed", "a result twice"],
)
def test_pv_count_exits_0_only_if_the_files_hold_the_truth(
    pv_count: SimpleNamespace, tmp_path: Path, harm, code: int, capsys: pytest.CaptureFixture[str]
):
    def read_harmed_files(directory: Path) -> tuple[Counter[str], int]:
        (file, *_) = (f for f in sorted(directory.glob("part-*.json")) if f.stat().st_size)
        lines = file.read_text(encoding="utf-8").splitlines()
        file.write_text("".join(f"{line}\n" for line in harm(lines)), encoding="utf-8")
        return pv_count.read_results(directory)

    pv_count.globals["read_results"] = read_harmed_files
    options = ["--runtime", "in-process", "--progress", "off", "--checkpoint.interval", "off"]
    assert pv_count.count_clicks(1000, tmp_path, options) == code
    assert (
        capsys.readouterr()
        .out.rstrip()
        .endswith("NOT equal to the truth" if code else ": equal to the truth")
    )


def test_connect_rules_gives_an_alert_for_every_payment_over_its_limit(printed: dict[str, list[str]]):
    assert printed["connect_rules.py"] == [
        "payment 2: card of 2500.00",
        "payment 4: transfer of 10000.00",
        "payment 5: cash of 999.00",
    ]


def test_interval_join_finds_the_payment_of_each_order_and_those_without(printed: dict[str, list[str]]):
    assert printed["interval_join.py"] == [
        "order 1 of ann: paid after 570 s",
        "order 2 of bob: not paid in time",
        "order 3 of ann: paid after 90 s",
        "order 4 of eve: paid after 10 s",
        "order 5 of bob: paid after 60 s",
    ]


@pytest.mark.spec("S2-11")
def test_sessions_finds_the_visits_of_each_user_across_batches(tmp_path: Path):
    done = run_example("sessions.py", tmp_path, "--execution.batch-rows=100")
    assert done.out.splitlines() == [
        "the longest visit: user-5, 46 clicks on 23 pages",
        "5769 clicks, 809 visits: equal to the truth",
    ]


@pytest.mark.spec("S3-18")
def test_late_data_is_computed_again_or_handed_over(tmp_path: Path):
    lines = run_example("late_data.py", tmp_path).out.splitlines()
    missed = "too late: Reading(sensor='north', celsius=-40.0, second=30)"
    assert lines.count(missed) == 1
    assert [
        line for line in lines if line != missed
    ] == [  # the side output comes through a channel of its own
        "minute 00: 17.50 from 2 readings",
        "minute 00: 18.67 from 3 readings",
        "minute 01: 19.25 from 2 readings",
        "minute 03: 20.25 from 2 readings",
    ]


def test_async_lookup_has_an_answer_for_every_order_though_requests_get_lost(printed: dict[str, list[str]]):
    assert printed["async_lookup.py"] == ["1000 addresses for 1000 orders: all there, in order"]


def test_side_outputs_separates_good_lines_from_bad_ones(printed: dict[str, list[str]]):
    lines = printed["side_outputs.py"]
    rows = [line.split("> ", 1)[1] for line in lines]
    assert sorted(row for row in rows if row.startswith("BadLine")) == [
        "BadLine(line='north,warm', reason=\"could not convert string to float: 'warm'\")",
        "BadLine(line='south', reason=\"could not convert string to float: ''\")",
    ]
    warmest = [row for row in rows if row.startswith("Row(")]
    assert len(warmest) == 3
    assert {"Row(sensor='north', max_celsius=18.0)", "Row(sensor='south', max_celsius=21.0)"} <= set(warmest)
    assert all(line.startswith(("warmest:", "bad:")) for line in lines)


DEDUPLICATED = "1570 deliveries, 1000 orders let through, 570 dropped: equal to the truth"


def test_deduplicate_lets_each_order_through_once(printed: dict[str, list[str]]):
    assert printed["deduplicate.py"][-1] == DEDUPLICATED


def test_deduplicate_runs_without_spark_in_a_process_of_its_own(tmp_path: Path):
    done = run_example("deduplicate.py", tmp_path, "--runtime=in-process")
    assert done.out.splitlines()[-1] == DEDUPLICATED


@pytest.mark.spec("S3-1")
def test_dataframes_go_in_and_come_out_on_the_users_own_session(tmp_path: Path):
    done = run_example("dataframes.py", tmp_path)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.out.splitlines()
        if "customer-" in line
    ]
    truth = {f"customer-{i}": [n for n in range(1, 101) if n % 3 == i] for i in range(3)}
    assert rows == [[name, str(len(orders)), str(sum(orders))] for name, orders in truth.items()]
