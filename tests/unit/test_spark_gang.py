"""Where the JobManager listens on each kind of Spark, and whose Python its tasks run with."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate.core.errors import ConfigurationError, SlotsUnavailableError
from tidegate.core.options import Options
from tidegate.spark.artifacts import write_archive
from tidegate.spark.gang import SparkGang, use_python_of_driver


class Conf(dict):
    """A SparkConf."""

    def contains(self, key: str) -> bool:
        return key in self


def context(master: str, **settings: str) -> SimpleNamespace:
    conf = Conf({key.replace("__", "."): value for key, value in settings.items()})
    return SimpleNamespace(master=master, getConf=lambda: conf, pythonExec="python3")


def gang(master: str, bind_host: str = "", spark__driver__host: str = "", **options: str) -> SparkGang:
    settings = {"spark__driver__host": spark__driver__host} if spark__driver__host else {}
    session = SimpleNamespace(_jsparkSession=None, sparkContext=context(master, **settings))
    return SparkGang(session, Options().with_keywords(bind_host=bind_host, **options))


def connect_gang(server: str, bind_host: str = "") -> SparkGang:
    session = SimpleNamespace(client=SimpleNamespace(host=server))
    return SparkGang(session, Options().with_keywords(bind_host=bind_host))


@pytest.mark.parametrize(
    ("master", "bind_host", "expected"),
    [
        ("local", "", ("127.0.0.1", "127.0.0.1")),
        ("local[2]", "0.0.0.0", ("0.0.0.0", "localhost")),
        ("local-cluster[2,1,512]", "127.0.0.1", ("127.0.0.1", "127.0.0.1")),
        ("spark://m:7077", "", ("10.0.0.1", "10.0.0.1")),
        ("spark://m:7077", "0.0.0.0", ("0.0.0.0", "10.0.0.1")),
        ("spark://m:7077", "10.9.9.9", ("10.9.9.9", "10.9.9.9")),
    ],
)
def test_executors_are_given_an_address_at_which_the_control_port_is(master, bind_host, expected):
    assert gang(master, bind_host, spark__driver__host="10.0.0.1").control_host() == expected


@pytest.mark.parametrize("bind_host", ["127.0.0.1", "localhost", "127.1.2.3"])
def test_a_loopback_address_is_refused_where_executors_may_be_on_other_hosts(bind_host):
    made = gang("spark://m:7077", bind_host, spark__driver__host="10.0.0.1")
    with pytest.raises(
        ConfigurationError, match=r"loopback address.*master spark://m:7077.*spark\.driver\.host, 10\.0\.0\.1"
    ):
        made.control_host()


def test_a_loopback_address_will_do_for_a_cluster_whose_driver_is_at_one():
    made = gang("spark://127.0.0.1:7077", "127.0.0.1", spark__driver__host="127.0.0.1")
    assert made.control_host() == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("bind_host", ["", "127.0.0.1"])
def test_a_connect_server_elsewhere_needs_an_address_that_its_executors_reach(bind_host):
    with pytest.raises(ConfigurationError, match=r"Spark Connect server 10\.0\.0\.9 cannot reach"):
        connect_gang("10.0.0.9", bind_host).control_host()
    assert connect_gang("localhost", bind_host).control_host() == ("127.0.0.1", "127.0.0.1")
    assert connect_gang("10.0.0.9", "10.0.0.1").control_host() == ("10.0.0.1", "10.0.0.1")


def test_a_start_that_is_sure_to_fail_is_refused_before_the_job_is_claimed(monkeypatch):
    monkeypatch.setattr(SparkGang, "count_slots", lambda self: 2)
    gang("local[2]").check_start(2)
    gang("local-cluster[2,1,512]").check_start(5)  # where more may come
    for master in ("local", "local[*]", "local[2]", "local[2,4]"):
        with pytest.raises(SlotsUnavailableError, match=r"needs 5 slots, and the master local.* more than 2"):
            gang(master).check_start(5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = gang("local[2]", control_port=str(taken.getsockname()[1]))
        with pytest.raises(ConfigurationError, match=r"no port of network\.control_port"):
            made.check_start(1)
    made = gang("local[2]", tls="on", tls_certificate="there.pem")
    with pytest.raises(ConfigurationError, match="tls_key is missing"):
        made.check_start(1)


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[2,1,512]"])
def test_a_master_on_this_machine_runs_tasks_with_the_python_of_the_driver(master, monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    made = context(master)
    use_python_of_driver(made)
    assert made.pythonExec == sys.executable


def test_a_python_that_somebody_chose_is_kept(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    cluster, chosen = context("spark://m:7077"), context("local", spark__pyspark__python="/x/python")
    use_python_of_driver(cluster)
    use_python_of_driver(chosen)
    monkeypatch.setenv("PYSPARK_PYTHON", "/y/python")
    told = context("local")
    use_python_of_driver(told)
    assert {made.pythonExec for made in (cluster, chosen, told)} == {"python3"}


def test_a_slot_can_be_imported_from_the_archive_that_is_shipped_by_its_relative_path(tmp_path: Path):
    write_archive(tmp_path / "package.zip")
    program = (
        "import sys; sys.path.insert(0, './package.zip'); import tidegate.spark.gang as g; print(g.__file__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "package.zip" in found.stdout, found.stderr
