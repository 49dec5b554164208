"""When a failed job is tried again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.domain.jobs.retry import Constant, Custom, Delays, Exponential, RetryPolicy
from duetime.errors import InvalidInput

ATTEMPTS = st.integers(min_value=1, max_value=10_000)


def waits(policy: RetryPolicy, attempts: int) -> list[float]:
    """The waits after each failed attempt, in seconds."""
    return [
        policy.delay(attempt, None, Random(0)).total_seconds() for attempt in range(1, attempts + 1)
    ]


def test_exponential_doubles_by_default() -> None:
    assert waits(Exponential("60s"), 3) == [60, 120, 240]


def test_exponential_stops_growing_at_its_maximum() -> None:
    assert waits(Exponential("1s", factor=10, max="50s"), 4) == [1, 10, 50, 50]


@given(ATTEMPTS, st.floats(min_value=1, max_value=100))
def test_exponential_never_exceeds_its_maximum(attempt: int, factor: float) -> None:
    wait = Exponential("15s", factor=factor, max="1d").delay(attempt, None, Random(0))

    assert timedelta(seconds=15) <= wait <= timedelta(days=1)


@given(ATTEMPTS, st.floats(min_value=0, max_value=1), st.integers())
def test_jitter_stays_within_its_share(attempt: int, jitter: float, seed: int) -> None:
    plain = Exponential("10s").delay(attempt, None, Random(seed))
    wait = Exponential("10s", jitter=jitter).delay(attempt, None, Random(seed))

    assert abs(wait - plain) <= plain * jitter + timedelta(microseconds=1)
    assert wait >= timedelta(0)


def test_constant_is_constant() -> None:
    assert waits(Constant("7s"), 3) == [7, 7, 7]


def test_a_table_of_delays_begins_with_the_first_attempt() -> None:
    policy = Delays("0s", "30s", "5m")

    assert policy.max_attempts == 3
    assert waits(policy, 2) == [30, 300]


def test_a_table_of_one_is_a_single_attempt() -> None:
    assert Delays("1m").max_attempts == 1
    assert waits(Delays("1m"), 1) == [60]


def test_custom_sees_the_attempt_and_the_error() -> None:
    seen: list[tuple[int, BaseException | None]] = []

    def wait(attempt: int, error: BaseException | None) -> str:
        seen.append((attempt, error))
        return "90s"

    error = ValueError("no")

    assert Custom(wait).delay(2, error, Random(0)) == timedelta(seconds=90)
    assert seen == [(2, error)]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Exponential("-1s"), "base"),
        (lambda: Exponential(float("nan")), "base must be a number of seconds, got nan"),
        (lambda: Exponential(max="soon"), "max 'soon' is not a duration"),
        (lambda: Exponential(factor=0.5), "factor must be between 1 and 100"),
        (lambda: Exponential(factor=float("nan")), "factor must be between 1 and 100"),
        (lambda: Exponential(jitter=1.5), "jitter must be a fraction between 0 and 1"),
        (lambda: Exponential(max_attempts=0), "max_attempts must be between 1 and 10,000"),
        (lambda: Exponential(max_attempts=True), "max_attempts must be between"),
        (lambda: Constant("5s", max_attempts=10_001), "max_attempts must be between"),
        (lambda: Constant(None), "wait must be a number of seconds, a string"),  # type: ignore[arg-type]
        (lambda: Custom("5s"), "Custom takes a function"),  # type: ignore[arg-type]
        (lambda: Delays(), "at least one delay"),
        (lambda: Delays("0s", "later"), "delay 'later' is not a duration"),
    ],
)
def test_nonsense_is_refused_when_the_policy_is_made(
    make: Callable[[], RetryPolicy], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        make()


@pytest.mark.parametrize("answer", ["5", None, "-5s", float("nan")])
def test_a_custom_policy_must_answer_with_a_duration(answer: Any) -> None:
    with pytest.raises(InvalidInput, match="the custom retry's delay"):
        Custom(lambda attempt, error: answer).delay(1, None, Random(0))
