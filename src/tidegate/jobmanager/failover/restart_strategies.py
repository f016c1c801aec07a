"""Restart strategies: whether a failed job runs again, and when. Pure: a failure and the time in, a decision out.

A strategy lives as long as its job. `failed` is called once for each failed attempt, with a time that never goes back;
the jitter comes from the seed.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tidegate.core.durations import format_duration_ms
from tidegate.core.options import Options


@dataclass(frozen=True, slots=True)
class Restart:
    """Run the job again after this delay. `allowance` tells the user how many restarts are left."""

    delay_ms: int
    allowance: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job has failed for good. `reason` says which limit was reached; empty if restarts are not configured."""

    reason: str


Decision = Restart | GiveUp


class RestartStrategy(Protocol):
    """Decides after each failure."""

    def failed(self, now_ms: int) -> Decision: ...

    def describe(self) -> str:
        """The strategy and its numbers in one line."""
        ...


class NoRestart:
    """The first failure ends the job."""

    def failed(self, now_ms: int) -> Decision:
        return GiveUp("")

    def describe(self) -> str:
        return "none"


class FixedDelay:
    """`attempts` restarts, each after the same delay."""

    def __init__(self, attempts: int, delay_ms: int) -> None:
        self._attempts = attempts
        self._delay_ms = delay_ms
        self._restarts = 0

    def failed(self, now_ms: int) -> Decision:
        if self._restarts >= self._attempts:
            return GiveUp(f"all {self._attempts} restarts of the restart strategy fixed-delay are used up")
        self._restarts += 1
        return Restart(self._delay_ms, f"restart {self._restarts} of {self._attempts}")

    def describe(self) -> str:
        return f"fixed-delay ({self._attempts} restarts, {format_duration_ms(self._delay_ms)} apart)"


class FailureRate:
    """Restarts as long as there are at most `max_failures` within any interval of this length."""

    def __init__(self, max_failures: int, interval_ms: int, delay_ms: int) -> None:
        self._max = max_failures
        self._interval_ms = interval_ms
        self._delay_ms = delay_ms
        self._failures: deque[int] = deque(maxlen=max_failures + 1)

    def failed(self, now_ms: int) -> Decision:
        self._failures.append(now_ms)
        recent = sum(now_ms - at_ms < self._interval_ms for at_ms in self._failures)
        interval = format_duration_ms(self._interval_ms)
        if recent > self._max:
            return GiveUp(
                f"{recent} failures within {interval} are more than the {self._max} "
                f"that the restart strategy failure-rate allows"
            )
        return Restart(self._delay_ms, f"failure {recent} of {self._max} allowed within {interval}")

    def describe(self) -> str:
        interval, delay = format_duration_ms(self._interval_ms), format_duration_ms(self._delay_ms)
        return f"failure-rate (at most {self._max} failures within {interval}, delay {delay})"


class ExponentialDelay:
    """Delays that grow with every failure, with a jitter, and start small again when `reset_ms` pass without one.

    That time counts from the moment at which the last restart was due.
    """

    def __init__(
        self,
        initial_ms: int,
        max_ms: int,
        multiplier: float,
        jitter: float,
        reset_ms: int,
        max_attempts: int = 0,
        seed: int = 0,
    ) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._multiplier = multiplier
        self._jitter = jitter
        self._reset_ms = reset_ms
        self._max_attempts = max_attempts
        self._random = random.Random(seed)
        self._backoff_ms: float = initial_ms
        self._restarts = 0
        self._restarted_ms: int | None = None

    def failed(self, now_ms: int) -> Decision:
        if self._restarted_ms is not None and now_ms - self._restarted_ms >= self._reset_ms:
            self._backoff_ms, self._restarts = self._initial_ms, 0
        if self._max_attempts and self._restarts >= self._max_attempts:
            return GiveUp(
                f"all {self._max_attempts} restarts of the restart strategy exponential-delay are used up "
                f"without {format_duration_ms(self._reset_ms)} free of failures"
            )
        self._restarts += 1
        change = self._backoff_ms * self._jitter * self._random.uniform(-1, 1)
        delay_ms = max(0, min(self._max_ms, round(self._backoff_ms + change)))
        self._backoff_ms = min(self._max_ms, self._backoff_ms * self._multiplier)
        self._restarted_ms = now_ms + delay_ms
        limit = f" of {self._max_attempts}" if self._max_attempts else " of an unlimited number"
        return Restart(delay_ms, f"restart {self._restarts}{limit}{self._why_so_long()}")

    def _why_so_long(self) -> str:
        if self._restarts == 1:
            return ""
        reset, longest = format_duration_ms(self._reset_ms), format_duration_ms(self._max_ms)
        return (
            f"; the delay grows with every failure, whatever its cause, until {reset} pass without one: "
            f"restart_strategy.exponential_delay.max_backoff ({longest}) and .reset_backoff_threshold ({reset}) "
            f"shorten it"
        )

    def describe(self) -> str:
        limit = f"{self._max_attempts} restarts" if self._max_attempts else "for ever"
        initial, longest = format_duration_ms(self._initial_ms), format_duration_ms(self._max_ms)
        return f"exponential-delay ({limit}, from {initial} to {longest}, times {self._multiplier:g})"


def strategy_of(options: Options, seed: int = 0) -> RestartStrategy:
    """The strategy that the options ask for.

    `auto` is exponential-delay for jobs with checkpoints and none for others, which would begin without state again.
    """
    chosen = options.restart_strategy
    if chosen == "auto":
        chosen = "exponential-delay" if options.checkpoint_interval else "none"
    match chosen:
        case "fixed-delay":
            return FixedDelay(options.restart_attempts, options.restart_delay)
        case "failure-rate":
            return FailureRate(
                options.restart_max_failures,
                options.restart_failure_interval,
                options.restart_failure_rate_delay,
            )
        case "exponential-delay":
            return ExponentialDelay(
                options.restart_initial_backoff,
                options.restart_max_backoff,
                options.restart_backoff_multiplier,
                options.restart_jitter,
                options.restart_reset_threshold,
                options.restart_max_attempts,
                seed,
            )
        case _:
            return NoRestart()
