"""The command line: options from outside, the script's own arguments, plain errors, plans."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.core.errors import ConfigurationError
from tidegate.core.options import describe

PRELUDE = "import sys\nfrom tidegate import Environment\n"
JOB = 'for n in Environment(runtime="in-process").from_sequence(1, 3).execute_and_collect():\n    print("got", n)\n'

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a script and gives its path."""

    def write_script(body: str) -> str:
        script = tmp_path / "job.py"
        script.write_text(PRELUDE + body, encoding="utf-8")
        return str(script)

    return write_script


def tidegate(*words: str) -> Any:
    return CliRunner().invoke(app, words, catch_exceptions=False)


# ---- run ----


def test_run_runs_the_script_as_main(write: Write):
    result = tidegate(
        "run", write('print(__name__)\nif __name__ == "__main__":\n    ' + JOB.replace("\n", "\n    "))
    )
    assert result.output.splitlines() == ["__main__", "got 1", "got 2", "got 3"]
    assert result.exit_code == 0


def test_functions_and_classes_of_the_script_work_in_its_job(write: Write):
    script = write(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Click:\n    app: str\n"
        "def shout(c: Click) -> Click:\n    return Click(c.app.upper())\n"
        'env = Environment(runtime="in-process")\n'
        'print(*env.from_collection([Click("a")]).map(shout).execute_and_collect())\n'
    )
    assert tidegate("run", script).output == "Click(app='A')\n"


def test_modules_beside_the_script_can_be_imported(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "beside_the_job.py").write_text("ANSWER = 42\n", encoding="utf-8")
    path_before = sys.path[:]
    result = tidegate("run", write("import beside_the_job\nprint(beside_the_job.ANSWER)\n"))
    monkeypatch.delitem(sys.modules, "beside_the_job")
    assert result.output == "42\n"
    assert sys.path == path_before


@pytest.mark.parametrize(
    "words",
    [
        ["JOB", "--parallelism", "3", "--mini-batch"],
        ["--parallelism", "3", "JOB", "--execution.mini_batch=true"],
        ["-o", "parallelism=3", "--option", "mini_batch=yes", "JOB"],
    ],
)
def test_options_of_the_command_line_win_over_the_program(write: Write, words: list[str]):
    script = write(
        'env = Environment(parallelism=2, args=["--parallelism", "5"])\n'
        "print(env.options.parallelism, env.options.mini_batch, sys.argv[1:])\n"
    )
    assert tidegate("run", *(script if w == "JOB" else w for w in words)).output == "3 True []\n"


def test_options_are_gone_when_the_script_has_ended(write: Write):
    script = write("print(Environment().options.parallelism)\n")
    assert tidegate("run", script, "--parallelism", "7").output == "7\n"
    assert tidegate("run", script).output == "1\n"


def test_other_words_go_to_the_script_untouched(write: Write):
    script = write("print(sys.argv[1:], Environment().options.parallelism)\n")
    result = tidegate(
        "run", script, "in.json", "--limit=3", "--parallelism", "2", "-v", "--", "--progress", "a b", "--"
    )
    assert result.output == "['in.json', '--limit=3', '-v', '--progress', 'a b', '--'] 2\n"


def test_help_behind_the_script_is_the_scripts(write: Write):
    assert tidegate("run", write("print(sys.argv[1:])\n"), "--help").output == "['--help']\n"


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(3)", 3), ("sys.exit()", 0), ('sys.exit("no")', 1), ("", 0)]
)
def test_exit_code_is_the_scripts(write: Write, ending: str, code: int):
    assert tidegate("run", write(ending)).exit_code == code


def test_refused_program_is_told_with_its_line_and_without_a_traceback(write: Write):
    result = tidegate("run", script := write("env = Environment()\nenv.from_sequence(1, 2).union(5)\n"))
    assert result.exit_code == 1
    assert result.stderr == f"union needs streams, got an int: 5\n  {script}, line 4\n"


def test_failed_job_is_told_with_the_users_own_traceback_once(write: Write):
    script = write(
        "def burst(n: int) -> int:\n    return n // (n - 2)\n"
        'list(Environment(runtime="in-process").from_sequence(1, 3).map(burst).execute_and_collect())\n'
    )
    result = tidegate("run", script)
    assert result.exit_code == 1
    assert result.stderr.count("return n // (n - 2)") == 1
    assert "map burst" in result.stderr
    assert "tidegate/cli" not in result.stderr
    assert "tidegate/launch" not in result.stderr


def test_programs_own_error_is_shown_as_python_shows_it(write: Write):
    result = tidegate("run", script := write("def f():\n    raise KeyError('x')\nf()\n"))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 5, in <module>',
    ]
    assert result.stderr.splitlines()[-1] == "KeyError: 'x'"


