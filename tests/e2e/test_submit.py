"""The same script however it is started: by `tidegate run` and by Spark's own `spark-submit`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyspark
import pytest

from tests.e2e.running import EXAMPLES, ROOT, run_program

SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
WORD_COUNT = EXAMPLES / "word_count.py"
MOST_FREQUENT = ["   4 the", "   3 in", "   2 a", "   2 and", "   2 is"]


def commands_of_the_readme() -> list[list[str]]:
    """What the page tells its reader to type after `make run`."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    return [line.split()[1:] for line in page.splitlines() if line.startswith(".venv/bin/tidegate ")]


@pytest.mark.parametrize("words", commands_of_the_readme(), ids=lambda words: words[0])
def test_commands_of_the_readme_work_as_they_are_written(tmp_path: Path, words: list[str]):
    tidegate = Path(sys.executable).with_name("tidegate")
    done = run_program([tidegate, *(ROOT / w if w.startswith("examples/") else w for w in words)], tmp_path)
    assert done.code == 0, done.err
    if words[0] == "run":
        assert done.out.splitlines() == MOST_FREQUENT
    elif words[0] == "explain":
        assert done.out.startswith("job 'pv count': 2 tasks")
    else:
        assert "parallelism" in done.out


@pytest.mark.spec("S3-1")
def test_word_count_by_spark_submit_runs_in_tasks_of_the_spark_that_was_asked_for(tmp_path: Path):
    log = tmp_path / "log"
    log.mkdir()
    settings = {
        "spark.python.task.killTimeout": "7s",  # also one of those that tidegate would choose itself
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    given = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    done = run_program(
        [SPARK_SUBMIT, "--master", "local[3]", "--name", "mine", *given, WORD_COUNT, "--parallelism", "3"],
        tmp_path,
    )
    # spark-submit sends what the program says to standard error to the same place: the end is the program's.
    assert (done.code, done.out.splitlines()[-5:]) == (0, MOST_FREQUENT), done.err

    (file,) = log.iterdir()
    events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    (started,) = (e for e in events if e["Event"] == "SparkListenerEnvironmentUpdate")
    assert started["Spark Properties"]["spark.master"] == "local[3]"
    assert started["Spark Properties"]["spark.app.name"] == "mine"
    assert settings.items() <= started["Spark Properties"].items()
    (job,) = (e for e in events if e["Event"] == "SparkListenerJobStart")
    assert job["Properties"]["spark.job.description"] == "tidegate word count"
    tasks = [e for e in events if e["Event"] == "SparkListenerTaskEnd"]
    assert [task["Task End Reason"]["Reason"] for task in tasks] == ["Success"] * 3
