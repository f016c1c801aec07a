"""Hosts with their own addresses on this machine: network namespaces on a bridge, whose links can be cut and healed."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import subprocess
from collections.abc import Iterator

import pytest

_CLONE_NEWNET = 0x40000000
_NOBODY = "02:00:00:00:00:01"
_libc = ctypes.CDLL(None, use_errno=True)
_networks = itertools.count()


class Hosts:
    """The hosts 1..n at `address(i)`; this process stands beside them at `address(0)`."""

    def __init__(self, count: int) -> None:
        # Unique per process and network: tests run beside each other.
        self._name = f"tg{os.getpid()}{'abcdefghijklmnop'[next(_networks) % 16]}"
        self._subnet = f"10.{90 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self.count = count

    def address(self, host: int) -> str:
        """The address of a host; 0 is this process's own."""
        return f"{self._subnet}.{10 + host}"

    def namespace(self, host: int) -> str:
        """The name of a host for `ip netns`."""
        return f"{self._name}n{host}"

    def command(self, host: int, *words: str) -> list[str]:
        """A command line that runs on a host."""
        return ["ip", "netns", "exec", self.namespace(host), *words] if host else list(words)

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """Sockets that this thread makes here belong to that host, for as long as they live."""
        with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{self.namespace(host)}") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def cut(self, host: int) -> None:
        """Cut a host off from everybody, silently, as a pulled cable does."""
        _ip("link", "set", f"{self._name}v{host}", "down")

    def heal(self, host: int) -> None:
        """Undo `cut`."""
        _ip("link", "set", f"{self._name}v{host}", "up")

    def drop(self, sender: int, receiver: int) -> None:
        """Lose whatever `sender` sends to `receiver`; the other direction and all other hosts stay as they are."""
        # The packets go to a hardware address that nobody has.
        self._neighbour(sender, "replace", self.address(receiver), "lladdr", _NOBODY, "nud", "permanent")

    def deliver(self, sender: int, receiver: int) -> None:
        """Undo `drop`."""
        self._neighbour(sender, "del", self.address(receiver))

    def _neighbour(self, host: int, verb: str, *words: str) -> None:
        if host:
            _ip("-n", self.namespace(host), "neigh", verb, *words, "dev", "eth0")
        else:
            _ip("neigh", verb, *words, "dev", self._name)

    def _set_up(self) -> None:
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{self.address(0)}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for host in range(1, self.count + 1):
            inside, link = self.namespace(host), f"{self._name}v{host}"
            _ip("netns", "add", inside)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", inside)
            _ip("link", "set", link, "master", self._name, "up")
            _ip("-n", inside, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", inside, "link", "set", "eth0", "up")
            _ip("-n", inside, "link", "set", "lo", "up")

    def _tear_down(self) -> None:
        for host in range(1, self.count + 1):
            subprocess.run(["ip", "netns", "del", self.namespace(host)], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", f"{self._name}v{host}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._name], capture_output=True, check=False)


@contextlib.contextmanager
def separate_hosts(count: int) -> Iterator[Hosts]:
    """So many hosts. If they cannot be made, the test fails in CI and is skipped elsewhere."""
    hosts = Hosts(count)
    try:
        try:
            hosts._set_up()
        except (OSError, subprocess.CalledProcessError) as e:
            said = e.stderr.strip() if isinstance(e, subprocess.CalledProcessError) else str(e)
            message = f"cannot make network namespaces (this needs root and iproute2): {said}"
            if os.environ.get("CI") == "true":
                pytest.fail(message)
            pytest.skip(message)
        yield hosts
    finally:
        hosts._tear_down()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
