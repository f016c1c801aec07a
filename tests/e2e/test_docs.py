"""The documentation tells the truth: its code runs, and what it prints is what it says."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]

RUNNER = """
import contextlib, doctest, io, re, sys
from pathlib import Path

page = Path(sys.argv[1])
text = page.read_text(encoding="utf-8")
blocks = [
    (m["info"].split(), m["code"], text.count("\\n", 0, m.start("code")))
    for m in re.finditer(r"^```(?P<info>[^\\n]*)\\n(?P<code>.*?)^```$", text, re.M | re.S)
]
namespace = sys.modules["__main__"].__dict__
ran = 0
for i, (info, code, line) in enumerate(blocks):
    if info[:1] != ["python"] or "no-run" in info:
        continue
    where = f"{page.name}, line {line + 1}"
    ran += 1
    if code.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(code, namespace, where, str(page), line)
        test.globs = namespace
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
        runner.run(test, clear_globs=False)
        if runner.failures:
            sys.exit(f"{where}: {runner.failures} of its examples fail")
        continue
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\\n" * line + code, str(page), "exec"), namespace)
    following = blocks[i + 1] if i + 1 < len(blocks) else ((), "", 0)
    if list(following[0]) == ["text", "output"] and printed.getvalue() != following[1]:
        sys.exit(f"{where}: printed\\n{printed.getvalue()}\\nbut the page says\\n{following[1]}")
print(ran)
"""


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:tidegate", "-c", RUNNER, str(page)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_each_page_runs(page: Path, tmp_path: Path) -> None:
    result = run_page(page, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    blocks = len(re.findall(r"^```python(?! no-run)", page.read_text(encoding="utf-8"), re.M))
    assert int(result.stdout.split()[-1]) == blocks


def test_a_page_whose_output_is_wrong_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text output\n2\n```\n")
    result = run_page(page, tmp_path)
    assert result.returncode == 1
    assert "page.md, line 6: printed\n1\n\nbut the page says\n2" in result.stderr


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_page_of_options_is_that_of_the_registry() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_options.py"), run_name="made")
    page = made["PAGE"].read_text(encoding="utf-8")
    assert page == made["options_page"](), "run: python docs/make_options.py"


def test_the_picture_of_windows_is_that_of_a_run() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_event_time_picture.py"), run_name="made")
    picture = made["PICTURE"].read_text(encoding="utf-8")
    assert picture == made["picture"](), "run: python docs/make_event_time_picture.py"
