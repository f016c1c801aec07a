"""Listening sockets: at any port, a fixed one, or the first free one of a range; and the loopback test."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time

from tidegate.core.errors import ConfigurationError
from tidegate.core.option_types import port_range

_BACKLOG = 256
_TRY_AGAIN_S = 0.1


def listen(host: str, ports: str, option: str, *, patience_s: float = 0.0) -> socket.socket:
    """A socket that listens at the first free port of a range; if `ports` is empty, at any port.

    If all ports are in use, it tries again for `patience_s`: processes of an earlier attempt may still hold them. Then
    it raises a `ConfigurationError` that names the option.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + patience_s
    reason = ""
    while True:
        for port in port_range(ports):
            try:
                return socket.create_server((host, port), family=family, backlog=_BACKLOG)
            except OSError as e:
                if e.errno not in (errno.EADDRINUSE, errno.EACCES) or not ports:
                    raise
                reason = str(e.strerror)
        if time.monotonic() >= deadline:
            raise ConfigurationError(
                f"no port of {option} ({ports}) is available at {host or 'this host'}: {reason}. Widen the range (each "
                f"job of a driver needs a control port, each slot of a host a data port), or free one."
            )
        time.sleep(_TRY_AGAIN_S)


def is_loopback(host: str) -> bool:
    """Whether an address, or every address of a name, is a loopback address; False for a name without one."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
