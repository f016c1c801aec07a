"""A Pathway program on several processes, which are faster than threads: those share the interpreter lock."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def start(outs: list[Path]) -> list[subprocess.Popen[bytes]]:
    """Start this script again once for each of `outs`, with `--out` and what makes the processes one cluster."""
    cluster = {
        "PATHWAY_PROCESSES": str(len(outs)),
        "PATHWAY_THREADS": "1",
        "PATHWAY_FIRST_PORT": str(_free_ports(len(outs))),
        "PATHWAY_RUN_ID": str(time.time_ns()),
    }
    return [
        subprocess.Popen(
            [sys.executable, *sys.argv, "--out", str(out)],
            env=os.environ | cluster | {"PATHWAY_PROCESS_ID": str(index)},
        )
        for index, out in enumerate(outs)
    ]


def _free_ports(count: int) -> int:
    """The first of `count` consecutive local ports that are free at the moment."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                for offset in range(1, count):
                    socket.create_server(("127.0.0.1", port + offset)).close()
            except (OSError, OverflowError):
                continue
        return port
