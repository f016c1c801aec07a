"""Prints the plan of a job in the terminal, wrapped to its width; operators keep their indentation."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TextIO


def print_plan(plan: str, out: TextIO | None = None) -> None:
    """Print the text of `explain`; wrapped for a terminal, unchanged for a file or a pipe."""
    out = out or sys.stdout
    if out.isatty():
        plan = wrap_plan(plan, shutil.get_terminal_size().columns)
    print(plan.rstrip("\n"), file=out, flush=True)


def wrap_plan(plan: str, width: int) -> str:
    """Break lines that are longer than `width` at spaces; continuation lines are indented further.

    >>> print(wrap_plan("  clicks [source: generator click; uid clicks] : Row(app_id: string)", 40))
      clicks [source: generator click; uid
          clicks] : Row(app_id: string)
    """
    return "\n".join(_wrap_line(line, width) for line in plan.splitlines())


def _wrap_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    below = " " * (len(line) - len(line.lstrip()) + 4)
    lines = textwrap.wrap(
        line, max(width, 40), subsequent_indent=below, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)
