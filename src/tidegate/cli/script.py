"""Runs a user's script as `__main__`, with its own arguments, and prints its errors plainly.

Everything happens in this process and thread, as with `python job.py`: the same working directory and `sys.path[0]`. So
a program notices no difference, except that some options are set for it.
"""

from __future__ import annotations

import difflib
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tidegate.api.environment import ambient
from tidegate.core.errors import ConfigurationError, JobError, TidegateError
from tidegate.core.options import COMMAND_LINE, Options, describe, split_arguments

FAILED = 1
INTERRUPTED = 130
_NEAR = 0.8


class ScriptCall(NamedTuple):
    """The parts of a command line: a script, the options of tidegate, and the script's own arguments."""

    script: Path
    options: tuple[str, ...]
    arguments: tuple[str, ...]


def parse_call(words: Sequence[str]) -> ScriptCall:
    """Parse `[--option value ...] job.py [--option value ...] [its own words] [-- its own words]`.

    A word that looks like an option and is not one belongs to the script. If it is nearly the name of an option, it is
    refused: a mistyped option must not be ignored.

    >>> parse_call(["job.py", "--parallelism", "4", "--input", "clicks.json", "--", "--progress"])[1:]
    (('--parallelism=4',), ('--input', 'clicks.json', '--progress'))
    """
    ours = words[: list(words).index("--")] if "--" in words else words
    for word in ours:
        _refuse_mistyped(word)
    values, rest = split_arguments(words, known_only=True)
    Options().with_values(values, COMMAND_LINE)  # a bad value is refused before the script starts
    if not rest or rest[0].startswith("-"):
        got = f", but {rest[0]} comes first" if rest else ""
        raise ConfigurationError(f"name the script to run{got}: tidegate run job.py.")
    return ScriptCall(
        Path(rest[0]), tuple(f"--{key}={value}" for key, value in values.items()), tuple(rest[1:])
    )


def run_script(call: ScriptCall) -> int:
    """Run the script to its end and return its exit code; prints what it raised to standard error."""
    before = sys.argv, sys.path[:]
    sys.argv = [str(call.script), *call.arguments]
    sys.path.insert(0, str(call.script.resolve().parent))
    ambient.arguments = call.options
    try:
        runpy.run_path(str(call.script), run_name="__main__")
    except SystemExit as e:
        return _exit_code(e)
    except KeyboardInterrupt as e:
        print(f"interrupted: {e}" if e.args else "interrupted", file=sys.stderr)
        return INTERRUPTED
    except TidegateError as e:
        print(f"{e}{_place(e, call.script)}", file=sys.stderr)
        return FAILED
    except Exception as e:  # noqa: BLE001 - the user's program may raise anything; print it as python would
        traceback.print_exception(e.with_traceback(_own_part(e.__traceback__, call.script)))
        return FAILED
    finally:
        ambient.arguments = ()
        sys.argv, sys.path[:] = before
        sys.stdout.flush()
    return 0


def _refuse_mistyped(word: str) -> None:
    flag = word.partition("=")[0]
    spelling = flag[2:].lower().replace("-", "_")
    if not flag.startswith("--") or not spelling or spelling == "option" or spelling in Options():
        return
    names = {name for row in describe() for name in (row.key, row.name)}
    near = difflib.get_close_matches(spelling, sorted(names), n=1, cutoff=_NEAR)
    if near:
        raise ConfigurationError(
            f"there is no option {flag!r} (set in {COMMAND_LINE}). Did you mean --{near[0]}? "
            f"If it is meant for the script, write it after --."
        )


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return FAILED


def _place(error: TidegateError, script: Path) -> str:
    """The line of the script that was refused; empty for a job's failure, which names its own place."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(script)
    ]
    if isinstance(error, JobError) or not lines:
        return ""
    return f"\n  {script}, line {lines[-1]}"


def _own_part(trace: TracebackType | None, script: Path) -> TracebackType | None:
    """The traceback from the script's first frame on, without ours."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename != str(script):
        rest = rest.tb_next
    return rest or trace
