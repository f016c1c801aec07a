"""Live progress of a job in the terminal: rates and back pressure per operator, checkpoints, restarts, the last error.

`ProgressDisplay` fetches a `JobMetrics` and a `Recovery` on its own thread and draws them in a terminal or in the
output of a notebook's cell; elsewhere it writes one plain line every few seconds. It must never harm the job: if it
cannot get a snapshot, it logs that and stops. `Rates` and the functions that draw are pure: snapshots in, something
printable out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidegate.api.job_client import JobClient
from tidegate.cli.notebook import NotebookScreen, is_notebook
from tidegate.cli.recovery import Recovery, recovery_lines, recovery_parts
from tidegate.metrics.event_time import lag_words, late_records, watermark_lines
from tidegate.metrics.snapshot import JobMetrics, OperatorCounts, SubtaskMetrics, VertexMetrics

_LOG = logging.getLogger(__name__)
_BAR_CELLS = 10
_ENDED = frozenset(("FINISHED", "FAILED", "CANCELED"))
_STATUS_STYLES = {
    "RUNNING": "bold cyan",
    "FINISHED": "bold green",
    "FAILED": "bold red",
    "CANCELED": "bold yellow",
    "FAILING": "bold red",
    "RESTARTING": "bold yellow",
}


class VertexRates(NamedTuple):
    """The rates of a vertex between its last two reports: records per second, and fractions of the time."""

    in_per_s: float = 0.0
    out_per_s: float = 0.0
    busy: float = 0.0
    backpressured: float = 0.0
    idle: float = 0.0
    operators: tuple[tuple[float, float], ...] = ()
    """Records in and out per second of each operator of the chain."""


class Rates:
    """Turns a series of snapshots into current rates, or, once a job has ended, into rates over its whole life.

    Slots report less often than the display draws, and not all at once. So each subtask's last two *different* reports
    count, by the subtask's own clock; a subtask whose clock went back (a new attempt) starts again.
    """

    def __init__(self) -> None:
        self._reports: dict[tuple[int, int], tuple[SubtaskMetrics | None, SubtaskMetrics]] = {}
        self._attempt = 0

    def add(self, metrics: JobMetrics) -> dict[int, VertexRates]:
        """Add a snapshot; returns the rates by vertex."""
        if metrics.attempt != self._attempt:
            self._reports.clear()
            self._attempt = metrics.attempt
        ended = metrics.status in _ENDED
        return {vertex.vertex: self._of_vertex(vertex, ended) for vertex in metrics.vertices}

    def _of_vertex(self, vertex: VertexMetrics, ended: bool) -> VertexRates:
        in_per_s = out_per_s = 0.0
        busy = backpressured = idle = 0
        operators: dict[int, tuple[float, float]] = {}
        for now in vertex.subtasks:
            key = vertex.vertex, now.subtask
            before, last = self._reports.get(key, (None, now))
            if now.running_ms < last.running_ms:
                before, last = None, now
            elif now.running_ms > last.running_ms:
                before, last = last, now
            self._reports[key] = before, last
            if before is None or ended:
                before = SubtaskMetrics(subtask=now.subtask)
            passed_ms = last.running_ms - before.running_ms
            if passed_ms > 0:
                in_per_s += (last.records_in - before.records_in) * 1000 / passed_ms
                out_per_s += (last.records_out - before.records_out) * 1000 / passed_ms
                busy += last.busy_ms - before.busy_ms
                backpressured += last.backpressured_ms - before.backpressured_ms
                idle += last.idle_ms - before.idle_ms
                for i, counts in enumerate(last.operators):
                    earlier = before.operators[i] if before.operators else OperatorCounts(name="")
                    sum_in, sum_out = operators.get(i, (0.0, 0.0))
                    operators[i] = (
                        sum_in + (counts.records_in - earlier.records_in) * 1000 / passed_ms,
                        sum_out + (counts.records_out - earlier.records_out) * 1000 / passed_ms,
                    )
        whole = max(1, busy + backpressured + idle)
        shares = busy / whole, backpressured / whole, idle / whole
        return VertexRates(in_per_s, out_per_s, *shares, tuple(operators.values()))


class ProgressDisplay:
    """Shows a running job until the `with` block ends, on its own thread; the last state stays on the screen.

    >>> from rich.console import Console
    >>> import io
    >>> metrics = JobMetrics(name="pv", status="FINISHED", elapsed_ms=2000)
    >>> out = io.StringIO()
    >>> with ProgressDisplay(lambda: metrics, console=Console(file=out)):
    ...     pass
    >>> out.getvalue()
    'pv FINISHED 2 s\\n'
    """

    def __init__(
        self,
        fetch: Callable[[], JobMetrics],
        interval: float = 0.5,
        *,
        recovery: Callable[[], Recovery] | None = None,
        console: Console | None = None,
        plain_interval: float = 5.0,
    ) -> None:
        self._fetch = fetch
        self._recovery = recovery
        self._notebook = NotebookScreen() if console is None and is_notebook() else None
        self._console = console or Console()
        self._live: Live | None = None
        if self._console.is_terminal and self._notebook is None:
            self._live = Live(console=self._console, auto_refresh=False)
        is_drawn = self._live is not None or self._notebook is not None
        self._interval = interval if is_drawn else plain_interval
        self._rates = Rates()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress display", daemon=True)
        self._broken = False
        self._last_line = ""

    @classmethod
    def of(cls, client: JobClient) -> ProgressDisplay:
        """The display of a client's job, with its checkpoints and restarts."""
        return cls(client.metrics, recovery=lambda: Recovery.of(client))

    def __enter__(self) -> ProgressDisplay:
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.refresh()
        if self._live is not None:
            self._live.stop()

    def refresh(self) -> None:
        """Fetch and draw once. The display's thread calls this; a test may call it without the thread."""
        if self._broken:
            return
        try:
            metrics = self._fetch()
            recovery = None if self._recovery is None else self._recovery()
            rates = self._rates.add(metrics)
            if self._notebook is not None:
                self._notebook.show(draw(metrics, rates, recovery))
            elif self._live is not None:
                self._live.update(draw(metrics, rates, recovery), refresh=True)
            else:
                self._print_line(plain_line(metrics, rates, recovery))
        except Exception as e:  # noqa: BLE001 - an error of the display must not harm the job
            self._broken = True
            _LOG.warning("the progress display stops: %s: %s", type(e).__name__, e)

    def _print_line(self, line: str) -> None:
        if line != self._last_line:
            self._last_line = line
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            self.refresh()


