"""What the properties share: the environment of a case, and what a job writes that fails behind a checkpoint.

The scheduler of the in-process runtime lets little time pass with each event, so a job of a few records ends before its
first checkpoint. Here it lets more pass.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, settings

from tidegate import DataStream, Environment, FileSink, JobFailedError, RestartStrategies
from tidegate.runtime import simulation

COMMON = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # making a failing job small takes minutes
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


def environment(case: Any, parallelism: int | None = None, **more: object) -> Environment:
    """Runs in this thread; a watermark behind every batch, so that the reference knows when."""
    return Environment(
        runtime="in-process",
        parallelism=parallelism or case.parallelism,
        seed=case.seed,
        batch_rows=case.batch_rows,
        watermark_interval=0,
        **more,
    )


@contextmanager
def time_passes() -> Iterator[None]:
    """Two milliseconds with each event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_EVENT_NS", 2_000_000)
        patch.setattr(simulation, "_TICK_NS", 1_000_000)
        yield


class Crashes:
    """Runs jobs that fail once; `seen` counts how they went, so that a test can say that there was something to see."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def written(
        self,
        case: Any,
        backend: str,
        program: Callable[[Environment, Any], DataStream],
        record_type: Any,
        crashes: Callable[[Any], bool],
        parallelism: int | None = None,
    ) -> list[Any]:
        """What a job writes that fails at the first record behind a checkpoint for which `crashes` is true.

        It restarts by itself, every other case from unaligned checkpoints. With `parallelism` it does not, and the
        program is run again with that one.
        """
        directory = Path(tempfile.mkdtemp(prefix="crash-"))
        marker, out = directory / "crashed", directory / "out"
        is_unaligned = (
            parallelism is None and case.seed % 2 == 1
        )  # batches that are overtaken forbid another one

        def crash_once(found: Any) -> Any:
            if crashes(found) and not marker.exists() and any(directory.glob("chk/*/chk-*/_metadata")):
                marker.touch()
                raise RuntimeError("once")
            return found

        def run(parallelism: int | None = None, **more: object) -> None:
            env = environment(
                case,
                parallelism,
                state_backend=backend,
                checkpoint_interval="10 ms",
                checkpoint_fsync=False,
                checkpoint_unaligned=is_unaligned,
                checkpoint_dir=str(directory / "chk"),
                **more,
            )
            results = program(env, case).map(crash_once, returns=record_type, uid="crash")
            results.sink_to(FileSink(out, format="parquet", append=True), uid="out")
            env.execute("job")

        try:
            with time_passes():
                if parallelism is None:
                    run(restart_strategy=RestartStrategies.fixed_delay(3, "1 ms"))
                else:
                    try:
                        run(restart_strategy=RestartStrategies.none())
                    except JobFailedError:
                        # Of a checkpoint that was not told to be complete when the job failed nothing is left.
                        run(parallelism, resume="latest-or-new")
                        self.seen["rescaled"] += 1
            self.seen["unaligned"] += is_unaligned
            self.seen["restored" if marker.exists() else "not crashed"] += 1
            files = sorted(out.glob("part-*"))
            return [record_type(**row) for file in files for row in pq.read_table(file).to_pylist()]
        finally:
            shutil.rmtree(directory)
