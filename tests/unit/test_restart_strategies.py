"""Restart strategies: the seeds' numbers, both spellings of their keys, and when they give up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import Environment
from tidegate.api.restart_strategies import RestartStrategies
from tidegate.core.errors import ConfigurationError
from tidegate.core.options import Options
from tidegate.jobmanager.failover.restart_strategies import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    GiveUp,
    NoRestart,
    Restart,
    strategy_of,
)
from tidegate.program.option_files import options_from_file


def options(text: str, tmp_path) -> Options:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return options_from_file(file)


def test_without_restarts_the_first_failure_ends_the_job_and_nothing_need_be_said_about_it():
    assert NoRestart().failed(0) == GiveUp("")


def test_fixed_delay_restarts_exactly_three_times_ten_seconds_apart_and_gives_up_at_the_fourth_failure():
    strategy = FixedDelay(3, 10_000)
    decisions = [strategy.failed(now) for now in (0, 20_000, 40_000, 60_000)]
    assert [d.delay_ms for d in decisions[:3] if isinstance(d, Restart)] == [10_000] * 3
    assert decisions[3] == GiveUp("all 3 restarts of the restart strategy fixed-delay are used up")


def test_the_fourth_failure_within_five_minutes_is_one_too_many():
    strategy = FailureRate(3, 300_000, 10_000)
    assert [type(strategy.failed(now)) for now in (0, 100_000, 200_000, 299_999)] == [
        Restart,
        Restart,
        Restart,
        GiveUp,
    ]


def test_failures_that_are_five_minutes_old_do_not_count_any_more():
    strategy = FailureRate(3, 300_000, 10_000)
    decisions = [strategy.failed(now) for now in range(0, 3_000_000, 100_000)]
    assert {type(d) for d in decisions} == {Restart}
    assert {d.delay_ms for d in decisions if isinstance(d, Restart)} == {10_000}


def delays(strategy: ExponentialDelay, times: list[int]) -> list[int]:
    decisions = [strategy.failed(now) for now in times]
    assert all(isinstance(d, Restart) for d in decisions)
    return [d.delay_ms for d in decisions if isinstance(d, Restart)]


def test_exponential_delays_grow_up_to_the_longest():
    strategy = ExponentialDelay(200, 1_000, 2.0, 0.0, 60_000)
    assert delays(strategy, [0, 1_000, 3_000, 6_000, 9_000]) == [200, 400, 800, 1_000, 1_000]


def test_a_delay_that_has_grown_says_why_and_which_options_shorten_it():
    strategy = ExponentialDelay(1_000, 60_000, 2.0, 0.0, 3_600_000)
    assert strategy.failed(0) == Restart(1_000, "restart 1 of an unlimited number")
    second = strategy.failed(60_000)
    assert isinstance(second, Restart)
    assert second.allowance == (
        "restart 2 of an unlimited number; the delay grows with every failure, whatever its cause, until 1 h pass "
        "without one: restart_strategy.exponential_delay.max_backoff (1 min) and .reset_backoff_threshold (1 h) "
        "shorten it"
    )


def test_a_quiet_time_makes_exponential_delays_start_small_again():
    strategy = ExponentialDelay(200, 60_000, 2.0, 0.0, 10_000)
    assert delays(strategy, [0, 1_000, 2_000]) == [200, 400, 800]
    assert delays(strategy, [2_800 + 9_999]) == [1_600]
    assert delays(strategy, [12_799 + 1_600 + 10_000]) == [200]


def test_exponential_delay_has_no_limit_unless_one_is_set():
    assert len(delays(ExponentialDelay(1, 10, 2.0, 0.1, 10_000), list(range(5_000)))) == 5_000
    strategy = ExponentialDelay(1, 10, 2.0, 0.0, 10_000, max_attempts=2)
    assert [type(strategy.failed(now)) for now in (0, 1, 2)] == [Restart, Restart, GiveUp]


@given(st.integers(), st.floats(0, 1))
def test_the_jitter_stays_within_its_bounds_and_follows_the_seed(seed, jitter):
    one, two = (ExponentialDelay(1_000, 8_000, 2.0, jitter, 10_000, seed=seed) for _ in range(2))
    times = list(range(6))
    found = delays(one, times)
    assert found == delays(two, times)
    for delay, middle in zip(found, [1_000, 2_000, 4_000, 8_000, 8_000, 8_000], strict=True):
        assert middle * (1 - jitter) - 1 <= delay <= min(8_000, middle * (1 + jitter) + 1)


def test_with_checkpoints_and_nothing_configured_the_job_restarts_for_ever_without_them_never():
    on = strategy_of(Options().with_keywords(checkpoint_interval="1 s"))
    assert isinstance(on, ExponentialDelay)
    assert on.describe() == "exponential-delay (for ever, from 200 ms to 1 min, times 2)"
    assert isinstance(strategy_of(Options()), NoRestart)


NUMBERS = "restart-strategy.fixed-delay.attempts: 3\nrestart-strategy.fixed-delay.delay: 10 s"


@pytest.mark.parametrize(
    "text",
    [
        f"restart-strategy: fixed-delay\n{NUMBERS}",
        f"restart-strategy.type: fixed-delay\n{NUMBERS}",
        "restart_strategy:\n  type: fixed_delay\n  fixed_delay:\n    attempts: 3\n    delay: 10 s",
    ],
)
def test_both_spellings_of_the_seeds_keys_configure_fixed_delay(text, tmp_path):
    strategy = strategy_of(options(text, tmp_path))
    assert strategy.describe() == "fixed-delay (3 restarts, 10 s apart)"


@pytest.mark.parametrize("key", ["restart-strategy", "restart-strategy.type"])
def test_both_spellings_of_the_seeds_keys_configure_failure_rate(key, tmp_path):
    text = f"""
{key}: failure-rate
restart-strategy.failure-rate.max-failures-per-interval: 3
restart-strategy.failure-rate.failure-rate-interval: 5 min
restart-strategy.failure-rate.delay: 10 s
"""
    strategy = strategy_of(options(text, tmp_path))
    assert strategy.describe() == "failure-rate (at most 3 failures within 5 min, delay 10 s)"


@pytest.mark.parametrize("word", ["none", "off", "disable", '"no"'])
def test_restarts_can_be_switched_off_in_a_file_though_there_are_checkpoints(word, tmp_path):
    text = f"restart-strategy: {word}\ncheckpoint.interval: 1 s"
    if word == '"no"':
        with pytest.raises(ConfigurationError, match="Expected one of auto, none, fixed-delay"):
            options(text, tmp_path)
    else:
        assert isinstance(strategy_of(options(text, tmp_path)), NoRestart)


@pytest.mark.parametrize(
    ("settings", "described"),
    [
        (RestartStrategies.none(), "none"),
        (RestartStrategies.fixed_delay(3, "10 s"), "fixed-delay (3 restarts, 10 s apart)"),
        (
            RestartStrategies.failure_rate(3, "5 min", "10 s"),
            "failure-rate (at most 3 failures within 5 min, delay 10 s)",
        ),
        (
            RestartStrategies.exponential_delay("1 s", "1 min", 1.5),
            "exponential-delay (for ever, from 1 s to 1 min, times 1.5)",
        ),
        ("fixed-delay", "fixed-delay (3 restarts, 10 s apart)"),
    ],
)
def test_a_program_can_say_its_strategy_in_python(settings, described):
    env = Environment(restart_strategy=settings, checkpoint_interval="1 s")
    assert strategy_of(env.options).describe() == described


def test_what_the_program_says_goes_over_what_the_file_says(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("restart-strategy: fixed-delay\nrestart-strategy.fixed-delay.attempts: 7")
    env = Environment(config=file, restart_strategy=RestartStrategies.fixed_delay(delay="1 s"))
    assert strategy_of(env.options).describe() == "fixed-delay (7 restarts, 1 s apart)"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (RestartStrategies.fixed_delay(-1), r"fixed_delay.attempts cannot be -1 \(set in code\)"),
        (RestartStrategies.fixed_delay(3, "-1 s"), "fixed_delay.delay cannot be '-1 s'"),
        (RestartStrategies.failure_rate(0), "max_failures_per_interval cannot be 0"),
        (RestartStrategies.exponential_delay(backoff_multiplier=0.5), "a number from 1 to 100"),
        (
            RestartStrategies.exponential_delay("10 s", "1 s"),
            r"max_backoff \(1 s, set in code\) must be at least",
        ),
        ("sometimes", "option restart_strategy cannot be 'sometimes'"),
    ],
)
def test_absurd_strategies_are_refused_by_key_value_and_place(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        Environment(restart_strategy=settings)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"checkpoint_interval": "5 ms"}, "checkpoint.interval cannot be '5 ms'.*at least 10 ms"),
        ({"checkpoint_interval": "-1 s"}, "checkpoint.interval cannot be '-1 s'"),
        ({"checkpoint_timeout": 0}, "checkpoint.timeout cannot be 0.*at least 10 ms"),
        ({"checkpoint_min_pause": -5}, "checkpoint.min_pause cannot be -5.*negative"),
        ({"checkpoint_max_concurrent": 0}, "checkpoint.max_concurrent cannot be 0"),
        ({"checkpoint_retained": 0}, "checkpoint.retained cannot be 0"),
        ({"checkpoint_tolerable_failures": -1}, "checkpoint.tolerable_failures cannot be -1"),
        ({"checkpoint_mode": "twice"}, "checkpoint.mode cannot be 'twice'"),
        (
            {"checkpoint_mode": "at-most-once", "checkpoint_interval": "1 s"},
            "checkpoint.interval .* cannot be combined with checkpoint.mode .*takes no checkpoints",
        ),
        (
            {"checkpoint_mode": "AT_LEAST_ONCE", "checkpoint_unaligned": True},
            "checkpoint.unaligned .* cannot be combined with checkpoint.mode",
        ),
        (
            {"checkpoint_unaligned": True, "checkpoint_max_concurrent": 2},
            (
                "checkpoint.unaligned .* cannot be combined with checkpoint.max_concurrent "
                ".*perhaps none would be complete"
            ),
        ),
        (
            {"checkpoint_alignment_timeout": "1 s", "checkpoint_max_concurrent": 2},
            "checkpoint.alignment_timeout .* cannot be combined with checkpoint.max_concurrent",
        ),
        ({"resume": "latest"}, "resume .* needs checkpoint.dir"),
    ],
)
def test_absurd_checkpoint_options_are_refused(given, said):
    with pytest.raises(ConfigurationError, match=said):
        Environment(**given)


@pytest.mark.parametrize(
    ("spelling", "value", "name", "expected"),
    [
        ("execution.checkpointing.interval", "3 min", "checkpoint_interval", 180_000),
        ("checkpoint.interval", "off", "checkpoint_interval", 0),
        ("checkpoint.interval", False, "checkpoint_interval", 0),
        ("execution.checkpointing.mode", "EXACTLY_ONCE", "checkpoint_mode", "exactly_once"),
        ("checkpoint.mode", "at-least-once", "checkpoint_mode", "at_least_once"),
        ("execution.checkpointing.tolerable-failed-checkpoints", 2, "checkpoint_tolerable_failures", 2),
        ("execution.checkpointing.num-retained", 5, "checkpoint_retained", 5),
    ],
)
def test_checkpoint_options_are_known_by_flinks_keys_too(spelling, value, name, expected):
    assert getattr(Options().with_values({spelling: value}, "a file"), name) == expected


def test_delays_of_all_strategies_are_whole_and_not_negative():
    strategies = [FixedDelay(5, 0), FailureRate(5, 1_000, 0), ExponentialDelay(1, 1, 1.0, 1.0, 10)]
    for strategy, now in itertools.product(strategies, range(5)):
        decision = strategy.failed(now)
        assert isinstance(decision, Restart)
        assert decision.delay_ms >= 0
