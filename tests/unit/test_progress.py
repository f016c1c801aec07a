"""Metrics of a subtask, snapshots of a job, and what the terminal shows of them."""

from __future__ import annotations

import io
import threading

import msgspec
import pytest
from rich.console import Console
from rich.text import Text

from tidegate.cli.notebook import html_of, is_notebook
from tidegate.cli.progress import ProgressDisplay, Rates, VertexRates, draw, plain_line, time_bar
from tidegate.cli.recovery import Recovery
from tidegate.core.ids import AttemptNumber, VertexId
from tidegate.core.states import JobStatus
from tidegate.jobmanager.checkpoint.statistics import (
    CheckpointsOverview,
    CheckpointStatistics,
    SubtaskCheckpointStatistics,
)
from tidegate.jobmanager.failover.job import JobOverview
from tidegate.metrics.registry import TaskMetrics, TaskState, TimeAccount
from tidegate.metrics.snapshot import JobMetrics, OperatorCounts, SubtaskMetrics, VertexMetrics
from tidegate.snapshot.handles import SubtaskCheckpointMetrics

MS = 1_000_000


def job(
    *vertices: VertexMetrics, status: str = "RUNNING", elapsed_ms: int = 2000, attempt: int = 0
) -> JobMetrics:
    return JobMetrics(
        name="pv_count", status=status, elapsed_ms=elapsed_ms, vertices=vertices, attempt=attempt
    )


def vertex(
    name: str, *subtasks: SubtaskMetrics, number: int = 0, expected: int | None = None
) -> VertexMetrics:
    return VertexMetrics(
        vertex=number, name=name, parallelism=2, subtasks=subtasks, records_expected=expected
    )


def subtask(number: int = 0, **counts: int) -> SubtaskMetrics:
    return SubtaskMetrics(subtask=number, **counts)


def test_time_is_booked_under_the_state_that_it_was_spent_in():
    account = TimeAccount(now_ns=100 * MS)
    account.switch(TaskState.BUSY, 110 * MS)
    account.switch(TaskState.BUSY, 120 * MS)
    account.switch(TaskState.BACKPRESSURED, 140 * MS)
    account.switch(TaskState.BUSY, 141 * MS)
    assert account.totals_ms(150 * MS) == (39, 10, 1)
    assert account.totals_ms(160 * MS) == (49, 10, 1)


def test_metrics_of_a_subtask_cross_the_wire_unchanged():
    task = TaskMetrics(subtask=3, now_ns=0)
    source, operator = task.operator("source"), task.operator("map")
    source.records_out += 10
    operator.records_in += 10
    task.records_out += 7
    task.bytes_out += 700
    task.backlog, task.credits = 2, 5
    task.counter("bad_records").inc(4)
    assert task.counter("bad_records") is task.counter("bad_records")
    snapshot = task.snapshot(now_ns=25 * MS)
    assert snapshot == SubtaskMetrics(
        subtask=3,
        records_out=7,
        bytes_out=700,
        idle_ms=25,
        backlog=2,
        credits=5,
        operators=(OperatorCounts(name="source", records_out=10), OperatorCounts(name="map", records_in=10)),
        counters={"bad_records": 4},
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=SubtaskMetrics) == snapshot


def test_snapshot_does_not_change_when_the_subtask_goes_on():
    task = TaskMetrics(subtask=0, now_ns=0)
    task.counter("bad_records").inc()
    snapshot = task.snapshot(now_ns=MS)
    task.counter("bad_records").inc()
    task.records_in += 1
    assert (snapshot.records_in, snapshot.counters) == (0, {"bad_records": 1})


def test_progress_is_known_only_where_sources_know_their_end():
    source = vertex("numbers", subtask(0, records_out=30), subtask(1, records_out=20), expected=200)
    assert job(source).progress == 0.25
    assert job(vertex("socket", subtask(0, records_out=30))).progress is None
    assert job(vertex("none", expected=0)).progress is None


