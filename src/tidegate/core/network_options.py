"""The options of control and data connections; part of `tidegate.core.options.Options`."""

from __future__ import annotations

from tidegate.core.option import Option
from tidegate.core.option_types import DURATION, PORTS, SIZE, TEXT, at_least, choice, integer


class NetworkOptions:
    """The options of connections and buffers."""

    __slots__ = ()

    buffer_timeout = Option(
        "network.buffer_timeout",
        DURATION,
        10,
        "Longest time that a record waits for its batch to fill; 0: flush immediately.",
        aliases=["execution.buffer_timeout"],
    )
    buffer_size = Option(
        "network.buffer_size",
        at_least(1, SIZE),
        512 << 10,
        "Bytes to which small batches are collected before they are sent; a batch of more than twice that is cut.",
        aliases=["taskmanager.memory.segment_size"],
    )
    buffers_per_channel = Option(
        "network.buffers_per_channel",
        integer(1),
        2,
        "Buffers that each input channel has for itself (its exclusive credits).",
    )
    floating_buffers = Option(
        "network.floating_buffers",
        integer(0, 64),
        8,
        "Buffers that the channels of an input gate share, assigned by backlog.",
        aliases=["network.floating_buffers_per_gate"],
    )
    bind_host = Option(
        "network.bind_host",
        TEXT,
        "",
        "Address that the control port binds to; 0.0.0.0 or :: also for data ports; empty: chosen automatically.",
    )
    control_port = Option(
        "network.control_port",
        PORTS,
        "",
        "Port of the driver's control port, or a range of which it takes the first free one; empty: any.",
        aliases=["jobmanager.rpc.port"],
    )
    data_ports = Option(
        "network.data_ports",
        PORTS,
        "",
        "Range of ports for the slots' data ports; each slot of a host needs one. Empty: any.",
        aliases=["taskmanager.data.port"],
    )
    tls = Option(
        "network.tls",
        choice("auto", "on", "off"),
        "auto",
        "Encrypt control and data connections; auto: unless the control port is on the loopback address.",
    )
    tls_certificate = Option(
        "network.tls_certificate",
        TEXT,
        "",
        "PEM file, on the driver, of a certificate to use for TLS; empty: each job makes its own.",
    )
    tls_key = Option(
        "network.tls_key",
        TEXT,
        "",
        "PEM file, on the driver, of the private key for network.tls_certificate.",
    )
    handshake_timeout = Option(
        "network.handshake_timeout",
        at_least(1, DURATION),
        5_000,
        "Time for a new connection to prove itself before it is closed.",
    )
    link_timeout = Option(
        "network.link_timeout",
        at_least(1_000, DURATION),
        15_000,
        "Silence of a peer's host, including its kernel, after which the data connection to it counts as dead; also "
        "the time to open one. A peer that only reads slowly is not silent.",
    )
