"""What is measured: the engines, and the cases that each of them runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OURS = "tidegate"
OURS_ON_ROCKSDB = "tidegate, rocksdb"
OURS_WITHOUT_CHECKPOINTS = "tidegate, no checkpoints"


@dataclass(frozen=True)
class Engine:
    """One way to run a case: a script prefix, the environment it runs in, and its own arguments."""

    name: str
    prefix: str
    environment: str | None
    """None is the interpreter that runs the harness."""
    arguments: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name that `--only` takes: `spark` for all of Spark's settings."""
        return self.prefix


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(OURS, OURS, None),
        Engine(OURS_ON_ROCKSDB, OURS, None, ("--state-backend", "rocksdb")),
        Engine(OURS_WITHOUT_CHECKPOINTS, OURS, None, ("--checkpoint-interval", "0")),
        # Everything in one micro-batch is Spark's best throughput; one file each is a stream of micro-batches.
        Engine("spark, 1 micro-batch", "spark", "spark", ("--files-per-trigger", "8")),
        Engine("spark, 8 micro-batches", "spark", "spark", ("--files-per-trigger", "1")),
        Engine("spark, state per record", "spark", "spark", ("--state-per", "record")),
        Engine("spark, state per batch", "spark", "spark", ("--state-per", "batch")),
        Engine("flink", "flink", "flink"),
        Engine("bytewax", "bytewax", "bytewax"),
        Engine("pathway", "pathway", "pathway"),
        Engine("pyflink, process mode", "pyflink", "flink", ("--execution-mode", "process")),
        Engine("pyflink, thread mode", "pyflink", "flink", ("--execution-mode", "thread")),
    )
}
FAMILIES = tuple(dict.fromkeys(engine.family for engine in ENGINES.values()))


@dataclass(frozen=True)
class Case:
    """One workload in one variant, with the engines that support it."""

    workload: str
    variant: str
    script: str
    """The runner is `engines/<prefix>_<script>.py`."""
    engines: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    records: int | None = None
    """None: as many as the harness was asked for."""
    other_records: tuple[tuple[str, int], ...] = ()
    """Another number for some families: a small one where they would take minutes, since the rate is what counts."""
    repeats: tuple[tuple[str, int], ...] = ()
    """How often a family reads the data over, so that its run lasts long enough."""
    data: Literal["clicks", "visits", "events", ""] = "clicks"
    """Empty: the runner makes its own records, as many as it is told."""
    most_rounds: int | None = None
    """For a runner that itself measures several times."""

    @property
    def name(self) -> str:
        """`workload/variant`, as in the results."""
        return f"{self.workload}/{self.variant}" if self.variant else self.workload

    def records_for(self, engine: Engine, asked: int) -> int:
        """How many records that engine reads in this case."""
        return min(asked, dict(self.other_records).get(engine.family, self.records or asked))

    def repeats_of(self, engine: Engine) -> int:
        """How often that engine reads them."""
        return dict(self.repeats).get(engine.family, 1)

    def rounds(self, asked: int) -> int:
        """How often each engine runs."""
        return min(asked, self.most_rounds or asked)


_SPARK = ("spark, 1 micro-batch", "spark, 8 micro-batches")
_CHECKPOINTS = ("--checkpoint-interval", "1")
_PYFLINK = ("pyflink, process mode", "pyflink, thread mode")

