"""Jobs on hosts of their own, with their own addresses: links and hosts are cut and healed, and the output is exact."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.kit import PROGRAM
from tests.fault.storm import judge
from tests.hosts import Hosts, separate_hosts
from tests.spark.standalone import Cluster, Driver, python_without_tidegate

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

MASTER, DRIVER, ONE, OTHER, SECOND_DRIVER = range(1, 6)


class Site:
    """A standalone cluster whose master, drivers and two workers are hosts of their own."""

    def __init__(self, hosts: Hosts, cluster: Cluster, directory: Path) -> None:
        self.hosts = hosts
        self.home = directory / "home"
        self._cluster = cluster
        self._directory = directory
        self._python = str(python_without_tidegate(directory))

    def driver(self, host: int, resume: str = "latest-or-new") -> Driver:
        directory = self._directory / f"driver-{host}"
        directory.mkdir()
        address = self.hosts.address(host)
        return Driver(
            directory,
            "on_hosts",
            self._cluster.url,
            str(self.home),
            address,
            resume,
            env={"CLUSTER_PYTHON": self._python, "SPARK_LOCAL_IP": address},
            program=PROGRAM,
            prefix=self.hosts.command(host),
        )


@contextlib.contextmanager
def site_in(directory: Path) -> Iterator[Site]:
    (directory / "home").mkdir()
    (directory / "cluster").mkdir()
    with separate_hosts(5) as hosts:
        host_at = {hosts.address(host): host for host in range(1, 6)}

        def command_at(address: str, command: list[str]) -> list[str]:
            return hosts.command(host_at[address], *command)

        with Cluster(directory / "cluster", hosts.address(MASTER), command_at) as cluster:
            for host in (ONE, OTHER):
                machine = directory / f"host-{host}"
                cluster.add_worker(machine=machine, address=hosts.address(host), memory="1100m")
            cluster.await_workers()
            yield Site(hosts, cluster, directory)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as made:
        yield made


def finish(driver: Driver, site: Site) -> None:
    driver.tell("close")
    end = driver.expect("finished", 240)["end"]
    assert driver.wait(60) == 0, driver.errors()
    assert judge(site.home, 2, end) == 2 * end


@pytest.mark.parametrize(
    "lost", [((ONE, OTHER), (OTHER, ONE)), ((ONE, OTHER),), ((OTHER, ONE),)], ids=["both", "there", "back"]
)
def test_a_link_between_two_slots_is_cut_while_the_driver_reaches_both(site, lost):
    hosts = site.hosts
    with site.driver(DRIVER) as driver:
        said = driver.expect("running", 240)
        assert set(said["hosts"]) == {hosts.address(ONE), hosts.address(OTHER)}
        assert all(40100 <= port <= 40110 for port in said["ports"])
        for sender, receiver in lost:
            hosts.drop(sender, receiver)
        driver.tell(str(said["attempt"]))
        begun = time.monotonic()
        error = driver.expect("failed", 120)["error"]
        assert time.monotonic() - begun < 30, "not when the kernel gives up"
        assert hosts.address(ONE) in error
        assert hosts.address(OTHER) in error
        assert "network.link_timeout" in error or "cannot connect to it at" in error
        for sender, receiver in lost:
            hosts.deliver(sender, receiver)
        driver.tell("healed")
        driver.expect("recovered", 240)
        finish(driver, site)


def test_a_host_is_cut_off_and_healed(site):
    hosts = site.hosts
    with site.driver(DRIVER) as driver:
        said = driver.expect("running", 240)
        hosts.cut(OTHER)
        driver.tell(str(said["attempt"]))
        error = driver.expect("failed", 120)["error"]
        assert f"on host {hosts.address(OTHER)}" in error
        hosts.heal(OTHER)
        driver.tell("healed")
        driver.expect("recovered", 240)
        finish(driver, site)


def test_the_driver_is_cut_off_and_healed_and_goes_on(site):
    hosts = site.hosts
    with site.driver(DRIVER) as driver:
        said = driver.expect("running", 240)
        hosts.cut(DRIVER)
        driver.tell(str(said["attempt"]))
        error = driver.expect("failed", 120)["error"]
        assert "silent" in error or "lost its data connection" in error
        hosts.heal(DRIVER)
        driver.tell("healed")
        driver.expect("recovered", 240)
        finish(driver, site)


def test_a_driver_that_is_cut_off_is_replaced_and_ends_when_it_comes_back(site):
    """Split brain: for a while both believe that the job is theirs."""
    hosts = site.hosts
    with site.driver(DRIVER) as first:
        first.expect("running", 240)
        hosts.cut(DRIVER)
        with site.driver(SECOND_DRIVER, "latest") as second:
            second.expect("running", 240)
            first.tell("end")
            hosts.heal(DRIVER)
            error = first.expect("failed", 240)["error"]
            assert "another driver has taken the job over" in error
            assert first.wait(60) == 0, first.errors()
            finish(second, site)
