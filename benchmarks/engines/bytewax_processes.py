"""A Bytewax flow on several processes: each worker process runs the same script with its index.

Two workers are two processes: as threads of one process they would share the interpreter lock.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import protocol
from bytewax._bytewax import cluster_main
from bytewax.dataflow import Dataflow

Seen = dict[str, Any]
"""What one process has seen; must hold `first_ns` and `last_ns` in the end."""
BuildFlow = Callable[[argparse.Namespace, int, Seen], tuple[Dataflow, Callable[[], None]]]
"""From arguments, worker index and what to fill in: the flow, and what to do when it has ended."""


def run(description: str | None, build_flow: BuildFlow) -> tuple[argparse.Namespace, list[Seen]]:
    """Run the flow on `--parallelism` processes. Returns in the parent only, with what each process has seen."""
    parser = protocol.arguments(description)
    parser.add_argument("--worker", type=int)
    parser.add_argument("--addresses", nargs="*")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.worker is not None:
        _work(args, build_flow)
        raise SystemExit
    command = [sys.executable, *sys.argv, "--addresses", *_free_addresses(args.parallelism)]
    with tempfile.TemporaryDirectory() as directory:
        outs = [Path(directory) / str(index) for index in range(args.parallelism)]
        processes = [
            subprocess.Popen(
                [*command, "--out", str(out), "--worker", str(index)],
            )
            for index, out in enumerate(outs)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit("a Bytewax worker failed")
        return args, [json.loads(out.read_text()) for out in outs]


def _work(args: argparse.Namespace, build_flow: BuildFlow) -> None:
    seen: Seen = {}
    flow, finish = build_flow(args, args.worker, seen)
    # All processes have loaded their data before one of them starts the clock.
    Path(f"{args.out}.ready").touch()
    while len(list(args.out.parent.glob("*.ready"))) < len(args.addresses):
        time.sleep(0.005)
    cpu_s = protocol.tree_cpu_s()
    addresses = args.addresses if len(args.addresses) > 1 else None
    cluster_main(flow, addresses, args.worker, worker_count_per_proc=1)
    seen["cpu_s"] = protocol.tree_cpu_s() - cpu_s
    finish()
    args.out.write_text(json.dumps(seen))


def _free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses
