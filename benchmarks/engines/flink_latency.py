"""Latency with Flink's DataStream API on the JVM; the job itself is java/Latency.java, compiled beside the jars."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import protocol
from flink_java import compiled

BUFFER_TIMEOUT_MS = 0


def main() -> None:
    """Compile, run and report."""
    args = protocol.arguments(__doc__).parse_args()
    source = Path(__file__).parent / "java" / "Latency.java"
    with tempfile.TemporaryDirectory() as classes:
        command = compiled(source, Path(classes), Path(sysconfig.get_path("purelib")))
        ready_cpu_s, ready = protocol.tree_cpu_s(), time.monotonic()
        checkpoint_ms = round(args.checkpoint_interval * 1000)
        checkpoints = (checkpoint_ms, (Path(classes) / "checkpoints").as_uri())
        settings = (
            args.parallelism,
            args.rate,
            args.warmup_s,
            args.measure_s,
            BUFFER_TIMEOUT_MS,
            *checkpoints,
        )
        output = subprocess.run(
            [*command, *map(str, settings)], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        seconds = time.monotonic() - ready
    result = json.loads(output.splitlines()[-1])
    running_s = args.warmup_s + args.measure_s
    protocol.report(
        version=version("apache-flink"),
        records=int(args.rate * running_s),
        seconds=running_s,
        startup_s=seconds - running_s,
        cpu_s=protocol.tree_cpu_s() - ready_cpu_s,
        check={"measured": result["measured"]},
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        setting=f"buffer timeout {BUFFER_TIMEOUT_MS} ms",
    )


if __name__ == "__main__":
    main()
