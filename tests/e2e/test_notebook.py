"""A notebook, executed cell by cell in a kernel of this environment: what is defined in a cell works in the slots."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

CELLS = [
    """
from dataclasses import dataclass
from tidegate import Environment

@dataclass
class Click:
    app: str
    user: int

CLICKS = [Click("app1", 7), Click("app2", 7), Click("app1", 9)]
""",
    """
SUFFIX = "!"

def shout(click: Click) -> Click:
    return Click(click.app.upper() + SUFFIX, click.user)

env = Environment(parallelism=2)
counts = env.from_collection(CLICKS).map(shout).key_by("app").count()
sorted(tuple(row) for row in counts.execute_and_collect())
""",
    """
SUFFIX = "?"  # the next job sees what the notebook says now, on the same session

from pyspark.sql import SparkSession
session = SparkSession.getActiveSession()
env = Environment(parallelism=2)
env.from_collection(CLICKS[:1]).map(shout).print("shouted")
metrics = env.execute()
(metrics.status, SparkSession.getActiveSession() is session)
""",
    """
env.from_sequence(1, 10).to_dataframe().groupBy().sum("value").collect()[0][0]
""",
    """
from IPython.display import SVG
env.from_sequence(1, 10).print()
SVG(env.explain("svg"))
""",
    """
counts = Environment(parallelism=2).from_collection(CLICKS).map(shout).key_by("app").count()
counts.explain()
""",
    "metrics",
    """
def fail(click: Click) -> int:
    return click.user // 0

try:
    list(Environment().from_collection(CLICKS).map(fail).execute_and_collect())
except Exception as e:
    print(type(e).__name__, e)
""",
]


def outputs(cell: nbformat.NotebookNode, kind: str) -> list[str]:
    """The results (`text/plain`), pictures or printed text of a cell."""
    if kind == "stdout":
        return [o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout"]
    return [o.data[kind] for o in cell.outputs if "data" in o and kind in o.data]


@pytest.mark.timeout(180)
@pytest.mark.spec("S3-1")
def test_notebook_defines_functions_runs_jobs_and_shows_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("PYSPARK_PYTHON", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in CELLS])

    client = nbclient.NotebookClient(
        notebook, timeout=110, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()

    _, counted, printed, summed, pictured, planned, measured, failed = notebook.cells
    assert outputs(counted, "text/plain") == ["[('APP1!', 1), ('APP1!', 2), ('APP2!', 1)]"]
    (line,) = "".join(outputs(printed, "stdout")).splitlines()
    assert line.startswith("shouted:")
    assert line.endswith("> Click(app='APP1?', user=7)")
    assert outputs(printed, "text/plain") == ["('FINISHED', True)"]
    assert outputs(summed, "text/plain") == ["55"]
    assert outputs(pictured, "image/svg+xml")[0].startswith("<svg")
    assert outputs(planned, "text/html")[0].startswith("<svg")
    assert "job &#x27;job&#x27; FINISHED" in outputs(measured, "text/html")[0]
    assert "<td" in outputs(measured, "text/html")[0]
    (progress,) = outputs(printed, "text/html")  # drawn again and again, in one place
    assert "FINISHED" in progress
    assert "print shouted" in progress
    message = "".join(outputs(failed, "stdout"))
    assert message.startswith("JobFailedError ")
    assert "operator 'map fail'" in message
    assert message.count("line 2, in fail") == 1
