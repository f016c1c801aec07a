"""`tidegate checkpoints`: lists what is stored below a checkpoint directory, and checks it for damage."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tidegate.core.ids import ATTEMPTS_PER_DRIVER, attempt_name
from tidegate.core.words import number_of, printable
from tidegate.metrics.quantities import brief_duration, brief_size
from tidegate.snapshot.handles import KeyedStateHandle, OperatorStateHandle, StateFile
from tidegate.snapshot.manifest import Manifest, ManifestOperator
from tidegate.storage.checkpoint_search import StoredCheckpoint, UnusableCheckpoint, list_at
from tidegate.storage.storage import CorruptFileError

_EIGHTHS = " ▏▎▍▌▋▊▉"
_MOST_ENTRIES = 20
_PLOT_FIXED = 68
"""The width of a plot without its bars."""


@dataclass(frozen=True)
class CheckedCheckpoint:
    """A readable checkpoint, with a message for each damaged file."""

    checkpoint: StoredCheckpoint
    damage: tuple[str, ...]

    @property
    def manifest(self) -> Manifest:
        return self.checkpoint.manifest


@dataclass(frozen=True)
class Findings:
    """The checkpoints at a location."""

    checkpoints: tuple[CheckedCheckpoint, ...]
    unusable: tuple[UnusableCheckpoint, ...]
    verified: bool

    @property
    def is_empty(self) -> bool:
        return not self.checkpoints and not self.unusable

    @property
    def is_damaged(self) -> bool:
        return bool(self.unusable) or any(c.damage for c in self.checkpoints)

    def reasons(self) -> list[str]:
        return [r for u in self.unusable for r in u.reasons] + [r for c in self.checkpoints for r in c.damage]


def look(
    location: str,
    checkpoint_id: int | None = None,
    job: str = "",
    *,
    verify: bool = False,
    show_progress: bool = False,
) -> Findings:
    """Read the manifests and check that all files exist with their sizes; `verify` reads the files too.

    `job` is a job's name, or the beginning of its id. Raises `StorageError` if the location cannot be read.
    """
    stored: list[StoredCheckpoint] = []
    unusable = []
    for one in list_at(location):
        if isinstance(one, UnusableCheckpoint):
            if checkpoint_id in (None, one.checkpoint_id):
                unusable.append(one)
            continue
        manifest = one.manifest
        if checkpoint_id not in (None, manifest.checkpoint_id):
            continue
        if job and job != manifest.job_name and not manifest.job_id.startswith(job):
            continue
        stored.append(one)
    damage = _damage_of_files(stored, contents=verify, show_progress=show_progress)
    checked = [
        CheckedCheckpoint(
            one, tuple(words for f in one.manifest.files if (words := damage.get(_place(one, f))))
        )
        for one in stored
    ]
    return Findings(tuple(checked), tuple(unusable), verify)


def _damage_of_files(
    stored: Sequence[StoredCheckpoint], *, contents: bool, show_progress: bool
) -> dict[str, str]:
    """A message for each damaged file, by its place; a file that several checkpoints share is read once."""
    files = {_place(one, file): (one.storage, file) for one in stored for file in one.manifest.files}
    damage = {}
    with _reading(sum(file.size for _, file in files.values()), shown=show_progress) as advance:
        for place, (storage, file) in files.items():
            try:
                storage.check(file, contents=contents)
            except CorruptFileError as e:
                damage[place] = str(e)
            advance(file.size)
    return damage


def _place(one: StoredCheckpoint, file: StateFile) -> str:
    return one.storage.show(file.path)


@contextlib.contextmanager
def _reading(total_bytes: int, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """Show the progress of reading on standard error, if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        task = bar.add_task("reading", total=total_bytes)
        yield lambda size: bar.advance(task, size)


# ---- for programs ----


