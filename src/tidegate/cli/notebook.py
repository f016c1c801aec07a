"""A notebook as a screen: what rich draws, as HTML in the output of a cell, replaced with each update."""

from __future__ import annotations

import io
import sys
from typing import Any

from rich.console import Console, RenderableType

_WIDTH = 110
_FORMAT = '<pre style="white-space:pre;line-height:1.25;font-family:monospace">{code}</pre>'


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook; does not import IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def html_of(drawn: RenderableType) -> str:
    """What a terminal would show, as HTML that needs no style sheet."""
    console = Console(record=True, file=io.StringIO(), width=_WIDTH, force_terminal=True, force_jupyter=False)
    console.print(drawn)
    return console.export_html(inline_styles=True, code_format=_FORMAT)


class NotebookScreen:
    """One output of a cell. Made on the thread of the cell; any thread may draw."""

    def __init__(self) -> None:
        display: Any = sys.modules["IPython"].display.display  # the kernel has loaded it
        self._handle: Any = display({"text/html": ""}, raw=True, display_id=True)

    def show(self, drawn: RenderableType) -> None:
        """Replace the output."""
        self._handle.update({"text/html": html_of(drawn)}, raw=True)