def test_interrupted_script_ends_with_130_and_one_line(write: Write):
    result = tidegate("run", write("raise KeyboardInterrupt\n"))
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["JOB", "--paralelism", "3"], "Did you mean --parallelism?"),
        (["JOB", "--parallelism", "many"], "option parallelism cannot be 'many'"),
        (["JOB", "--option", "colour=red"], "there is no option 'colour'"),
        (["JOB", "--parallelism"], "option parallelism needs a value"),
        (["missing.py"], "there is no script missing.py."),
        (["--parallelism", "3"], "name the script to run"),
        (["--limit", "JOB"], "name the script to run, but --limit comes first"),
    ],
)
def test_wrong_command_line_is_refused_before_the_script_starts(write: Write, words: list[str], message: str):
    script = write('print("started")\n')
    result = tidegate("run", *(script if w == "JOB" else w for w in words))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "started" not in result.output


# ---- explain ----

STARTS = [
    'stream.print()\nenv.execute("mine")\n',
    'stream.print()\nenv.execute_async("mine")\n',
    'stream.execute_and_collect("mine")\n',
    'stream.to_dataframe("mine")\n',
]


@pytest.mark.parametrize("start", STARTS)
def test_explain_shows_the_plan_wherever_the_script_starts_its_job(write: Write, start: str):
    script = write(
        "env = Environment()\nstream = env.from_sequence(1, 9)\n"
        f"try:\n    {start.strip().replace(chr(10), chr(10) + '    ')}\nexcept Exception:\n    pass\n"
        'print("went on")\n'
    )
    result = tidegate("explain", script, "--parallelism", "2")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("job 'mine': 1 task, 2 slots needed")
    assert "went on" not in result.output


@pytest.mark.parametrize(
    ("format", "start"), [("json", "{"), ("mermaid", "---\ntitle:"), ("svg", "<svg "), ("text", "job 'job'")]
)
def test_explain_writes_every_format_to_a_file(write: Write, tmp_path: Path, format: str, start: str):
    file = tmp_path / "plan"
    result = tidegate("explain", write(JOB), "--format", format, "--output", str(file))
    assert (result.exit_code, result.output) == (0, "")
    content = file.read_text(encoding="utf-8")
    assert content.startswith(start)
    if format == "json":
        assert json.loads(content)["slots"]["total"] == 1


def test_explain_takes_its_options_on_either_side_and_leaves_those_after_the_dashes(write: Write):
    script = write("print(sys.argv[1:])\n" + JOB)
    for words in (["--format", "json", script], [script, "--format", "json"]):
        result = tidegate("explain", *words, "x", "--", "--format", "own")
        first, _, plan = result.output.partition("\n")
        assert first == "['x', '--format', 'own']"
        assert json.loads(plan)["name"] == "job"


def test_explain_of_a_script_without_a_job_says_so(write: Write):
    result = tidegate("explain", write("print('nothing')\n"))
    assert result.exit_code == 1
    assert "ended without starting a job" in result.stderr


def test_explain_of_a_refused_program_fails_with_the_reason(write: Write):
    result = tidegate("explain", write("Environment().execute()\n"))
    assert result.exit_code == 1
    assert "sink" in result.stderr


def test_a_script_runs_again_after_it_was_explained(write: Write):
    script = write(JOB)
    tidegate("explain", script)
    assert tidegate("run", script).output == "got 1\ngot 2\ngot 3\n"


# ---- options, version, and the ways in ----


def test_options_lists_every_option_in_80_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = tidegate("options").output.splitlines()
    keys = {line.split(" ", 1)[0] for line in lines}
    assert {row.key for row in describe()} <= keys
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    assert "exclusive" in words
    assert "credits)." in words


def test_version_names_what_runs():
    from tidegate import __version__

    assert tidegate("version").output.splitlines()[0] == f"tidegate {__version__}"


def test_version_is_also_an_option():
    assert tidegate("--version").output == tidegate("version").output


@pytest.mark.parametrize("command", ["run", "explain", "options", "version"])
def test_every_command_has_help(command: str):
    result = tidegate(command, "--help")
    assert result.exit_code == 0
    assert f"tidegate {command}" in result.output or f"{command}" in result.output


def test_python_m_tidegate_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == tidegate("version").output


def test_entry_point_of_the_package_is_the_app():
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="tidegate")
    assert entry.load() is app


def test_options_of_a_wrong_command_line_are_a_configuration_error():
    from tidegate.cli.script import parse_call

    with pytest.raises(ConfigurationError, match=r"write it after --"):
        parse_call(["job.py", "--progres=on"])


IN_A_THREAD = (
    "import threading\n"
    "def body():\n"
    '    env = Environment(runtime="in-process")\n'
    '    print("parallelism", env.options.parallelism)\n'
    '    print("got", *env.from_sequence(1, 1).execute_and_collect())\n'
    "thread = threading.Thread(target=body)\nthread.start()\nthread.join()\n"
)


def test_options_of_the_command_line_reach_the_threads_of_a_script(write: Write):
    result = tidegate("run", write(IN_A_THREAD), "--parallelism", "3")
    assert result.output.splitlines() == ["parallelism 3", "got 1"]


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # pytest's: Python says nothing
def test_explain_runs_no_job_in_a_thread_of_the_script_either(write: Write):
    result = tidegate("explain", write(IN_A_THREAD))
    assert "got 1" not in result.output
    assert "sequence 1..1" in result.output