def draw(
    metrics: JobMetrics, rates: dict[int, VertexRates], recovery: Recovery | None = None
) -> RenderableType:
    """The whole display: a headline, the progress if known, a line per operator, checkpoints and restarts."""
    style = _STATUS_STYLES.get(metrics.status, "bold")
    headline = Text.assemble(
        (metrics.name, "bold"), "  ", (_words(metrics.status), style), "  ", format_time(metrics.elapsed_ms)
    )
    # Fits 80 columns; a wider terminal leaves more room for the operators' names.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    # Only names may be cut. For that their column must be the only one that rich may wrap; their text does not wrap.
    table.add_column("operator", min_width=14)
    for column in ("tasks", "in/s", "out/s", "records", "queue"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("time", no_wrap=True)
    for column in ("█", "▒"):
        table.add_column(column, justify="right", no_wrap=True)
    for vertex in metrics.vertices:
        rate = rates.get(vertex.vertex, VertexRates())
        records_in, records_out = vertex.total("records_in"), vertex.total("records_out")
        table.add_row(
            _name(vertex.name),
            f"{len(vertex.subtasks)}/{vertex.parallelism}",
            format_number(rate.in_per_s) if records_in else "",
            # A chain without output edges and sinks emits nothing.
            format_number(rate.out_per_s) if records_out else "",
            f"{max(records_in, records_out):,}",
            str(vertex.total("backlog")),
            time_bar(rate),
            f"{rate.busy:.0%}",
            Text(f"{rate.backpressured:.0%}", style="red" if rate.backpressured >= 0.05 else ""),
        )
        operators = vertex.operators()
        if len(operators) > 1:
            for i, counts in enumerate(operators):
                branch = "└" if i == len(operators) - 1 else "├"
                in_per_s, out_per_s = rate.operators[i] if rate.operators else (0.0, 0.0)
                table.add_row(
                    _name(f" {branch} {counts.name}"),
                    "",
                    format_number(in_per_s) if counts.records_in else "",
                    format_number(out_per_s) if counts.records_out else "",
                    f"{max(counts.records_in, counts.records_out):,}",
                    style="dim",
                )
    parts: list[RenderableType] = [headline]
    if metrics.progress is not None:
        parts.append(_progress_line(metrics.progress))
    below: list[RenderableType] = [Text(line) for line in watermark_lines(metrics)]
    below += [] if recovery is None else recovery_lines(recovery)
    return Group(*parts, table, Text("█ busy  ▒ back-pressured  · idle", style="dim"), *below)


def _progress_line(progress: float) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=progress, width=40, complete_style="cyan", finished_style="green")
    line.add_row(bar, f"{progress:.0%}")
    return line


