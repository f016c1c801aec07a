"""Writes docs/guide/options.md from the registry of options: `python docs/make_options.py`."""

from __future__ import annotations

from pathlib import Path

from tidegate.core.options import describe

PAGE = Path(__file__).parent / "guide" / "options.md"

HEAD = """# Options

Made from the registry by `python docs/make_options.py`; a test keeps it up to date.

Each option can be set as a keyword argument (`Environment(buffer_timeout=5)`), in a YAML or TOML file by its key
(`Environment(config="job.yaml")`), or on the command line (`--option network.buffer_timeout=5ms`, or
`--network.buffer-timeout 5ms`). The command line wins over code, code over the file. A key that does not exist is
refused with the nearest one that does. Durations without a unit are milliseconds (`200`, `"5 ms"`, `"2 min"`, a
`timedelta`), sizes without one are bytes (`"32 KiB"`).

| Key | Keyword | Type | Default | Meaning |
|---|---|---|---|---|
"""


def options_page() -> str:
    """The whole page."""
    rows = [
        [f"`{r.key}`", f"`{r.name}`", r.type, f"`{r.default}`" if r.default else "", r.help]
        for r in describe()
    ]
    return HEAD + "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows
    )


if __name__ == "__main__":
    PAGE.write_text(options_page(), encoding="utf-8")
