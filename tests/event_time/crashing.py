"""What the properties share: the environment of a case, and what a job writes that fails once at some record."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, settings

from tidegate import DataStream, Environment, FileSink, RestartStrategies

COMMON = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # making a failing job small takes minutes
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


def environment(case: Any, **more: object) -> Environment:
    """Runs in this thread; a watermark behind every batch, so that the reference knows when."""
    return Environment(
        runtime="in-process",
        parallelism=case.parallelism,
        seed=case.seed,
        batch_rows=case.batch_rows,
        watermark_interval=0,
        **more,
    )


def written_with_a_crash(
    case: Any,
    backend: str,
    program: Callable[[Environment, Any], DataStream],
    record_type: Any,
    crashes: Callable[[Any], bool],
) -> list[Any]:
    """What a job with checkpoints writes that fails at the first record for which `crashes` is true."""
    directory = Path(tempfile.mkdtemp(prefix="crash-"))
    try:
        marker = directory / "crashed"

        def crash_once(found: Any) -> Any:
            if crashes(found) and not marker.exists():
                marker.touch()
                raise RuntimeError("once")
            return found

        env = environment(
            case,
            state_backend=backend,
            checkpoint_interval="10 ms",
            checkpoint_fsync=False,
            checkpoint_dir=str(directory / "checkpoints"),
            restart_strategy=RestartStrategies.fixed_delay(3, "1 ms"),
        )
        out = directory / "out"
        results = program(env, case).map(crash_once, returns=record_type, uid="crash")
        results.sink_to(FileSink(out, format="parquet"), uid="out")
        env.execute()
        files = sorted(out.glob("part-*"))
        return [record_type(**row) for file in files for row in pq.read_table(file).to_pylist()]
    finally:
        shutil.rmtree(directory)
