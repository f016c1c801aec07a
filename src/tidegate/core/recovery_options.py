"""The options of checkpoints and restarts; part of `tidegate.core.options.Options`.

Flink's keys are aliases. Defaults that differ from Flink's: `checkpoint.tolerable_failures` is 10, because a failed
checkpoint does no harm and a restart does not repair a full or missing storage; `checkpoint.retained` is 2, because the
job falls back to the second if the first is damaged; cancelled jobs keep their checkpoints, because a deletion cannot
be undone; the first restart comes soon, because most failures are lost processes.
"""

from __future__ import annotations

from typing import Final

from tidegate.core.option import Option
from tidegate.core.option_types import (
    BOOLEAN,
    DURATION,
    LOCATION,
    SIZE,
    at_least,
    choice,
    duration_or_off,
    integer,
    number,
)

LATEST: Final = "latest"
LATEST_OR_NEW: Final = "latest-or-new"
"""Values of `resume`: a job without a checkpoint is refused, or starts from nothing."""


class RecoveryOptions:
    """The options of checkpoints and restarts."""

    __slots__ = ()

    checkpoint_interval = Option(
        "checkpoint.interval",
        duration_or_off(10),
        0,
        "Time between the triggers of two checkpoints; off: no checkpoints, and a failure ends the job.",
        aliases=["execution.checkpointing.interval"],
    )
    checkpoint_dir = Option(
        "checkpoint.dir",
        LOCATION,
        "",
        "Directory (a path or a URI) of the checkpoints of all jobs; empty: the memory of the JobManager.",
        aliases=["execution.checkpointing.dir", "state.checkpoints.dir"],
    )
    checkpoint_fsync = Option(
        "checkpoint.fsync",
        BOOLEAN,
        True,
        "Wait until local files are on the disk: a completed checkpoint then survives a power failure.",
    )
    checkpoint_memory_limit = Option(
        "checkpoint.memory_limit",
        at_least(1, SIZE),
        5 << 20,
        "Without checkpoint.dir: the most that one operator subtask may store per checkpoint.",
    )
    checkpoint_mode = Option(
        "checkpoint.mode",
        choice("exactly_once", "at_least_once", "at_most_once"),
        "exactly_once",
        "What a failure may do to the result; at_most_once: no checkpoints, no replay.",
        aliases=["execution.checkpointing.mode"],
    )
    checkpoint_unaligned = Option(
        "checkpoint.unaligned",
        BOOLEAN,
        False,
        "Barriers overtake the in-flight batches, which become part of the checkpoint.",
        aliases=["execution.checkpointing.unaligned", "execution.checkpointing.unaligned.enabled"],
    )
    checkpoint_alignment_timeout = Option(
        "checkpoint.alignment_timeout",
        duration_or_off(1),
        0,
        "Age of a barrier after which an aligned checkpoint continues unaligned; off: never.",
        aliases=["execution.checkpointing.aligned_checkpoint_timeout"],
    )
    checkpoint_allow_pickle = Option(
        "checkpoint.allow_pickle",
        BOOLEAN,
        False,
        "Let unaligned checkpoints hold records without a type, as pickles: anyone who can change them can run code.",
    )
    checkpoint_timeout = Option(
        "checkpoint.timeout",
        at_least(10, DURATION),
        600_000,
        "Time after which a checkpoint that is not complete has failed.",
        aliases=["execution.checkpointing.timeout"],
    )
    checkpoint_min_pause = Option(
        "checkpoint.min_pause",
        DURATION,
        0,
        "Least time between the end of a checkpoint and the next trigger.",
        aliases=["execution.checkpointing.min_pause"],
    )
    checkpoint_max_concurrent = Option(
        "checkpoint.max_concurrent",
        integer(1, 100),
        1,
        "Checkpoints that may be under way at the same time; more than 1 only while they are aligned.",
        aliases=["execution.checkpointing.max_concurrent_checkpoints"],
    )
    checkpoint_tolerable_failures = Option(
        "checkpoint.tolerable_failures",
        integer(0),
        10,
        "Failed checkpoints in a row that the job survives; one more is a failure of the job.",
        aliases=["execution.checkpointing.tolerable_failed_checkpoints"],
    )
    checkpoint_retained = Option(
        "checkpoint.retained",
        integer(1, 1000),
        2,
        "Completed checkpoints to keep; with only one there is no fallback if it is damaged.",
        aliases=["execution.checkpointing.num_retained", "state.checkpoints.num_retained"],
    )
    checkpoint_full_every = Option(
        "checkpoint.full_every",
        integer(0),
        0,
        "Every so many checkpoints, one shares no file with earlier ones, so that a damaged file harms only those "
        "before the next such checkpoint; 0: files are shared for as long as they are in use.",
    )
    checkpoint_fallback = Option(
        "checkpoint.fallback",
        choice("refuse", "repeat-output"),
        "refuse",
        "If the newest checkpoint is damaged and a sink may have committed it: fail, or continue from an older one and "
        "write that output twice. Without such a sink the job continues from the older one.",
    )
    checkpoint_keep_on_cancel = Option(
        "checkpoint.keep_on_cancel",
        BOOLEAN,
        True,
        "Keep the checkpoints of a cancelled job, so that it can be resumed. Those of a failed job always stay.",
    )
    checkpoint_keep_on_finish = Option(
        "checkpoint.keep_on_finish", BOOLEAN, False, "Keep the checkpoints of a job that has finished."
    )
    checkpoint_history = Option(
        "checkpoint.history",
        integer(1, 100_000),
        100,
        "Checkpoints whose statistics are remembered.",
        aliases=["web.checkpoints.history"],
    )
    resume = Option(
        "resume",
        LOCATION,
        "",
        "Where the job starts: 'latest' (its last completed checkpoint), 'latest-or-new' (the same, or from nothing if "
        "there is none), the path of one; empty: from nothing.",
        aliases=["execution.state_recovery.path", "execution.savepoint.path"],
    )
    allow_non_restored_state = Option(
        "allow_non_restored_state",
        BOOLEAN,
        False,
        "Start even if the checkpoint has state of operators that are not in the program; that state is not restored.",
        aliases=[
            "execution.state_recovery.ignore_unclaimed_state",
            "execution.savepoint.ignore_unclaimed_state",
        ],
    )

    restart_strategy = Option(
        "restart_strategy.type",
        choice(
            "auto",
            "none",
            "fixed-delay",
            "failure-rate",
            "exponential-delay",
            also={
                "off": "none",
                "disable": "none",
                "fixeddelay": "fixed-delay",
                "failurerate": "failure-rate",
                "exponentialdelay": "exponential-delay",
            },
        ),
        "auto",
        "What follows a failure; auto: exponential-delay for ever with checkpoints, none without.",
    )
    restart_attempts = Option(
        "restart_strategy.fixed_delay.attempts", integer(0), 3, "fixed-delay: restarts before the job fails."
    )
    restart_delay = Option(
        "restart_strategy.fixed_delay.delay", DURATION, 10_000, "fixed-delay: time before each restart."
    )
    restart_max_failures = Option(
        "restart_strategy.failure_rate.max_failures_per_interval",
        integer(1),
        3,
        "failure-rate: failures within the interval that the job survives.",
    )
    restart_failure_interval = Option(
        "restart_strategy.failure_rate.failure_rate_interval",
        at_least(1, DURATION),
        300_000,
        "failure-rate: the interval in which failures are counted.",
    )
    restart_failure_rate_delay = Option(
        "restart_strategy.failure_rate.delay", DURATION, 10_000, "failure-rate: time before each restart."
    )
    restart_initial_backoff = Option(
        "restart_strategy.exponential_delay.initial_backoff",
        at_least(1, DURATION),
        200,
        "exponential-delay: time before the first restart.",
    )
    restart_max_backoff = Option(
        "restart_strategy.exponential_delay.max_backoff",
        at_least(1, DURATION),
        60_000,
        "exponential-delay: longest time before a restart.",
    )
    restart_backoff_multiplier = Option(
        "restart_strategy.exponential_delay.backoff_multiplier",
        number(1, 100),
        2.0,
        "exponential-delay: factor from one delay to the next.",
    )
    restart_jitter = Option(
        "restart_strategy.exponential_delay.jitter_factor",
        number(0, 1),
        0.1,
        "exponential-delay: largest random change of a delay, as a part of it.",
    )
    restart_reset_threshold = Option(
        "restart_strategy.exponential_delay.reset_backoff_threshold",
        at_least(1, DURATION),
        3_600_000,
        "exponential-delay: time without a failure after which delays start small again.",
    )
    restart_max_attempts = Option(
        "restart_strategy.exponential_delay.attempts_before_reset_backoff",
        integer(0),
        0,
        "exponential-delay: restarts without such a quiet time before the job fails; 0: no limit.",
    )