def test_progress_counts_what_the_source_gave_and_not_what_its_chain_let_through():
    chain = (OperatorCounts(name="numbers", records_out=100), OperatorCounts(name="filter", records_out=1))
    source = vertex(
        "numbers -> filter", SubtaskMetrics(subtask=0, records_out=1, operators=chain), expected=100
    )
    assert job(source).progress == 1.0


def test_rates_are_those_between_the_last_two_reports():
    rates = Rates()
    rates.add(job(vertex("count", subtask(0, records_in=1000, busy_ms=1000), subtask(1, idle_ms=1000))))
    now = rates.add(
        job(
            vertex(
                "count",
                subtask(0, records_in=4000, records_out=500, busy_ms=1250, backpressured_ms=250),
                subtask(1, idle_ms=1500),
            )
        )
    )
    assert now[0] == VertexRates(in_per_s=6000, out_per_s=1000, busy=0.25, backpressured=0.25, idle=0.5)


def test_rates_stay_when_a_slot_has_not_reported_since():
    rates = Rates()
    first = job(vertex("count", subtask(0, records_in=1000, busy_ms=1000)))
    second = job(vertex("count", subtask(0, records_in=3000, busy_ms=2000)), elapsed_ms=2500)
    rates.add(first)
    assert rates.add(second)[0].in_per_s == 2000
    assert rates.add(second)[0].in_per_s == 2000


def test_rates_of_an_ended_job_are_those_of_its_whole_life():
    rates = Rates()
    rates.add(job(vertex("count", subtask(0, records_in=4000, busy_ms=1000))))
    ended = rates.add(
        job(vertex("count", subtask(0, records_in=4000, busy_ms=1000, idle_ms=1000)), status="FINISHED")
    )
    assert ended[0] == VertexRates(in_per_s=2000, busy=0.5, idle=0.5)


@pytest.mark.parametrize("attempt", [0, 1])
def test_rates_start_afresh_with_a_new_attempt(attempt):
    rates = Rates()
    rates.add(job(vertex("count", subtask(0, records_in=90_000, busy_ms=9000))))
    again = rates.add(job(vertex("count", subtask(0, records_in=50, busy_ms=100)), attempt=attempt))
    assert again[0].in_per_s == 500


def sample() -> JobMetrics:
    counts = (
        OperatorCounts(name="clicks", records_out=3_000_000),
        OperatorCounts(name="only [web]", records_in=3_000_000, records_out=2_500_000),
    )
    return job(
        vertex(
            "clicks -> only [web]",
            SubtaskMetrics(
                subtask=0, records_out=2_500_000, busy_ms=500, backpressured_ms=500, operators=counts
            ),
            expected=4_000_000,
        ),
        vertex("count", subtask(0, records_in=2_400_000, busy_ms=900, idle_ms=100, backlog=7), number=1),
    )


def drawn(metrics: JobMetrics, width: int = 120) -> Console:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(draw(metrics, Rates().add(metrics)))
    return console


def test_the_name_of_a_long_chain_is_cut_and_no_number_is():
    chain = vertex(
        " -> ".join(f"operator number {n} [in a long chain]" for n in range(9)),
        SubtaskMetrics(subtask=0, records_in=40_000, busy_ms=300, idle_ms=700),
    )
    text = drawn(job(chain), width=80).export_text()
    (line,) = (line for line in text.splitlines() if "operator number" in line)
    name, numbers = line.split("…")
    assert name == "operator number 0 [in a long"
    assert numbers.split() == ["1/2", "40.0", "k", "40,000", "0", "███·······", "30%", "0%"]


def test_display_shows_rates_records_waiting_batches_pressure_and_progress():
    text = drawn(sample(), width=80).export_text()
    headline, progress, _, source, clicks, only_web, count, legend = text.splitlines()
    assert headline.split() == ["pv_count", "RUNNING", "2", "s"]
    assert "75%" in progress
    assert source.split()[4:] == ["1/2", "2.5", "M", "2,500,000", "0", "█████▒▒▒▒▒", "50%", "50%"]
    assert clicks.split() == ["├", "clicks", "3.0", "M", "3,000,000"]
    assert only_web.split() == ["└", "only", "[web]", "3.0", "M", "2.5", "M", "3,000,000"]
    assert count.split() == ["count", "1/2", "2.4", "M", "2,400,000", "7", "█████████·", "90%", "0%"]
    assert legend.strip() == "█ busy  ▒ back-pressured  · idle"