def _name(name: str) -> Text:
    return Text(name, no_wrap=True, overflow="ellipsis")


def _words(status: str) -> str:
    return status.replace("_", " ")


def time_bar(rates: VertexRates, cells: int = _BAR_CELLS) -> Text:
    """The fractions of the time as a bar.

    >>> str(time_bar(VertexRates(busy=0.5, backpressured=0.25, idle=0.25), cells=8))
    '████▒▒··'
    """
    if rates.busy + rates.backpressured + rates.idle == 0.0:
        return Text("")
    busy = round(rates.busy * cells)
    held = min(cells - busy, round(rates.backpressured * cells))
    return Text.assemble(("█" * busy, "green"), ("▒" * held, "red"), ("·" * (cells - busy - held), "dim"))


def plain_line(metrics: JobMetrics, rates: dict[int, VertexRates], recovery: Recovery | None = None) -> str:
    """The display in one line, for logs.

    >>> source = VertexMetrics(vertex=0, name="numbers", parallelism=1, records_expected=4_000_000,
    ...     subtasks=(SubtaskMetrics(subtask=0, records_out=1_000_000, busy_ms=500, idle_ms=500),))
    >>> job = JobMetrics(name="pv", status="RUNNING", elapsed_ms=1000, vertices=(source,))
    >>> plain_line(job, Rates().add(job))
    'pv RUNNING 1 s 25% | numbers 1.0 M/s'
    """
    parts = [f"{metrics.name} {_words(metrics.status)} {format_time(metrics.elapsed_ms)}"]
    if metrics.progress is not None:
        parts[0] += f" {metrics.progress:.0%}"
    for vertex in metrics.vertices:
        rate = rates.get(vertex.vertex, VertexRates())
        held = f" ({rate.backpressured:.0%} back-pressured)" if rate.backpressured >= 0.05 else ""
        late = f" ({late_records(vertex):,} late)" if late_records(vertex) else ""
        parts.append(f"{vertex.name} {format_number(max(rate.in_per_s, rate.out_per_s))}/s{held}{late}")
    lag = lag_words(metrics)
    parts += [lag] if lag else []
    return " | ".join([*parts, *([] if recovery is None else recovery_parts(recovery))])


def format_number(number: float) -> str:
    """A number in a few characters, rounded.

    >>> format_number(0), format_number(12.34), format_number(9_990), format_number(1_234_567)
    ('0', '12', '10.0 k', '1.2 M')
    """
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit * 0.9995:
            return f"{number / limit:.1f} {unit}"
    return f"{number:.0f}"


def format_time(milliseconds: int) -> str:
    """Whole seconds; from 60 s on with minutes and hours.

    >>> format_time(2_900), format_time(65_000), format_time(3_725_000)
    ('2 s', '1:05 min', '1:02:05 h')
    """
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} h" if hours else f"{minutes}:{seconds:02} min"
