"""The command `tidegate`: run and explain programs, list the options, look at checkpoints."""

from __future__ import annotations

import enum
import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from typer.core import TyperCommand

from tidegate.api.environment import Program, ambient
from tidegate.cli import checkpoints as stored
from tidegate.cli.plan import print_plan
from tidegate.cli.script import FAILED, ScriptCall, parse_call, run_script
from tidegate.core.errors import ConfigurationError, TidegateError
from tidegate.core.options import describe
from tidegate.graph.explain import explain as explain_graph
from tidegate.graph.stream_graph import build_stream_graph

USAGE_ERROR = 2

app = typer.Typer(
    name="tidegate",
    help="Stateful streams in Python, on the Spark you already run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class PlanFormat(enum.StrEnum):
    """The formats of `explain`."""

    TEXT = "text"
    JSON = "json"
    MERMAID = "mermaid"
    SVG = "svg"


class _OptionsAnywhere(TyperCommand):
    """Takes its own options before and after the script, and passes `--` and all later words on."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        if args[end:]:
            ctx.params["words"] = [*ctx.params["words"], *args[end:]]
        return rest


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB.PY [WORD]",
        help="The script, then options of tidegate and the script's own arguments.",
        show_default=False,
    ),
]


def _version_wanted(wanted: bool) -> None:
    if wanted:
        _print_versions()
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version_wanted, is_eager=True, help="The same as `version`."),
    ] = False,
) -> None:
    """Stateful streams in Python, on the Spark you already run."""


# All words after the script's name belong to the script, even `--help`.
@app.command(
    options_metavar="[--OPTION VALUE]...",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run(words: Words) -> None:
    """Run a script, with options set from here.

    The script runs as with `python job.py`. Options given here override those of the script, its option file and its
    own arguments; `tidegate options` lists them. Every other word goes to the script, and so does everything after
    `--`.

    The exit code is the script's own; 1 if its job failed or was refused, with the reason on standard error.

    Example: `tidegate run examples/pv_count.py --parallelism 2 --records 100000`
    """
    raise typer.Exit(run_script(_call(words)))


@app.command(
    cls=_OptionsAnywhere,
    options_metavar="[--OPTION VALUE]...",
    context_settings={"ignore_unknown_options": True},
)
def explain(
    words: Words,
    format: Annotated[PlanFormat, typer.Option("--format", help="How to show the plan.")] = PlanFormat.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write it to.", show_default="standard output")
    ] = None,
) -> None:
    """Show the plan of a script's first job, without running the job.

    The script runs up to the place where it starts a job (`execute`, `execute_async`, `execute_and_collect` or
    `to_dataframe`); there it ends, and the plan is shown. Arguments of the script that `explain` has too (`--format`,
    `--output`, `--help`) go after `--`.

    Example: `tidegate explain examples/pv_count.py --format svg --output plan.svg`
    """
    call = _call(words)
    plans: list[str] = []

    def show_instead(program: Program) -> NoReturn:
        graph = build_stream_graph(program.name, program.sinks, program.transformations, program.options)
        plans.append(explain_graph(graph, format))
        raise SystemExit  # ends the script, or its thread; an `except Exception` does not catch it

    ambient.instead_of_running = show_instead
    try:
        code = run_script(call)
    finally:
        ambient.instead_of_running = None
    if not plans:
        if code == 0:
            _complain(f"{call.script} ended without starting a job, so there is no plan to show.")
        raise typer.Exit(code or FAILED)
    if output is None:
        print_plan(plans[0]) if format is PlanFormat.TEXT else print(plans[0].rstrip("\n"))
    else:
        output.write_text(plans[0], encoding="utf-8")


@app.command()
def options() -> None:
    """List every option: its key, type, default and meaning.

    In code: Environment(parallelism=4). In a file: parallelism: 4. Here: --parallelism 4.
    """
    # Not a table: in 80 columns the longest key would leave too little room for the meaning.
    console = Console()
    for row in describe():
        console.print(f"[cyan]{row.key}[/cyan]  {escape(row.default)}", highlight=False)
        meaning = f"[dim]{escape(row.type)}:[/dim] {escape(row.help)}"
        console.print(Padding(meaning, (0, 0, 0, 4)), highlight=False)


@app.command()
def checkpoints(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[verify] DIR",
            help="A checkpoint directory, the directory of one job in it, or one checkpoint; a path or a URI.",
            show_default=False,
        ),
    ],
    id: Annotated[int | None, typer.Option("--id", help="Show everything about this checkpoint.")] = None,
    job: Annotated[str, typer.Option("--job", help="Only of jobs with this name or id.")] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare its checksum.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Draw duration and size over time.")] = False,
) -> None:
    """List, inspect and verify the checkpoints that are stored in a directory.

    The exit code is 1 if something is damaged, or if the directory, checkpoint or job does not exist; a directory
    without a checkpoint is fine. Without `verify` the command checks the manifests, and that every file exists with its
    size. `verify` reads every file once, and says which are damaged, which checkpoints need them and what can still be
    restored.

    Examples: `tidegate checkpoints s3://lake/checkpoints --id 42`, `tidegate checkpoints verify s3://lake/checkpoints`
    """
    asked_to_verify = len(words) == 2 and words[0] == "verify"
    if len(words) > 1 and not asked_to_verify:
        _complain(f"cannot use {words[1]!r}: give one directory, or `verify` and a directory.")
        raise typer.Exit(USAGE_ERROR)
    location, verify = words[-1], verify or asked_to_verify
    try:
        findings = stored.look(location, id, job, verify=verify, show_progress=not as_json)
    except TidegateError as e:
        _complain(str(e))
        raise typer.Exit(FAILED) from None
    if as_json:
        print(stored.as_json(findings, whole=id is not None))
    elif plot:
        stored.show(findings, [stored.plot(findings)])
    elif asked_to_verify and not findings.is_empty:
        stored.show(findings, [stored.verification(findings)], asked_for_one=id is not None)
    elif id is None:
        stored.show(findings, [stored.overview(findings)])
    else:
        found = [stored.inspection(c, findings) for c in findings.checkpoints]
        stored.show(findings, found, asked_for_one=True)
        for reason in findings.reasons():
            _complain(reason)
    if findings.is_empty and (job or id is not None):
        which, flag = (f" {id}", "--id") if id is not None else (f" of a job {job!r}", "--job")
        _complain(f"there is no completed checkpoint{which} in it. Without {flag} the command lists all.")
        raise typer.Exit(FAILED)
    if findings.is_empty and verify and not as_json:
        print("There is nothing to verify.")
    raise typer.Exit(FAILED if findings.is_damaged else 0)


@app.command()
def version() -> None:
    """Show the versions of tidegate and of its main dependencies."""
    _print_versions()


def _print_versions() -> None:
    for package in ("tidegate", "pyspark", "pyarrow", "polars"):
        typer.echo(f"{package} {importlib.metadata.version(package)}")
    typer.echo(f"python {platform.python_version()}")


def _call(words: list[str]) -> ScriptCall:
    try:
        call = parse_call(words)
        if not call.script.is_file():
            raise ConfigurationError(f"there is no script {call.script}.")
        return call
    except ConfigurationError as e:
        _complain(str(e))
        raise typer.Exit(USAGE_ERROR) from None


def _complain(message: str) -> None:
    print(message, file=sys.stderr)