def test_display_can_be_exported_as_a_picture():
    svg = drawn(sample()).export_svg(title="pv_count")
    assert svg.startswith("<svg")
    assert "back-pressured" in svg.replace("&#160;", " ")


def test_job_that_has_not_reported_yet_is_shown_without_numbers():
    waiting = job(vertex("clicks", expected=10), status="CREATED", elapsed_ms=0)
    lines = drawn(waiting).export_text().splitlines()
    assert lines[0].split() == ["pv_count", "CREATED", "0", "s"]
    assert "0%" in lines[1]
    assert lines[3].split() == ["clicks", "0/2", "0", "0", "0%", "0%"]
    assert str(time_bar(VertexRates())) == ""


def test_plain_line_names_what_is_under_pressure():
    metrics = sample()
    assert plain_line(metrics, Rates().add(metrics)) == (
        "pv_count RUNNING 2 s 75% | clicks -> only [web] 2.5 M/s (50% back-pressured) | count 2.4 M/s"
    )


def test_without_a_terminal_each_refresh_writes_one_plain_line_and_none_twice():
    out = io.StringIO()
    states = iter([sample(), sample(), msgspec.structs.replace(sample(), status="FINISHED")])
    display = ProgressDisplay(lambda: next(states), console=Console(file=out, width=40))
    display.refresh()
    display.refresh()
    display.refresh()
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["RUNNING", "FINISHED"]


def test_terminal_display_draws_from_its_own_thread_and_leaves_the_last_state():
    out = io.StringIO()
    drawing_threads = []
    twice = threading.Event()
    status = "RUNNING"

    def fetch() -> JobMetrics:
        drawing_threads.append(threading.current_thread().name)
        if len(drawing_threads) == 2:
            twice.set()
        return msgspec.structs.replace(sample(), status=status)

    before = threading.active_count()
    console = Console(file=out, force_terminal=True, width=120)
    with ProgressDisplay(fetch, interval=0.001, console=console):
        assert twice.wait(20)
        status = "FINISHED"
    assert threading.active_count() == before
    assert set(drawing_threads) == {"progress display", threading.current_thread().name}
    assert "RUNNING" in out.getvalue()
    assert "FINISHED" in out.getvalue().rpartition("RUNNING")[2]


def test_display_that_cannot_fetch_stops_and_leaves_the_job_alone(caplog):
    calls = []

    def fetch() -> JobMetrics:
        calls.append(1)
        raise ConnectionError("the job manager is gone")

    with ProgressDisplay(fetch, console=Console(file=io.StringIO())) as display:
        display.refresh()
        display.refresh()
    assert len(calls) == 1
    assert "the progress display stops: ConnectionError: the job manager is gone" in caplog.text


# ---- checkpoints and restarts ----


def completed_checkpoint(id: int, **metrics: int) -> CheckpointStatistics:
    part = SubtaskCheckpointStatistics(VertexId(0), "pv", 0, 35, SubtaskCheckpointMetrics(**metrics))
    return CheckpointStatistics(id, AttemptNumber(0), "completed", 100_000, 35, 1, (part,))


def recovery(status: JobStatus = JobStatus.RUNNING, *, error: str = "", **checkpoints: object) -> Recovery:
    restarts = 1 if error else 0
    overview = JobOverview(
        status,
        restarts,
        restarts,
        "fixed-delay",
        error,
        0 if error else None,
        restored_checkpoint=6 if error else None,
    )
    return Recovery(overview, CheckpointsOverview(**checkpoints), now_ms=101_235)