CASES = (
    *(
        Case(
            f"pv_{form}",
            mode,
            "pv",
            (OURS, *(_SPARK if mode == "mini_batch" else ()), "flink"),
            ("--format", form, "--mode", mode),
        )
        for form in ("json", "parquet")
        for mode in ("each", "mini_batch")
    ),
    Case(
        "python_chain",
        "",
        "python_chain",
        (OURS, "bytewax", "pathway", *_PYFLINK),
        # Few records, read again and again, so that they are in the processor's caches like fresh records: two
        # million Python objects are 600 MB, and fetching them from memory took a fifth of tidegate's time.
        records=40_000,
        other_records=(("pathway", 2_000_000), ("pyflink", 200_000)),
        repeats=((OURS, 100), ("bytewax", 100)),
    ),
    Case("latency", "", "latency", (OURS, "flink", "bytewax")),
    # About ten seconds for each engine, so that there are several checkpoints.
    Case(
        "pv_checkpoints",
        "json",
        "pv",
        (OURS, OURS_WITHOUT_CHECKPOINTS, "flink"),
        ("--format", "json", *_CHECKPOINTS),
        repeats=((OURS, 4),),
    ),
    Case(
        "pv_checkpoints",
        "parquet",
        "pv",
        (OURS, OURS_WITHOUT_CHECKPOINTS, "flink"),
        ("--format", "parquet", *_CHECKPOINTS),
        repeats=((OURS, 24), ("flink", 2)),
    ),
    Case(
        "pv_checkpoints",
        "parquet_mini_batch",
        "pv",
        (OURS, OURS_WITHOUT_CHECKPOINTS, "spark, 8 micro-batches", "flink"),
        ("--format", "parquet", "--mode", "mini_batch", *_CHECKPOINTS),
        repeats=((OURS, 60), ("spark", 2), ("flink", 2)),
    ),
    Case("latency_checkpoints", "", "latency", (OURS, "flink"), _CHECKPOINTS),
    Case(
        "many_keys",
        "",
        "many_keys",
        (OURS, OURS_ON_ROCKSDB, *_SPARK, "flink"),
        ("--format", "parquet", "--mode", "mini_batch", *_CHECKPOINTS),
        data="visits",
    ),
    Case(
        "increment",
        "",
        "increment",
        (OURS, OURS_ON_ROCKSDB),
        _CHECKPOINTS,
        records=5_000_000,
        data="",
        most_rounds=1,
    ),
    Case(
        "stateful_function",
        "",
        "stateful_function",
        (
            *(OURS, OURS_ON_ROCKSDB, "bytewax", "pathway"),
            *(*_PYFLINK, "spark, state per record", "spark, state per batch"),
        ),
        records=2_000_000,
        other_records=(("pyflink", 200_000), ("spark", 200_000)),
    ),
    # PyFlink only in process mode: in thread mode its job with windows hung.
    *(
        Case(
            f"windows_{kind}",
            form,
            "windows",
            (
                OURS,
                *(_SPARK[:1] if form == "json" else _SPARK),
                "flink",
                *(_PYFLINK[:1] if form == "json" else ()),
            ),
            ("--windows", kind, "--format", form, *_CHECKPOINTS),
            # Spark copies each record into each of its windows: 60 of them for sliding ones.
            other_records=(("pyflink", 200_000), *((("spark", 1_000_000),) if kind == "sliding" else ())),
            data="events",
        )
        for kind, form in (
            ("tumbling", "parquet"),
            ("tumbling", "json"),
            ("sliding", "parquet"),
            ("session", "parquet"),
        )
    ),
    Case(
        "recovery",
        "",
        "recovery",
        (OURS, OURS_ON_ROCKSDB),
        _CHECKPOINTS,
        records=102_400,
        data="",
        most_rounds=1,
    ),
    # Read 24 times: the costs that each slot pays once (its start, memory touched for the first time) count twice at 2.
    *(
        Case("scaling", variant, "scaling", (OURS,), arguments, repeats=((OURS, 24),))
        for variant, arguments in (
            ("parallelism_1", ("--parallelism", "1")),
            ("parallelism_2", ("--parallelism", "2")),
            ("two_jobs_of_parallelism_1", ("--parallelism", "1", "--jobs", "2")),
            *((f"chain_{length}", ("--chain-length", str(length))) for length in (1, 4, 16)),
        )
    ),
)
WORKLOADS = tuple(dict.fromkeys(case.workload for case in CASES))
