"""Writes docs/guide/options.md from the registry of options: `python docs/make_options.py`."""

from __future__ import annotations

from pathlib import Path

from tidegate.core.options import describe

PAGE = Path(__file__).parent / "guide" / "options.md"

HEAD = """# Options

`python docs/make_options.py` makes this page from the registry; a test keeps it up to date.

You can set an option as a keyword argument (`Environment(buffer_timeout=5)`), in a YAML or TOML file by its key
(`Environment(config="job.yaml")`), or on the command line (`--option network.buffer_timeout=5ms`, or
`--network.buffer-timeout 5ms`). The command line overrides code, and code overrides the file. An unknown key is
refused, and the error names the nearest known key. Durations without a unit are milliseconds (`200`, `"5 ms"`,
`"2 min"`, a `timedelta`); sizes without a unit are bytes (`"32 KiB"`).

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