def lines_below(shown: Recovery, width: int = 80) -> list[str]:
    out = io.StringIO()
    metrics = sample()
    Console(file=out, width=width).print(draw(metrics, Rates().add(metrics), shown))
    lines = out.getvalue().splitlines()
    return [line.rstrip() for line in lines[[line[:6] for line in lines].index("█ busy") + 1 :]]


def test_display_shows_the_last_checkpoint_with_its_age_duration_size_and_the_failed_ones():
    last = completed_checkpoint(7, bytes_full=3 << 20, bytes_new=64 << 10)
    shown = recovery(triggered=9, completed=7, failed=1, latest_completed=last)
    line = "7 checkpoints, 1 failed; the last: 7, 1.2 s ago, took 35 ms, 3.0 MiB (64.0 KiB new)"
    assert lines_below(shown, 100) == [line]
    assert plain_line(sample(), {}, shown).endswith(f" | {line}")


def test_display_of_a_job_without_checkpoints_has_no_line_about_them():
    assert lines_below(recovery()) == []
    assert plain_line(sample(), {}, recovery()) == plain_line(sample(), {})


def test_display_says_that_there_is_no_checkpoint_yet_and_why_the_first_failed():
    failed = CheckpointStatistics(1, AttemptNumber(0), "failed", 0, 5, 1, (), "disk\nfull")
    shown = recovery(triggered=1, failed=1, latest_failed=failed)
    assert lines_below(shown) == ["no checkpoint yet, 1 failed", "checkpoint 1 failed: disk"]
    assert plain_line(sample(), {}, shown).endswith(
        " | no checkpoint yet, 1 failed | checkpoint 1 failed: disk"
    )


def test_failed_checkpoint_is_forgotten_when_a_later_one_is_complete():
    failed = CheckpointStatistics(1, AttemptNumber(0), "failed", 0, 5, 1, (), "disk full")
    shown = recovery(
        triggered=2, completed=1, failed=1, latest_failed=failed, latest_completed=completed_checkpoint(2)
    )
    assert lines_below(shown) == ["1 checkpoint, 1 failed; the last: 2, 1.2 s ago, took 35 ms, 0 B"]


def test_last_error_stays_on_the_screen_in_one_line_of_its_width():
    error = "job 'pv \"count\"' failed: operator 'parse' raised ValueError: " + "x" * 300 + "\nTraceback ..."
    shown = recovery(error=error, triggered=7, completed=6, latest_completed=completed_checkpoint(6))
    lines = lines_below(shown)
    assert lines[1] == "1 restart, attempt 1 continues from checkpoint 6"
    assert lines[2].startswith("last error (attempt 0): operator 'parse' raised ValueError: xxx")
    assert (len(lines), len(lines[2]), lines[2][-1]) == (3, 80, "…")
    line = plain_line(sample(), {}, shown)
    assert (
        "| 1 restart, attempt 1 continues from checkpoint 6 | last error (attempt 0): operator 'parse'"
        in line
    )
    assert "\n" not in line
    assert len(line) < 500


def test_error_cannot_write_control_characters_to_the_terminal():
    shown = recovery(error="operator 'parse' raised ValueError: \x1b[2Jgone\x07")
    assert lines_below(shown)[-1].endswith(
        "ValueError: \N{REPLACEMENT CHARACTER}[2Jgone\N{REPLACEMENT CHARACTER}"
    )


def test_ended_job_shows_no_age():
    shown = recovery(JobStatus.FINISHED, triggered=7, completed=7, latest_completed=completed_checkpoint(7))
    assert lines_below(shown) == ["7 checkpoints; the last: 7, took 35 ms, 0 B"]


def test_what_is_drawn_becomes_html_without_a_style_sheet() -> None:
    html = html_of(Text("<job> RUNNING", style="bold"))
    assert html.startswith("<pre style=")
    assert "&lt;job&gt; RUNNING" in html
    assert "<style" not in html


def test_a_plain_process_is_no_notebook() -> None:
    assert not is_notebook()
