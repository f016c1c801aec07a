"""`RestartStrategies`: what a job does after a failure, as `Environment(restart_strategy=...)`.

Each method returns settings, which the environment checks. A file can say the same
(`restart-strategy.type: fixed-delay`, `restart-strategy.fixed-delay.attempts: 3`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tidegate.core.durations import Duration

RestartSettings = Mapping[str, object]


class RestartStrategies:
    """The strategies, with Flink's names. A parameter that is left out has the default of its option.

    >>> from tidegate import Environment
    >>> env = Environment(restart_strategy=RestartStrategies.fixed_delay(3, "10 s"))
    >>> env.options.restart_strategy, env.options.restart_attempts, env.options.restart_delay
    ('fixed-delay', 3, 10000)
    """

    @staticmethod
    def none() -> RestartSettings:
        """Do not restart: the first failure ends the job."""
        return _settings("none")

    @staticmethod
    def fixed_delay(attempts: int | None = None, delay: Duration | None = None) -> RestartSettings:
        """Restart at most `attempts` times, each after the same delay. The next failure ends the job."""
        return _settings("fixed-delay", attempts=attempts, delay=delay)

    @staticmethod
    def failure_rate(
        max_failures_per_interval: int | None = None,
        failure_rate_interval: Duration | None = None,
        delay: Duration | None = None,
    ) -> RestartSettings:
        """Restart until there are more failures than this within the interval."""
        return _settings(
            "failure-rate",
            max_failures_per_interval=max_failures_per_interval,
            failure_rate_interval=failure_rate_interval,
            delay=delay,
        )

    @staticmethod
    def exponential_delay(
        initial_backoff: Duration | None = None,
        max_backoff: Duration | None = None,
        backoff_multiplier: float | None = None,
        *,
        jitter_factor: float | None = None,
        reset_backoff_threshold: Duration | None = None,
        attempts_before_reset_backoff: int | None = None,
    ) -> RestartSettings:
        """Restart after delays that grow with each failure and are reset after a quiet time.

        The number of restarts is unlimited by default.
        """
        return _settings(
            "exponential-delay",
            initial_backoff=initial_backoff,
            max_backoff=max_backoff,
            backoff_multiplier=backoff_multiplier,
            jitter_factor=jitter_factor,
            reset_backoff_threshold=reset_backoff_threshold,
            attempts_before_reset_backoff=attempts_before_reset_backoff,
        )


def _settings(strategy: str, **parameters: object) -> RestartSettings:
    """Keys below `restart_strategy.`: `Options` reads a mapping as the keys below the option's name."""
    given = {f"{strategy}.{name}": value for name, value in parameters.items() if value is not None}
    return MappingProxyType({"type": strategy, **given})