def as_json(findings: Findings, *, whole: bool) -> str:
    """The findings as JSON: a list of checkpoints; if `whole`, with their complete manifests."""
    rows: list[dict[str, Any]] = []
    for one in findings.checkpoints:
        manifest: dict[str, Any] = json.loads(msgspec.json.encode(one.manifest))
        if not whole:
            manifest["operators"] = [o["name"] for o in manifest["operators"]]
            for detail in ("vertices", "enumerators", "statistics", "files"):
                del manifest[detail]
        manifest |= {"path": one.checkpoint.path, "duration_ms": one.manifest.duration_ms}
        rows.append(manifest | {"damage": list(one.damage), "verified": findings.verified})
    rows += [
        {"path": u.path, "damage": list(u.reasons), "verified": findings.verified} for u in findings.unusable
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


# ---- for people ----


def overview(findings: Findings) -> RenderableType:
    """A table for each job, and the damage below."""
    return Group(*_tables(findings), *_damage(findings))


def _tables(findings: Findings) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for _, group in groupby(findings.checkpoints, key=lambda c: c.manifest.job_id):
        checkpoints = list(group)
        newest = checkpoints[-1].manifest
        table = _table("id", "attempt", "completed (UTC)", "duration", "full", "new", "with state", "files")
        for one in checkpoints:
            m = one.manifest
            with_state = sum(m.has_state(o) for o in m.operators)
            table.add_row(
                str(m.checkpoint_id),
                _attempt(m.attempt),
                _time(m.completed_ms),
                brief_duration(m.duration_ms),
                brief_size(m.bytes_full),
                brief_size(m.bytes_new),
                f"{with_state} of {len(m.operators)}",
                _verdict(one.damage, findings.verified),
            )
        parts += [
            Text.assemble((printable(newest.job_name), "bold"), f"  job {newest.job_id}"),
            table,
            Text(),
        ]
    return parts


def verification(findings: Findings) -> RenderableType:
    """The result of `verify`: a table per job, each damaged file with the checkpoints that need it, and the rest."""
    needed_by: dict[str, list[str]] = {}
    for one in findings.checkpoints:
        for reason in one.damage:
            needed_by.setdefault(reason, []).append(str(one.manifest.checkpoint_id))
    lines: list[RenderableType] = [
        Text(f"{printable(reason)} It is needed by checkpoint{'s' * (len(ids) > 1)} {', '.join(ids)}.", "red")
        for reason, ids in needed_by.items()
    ]
    lines += [Text(printable(reason), "red") for u in findings.unusable for reason in u.reasons]
    files = {_place(c.checkpoint, f): f.size for c in findings.checkpoints for f in c.manifest.files}
    damaged = sum(bool(c.damage) for c in findings.checkpoints) + len(findings.unusable)
    total = len(findings.checkpoints) + len(findings.unusable)
    lines.append(
        Text(
            f"{number_of(total, 'checkpoint')}, {number_of(len(files), 'file')}, "
            f"{brief_size(sum(files.values()))} read: "
            + (f"{damaged} cannot be restored" if damaged else "all can be restored"),
            "red" if damaged else "green",
        )
    )
    for _, group in groupby(findings.checkpoints, key=lambda c: c.manifest.job_id):
        checkpoints = list(group)
        if any(c.damage for c in checkpoints):
            sound = [c for c in checkpoints if not c.damage]
            newest = sound[-1].checkpoint.path if sound else "none"
            lines.append(
                Text(f"the newest of job {checkpoints[-1].manifest.job_id} that can be restored: {newest}")
            )
    return Group(*_tables(findings), *lines)


def inspection(one: CheckedCheckpoint, findings: Findings) -> RenderableType:
    m = one.manifest
    head = Table.grid(padding=(0, 2))
    for word, value in (
        ("job", f"{printable(m.job_name)} ({m.job_id}), {attempt_name(m.attempt)}"),
        ("path", one.checkpoint.path),
        ("completed", f"{_time(m.completed_ms)} UTC, {brief_duration(m.duration_ms)} after the trigger"),
        (
            "size",
            f"{brief_size(m.bytes_full)} in {number_of(len(m.files), 'file')}, {brief_size(m.bytes_new)} of it new",
        ),
        ("written by", f"tidegate {printable(m.tidegate_version)}"),
    ):
        head.add_row(Text(word, "dim"), Text(value))
    head.add_row(Text("files", "dim"), _verdict(one.damage, findings.verified))
    return Group(
        Text(f"{m.kind} {m.checkpoint_id}", "bold"),
        head,
        Text(),
        _operators(m),
        Text(),
        *_positions(m),
        *_in_flight(m),
        _files(m),
    )


def plot(findings: Findings, console_width: int | None = None) -> RenderableType:
    """Duration and size of each checkpoint as bars, oldest first; as wide as the terminal allows."""
    console_width = console_width or Console().width
    parts: list[RenderableType] = []
    for _, group in groupby(findings.checkpoints, key=lambda c: c.manifest.job_id):
        manifests = [c.manifest for c in group]
        longest = max(m.duration_ms for m in manifests)
        largest = max(m.bytes_full for m in manifests)
        table = _table("id", "completed (UTC)", "duration", "", "full", "", "new", "")
        width = min(12, max(1, (console_width - _PLOT_FIXED) // 3))
        for m in manifests:
            table.add_row(
                str(m.checkpoint_id),
                _time(m.completed_ms),
                brief_duration(m.duration_ms),
                Text(bar(m.duration_ms, longest, width), "cyan"),
                brief_size(m.bytes_full),
                Text(bar(m.bytes_full, largest, width), "blue"),
                brief_size(m.bytes_new),
                Text(bar(m.bytes_new, largest, width), "green"),
            )
        name = printable(manifests[-1].job_name)
        parts += [Text.assemble((name, "bold"), f"  job {manifests[-1].job_id}"), table, Text()]
    return Group(*parts, *_damage(findings))


def bar(value: float, most: float, width: int = 12) -> str:
    """A bar of up to `width` characters, in eighths; any value above zero is visible.

    >>> bar(100, 100, 4), bar(50, 100, 4), bar(1, 100, 4), bar(0, 0, 4)
    ('████', '██', '▏', '')
    """
    eighths = 0 if most <= 0 else round(8 * width * value / most)
    eighths = max(eighths, 1 if value > 0 else 0)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def show(findings: Findings, what: Iterable[RenderableType], *, asked_for_one: bool = False) -> None:
    console = Console()
    for part in what:
        console.print(part)
    if not asked_for_one and findings.is_empty:
        console.print("No completed checkpoint is stored there.")


def _operators(m: Manifest) -> RenderableType:
    table = _table("operator", "uid", "parallelism", "states")
    for operator in m.operators:
        parallelism = f"{operator.parallelism} of {operator.max_parallelism}"
        states = Group(*_states(operator)) if operator.subtasks else Text("none", "dim")
        table.add_row(
            escape(printable(operator.name)), escape(printable(operator.uid or "")), parallelism, states
        )
    return table


def _states(operator: ManifestOperator) -> Iterable[RenderableType]:
    keyed = [s.keyed for s in operator.subtasks if s.keyed is not None]
    if keyed:
        yield from (Text(printable(line)) for line in _keyed_lines(keyed))
    by_name: dict[str, list[OperatorStateHandle]] = {}
    for subtask in operator.subtasks:
        for handle in subtask.states:
            by_name.setdefault(handle.name, []).append(handle)
    for name, handles in by_name.items():
        types = {h.schema for h in handles if h.schema}
        of = f" of {', '.join(sorted(types))}" if types else ""
        kind = (
            "broadcast map"
            if handles[0].redistribution == "broadcast"
            else f"{handles[0].redistribution} list"
        )
        rows = handles[0].rows if kind == "broadcast map" else sum(h.rows for h in handles)
        held = f"{number_of(rows, 'entry', 'entries')}, stored by {number_of(len(handles), 'subtask')}"
        yield Text(printable(f"{name}: {kind}{of}, {held}"))


def _keyed_lines(keyed: Sequence[KeyedStateHandle]) -> Iterable[str]:
    schemas = {schema.name: schema for handle in keyed for schema in handle.states}
    for schema in schemas.values():
        ttl = "" if schema.ttl_ms is None else f", expires after {brief_duration(schema.ttl_ms)}"
        serializer = "" if schema.serializer == "arrow" else f" ({schema.serializer})"
        yield f"{schema.name}: {schema.kind} of {schema.value}{serializer} by {schema.key}{ttl}"
    full, new = sum(h.bytes_full for h in keyed), sum(h.bytes_new for h in keyed)
    ranges = ", ".join(str(h.range) for h in keyed)
    yield f"{keyed[0].backend}, {brief_size(full)} ({brief_size(new)} new), key groups {ranges}"


def _positions(m: Manifest) -> Iterable[RenderableType]:
    """The plain entries: source positions, committables, and the states of enumerators."""
    table = _table("operator", "subtask", "state", "value")
    left_out = 0
    for operator in m.operators:
        rows = [
            (str(s.subtask), handle.name, bytes(entry))
            for s in operator.subtasks
            for handle in s.states
            for entry in handle.entries
        ]
        if operator.id in m.enumerators:
            rows.append(("", "enumerator", bytes(m.enumerators[operator.id])))
        for subtask, name, value in rows[:_MOST_ENTRIES]:
            shown = value.decode("utf-8", "replace")
            table.add_row(
                escape(printable(operator.name)), subtask, escape(printable(name)), escape(printable(shown))
            )
        left_out += len(rows[_MOST_ENTRIES:])
    if table.row_count:
        yield table
        yield Text(f"and {left_out} more; --json has them all\n" if left_out else "", "dim")


def _in_flight(m: Manifest) -> Iterable[RenderableType]:
    handles = [handle for vertex in m.vertices for _, handle in vertex.in_flight]
    if handles:
        size = brief_size(sum(h.file.size for h in handles))
        batches = sum(h.batches for h in handles)
        yield Text(
            f"{batches} in-flight batches, {size}: it can be restored with the same parallelism only\n"
        )


def _files(m: Manifest) -> RenderableType:
    table = _table("size", "file")
    for file in m.files:
        table.add_row(brief_size(file.size), escape(printable(file.path)))
    return table


def _damage(findings: Findings) -> Iterable[RenderableType]:
    return [Text(printable(reason), "red") for reason in findings.reasons()]


def _verdict(damage: Sequence[str], verified: bool) -> Text:
    if damage:
        return Text(f"damaged: {len(damage)} file{'s' if len(damage) > 1 else ''}", "red")
    return Text("verified" if verified else "complete", "green")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        right = column in ("id", "attempt", "duration", "full", "new", "size", "subtask")
        table.add_column(
            column,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right or column.startswith("completed") or not column,  # a bar must not be folded
        )
    return table


def _attempt(attempt: int) -> str:
    """An attempt in short, for a table: the driver and its attempt.

    >>> _attempt(3), _attempt(1_000_003)
    ('3', '2/3')
    """
    driver, number = divmod(attempt, ATTEMPTS_PER_DRIVER)
    return f"{driver + 1}/{number}" if driver else str(number)


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
